"""Exported pages: nothing is loaded, equations are MathML, what is wide scrolls, links lead to pages or files."""

import importlib.util
import re
from pathlib import Path

import nbformat
import pytest
from bs4 import BeautifulSoup

ROOT = Path(__file__).parents[1]
_spec = importlib.util.spec_from_file_location("export", ROOT / "workflow" / "export.py")
export = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(export)

TABLE = "| a | b |\n|---|---|\n| [10](10_pfml_retrieval.ipynb) | $x_1 < 2$ |"
TEXT = f"""# A page

Inline $\\log r$ and a price of 5 \\$.

$$\\sum_i \\frac{{1}}{{z_i}}$$

\\begin{{align}}a &= b\\end{{align}}

{TABLE}

[results](../results/claims.csv), [the web](https://example.org/x.ipynb), [here](#a)
"""


@pytest.fixture(scope="module")
def page():
    output = nbformat.v4.new_output("display_data", {"text/html": "<table><tr><td>1</td></tr></table>"})
    markdown = nbformat.v4.new_output("display_data", {"text/markdown": TABLE, "text/plain": ""})
    cells = [nbformat.v4.new_markdown_cell(TEXT), nbformat.v4.new_code_cell("1", outputs=[output, markdown])]
    return BeautifulSoup(export.page(nbformat.v4.new_notebook(cells=cells)), "html.parser")


def loaded(html: BeautifulSoup) -> list[str]:
    """Whatever a browser would run or fetch."""
    found = [str(tag)[:80] for tag in html.select("script, iframe, link[href], object, embed")]
    found += [tag["src"][:80] for tag in html.select("[src]") if not tag["src"].startswith("data:")]
    style = "".join(tag.text for tag in html.select("style")) + "".join(tag["style"] for tag in html.select("[style]"))
    return found + [url for url in re.findall(r"url\(\s*['\"]?([^)]*)", style) if not url.startswith(("data:", "#"))]


def test_nothing_is_loaded_from_anywhere(page):
    assert loaded(page) == []
    assert loaded(BeautifulSoup("<script src='https://a.b/c.js'></script><img src='d.png'>", "html.parser"))


def test_equations_are_mathml_and_no_latex_is_left(page):
    assert len(page.select("math")) == 5  # inline, block, environment, and one in each table
    for tag in page.select("math"):
        tag.extract()
    assert "\\" not in page.select_one("main").text.replace("\\$", "")
    assert "price of 5 $." in page.text


def test_bars_of_a_formula_stand_close_to_what_they_enclose():
    assert export._mathml("2|C|", "inline").count('<mo stretchy="false" lspace="0" rspace="0">|</mo>') == 2


def test_arg_min_is_two_words():
    assert '<mi>arg</mi><mspace width="0.17em"/>' in export._mathml(r"\arg\min_x y", "inline")


def test_wide_tables_and_equations_scroll_in_a_box_of_their_own(page):
    assert len(page.select("table")) == 3
    assert all("scroll" in table.parent["class"] for table in page.select("table"))
    style = "".join(tag.text for tag in page.select("style"))
    (rule,) = re.findall(r"^\.scroll,[^}]*\}", style, re.MULTILINE)
    assert "overflow-x: auto" in rule and "max-width: 100%" in rule


def test_links_lead_to_pages_and_to_files(page):
    links = [tag["href"] for tag in page.select("a[href]")]
    assert links.count("10_pfml_retrieval.html") == 2
    assert {"../../notebooks/../results/claims.csv", "https://example.org/x.ipynb", "#a"} <= set(links)


@pytest.mark.parametrize("name", ["12_pfml_proxy_alignment", "92_claims"])
def test_a_notebook_is_exported_whole(name):
    notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    pictures = sum(
        "image/png" in output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", ())
    )
    html = BeautifulSoup(export.page(notebook), "html.parser")
    assert loaded(html) == []
    assert len(html.select("img[alt]")) == pictures > 0
    assert html.title.text in html.select_one("h1").text
    for link in html.select("a[href]"):
        if link["href"].startswith("../../"):
            assert (ROOT / "build" / "html" / link["href"]).resolve().exists()


def test_every_equation_of_every_notebook_becomes_mathml():
    """latex2mathml shows a command that it does not know as text."""
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        cells = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown"]
        renderer = export.Renderer(escape=False, exclude_anchor_links=True)
        html = "".join(export.MarkdownWithMath(renderer=renderer).render(source) for source in cells)
        math = [tag.text for tag in BeautifulSoup(html, "html.parser").select("math")]
        assert [text for text in math if "\\" in text] == [], path.name
