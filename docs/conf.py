"""Sphinx reads the staged pages of build/site-src with this configuration; `make site` (workflow/make_site.py) stages.

Nothing is fetched while a page is read: the theme brings its scripts, and equations are MathML.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import dmlrepro

project = "dmlrepro"
author = "The dmlrepro authors"
copyright = author
version = release = dmlrepro.__version__
html_title = "dmlrepro"

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode", "extension"]
html_theme = "furo"
html_theme_options = {"navigation_with_keys": True}
html_favicon = "_static/icon.svg"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_math_renderer = "mathml"
html_copy_source = False
html_show_sphinx = False

myst_enable_extensions = ["amsmath", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # notebooks are committed as they were executed
nb_render_markdown_format = "myst"
nb_merge_streams = True

smartquotes = False
default_role = "py:obj"  # single backquotes of a docstring: a link where the name is documented, else code
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
viewcode_follow_imported_members = False
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
