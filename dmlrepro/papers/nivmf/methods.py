"""What the notebooks of "A Non-isotropic Probabilistic Take on Proxy-based Deep Metric Learning" train.

The network, the data and the budget are equal for every method of a notebook and, where it has the method too, those of
notebook 10, so that a baseline is trained once. Three things of the released code that the paper does not mention are
part of every probabilistic run here: proxies start at the class means of the untrained embeddings, the embeddings are
scaled up before they are read as kappa mu, and the loss's parameters have learning rates of their own.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor

from dmlrepro import metrics
from dmlrepro.evidence import results
from dmlrepro.papers.methods import found_by_search, runs_of
from dmlrepro.papers.params import Params
from dmlrepro.papers.pfml import methods as pfml
from dmlrepro.training import batches, inference, protocols
from dmlrepro.training.spec import RunSpec

if TYPE_CHECKING:
    import pandas as pd

# method -> distance of losses.nivmf; "Cosine" is ProxyNCA++ with learned temperature, tuned as the others are
DISTANCES = {
    "Cosine": "cosine",
    "L2": "l2",
    "nivMF": "nivmf",
    "EL-vMF": "el_vmf",
    "B-vMF": "bhattacharyya",
    "KL-vMF": "kl",
    "EL-nivMF": "el_nivmf",
}
JOINT = "ProxyAnchor+EL-nivMF"

# The rates of the released ablation (network 1e-5): proxies x 5000, concentrations x 50000 at an initial 50 and
# temperature x 500 at an initial 1, the last two as rates of the logarithms that are learned here.
LOSS_LR = {"proxies": 0.05, "log_concentrations": 0.01, "log_temperature": 0.005}

# Initial (concentration, temperature) of networks trained from scratch at 64 dimensions: the best R@1 on validation
# classes (fold 0 of 4, seed 7, 200 steps) of 12 trials for every distance, the published grid kappa in {10, 50, 200} by
# t in {1, 1/32, 1/256}, and t = 32. Pretrained networks start where the released code does (losses.nivmf.DEFAULTS).
TUNED: dict[str, tuple[float, float]] = {
    "Cosine": (10.0, 1.0),
    "L2": (10.0, 32.0),
    "nivMF": (50.0, 32.0),
    "EL-vMF": (200.0, 1.0),
    "B-vMF": (200.0, 1.0),
    "KL-vMF": (50.0, 1.0),
    "EL-nivMF": (50.0, 1.0),
}

# kappa_z over the embedding's norm, which a fresh head leaves at 0.5 (conv4, 64 dimensions) or 50 (SqueezeNet, 128):
# initial concentrations are a quarter to a half of the dimension. ResNet-50's is the least of the released code.
EMBEDDING_SCALE = {"conv4": 30.0, "squeezenet1_1": 1.0, "resnet50.tv_in1k": 10.0}

# the paper's names of what we have; its ProxyNCA is the form of Teh et al., ProxyNCA++
PRINTED = {
    "ProxyNCA": "ProxyNCA++",
    "Multisimilarity": "MultiSimilarity",
    "ProxyAnchor (PANC)": "ProxyAnchor",
    "PANC + EL-nivMF": JOINT,
} | {f"d_{name}": name for name in DISTANCES if name != "Cosine"} | {"d_Cos": "Cosine"}  # fmt: skip


def published(table: str, **where) -> "pd.DataFrame":
    """Rows of one of the paper's tables, methods named as here."""
    return results.published("nivmf", table, **where).replace({"method": PRINTED})


@dataclass(frozen=True)
class NivmfParams(Params):
    """What the notebooks that train share."""

    paper = "nivmf"
    overrides: ClassVar = {"paper": {"protocol": "roth"}}

    protocol: str | None = None
    samples: int = 5  # N of EL-nivMF
    omega: float = 0.3  # weight of ProxyAnchor beside EL-nivMF, the best of 0.1, 0.3, 1, 3, 10 chosen as TUNED was
    embedding_scale: float = 0.0  # kappa_z over the embedding's norm; 0: EMBEDDING_SCALE of the backbone


