"""Notebooks 11 to 16: label noise, alignment of proxies, and the four ablations of "Potential Field Based DML".

Every run is PFML at the paper's setting (M = 15, or 2 where classes are many, alpha = 3, delta = 0.2) or a baseline,
with one thing varied. Runs that notebook 10 has too are the same specs, and the default point of the four ablations is
one spec (at paper of three: 13 has batches of its own).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
import torch.nn.functional as F

from dmlrepro import metrics, samplers
from dmlrepro.datasets import manifests
from dmlrepro.evidence import results
from dmlrepro.losses.baselines import proxies_of
from dmlrepro.papers.methods import runs_of
from dmlrepro.papers.params import Params
from dmlrepro.papers.pfml import geometry as pfml_geometry
from dmlrepro.papers.pfml import methods as pfml
from dmlrepro.training import batches, inference, protocols
from dmlrepro.training.builders import build_loss
from dmlrepro.training.spec import RunSpec

if TYPE_CHECKING:
    import pandas as pd

# the paper's names of what we have; its PNCA cites the original ProxyNCA, of which ProxyNCA++ is the current form
PRINTED = {
    "Ours": "PFML",
    "Potential Field (Ours)": "PFML",
    "CPML (Sec. 3.4)": "CPML",
    "PA": "ProxyAnchor",
    "Proxy Anchor": "ProxyAnchor",
    "PNCA": "ProxyNCA++",
    "ProxyNCA": "ProxyNCA++",
    "Proxy NCA++": "ProxyNCA++",
    "MS": "MultiSimilarity",
    "S.Triplet": "SoftTriple",
}


def published(table: str, **where) -> "pd.DataFrame":
    """Rows of one of the paper's tables, methods named as here."""
    return results.published("pfml", table, **where).replace({"method": PRINTED})


def published_curve(figure: str) -> dict[str, dict[float, float]]:
    """Recall@1 of a panel of Fig. 3 where it is known: {data set: {level: value}}."""
    curves: dict[str, dict[float, float]] = {}
    for row in results.published("pfml_figures", figure).itertuples():
        curves.setdefault(row.dataset, {})[float(row.split_or_setting.partition("=")[2])] = row.value
    return curves


def planned(
    method: str, params: Params, *, setting: str = "", loss_options: dict | None = None, **changes
) -> list[RunSpec]:
    """The runs of one method and setting under the conventional protocol, a run per seed."""
    spec = pfml.spec(method, params, 0, setting=setting, loss_options=loss_options, **changes)
    return runs_of([spec], params, "conventional")


# --- 11: label noise --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LabelNoiseParams(pfml.FieldParams):
    """11_pfml_label_noise."""

    notebook = "11_pfml_label_noise"
    overrides: ClassVar = {
        "quick": {"noise_levels": (0.0, 0.2, 0.4)},
        "small": {"noise_levels": (0.0, 0.1, 0.2, 0.3, 0.4)},
        "paper": {"noise_levels": (0.0, 0.1, 0.2, 0.3, 0.4)},
    }

    methods: tuple[str, ...] = ("PFML", "ProxyAnchor", "ProxyNCA++", "MultiSimilarity", "Triplet")
    noise_levels: tuple[float, ...] | None = None


def label_noise(params: LabelNoiseParams) -> list[RunSpec]:
    """Every method at every share of wrong training labels; which labels are wrong depends on the seed alone."""
    return [
        run
        for method in params.methods
        for level in params.noise_levels
        for run in planned(
            method,
            params,
            setting=f"label_noise={level:g}",
            loss_options=pfml.field_options(method, params),
            label_noise=level,
        )
    ]


def noise_table(finished: Iterable, params: LabelNoiseParams) -> "pd.DataFrame":
    """The rows of finished runs, and at 20 % noise the share of the gradient that wrongly labelled images receive."""
    import pandas as pd

    shares = [
        protocols.Scored(run.spec, run.dataset, _rows(run, {"gradient_share": gradient_share(run)}))
        for run in finished
        if run.spec.label_noise == 0.2
    ]
    tables = [results.tidy(some, params) for some in (finished, shares) if some]
    return pd.concat(tables, ignore_index=True)


