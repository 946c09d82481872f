"""Charts of numbers: bars, ablations and counts of tables, lines, and curves over the steps of training.

Bars and lines are means over seeds, small dots are single seeds; from MIN_SEEDS seeds on there are 95 % t intervals
too. Published values lie in panels of their own. `names` says how a paper calls and colours things.
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dmlrepro.evidence import tables
from dmlrepro.evidence.statistics import MIN_SEEDS, t_interval
from dmlrepro.figures.style import MARKERS, PLAIN, WIDTH, Names, check, described, legend, listed, panels, plain

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OTHERS = ["#000000", "#4477AA", "#EE6677", "#228833", "#AA3377", "#BBBBBB"]  # lines that are not a method's
SHARES = ("label_noise",)  # settings that are fractions and shown in percent


# --- tables -----------------------------------------------------------------------------------------------------------


def bars(
    table: pd.DataFrame, metrics: Sequence[str], published: pd.DataFrame | None = None, *, names: Names = PLAIN
) -> Figure:
    """A panel per metric, a bar per method and setting, sorted by the first metric; means stand right of the panels.

    table: tidy results of one data set and profile.
    published: rows with columns dataset, method, metric, value, methods named as in the table; in panels of their own.
    ValueError names what is missing or mixed.
    """
    metrics = [metrics] if isinstance(metrics, str) else list(metrics)
    rows = _one_dataset(table, metrics)
    theirs = {}
    if published is not None:
        absent = {"dataset", "method", "metric", "value"} - set(published)
        check(not absent, f"published lacks the columns {sorted(absent)}")
        theirs = dict(list(published[published["method"].isin(rows["method"])].groupby("metric")))
        theirs = {metric: theirs[metric] for metric in metrics if metric in theirs}
        check(theirs, f"published has no row of a method in {listed(rows['method'])}")
    values = {key: group.to_numpy() for key, group in rows.groupby(["method", "setting", "metric"])["value"]}
    order = list(dict.fromkeys(key[:2] for key in values))
    order.sort(key=lambda key: values.get((*key, metrics[0]), np.array([-1])).mean())
    common, bar_names = _short_names(order, names)
    title, said = f"{_where(rows)}{common}: {_statistics(rows)}", []
    count = len(metrics) + len(theirs)
    width = 6.8 if count < 3 else WIDTH  # narrow figures keep their letters on a phone
    with panels(count, 0.34 * len(order) + 1.5, width, sharey=True) as (figure, axes):
        for axis, metric in zip(axes, metrics):
            told = []
            for y, key in enumerate(order):
                if (found := values.get((*key, metric))) is not None:
                    _bar(axis, y, found, names.color(key[0]))
                    told.append(f"{bar_names[y]} {_number(found.mean())}")
            said.append(f"{names.label(metric)}: {', '.join(told)}")
            top = rows.loc[rows["metric"] == metric, "value"].max()
            axis.set(xlim=(0, 1.05 * top), xlabel=names.label(metric))
            axis.grid(False, axis="y")
        for axis, (metric, points) in zip(axes[len(metrics) :], theirs.items()):
            _diamonds(axis, points, [method for method, _ in order])
            axis.set(xlim=(0, 1.1 * points["value"].max()), xlabel=names.label(metric), title="published")
            told = [f"{row.method} {_number(row.value)} on {row.dataset}" for row in points.itertuples()]
            said.append(f"published {names.label(metric)}: {', '.join(told)}")
        axes[0].set_yticks(range(len(order)), [plain(name) for name in bar_names])
        figure.suptitle(title, fontsize="medium")
        legend(figure, axes[-1])
    return described(figure, f"Bar chart. {title}. {'. '.join(said)}")


def _short_names(order: Sequence[tuple[str, str]], names: Names) -> tuple[str, list[str]]:
    """The settings that all bars share, for the title, and the names of the bars without them."""
    parts = [tables.settings_of(setting).items() for _, setting in order]
    shared = [each for each in parts[0] if all(each in other for other in parts)]
    own = [[_said(*each, names) for each in other if each not in shared] for other in parts]
    common = "".join(f", {_said(*each, names)}" for each in shared)
    return common, [", ".join([method, *words]) for (method, _), words in zip(order, own)]


def _said(name: str, value: float | str, names: Names) -> str:
    """A setting as a reader says it: numbers keep their name, a word stands for itself."""
    if name in SHARES:
        return f"{100 * float(value):g} % {names.label(name).removesuffix(' (%)')}"
    if value == "none":
        return f"no {names.label(name)}"
    return value if isinstance(value, str) else f"{name} = {value:g}"


def _bar(axis: Axes, y: float, values: np.ndarray, shade: str) -> None:
    axis.barh(y, values.mean(), height=0.72, color=shade, linewidth=0, zorder=2)
    if len(values) >= MIN_SEEDS:
        axis.plot(np.maximum(t_interval(values), 0), [y, y], color="black", linewidth=1.3, zorder=3)
    if len(values) > 1:
        heights = np.full(len(values), y - 0.18)
        axis.scatter(values, heights, s=12, color="white", edgecolor="black", linewidth=0.7, zorder=3)
    where: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "xytext": (3, 0), "textcoords": "offset points"}
    # right of the panel nothing is drawn
    axis.annotate(_number(values.mean()), (1, y), va="center", fontsize="small", **where)


def _diamonds(axis: Axes, published: pd.DataFrame, methods: list[str]) -> None:
    for (dataset, rows), shape in zip(published.groupby("dataset"), itertools.cycle("Dsph")):
        heights = rows["method"].map(methods.index)
        axis.scatter(
            rows["value"], heights, label=dataset, s=30, facecolor="none", edgecolor="black", zorder=4, marker=shape
        )


def ablation(
    table: pd.DataFrame,
    x: str,
    metric: str,
    published: Mapping[str, Mapping[float, float]] | None = None,
    *,
    reference: float | None = None,
    xscale: str = "linear",
    names: Names = PLAIN,
) -> Figure:
    """A metric against a setting, panels one below another: our change from a reference level, paired by seed; our
    values; and, where they are known, the published changes, which another data set or network made.

    x: the setting's name in `table`, e.g. "alpha" for rows with setting "alpha=3".
    published: {"CUB-200-2011": {0: 68.2, 3: 73.4}, ...}; without it there are our two panels only.
    reference: the level to compare with, one that all curves have, such as the method's default; by default the
        published optimum among those, or the lowest level.
    xscale: "linear" or "log"; a level 0 on a logarithmic axis is drawn on a linear piece left of the smallest other.
    """
    rows = _one_dataset(table, [metric])
    ours = _by_level(rows[rows["metric"] == metric], x, names)
    published = published or {}
    reference = _reference(published, ours, reference)
    level, title_of_x = names.label(metric), names.label(x)
    change = f"change of {level}" if "(%)" not in level else f"change of {metric} (points)"
    count = 3 if any(len(points) > 1 for points in published.values()) else 2
    with panels(1, 2.3 * count + 0.7, width=6.5, rows=count, sharex=True) as (figure, axes):
        levels = sorted({level for *_, curve in ours for level in curve})
        if xscale == "log":  # before the curves, whose margins are those of the axis they are drawn on
            axes[0].set_xscale("symlog", linthresh=next(level for level in levels if level > 0))
        drawn = dict.fromkeys((method for _, method, _ in ours), 0)
        for name, method, curve in ours:
            dashes = ("-", ":", "-.", "--")[drawn[method] % 4]  # settings of one method differ
            how: dict[str, Any] = {"color": names.color(method), "marker": names.marker(method), "linestyle": dashes}
            _curve(axes[0], curve.sub(curve[reference], axis=0), label=name, **how)
            _curve(axes[1], curve, label=name, **how)
            drawn[method] += 1
        for axis, text in zip(axes, (change, level, change)):
            axis.set_ylabel(textwrap.fill(text, 26))  # panels are low
        axes[0].set_title(f"ours: {_where(rows)}, {_statistics(rows)}")
        if count == 3:
            for (name, points), dashes in zip(published.items(), itertools.cycle(("--", ":", "-."))):
                where, heights = np.array(sorted(points.items()), dtype=float).T
                if len(points) > 1:  # the reference alone is no curve
                    dashed: dict[str, Any] = {"linestyle": dashes, "color": "black", "marker": "."}
                    axes[2].plot(where, heights - points[reference], label=name, **dashed)
            axes[2].set_title("published")
            axes[2].legend(fontsize="small")
        for axis in axes[::2]:
            axis.axhline(0, color="grey", linewidth=0.8, zorder=1)
        _ticks_at(axes[0], levels, 100 if x in SHARES else 1)
        axes[-1].set_xlabel(f"{title_of_x}; changes are from {_said(x, reference, names)}")
        if len(ours) > 1:
            legend(figure, axes[0])
        if level.endswith("(%)"):
            low, high = axes[1].get_ylim()
            axes[1].set_ylim(max(low, 0), min(high, 100))
    said = [f"{text} against {title_of_x}. {_lines_said(axis)}" for axis, text in zip(axes, (change, level))]
    said += [f"Published {change}. {_lines_said(axis)}" for axis in axes[2:]]
    return described(figure, f"Line chart of {_where(rows)}, {_statistics(rows)}. {' '.join(said)}")


def _by_level(rows: pd.DataFrame, x: str, names: Names) -> list[tuple[str, str, pd.DataFrame]]:
    """(name, method, values (seeds, levels of x)) of every method and combination of its other settings."""
    named = rows["setting"].map(tables.settings_of)
    settings = [tables.DEFAULTS | each for each in named]
    others = [", ".join(_said(name, each[name], names) for name in each if name != x) for each in named]
    rows = rows.assign(x=[each.get(x) for each in settings], others=others)
    found = rows[[isinstance(each.get(x), float) for each in settings]]
    check(len(found) > 0, f"x: no row has a numeric setting {x!r}, settings are {listed(rows['setting'])}")
    return [
        (", ".join(filter(None, (method, rest))), method, group.pivot(index="seed", columns="x", values="value"))
        for (method, rest), group in found.groupby(["method", "others"], sort=False)
    ]


def _reference(published: Mapping, ours: list, asked: float | None) -> float:
    """The level asked for, or the published optimum; every curve must have it."""
    curves = [*(set(map(float, points)) for points in published.values()), *(set(curve) for *_, curve in ours)]
    common = set.intersection(*curves)
    check(common, f"published and our curves have no level in common; ours: {[sorted(curve) for *_, curve in ours]}")
    check(asked is None or asked in common, f"reference {asked} is not a level of every curve: {sorted(common)}")
    if asked is not None:
        return asked
    return max(common, key=lambda x: sum(points[x] for points in published.values())) if published else min(common)


def _curve(axis: Axes, by_seed: pd.DataFrame, *, color: str, **how) -> None:
    """Mean and single seeds of a (seeds, levels) frame, from MIN_SEEDS seeds on with a t interval."""
    axis.plot(by_seed.columns, by_seed.mean(), color=color, markersize=5, linewidth=1.5, **how)
    for level in by_seed:
        values = by_seed[level].dropna().to_numpy()
        axis.scatter(np.full(len(values), level), values, s=16, facecolor="none", edgecolor=color, linewidth=0.9)
        if len(values) >= MIN_SEEDS:
            axis.plot([level, level], t_interval(values), color=color, linewidth=1)


def tallies(counts: pd.DataFrame, shades: Mapping[str, str], xlabel: str) -> Figure:
    """How many of each kind: a stacked bar per row of `counts`, a piece per column; numbers stand in the pieces.

    shades: {column: colour}; white pieces are told apart by their hatching.
    """
    check(len(counts) > 0, "counts has no rows")
    check(set(counts) <= set(shades), f"shades has no colour for {[name for name in counts if name not in shades]}")
    hatches = itertools.cycle(("", "///", "..."))
    with panels(1, 0.4 * len(counts) + 1.6, width=6.8, grid=False) as (figure, (axis,)):
        left = np.zeros(len(counts))
        for name, column in counts.items():
            hatch = next(hatches) if shades[name].upper() == "#FFFFFF" else ""
            style: dict[str, Any] = {"color": shades[name], "edgecolor": "0.4", "hatch": hatch, "linewidth": 0.7}
            axis.barh(range(len(counts)), column, left=left, label=name, **style)
            for y, (start, count) in enumerate(zip(left, column)):
                if count:
                    box = {"facecolor": "white", "edgecolor": "none", "pad": 1.2}
                    axis.text(start + count / 2, y, f"{count}", ha="center", va="center", fontsize="small", bbox=box)
            left += column.to_numpy()
        axis.set_yticks(range(len(counts)), [plain(name) for name in counts.index])
        axis.set(xlabel=xlabel, ylabel=counts.index.name or "", xlim=(0, left.max()))
        axis.invert_yaxis()
        legend(figure, axis)
    rows = (
        f"{name}: " + ", ".join(f"{count} {kind}" for kind, count in row.items() if count)
        for name, row in counts.iterrows()
    )
    return described(figure, f"Stacked bars, {xlabel} by kind. {'; '.join(rows)}.")


def _one_dataset(table: pd.DataFrame, metrics: list[str]) -> pd.DataFrame:
    """The final rows of a table, which must be of one data set and profile and have the metrics."""
    rows = tables.final_rows(table)
    for name in ("dataset", "profile"):
        found = set(rows[name])
        check(len(found) <= 1, f"table mixes several values of {name}: {sorted(found)}; filter it to one")
    absent = [metric for metric in metrics if metric not in set(rows["metric"])]
    check(metrics and not absent, f"metrics: the table has no {absent}, it has {listed(rows['metric'])}")
    return rows


def _where(rows: pd.DataFrame) -> str:
    return ", ".join(plain(name) for name in (rows["dataset"].iloc[0], rows["backbone"].iloc[0]) if name)


def _statistics(rows: pd.DataFrame) -> str:
    """What is drawn, and n."""
    counts = rows.groupby(["method", "setting", "metric"])["seed"].nunique()
    if counts.max() == 1:
        return "one seed"
    interval = ", 95 % t intervals" if counts.max() >= MIN_SEEDS else ""
    n = f"{counts.min()}" + (f" to {counts.max()}" if counts.max() > counts.min() else "")
    unit = "repetitions" if set(rows["dataset"]) == {tables.SYNTHETIC} else "seeds"
    return f"means{interval} and single runs, n = {n} {unit}"


# --- lines ------------------------------------------------------------------------------------------------------------


def lines(
    series: Mapping[str, tuple],
    xlabel: str,
    ylabel: str,
    *,
    logx: bool = False,
    logy: bool = False,
    references: Mapping[str, float] | None = None,
    title: str = "",
    names: Names = PLAIN,
) -> Figure:
    """Numerical studies: {name: (x, y) or (x, y, low, high)} as lines with a band; references are horizontal lines."""
    check(len(series) > 0, "series is empty")
    for name, arrays in series.items():
        alike = len(arrays) in (2, 4) and len({len(array) for array in arrays}) == 1
        check(alike, f"series[{name!r}] must be (x, y) or (x, y, low, high)")
    with panels(1, 3.6, width=6.5) as (figure, (axis,)):
        for i, (name, (x, y, *band)) in enumerate(series.items()):
            shade, shape, dashes = OTHERS[i % len(OTHERS)], MARKERS[i % len(MARKERS)], ("-", "--", "-.", ":")[i % 4]
            if names.colors.get(name):
                shade, shape, dashes = names.color(name), names.marker(name), "-"
            marker = None if len(x) > 30 else shape
            axis.plot(x, y, color=shade, linestyle=dashes, marker=marker, markersize=5, label=name)
            if band:
                axis.fill_between(x, *band, color=shade, alpha=0.2, linewidth=0)
        for name, height in (references or {}).items():
            axis.axhline(height, color="black", linestyle="--", linewidth=1)
            at: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "ha": "right"}
            axis.annotate(name, (1, height), (-3, 3), fontsize="small", **at)
        axis.set(xlabel=xlabel, ylabel=ylabel, title=title)
        axis.set(xscale="log" if logx else "linear", yscale="log" if logy else "linear")
        _ticks_at(axis, sorted({float(level) for x, *_ in series.values() for level in x}))
        beside: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1, 0.5)}  # many would cover the lines
        axis.legend(fontsize="small", **(beside if len(series) > 6 else {}))
    return described(figure, " ".join(filter(None, (title, f"{ylabel} against {xlabel}.", _lines_said(axis)))))


def curves(series: Mapping[str, Sequence], *, names: Names = PLAIN) -> Figure:
    """The training loss over steps, {method: losses (steps,)}, and its running mean."""
    check(len(series) > 0, "series is empty")
    with panels(1, 3.4, width=6.5) as (figure, (axis,)):
        for name, values in series.items():
            run = np.asarray(values, dtype=float)
            check(run.ndim == 1 and len(run) > 0, f"series[{name!r}]: values must be (steps,), got {run.shape}")
            _smoothed(axis, [np.stack([np.arange(1, len(run) + 1), run])], name, names)
        axis.set(xlabel="step", ylabel="training loss")
        axis.legend(fontsize="small")
    return described(figure, f"training loss against step. {_lines_said(axis)}")


def training_curves(finished: Sequence, *, names: Names = PLAIN) -> Figure:
    """The loss against the steps, a panel per trained method with a scale of its own: every run and their running mean.

    finished: results of runs, such as a main comparison's; those without training, those of a further setting, of
    another protocol than the first run and of folds but the first are left out. A method whose mean loss falls, from
    the last fifth of the steps but one to the last, by over a twentieth of its whole fall has not converged: its title
    says "still falling".
    """
    runs_of: dict[str, list[np.ndarray]] = {}
    first = min((run.spec.fold for run in finished if run.spec.fold is not None), default=None)
    for run in finished:
        shown = run.spec.protocol == finished[0].spec.protocol and run.spec.fold in (None, first)
        if run.spec.loss and shown and not run.spec.setting:
            runs_of.setdefault(run.spec.method, []).append(np.asarray(run.curve, dtype=float))
    check(runs_of, "finished has no run that was trained without a setting")
    columns, said = min(3, len(runs_of)), []
    rows = -(-len(runs_of) // columns)
    with panels(columns, 1.75 * rows + 0.4, width=2.5 * columns, rows=rows) as (figure, axes):
        for axis, (method, runs) in zip(axes, runs_of.items()):
            state = _convergence(_smoothed(axis, runs, method, names))
            axis.set_title(f"{method}: {state}", fontsize="medium")
            axis.set(xlabel="step")
            said.append(f"{_lines_said(axis).removesuffix('.')}, {state}")
        for axis in axes[::columns]:
            axis.set_ylabel("training loss")
        for axis in axes[len(runs_of) :]:
            axis.axis("off")
    return described(figure, f"Training loss against steps. {'; '.join(said)}.")


def _smoothed(axis: Axes, runs: Sequence[np.ndarray], method: str, names: Names) -> np.ndarray:
    """Draw runs (2, steps), steps and losses, and the running mean of their mean loss, which is returned (steps,)."""
    for run in runs:
        axis.plot(*run, color=names.color(method), alpha=0.3, linewidth=0.7)
    length = min(run.shape[1] for run in runs)
    mean = np.mean([run[:, :length] for run in runs], axis=0)
    window = max(1, length // 25)
    steps, losses = (np.convolve(each, np.full(window, 1 / window), mode="valid") for each in mean)
    axis.plot(steps, losses, color=names.color(method), label=method)
    return mean[1]


def _convergence(losses: np.ndarray) -> str:
    """Whether a loss still falls at the end of its steps, in words for a title; losses (steps,)."""
    fifth = max(1, len(losses) // 5)
    first, before, last = losses[:fifth].mean(), losses[-2 * fifth : -fifth].mean(), losses[-fifth:].mean()
    if len(losses) < 10 or last >= first:
        return "too short to say" if len(losses) < 10 else "did not fall"
    return "still falling" if before - last > 0.05 * (first - last) else "levelled off"


# --- what is said of the drawn ----------------------------------------------------------------------------------------


def _ticks_at(axis: Axes, levels: Sequence[float], unit: float = 1) -> None:
    """Ticks where something was measured, unless that is at many places; unit: what a level is multiplied with."""
    if len(levels) <= 8:
        axis.set_xticks(levels, [f"{unit * level:g}" for level in levels])
        axis.minorticks_off()


def _lines_said(axis: Axes) -> str:
    """Where every line of a legend begins and ends."""
    said = []
    for line in axis.lines:
        if not str(line.get_label()).startswith("_"):
            x, y = np.asarray(line.get_xdata(), float), np.asarray(line.get_ydata(), float)
            ends = (f"{_number(y[i])} at {_number(x[i])}" for i in (0, -1))
            said.append(f"{line.get_label()}: from " + " to ".join(ends))
    return "; ".join(said) + "."


def _number(value: float) -> str:
    if abs(value) < 10:
        return f"{value:.3g}"
    return f"{value:.1f}".removesuffix(".0") if abs(value) >= 100 else f"{value:.1f}"
