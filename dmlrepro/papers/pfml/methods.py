"""What the notebooks of "Potential Field Based Deep Metric Learning" train.

The network, the data and the budget are equal for every method of a notebook; only the loss and its batch composition
differ. Proxies learn 100 times as fast as the network, as the paper and its baselines do (its Table 8).

Deviation: gradient values are clipped at CLIP_VALUE, those of PFML's proxies and all of CPML's. The paper mentions no
clipping; ProxyAnchor's code, whose recipe it follows, clips all values at 10, which does not change what is said below.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from dmlrepro.papers.methods import found_by_search, runs_of
from dmlrepro.papers.params import Params
from dmlrepro.training.spec import RunSpec

PROXY_LR_FACTOR = 100
# PFML's forces span orders of magnitude: a point at delta pulls with alpha / delta^(alpha + 1) = 1875, one at right
# angles with 0.75. So the first thing the proxies of a class do is to gather, drawn by one another. Within delta that
# pull ends, but Adam's second moment remembers it and divides by it all that is left, the pull of the samples: the
# proxies stay where they met, far from their class. Clipped values leave no such memory. Clipping the norm of all
# gradients does not help: the network's are larger by far, so that every step is divided by about the same. The value
# was chosen on validation classes of the glyphs, where ten times as much and a tenth are alike; clipping the network's
# gradients too is worse there and lowers MAP@R on birds. CPML's far samples pull most, so that its proxies find them
# anyway. Clipping all of its gradients, not those of its proxies alone, is best for it on the same classes.
CLIP_VALUE = 0.01
# Table 8 where it is not the same for all data sets; the optimiser is Adam.
PUBLISHED: dict[str, dict] = {
    "cub": {"weight_decay": 5e-4},
    "cars": {"weight_decay": 1e-4},
    "sop": {"weight_decay": 5e-4, "freeze_batchnorm": False},
}
# M: 15 on CUB and Cars, 2 on SOP (Sec. 4, training parameters). Our reading: 2 wherever classes are many and small.
PROXIES_PER_CLASS, OF_MANY_CLASSES = 15, {"sop": 2, "inshop": 2, "omniglot": 2}

# method -> what its RunSpec has beside the parameters; pair losses see samples_per_class images per class, 4 where that
# is 0, proxy losses but the two fields shuffled batches
METHODS: dict[str, dict] = {
    "untrained": {"loss": None},
    "PFML": {"loss": "potential_field.PotentialFieldLoss", "proxies": "proxies", "loss_clip_value": CLIP_VALUE},
    "CPML": {"loss": "potential_field.ContrastivePotentialLoss", "proxies": "proxies", "clip_value": CLIP_VALUE},
    "ProxyAnchor": {"loss": "baselines.proxy_anchor", "proxies": "*"},
    "ProxyNCA++": {"loss": "baselines.proxy_nca_pp", "proxies": "*"},
    "SoftTriple": {"loss": "baselines.soft_triple", "proxies": "*"},
    "MultiSimilarity": {"loss": "baselines.multi_similarity", "samples_per_class": 4},
    "Contrastive": {"loss": "baselines.contrastive", "samples_per_class": 4},
    "Triplet": {"loss": "baselines.triplet", "samples_per_class": 4},
}


def spec(
    method: str, params: Params, seed: int, *, setting: str = "", loss_options: dict | None = None, **changes
) -> RunSpec:
    """The run of one method under a notebook's parameters."""
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}; choose among {', '.join(METHODS)}")
    options = dict(METHODS[method])
    proxies = options.pop("proxies", None)
    common = params.spec_options()
    if options["loss"] is None:
        common |= {"steps": None, "epochs": None, "embedding_size": None}
    elif params.weights == "imagenet":
        # a pretrained network: warm-up with a frozen backbone and frozen BatchNorm, as in the paper's Table 8
        common |= {"freeze_batchnorm": True, "warmup_epochs": params.warmup_epochs}
    if params.profile == "paper" and options["loss"] is not None:
        common |= {"optimizer": "adam"} | PUBLISHED.get(params.dataset.removesuffix("-subset"), PUBLISHED["sop"])
    if "samples_per_class" in options:  # a pair loss needs pairs, also where the fields have shuffled batches
        options["samples_per_class"] = params.samples_per_class or options["samples_per_class"]
    if method in ("PFML", "CPML"):
        # the paper does not say how its batches are drawn; samples draw one another only within a batch, the proxies of
        # a class draw them in any
        common["samples_per_class"] = params.samples_per_class or None
    if proxies is not None:
        common["loss_lr"] = {proxies: PROXY_LR_FACTOR * params.lr}
    return RunSpec(
        **(common | options | {"loss_options": loss_options or {}} | changes),
        seed=seed,
        method=method,
        setting=setting,
    )


