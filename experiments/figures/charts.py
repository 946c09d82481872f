"""Charts of numbers: dots and ablations of tables, and lines.

Filled marks and lines are means over seeds. From MIN_SEEDS seeds on there are 95 % t intervals; small circles are
single seeds, of fewer than MANY. Published values are hollow. `names` says how a paper calls and colours things.
"""

import itertools
import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.transforms import ScaledTranslation

from experiments.analysis import stored, tables
from experiments.analysis.statistics import MIN_SEEDS, t_interval
from experiments.analysis.tables import CALLED, FEATURES, START
from experiments.figures import style
from experiments.figures.style import PLAIN, Names, check, described, legend, listed, number, panels, plain, ticks_at

OTHERS = ["#000000", "#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE"]  # lines that are not a method's
FLOORS = {FEATURES: "--", START: ":"}  # lines of networks before training
MANY = 10  # from so many seeds on the interval says it, and circles would cover it
SHARES = ("label_noise",)  # settings that are fractions and shown in percent


def dots(
    table: pd.DataFrame, metrics: Sequence[str], published: pd.DataFrame | None = None, *, names: Names = PLAIN
) -> Figure:
    """A panel per metric, a dot per method and setting, sorted by the first metric; means stand right of the panels.

    The axis spans what was trained. The network before training is a line, dashed with its features and dotted with the
    new head, or an arrow where it lies far outside. A metric that is the same everywhere stands in the title.

    table: of one data set, profile and protocol. published: columns dataset, method, metric, value; in a panel beside
    that of the same metric, since another data set has another scale. ValueError names what is missing or mixed.
    """
    rows = tables.of_one_dataset(table, metrics).dropna(subset="value")
    values = {key: group.to_numpy() for key, group in rows.groupby(["method", "setting", "metric"])["value"]}
    keys = list(dict.fromkeys(zip(rows["method"], rows["setting"])))
    # networks before training, where one has no several settings and something else is there
    floors = [key for key in keys if key[0] in FLOORS and [method for method, _ in keys].count(key[0]) == 1]
    floors = floors if len(floors) < len(keys) else []
    order = [key for key in dict.fromkeys(key[:2] for key in values) if key not in floors]
    order.sort(key=lambda key: values.get((*key, metrics[0]), np.array([-np.inf])).mean())
    methods = [method for method, _ in order]
    theirs: dict[str, pd.DataFrame] = {}
    if published is not None:
        known = published[published["method"].isin(methods) & published["metric"].isin(metrics)]
        check(len(known) > 0, f"published has no row of {listed(metrics)} and a method in {listed(methods)}")
        theirs = dict(list(known.groupby("metric")))
    common, dot_names = _short_names(order, names)
    same = {metric: of[0] for metric, of in rows.groupby("metric")["value"].unique().items() if len(of) == 1}
    drawn = [metric for metric in metrics if metric not in same] or metrics
    shown = [(metric, part) for metric in drawn for part in ("ours", "published")[: 1 + (metric in theirs)]]
    title = f"{plain(stored.setup_in_words(rows))}{common}\n{_statistics(rows)}"
    title += "".join(f"; {names.label(metric)}: {number(value)} in all" for metric, value in same.items())
    height = 0.3 * len(order) + 0.9
    with panels(len(shown), height, 6.8, most=min(2, len(shown)), extra=0.6, sharey=True) as (figure, axes):
        for axis, (metric, part) in zip(axes, shown):
            axis.set_xlabel(names.label(metric))
            if part == "published":
                look: dict[str, Any] = {"s": 34, "facecolor": "none", "edgecolor": "black", "zorder": 4}
                for (dataset, some), shape in zip(theirs[metric].groupby("dataset"), itertools.cycle("Ds^v")):
                    axis.scatter(some["value"], some["method"].map(methods.index), label=dataset, marker=shape, **look)
                axis.set_title("published", fontsize="small")
                continue
            by_row = {y: values[*key, metric] for y, key in enumerate(order) if (*key, metric) in values}
            for y, measured in by_row.items():
                _dot(axis, y, measured, names, methods[y])
            before = {key[0]: values[*key, metric].mean() for key in floors if (*key, metric) in values}
            _span(axis, [*by_row.values()], before)
        axes[0].set_yticks(range(len(order)), [plain(name) for name in dot_names])
        axes[0].set_ylim(-0.6, len(order) - 0.4)
        figure.suptitle(title, fontsize="medium")
        legend(figure, *axes)
    return described(figure, f"Dots of {listed(map(names.label, metrics))} by method: {title}.")


