"""The methods of "Mean Field Theory in Deep Metric Learning": three mean field losses, and the pair losses of two.

Mean fields learn at the published rate of 0.2 at every profile: drawn from N(0, 1), AdamW turns them by about a fifth
of their length in a step.
"""

import functools
from collections.abc import Iterable, Mapping
from typing import Any

from dmlrepro.losses.mean_field import FIELD_LR
from experiments import studies
from experiments.figures.style import Names
from experiments.meanfield.claims import TESTS
from experiments.methods import BASELINES, LOSS_LR, NOT_REPORTED, Method, Setting, expand_seeds, pick, spec_of
from experiments.params import Params, protocol_of
from experiments.profiles import benchmark_of
from experiments.study import Study
from experiments.training.search import Range
from experiments.training.spec import RunSpec

IBN, VIT = "bn_inception", "vit_base_patch16_224.augreg_in21k"
MARGINS = {"positive_margin": 0.02, "negative_margin": 0.3}
SHARPNESS = {"alpha": 0.01, "beta": 80.0, "delta": 0.8}  # delta is a cosine

_SEC_4 = "Sec. 4.2"
_CODE = "the released README; the paper does not say"
# The traditional protocol's training of every method; drops of the rates are the released ones for BN-Inception.
_DROPS = {"cub": (10, 0.5), "cars": (20, 0.5), "sop": (20, 0.25), "inshop": (20, 0.25)}
TRADITIONAL: dict[str, dict[str, Setting]] = {
    dataset: {
        "embedding_size": Setting(512, f"{_SEC_4}: 'embedding dimensions 512'"),
        "batch_size": Setting(128, f"{_SEC_4}: 'batch size 128'; 180 in the released README"),
        "epochs": Setting(60, f"{_SEC_4}: 'up to 60 epochs'"),
        "patience": Setting(5, f"{_SEC_4}: 'the patience for early stopping to 5'; 10 in the released README"),
        "monitor": Setting("MAP@R", f"{_SEC_4}: 'the test embedding with the best MAP@R'"),
        "optimizer": Setting("adamw", f"{_SEC_4}: 'AdamW optimizer'"),
        "lr": Setting(1e-4, f"{_SEC_4}: 'the learning rate 10^-4'"),
        "weight_decay": Setting(1e-4, _CODE),
        "loss_weight_decay": Setting(1e-4, "the released code, whose AdamW decays mean fields too"),
        "lr_drop_epochs": Setting(tuple(range(every, 60, every)), _CODE),
        "lr_drop": Setting(factor, _CODE),
        "warmup_epochs": Setting(1.0 if dataset in ("cub", "cars") else 0.0, _CODE),
        "freeze_batchnorm": Setting(dataset in ("cub", "cars"), _CODE),
    }
    for dataset, (every, factor) in _DROPS.items()
}


def _of_loss(said: str, **values: float) -> dict[str, Setting]:
    return {f"loss.{name}": Setting(value, f"{_SEC_4}: {said!r}") for name, value in values.items()}


_FIELD_RATE = {"loss_lr.mean_fields": Setting(FIELD_LR, f"{_SEC_4}: 'that for mean fields to 2 x 10^-1'")}
_PROXY_RATE = {"loss_lr.*": Setting(0.01, f"{_SEC_4}: 'the learning rate for proxies to 10^-2'")}
# {method: what is published of its loss under the traditional protocol}
LOSSES: dict[str, dict[str, Setting]] = {
    "MFCont": _of_loss("(0.02, 0.3, 0)", **MARGINS, regularization=0.0) | _FIELD_RATE,
    "MFCWMS": _of_loss("(0.01, 80, 0.8, 0)", **SHARPNESS, regularization=0.0) | _FIELD_RATE,
    "MFNCA": {"loss.alpha": NOT_REPORTED, "loss_lr.mean_fields": NOT_REPORTED},
    "Cont": dict.fromkeys(("loss.positive_margin", "loss.negative_margin"), NOT_REPORTED),
    "CWMS": dict.fromkeys(("loss.alpha", "loss.beta", "loss.delta"), NOT_REPORTED),
    "ProxyAnchor": _of_loss("(32, 10^-1)", alpha=32.0, margin=0.1) | _PROXY_RATE,
}


