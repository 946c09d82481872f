"""Notebooks 32 and 39: the traditional protocol (Tables 2 and 14, Figs 4 and 6), evaluated after every epoch.

The best MAP@R and its epoch are chosen on the test images, as in the paper; the last evaluation stands beside them.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.analysis import statistics, stored, tables
from experiments.figures import charts
from experiments.meanfield import growth
from experiments.meanfield.claims import MATCHED
from experiments.meanfield.methods import FIELD_LR, NAMES, VIT, every_run, meanfield_study
from experiments.params import Count, Number, Params, parameters
from experiments.studies import scored, study_rows, with_measured
from experiments.training.runs import RunResult
from experiments.training.spec import RunSpec

AT_STOP = "MAP@R at stop"  # the best until training would have ended
PATIENCE = (5, 1)  # evaluations without a better one: of the paper; the released loop breaks at the first
TABLE_2 = ("untrained", "ProxyAnchor", "Cont", "MFCont", "CWMS", "MFCWMS")


def curve_options(params: Params) -> dict:
    """Fields of a run whose evaluations are all kept, one after every epoch unless the reader says otherwise."""
    looks = {} if "eval_every_epochs" in params.changed else {"eval_every": None, "eval_every_epochs": 1.0}
    return {"keep_history": True, "monitor": "MAP@R"} | looks


def conventional(params: Any) -> list[RunSpec]:
    """Table 2, and ProxyAnchor once more with the learning rate of mean fields: convergence may be a matter of it."""
    options = curve_options(params)
    specs = every_run(params.methods, params, **options)
    if "ProxyAnchor" in params.methods:
        specs += every_run(["ProxyAnchor"], params, setting=MATCHED, loss_lr={"*": FIELD_LR}, **options)
    return specs


def vit(params: Any) -> list[RunSpec]:
    """Table 14, with another network below the profile paper: MFCWMS with alpha = 20, and at its default beside it."""
    specs = every_run(params.methods, params, **curve_options(params))
    changed = {"setting": f"alpha={params.alpha:g}", "loss_options": {"alpha": params.alpha}}
    return specs + every_run(["MFCWMS"], params, **changed, **curve_options(params))


def history(run: RunResult, metric: str = "MAP@R") -> tuple[np.ndarray, np.ndarray]:
    """Epochs and values of a metric, a fraction, of all evaluations of a run that kept them."""
    rows = [row for row in run.rows if (row["selection"], row["metric"]) == ("every", metric)]
    per_epoch = rows[0]["step"] / run.spec.eval_every_epochs
    return np.array([row["step"] / per_epoch for row in rows]), np.array([row["value"] for row in rows])


def stopped_at(values: Sequence[float] | np.ndarray, patience: int) -> int:
    """How many evaluations there are if training ends once so many were all no better than the best before them."""
    best, since = -np.inf, 0
    for count, value in enumerate(values, start=1):
        best, since = (value, 0) if value > best else (best, since + 1)
        if since == patience:
            return count
    return len(values)


def curve_measures(run: RunResult) -> dict[str, dict[str, float]]:
    """{setting: {metric: value}}: best_epoch and slope_after_best of the whole curve, and the best epoch and MAP@R of
    its beginning where training would have ended under each patience."""
    epochs, values = history(run)
    best = int(values.argmax())
    left = epochs[-1] - epochs[best]
    slope = 100 * (values[-1] - values[best]) / left if left else 0.0
    measures = {run.spec.setting: {"best_epoch": float(epochs[best]), "slope_after_best": float(slope)}}
    for patience in PATIENCE:
        seen = values[: stopped_at(values, patience)]
        setting = f"{run.spec.setting};patience={patience}".lstrip(";")
        measures[setting] = {"best_epoch": float(epochs[seen.argmax()]), AT_STOP: float(seen.max())}
    return measures


def curves_of(run: RunResult, params: Params) -> list:
    """What `curve_measures` finds in the evaluations of a run that kept them."""
    found = curve_measures(run) if run.spec.keep_history else {}
    return [scored(run, values, setting) for setting, values in found.items()]


def conventional_table(finished: Iterable[RunResult], params: Any) -> pd.DataFrame:
    """Where searches chose the epochs of a method "last" is the evaluation after them; the run goes on for a curve."""
    chosen, shown, curves = params.searches() if params.rates else {}, [], []
    for run in finished:
        curves += curves_of(run, params)
        if search := chosen.get(run.spec.method):
            end = max(row["step"] for row in run.rows) * search["found"]["options"]["epochs"] // run.spec.epochs
            rows = [row for row in run.rows if row["selection"] != "last"]
            rows += [row | {"selection": "last"} for row in rows if (row["selection"], row["step"]) == ("every", end)]
            run = dataclasses.replace(run, rows=rows)
        shown.append(run)
    return with_measured(shown, curves, params)


def learning_curves(table: pd.DataFrame) -> Figure:
    """Fig. 6: MAP@R after every epoch of the runs of one data set, mean and 95 % t interval over seeds."""
    evaluations = table[(table["selection"] == "every") & (table["metric"] == "MAP@R")]
    curves = {}
    for (method, setting), rows in evaluations.groupby(["method", "setting"], sort=False):
        scores = rows.pivot(index="seed", columns="step", values="value")
        intervals = scores.apply(statistics.t_interval, result_type="expand").to_numpy()
        curves[tables.Cell.read(f"{method};{setting}").said] = (range(1, len(scores.T) + 1), scores.mean(), *intervals)
    data, seeds = stored.data_in_words(evaluations["dataset"].iloc[0]), evaluations["seed"].nunique()
    band = f"mean, 95 % t interval, n = {seeds} seeds"
    return charts.lines(curves, "epoch", "MAP@R (%)", title=data, band=band, names=NAMES)


def growth_rows(costs: pd.DataFrame, params: Any) -> pd.DataFrame:
    """Rows of the exponents by repetition, for the verdict alone; costs: of `growth.measure`, alone or below others"""
    columns = ["samples", "repetition", "seconds"]
    costs = costs.assign(**costs[columns].apply(pd.to_numeric)).dropna(subset=["samples"])
    rows = growth.exponents(costs).rename(columns={"repetition": "seed", "exponent": "value"}).to_dict("records")
    return study_rows(params, rows, metric="exponent") if rows else pd.DataFrame(columns=tables.COLUMNS)


Conventional = meanfield_study(
    "32_meanfield_conventional",
    parameters(
        methods=tuple[str, ...],
        growth_sizes=tuple[Count, ...],  # samples of the timed losses, see growth.FROM
        repetitions=Count,  # of the timing
    ),
    conventional,
    conventional_table,
    measures=curves_of,
    profiles={
        "*": {"methods": ("untrained", "ProxyAnchor", "MFCont", "MFCWMS"), "repetitions": 5},
        "quick": {"steps": 0, "epochs": 2, "growth_sizes": (4000, 6000), "repetitions": 2},
        "small": {"steps": 0, "epochs": 12, "growth_sizes": (4000, 5600, 8000)},
        "paper": {"growth_sizes": (4000, 5600, 8000), "methods": TABLE_2},
    },
    ratios=growth_rows,
)
Vit = meanfield_study(
    "39_meanfield_vit",
    parameters(methods=(tuple[str, ...], ("untrained", "ProxyAnchor", "MFCont", "MFCWMS")), alpha=(Number, 20.0)),
    vit,
    measures=curves_of,
    profiles={"quick": {"steps": 0, "epochs": 2}, "small": {"steps": 0, "epochs": 4}, "paper": {"backbone": VIT}},
)
