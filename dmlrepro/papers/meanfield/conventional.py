"""Notebooks 32 and 39: the traditional protocol (Tables 2 and 14, Figs 4 and 6), evaluated after every epoch.

Every run keeps all its evaluations: the epoch of the best one is what the paper's tables have beside MAP@R. Both are
chosen on the test images, as there; the last evaluation stands beside them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from dmlrepro.evidence import results, tables
from dmlrepro.evidence.stored import Numbers, agrees
from dmlrepro.papers.catalogue import Notebook
from dmlrepro.papers.meanfield import growth
from dmlrepro.papers.meanfield.claims import MATCHED, MEAN_FIELDS
from dmlrepro.papers.meanfield.methods import FIELD_LR, PAIRS, VIT, MeanFieldParams, compared, every_run
from dmlrepro.papers.studies import measured, with_measured
from dmlrepro.training import batches
from dmlrepro.training.spec import RunSpec

if TYPE_CHECKING:
    import pandas as pd

AT_STOP = "MAP@R at stop"  # the best until training would have ended
PATIENCE = {"paper": 5, "released code": 1}  # evaluations without a better one; the released loop breaks at the first


@dataclass(frozen=True)
class ConventionalParams(MeanFieldParams):
    """The parameters of notebook 32."""

    notebook = "32_meanfield_conventional"
    positive: ClassVar = (*MeanFieldParams.positive, "growth_sizes", "repetitions")
    overrides: ClassVar = {
        "quick": {"steps": 192, "growth_sizes": (250, 500, 1000, 2000)},
        "small": {"steps": 0, "epochs": 8, "growth_sizes": (500, 1000, 2000, 4000)},
        "paper": MeanFieldParams.overrides["paper"] | {"growth_sizes": (500, 1000, 2000, 4000)},
    }

    methods: tuple[str, ...] = ("untrained", "ProxyAnchor", "Cont", "MFCont", "CWMS", "MFCWMS")
    growth_sizes: tuple[int, ...] | None = None  # samples of the timed losses
    repetitions: int = 5  # of the timing


@dataclass(frozen=True)
class VitParams(MeanFieldParams):
    """The parameters of notebook 39; below the profile paper another network stands for the transformer."""

    notebook = "39_meanfield_vit"
    overrides: ClassVar = {
        "quick": {"steps": 192},
        "small": {"steps": 0, "epochs": 8},
        "paper": MeanFieldParams.overrides["paper"] | {"backbone": VIT},
    }

    methods: tuple[str, ...] = ("untrained", "ProxyAnchor", "MFCont", "MFCWMS")
    alpha: float = 20.0  # of MFCWMS in Table 14


def curve_options(params: MeanFieldParams) -> dict:
    """Fields of a run whose evaluations are all kept, one after every epoch unless the reader says otherwise."""
    looks = {} if params.eval_every_epochs else {"eval_every": None, "eval_every_epochs": 1.0}
    return {"keep_history": True, "monitor": "MAP@R"} | looks


def conventional(params: ConventionalParams) -> list[RunSpec]:
    """Table 2, and ProxyAnchor once more with the learning rate of mean fields: convergence may be a matter of it."""
    found = every_run(params.methods, params, **curve_options(params))
    if "ProxyAnchor" in params.methods:
        rate = {"setting": MATCHED, "loss_lr": {"*": FIELD_LR}}
        found += every_run(["ProxyAnchor"], params, **rate, **curve_options(params))
    return found


def vit(params: VitParams) -> list[RunSpec]:
    """Table 14: MFCWMS with alpha = 20, and at its default beside it."""
    found = every_run(params.methods, params, **curve_options(params))
    changed = {"setting": f"alpha={params.alpha:g}", "loss_options": {"alpha": params.alpha}}
    return found + every_run(["MFCWMS"], params, **changed, **curve_options(params))


# --- what the evaluations say -----------------------------------------------------------------------------------------


def history(run, metric: str = "MAP@R") -> tuple[np.ndarray, np.ndarray]:
    """Epochs and values of a metric, a fraction, of all evaluations of a run that kept them."""
    rows = [row for row in run.rows if (row["selection"], row["metric"]) == ("every", metric)]
    manifest = batches.load_dataset(run.spec)
    per_epoch = max(len(manifest.indices("train")) // run.spec.batch_size, 1)
    return np.array([row["step"] / per_epoch for row in rows]), np.array([row["value"] for row in rows])


def stopped_at(values: Sequence[float] | np.ndarray, patience: int) -> int:
    """How many evaluations there are if training ends once so many were all no better than the best before them."""
    best, since = -np.inf, 0
    for count, value in enumerate(values, start=1):
        best, since = (value, 0) if value > best else (best, since + 1)
        if since == patience:
            return count
    return len(values)


def curve_measures(run) -> dict[str, dict[str, float]]:
    """{setting: {metric: value}}: best_epoch and slope_after_best of the whole curve, and the best epoch and MAP@R of
    its beginning where training would have ended under each patience."""
    epochs, values = history(run)
    best = int(values.argmax())
    left = epochs[-1] - epochs[best]
    slope = 100 * (values[-1] - values[best]) / left if left else 0.0
    found = {run.spec.setting: {"best_epoch": float(epochs[best]), "slope_after_best": float(slope)}}
    for patience in PATIENCE.values():
        seen = values[: stopped_at(values, patience)]
        setting = f"{run.spec.setting};patience={patience}".lstrip(";")
        found[setting] = {"best_epoch": float(epochs[seen.argmax()]), AT_STOP: float(seen.max())}
    return found


def curve_table(finished: Iterable, params: MeanFieldParams) -> "pd.DataFrame":
    """The rows of the runs, and what `curve_measures` finds in their evaluations."""
    finished = list(finished)
    found = [
        measured(run, values, setting)
        for run in finished
        if run.spec.keep_history
        for setting, values in curve_measures(run).items()
    ]
    return with_measured(finished, found, params)


def learning_curves(finished: Iterable, runtime: bool = False) -> dict[str, tuple]:
    """MAP@R in percent over the epochs (Fig. 6), or over seconds of training (Fig. 4), mean and range over seeds, for
    `plots.lines`; seconds are each run's epochs at the mean speed of its method."""
    curves: dict[str, list] = {}
    for run in finished:
        if run.spec.keep_history:
            curves.setdefault(f"{run.spec.method};{run.spec.setting}".rstrip(";"), []).append(run)
    found = {}
    for name, runs in curves.items():
        histories = [history(run) for run in runs]
        length = min(len(epochs) for epochs, _ in histories)
        values = 100 * np.array([values[:length] for _, values in histories])
        x = histories[0][0][:length]
        if runtime:
            steps = np.array([row["step"] for row in runs[0].rows if row["selection"] == "every"])
            x = np.unique(steps)[:length] / np.mean([run.cost["steps_per_second"] for run in runs])
        found[name] = (x, values.mean(0), values.min(0), values.max(0))
    return found


