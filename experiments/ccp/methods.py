"""The methods of "Deep Metric Learning with Chance Constraints".

    C1, C2, MS, Triplet-all    pairs or triplets within the batch
    C1-XBM-S, C1-XBM-L, ...    the contrastive losses with a cross-batch memory, of as many batches as published
    C1-Proxy, ...              one proxy-based problem, never re-initialised, with as many proxies as CCP-L
    C1-CCP-S, C1-CCP-L, ...    CCP with one proxy per class (S), or 8 on CUB and Cars and 4 where classes are many (L)
    ProxyAnchor-CCP, PFML-CCP  CCP over a proxy loss of another paper, an experiment of this project; PFML-Proxy

All four losses are those of losses/chance_constrained.py, so that only CCP is between a method and its baseline.
"Triplet-all" takes every violated triplet, where the shared "Triplet" mines semi-hard ones.
"""

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from experiments import studies
from experiments.figures.style import Names
from experiments.methods import BASELINES, PROXIES, Method, Setting, expand_seeds, merged, pick, spec_layers, spec_of
from experiments.params import Choice, Count, Number, Params, Whole, protocol_of
from experiments.profiles import benchmark_of
from experiments.training.search import Range
from experiments.training.spec import RunSpec

# Loss, options, ranges of a search
LOSSES: dict[str, tuple[str, dict[str, str], dict[str, Range]]] = {
    "C1": ("ProxyContrastiveLoss", {"form": "c1"}, {"negative_margin": Range(0, 1)}),
    "C2": ("ProxyContrastiveLoss", {"form": "c2"}, {"positive_margin": Range(-0.2, 1), "negative_margin": Range(0, 1)}),
    "MS": ("ProxyMultiSimilarityLoss", {}, {"alpha": Range(0.01, 50), "beta": Range(1, 200), "base": Range(0, 1)}),
    "Triplet-all": ("ProxyTripletLoss", {}, {"margin": Range(0, 1)}),
}
COLORS = {  # of a loss within the batch, of its single problem, of CCP-S and of CCP-L
    "C1": ("#9E9AC8", "#807DBA", "#BCBDDC", "#54278F"),
    "C2": ("#FDAE6B", "#E6550D", "#FDD0A2", "#A63603"),
    "MS": ("#A1D99B", "#31A354", "#C7E9C0", "#00441B"),
    "Triplet-all": ("#9ECAE1", "#3182BD", "#C6DBEF", "#08306B"),
}
XBM_COLORS = {"C1-XBM-S": "#DADAEB", "C1-XBM-L": "#6A51A3", "C2-XBM-S": "#FEE6CE", "C2-XBM-L": "#D94801"}
ALGORITHM = "chance_constrained"


def parts_of(name: str) -> tuple[str, str, str]:
    """A method by the parts of its name: its loss; "XBM", "Proxy", "CCP", or "" within the batch; "S" or "L", the size
    of its memory or of its proxies, where there are two."""
    return re.findall(r"^(.+?)(?:-(XBM|Proxy|CCP)(?:-([SL]))?)?$", name)[0]


# Options of C2, MS, Triplet-all and SoftTriple; those of the other losses are the same on all benchmarks
_OPTIONS = {
    "cub": ((0.0, 0.3841), (2.0, 40.0, 0.5), 0.0961, (20.0, 0.1, 0.2, 0.01)),
    "cars": ((0.2652, 0.5409), (14.35, 75.83, 0.66), 0.1190, (17.69, 1 / 19.18, 0.0669, 0.3588)),
    "inshop": ((0.2858, 0.5130), (8.49, 57.38, 0.41), 0.0451, (20.0, 0.1, 0.2, 0.01)),
    "sop": ((0.2858, 0.5130), (2.0, 40.0, 0.5), 0.0451, (100.0, 1 / 47.9, 0.2, 0.3145)),
}
PUBLISHED: dict[str, dict[str, dict[str, float]]] = {
    dataset: {
        "C1": {"negative_margin": 0.5},
        "C2": dict(zip(("positive_margin", "negative_margin"), c2)),
        "MS": dict(zip(("alpha", "beta", "base"), ms)),
        "Triplet-all": {"margin": triplet},
        "SoftTriple": dict(zip(("la", "gamma", "tau", "margin"), soft_triple)),
        "ProxyAnchor": {"margin": 0.1, "alpha": 32.0},
        "ProxyNCA++": {"temperature": 0.1},
    }
    for dataset, (c2, ms, triplet, soft_triple) in _OPTIONS.items()
}
# batches of a memory, S and L
XBM_BATCHES = {"cub": (3, 25), "cars": (3, 25), "inshop": (100, 400), "sop": (400, 1400)}
MANY_CLASSES = ("sop", "inshop", "omniglot")