def spec(
    method: str, params: NivmfParams, seed: int, *, setting: str = "", loss_options: dict | None = None, **changes
) -> RunSpec:
    """The run of one method under a notebook's parameters; loss_options change those of a probabilistic loss."""
    labels = {"setting": setting} | changes
    if method == "Margin":  # as any pair loss; the boundary beta learns 50 times as fast as the network (Roth et al.)
        rates = {"*": 50 * params.lr}
        return pfml.spec("MultiSimilarity", params, seed, loss="baselines.margin", loss_lr=rates, **labels).replace(
            method=method
        )
    if method not in DISTANCES and method != JOINT:
        return pfml.spec(method, params, seed, loss_options=loss_options, **labels)
    name = "EL-nivMF" if method == JOINT else method
    options = {"distance": DISTANCES[name], "embedding_scale": _embedding_scale(params, changes)}
    if params.weights == "none":
        options |= dict(zip(("concentration", "temperature"), TUNED[name]))
    if DISTANCES[name] == "el_nivmf":
        options["num_samples"] = params.samples
    rates = {key: rate for key, rate in LOSS_LR.items() if key != "log_concentrations" or "nivMF" in name}
    loss = "nivmf.ProbabilisticProxyLoss"
    if method == JOINT:
        loss, options = "nivmf.proxy_anchor_with_nivmf", options | {"omega": params.omega}
        rates = {f"probabilistic.{key}": rate for key, rate in rates.items()}
    run = pfml.spec(
        "ProxyNCA++",  # the same network, batches and budget
        params,
        seed,
        loss=loss,
        loss_options=options | (loss_options or {}),
        loss_lr=rates,
        proxies_from_class_means=True,
        **labels,
    )
    return run.replace(method=method)


def _embedding_scale(params: NivmfParams, changes: Mapping) -> float:
    backbone = changes.get("backbone", params.backbone)
    if not params.embedding_scale and backbone not in EMBEDDING_SCALE:
        known = ", ".join(EMBEDDING_SCALE)
        raise ValueError(f"embedding_scale is known for {known} and not for {backbone}; give one")
    return params.embedding_scale or EMBEDDING_SCALE[backbone]


def planned(methods: Iterable[str], params: NivmfParams, **options) -> list[RunSpec]:
    """The runs of some methods at one setting (arguments of `spec`), a run per method and seed."""
    return runs_of([spec(method, params, 0, **options) for method in methods], params)


def measured(run, values: Mapping[str, float], setting: str | None = None) -> protocols.Scored:
    """Values measured on a finished run, as rows of its last step; a setting replaces the run's."""
    step = max(row["step"] for row in run.rows)
    rows = [{"selection": "last", "step": step, "metric": name, "value": value} for name, value in values.items()]
    return protocols.Scored(run.spec if setting is None else run.spec.replace(setting=setting), run.dataset, rows)


def with_measured(finished: Iterable, found: Iterable[protocols.Scored], params: Params) -> "pd.DataFrame":
    """The rows of finished runs, and below them what was measured on them."""
    import pandas as pd

    return pd.concat([results.tidy(finished, params), results.tidy(found, params)], ignore_index=True)


def study_rows(params: Params, rows: Iterable[dict]) -> "pd.DataFrame":
    """A tidy table of a study without images."""
    common = {"paper": params.paper, "experiment": params.notebook, "profile": params.profile, "dataset": "synthetic"}
    return results.frame([common | row for row in rows])


def evaluated_labels(run) -> tuple[Tensor, np.ndarray, np.ndarray]:
    """Labels (N,) of a run's test images, and which are queries and gallery."""
    manifest = batches.load_dataset(run.spec)
    test = manifest.indices("test")
    return torch.from_numpy(manifest.labels[test]), manifest.is_query[test], manifest.is_gallery[test]


# --- 20: Tables 1 and 2 -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RetrievalParams(NivmfParams):
    """20_nivmf_retrieval."""

    notebook = "20_nivmf_retrieval"

    methods: tuple[str, ...] = (
        "untrained",
        "ProxyNCA++",
        "EL-nivMF",
        "ProxyAnchor",
        JOINT,
        "MultiSimilarity",
        "Margin",
    )
    search_trials: int | None = None  # of the search for each method's hyperparameters; 0: none