def stops(table: "pd.DataFrame") -> "pd.DataFrame":
    """Epoch and MAP@R of the best evaluation, means over seeds: of the whole run and under each of PATIENCE."""
    ends = {"": "whole run"} | {f"patience={patience}": name for name, patience in PATIENCE.items()}
    rows = table[table["setting"].isin(ends) & (table["method"] != "untrained")]
    best = (rows["metric"] == "MAP@R") & (rows["selection"] == "test_best")
    rows = rows[best | rows["metric"].isin([AT_STOP, "best_epoch"])]
    rows = rows.assign(end=rows["setting"].map(ends), metric=rows["metric"].replace(AT_STOP, "MAP@R"))
    wide = rows.pivot_table("value", "method", ["end", "metric"])
    return wide[[(end, metric) for end in ends.values() for metric in ("best_epoch", "MAP@R")]].round(2)


def growth_costs(params: ConventionalParams) -> "pd.DataFrame":
    """Seconds of the four losses as the data grow, see `growth.measure`."""
    return growth.measure(params.growth_sizes, 100, 64, params.repetitions)


def all_costs(finished: Iterable, costs: "pd.DataFrame") -> "pd.DataFrame":
    """Seconds of the runs, and below them those of the losses as the data grow."""
    import pandas as pd

    return pd.concat([results.costs(finished), costs], ignore_index=True)


def growth_rows(costs: "pd.DataFrame", params: ConventionalParams) -> "pd.DataFrame":
    """Tidy rows of the exponents by repetition, for the verdict alone: they differ from machine to machine; costs are
    those of `growth_costs`, alone or among those that `all_costs` saves."""
    import pandas as pd

    columns = ["samples", "repetition", "seconds"]
    costs = costs.assign(**costs[columns].apply(pd.to_numeric)).dropna(subset=["samples"])
    common = {"paper": params.paper, "experiment": params.notebook, "profile": params.profile, "dataset": "synthetic"}
    return results.frame(
        common | {"method": row.method, "seed": row.repetition, "metric": "exponent", "value": row.exponent}
        for row in growth.exponents(costs).itertuples()
    )


# --- what was found ---------------------------------------------------------------------------------------------------


def _over_proxy_anchor(numbers: Numbers) -> str:
    paper = "which gains on birds, products and clothes and loses on cars"
    return compared(numbers, dict.fromkeys(MEAN_FIELDS, "ProxyAnchor"), "ProxyAnchor", paper)