@dataclass(frozen=True)
class FieldParams(Params):
    """What the notebooks that train PFML share."""

    paper = "pfml"

    proxies_per_class: int | None = None
    alpha: float = 3.0
    delta: float = 0.2

    def _dataset_recipe(self, dataset: str) -> dict:
        number = OF_MANY_CLASSES.get(dataset.removesuffix("-subset"), PROXIES_PER_CLASS)
        return {"proxies_per_class": number}


def field_options(method: str, params: FieldParams) -> dict:
    """The loss options of a method at a notebook's parameters."""
    field = {"proxies_per_class": params.proxies_per_class, "delta": params.delta}
    return {"PFML": field | {"alpha": params.alpha}, "CPML": field}.get(method, {})


@dataclass(frozen=True)
class RetrievalParams(FieldParams):
    """10_pfml_retrieval."""

    notebook = "10_pfml_retrieval"
    overrides: ClassVar = {
        "quick": {"small_dim": 16, "mlrc_steps": 60},
        "small": {"small_dim": 32, "mlrc_steps": 0},
        "paper": {"small_dim": 64, "mlrc_steps": 0},  # there MLRC is a protocol with settings of its own
    }

    methods: tuple[str, ...] = tuple(METHODS)
    protocol: str | None = None
    search_trials: int | None = None  # of the search for each method's hyperparameters; 0: none
    small_dim: int | None = None  # dimension of the small embeddings of Tables 4 and 5; 0: none
    mlrc_steps: int | None = None  # steps of each fold of Tables 6 and 7; 0: none


SMALL_DIM_METHODS = ("PFML", "ProxyAnchor", "ProxyNCA++", "SoftTriple", "MultiSimilarity")
MLRC_METHODS = ("PFML", "MultiSimilarity", "ProxyAnchor", "Contrastive")


def retrieval(params: RetrievalParams) -> list[RunSpec]:
    """Table 1 (Tables 6 and 7 with protocol mlrc): every method, every seed, its hyperparameters searched first where
    there are trials. Then, beside the conventional protocol, small embeddings (Tables 4, 5) and the folds of MLRC with
    a small budget (Tables 6, 7)."""
    found = runs_of(_methods(params), params, trials=params.search_trials)
    if params.protocol == "conventional" and params.small_dim:
        dim = params.small_dim
        # quick shows a direction: half the steps will do
        budget = {"steps": params.steps // 2} if params.profile == "quick" and params.steps > 1 else {}
        small = _methods(params, SMALL_DIM_METHODS, embedding_size=dim, setting=f"dim={dim}", **budget)
        found += runs_of(small, params)
    if params.protocol == "conventional" and params.mlrc_steps:
        steps = params.mlrc_steps
        short = _methods(params, MLRC_METHODS, steps=steps, epochs=None, eval_every=max(steps // 2, 1))
        found += runs_of(short, params, "mlrc")
    return found


def tuned(params: RetrievalParams):
    """The hyperparameters that the search of `retrieval` found, see `methods.found_by_search`; None without one."""
    return found_by_search(_methods(params), params, trials=params.search_trials)


def _methods(params: RetrievalParams, among: Iterable[str] | None = None, **changes) -> list[RunSpec]:
    return [
        spec(method, params, 0, loss_options=field_options(method, params), **changes)
        for method in (params.methods if among is None else among)
        if method in params.methods
    ]


NOTEBOOKS = {RetrievalParams.notebook: (RetrievalParams, retrieval)}
