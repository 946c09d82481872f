"""Every figure on small data: what is drawn, marked and said, that axes are titled, that a mistake is named."""

import html
import io

import matplotlib
import numpy as np
import pandas as pd
import pytest
from made_for_claims import rows

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from IPython.core.interactiveshell import InteractiveShell
from IPython.display import display
from IPython.utils.capture import capture_output
from matplotlib.colors import to_hex
from nbconvert import HTMLExporter
from nbformat import v4

from experiments.analysis.judging import Verdict
from experiments.figures import charts, comparisons, images, planes, style
from experiments.figures.comparisons import MARKS, SHADES
from experiments.figures.style import Names

NAMES = Names({"PFML": "#D55E00", "CPML": "#E69F00"}, "pfml")
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


def table(settings=("",), methods=("PFML", "CPML", "ProxyAnchor"), metrics=("R@1", "MAP@R"), seeds=3):
    return pd.DataFrame(
        row
        for i, method in enumerate(methods)
        for j, setting in enumerate(settings)
        for metric in metrics
        for row in rows(method, 70 - 5 * i + j + 0.1 * np.arange(seeds), setting, metric, dataset="glyphs")
    )


def pixels(*shape):
    return RNG.integers(0, 255, size=shape, dtype=np.uint8)


def field_arguments():
    grid = np.linspace(-1, 1, 20)
    x, y = np.meshgrid(grid, grid[:15])
    force = -np.stack([x, y], axis=-1)
    titles = ("coordinate 1", "coordinate 2", "potential")
    return grid, grid[:15], {"one": x**2 + y**2, "two": x * y}, dict.fromkeys(("one", "two"), force), np.eye(2), titles


CURVE = {"CUB": {0: 68.2, 3: 73.4}}
LEVELS = table(["alpha=0", "alpha=1", "alpha=3"], methods=("PFML",))
THEIRS = pd.DataFrame(
    {"dataset": ["CUB", "CUB", "Cars"], "method": ["PFML", "HIST", "CPML"], "metric": "R@1", "value": [73, 71, 85]}
)
STATE = {"points": RNG.uniform(-1, 1, (40, 2)), "labels": np.arange(40) % 2}
STATE |= {"converged": RNG.uniform(-1, 1, (2, 3, 2)), "next": RNG.uniform(-1, 1, (2, 3, 2))}
BOTH = pd.DataFrame({"paper": ["PFML", "CCP"], "own": [True, False], "theirs": [1.0, -1.0], "ours": [0.5, 2.0]})
FIGURES = {
    "dots": lambda: charts.dots(table(), ["R@1", "MAP@R"]),
    "ablation": lambda: charts.ablation(table(["alpha=0", "alpha=3"]), "alpha", "R@1", CURVE, reference=0),
    "field": lambda: planes.field(*field_arguments()),
    "lines": lambda: charts.lines(
        {"exact": ([1, 2], [3, 4], [2, 3], [4, 5])}, "κ", "log C", references={"a": 3.5}, band="range"
    ),
    "theirs_and_ours": lambda: comparisons.theirs_and_ours(BOTH, "points"),
    "proxy_maps": lambda: planes.proxy_maps(dict.fromkeys(("one problem", "two", "three"), STATE)),
    "retrieved": lambda: images.retrieved(pixels(2, 9, 7, 3), pixels(2, 3, 9, 7, 3), [[1, 0, 1], [0, 0, 1]]),
    "samples": lambda: images.samples([list(pixels(4, 40, 90, 3)), list(pixels(2, 16, 16))], ["one", "two"]),
}


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_titled_and_small_and_have_one_sentence_of_alternative_text(name):
    figure = FIGURES[name]()
    assert 20 < len(figure.get_label()) < 300 and "\n" not in figure.get_label()
    file = io.BytesIO()
    figure.savefig(file, format="png", bbox_inches="tight")
    assert 3_000 < file.tell() < 90_000
    assert figure.get_size_inches()[0] <= style.WIDTH
    if name not in ("retrieved", "samples"):  # walls of images have no axes
        shown = [axis for axis in figure.axes if axis.axison and axis.get_label() != "<colorbar>"]
        assert shown[-1].get_xlabel() and any(axis.get_ylabel() or name == "dots" for axis in shown)


def means(axis):
    """The filled marks of a panel by their height, read back from the figure."""
    marks = [mark for mark in axis.collections if len(mark.get_offsets()) == 1 and mark.get_sizes()[0] > 20]
    return dict(sorted((round(mark.get_offsets()[0, 1]), mark) for mark in marks))