def gradient_share(run, batches: int = 20) -> float:
    """Percent of the gradient's magnitude, at the end of training, that falls on wrongly labelled images.

    In each of some further batches, drawn as in training: the norms of d loss / d unit embedding, those of the wrongly
    labelled images summed, over the sum of all. It equals the share of wrong labels if they weigh like any others.
    """
    manifest, embeddings, labels, loss = _trained(run)
    wrong = torch.from_numpy(np.isin(manifest.indices("train"), manifest.corrupted))
    generator, size, per_class = (
        torch.Generator().manual_seed(run.spec.seed),
        run.spec.batch_size,
        run.spec.samples_per_class,
    )
    if per_class is None:
        drawn = samplers.shuffled(len(labels), size, batches, generator)
    else:
        drawn = samplers.m_per_class(labels, size, per_class, batches, generator)
    shares = []
    for batch in drawn:
        points = F.normalize(embeddings[batch], dim=1).requires_grad_()
        (gradient,) = torch.autograd.grad(loss(points, labels[batch]), points)
        norms = gradient.norm(dim=1)
        if norms.sum() > 0:  # a loss of margins may have nothing left to say
            shares.append(norms[wrong[batch]].sum() / norms.sum())
    return 100 * torch.stack(shares).mean().item()


def noise_drops(table: "pd.DataFrame") -> "pd.DataFrame":
    """R@1 with clean labels, with 20 % wrong ones, and the drop: ours, and the paper's (Tables 1 and 2, ResNet50)."""
    import pandas as pd

    recall = table[(table["metric"] == "R@1") & (table["selection"] == "last")]
    ours = recall.groupby(["method", "setting"], sort=False)["value"].mean().unstack()
    columns = {(f"ours, {recall['dataset'].iloc[0]}", level): ours[f"label_noise={level}"] for level in ("0", "0.2")}
    for dataset in ("CUB-200-2011", "Cars-196"):
        for level, number in (("0", "Table 1"), ("0.2", "Table 2")):
            rows = published(number, dataset=dataset, backbone="ResNet50", metric="R@1")
            columns[f"published, {dataset}", level] = rows.set_index("method")["value"].reindex(ours.index)
    for where in dict.fromkeys(where for where, _ in columns):
        columns[where, "drop"] = columns[where, "0"] - columns[where, "0.2"]
    order = sorted(columns, key=lambda pair: list(dict.fromkeys(where for where, _ in columns)).index(pair[0]))
    return pd.concat({pair: columns[pair] for pair in order}, axis=1, names=["R@1", "label noise"]).round(1)


# --- 12: alignment of proxies with the data ---------------------------------------------------------------------------


HOLDS = "hypothesis holds"  # the case of `pfml_geometry.study` that the corollary is about
# what PFML is trained with once more: setting -> change of its RunSpec
CLIPPING: dict[str, dict] = {
    "gradients=unclipped": {"loss_clip_value": None},
    "batches=shuffled": {"samples_per_class": None},
    "batches=shuffled;gradients=unclipped": {"samples_per_class": None, "loss_clip_value": None},
}


@dataclass(frozen=True)
class AlignmentParams(pfml.FieldParams):
    """12_pfml_proxy_alignment."""

    notebook = "12_pfml_proxy_alignment"

    methods: tuple[str, ...] = ("PFML", "CPML", "SoftTriple", "ProxyNCA++", "ProxyAnchor")
    point_sets: int = 5


