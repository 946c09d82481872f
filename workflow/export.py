"""What `make html` does: every notebook becomes a page to read offline, on a phone too, with an index of them.

nbconvert's own page loads MathJax and other scripts from elsewhere. Here nothing is loaded: equations become MathML,
which browsers draw by themselves. Tables and equations that are wider than the window scroll in a box of their own.
"""

import re
import sys
from pathlib import Path

import nbformat
from bs4 import BeautifulSoup
from jinja2 import pass_context
from latex2mathml.converter import convert
from nbconvert import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

from dmlrepro.evidence.saving import write_text


class Renderer(IPythonRenderer):
    """Markdown to HTML with equations as MathML."""

    def block_math(self, body: str) -> str:
        return f'<span class="scroll">{_mathml(body, "block")}</span>'

    def inline_math(self, body: str) -> str:
        return _mathml(body, "inline")

    def latex_environment(self, name: str, body: str) -> str:
        return self.block_math(f"\\begin{{{name}}}{body}\\end{{{name}}}")


def _mathml(latex: str, display: str) -> str:
    """MathML of a formula, with the space after log, exp and the like that latex2mathml leaves out, and without the
    space that browsers leave beside the bars of |x|, because they stand for an operator elsewhere."""
    found = convert(latex, display=display).replace(r"<mi>\arg</mi>", "<mi>arg</mi>")  # which it does not know
    found = re.sub(r"(<mi>[a-z]{3}</mi>)(?=<m[ins])", r'\1<mspace width="0.17em"/>', found)
    return found.replace('<mo stretchy="false">&#x0007C;</mo>', '<mo stretchy="false" lspace="0" rspace="0">|</mo>')


class Exporter(HTMLExporter):
    """A page without scripts; the template is in the folder `page`."""

    @pass_context
    def markdown2html(self, context, source: str) -> str:
        return MarkdownWithMath(renderer=Renderer(escape=False, exclude_anchor_links=True)).render(source)


def page(notebook: nbformat.NotebookNode) -> str:
    """The HTML of a notebook that lies in notebooks/ and whose page will lie in build/html/."""
    heading = next(line for line in notebook.cells[0].source.splitlines() if line.startswith("# "))
    notebook.metadata["title"] = heading.removeprefix("# ")
    exporter = Exporter(template_name="page", extra_template_basedirs=[str(Path(__file__).parent)])
    html = BeautifulSoup(exporter.from_notebook_node(notebook)[0], "html.parser")
    for table in html.select("table"):
        table.wrap(html.new_tag("div", attrs={"class": "scroll", "tabindex": "0"}))
    for link in html.select("a[href]"):
        link["href"] = _from_here(link["href"])
    return str(html)


def _from_here(link: str) -> str:
    """A link of a notebook, from its page: other notebooks are pages beside it, files lie where they lie."""
    if "://" in link or link.startswith("#"):
        return link
    name = link.removesuffix(".ipynb")
    return f"{name}.html" if name != link and "/" not in name else f"../../notebooks/{link}"


def main(notebooks: Path, target: Path) -> None:
    for path in sorted(notebooks.glob("*.ipynb")):
        write_text(target / f"{path.stem}.html", page(nbformat.read(path, as_version=4)))
    index = nbformat.v4.new_markdown_cell((notebooks / "README.md").read_text(encoding="utf8"))
    write_text(target / "index.html", page(nbformat.v4.new_notebook(cells=[index])))
    print(f"{target / 'index.html'}: {len(list(target.glob('*.html')))} pages")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
