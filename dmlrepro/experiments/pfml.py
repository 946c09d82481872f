"""What the notebooks of "Potential Field Based Deep Metric Learning" train.

The network, the data and the budget are equal for every method of a notebook; only the loss and its batch composition
differ. Proxies learn 100 times as fast as
the network, as the paper and its baselines do (its Table 8).
"""

from dataclasses import dataclass

from dmlrepro import protocols
from dmlrepro.experiments.params import Params
from dmlrepro.training import RunSpec

PROXY_LR_FACTOR = 100
# Table 8 where it is not the same for all data sets; the optimiser is Adam.
PUBLISHED: dict[str, dict] = {
    "cub": {"weight_decay": 5e-4},
    "cars": {"weight_decay": 1e-4},
    "sop": {"weight_decay": 5e-4, "freeze_batchnorm": False},
}

# method -> what its RunSpec has beside the parameters; pair losses see 4 images per class, proxy losses shuffled
# batches
METHODS: dict[str, dict] = {
    "untrained": {"loss": None},
    "PFML": {"loss": "potential_field.PotentialFieldLoss", "proxies": "proxies"},
    "CPML": {"loss": "potential_field.ContrastivePotentialLoss", "proxies": "proxies"},
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
    if method in ("PFML", "CPML"):
        # forces between samples need samples of one class in a batch; the paper does not say how its batches are drawn
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
class RetrievalParams(Params):
    """10_pfml_retrieval."""

    notebook = "10_pfml_retrieval"
    paper = "pfml"

    methods: tuple[str, ...] = tuple(METHODS)
    protocol: str | None = None
    proxies_per_class: int = 15
    alpha: float = 3.0
    delta: float = 0.2


def retrieval(params: RetrievalParams) -> list[RunSpec]:
    """Table 1, and Tables 6 and 7 with protocol mlrc: every method, every seed."""
    field = {"proxies_per_class": params.proxies_per_class, "delta": params.delta}
    options = {"PFML": field | {"alpha": params.alpha}, "CPML": field}
    published = params.profile == "paper"
    return [
        run
        for method in params.methods
        for seed in range(params.seeds)
        for run in protocols.expand(
            spec(method, params, seed, loss_options=options.get(method)),
            params.protocol,
            published=published,
            keep=params.spec_options(),
        )
    ]


NOTEBOOKS = {RetrievalParams.notebook: (RetrievalParams, retrieval)}