def proxy_alignment(params: AlignmentParams) -> list[RunSpec]:
    """The methods of Table 3; those with several proxies per class have the same number, as the paper demands. Then
    PFML without clipped gradients, and both ways in shuffled batches."""
    centers = {"SoftTriple": {"centers_per_class": params.proxies_per_class}}
    found = [
        run
        for method in params.methods
        for run in planned(method, params, loss_options=centers.get(method, pfml.field_options(method, params)))
    ]
    for setting, change in CLIPPING.items() if "PFML" in params.methods else ():
        found += planned("PFML", params, setting=setting, loss_options=pfml.field_options("PFML", params), **change)
    return found


def alignment_table(finished: Iterable, params: AlignmentParams) -> "pd.DataFrame":
    """W2 between the proxies and the training embeddings of each finished run, in three readings, and the spread of the
    classes; after them the numerical study of Proposition 1 and Corollary 1, whose data set is "synthetic"."""
    import pandas as pd

    trained = results.tidy([protocols.Scored(run.spec, run.dataset, _alignment(run)) for run in finished], params)
    common = {"paper": params.paper, "experiment": params.notebook, "profile": params.profile, "dataset": "synthetic"}
    study = []
    for row in pfml_geometry.study(range(params.point_sets)):
        case = row.pop("case")
        study.append(common | row | ({} if case == HOLDS else {"setting": f"{row['setting']};case={case}"}))
    return pd.concat([trained, results.frame(study)], ignore_index=True)


def alignment_summary(table: "pd.DataFrame") -> "pd.DataFrame":
    """Means over seeds beside Table 3. A loss that draws its classes together lowers every distance, so their mean
    distance within a class stands beside."""
    names = ["W2", "true W2", "nearest sample", "intra_class_distance"]
    rows = table[(table["setting"] == "") & table["metric"].isin(names)]
    ours = rows.groupby(["method", "metric"], sort=False)["value"].mean().unstack()[names]
    ours.columns = ["W2 as printed", "true W2", "nearest sample", "mean distance within a class"]
    theirs = published("Table 3").set_index("method")["value"]
    return ours.assign(**{"published W2, CUB-200-2011": theirs.reindex(ours.index)}).round(3)


def clipping_summary(table: "pd.DataFrame", finished: Iterable) -> "pd.DataFrame":
    """PFML with and without clipped gradients, in its usual batches and in shuffled ones: means over seeds of the
    distances in the table and of R@1 of the finished runs, in percent."""
    import pandas as pd

    distances = table[(table["method"] == "PFML") & table["metric"].isin(["W2", "nearest sample"])]
    found = distances.pivot_table(index="setting", columns="metric", values="value")
    recall = [(run.spec.setting, 100 * run.metric("R@1")) for run in finished if run.spec.method == "PFML"]
    found["R@1"] = pd.DataFrame(recall, columns=["setting", "R@1"]).groupby("setting")["R@1"].mean()
    return found.reindex(["", *CLIPPING]).rename({"": "as everywhere"}).round(3)


def study_cases(table: "pd.DataFrame") -> "pd.DataFrame":
    """The numerical study: means over point sets of W2/delta and of the distance to the nearest sample, by case."""
    rows = table[(table["dataset"] == "synthetic") & table["metric"].isin(["W2/delta", "nearest/delta"])]
    case = rows["setting"].str.partition(";case=")
    rows = rows.assign(case=case[2].where(case[2] != "", HOLDS), M=case[0].str.removeprefix("M=").astype(int))
    return rows.pivot_table(index=["case", "M"], columns=["metric", "method"], values="value").round(3)


def study_curves(table: "pd.DataFrame") -> dict[str, tuple]:
    """W2/delta against the number of proxies where the hypothesis holds, range over point sets, for `plots.lines`."""
    rows = table[(table["metric"] == "W2/delta") & ~table["setting"].str.contains("case=")]
    rows = rows.assign(M=rows["setting"].str.removeprefix("M=").astype(int))
    curves = {}
    for method, group in rows.groupby("method", sort=False):
        by_number = group.groupby("M")["value"].agg(["mean", "min", "max"])
        curves[method] = (by_number.index, *(by_number[name] for name in ("mean", "min", "max")))
    numbers = sorted(rows["M"].unique())
    return curves | {"printed lower bound for CPML (26)": (numbers, [pfml_geometry.printed_bound(m) for m in numbers])}


