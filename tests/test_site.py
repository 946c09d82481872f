"""The documentation site: what is staged, docstrings and equations as Sphinx gets them, the links that are followed."""

import csv
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from bs4 import BeautifulSoup

ROOT = Path(__file__).parents[1]


def loaded(path: str):
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


make_site = loaded("workflow/make_site.py")
extension = loaded("docs/extension.py")
boards = make_site.boards


# --- what is staged ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("link", "mapped"),
    [
        ("../notebooks/10_pfml_retrieval.ipynb", "/notebooks/10_pfml_retrieval.ipynb"),
        ("ledger.md#pfml-01", "/ledger.md#pfml-01"),
        ("../README.md", "/index.md"),
        ("../dmlrepro/losses/nivmf.py", "/api/dmlrepro.losses.nivmf.md"),
        ("../results", "/measured.md"),
        ("../CITATION.cff", "/files/CITATION.cff"),
        ("https://example.org/x.md", "https://example.org/x.md"),
        ("../tests/conftest.py 'a title'", "/files/tests/conftest.py 'a title'"),
        ("#here", "#here"),
    ],
)
def test_links_of_the_repository_lead_to_pages_and_copies(link, mapped, tmp_path):
    assert make_site.links_mapped(f"see [it]({link}).", "docs/library.md", tmp_path) == f"see [it]({mapped})."
    if mapped.startswith("/files"):
        name = mapped.removeprefix("/files/").split()[0]
        assert (tmp_path / "files" / name).read_bytes() == (ROOT / name).read_bytes()


@pytest.mark.parametrize("link", ["../no/such/file.py", "../../elsewhere.md"])
def test_a_link_that_leads_nowhere_is_named_with_its_page(link, tmp_path):
    with pytest.raises(ValueError, match=r"docs/library.md: .*" + re.escape(link)):
        make_site.links_mapped(f"[it]({link})", "docs/library.md", tmp_path)


def test_code_is_folded_in_the_copy_of_a_notebook_alone(tmp_path):
    path = ROOT / "notebooks" / "42_ccp_ablation_lambda_proxies.ipynb"
    cells = json.loads(make_site.staged_notebook(path, tmp_path))["cells"]
    assert all("hide-input" in cell["metadata"]["tags"] for cell in cells if cell["cell_type"] == "code")
    assert "hide-input" not in path.read_text(encoding="utf8")
    committed = json.loads(path.read_text(encoding="utf8"))["cells"]
    assert [len(cell.get("outputs", ())) for cell in cells] == [len(cell.get("outputs", ())) for cell in committed]


def test_every_module_of_the_api_is_there_and_in_its_index():
    index = (ROOT / "docs" / "api" / "index.md").read_text(encoding="utf8")
    for name in make_site.API:
        assert (ROOT / f"{name.replace('.', '/')}.py").exists(), name
        assert f"{name}\n" in index or f"{name.rpartition('.')[0]}.*\n" in index, name


def test_the_repository_and_every_paper_can_be_cited():
    entries = re.findall(r"^@(\w+)\{(\w+),", make_site.citations(), re.MULTILINE)
    assert [kind for kind, _ in entries] == ["software", *["inproceedings"] * 3, "article", "inproceedings"]
    assert len({key for _, key in entries}) == 6


# --- ledger and leaderboards ------------------------------------------------------------------------------------------


def test_the_ledger_has_a_row_with_an_anchor_for_every_claim():
    with open(ROOT / "data" / "claims.csv", encoding="utf8") as file:
        stated = [row["claim_id"] for row in csv.DictReader(file)]
    rows = BeautifulSoup(boards.claims_table(), "html.parser").select("tbody tr")
    assert [row["id"] for row in rows] == stated
    here = boards.verdicts.here()
    assert [row["data-verdict"] for row in rows] == list(here.values())
    filters = BeautifulSoup(boards.ledger_filters(), "html.parser")
    for name in ("paper", "verdict", "data"):
        offered = {option.text for option in filters.select(f"select[name={name}] option")} - {"all"}
        assert offered == {value for row in rows for value in row[f"data-{name}"].split("|") if value}


def test_a_leaderboard_has_the_numbers_of_its_table():
    letters = boards.leaderboards().partition("### Small CNN from scratch, 600 steps, 5 seeds")[2]
    board = BeautifulSoup(letters, "html.parser").select("table")[0]
    rows = {row.select_one("td").text: row.select("td") for row in board.select("tbody tr")}
    name = "10_pfml_retrieval--dataset=omniglot,mlrc_steps=0,small_dim=0,steps=600.csv"
    table = boards.saving.read(ROOT / "results" / "small" / name)
    own = table[(table["method"] == "PFML") & (table["setting"] == "") & (table["selection"] == "last")]
    values = own.loc[own["metric"] == "R@1", "value"]
    assert rows["PFML"][1]["data-key"] == f"{values.mean():.6g}" and rows["PFML"][3].text == str(len(values))
    means = [float(cells[1]["data-key"]) for cells in rows.values()]
    assert means == sorted(means, reverse=True) and len(means) > boards.LEAST


