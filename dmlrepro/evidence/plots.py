"""Every figure of the notebooks, in one style.

A method has one colour and one marker in every figure (COLORS, out of a PALETTE for colour-blind readers, and
`marker`; a method that is not listed gets both by its name). Bars and lines are means over seeds, small dots are single
seeds; from MIN_SEEDS seeds on there are 95 % t intervals too. Published values lie in panels of their own. Functions
check plain tables and arrays, draw, and return the matplotlib Figure, left open so that a notebook shows it with a
description of the data as alternative text. Figures and thumbnails are small: a notebook is read on the web.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import textwrap
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dmlrepro.evidence import tables
from dmlrepro.evidence.statistics import MIN_SEEDS, t_interval

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["COLORS", "ablation", "bars", "color", "confused", "curves", "embedding_map", "field", "lines", "retrieved"]
__all__ += ["pieces", "proxy_maps", "samples", "tallies", "training_curves", "tsne"]

# Okabe and Ito's colours, and two of equal weight, then Paul Tol's
PALETTE = ["#D55E00", "#E69F00", "#0072B2", "#56B4E9", "#009E73", "#CC79A7", "#7A5C1E", "#C9B800", "#8A8A8A"]
PALETTE += ["#882255", "#CC6677", "#117733", "#44AA99", "#88CCEE", "#332288", "#999933", "#AA4499"]
PALETTE += ["#4B4B4B", "#661100", "#6699CC", "#DDCC77"]
COLORS: dict[str, str] = {}  # of methods by name; the records of papers/ add theirs when they are imported
OTHERS = ["#000000", "#4477AA", "#EE6677", "#228833", "#AA3377", "#BBBBBB"]  # curves that are not a method's
SHARES = ("label_noise",)  # settings that are fractions and shown in percent
RIGHT, WRONG = "#1B8A3A", "#C1272D"
DASHES = ("-", ":", "-.", "--")
MARKERS = "osD^vPX*<>ph"
DPI = 84

WIDTH = 9.0  # inches: the text column of a notebook
LABELS: dict[str | tuple[str, str], str] = {
    # axis titles of metrics and settings; the records of papers/ add theirs as well, under (paper, name) where another
    # paper means something else by the name
    "P@1": "precision@1 (%)",
    "RP": "R-precision (%)",
    "MAP@R": "MAP@R (%)",
    "mAP@1000": "mAP@1000 (%)",
    "NMI": "NMI (%)",
    "label_noise": "wrong training labels (%)",
    "dim": "embedding dimensions",
}


def color(method: str) -> str:
    """The colour of a method, the same in every figure."""
    return COLORS.get(method) or PALETTE[zlib.crc32(method.encode()) % len(PALETTE)]


def marker(method: str) -> str:
    """The marker of a method, the same in every figure; with the colour it tells the methods apart."""
    shade = color(method)
    place = PALETTE.index(shade) if shade in PALETTE else zlib.crc32(shade.encode())
    return MARKERS[place % len(MARKERS)]


def _label(name: str, paper: str = "") -> str:
    """A metric or setting of a paper as an axis title."""
    if found := LABELS.get((paper, name)) or LABELS.get(name):
        return found
    return f"recall@{name[2:]} (%)" if name.startswith("R@") else name.replace("_", " ")


# --- tables -----------------------------------------------------------------------------------------------------------


def bars(table: pd.DataFrame, metrics: Sequence[str], published: pd.DataFrame | None = None) -> Figure:
    """A panel per metric, a bar per method and setting, sorted by the first metric; means stand right of the panels.

    table: tidy results of one data set and profile.
    published: rows with columns dataset, method, metric, value, methods named as in the table; in panels of their own.
    ValueError names what is missing or mixed.
    """
    rows, metrics = _one_dataset(table), [metrics] if isinstance(metrics, str) else list(metrics)
    _check_metrics(rows, metrics)
    if published is not None:
        _check_columns(published, "published", ("dataset", "method", "metric", "value"))
        published = published[published["method"].isin(rows["method"]) & published["metric"].isin(metrics)]
        _check(len(published) > 0, f"published has no row of a method in {_names(rows['method'])}")
    values = {key: group.to_numpy() for key, group in rows.groupby(["method", "setting", "metric"])["value"]}
    order = sorted({key[:2] for key in values}, key=lambda key: values.get((*key, metrics[0]), np.array([-1])).mean())
    theirs = {}
    if published is not None:
        theirs = {metric: published[published["metric"] == metric] for metric in metrics}
        theirs = {metric: points for metric, points in theirs.items() if len(points)}
    common, names = _short_names(order)
    said = []
    with _style():
        panels = len(metrics) + len(theirs)
        width = 6.8 if panels < 3 else WIDTH  # narrow figures keep their letters on a phone
        figure, axes = _subplots(panels, 0.34 * len(order) + 1.5, width=width, sharey=True)
        for axis, metric in zip(axes, metrics):
            for y, (method, setting) in enumerate(order):
                if (method, setting, metric) in values:
                    _bar(axis, y, values[method, setting, metric], color(method))
            found = [(name, values.get((*key, metric))) for name, key in zip(names, order)]
            said.append(
                _label(metric) + ": " + ", ".join(f"{n} {_number(v.mean())}" for n, v in found if v is not None)
            )
            top = rows.loc[rows["metric"] == metric, "value"].max()
            axis.set(xlim=(0, 1.05 * top), xlabel=_label(metric))
            axis.grid(False, axis="y")
        for axis, (metric, points) in zip(axes[len(metrics) :], theirs.items()):
            _diamonds(axis, points, [method for method, _ in order])
            axis.set(xlim=(0, 1.1 * points["value"].max()), xlabel=_label(metric), title="published")
            told = (f"{row.method} {_number(row.value)} on {row.dataset}" for row in points.itertuples())
            said.append(f"published {_label(metric)}: " + ", ".join(told))
        axes[0].set_yticks(range(len(order)), [_plain(name) for name in names])
        title = f"{_where(rows)}{common}: {_statistics(rows)}"
        figure.suptitle(title, fontsize="medium")
        _legend_below(figure, axes[-1])
    return _described(figure, f"Bar chart. {title}. " + ". ".join(said))


def _short_names(order: Sequence[tuple[str, str]]) -> tuple[str, list[str]]:
    """The settings that all bars share, for the title, and the names of the bars without them."""
    parts = [[each for each in setting.split(";") if each] for _, setting in order]
    shared = [each for each in parts[0] if all(each in other for other in parts)]
    words = [[_said(each) for each in other if each not in shared] for other in parts]
    return "".join(f", {_said(each)}" for each in shared), [
        ", ".join([method, *rest]) for (method, _), rest in zip(order, words)
    ]


def _said(setting: str) -> str:
    """A setting as a reader says it: numbers keep their name, a word stands for itself."""
    name, _, value = setting.partition("=")
    if name in SHARES:
        return f"{100 * float(value):g} % {_label(name).removesuffix(' (%)')}"
    if value == "none":
        return f"no {_label(name)}"
    return f"{name} = {value}" if tables.level_of(setting) is not None else value


def _statistics(rows: pd.DataFrame) -> str:
    if _seeds(rows) == "one seed":
        return "one seed"
    counts = rows.groupby(["method", "setting", "metric"])["seed"].nunique()
    interval = ", 95 % t intervals" if counts.max() >= MIN_SEEDS else ""
    return f"means{interval} and single runs, {_seeds(rows)}"


def _number(value: float) -> str:
    return (
        f"{value:.1f}".removesuffix(".0")
        if abs(value) >= 100
        else f"{value:.1f}"
        if abs(value) >= 10
        else f"{value:.3g}"
    )


def _bar(axis: Axes, y: float, values: np.ndarray, shade: str) -> None:
    mean = values.mean()
    axis.barh(y, mean, height=0.72, color=shade, linewidth=0, zorder=2)
    if len(values) >= MIN_SEEDS:
        axis.plot(np.maximum(t_interval(values), 0), [y, y], color="black", linewidth=1.3, zorder=3)
    if len(values) > 1:
        dots: dict[str, Any] = {"s": 12, "color": "white", "edgecolor": "black", "linewidth": 0.7, "zorder": 3}
        axis.scatter(values, np.full(len(values), y - 0.18), **dots)
    where: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "xytext": (3, 0), "textcoords": "offset points"}
    axis.annotate(_number(mean), (1, y), va="center", fontsize="small", **where)  # right of the panel nothing is drawn


def _diamonds(axis: Axes, published: pd.DataFrame, methods: list[str]) -> None:
    for (dataset, rows), shape in zip(published.groupby("dataset"), itertools.cycle("Dsph")):
        points = [(x, methods.index(method)) for method, x in zip(rows["method"], rows["value"])]
        style: dict[str, Any] = {"s": 30, "facecolor": "none", "edgecolor": "black", "zorder": 4, "marker": shape}
        axis.scatter(*zip(*points), label=dataset, **style)


def ablation(
    table: pd.DataFrame,
    x: str,
    metric: str,
    published: Mapping[str, Mapping[float, float]] | None = None,
    *,
    reference: float | None = None,
    xscale: str = "linear",
) -> Figure:
    """A metric against a setting, panels one below another: our change from a reference level, paired by seed; our
    values; and, where they are known, the published changes, which another data set or network made.

    x: the setting's name in `table`, e.g. "alpha" for rows with setting "alpha=3".
    published: {"CUB-200-2011": {0: 68.2, 3: 73.4}, ...}; without it there are our two panels only.
    reference: the level to compare with, one that all curves have, such as the method's default; by default the
        published optimum among those, or the lowest level.
    xscale: "linear" or "log"; a level 0 on a logarithmic axis is drawn on a linear piece left of the smallest other.
    """
    rows = _one_dataset(table)
    _check_metrics(rows, [metric])
    ours = _by_level(rows[rows["metric"] == metric], x)
    title_of_x = _label(x, rows["paper"].iloc[0])
    published = published or {}
    reference = _reference(published, ours, reference)
    change = f"change of {_label(metric)}" if "(%)" not in _label(metric) else f"change of {metric} (points)"
    with _style():
        panels = 3 if any(len(points) > 1 for points in published.values()) else 2
        figure, axes = _subplots(1, 2.3 * panels + 0.7, width=6.5, rows=panels, sharex=True)
        levels = sorted({level for *_, curve in ours for level in curve})
        if xscale == "log":  # before the curves, whose margins are those of the axis they are drawn on
            axes[0].set_xscale("symlog", linthresh=next(level for level in levels if level > 0))
        drawn = dict.fromkeys((method for _, method, _ in ours), 0)
        for name, method, curve in ours:
            style = {"label": name, "linestyle": DASHES[drawn[method] % len(DASHES)]}  # settings of one method differ
            _curve(axes[0], curve.sub(curve[reference], axis=0), method, style)
            _curve(axes[1], curve, method, style)
            drawn[method] += 1
        change, level = (textwrap.fill(text, 26) for text in (change, _label(metric)))  # panels are low
        axes[0].set(ylabel=change, title=f"ours: {_where(rows)}, {_statistics(rows)}")
        axes[1].set(ylabel=level)
        if panels == 3:
            for (name, points), dashes in zip(published.items(), itertools.cycle(("--", ":", "-."))):
                where, heights = np.array(sorted(points.items()), dtype=float).T
                if len(points) > 1:  # the reference alone is no curve
                    dashed: dict[str, Any] = {"linestyle": dashes, "color": "black", "marker": "."}
                    axes[2].plot(where, heights - points[reference], label=name, **dashed)
            axes[2].set(ylabel=change, title="published")
            axes[2].legend(fontsize="small")
        for axis in axes[::2]:
            axis.axhline(0, color="grey", linewidth=0.8, zorder=1)
        _ticks_at(axes[0], levels, 100 if x in SHARES else 1)
        axes[-1].set_xlabel(f"{title_of_x}; changes are from {_said(f'{x}={reference:g}')}")
        if len(ours) > 1:
            _legend_below(figure, axes[0])
        if _label(metric).endswith("(%)"):
            low, high = axes[1].get_ylim()
            axes[1].set_ylim(max(low, 0), min(high, 100))
    said = [f"{title} against {title_of_x}. {_lines_said(axis)}" for axis, title in zip(axes, (change, _label(metric)))]
    said += [f"Published {change}. {_lines_said(axis)}" for axis in axes[2:]]
    return _described(figure, f"Line chart of {_where(rows)}, {_statistics(rows)}. " + " ".join(said))


def tallies(counts: pd.DataFrame, shades: Mapping[str, str], xlabel: str) -> Figure:
    """How many of each kind: a stacked bar per row of `counts`, a piece per column; numbers stand in the pieces.

    shades: {column: colour}; white pieces are told apart by their hatching.
    """
    _check(len(counts) > 0, "counts has no rows")
    absent = [name for name in counts if name not in shades]
    _check(not absent, f"shades has no colour for {absent}")
    hatches = itertools.cycle(("", "///", "..."))
    with _style(grid=False):
        figure, (axis,) = _subplots(1, 0.4 * len(counts) + 1.6, width=6.8)
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
        axis.set_yticks(range(len(counts)), [_plain(name) for name in counts.index])
        axis.set(xlabel=xlabel, ylabel=counts.index.name or "", xlim=(0, left.max()))
        axis.invert_yaxis()
        _legend_below(figure, axis)
    rows = (
        f"{name}: " + ", ".join(f"{count} {kind}" for kind, count in row.items() if count)
        for name, row in counts.iterrows()
    )
    return _described(figure, f"Stacked bars, {xlabel} by kind. {'; '.join(rows)}.")


def _ticks_at(axis: Axes, levels: Sequence[float], unit: float = 1) -> None:
    """Ticks where something was measured, unless that is at many places; unit: what a level is multiplied with."""
    if len(levels) <= 8:
        axis.set_xticks(levels, [f"{unit * level:g}" for level in levels])
        axis.minorticks_off()


def _by_level(rows: pd.DataFrame, x: str) -> list[tuple[str, str, pd.DataFrame]]:
    """(name, method, values (seeds, levels of x)) of every method and combination of its other settings."""
    settings = [tables.DEFAULTS | tables.settings_of(setting) for setting in rows["setting"]]
    others = [[each for each in text.split(";") if each.partition("=")[0] != x] for text in rows["setting"]]
    rows = rows.assign(
        x=[each.get(x) for each in settings], others=[", ".join(map(_said, filter(None, each))) for each in others]
    )
    found = rows[[isinstance(each.get(x), float) for each in settings]]
    _check(len(found) > 0, f"x: no row has a numeric setting {x!r}, settings are {_names(rows['setting'])}")
    return [
        (", ".join(filter(None, (method, rest))), method, group.pivot(index="seed", columns="x", values="value"))
        for (method, rest), group in found.groupby(["method", "others"], sort=False)
    ]


def _reference(published: Mapping, ours: list, asked: float | None) -> float:
    """The level asked for, or the published optimum; every curve must have it."""
    curves = [*(set(map(float, points)) for points in published.values()), *(set(curve) for *_, curve in ours)]
    common = set.intersection(*curves)
    _check(common, f"published and our curves have no level in common; ours: {[sorted(curve) for *_, curve in ours]}")
    _check(asked is None or asked in common, f"reference {asked} is not a level of every curve: {sorted(common)}")
    if asked is not None:
        return asked
    return max(common, key=lambda x: sum(points[x] for points in published.values())) if published else min(common)


def _curve(axis: Axes, by_seed: pd.DataFrame, method: str, style: Mapping[str, Any]) -> None:
    """Mean and single seeds of a (seeds, levels) frame, from MIN_SEEDS seeds on with a t interval."""
    levels = by_seed.columns.to_numpy(dtype=float)
    samples = [by_seed[level].dropna().to_numpy() for level in by_seed]
    means = np.array([sample.mean() for sample in samples])
    axis.plot(levels, means, color=color(method), marker=marker(method), markersize=5, linewidth=1.5, **style)
    for level, sample in zip(levels, samples):
        axis.scatter(
            np.full(len(sample), level), sample, s=16, facecolor="none", edgecolor=color(method), linewidth=0.9
        )
        if len(sample) >= MIN_SEEDS:
            axis.plot([level, level], t_interval(sample), color=color(method), linewidth=1)


# --- images -----------------------------------------------------------------------------------------------------------


def samples(rows: Sequence[Sequence], names: Sequence[str]) -> Figure:
    """Images of some classes, a row per class with its name. Images: uint8 (H, W), (H, W, 3) or (3, H, W)."""
    _check(len(rows) > 0 and len(rows) == len(names), f"names: {len(names)} names for {len(rows)} rows of images")
    with _style():
        figure, axis = _wall(len(rows), max(map(len, rows)), left=2.6)
        for y, (images, name) in enumerate(zip(rows, names)):
            axis.text(-0.15, y + 0.5, _short(name), ha="right", va="center", fontsize="small")
            for x, image in enumerate(images):
                _thumbnail(axis, x, y, image)
    return _described(figure, f"Rows of images: {_names(names)}.")


def retrieved(queries: Sequence, neighbours: Sequence[Sequence], correct: np.ndarray) -> Figure:
    """Queries in the first column, then their nearest gallery images in order: green frame and tick for the same class,
    red frame and cross for another.

    queries: Q images; neighbours: Q lists of K images; correct: bool (Q, K).
    """
    correct = np.asarray(correct, dtype=bool)
    shape = (len(queries), len(neighbours[0]) if len(neighbours) else 0)
    _check(shape[0] > 0 and correct.shape == shape, f"correct must have shape {shape}, got {correct.shape}")
    _check(all(len(row) == shape[1] for row in neighbours) and len(neighbours) == shape[0], "neighbours must be Q x K")
    with _style():
        figure, axis = _wall(shape[0], shape[1] + 1.25, top=0.35)
        axis.text(0.5, -0.1, "query", ha="center", fontsize="small")
        for x in range(shape[1]):
            axis.text(x + 1.75, -0.1, f"{x + 1}", ha="center", fontsize="small")
        for y, (query, row) in enumerate(zip(queries, neighbours)):
            _thumbnail(axis, 0, y, query)
            for x, (image, right) in enumerate(zip(row, correct[y])):
                _thumbnail(axis, x + 1.25, y, image, RIGHT if right else WRONG, "✓" if right else "✗")
    text = f"{shape[0]} query images, each with its {shape[1]} nearest images; {correct.sum()} of {correct.size} are of"
    return _described(figure, f"{text} the query's class.")


def confused(rows: Sequence[Sequence], names: Sequence[tuple[str, str, str]]) -> Figure:
    """Pairs of classes that are taken for each other, a row per pair: queries, each with its wrong nearest image.

    rows: for each pair of classes a list of (query image, neighbour image); names: for each pair the query's class, the
    neighbour's and how often. Without rows the figure says that nothing was confused.
    """
    _check(len(rows) == len(names), f"names: {len(names)} names for {len(rows)} pairs of classes")
    with _style():
        if not rows:
            figure, (axis,) = _subplots(1, 0.5, width=4.5)
            axis.text(0.5, 0.5, "every nearest image is of the query's class", ha="center", va="center")
            axis.axis("off")
            return _described(figure, "Every nearest image is of the query's class.")
        pairs = max(map(len, rows))
        figure, axis = _wall(len(rows), 2.3 * pairs - 0.3, left=3.9, top=0.35)
        for x in range(pairs):
            axis.text(2.3 * x + 0.5, -0.1, "query", ha="center", fontsize="small")
            axis.text(2.3 * x + 1.5, -0.1, "nearest", ha="center", fontsize="small")
        for y, (examples, (query, neighbour, share)) in enumerate(zip(rows, names)):
            text = f"{_short(query)}\ntaken for {_short(neighbour)}\n{share}"
            axis.text(-0.15, y + 0.5, text, ha="right", va="center", fontsize="small")
            for x, (image, found) in enumerate(examples):
                _thumbnail(axis, 2.3 * x, y, image)
                _thumbnail(axis, 2.3 * x + 1, y, found, WRONG, "✗")
    told = "; ".join(f"{query} taken for {neighbour}, {share}" for query, neighbour, share in names)
    return _described(figure, f"Images and their wrong nearest images: {told}.")


def _wall(height: float, width: float, left: float = 0.0, top: float = 0.0) -> tuple[Figure, Axes]:
    """An axis of unit cells, without frame, y downward."""
    cell = min(0.86, WIDTH / (width + left))
    figure, (axis,) = _subplots(1, cell * (height + top), width=cell * (width + left))
    axis.set(xlim=(-left, width), ylim=(height, -top), aspect="equal")
    axis.axis("off")
    return figure, axis


def _thumbnail(axis: Axes, x: float, y: float, image, frame: str | None = None, mark: str = "") -> None:
    from matplotlib.patches import Rectangle

    pixels = _pixels(image, 48)
    height, width = np.array(pixels.shape[:2]) / max(pixels.shape[:2]) * 0.88
    left, top = x + (1 - width) / 2, y + (1 - height) / 2
    axis.imshow(
        pixels, cmap="gray", vmin=0, vmax=255, extent=(left, left + width, top + height, top), interpolation="nearest"
    )
    if frame:
        axis.add_patch(Rectangle((left, top), width, height, fill=False, edgecolor=frame, linewidth=2.5))
        box = {"boxstyle": "round,pad=0.12", "facecolor": frame, "edgecolor": "none"}
        axis.text(left + width, top, mark, ha="right", va="top", color="white", fontsize=9, weight="bold", bbox=box)


def _pixels(image, size: int) -> np.ndarray:
    """uint8 (H, W) or (H, W, 3) of at most `size` pixels a side, in few colours, for a small PNG."""
    from PIL import Image

    pixels = np.asarray(image)
    if pixels.ndim == 3 and pixels.shape[-1] not in (1, 3) and pixels.shape[0] in (1, 3):
        pixels = np.moveaxis(pixels, 0, -1)
    pixels = pixels[..., 0] if pixels.ndim == 3 and pixels.shape[-1] == 1 else pixels
    _check(
        pixels.dtype == np.uint8 and (pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[-1] == 3)),
        f"images must be uint8 (H, W), (H, W, 3) or (3, H, W), got {pixels.dtype} {np.asarray(image).shape}",
    )
    picture = Image.fromarray(pixels)
    picture.thumbnail((size, size))
    return np.asarray(picture.quantize(32, dither=Image.Dither.NONE).convert(picture.mode))


# --- embeddings -------------------------------------------------------------------------------------------------------


def tsne(embeddings, seed: int = 0) -> np.ndarray:
    """t-SNE to two dimensions, (N, D) -> (N, 2), from a PCA start; at least 4 points. The same on the same machine."""
    from sklearn.manifold import TSNE

    points = np.asarray(embeddings, dtype=np.float32)
    _check(points.ndim == 2 and len(points) >= 4, f"embeddings must be (N, D) with N >= 4, got {points.shape}")
    perplexity = min(30.0, (len(points) - 1) / 3)
    return TSNE(perplexity=perplexity, init="pca", random_state=seed, n_jobs=1).fit_transform(points)


def embedding_map(xy: np.ndarray, labels: Sequence, images: Sequence | None = None) -> Figure:
    """Points (N, 2) in the colour and marker of their class; with images, as many thumbnails as fit without overlap."""
    xy, labels = np.asarray(xy, dtype=float), np.asarray(labels)
    _check(xy.ndim == 2 and xy.shape[1] == 2, f"xy must be (N, 2), got {xy.shape}")
    _check(len(labels) == len(xy), f"labels: {len(labels)} labels for {len(xy)} points")
    _check(images is None or len(images) == len(xy), f"images must be one per point, {len(xy)}")
    classes = list(dict.fromkeys(labels.tolist()))
    shades = _many_colors(len(classes))
    with _style():
        figure, (axis,) = _subplots(1, 5.2, width=WIDTH if len(classes) <= 24 else 6.5)
        for i, name in enumerate(classes):
            points = xy[labels == name]
            style = {"s": 22, "color": shades[i], "marker": MARKERS[i % len(MARKERS)], "linewidth": 0}
            axis.scatter(*points.T, label=_short(str(name)), **style)
        if images is not None:
            _scatter_images(axis, xy, images, [shades[classes.index(name)] for name in labels.tolist()])
        if len(classes) <= 24:
            axis.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small", title="class")
        axis.set(xlabel="t-SNE 1 (no unit)", ylabel="t-SNE 2 (no unit)", xticks=[], yticks=[])
        axis.set_title(f"{len(xy)} images of {len(classes)} classes")
    return _described(figure, f"t-SNE map of {len(xy)} images of {len(classes)} classes: {_names(classes)}.")


def proxy_maps(panels: Mapping[str, Mapping]) -> Figure:
    """Samples and proxies in the plane, a panel per state: {title: points (N, 2), labels (N,) 0, 1, ..., converged and
    next (C, M, 2)}. Dots are samples in the colour of their class, squares its converged proxies, circles those of the
    next problem."""
    _check(len(panels) > 0, "panels is empty")
    panels = {title: {name: np.asarray(array) for name, array in panel.items()} for title, panel in panels.items()}
    kinds = {"converged": ("s", 46), "next": ("o", 60)}
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    with _style():
        figure, axes = _subplots(columns, 3.4 * rows + 0.4, width=3.7 * columns, rows=rows)
        for axis, (title, panel) in zip(axes, panels.items()):
            _check(panel["points"].shape == (len(panel["labels"]), 2), f"{title}: points must be (N, 2), one per label")
            shades = _many_colors(len(panel["converged"]))
            for number, shade in enumerate(shades):
                samples = panel["points"][panel["labels"] == number]
                axis.scatter(samples[:, 0], samples[:, 1], s=5, color=shade, alpha=0.35, linewidth=0)
                for name, (shape, size) in kinds.items():
                    fill, edge = (shade, "black") if name == "converged" else ("none", shade)
                    style: dict[str, Any] = {"marker": shape, "s": size, "facecolor": fill, "edgecolor": edge}
                    label = f"{name} proxies" if not number else None
                    axis.scatter(*panel[name][number].T, label=label, linewidth=1.5, **style)
            axis.set_title(_plain(title))
            axis.set_aspect("equal", adjustable="datalim")
            axis.set(xlabel="coordinate 1 (no unit)", ylabel="coordinate 2 (no unit)")
        for axis in axes[len(panels) :]:
            axis.remove()
        _legend_below(figure, axes[0])
    counts = f"{len(shades)} classes with {panel['converged'].shape[1]} proxies each"
    return _described(figure, f"Samples, converged and next proxies of {counts}, a panel per state: {_names(panels)}.")


def _many_colors(count: int) -> list:
    import seaborn

    return PALETTE[:count] if count <= len(PALETTE) else seaborn.color_palette("husl", count)


def _scatter_images(axis: Axes, xy: np.ndarray, images: Sequence, shades: list) -> None:
    from matplotlib.offsetbox import AnnotationBbox, OffsetImage

    gap = 0.075 * np.ptp(xy, axis=0).max()
    chosen: list[int] = []
    for i in range(len(xy)):
        if all(np.abs(xy[i] - xy[j]).max() > gap for j in chosen):
            chosen.append(i)
            picture = OffsetImage(_pixels(images[i], 24), cmap="gray", norm=_grey())
            style = {"edgecolor": shades[i], "linewidth": 1.6}
            axis.add_artist(AnnotationBbox(picture, xy[i], pad=0.05, bboxprops=style))


def _grey():
    from matplotlib.colors import Normalize

    return Normalize(0, 255)


# --- curves and fields ------------------------------------------------------------------------------------------------


def curves(series: Mapping[str, Sequence], ylabel: str = "training loss") -> Figure:
    """Values over steps: {method: values (steps,) or one such per seed}; long noisy series also as a running mean."""
    _check(len(series) > 0, "series is empty")
    with _style():
        figure, (axis,) = _subplots(1, 3.4, width=6.5)
        for name, values in series.items():
            runs = [np.asarray(run, dtype=float) for run in _as_runs(values)]
            for run in runs:
                _check(run.ndim == 1 and len(run) > 0, f"series[{name!r}]: values must be (steps,), got {run.shape}")
            window = max(1, min(map(len, runs)) // 25)
            faint = window > 1 or len(runs) > 1
            for run in runs:
                style = {"alpha": 0.3, "linewidth": 0.7} if faint else {"label": name}
                axis.plot(np.arange(1, len(run) + 1), run, color=color(name), **style)
            if faint:
                mean = np.mean([run[: min(map(len, runs))] for run in runs], axis=0)
                smooth = np.convolve(mean, np.full(window, 1 / window), mode="valid")
                suffix = "" if len(runs) == 1 else f" (mean of n = {len(runs)})"
                axis.plot(np.arange(len(smooth)) + (window + 1) / 2, smooth, color=color(name), label=name + suffix)
        axis.set(xlabel="step", ylabel=ylabel)
        axis.legend(fontsize="small")
    return _described(figure, f"{ylabel} against step. {_lines_said(axis)}")


def training_curves(finished: Sequence) -> Figure:
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
    _check(runs_of, "finished has no run that was trained without a setting")
    columns = min(3, len(runs_of))
    rows = -(-len(runs_of) // columns)
    with _style():
        figure, axes = _subplots(columns, 1.75 * rows + 0.4, width=2.5 * columns, rows=rows)
        said = []
        for axis, (method, runs) in zip(axes, runs_of.items()):
            length = min(run.shape[1] for run in runs)
            for steps, losses in runs:
                axis.plot(steps, losses, color=color(method), alpha=0.3, linewidth=0.7)
            steps, mean = np.mean([run[:, :length] for run in runs], axis=0)
            window = max(1, length // 25)
            smooth, middle = (np.convolve(each, np.full(window, 1 / window), mode="valid") for each in (mean, steps))
            axis.plot(middle, smooth, color=color(method), label=method)
            axis.set_title(f"{method}: {_convergence(mean)}", fontsize="medium")
            axis.set(xlabel="step")
            said.append(f"{_lines_said(axis).removesuffix('.')}, {_convergence(mean)}")
        for axis in axes[::columns]:
            axis.set_ylabel("training loss")
        for axis in axes[len(runs_of) :]:
            axis.axis("off")
    return _described(figure, f"Training loss against steps. {'; '.join(said)}.")


def _convergence(losses: np.ndarray) -> str:
    """Whether a loss still falls at the end of its steps, in words for a title; losses (steps,)."""
    fifth = max(1, len(losses) // 5)
    first, before, last = losses[:fifth].mean(), losses[-2 * fifth : -fifth].mean(), losses[-fifth:].mean()
    if len(losses) < 10 or last >= first:
        return "too short to say" if len(losses) < 10 else "did not fall"
    return "still falling" if before - last > 0.05 * (first - last) else "levelled off"


def _as_runs(values) -> list:
    return list(values) if len(values) and np.ndim(values[0]) == 1 else [values]


def lines(
    series: Mapping[str, tuple],
    xlabel: str,
    ylabel: str,
    *,
    logx: bool = False,
    logy: bool = False,
    references: Mapping[str, float] | None = None,
    title: str = "",
) -> Figure:
    """Numerical studies: {name: (x, y) or (x, y, low, high)} as lines with a band; references are horizontal lines."""
    _check(len(series) > 0, "series is empty")
    for name, arrays in series.items():
        lengths = {len(array) for array in arrays}
        _check(len(arrays) in (2, 4) and len(lengths) == 1, f"series[{name!r}] must be (x, y) or (x, y, low, high)")
    with _style():
        figure, (axis,) = _subplots(1, 3.6, width=6.5)
        for i, (name, (x, y, *band)) in enumerate(series.items()):
            shade = COLORS.get(name) or OTHERS[i % len(OTHERS)]
            shape = None if len(x) > 30 else marker(name) if name in COLORS else MARKERS[i % len(MARKERS)]
            dashes = "-" if name in COLORS else ("-", "--", "-.", ":")[i % 4]
            axis.plot(x, y, color=shade, linestyle=dashes, marker=shape, markersize=5, label=name)
            if band:
                axis.fill_between(x, *band, color=shade, alpha=0.2, linewidth=0)
        for name, height in (references or {}).items():
            axis.axhline(height, color="black", linestyle="--", linewidth=1)
            axis.annotate(
                name,
                (1, height),
                (-3, 3),
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
                ha="right",
                fontsize="small",
            )
        axis.set(xlabel=xlabel, ylabel=ylabel, title=title)
        axis.set(xscale="log" if logx else "linear", yscale="log" if logy else "linear")
        _ticks_at(axis, sorted({float(level) for x, *_ in series.values() for level in x}))
        beside: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1, 0.5)}  # many would cover the lines
        axis.legend(fontsize="small", **(beside if len(series) > 6 else {}))
    return _described(figure, " ".join(filter(None, (title, f"{ylabel} against {xlabel}.", _lines_said(axis)))))


def field(
    x: np.ndarray,
    y: np.ndarray,
    potentials: Mapping[str, np.ndarray],
    forces: Mapping[str, np.ndarray] | None = None,
    points: np.ndarray | None = None,
    labels: Sequence | None = None,
    names: tuple[str, str, str] = ("embedding coordinate 1", "embedding coordinate 2", "potential (no unit)"),
) -> Figure:
    """Potentials on a grid of the plane, a panel each, with force arrows and the charges that make them.

    x (W,), y (H,): the grid. potentials: {title: (H, W)}; colours end at their 2 % and 98 % quantiles. forces:
    {title: (H, W, 2)}, thinned to 15 arrows a side; their length grows with the logarithm of the force, which spans
    many orders. points (N, 2), labels (N,): charges and their classes. names: titles of x, y and the colour bar.
    """
    shape = (len(y), len(x))
    for name, values in potentials.items():
        _check(np.shape(values) == shape, f"potentials[{name!r}] must have shape {shape}, got {np.shape(values)}")
    for name, values in (forces or {}).items():
        _check(
            np.shape(values) == (*shape, 2), f"forces[{name!r}] must have shape {(*shape, 2)}, got {np.shape(values)}"
        )
    import seaborn

    with _style(grid=False):
        width = min(WIDTH, 4.5 * len(potentials))
        height = width / len(potentials) * np.ptp(y) / np.ptp(x)
        figure, axes = _subplots(len(potentials), 1.2 + height, width=width, sharey=True)
        pale = seaborn.light_palette("#2C7FB8", as_cmap=True, reverse=True)  # arrows stay visible on all of it
        for axis, (name, values) in zip(axes, potentials.items()):
            low, high = np.quantile(values, [0.02, 0.98])
            levels = np.linspace(low, high, 13)
            levels = levels if levels[-1] > levels[0] else levels[0] + np.linspace(-1, 1, 13)
            drawn = axis.contourf(x, y, values, levels=levels, cmap=pale, extend="both")
            ticks = levels[[0, 6, 12]]
            bar = figure.colorbar(drawn, ax=axis, location="bottom", label=names[2], ticks=ticks, aspect=30)
            for tick, side in zip(bar.ax.set_xticks(ticks, _three_digits(ticks)), ("left", "center", "right")):
                tick.label1.set(horizontalalignment=side)  # centred labels at the ends would meet the neighbour's
            if forces and name in forces:
                _arrows(axis, np.asarray(x), np.asarray(y), np.asarray(forces[name]))
            if points is not None:
                kinds = np.zeros(len(points)) if labels is None else np.asarray(labels)
                for i, kind in enumerate(np.unique(kinds)):
                    style: dict[str, Any] = {"marker": MARKERS[i], "s": 46, "edgecolor": "black", "zorder": 3}
                    axis.scatter(*np.asarray(points)[kinds == kind].T, label=f"class {kind}", color="white", **style)
            axis.set(title=name, xlabel=names[0], aspect="equal")
        axes[0].set_ylabel(names[1])
        if points is not None and labels is not None:
            axes[0].legend(fontsize="small", loc="upper right")
    return _described(figure, f"Maps of the {names[2]} over {names[0]} and {names[1]}: {_names(potentials)}.")


def pieces(points: np.ndarray, segments: Mapping[str, np.ndarray]) -> Figure:
    """Points (N, 2) of a toy manifold in the plane and the linear pieces {title: (P, 2, 2) ends} put through them."""
    points = np.asarray(points, dtype=float)
    _check(points.ndim == 2 and points.shape[1] == 2, f"points must be (N, 2), got {points.shape}")
    for name, ends in segments.items():
        _check(np.shape(ends)[1:] == (2, 2), f"segments[{name!r}] must be (P, 2, 2), got {np.shape(ends)}")
    with _style(grid=False):
        figure, axes = _subplots(1, 3.1 * len(segments), width=6.5, rows=len(segments), sharex=True)
        for axis, (name, ends) in zip(axes, segments.items()):
            axis.scatter(points[:, 0], points[:, 1], s=14, color="0.35", linewidth=0, zorder=3)
            for i, (start, end) in enumerate(np.asarray(ends)):
                axis.plot(*zip(start, end), color=PALETTE[i % len(PALETTE)], linewidth=2.2)
            axis.set(title=f"{name}: {len(ends)} pieces", ylabel="coordinate 2 (no unit)", aspect="equal")
        axes[-1].set_xlabel("coordinate 1 (no unit)")
    said = ", ".join(f"{name}: {len(ends)} pieces" for name, ends in segments.items())
    return _described(figure, f"{len(points)} points in the plane and linear pieces that cover them. {said}.")


def _three_digits(values: np.ndarray) -> list[str]:
    """Numbers of one scale without exponents: what is below a thousandth of the largest is 0."""
    shown = np.where(np.abs(values) > np.abs(values).max() / 1000, values, 0)
    return [np.format_float_positional(value, 3, fractional=False, trim="-") for value in shown]


def _arrows(axis: Axes, x: np.ndarray, y: np.ndarray, force: np.ndarray) -> None:
    step = max(1, -(-max(len(x), len(y)) // 15))
    force = force[step // 2 :: step, step // 2 :: step]
    size = np.linalg.norm(force, axis=-1, keepdims=True)
    largest = size.max()
    if largest == 0:
        return
    length = np.log1p(999 * size / largest) / np.log(1000)
    arrows = np.divide(force, size, out=np.zeros_like(force), where=size > 1e-9 * largest) * length
    where = x[step // 2 :: step], y[step // 2 :: step]
    axis.quiver(*where, arrows[..., 0], arrows[..., 1], color="black", scale=24, width=0.004, pivot="mid")


# --- shared -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _style(grid: bool = True):
    import matplotlib.pyplot as plt
    import seaborn

    plt.draw_if_interactive()  # loads the backend: were it loaded in the context, its settings would be undone there
    look = seaborn.axes_style("whitegrid" if grid else "white") | seaborn.plotting_context("notebook", font_scale=0.85)
    with plt.rc_context(look | {"figure.dpi": DPI, "savefig.dpi": DPI, "axes.edgecolor": "0.6"}):
        yield


def _subplots(columns: int, height: float, width: float = WIDTH, rows: int = 1, **options) -> tuple[Figure, list[Axes]]:
    import matplotlib.pyplot as plt

    size: dict[str, Any] = {"figsize": (width, height), "layout": "constrained", "squeeze": False}
    figure, axes = plt.subplots(rows, columns, **size, **options)
    return figure, list(axes.flat)


def _described(figure: Figure, text: str) -> Figure:
    """The figure with an alternative text, which notebooks and their exports give to readers who cannot see it."""
    figure.set_label(text.replace(r"\$", "$"))
    shown: Any = figure
    shown._ipython_display_ = functools.partial(_display, figure)  # IPython asks an object for this before all else
    return figure


def _display(figure: Figure) -> None:
    """The picture with its alternative text, and the same text folded below it: JupyterLab ignores the former."""
    from html import escape

    from IPython.core.pylabtools import print_figure
    from IPython.display import display

    picture, words = {"image/png": print_figure(figure, "png", base64=True)}, str(figure.get_label())
    display(picture | {"text/plain": words}, metadata={"image/png": {"alt": words}}, raw=True)
    folded = f"<details><summary>The figure in words</summary>{escape(words)}</details>"
    display({"text/html": folded, "text/plain": ""}, raw=True)


def _lines_said(axis: Axes) -> str:
    """Where every line of a legend begins and ends."""
    said = []
    for line in axis.lines:
        if not str(line.get_label()).startswith("_"):
            x, y = np.asarray(line.get_xdata(), float), np.asarray(line.get_ydata(), float)
            ends = (f"{_number(y[i])} at {_number(x[i])}" for i in (0, -1))
            said.append(f"{line.get_label()}: from " + " to ".join(ends))
    return "; ".join(said) + "."


def _legend_below(figure: Figure, axis: Axes) -> None:
    handles, names = axis.get_legend_handles_labels()
    if names:
        figure.legend(handles, names, loc="outside lower center", ncols=4, fontsize="small")


def _one_dataset(table: pd.DataFrame) -> pd.DataFrame:
    rows = tables.final_rows(table)
    for name in ("dataset", "profile"):
        found = set(rows[name])
        _check(len(found) <= 1, f"table mixes several values of {name}: {sorted(found)}; filter it to one")
    return rows


def _check_metrics(rows: pd.DataFrame, metrics: list[str]) -> None:
    absent = [metric for metric in metrics if metric not in set(rows["metric"])]
    _check(metrics and not absent, f"metrics: the table has no {absent}, it has {_names(rows['metric'])}")


def _check_columns(table: pd.DataFrame, name: str, columns: Sequence[str]) -> None:
    absent = [column for column in columns if column not in table.columns]
    _check(not absent, f"{name} lacks the columns {absent}")


def _check(condition, message: str) -> None:
    if not condition:
        raise ValueError(message)


def _names(values) -> str:
    return ", ".join(map(str, dict.fromkeys(values)))


def _where(rows: pd.DataFrame) -> str:
    return ", ".join(_plain(name) for name in (rows["dataset"].iloc[0], rows["backbone"].iloc[0]) if name)


def _seeds(rows: pd.DataFrame) -> str:
    counts = rows.groupby(["method", "setting", "metric"])["seed"].nunique()
    if counts.max() == 1:
        return "one seed"
    unit = "repetitions" if set(rows["dataset"]) == {tables.SYNTHETIC} else "seeds"
    return f"n = {counts.min()}" + (f" to {counts.max()}" if counts.max() > counts.min() else "") + f" {unit}"


def _short(name: str, length: int = 26) -> str:
    return _plain(name if len(name) <= length else name[: length - 1] + "…")


def _plain(name: str) -> str:
    """A name in which matplotlib sees no formula."""
    return name.replace("$", r"\$")