def _over_pairs(numbers: Numbers) -> str:
    return compared(numbers, PAIRS, "the pair losses they come from", "whose Fig. 6 has their curves above")


def _sooner(numbers: Numbers) -> str:
    epochs = {name: numbers.mean(name, "best_epoch") for name in (*MEAN_FIELDS, "ProxyAnchor")}
    if unfinished := _all_best_at_the_end(numbers, epochs):
        return unfinished
    sooner = max(epochs[name] for name in MEAN_FIELDS) < epochs["ProxyAnchor"]
    matched = numbers.mean(f"ProxyAnchor;{MATCHED}", "best_epoch")
    return (
        f"The mean field losses are {'' if sooner else 'not '}sooner at their best MAP@R than ProxyAnchor, "
        f"{agrees(sooner)}: epochs {' and '.join(f'{epochs[name]:.1f}' for name in MEAN_FIELDS)} against "
        f"{epochs['ProxyAnchor']:.1f}; proxies with the rate of mean fields, 0.2, take {matched:.1f}."
    )


def _all_best_at_the_end(numbers: Numbers, cells: Iterable[str]) -> str:
    """A sentence that says so if no cell has passed its best MAP@R, else nothing."""
    if any(numbers.mean(cell, "slope_after_best") for cell in cells):
        return ""
    last = max(numbers.mean(cell, "best_epoch") for cell in cells)
    return f"Which loss converges first is open: all are at their best at the last evaluation, epoch {last:.1f}."


def _falls(numbers: Numbers) -> str:
    slopes = {name: numbers.mean(name, "slope_after_best") for name in (*MEAN_FIELDS, "ProxyAnchor")}
    if not any(slopes.values()):
        return ""
    faster = all(slopes[name] < slopes["ProxyAnchor"] for name in MEAN_FIELDS)
    told = ", ".join(f"{name} {slope + 0.0:+.2f}" for name, slope in slopes.items())
    return (
        f"After its best MAP@R {'both fall' if faster else 'they do not both fall'} faster than ProxyAnchor, "
        f"{agrees(faster)}, which sees it on small data sets: {told} points per epoch."
    )


def _growth(numbers: Numbers) -> str:
    powers = {name: numbers.mean(name, "exponent") for pair in PAIRS.items() for name in pair}
    cheaper = all(powers[name] < min(powers[pair], 1.3) for name, pair in PAIRS.items())
    told = ", ".join(f"{name} {power:.2f}" for name, power in powers.items())
    return (
        f"The time of a mean field loss {'grows' if cheaper else 'does not grow'} at most linearly with the data and "
        f"more slowly than that of its pair loss, {agrees(cheaper)}: exponents {told}."
    )


def _in_table_14(numbers: Numbers) -> str:
    sharp = _sharp(numbers)
    helps = numbers.mean(sharp, "MAP@R") > numbers.mean("ProxyAnchor", "MAP@R")
    return (
        f"MFCWMS at {_alpha_of(sharp)} is {'' if helps else 'not '}better than ProxyAnchor, {agrees(helps)}, whose "
        f"ViT-B/16 gains 0.2 on birds: {numbers.against(sharp, 'ProxyAnchor', 'MAP@R')}."
    )


def _by_alpha(numbers: Numbers) -> str:
    sharp = _sharp(numbers)
    return f"Against its default alpha = 0.01: {numbers.against(sharp, 'MFCWMS', 'MAP@R')}."


def _later(numbers: Numbers) -> str:
    sharp = _sharp(numbers)
    if unfinished := _all_best_at_the_end(numbers, (sharp, "ProxyAnchor")):
        return unfinished
    ours, theirs = (numbers.mean(name, "best_epoch") for name in (sharp, "ProxyAnchor"))
    return (
        f"It is at its best {'later' if ours > theirs else 'no later'} than ProxyAnchor, {agrees(ours > theirs)} "
        f"(birds and cars): epoch {ours:.1f} against {theirs:.1f}."
    )


def _sharp(numbers: Numbers) -> str:
    """The cell of MFCWMS with another alpha."""
    settings = numbers.cells.get(("MFCWMS", "MAP@R"), {})
    found = [f"MFCWMS;{setting}" for setting in settings if setting.startswith("alpha=") and ";" not in setting]
    if not found:
        raise tables.MissingRows("MFCWMS with another alpha")
    return found[0]


def _alpha_of(cell: str) -> str:
    return cell.partition(";")[2].replace("=", " = ")


NOTEBOOKS = [
    Notebook(
        ConventionalParams,
        conventional,
        curve_table,
        ratios=growth_rows,
        findings=(_over_proxy_anchor, _over_pairs, _sooner, _falls, _growth),
    ),
    Notebook(VitParams, vit, curve_table, findings=(_in_table_14, _by_alpha, _later)),
]