def _traditional_for(dataset: str) -> dict[str, Setting]:
    return TRADITIONAL.get(benchmark_of(dataset), TRADITIONAL["cub"])


# The ranges enclose the sweeps of the paper and its defaults; MLRC publishes optima of margins.
_MARGIN_RANGES = {"positive_margin": Range(-0.2, 0.5), "negative_margin": Range(0, 1)}
_SHARPNESS_RANGES = {"alpha": Range(0.01, 50, log=True), "beta": Range(10, 200), "delta": Range(0, 1)}


def _own(name: str, loss: str, ranges: Mapping[str, Range], color: str, **options: float) -> Method:
    how: dict[str, Any] = {"batches": "pairs", "search_space": ranges}
    if name.startswith("MF"):  # it learns mean fields
        how = {"param_lrs": {"mean_fields": FIELD_LR}, "search_space": {**ranges, **LOSS_LR}}
    return Method(name, f"mean_field.{loss}", options=options, color=color, **how)


_OWN = (
    _own("MFCont", "MeanFieldContrastiveLoss", _MARGIN_RANGES, "#B2182B", **MARGINS),
    _own("MFCWMS", "MeanFieldClassWiseMultiSimilarityLoss", _SHARPNESS_RANGES, "#2D004B", **SHARPNESS),
    _own("MFNCA", "MeanFieldNCALoss", {"alpha": Range(2, 200, log=True)}, "#1B7837", alpha=18.0),
    _own("Cont", "ClassBalancedContrastiveLoss", _MARGIN_RANGES, "#F4A582", **MARGINS),
    _own("CWMS", "ClassWiseMultiSimilarityLoss", _SHARPNESS_RANGES, "#B2ABD2", **SHARPNESS),
)
OWN: dict[str, Method] = {method.name: method for method in _OWN}
METHODS = BASELINES | OWN
NAMES = Names({name: method.color for name, method in METHODS.items()}, "meanfield")

published = functools.partial(studies.published, "meanfield")


def published_curve(table: str, metric: str = "MAP@R") -> dict[str, dict[float, float]]:
    """A metric of a table whose settings end in a number: {data set and method: {that number: value}}."""
    rows = published(table, metric=metric)
    levels = rows["split_or_setting"].str.extract(r"([\d.]+)$", expand=False).astype(float)
    curves = rows.assign(level=levels).groupby(rows["dataset"] + ", " + rows["method"], sort=False)
    return {name: dict(zip(curve["level"], curve["value"])) for name, curve in curves}


# The traditional protocol's settings at the profile paper
PROFILES = {"paper": {"backbone": IBN, "batch_size": 128, "epochs": 60, "seeds": 10}}


def published_settings(params: Params, method: str, setting: str = "") -> Mapping[str, Setting]:
    """The traditional protocol's settings (see `Study.published`); another protocol has settings of its own."""
    if protocol_of(params) != "conventional":
        return {}
    return _traditional_for(params.dataset) | LOSSES.get(method, {})


meanfield_study = functools.partial(
    Study, paper="meanfield", claims=TESTS, shared=PROFILES, published=published_settings
)


def training(params: Params) -> dict[str, Any]:
    """Fields of the RunSpec in which the paper's recipe of every method differs from the other papers' at the profile
    paper; elsewhere nothing."""
    if params.profile != "paper" or protocol_of(params) != "conventional":
        return {}
    shared = ("embedding_size", "batch_size", "epochs", "lr")  # which PROFILES and the shared recipe have
    record = _traditional_for(params.dataset)
    every_epoch = {} if params.eval_every_epochs else {"eval_every_epochs": 1.0}
    return {name: said.value for name, said in record.items() if name not in shared} | every_epoch


def specs_of(names: Iterable[str], params: Params, **how: Any) -> list[RunSpec]:
    """A spec per method, as `spec_of`; what is said of training changes nothing of an untrained network."""
    how = training(params) | how
    return [spec_of(method, params, **(how if method.loss else {})) for method in pick(METHODS, names)]


def every_run(names: Iterable[str], params: Params, **how: Any) -> list[RunSpec]:
    """The runs of some methods at one setting, every seed and fold."""
    return expand_seeds(specs_of(names, params, **how), params)