def dot_colors(figure):
    axis = figure.axes[0]
    marks, names = means(axis), axis.get_yticklabels()
    return {names[y].get_text(): to_hex(mark.get_facecolor()[0]) for y, mark in marks.items()}


def test_a_method_has_the_same_colour_in_every_figure():
    methods = ("Triplet", "ProxyAnchor", "CPML", "PFML", "L2")
    few, many = charts.dots(table(), ["R@1"], names=NAMES), charts.dots(table(methods=methods), ["R@1"], names=NAMES)
    assert dot_colors(few).items() <= dot_colors(many).items()
    assert dot_colors(few)["PFML"] == NAMES.colors["PFML"].lower()
    plain = Names()
    assert (plain.label("alpha"), NAMES.label("alpha"), NAMES.label("MAP@R")) == (
        "alpha",
        "decay exponent α",
        "MAP@R (%)",
    )
    assert plain.color("a new loss") == plain.color("a new loss") == NAMES.color("a new loss") in style.PALETTE


@pytest.mark.parametrize(("seeds", "shown", "intervals"), [(2, 2, 0), (4, 4, 0), (5, 5, 3), (10, 0, 3)])
def test_dots_are_sorted_means_with_every_seed_from_five_on_with_intervals_and_from_ten_on_alone(
    seeds, shown, intervals
):
    axis = charts.dots(table(seeds=seeds), ["R@1"]).axes[0]
    levels = [mark.get_offsets()[0, 0] for mark in means(axis).values()]
    assert levels == sorted(levels) and levels[-1] == pytest.approx(70 + 0.05 * (seeds - 1))
    assert len(axis.lines) == intervals and sum(len(mark.get_offsets()) for mark in axis.collections) == 3 * shown + 3
    if seeds == 5:
        interval = max(axis.lines, key=lambda line: line.get_xdata().mean()).get_xdata()
        half = 2.7764451 * np.std([0, 0.1, 0.2, 0.3, 0.4], ddof=1) / np.sqrt(5)  # t with 4 degrees of freedom
        assert interval == pytest.approx([70.2 - half, 70.2 + half])
        low, high = axis.get_xlim()
        assert 58 < low < 60 and 70.4 < high < 72  # differences are seen, zero is not
    axis = charts.ablation(table(["M=1", "M=5", "M=20"], ["PFML"], seeds=seeds), "M", "R@1").axes[0]
    singles = [len(mark.get_offsets()) for mark in axis.collections]
    assert len(axis.lines) == 1 + intervals and singles == [3 * seeds] * bool(shown)


def test_networks_before_training_are_lines_that_do_not_stretch_the_axis():
    data = table(methods=("PFML", "CPML", "Triplet", "untrained"), seeds=5)
    data.loc[data.method == "untrained", "value"] += 3
    axis = charts.dots(data, ["R@1"]).axes[0]
    (line,) = [line for line in axis.lines if line.get_linestyle() == "--"]
    assert line.get_xdata()[0] == pytest.approx(58.2) and "features before training 58.2" in [
        text.get_text() for text in axis.texts
    ]
    assert [text.get_text() for text in axis.get_yticklabels()] == ["Triplet", "CPML", "PFML"]
    data.loc[data.method == "untrained", "value"] -= 40
    figure = charts.dots(data, ["R@1"])
    assert figure.axes[0].get_xlim()[0] > 59
    assert "← features before training 18.2" in [text.get_text() for text in figure.axes[0].texts]
    few = charts.dots(data[data.method.isin(["PFML", "untrained"])], ["R@1"]).axes[0]
    assert few.get_xlim()[0] < 18.2  # one method has nothing else to compare with
    assert dot_colors(charts.dots(table(methods=("untrained",)), ["R@1"])).keys() == {"features before training"}


def test_published_numbers_are_hollow_marks_of_the_methods_at_hand():
    ours, axis = charts.dots(table(), ["R@1"], THEIRS).axes
    assert not any("CUB" in mark.get_label() for mark in ours.collections)  # theirs is another data set
    marks = {mark.get_label(): mark.get_offsets().tolist() for mark in axis.collections}
    assert marks == {"CUB": [[73, 2]], "Cars": [[85, 1]]}
    assert not any(len(mark.get_facecolor()) for mark in axis.collections)
    beside = charts.dots(table(), ["R@1", "MAP@R"], THEIRS)
    assert [axis.get_title() for axis in beside.axes] == ["", "published", "", ""] and len(beside.axes[2].collections)