def _short_names(order: Sequence[tuple[str, str]], names: Names) -> tuple[str, list[str]]:
    """The settings that all bars share, for the title, and the names of the bars without them."""
    parts = [tables.settings_of(setting).items() for _, setting in order]
    shared = [pair for pair in parts[0] if all(pair in other for other in parts)]
    own = [[_said(*pair, names) for pair in other if pair not in shared] for other in parts]
    common = "".join(f", {_said(*pair, names)}" for pair in shared)
    return common, [", ".join([CALLED.get(method, method), *words]) for (method, _), words in zip(order, own)]


def _said(name: str, value: float | str, names: Names) -> str:
    """A setting as a reader says it: numbers keep their name, a word stands for itself."""
    if name in SHARES:
        return f"{100 * float(value):g} % {names.label(name).removesuffix(' (%)')}"
    if value == "none":
        return f"no {names.label(name)}"
    return value if isinstance(value, str) else f"{style.symbol(name)} = {value:g}"


def _dot(axis: Axes, y: float, values: np.ndarray, names: Names, method: str) -> None:
    """The mean of a row, its single runs if these are few, and its interval from MIN_SEEDS on; the mean as a number
    right of the panel, where nothing is drawn."""
    if len(values) >= MIN_SEEDS:
        axis.plot(t_interval(values), [y, y], color="0.15", linewidth=1.5, zorder=5)
    if 1 < len(values) < MANY:
        single: dict[str, Any] = {"s": 13, "facecolor": "white", "edgecolor": "0.4", "linewidth": 0.7}
        axis.scatter(values, np.full(len(values), y), zorder=3, **single)
    mean: dict[str, Any] = {"s": 44, "edgecolor": "0.2", "linewidth": 0.6, "zorder": 4}  # pale ones too are seen
    axis.scatter([values.mean()], [y], marker=names.marker(method), facecolor=names.color(method), **mean)
    where: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "xytext": (3, 0), "textcoords": "offset points"}
    axis.annotate(number(values.mean()), (1, y), va="center", fontsize="small", **where)