def _alignment(run) -> list[dict]:
    """Metric rows of one run: its trained proxies against all training images."""
    _, embeddings, labels, loss = _trained(run)
    readings = {"W2": "assignment", "true W2": "w2", "nearest sample": "nearest"}
    values = {
        name: metrics.proxy_wasserstein(proxies_of(loss), embeddings, labels, form)[0]
        for name, form in readings.items()
    }
    return _rows(run, values | class_distances(embeddings, labels))


def _trained(run) -> tuple[manifests.Manifest, torch.Tensor, torch.Tensor, torch.nn.Module]:
    """Manifest, embeddings (N, D) of the training images in evaluation mode, their labels (N,), and the loss of a run.

    The labels are those that were trained on, wrong ones included.
    """
    manifest = batches.load_dataset(run.spec)
    images = manifest.indices("train")
    embeddings = inference.embed_images(run.spec, run.network(), manifest, images)
    loss = build_loss(run.spec, manifest.num_train_classes, embeddings.shape[1])
    loss.load_state_dict(run.loss_state())
    return manifest, embeddings, torch.from_numpy(manifest.labels[images]), loss


def _rows(run, values: Mapping[str, float]) -> list[dict]:
    """Further metrics of a finished run, at its last step."""
    step = max(row["step"] for row in run.rows)
    return [{"selection": "last", "step": step, "metric": name, "value": value} for name, value in values.items()]


def class_distances(embeddings: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    """Mean distance of unit embeddings (N, D) within a class, averaged over classes, and between all classes."""
    points, classes = F.normalize(embeddings.double(), dim=1), labels.unique()
    within = torch.stack([F.pdist(points[labels == label]).mean() for label in classes]).mean()
    means = torch.stack([points[labels == label].mean(0) for label in classes])
    return {"intra_class_distance": within.item(), "class_mean_distance": F.pdist(means).mean().item()}


# --- 13 to 16: ablations ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AblationParams(pfml.FieldParams):
    """What the ablations share: the default point, and how much is trained.

    quick: the whole small network; small: a head on cached features of the pretrained backbone (an untrained
    one is always trained); paper: the whole network as published.
    """

    overrides: ClassVar = {
        "quick": {"freeze_trunk": False},
        "small": {"steps": 500, "epochs": 0, "warmup_epochs": 0.0, "lr": 1e-3, "freeze_trunk": True},
        "paper": {"freeze_trunk": False},
    }

    freeze_trunk: bool | None = None


@dataclass(frozen=True)
class ProxiesParams(AblationParams):
    """13_pfml_ablation_proxies; without proxies a batch needs several images of a class, so all batches have them."""

    notebook = "13_pfml_ablation_proxies"
    overrides: ClassVar = AblationParams.overrides | {"paper": {"freeze_trunk": False, "samples_per_class": 4}}

    numbers: tuple[int, ...] = (0, 1, 2, 5, 15, 30)


@dataclass(frozen=True)
class DeltaParams(AblationParams):
    """14_pfml_ablation_delta."""

    notebook = "14_pfml_ablation_delta"

    deltas: tuple[float, ...] = (0.1, 0.15, 0.2, 0.25, 0.3, 0.35)


@dataclass(frozen=True)
class AlphaParams(AblationParams):
    """15_pfml_ablation_alpha."""

    notebook = "15_pfml_ablation_alpha"

    alphas: tuple[float, ...] = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)


@dataclass(frozen=True)
class RepulsionParams(AblationParams):
    """16_pfml_ablation_repulsion_radius."""

    notebook = "16_pfml_ablation_repulsion_radius"

    radii: tuple[float, ...] = (0.2, 0.22, 0.25, 0.3, 0.35, 0.4, 0.45)


