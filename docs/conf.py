"""`make site`: Sphinx reads the pages where they lie, from the root of the repository."""

from docutils import nodes
from latex2mathml.converter import convert

import dmlrepro

project = html_title = "dmlrepro"
author = copyright = "The dmlrepro authors"
version = release = dmlrepro.__version__

root_doc = "docs/index"
include_patterns = ["docs/**.md", "notebooks/*", "*.md", "data/**.md", "results/README.md", "examples/README.md"]
exclude_patterns = [".*", "build", "tests", "**/.ipynb_checkpoints"]
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]

html_theme = "furo"
html_theme_options = {"navigation_with_keys": True}
html_favicon = "_static/icon.svg"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_extra_path = ["_static/index.html"]
html_math_renderer = "mathml"
html_copy_source = html_show_sphinx = smartquotes = False

myst_enable_extensions = ["amsmath", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # notebooks are committed as they were executed
nb_render_markdown_format = "myst"
nb_merge_streams = True
suppress_warnings = ["mystnb.unknown_mime_type"]

autodoc_default_options = {"members": True, "member-order": "bysource"}


def math(display):
    """A formula as MathML, which browsers show without a script."""

    def visit(self, node):
        self.body.append(convert(node.astext().strip(), display=display).replace(r"\arg", "arg"))
        raise nodes.SkipNode

    return visit, None


def as_written(app, what, name, obj, options, lines):
    """Docstrings are plain text, shown without markup."""
    if any(lines):
        lines[:] = [".. code-block:: none", "", *(f"   {line}" for line in lines)]


def setup(app):
    app.add_html_math_renderer("mathml", math("inline"), math("block"))
    app.connect("autodoc-process-docstring", as_written)