def _span(axis: Axes, rows: Sequence[np.ndarray], floors: Mapping[str, float]) -> None:
    """Limits that hold all that is drawn of the rows, and lines at the floors that are not far outside, or at all where
    there is little else to compare with; else there is an arrow to them."""
    drawn = [values for values in rows if len(values) < MANY]
    ends = np.concatenate([*drawn, *(t_interval(values) for values in rows if len(values) >= MIN_SEEDS)])
    low, high = ends.min(), ends.max()
    width = (high - low) or 0.1 * abs(high) or 1.0
    reach = 0.6 * width if len(rows) > 2 else math.inf
    near = [value for value in floors.values() if low - reach < value < high + reach]
    low, high = min([low, *near]), max([high, *near])
    margin = 0.07 * ((high - low) or width)
    axis.set_xlim(low := low - margin, high := high + margin)
    axis.locator_params(axis="x", nbins=5)  # more of them run into one another
    for line, (name, value) in enumerate(floors.items()):
        text, place = f"{CALLED[name]} {number(value)}", np.clip((value - low) / (high - low), 0, 1)
        if low <= value <= high:
            axis.axvline(value, color="0.35", linestyle=FLOORS[name], linewidth=1.2, zorder=1)
        else:
            text = f"← {text}" if value < low else f"{text} →"
        side = "left" if place < 0.25 else "right" if place > 0.75 else "center"
        above: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "ha": side}
        axis.annotate(text, (place, 1), (0, 3 + 11 * line), fontsize="small", color="0.25", **above)


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
    """A metric against a setting `x`, panels one below another: our change from a reference level, paired by seed, with
    the published changes in black where they are known; our values.

    published: {"CUB-200-2011": {0: 68.2, 3: 73.4}, ...}; of other data and networks. reference: a level that all curves
    have; None: the panel of values alone. xscale: on "log" a level 0 has a linear piece left of the others.
    """
    rows = tables.of_one_dataset(table, [metric])
    ours = _by_level(rows, x, names)
    theirs = published or {}
    common = set.intersection(*(set(curve) for curve in (*theirs.values(), *(curve for *_, curve in ours))))
    told = reference in common or (reference is None and not theirs)
    check(told, f"reference: {reference} is no level of every curve; these are {sorted(common)}")
    theirs = {name: points for name, points in theirs.items() if len(points) > 1}  # the reference alone is no curve
    changes = [curve if reference is None else curve.sub(curve[reference], axis=0) for *_, curve in ours]
    level, title_of_x = names.label(metric), names.label(x)
    change = f"change of {level}" if "(%)" not in level else f"change of {metric} (points)"
    title = f"{plain(stored.setup_in_words(rows))}\n{_statistics(rows)}" + "; points shifted sideways" * (len(ours) > 1)
    same = reference is not None and all(np.allclose(changed.fillna(0), 0, atol=1e-12) for changed in changes)
    title += f"; {level}: {number(ours[0][-1].mean().mean())} at every level" * same
    drawn = [level] if reference is None else [change] if same else [change, level]
    with panels(len(drawn), 2.3, 6.5, most=1, extra=0.9, sharex=True) as (figure, axes):
        levels = sorted({level for *_, curve in ours for level in curve})
        if xscale == "log":  # before the curves, whose margins are those of the axis they are drawn on
            axes[0].set_xscale("symlog", linthresh=next(level for level in levels if level > 0))
        axes[0].margins(x=max(0.05, 0.8 / len(levels) ** 1.5))  # few levels stand away from the edges
        count = dict.fromkeys((method for _, method, _ in ours), 0)
        apart = min(30, 110 / max(len(ours) - 1, 1)) / len(levels)  # points; all of them stay within the margin
        for i, ((name, method, curve), changed) in enumerate(zip(ours, changes)):
            # settings of one method differ in dashes, shade and mark, and no two curves stand in one place
            mark = style.MARKERS[(style.MARKERS.index(names.marker(method)) + count[method]) % len(style.MARKERS)]
            color = to_rgb(names.color(method)) + (1 - 0.16 * (count[method] % 5),)
            how: dict[str, Any] = {"color": color, "marker": mark, "label": name}
            how["linestyle"] = FLOORS.get(method, ("-", ":", "-.", "--", (0, (8, 2)))[count[method] % 5])
            for axis, text in zip(axes, drawn):
                _curve(axis, changed if text == change else curve, aside=apart * (i - (len(ours) - 1) / 2), **how)
            count[method] += 1
        for axis, text in zip(axes, drawn):
            axis.set_ylabel(textwrap.fill(text, 26))  # panels are low
        figure.suptitle(title, fontsize="medium")
        marks = []
        for points, dashes, shape in zip(theirs.values(), itertools.cycle(("--", ":", "-.")), "Ds^vo"):
            where, heights = np.array(sorted(points.items()), dtype=float).T
            line = "none" if len(points) == 2 else dashes  # between two points nothing is known
            look: dict[str, Any] = {"linestyle": line, "marker": shape, "markerfacecolor": "none"}
            marks += axes[0].plot(where, heights - points[reference], color="black", **look)  # type: ignore[index]
        if marks:
            axes[0].legend(marks, [f"published, {name}" for name in theirs])
        axes[-1].set_xlabel(title_of_x)
        if reference is not None:
            axes[0].axhline(0, color="grey", linewidth=0.8, zorder=1)
            axes[-1].set_xlabel(f"{title_of_x}; changes are from {_said(x, reference, names)}")
        ticks_at(axes[0], levels, 100 if x in SHARES else 1)
        if len(ours) > 1:
            legend(figure, axes[0])
    return described(figure, f"{level} of ours{' and published' * bool(theirs)} against {title_of_x}: {title}.")


def _by_level(rows: pd.DataFrame, x: str, names: Names) -> list[tuple[str, str, pd.DataFrame]]:
    """(name, method, values (seeds, levels of x)) of every method and combination of its other settings."""
    named = rows["setting"].map(tables.settings_of)
    settings = [tables.DEFAULTS | setting for setting in named]
    others = [", ".join(_said(name, setting[name], names) for name in setting if name != x) for setting in named]
    rows = rows.assign(x=[setting.get(x) for setting in settings], others=others)
    numeric = rows[[isinstance(setting.get(x), float) for setting in settings]].set_index(["seed", "x"])
    check(len(numeric) > 0, f"x: no row has a numeric setting {x!r}, settings are {listed(rows['setting'])}")
    return [
        (", ".join(filter(None, (CALLED.get(method, method), rest))), method, group["value"].unstack("x"))
        for (method, rest), group in numeric.groupby(["method", "others"], sort=False)
    ]


