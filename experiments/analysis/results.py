"""From runs to tables: one row per number of one run, its columns those of tables.py.

Recalls and precisions are in percent here. At which step a run was stopped, or was best on validation classes, is an
outcome like its numbers: the column `step` tells rows apart only among those of selection `every`.
"""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pandas as pd

from experiments.analysis.tables import COLUMNS, HITS, IDENTITY
from experiments.training.records import measurement

if TYPE_CHECKING:
    from experiments.training.protocols import Scored
    from experiments.training.runs import RunResult


def tidy(runs: Iterable, params: Any) -> pd.DataFrame:
    """The metric rows of finished runs, labelled by each spec's method, setting and protocol.

    The models that a protocol trains on folds enter together, see `protocols.combine`.
    """
    from experiments.training import protocols

    rows = []
    for run in protocols.combine(runs):
        labels = {"paper": params.paper} | _labels(run, params)
        for row in run.rows:
            value = 100 * row["value"] if in_percent(row["metric"]) else row["value"]
            setting = labels["setting"]
            if "network" in row:  # a further one that the algorithm evaluates
                setting = f"{setting};network={row['network']}".lstrip(";")
            rows.append(labels | row | {"setting": setting, "value": value})
    return frame(rows)


def _labels(run: "RunResult | Scored", params: Any) -> dict:
    """What a table says of a run beside its numbers: its context, method, setting and seed."""
    where = {"experiment": params.notebook, "profile": params.profile, "dataset": run.dataset}
    where |= {"backbone": run.spec.backbone, "dim": run.spec.embedding_size or 0}
    return where | {name: getattr(run.spec, name) for name in ("protocol", "method", "setting", "seed")}


def hits(runs: Iterable, params: Any) -> pd.DataFrame:
    """R@1 of finished runs as counts by test class, for `judging.judge`; columns as in `tables.HITS`.

    `queries` are the query images of a class that have a relevant gallery image, `hits` those whose nearest gallery
    image is of their class. The models of a method's folds enter as `protocols.combine` scores them: under "separated"
    the counts of all models are added, under "concatenated" they are those of the models' unit embeddings side by side.
    A fold that did not restore its best weights is left out: its embeddings are of another step than tables show.
    """
    from experiments.training import protocols, records

    models: dict[str, list] = {}  # those that differ in the fold only
    for run in runs:
        if run.spec.fold is None or run.spec.restore_best:
            models.setdefault(repr(run.spec.replace(fold=None)), []).append(run)
    rows = []
    for group in models.values():
        for entry in protocols.combine(group):
            together = len(group) > 1 and entry.spec.protocol.endswith("concatenated")
            # a search through all images per run, most of what a notebook takes whose runs are finished
            counts = group[0].correct_per_class if len(group) == 1 else None
            for class_id, correct, queries in counts or records.derived(group, _counts, together=together):
                rows.append(_labels(entry, params) | {"class_id": class_id, "hits": correct, "queries": queries})
    return pd.DataFrame(rows, columns=HITS)


@measurement("correct_per_class")
def _counts(*models: "RunResult", together: bool) -> list[list[int]]:
    """Rows of class, hits and queries of models of one spec: added up, or those of their unit embeddings together."""
    import torch
    from torch.nn.functional import normalize

    from experiments.training import batches, runs

    manifest = batches.load_dataset(models[0].spec)
    embeddings = [model.embeddings for model in models]
    if together:
        embeddings = [torch.cat([normalize(each, dim=1) for each in embeddings], dim=1)]
    counts: dict[int, list[int]] = {}
    for each in embeddings:
        for class_id, queries, correct, _ in runs.per_class(each, manifest, manifest.indices("test")):
            before = counts.get(int(class_id), [0, 0])
            counts[int(class_id)] = [before[0] + int(correct), before[1] + int(queries)]
    return [[class_id, *counts[class_id]] for class_id in sorted(counts)]


def frame(rows: Iterable[dict]) -> pd.DataFrame:
    """A validated tidy table from rows; missing text columns are empty, selection is `last`, seed and step 0."""
    defaults = {"backbone": "", "dim": 0, "protocol": "", "setting": "", "seed": 0, "selection": "last", "step": 0}
    table = pd.DataFrame([defaults | row for row in rows], columns=COLUMNS)
    validate(table)
    return table


def in_percent(metric: str) -> bool:
    """Whether tables hold a metric in percent: "R@1", and "val R@1" of the validation classes."""
    return metric.removeprefix("val ").startswith(("R@", "P@1", "RP", "MAP@R", "mAP@", "NMI"))


def validate(table: pd.DataFrame) -> None:
    """Raise ValueError naming the first row that is not a result."""
    if list(table.columns) != COLUMNS:
        raise ValueError(f"columns must be {', '.join(COLUMNS)}; got {', '.join(map(str, table.columns))}")
    if table.empty:
        raise ValueError("the table has no rows")
    values = pd.to_numeric(table["value"], errors="coerce")
    named = ("paper", "experiment", "profile", "dataset", "method", "metric")
    selections = ("last", "val_best", "test_best", "every")
    checks = {
        f"selection must be one of {selections}": ~table["selection"].isin(selections),
        **{f"{column} is empty": table[column].astype(str).str.len() == 0 for column in named},
        "value must be a finite number": ~values.map(math.isfinite),
        "percentages must lie in [0, 100]": table["metric"].astype(str).map(in_percent) & ~values.between(0, 100),
        "the same measurement twice": without_outcomes(table).duplicated(IDENTITY),
    }
    for message, wrong in checks.items():
        if wrong.any():
            raise ValueError(f"{message}: {table[wrong].iloc[0].to_dict()}")


def without_outcomes(table: pd.DataFrame) -> pd.DataFrame:
    """The rows with the step only where it is part of their identity."""
    return table.assign(step=table["step"].where(table["selection"] == "every", 0))


def costs(runs: Iterable) -> pd.DataFrame:
    """Seconds of each run. They differ from machine to machine and are only ever compared as ratios."""
    labels = ("method", "setting", "seed")
    return pd.DataFrame([{name: getattr(run.spec, name) for name in labels} | run.cost for run in runs])