# what the paper says of the training of every method
NETWORK = {
    "optimizer": Setting("adam", "Sec. V-A: 'Default Adam optimizer'"),
    "lr": Setting(1e-5, "Sec. V-A: '1e-5 learning rate'"),
    "weight_decay": Setting(1e-4, "Sec. V-A: '1e-4 weight decay'"),
    "batch_size": Setting(32, "Sec. V-A: '32 batch size (4 samples per class)'"),
    "embedding_size": Setting(128, "Sec. IV-D: 'embedding vectors of size 128 (BN-Inception)'"),
    "freeze_batchnorm": Setting(True, "the released code; the paper does not say"),
}
# what Table IV, of the conventional protocol, has instead
CONVENTIONAL = {
    "batch_size": Setting(96, "Sec. V-C: 'batch size of 128 for BN-Inception and 96 for ResNet50'"),
    "embedding_size": Setting(512, "Table IV: C2-CCP-L^512"),
}


def benchmark_like(dataset: str) -> str:
    """The benchmark whose published settings a data set takes."""
    benchmark = benchmark_of(dataset)
    return benchmark if benchmark in PUBLISHED else "sop" if benchmark in MANY_CLASSES else "cub"


def _method(name: str, loss: str, color: str, **record: Any) -> Method:
    """A variant takes the search of CCP, or of its memory, at its largest; a single problem has its own."""
    over, form, size = parts_of(name)
    largest = f"{over}-{form}-L"
    algorithm = {"algorithm": ALGORITHM} if form in ("Proxy", "CCP") else {}
    searched_as = largest if size == "S" else ""
    return Method(name, loss, color=color, searched_as=searched_as, fields=algorithm, offered=False, **record)


def _own() -> Iterator[Method]:
    pairs: dict[str, Any] = {"batches": "pairs"}
    for name, (loss, options, ranges) in LOSSES.items():
        like = {"options": options, "search_space": ranges} | pairs
        for form, color in zip(("", "-Proxy", "-CCP-S", "-CCP-L"), COLORS[name]):
            yield _method(name + form, f"chance_constrained.{loss}", color, **like)
    margins = {"pos_margin": Range(-0.2, 1), "neg_margin": Range(0, 1)}
    for name, color in XBM_COLORS.items():
        options = {"form": name[:2].lower()}
        yield _method(name, "baselines.cross_batch_memory", color, options=options, search_space=margins, **pairs)
    proxies, anchor = {"lr_multipliers": {"*": PROXIES}}, BASELINES["ProxyAnchor"]
    yield _method("ProxyAnchor-CCP", str(anchor.loss), "#003355", search_space=anchor.search_space, **proxies)
    field = {"options": {"proxies_per_class": 8}, "search_space": {"alpha": Range(0, 6)}} | pairs | proxies
    for name, color in (("PFML-Proxy", "#BF8040"), ("PFML-CCP", "#7A3300")):
        yield _method(name, "potential_field.PotentialFieldLoss", color, **field)


OWN = {method.name: method for method in _own()}
METHODS = BASELINES | OWN
NAMES = Names({name: method.color for name, method in METHODS.items()}, "ccp")

published = functools.partial(studies.published, "ccp")
ALTERNATED = 3  # problems of a run, from which on it says something of CCP
ONE_FOLD, FOUR_FOLDS = "ccp_one_fold", "ccp_early_stopping"  # of the ablations, and of Tables II, V and VI
# What `small` has by benchmark, from pilots that looked at test classes. On validation classes (results/README.md)
# problems of 25 steps are the best on Omniglot by 6 to 13 points of MAP@R, a run each, and on CUB those of 25, 50 and
# 100 steps lie within 1.5 points of each other.
REGIMES = {"cub": {"steps": 300, "problem_steps": 50}, "omniglot": {"steps": 600, "problem_steps": 25}}
SHORT = {"batch_size": 32, "batch_weight": 0.1, "protocol": ONE_FOLD, "problem_patience": 0}


