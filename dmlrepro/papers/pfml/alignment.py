"""Notebook 12: do proxies align with the data they stand for? (Fig. 2, Proposition 1, Corollary 1, Table 3)"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F

from dmlrepro import metrics
from dmlrepro.evidence import results, tables
from dmlrepro.evidence.stored import Numbers, agrees
from dmlrepro.losses.baselines import proxies_of
from dmlrepro.papers.catalogue import Notebook
from dmlrepro.papers.methods import pick, runs_of
from dmlrepro.papers.pfml import geometry
from dmlrepro.papers.pfml.claims import RELATIVE_W2
from dmlrepro.papers.pfml.methods import METHODS, READINGS, FieldParams, published
from dmlrepro.papers.studies import measured, study_rows, trained_loss, training_embeddings, with_histories
from dmlrepro.training.spec import RunSpec

if TYPE_CHECKING:
    import pandas as pd

HOLDS = "hypothesis holds"  # the case of `geometry.study` that the corollary is about
# How PFML is trained once more: as the paper's words have it, and in shuffled batches with and without clipping
SHUFFLED, UNCLIPPED = {"samples_per_class": None}, {"loss_clip_value": None}
OTHERWISE: dict[str, dict] = {
    setting: READINGS[setting][1]
    for setting in ("proxies=as drawn", "gradients=unclipped", "proxies=as drawn;gradients=unclipped")
} | {
    "batches=shuffled": SHUFFLED,
    "batches=shuffled;gradients=unclipped": SHUFFLED | UNCLIPPED,
}


@dataclass(frozen=True)
class AlignmentParams(FieldParams):
    """The parameters of notebook 12."""

    notebook = "12_pfml_proxy_alignment"
    positive: ClassVar = (*FieldParams.positive, "point_sets")

    methods: tuple[str, ...] = ("PFML", "CPML", "SoftTriple", "ProxyNCA++", "ProxyAnchor")
    point_sets: int = 5


def proxy_alignment(params: AlignmentParams) -> list[RunSpec]:
    """The methods of Table 3; those with several proxies per class have the same number, as the paper demands. Then
    PFML in the other ways of OTHERWISE."""
    centers = {"SoftTriple": {"centers_per_class": params.proxies_per_class}}
    found = [
        run
        for method in pick(METHODS, params.methods)
        for run in runs_of([method], params, loss_options=centers.get(method.name))
    ]
    found = with_histories(found)
    for setting, change in OTHERWISE.items() if "PFML" in params.methods else ():
        found += runs_of([METHODS["PFML"]], params, setting=setting, **change)
    return found


def alignment_table(finished: Iterable, params: AlignmentParams) -> "pd.DataFrame":
    """W2 between the proxies and the training embeddings of each finished run, in three readings, and the spread of the
    classes; after them the numerical study of Proposition 1 and Corollary 1, whose data set is "synthetic"."""
    import pandas as pd

    trained = results.tidy([measured(run, _alignment(run)) for run in finished], params)
    study = []
    for row in geometry.study(range(params.point_sets)):
        case = row.pop("case")
        study.append(row | ({} if case == HOLDS else {"setting": f"{row['setting']};case={case}"}))
    return pd.concat([trained, study_rows(params, study)], ignore_index=True)


def alignment_summary(table: "pd.DataFrame") -> "pd.DataFrame":
    """Means over seeds beside Table 3. A loss that draws its classes together lowers every distance, so their mean
    distance within a class stands beside, and W2 over it."""
    names = ["W2", "true W2", "nearest sample", "intra_class_distance"]
    rows = table[(table["setting"] == "") & table["metric"].isin(names)]
    ours = rows.groupby(["method", "metric"], sort=False)["value"].mean().unstack()[names]
    ours.columns = ["W2 as printed", "true W2", "nearest sample", "mean distance within a class"]
    ours["W2 / distance within a class"] = ours["W2 as printed"] / ours["mean distance within a class"]
    theirs = published("Table 3").set_index("method")["value"]
    return ours.assign(**{"published W2, CUB-200-2011": theirs.reindex(ours.index)}).round(3)


def otherwise_summary(table: "pd.DataFrame", finished: Iterable) -> "pd.DataFrame":
    """PFML as everywhere and in the ways of OTHERWISE: means over seeds of the distances in the table and of R@1 of the
    finished runs, in percent."""
    import pandas as pd

    distances = table[(table["method"] == "PFML") & table["metric"].isin(["W2", "nearest sample"])]
    found = distances.pivot_table(index="setting", columns="metric", values="value")
    recall = [(run.spec.setting, 100 * run.metric("R@1")) for run in finished if run.spec.method == "PFML"]
    found["R@1"] = pd.DataFrame(recall, columns=["setting", "R@1"]).groupby("setting")["R@1"].mean()
    return found.reindex(["", *OTHERWISE]).rename({"": "as everywhere"}).round(3)


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
    return curves | {"printed lower bound for CPML (26)": (numbers, [geometry.printed_bound(m) for m in numbers])}


def _alignment(run) -> dict[str, float]:
    """What is measured on one run: its trained proxies against all training images."""
    manifest, embeddings, labels = training_embeddings(run)
    proxies = proxies_of(trained_loss(run, manifest, embeddings.shape[1]))
    readings = {"W2": "assignment", "true W2": "w2", "nearest sample": "nearest"}
    values = {name: metrics.proxy_wasserstein(proxies, embeddings, labels, form)[0] for name, form in readings.items()}
    return values | class_distances(embeddings, labels)


def class_distances(embeddings: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    """Mean distance of unit embeddings (N, D) within a class, averaged over classes, and between all classes."""
    points, classes = F.normalize(embeddings.double(), dim=1), labels.unique()
    within = torch.stack([F.pdist(points[labels == label]).mean() for label in classes]).mean()
    means = torch.stack([points[labels == label].mean(0) for label in classes])
    return {"intra_class_distance": within.item(), "class_mean_distance": F.pdist(means).mean().item()}


# --- what was found ---------------------------------------------------------------------------------------------------


def _nearest_proxies(numbers: Numbers) -> str:
    ours, rival, order = _by_distance(numbers, "W2")
    said = ", ".join(f"{cell} {numbers.mean(cell, 'W2'):.2f}" for cell in order if cell not in (ours, rival))
    return (
        f"{_name(order[0])} has the least W2 between proxies and images of {len(order)} losses, "
        f"{agrees(order[0] == ours)}, whose Table 3 has PFML 0.16, SoftTriple 0.24 and CPML 0.26: "
        f"PFML {numbers.against(ours, rival, 'W2')} of {rival}{'; ' if said else ''}{said}."
    )


def _relative_to_spread(numbers: Numbers) -> str:
    ours, rival, order = _by_distance(numbers, RELATIVE_W2)
    return (
        f"A loss that draws its classes together lowers W2 by that alone; over the mean distance within a class "
        f"{_name(order[0])} has the least: PFML {numbers.mean(ours, RELATIVE_W2):.3f}, {rival} "
        f"{numbers.mean(rival, RELATIVE_W2):.3f} ({numbers.gap(ours, rival, RELATIVE_W2)})."
    )


def _by_distance(numbers: Numbers, metric: str) -> tuple[str, str, list[str]]:
    """PFML as this table has it, the nearest other method, and all of them, the nearest first."""
    usual = "" in numbers.cells.get(("PFML", "W2"), {})
    ours = "PFML" if usual else "PFML;proxies=as drawn"
    order = numbers.ranked([ours, *(method for method in numbers.methods if method != "PFML")], metric)[::-1]
    if ours not in order or len(order) < 2:
        raise tables.MissingRows(f"PFML and another method ({metric})")
    return ours, next(cell for cell in order if cell != ours), order


def _corollary(numbers: Numbers) -> str:
    ours, theirs = (_in_the_plane(numbers, method) for method in ("PFML", "CPML"))
    farthest = max(distance for distances in ours.values() for distance in distances)
    within = [number for number, distances in theirs.items() if min(distances) <= 1]
    fails = f"with {', '.join(within)} sometimes nearer" if within else "always farther"
    holds = not within and farthest <= 1.001
    return (
        f"In the plane, where no network is trained, PFML's proxies rest at most {farthest:.2f} delta from their "
        f"samples and CPML's {fails} than delta, {agrees(holds)} (Corollary 1)."
    )


def _in_the_plane(numbers: Numbers, method: str) -> dict[str, list[float]]:
    """ "M=2" -> W2/delta of every point set of the case that the corollary is about."""
    cells = numbers.cells.get((method, "W2/delta"), {})
    found = {setting: [*sets.values()] for setting, sets in cells.items() if "case=" not in setting}
    if not found:
        raise tables.MissingRows(f"{method};M (W2/delta)")
    return found


def _unclipped(numbers: Numbers) -> str:
    ours = _by_distance(numbers, "W2")[0]
    free = f"{ours};gradients=unclipped"
    away = numbers.mean(free, "W2") > 2 * numbers.mean(ours, "W2")
    return (
        f"Unless the gradients of PFML's proxies are clipped, of which the paper says nothing, its proxies "
        f"{'stay far from the images' if away else 'reach the images as well'}: {numbers.against(free, ours, 'W2')}."
    )


def _name(cell: str) -> str:
    method, _, setting = cell.partition(";")
    return f"{method} ({setting.replace('=', ' ')})" if setting else method


FINDINGS = (_nearest_proxies, _relative_to_spread, _corollary, _unclipped)
NOTEBOOKS = [Notebook(AlignmentParams, proxy_alignment, alignment_table, findings=FINDINGS)]