LITERAL = "alpha=0;alpha_zero=literal"


def ablation_proxies(params: ProxiesParams) -> list[RunSpec]:
    """Fig. 3(a)."""
    return _ablation(params, {f"M={number}": {"proxies_per_class": number} for number in params.numbers})


def ablation_delta(params: DeltaParams) -> list[RunSpec]:
    """Fig. 3(b)."""
    return _ablation(params, {f"delta={delta:g}": {"delta": delta} for delta in params.deltas})


def ablation_alpha(params: AlphaParams) -> list[RunSpec]:
    """Fig. 3(c); alpha = 0 is the logarithmic limit, and once more the printed potential, which exerts no force."""
    literal = {LITERAL: {"alpha": 0.0, "alpha_zero": "literal"}} if 0 in params.alphas else {}
    return _ablation(params, literal | {f"alpha={alpha:g}": {"alpha": alpha} for alpha in params.alphas})


def ablation_repulsion_radius(params: RepulsionParams) -> list[RunSpec]:
    """Fig. 3(d): repulsion reaches farther than the radius delta inside which a class does not attract itself."""
    return _ablation(
        params,
        {
            f"delta_rep={radius:g}": {} if radius == params.delta else {"delta_rep": radius}  # the default is delta
            for radius in params.radii
        },
    )


def _ablation(params: AblationParams, settings: Mapping[str, dict]) -> list[RunSpec]:
    """The untrained network for comparison, then PFML at every setting."""
    frozen = params.freeze_trunk and params.weights != "none"
    runs = planned("untrained", params)
    for setting, change in settings.items():
        options = pfml.field_options("PFML", params) | change
        runs += planned("PFML", params, setting=setting, loss_options=options, freeze_trunk=frozen)
    return runs


def by_level(table: "pd.DataFrame", columns: Iterable[str], figure: str) -> "pd.DataFrame":
    """A row per setting: our means over seeds of some metrics, and the values of the paper's figure that are known."""
    rows = table[(table["selection"] == "last") & table["metric"].isin(columns)]
    ours = rows.groupby(["method", "setting", "metric"], sort=False)["value"].mean().unstack()[list(columns)]
    ours.index = [setting or method for method, setting in ours.index]
    ours.columns = [f"ours, {rows['dataset'].iloc[0]}, {name}" for name in columns]
    for dataset, points in published_curve(figure).items():
        levels = [_level(setting) for setting in ours.index]
        ours[f"published, {dataset}, R@1"] = [points.get(level, np.nan) for level in levels]
    return ours


def _level(setting: str) -> float | None:
    """The number of a setting "name=number"; None for anything else."""
    _, equals, number = setting.partition("=")
    return float(number) if equals and ";" not in number else None


def spread_table(finished: Iterable, params) -> "pd.DataFrame":
    """The rows of finished runs, and how far the test embeddings of a class lie apart."""
    import pandas as pd

    spreads = []
    for run in finished:
        manifest = batches.load_dataset(run.spec)
        distances = class_distances(run.embeddings, torch.from_numpy(manifest.labels[manifest.indices("test")]))
        spreads.append(protocols.Scored(run.spec, run.dataset, _rows(run, distances)))
    return pd.concat([results.tidy(finished, params), results.tidy(spreads, params)], ignore_index=True)


NOTEBOOKS = {
    LabelNoiseParams.notebook: (LabelNoiseParams, label_noise),
    AlignmentParams.notebook: (AlignmentParams, proxy_alignment),
    ProxiesParams.notebook: (ProxiesParams, ablation_proxies),
    DeltaParams.notebook: (DeltaParams, ablation_delta),
    AlphaParams.notebook: (AlphaParams, ablation_alpha),
    RepulsionParams.notebook: (RepulsionParams, ablation_repulsion_radius),
}