def test_ablation_compares_changes_paired_by_seed_where_there_is_a_reference_and_two_levels_have_no_line():
    better = 20.0 * (LEVELS["seed"] == 1)  # one seed at every level: no spread in the change
    data = LEVELS.assign(value=LEVELS["value"] + better)
    figure = charts.ablation(data, "alpha", "R@1", CURVE, reference=3)
    change, _ = figure.axes
    ours, theirs = change.lines[0], next(line for line in change.lines if line.get_marker() == "D")
    assert [text.get_text() for text in change.get_legend().get_texts()] == ["published, CUB"]
    assert ours.get_ydata() == pytest.approx([-2, -1, 0])
    assert theirs.get_ydata() == pytest.approx([-5.2, 0])
    assert theirs.get_linestyle() == "None"  # two points are no curve
    both = charts.ablation(table(["alpha=0;M=5", "alpha=0;M=15", "M=5;alpha=3", "M=15;alpha=3"]), "alpha", "R@1")
    assert [text.get_text() for text in both.legends[0].get_texts()][:2] == ["PFML, M = 5", "PFML, M = 15"]
    noise = charts.ablation(table(["", "label_noise=0.2"]), "label_noise", "R@1").axes[0]
    assert noise.lines[0].get_xdata().tolist() == [0, 0.2]
    without = charts.ablation(table(["", "alpha=0", "alpha=3"], methods=("PFML",)), "alpha", "R@1").axes[0]
    assert without.lines[0].get_xdata().tolist() == [0, 3]  # a run without the setting is no level of it
    values = charts.ablation(table(["alpha=0", "alpha=3"], ["PFML"]), "alpha", "R@1")
    assert [axis.get_ylabel() for axis in values.axes] == ["R@1 (%)"]
    assert "changes" not in values.axes[0].get_xlabel()
    assert values.axes[0].lines[0].get_linestyle() == "None"


def test_ticks_stand_at_the_measured_levels():
    data = table(["M=0", "M=1", "M=15"], methods=("PFML",))
    axis = charts.ablation(data, "M", "R@1", xscale="log").axes[0]
    assert [text.get_text() for text in axis.get_xticklabels()] == ["0", "1", "15"]
    axis = charts.ablation(table(["M=1", "M=5", "M=20"]), "M", "R@1", xscale="log").axes[0]
    assert axis.get_xlim()[0] > 0.5  # the margin left of 1 is one of the logarithmic axis
    axis = charts.lines({"a": ([1, 2, 20], [3, 4, 5]), "b": ([1, 5], [3, 4])}, "N", "seconds").axes[0]
    assert axis.get_xticks().tolist() == [1, 2, 5, 20]


def test_a_notebook_shows_the_picture_with_its_alternative_text():
    figure = FIGURES["lines"]()
    InteractiveShell.instance()  # a kernel has one
    with capture_output() as captured:
        display(figure)
    (output,) = (v4.new_output("display_data", output.data, metadata=output.metadata) for output in captured.outputs)
    notebook = v4.new_notebook(cells=[v4.new_code_cell("", outputs=[output])])
    page, _ = HTMLExporter(template_name="classic").from_notebook_node(notebook)
    assert html.unescape(page).count(figure.get_label()) == 1


def test_retrieved_marks_right_and_wrong_by_colour_and_by_sign():
    axis = FIGURES["retrieved"]().axes[0]
    frames = [to_hex(patch.get_edgecolor()) for patch in axis.patches]
    marks = [text.get_text() for text in axis.texts if text.get_text() in "✓✗"]
    right, wrong = images.RIGHT.lower(), images.WRONG.lower()
    assert frames == [right, wrong, right, wrong, wrong, right]
    assert marks == ["✓" if frame == right else "✗" for frame in frames]
    assert len(axis.images) == 2 * 4