class CcpOptions(BaseModel):
    """What the notebooks that train CCP share. At quick and small a run has hundreds of steps, not tens of thousands:
    proxies learn at the rate of a new head, XBM starts after a tenth of the steps, the in-batch term of the released
    code is on, and a problem ends after `problem_steps`, see REGIMES, however its scores creep up."""

    protocol: str
    proxies_per_class: Count
    pool_size: Count
    projection: Number = 2e-4
    problem_patience: Whole  # evaluations without a better one that end a problem; 0: they end none
    problem_steps: Whole  # steps that end a problem; 0: they end none
    eval_every: Count  # steps between two evaluations; at paper the protocol's
    batch_weight: Number  # weight of the loss within the batch beside that with proxies


PROFILES: dict[str, dict[str, Any]] = {
    "quick": {"steps": 60, "eval_every": 20, "problem_steps": 10} | SHORT,
    "small": {"eval_every": 50} | SHORT,
    "paper": {"eval_every": 25, "problem_patience": 3, "problem_steps": 0, "batch_weight": 0.0, "protocol": ONE_FOLD},
}


def decided(choice: Choice) -> dict[str, Any]:
    benchmark = benchmark_of(choice.dataset)
    proxies, pool = (4, 7) if benchmark in MANY_CLASSES else (8, 12)
    regime = REGIMES.get(benchmark, REGIMES["cub"]) if choice.profile == "small" else {}
    return {"proxies_per_class": proxies, "pool_size": pool} | regime


def published_settings(params: Params, method: str, setting: str = "") -> Mapping[str, Setting]:
    over, form, size = parts_of(method)
    options = PUBLISHED[benchmark_like(params.dataset)].get(over, {})
    if form == "XBM":
        named = {"positive_margin": "pos_margin", "negative_margin": "neg_margin"}
        options = {named[name]: value for name, value in options.items()} | xbm_options(params, size)
    network = NETWORK | CONVENTIONAL if protocol_of(params) == "conventional" else NETWORK
    source = "supplement, hyperparameters of the losses"
    settings = {f"loss.{name}": Setting(value, source) for name, value in options.items()}
    if over in LOSSES and form in ("Proxy", "CCP"):
        settings["loss_lr.*"] = Setting(NETWORK["lr"].value, "the released code: proxies learn as the network does")
    return network | settings


def xbm_options(params: Params, size: str) -> dict[str, int]:
    """How large a memory is, and after how many steps it starts."""
    batches = XBM_BATCHES[benchmark_like(params.dataset)]["SL".index(size)]
    warmup = 1000 if params.profile == "paper" else params.steps // 10
    return {"memory_size": batches * params.batch_size, "warmup_steps": warmup}


def ccp_spec(
    name: str, params: Any, *, setting: str = "", algorithm: Mapping[str, Any] | None = None, **changes: Any
) -> RunSpec:
    """The run of one method; algorithm: its options that differ from the parameters'; others as in `spec_of`."""
    (method,), (over, form, size) = pick(METHODS, [name]), parts_of(name)
    if method.loss is None:
        return spec_of(method, params, setting=setting, **changes)
    fields: dict[str, Any] = {"monitor": "MAP@R"}
    if params.profile == "paper" and protocol_of(params) == "conventional":
        fields["weight_decay"] = NETWORK["weight_decay"].value
    if params.profile != "paper" and not params.eval_every_epochs:  # at paper the protocol says how often
        fields["eval_every"] = params.eval_every
    if form in ("Proxy", "CCP"):
        options = {"pool_size": params.pool_size, "projection": params.projection, "problem_patience": None}
        if form == "CCP":  # what ends a problem
            options |= {name: getattr(params, name) or None for name in ("problem_patience", "problem_steps")}
        if over in LOSSES:
            options["proxies_per_class"] = 1 if size == "S" else params.proxies_per_class
            options["batch_weight"] = params.batch_weight
            if params.profile != "paper":
                network = merged(spec_layers(method, params))
                fields["loss_lr"] = {"*": network.get("head_lr", network["lr"])}
        fields["algorithm_options"] = options | dict(algorithm or {})
    if params.profile != "paper" and form == "XBM":
        fields["loss_options"] = xbm_options(params, size)
    return spec_of(method, params, setting=setting, **fields | changes)


Level = tuple[Sequence[str], str, Mapping[str, Any]]  # methods, setting, options of the algorithm that differ


def ccp_runs(params: Params, *levels: Level) -> list[RunSpec]:
    """All seeds and folds of the network before training, and of methods at every level."""
    specs = [ccp_spec("untrained", params)]
    specs += [ccp_spec(name, params, setting=setting, algorithm=of) for names, setting, of in levels for name in names]
    return expand_seeds(specs, params)