def _curve(axis: Axes, by_seed: pd.DataFrame, *, color: tuple, aside: float, **how: Any) -> None:
    """Means of a (seeds, levels) frame, few seeds as rings, t intervals, so many points beside their level."""
    if by_seed.shape[1] == 2:  # between two levels nothing is known
        how |= {"linestyle": "none"}
    lines = axis.plot(by_seed.columns, by_seed.mean(), color=color, markersize=5, linewidth=1.5, **how)
    for level in by_seed:
        values = by_seed[level].dropna().to_numpy()
        if len(values) >= MIN_SEEDS:
            lines += axis.plot([level, level], t_interval(values), color=color, linewidth=1.5)
    few = by_seed.loc[:, by_seed.count() < MANY].melt(var_name="level").dropna()
    if len(few):
        rings = axis.scatter(few["level"], few["value"], s=16, facecolor="none", edgecolor=color, linewidth=0.9)
    # shifted only now, after the axis has taken the limits of the data
    place = axis.transData + ScaledTranslation(aside / 72, 0, axis.figure.dpi_scale_trans)
    for line in lines:
        line.set_transform(place)
    if len(few):
        rings.set_offset_transform(place)


def _statistics(rows: pd.DataFrame) -> str:
    """What is drawn, and n."""
    counts = rows.groupby(["method", "setting", "metric"])["seed"].nunique()
    if counts.max() == 1:
        return "one seed"
    interval = ", 95 % t intervals" if counts.max() >= MIN_SEEDS else ""
    n = f"{counts.min()}" + (f" to {counts.max()}" if counts.max() > counts.min() else "")
    unit = "repetitions" if set(rows["dataset"]) == {tables.SYNTHETIC} else "seeds"
    single = " and single runs" if counts.min() < MANY else ""
    return f"means{interval}{single}, n = {n} {unit}"


def lines(
    series: Mapping[str, tuple],
    xlabel: str,
    ylabel: str,
    *,
    logx: bool = False,
    logy: bool = False,
    references: Mapping[str, float] | None = None,
    title: str = "",
    band: str = "",
    names: Names = PLAIN,
) -> Figure:
    """Numerical studies: {name: (x, y) or (x, y, low, high)} as lines with a band; references are horizontal lines.
    band: what a line with a band and the band are, "mean, range over seeds"."""
    check(band or all(len(arrays) == 2 for arrays in series.values()), "band: say what the lines and their bands are")
    with panels(1, 3.6, width=6.5) as (figure, (axis,)):
        for i, (name, (x, y, *ends)) in enumerate(series.items()):
            shade, shape, dashes = names.color(name), names.marker(name), "-"
            if not names.colors.get(name):  # it is no method
                shade, shape = OTHERS[i % len(OTHERS)], style.MARKERS[i % len(style.MARKERS)]
                dashes = ("-", "--", "-.", ":")[i % 4]
            marker = None if len(x) > 30 else shape
            every = (i % 3, 3) if len(x) > 12 else 1  # lines that coincide still show their marks
            axis.plot(x, y, color=shade, linestyle=dashes, marker=marker, markersize=5, markevery=every, label=name)
            if ends:
                axis.fill_between(x, *ends, color=shade, alpha=0.2, linewidth=0)
        for name, height in (references or {}).items():
            axis.axhline(height, color="black", linestyle="--", linewidth=1)
            at: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "ha": "right"}
            at["bbox"] = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5}  # lines may cross it
            axis.annotate(name, (1, height), (-3, 3), fontsize="small", **at)
        axis.set(xlabel=xlabel, ylabel=ylabel, title=title)
        axis.set(xscale="log" if logx else "linear", yscale="log" if logy else "linear")
        ticks_at(axis, sorted({float(level) for x, *_ in series.values() for level in x}))
        # inside it would cover lines
        axis.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5), title=band, title_fontsize="small")
    shown = f"{ylabel} against {xlabel}" + f" ({band})" * bool(band)
    return described(figure, f"{title} {shown}.".strip())