def test_force_arrows_point_along_the_force_and_survive_zero_and_huge_ones():
    grid = np.linspace(-1, 1, 15)
    force = np.zeros((15, 15, 2))
    force[..., 0], force[3, 4] = 1.0, (0.0, -1e9)
    force[8, 8] = 0
    figure = planes.field(grid, grid, {"u": RNG.random((15, 15))}, {"u": force}, np.eye(2), ("x", "y", "u"))
    (arrows,) = [collection for collection in figure.axes[0].collections if type(collection).__name__ == "Quiver"]
    u, v = np.reshape(arrows.U, (15, 15)), np.reshape(arrows.V, (15, 15))
    assert u[3, 4] == 0 and v[3, 4] == pytest.approx(-1) and u[8, 8] == v[8, 8] == 0
    assert np.isfinite(u).all() and (v != 0).sum() == 1


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: charts.dots(table(), ["R@1", "NMI"]), r"no \['NMI'\], it has R@1, MAP@R"),
        (lambda: charts.dots(table().assign(dataset=range(18)), ["R@1"]), "several values of dataset"),
        (lambda: charts.dots(table(), ["R@1"], THEIRS[THEIRS.method == "HIST"]), "no row of R@1 and a method in"),
        (lambda: charts.ablation(LEVELS, "alpha", "R@1", CURVE, reference=1), r"reference: 1 .*\[0, 3\]"),
        (lambda: charts.ablation(LEVELS, "alpha", "R@1", {"CUB": {2: 68.2}}, reference=2), "no level of every curve"),
        (lambda: charts.ablation(LEVELS, "delta", "R@1"), r"'delta'.*alpha=0"),
        (lambda: charts.lines({"a": ([1], [3], [2], [4])}, "x", "y"), "band: say what the lines and their bands are"),
    ],
)
def test_mistakes_are_named(draw, message):
    with pytest.raises(ValueError, match=message):
        draw()


def test_a_class_name_with_dollars_is_no_formula():
    figure = images.samples([list(pixels(2, 16, 16))], [r"$5 and \frac$10"])
    figure.canvas.draw()
    (text,) = [text for text in figure.axes[0].texts if "frac" in text.get_text()]
    assert not matplotlib.cbook.is_math_text(text.get_text())
    rows = table().assign(dataset="a $x^ and $y@1234")
    charts.dots(rows, ["R@1"]).canvas.draw()


def test_what_was_timed_on_made_data_is_no_part_of_a_chart():
    timed = table().assign(dataset="synthetic", metric="seconds")
    plain, beside = (charts.dots(rows, ["R@1"]) for rows in (table(), pd.concat([table(), timed])))
    assert plain.get_suptitle() == beside.get_suptitle() and dot_colors(plain) == dot_colors(beside)


def test_rankings_and_gains_are_filled_where_tuned_or_above_zero_and_rankings_have_the_highest_on_top():
    drawn = comparisons.gains({"A (head)": (3.0, 1.0, 5.0), "B": (1.0, -1.0, np.inf)}, "PCA", "MAP@R on 40 classes")
    (axis,) = drawn.axes
    first, second = (to_hex(dot.get_facecolor()[0]) for dot in axis.collections)
    assert [label.get_text() for label in axis.get_yticklabels()] == ["A (head)", "B"] and axis.yaxis_inverted()
    assert first != "#ffffff" and second == "#ffffff"
    assert axis.get_xlabel() == "difference to PCA (points)"
    rows = pd.DataFrame(
        {"method": ["A", "B"], "mean": [1.0, 2.0], "low": [0.5, np.nan], "high": [1.5, np.nan], "tuned": [True, False]}
    )
    figure = comparisons.rankings(
        {"birds": rows.assign(untrained=1.25), "cars": rows.head(1).assign(untrained=0.5)}, "R@1"
    )
    first = figure.axes[0]
    assert ["dashed" in axis.get_xlabel() for axis in figure.axes[:2]] == [True, False]
    assert [*first.lines[-1].get_xdata()] == [1.25, 1.25]
    assert [label.get_text() for label in first.get_yticklabels()] == ["B", "A"] and first.yaxis_inverted()
    hollow, filled = (dots.get_facecolor()[0] for dots in first.collections[:2])
    assert tuple(hollow) == (1, 1, 1, 1) and tuple(filled) != (1, 1, 1, 1)


def test_every_claim_has_a_square_with_the_mark_of_its_verdict_and_green_for_what_is_supported():
    claims = pd.DataFrame(
        [("one", 1, "supported", 2, 2), ("one", 2, "mixed", 1, 4), ("two", 1, "not interpretable", 3, 4)],
        columns=["paper", "number", "verdict", "k", "n"],
    )
    (axis,) = comparisons.verdict_squares(claims).axes
    texts = [text.get_text() for text in axis.texts]
    assert texts[:3] == [MARKS[word] for word in claims["verdict"]]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["one", "two"]
    assert set(SHADES) == set(MARKS) == set(Verdict) and len(set(MARKS.values())) == len(MARKS)
    green = [patch for patch in axis.patches if patch.get_linewidth() == 0]
    assert [patch.get_height() / patch.get_width() for patch in green[:2]] == [1, 0.25]
    assert len(green) == 3, "the third is that of the legend: what is not interpretable counts nothing"
    assert {"supported", "not interpretable"} <= set(texts) and "measured" not in texts