# --- what Sphinx gets -------------------------------------------------------------------------------------------------


def test_bars_of_a_formula_stand_close_to_what_they_enclose():
    assert extension.mathml("2|C|", "inline").count('<mo stretchy="false" lspace="0" rspace="0">|</mo>') == 2


def test_arg_min_is_two_words():
    assert '<mi>arg</mi><mspace width="0.17em"/>' in extension.mathml(r"\arg\min_x y", "inline")


def test_the_head_of_a_module_is_a_list_and_marks_are_themselves():
    lines = [
        "A loss.",
        "",
        "Paper      Somebody, 2020.",
        "Deviations - One is",
        "             |C| long.",
        "           - Two.",
    ]
    extension.plain(None, "module", "", None, None, lines)
    assert lines[2:] == [
        "Paper",
        "   Somebody, 2020.",
        "Deviations",
        "   - One is",
        r"     \|C\| long.",
        "   - Two.",
        "",
    ]


def test_an_indented_line_of_a_docstring_goes_on_with_the_entry_above():
    lines = ["A part.", "", "on: data", "    sets", "of: `a_` b_"]
    extension.plain(None, "class", "", None, None, lines)
    assert lines[2:4] == ["| on: data sets", r"| of: `a_` b\_"]


# --- links ------------------------------------------------------------------------------------------------------------


def test_broken_links_and_anchors_are_found(tmp_path):
    (tmp_path / "a.html").write_text('<p id="x"><a href="b.html#y">1</a><a href="#x">2</a><img src="c.png"></p>')
    (tmp_path / "b.html").write_text('<a href="a.html#z"></a><a href="https://example.org/no"></a><a href="d/"></a>')
    assert list(make_site.broken_links(tmp_path)) == [
        "a.html: b.html#y",
        "a.html: c.png",
        "b.html: a.html#z",
        "b.html: d/",
    ]
    (tmp_path / "b.html").write_text('<a name="y" href="a.html#x"></a><script src="https://example.org/x.js"></script>')
    (tmp_path / "c.png").touch()
    assert list(make_site.broken_links(tmp_path)) == ["b.html: https://example.org/x.js is loaded from elsewhere"]


@pytest.fixture(scope="module")
def small_site(tmp_path_factory):
    """A start page and one notebook, built as the whole is."""
    source, target = (tmp_path_factory.mktemp("site") / name for name in ("src", "html"))
    text = "# Start\n\npfml-01, [10](notebooks/12_pfml_proxy_alignment.ipynb)\n\n```{toctree}\nledger\n"
    make_site.write_text(source / "index.md", f"{text}notebooks/12_pfml_proxy_alignment\n```\n")
    rows = boards.claims_table().replace(' href="notebooks/', ' title="')  # these pages are not built here
    make_site.write_text(source / "ledger.md", f"# Ledger\n\n{rows}\n")
    path = ROOT / "notebooks" / "12_pfml_proxy_alignment.ipynb"
    make_site.write_text(source / "notebooks" / path.name, make_site.staged_notebook(path, source))
    make_site.build(source, target)
    return target


def test_a_notebook_is_a_page_with_everything_in_it(small_site):
    notebook = nbformat.read(ROOT / "notebooks" / "12_pfml_proxy_alignment.ipynb", as_version=4)
    html = BeautifulSoup((small_site / "notebooks" / "12_pfml_proxy_alignment.html").read_text(), "html.parser")
    outputs = [output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", ())]
    described = [data["text/plain"] for data in outputs if "image/png" in data]
    assert [image["alt"] for image in html.select("article img")] == described != []
    math = html.select("article math")
    assert math and not [
        formula for formula in math if "\\" in formula.text
    ]  # latex2mathml shows what it does not know
    assert html.select("details.hide") and html.select_one("a[href='../ledger.html#pfml-07']")
    assert html.select_one("a.prev-page") and html.select_one("input[name=q]")


def test_the_search_index_knows_words_of_notebooks(small_site):
    assert "proposit" in (small_site / "searchindex.js").read_text(encoding="utf8")


def test_every_equation_of_every_page_becomes_mathml():
    for path in [*(ROOT / "notebooks").glob("*.ipynb"), *(ROOT / "docs").rglob("*.md")]:
        text = path.read_text(encoding="utf8")
        if path.suffix == ".ipynb":
            cells = nbformat.reads(text, as_version=4).cells
            text = "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
        prose = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL).replace("\\$", "")
        for block, inline in re.findall(r"\$\$(.+?)\$\$|\$([^$\n]+)\$", prose, re.DOTALL):
            assert "\\" not in BeautifulSoup(extension.mathml(block or inline, "block"), "html.parser").text, path.name


def test_the_make_target_builds_with_warnings_as_errors():
    plan = subprocess.run(["make", "-n", "-o", ".venv/installed", "site"], cwd=ROOT, capture_output=True, text=True)
    assert "workflow/make_site.py" in plan.stdout
    assert '"-W", "--keep-going"' in (ROOT / "workflow" / "make_site.py").read_text(encoding="utf8")
    assert "\nmake site " in (ROOT / ".ci" / "run").read_text(encoding="utf8")
