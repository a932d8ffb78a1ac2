"""How Sphinx builds the documentation: `make docs`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

import lasg

project = "lasg"
author = "the authors of lasg"
copyright = "2026, the authors of lasg"  # noqa: A001 (Sphinx's name)
version = release = lasg.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "lasg_pages"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build", "_extensions", "_templates"]
language = "en"

# Links between pages and to headings are checked as references: an unknown one is a warning, and warnings are errors.
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4
highlight_language = "none"  # a block says its language, or has none
suppress_warnings: list[str] = []
nitpicky = False

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "undoc-members": False, "show-inheritance": False}
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
default_role = "code"  # docstrings write `name`

html_theme = "furo"
html_title = f"lasg {version}"
html_static_path = ["_static"]
html_css_files = ["lasg.css"]
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0072b2", "color-brand-content": "#0072b2"},
    "dark_css_variables": {"color-brand-primary": "#56b4e9", "color-brand-content": "#56b4e9"},
    "navigation_with_keys": True,
}
# The site works from disk and without a network: no fonts, scripts or pictures from elsewhere.
html_show_sourcelink = False
html_copy_source = False

# Where the site is, if it is anywhere: makes the picture of social previews, whose address must be a whole one.
html_baseurl = os.environ.get("DOCS_URL", "")
if html_baseurl:
    html_extra_path = ["picture.png"]
    html_context = {"social_picture": f"{html_baseurl}picture.png"}
templates_path = ["_templates"]
