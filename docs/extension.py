"""What Sphinx lacks for this site: equations as MathML, figures with words, claims that link to the ledger, and
docstrings in plain text.
"""

import re
import textwrap

import nbformat
from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx

CLAIM = re.compile(r"\b(?:pfml|nivmf|meanfield|ccp|plm)-\d\d\b")
SECTION = re.compile(r"(Args|Returns|Yields|Raises|Attributes|Example|Examples|Note):")
COLUMN = 11  # where the text begins in the head of a module
HEAD = re.compile(rf"(?=.{{{COLUMN - 1}}} |[A-Z][a-z]+$)[A-Z][a-z]+ *\S?| {{2}}")
LEDGER = "ledger"
WITHOUT_LINKS = (nodes.literal, nodes.raw, nodes.reference, nodes.title, nodes.FixedTextElement)


def mathml(latex: str, display: str) -> str:
    """MathML of a formula, with the space after log, exp and the like that latex2mathml leaves out, and without the
    space that browsers leave beside the bars of |x|, because they stand for an operator elsewhere."""
    found = convert(latex, display=display).replace(r"<mi>\arg</mi>", "<mi>arg</mi>")  # which it does not know
    found = re.sub(r"(<mi>[a-z]{3}</mi>)(?=<m[ins])", r'\1<mspace width="0.17em"/>', found)
    return found.replace('<mo stretchy="false">&#x0007C;</mo>', '<mo stretchy="false" lspace="0" rspace="0">|</mo>')


def visit_inline(self, node: nodes.math) -> None:
    self.body.append(mathml(node.astext(), "inline"))
    raise nodes.SkipNode


def visit_block(self, node: nodes.math_block) -> None:
    self.body.append(f'<div class="math-scroll" tabindex="0">{mathml(node.astext().strip(), "block")}</div>\n')
    raise nodes.SkipNode


def describe_figures(app: Sphinx, doctree: nodes.document) -> None:
    """Every figure of a notebook gets its words, the plain text beside it, as alternative text."""
    path = app.env.doc2path(app.env.docname)
    if not str(path).endswith(".ipynb"):
        return
    outputs = (output for cell in nbformat.read(path, as_version=4).cells for output in cell.get("outputs", ()))
    words = [output["data"].get("text/plain", "") for output in outputs if "image/png" in output.get("data", {})]
    pictures = [image for image in doctree.findall(nodes.image) if "jupyter_execute" in image["uri"]]
    for image, text in zip(pictures, words, strict=True):
        image["alt"] = text


def link_claims(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """The ids of claims in the running text become links to their rows of the ledger."""
    if docname == LEDGER or LEDGER not in app.env.all_docs:
        return
    target = app.builder.get_relative_uri(docname, LEDGER)
    for text in list(doctree.findall(nodes.Text)):
        if not CLAIM.search(text) or _lies_in(text, WITHOUT_LINKS):
            continue
        parts, end = [], 0
        for found in CLAIM.finditer(text):
            parts.append(nodes.Text(text[end : found.start()]))
            link = nodes.reference("", found[0], internal=True, refuri=f"{target}#{found[0]}")
            parts.append(link)
            end = found.end()
        text.parent.replace(text, [*parts, nodes.Text(text[end:])])


def _lies_in(node: nodes.Node, kinds: tuple[type[nodes.Node], ...]) -> bool:
    while node := node.parent:
        if isinstance(node, kinds):
            return True
    return False


def plain(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Docstrings are plain text: bars, stars and underscores are themselves, indented paragraphs are code, and indented
    lines go on with the entry above. The head of a module, "Paper  ..., Equations  ...", becomes a list."""
    found: list[str] = []
    for place, paragraph in enumerate("\n".join(lines).rstrip().split("\n\n")):
        own = paragraph.split("\n")
        if what == "module" and place == 1 and all(HEAD.match(line) for line in own):
            found += _head(own)
        elif SECTION.fullmatch(own[0]) or own[0].startswith("- "):  # which napoleon or Sphinx read
            found += map(_escaped, own)
        elif own[0].startswith(" ") or (what == "module" and any(line.startswith(" ") for line in own)):
            found += [".. code-block:: none", "", *(f"   {line}" for line in own)]
        elif any(line.startswith(" ") for line in own):
            entries = re.sub(r"\n +", " ", paragraph).split("\n")
            found += (f"| {_escaped(entry)}" for entry in entries)
        else:
            found += map(_escaped, own)
        found.append("")
    lines[:] = found


def _head(lines: list[str]) -> list[str]:
    """A definition for each word of the first column, with the text of the second."""
    found: list[str] = []
    for entry in re.split(r"\n(?=\S)", "\n".join(lines)):
        first, *others = entry.split("\n")
        text = textwrap.dedent("\n".join([" " * COLUMN + first[COLUMN:], *others])).strip("\n")
        found += [first[:COLUMN].strip(), *(f"   {_escaped(line)}" for line in text.split("\n"))]
    return found


def _escaped(line: str) -> str:
    """What reStructuredText would take for marks, outside of backquotes."""
    parts = re.split(r"(``.*?``|`[^`]*`)", line)
    return "".join(part if part.startswith("`") else re.sub(r"([|*\\]|_(?=\W|$))", r"\\\1", part) for part in parts)


def setup(app: Sphinx) -> dict:
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    app.connect("doctree-read", describe_figures)
    app.connect("doctree-resolved", link_claims)
    app.connect("autodoc-process-docstring", plain, priority=400)  # before napoleon finds the sections
    return {"parallel_read_safe": True, "parallel_write_safe": True}
