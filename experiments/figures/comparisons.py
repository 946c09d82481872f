"""Charts that put many comparisons side by side: ratios, growth with size, pairs of methods, theirs against ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.figures.style import MARKERS, PALETTE, PLAIN, WIDTH, Names, check, described, legend, panels, plain

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


def ratios(rows: pd.DataFrame, xlabel: str) -> Figure:
    """A dot per row on a logarithmic axis on which 1 is marked, in the order given; its number stands at the right.

    rows: columns label, kind (a marker and a colour each) and ratio, a positive number.
    """
    check(len(rows) > 0, "rows is empty")
    check((rows["ratio"] > 0).all(), "ratio must be positive")
    labels = list(dict.fromkeys(rows["label"]))
    shown = dict(zip(dict.fromkeys(rows["kind"]), zip(("#0072B2", "#D55E00", "#009E73"), MARKERS)))
    with panels(1, 0.21 * len(labels) + 1.3, width=WIDTH) as (figure, (axis,)):
        for kind, (shade, marker) in shown.items():
            some = rows[rows["kind"] == kind]
            places = [labels.index(label) for label in some["label"]]
            style: dict[str, Any] = {"facecolor": "none" if marker == "s" else shade, "edgecolor": shade}
            axis.scatter(some["ratio"], places, s=30, marker=marker, label=kind, zorder=3, **style)
        beside: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "va": "center"}
        for y, label in enumerate(labels):
            own = rows[rows["label"] == label].sort_values("kind", key=lambda kinds: kinds.map([*shown].index))
            told = ", ".join(f"{ratio:.3g}" for ratio in own["ratio"])
            axis.annotate(told, (1, y), (4, 0), fontsize="small", **beside)
        axis.axvline(1, color="black", linewidth=1)
        axis.set(xscale="log", xlabel=xlabel, ylabel="what is compared")
        axis.set_yticks(range(len(labels)), [plain(label) for label in labels], fontsize="small")
        axis.invert_yaxis()
        legend(figure, axis)
    told = (f"{row.label} ({row.kind}) {row.ratio:.3g}" for row in rows.itertuples())
    return described(figure, f"Dots, {xlabel}. {'; '.join(told)}.")


def growth(
    charts: Sequence[tuple[str, str, str, Mapping[str, tuple[np.ndarray, np.ndarray]]]], *, names: Names = PLAIN
) -> Figure:
    """Panels of what grows with a size, both axes logarithmic, with the fitted line, whose slope its legend has.

    charts: (title, axis title of the size, axis title of what grows, {name: (sizes, values)}).
    """
    check(len(charts) > 0, "charts is empty")
    columns, texts = min(2, len(charts)), []
    rows = -(-len(charts) // columns)
    with panels(columns, 3.1 * rows, width=4.5 * columns, rows=rows) as (figure, axes):
        for axis, (title, xlabel, ylabel, series) in zip(axes, charts):
            for i, (name, (sizes, values)) in enumerate(series.items()):
                shade = names.colors.get(name) or PALETTE[2 * i % len(PALETTE)]
                power, offset = np.polyfit(np.log(sizes), np.log(values), 1)
                text = f"{name}: slope {power:.2f}"
                axis.scatter(sizes, values, color=shade, marker=MARKERS[i % len(MARKERS)], s=26, label=plain(text))
                ends = np.array([min(sizes), max(sizes)])
                axis.plot(ends, np.exp(offset) * ends**power, color=shade, linewidth=1)
                texts.append(f"{title}, {ylabel}, {text}")
            axis.set(xscale="log", yscale="log", xlabel=xlabel, ylabel=ylabel)
            axis.set_title(title, fontsize="medium")
            levels = sorted({float(size) for sizes, _ in series.values() for size in sizes})
            axis.set_xticks(levels, [f"{level:,.0f}" for level in levels], fontsize="small")
            axis.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
            low, high = axis.get_ylim()
            axis.set_ylim(low, high * (high / low) ** (0.09 * len(series)))  # what grows leaves the upper left free
            axis.legend(fontsize="small", loc="upper left")
        for axis in axes[len(charts) :]:
            axis.axis("off")
    return described(figure, f"Growth on logarithmic axes. {'; '.join(texts)}.")


def wins(share: pd.DataFrame, sure: pd.DataFrame, title: str) -> Figure:
    """How often the method of a row was above that of a column: a square matrix of shares in percent.

    share: (M, M) in [0, 1], index and columns the methods; NaN where two were never compared. sure: (M, M) bool, marked
    by a ring.
    """
    check(share.shape[0] == share.shape[1] > 1, f"share must be a square of two and more, got {share.shape}")
    size = len(share)
    with panels(1, 0.42 * size + 1.7, width=max(0.62 * size + 2.6, 6.2), grid=False) as (figure, (axis,)):
        drawn = axis.imshow(100 * share.to_numpy(float), cmap="PuOr_r", vmin=0, vmax=100, aspect="auto")
        for y in range(size):
            for x in range(size):
                if not np.isnan(value := share.iat[y, x]):
                    dark = abs(value - 0.5) > 0.35
                    mark = "*" if sure.iat[y, x] else ""
                    axis.text(
                        x, y, f"{100 * value:.0f}{mark}", ha="center", va="center", color="white" if dark else "black"
                    )
        axis.set_xticks(range(size), [plain(name) for name in share.columns], rotation=40, ha="right", fontsize="small")
        axis.set_yticks(range(size), [plain(name) for name in share.index], fontsize="small")
        axis.set(xlabel="other method", ylabel="method")
        axis.set_title(title, fontsize="medium")
        figure.colorbar(
            drawn, ax=axis, label="seeds with the method of the row above (%)\n* told apart by a t test, after Holm"
        )
    told = (f"{name} {100 * row.mean():.0f} %" for name, row in share.iterrows())
    return described(figure, f"Matrix of methods. {title}. Mean of a row: {', '.join(told)}.")


def theirs_and_ours(points: pd.DataFrame, unit: str) -> Figure:
    """Published numbers against ours, each less the mean of its comparison, a panel per paper; on the line both agree.

    points: columns paper, own (whether the method is the paper's), theirs and ours.
    """
    check(len(points) > 0, "points is empty")
    papers, texts = list(dict.fromkeys(points["paper"])), []
    columns = min(3, len(papers))
    rows = -(-len(papers) // columns)
    with panels(columns, 3.1 * rows + 0.4, rows=rows) as (figure, axes):
        for axis, paper in zip(axes, papers):
            some = points[points["paper"] == paper]
            kinds = {"baselines": (False, "#8A8A8A", "o"), "the paper's own": (True, "#D55E00", "D")}
            for kind, (own, shade, marker) in kinds.items():
                group = some[some["own"] == own]
                axis.scatter(
                    group["theirs"], group["ours"], s=24, facecolor="none", edgecolor=shade, marker=marker, label=kind
                )
                if len(group):
                    means = f"published {group['theirs'].mean():+.1f}, ours {group['ours'].mean():+.1f}"
                    texts.append(f"{paper}, {kind} ({len(group)}): {means}")
            reach = [*axis.get_xlim(), *axis.get_ylim()]
            axis.plot([min(reach), max(reach)], [min(reach), max(reach)], color="black", linewidth=0.8, zorder=1)
            axis.axhline(0, color="0.7", linewidth=0.8, zorder=1)
            axis.axvline(0, color="0.7", linewidth=0.8, zorder=1)
            axis.set(xlabel=f"published less the mean ({unit})", ylabel=f"ours less the mean ({unit})", title=paper)
        for axis in axes[len(papers) :]:
            axis.axis("off")
        legend(figure, axes[0])
    return described(
        figure, f"Scatter of published numbers and ours, less the mean of the comparison. {'; '.join(texts)}."
    )
