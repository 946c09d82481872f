"""The one style of all figures, and what things are called and coloured in them.

A method has one colour and one marker in every figure. Functions of this package draw plain tables and arrays and
return the matplotlib Figure, left open so that a notebook shows it with one sentence of alternative text. Figures and
thumbnails are small: a notebook is read on the web.
"""

import contextlib
import functools
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.analysis.claims import rows_of

# Okabe and Ito's colours, for colour-blind readers, and two of equal weight, then Paul Tol's
PALETTE = ["#D55E00", "#E69F00", "#0072B2", "#56B4E9", "#009E73", "#CC79A7", "#7A5C1E", "#C9B800", "#8A8A8A"]
PALETTE += ["#882255", "#CC6677", "#117733", "#44AA99", "#88CCEE", "#332288", "#999933", "#AA4499"]
PALETTE += ["#4B4B4B", "#661100", "#6699CC", "#DDCC77"]
MARKERS = "osD^vPX*<>ph"
DPI = 84
WIDTH = 9.0  # inches: the text column of a notebook
FONTS = ["DejaVu Sans", "Noto Sans CJK JP", "Noto Sans", "WenQuanYi Zen Hei", "Arial Unicode MS", "Microsoft YaHei"]


@functools.cache
def labels_of(paper: str) -> dict[str, str]:
    """Axis titles of metrics and settings by name: those of a paper before those of all."""
    rows = sorted(rows_of("labels.csv"), key=lambda row: row["paper"])  # those of all, "", come first
    return {row["name"]: row["label"] for row in rows if row["paper"] in ("", paper)}


@dataclass(frozen=True)
class Names:
    """What is called and coloured how, for example in a paper; as it is made, it suits any table."""

    colors: Mapping[str, str] = field(default_factory=dict)  # of methods by name; others have one of the PALETTE
    paper: str = ""  # see `labels_of`

    def color(self, method: str) -> str:
        return self.colors.get(method) or PALETTE[zlib.crc32(method.encode()) % len(PALETTE)]

    def marker(self, method: str) -> str:
        """With the colour it tells the methods apart."""
        shade = self.color(method)
        place = PALETTE.index(shade) if shade in PALETTE else zlib.crc32(shade.encode())
        return MARKERS[place % len(MARKERS)]

    def label(self, name: str) -> str:
        """A metric or setting as an axis title."""
        return labels_of(self.paper).get(name, f"{name} (%)" if name.startswith("R@") else name.replace("_", " "))


PLAIN = Names()


@contextlib.contextmanager
def panels(
    count: int,
    height: float,
    width: float = WIDTH,
    *,
    most: int = 0,
    extra: float = 0,
    grid: bool = True,
    **options: Any,
) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure and its panels, to be drawn on in the style.

    height: inches of a row of panels. width: of the figure, where a row is full. most: panels in a row, by default all.
    extra: inches for what stands above and below all panels.
    """
    import matplotlib.pyplot as plt
    import seaborn
    from matplotlib import font_manager

    plt.draw_if_interactive()  # loads the backend: were it loaded in the context, its settings would be undone there
    look = seaborn.axes_style("whitegrid" if grid else "white") | seaborn.plotting_context("notebook", font_scale=0.85)
    # what one font lacks is taken from the next: names of classes may have letters of any script
    fonts = [name for name in FONTS if name in font_manager.get_font_names()]
    look |= {"figure.dpi": DPI, "savefig.dpi": DPI, "axes.edgecolor": "0.6", "font.family": fonts}
    most = most or count
    columns, rows = min(most, count), -(-count // most)
    size = (width * columns / most, height * rows + extra)
    with plt.rc_context(look):
        figure, axes = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False, **options)
        yield figure, list(axes.flat)
        for axis in axes.flat[count:]:
            axis.axis("off")


def legend(figure: Figure, *axes: Axes) -> None:
    """What the marks of panels are, below all panels."""
    marks = {name: handle for axis in axes for handle, name in zip(*axis.get_legend_handles_labels())}
    if marks:
        figure.legend(marks.values(), marks.keys(), loc="outside lower center", ncols=4, fontsize="small")


def described(figure: Figure, text: str) -> Figure:
    """The figure with an alternative text, a sentence that says what it shows to readers who cannot see it."""

    def shown() -> None:
        from IPython.core.pylabtools import print_figure
        from IPython.display import display

        picture, words = {"image/png": print_figure(figure, "png", base64=True)}, str(figure.get_label())
        display(picture | {"text/plain": words}, metadata={"image/png": {"alt": words}}, raw=True)

    figure.set_label(text.replace(r"\$", "$").replace("\n", ", "))
    vars(figure)["_ipython_display_"] = shown  # IPython asks an object for this before all else
    return figure


def symbol(name: str) -> str:
    """A setting's short name with Greek letters as such: "delta_rep" is "δ_rep"."""
    greek = dict(zip(("alpha", "beta", "delta", "kappa", "lambda", "omega", "rho"), "αβδκλωρ"))
    return "_".join(greek.get(part, part) for part in name.split("_"))


def plain(name: str) -> str:
    """A name in which matplotlib sees no formula."""
    return name.replace("$", r"\$")


def listed(values: Iterable[object]) -> str:
    return ", ".join(map(str, dict.fromkeys(values)))


def check(condition: object, message: str) -> None:
    if not condition:
        raise ValueError(message)


def ticks_at(axis: Axes, levels: Sequence[float], unit: float = 1) -> None:
    """Ticks where something was measured, unless that is at many places; unit: what a level is multiplied with."""
    if len(levels) <= 8:
        places = axis.transAxes.inverted().transform(axis.transData.transform([(level, 0) for level in levels]))[:, 0]
        texts, last = [], -math.inf
        for level, place in zip(levels, places):
            texts.append(f"{unit * level:g}" if place - last > 0.075 else "")  # where there is place for a number
            last = place if texts[-1] else last
        axis.set_xticks(levels, texts)
        axis.minorticks_off()


def number(value: float) -> str:
    if abs(value) < 10:
        return f"{value:.3g}"
    return f"{value:.1f}".removesuffix(".0") if abs(value) >= 100 else f"{value:.1f}"