def retrieval(params: RetrievalParams) -> list[RunSpec]:
    """Table 1: every method, every seed, its hyperparameters searched first where there are trials."""
    return runs_of(_methods(params), params, trials=params.search_trials)


def tuned(params: RetrievalParams) -> "pd.DataFrame | None":
    """The hyperparameters that the search of `retrieval` found, see `methods.found_by_search`; None without one."""
    return found_by_search(_methods(params), params, trials=params.search_trials)


def _methods(params: RetrievalParams) -> list[RunSpec]:
    return [spec(method, params, 0) for method in params.methods]


# --- 21: Fig. 4 -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OmegaParams(NivmfParams):
    """21_nivmf_ablation_omega."""

    notebook = "21_nivmf_ablation_omega"
    overrides: ClassVar = NivmfParams.overrides | {"quick": {"steps": 150}}

    omegas: tuple[float, ...] = (0.0, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)


def ablation_omega(params: OmegaParams) -> list[RunSpec]:
    """The joint loss at every omega, 0 being EL-nivMF alone; ProxyAnchor alone; and the untrained network."""
    found = planned(["untrained", "ProxyAnchor"], params)
    for omega in params.omegas:
        found += planned([JOINT], params, setting=f"omega={omega:g}", loss_options={"omega": omega})
    return found


# --- 25: Table 5 ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DiversityParams(NivmfParams):
    """25_nivmf_diversity."""

    notebook = "25_nivmf_diversity"

    methods: tuple[str, ...] = ("Cosine", "EL-vMF", "EL-nivMF")


def diversity(params: DiversityParams) -> list[RunSpec]:
    """Runs of notebook 22."""
    return planned(("untrained", *params.methods), params)


def diversity_table(finished: Iterable, params: DiversityParams) -> "pd.DataFrame":
    """The rows of the runs, and the diversities of Table 5 of their training images; of the test images beside them."""
    finished = list(finished)
    found = []
    for run in finished:
        if run.spec.method not in params.methods:
            continue
        manifest = batches.load_dataset(run.spec)
        train = manifest.indices("train")
        embeddings = inference.embed_images(run.spec, run.network(), manifest, train)
        found.append(measured(run, diversities(embeddings, torch.from_numpy(manifest.labels[train]))))
        found.append(measured(run, diversities(run.embeddings, evaluated_labels(run)[0]), "images=test"))
    return with_measured(finished, found, params)


def diversities(embeddings: Tensor, labels: Tensor) -> dict[str, float]:
    return {
        "class_diversity": metrics.class_diversity(embeddings, labels),
        "class_diversity_across": metrics.class_diversity(embeddings, labels, "across"),
        "feature_diversity": metrics.feature_diversity(embeddings),
    }


def relative_diversity(table: "pd.DataFrame", baseline: str = "Cosine") -> "pd.DataFrame":
    """Table 5: change against the baseline in percent, mean over seeds, ours and the published ones."""
    import pandas as pd

    rows = table[table["metric"].str.contains("diversity") & table["setting"].isin(["", "images=test"])]
    wide = rows.pivot_table(index=["setting", "metric", "seed"], columns="method", values="value")
    change = (100 * (wide.div(wide[baseline], axis=0) - 1)).drop(columns=baseline).groupby(level=[0, 1]).mean()
    change.index = [f"{metric}, {setting.partition('=')[2] or 'train'} images" for setting, metric in change.index]
    columns = {f"ours, {rows['dataset'].iloc[0]}: {method}": change[method] for method in change}
    names = {
        "cluster_div_change": "class_diversity, train images",
        "feature_div_change": "feature_diversity, train images",
    }
    for (dataset, step), theirs in published("Table 5 (supp)").groupby(["dataset", "method"]):
        method = step.partition("->d_")[2]
        columns[f"published, {dataset}: {method}"] = theirs.set_index(theirs["metric"].map(names))["value"]
    return pd.DataFrame(columns).round(1)


NOTEBOOKS = {
    RetrievalParams.notebook: (RetrievalParams, retrieval),
    OmegaParams.notebook: (OmegaParams, ablation_omega),
    DiversityParams.notebook: (DiversityParams, diversity),
}
