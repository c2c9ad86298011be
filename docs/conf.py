"""Sphinx's settings: `make docs` builds the site from the Markdown pages here.

Pages about methods, commands and public names are generated into docs/generated before
Sphinx reads the sources. Nothing is fetched from the network.
"""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src"), str(HERE.parent / "tests")]

import fedtailor  # noqa: E402
from generators import highlight, notebooks, pages, repository_links  # noqa: E402

project = "fedtailor"
author = "The fedtailor authors"
copyright = "The fedtailor authors, Apache 2.0"
version = release = fedtailor.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_design",
]
exclude_patterns = ["_build"]

# The site is complete without the network: the theme's fonts and scripts are its own.
html_theme = "furo"
html_title = f"fedtailor {release}"
html_static_path = ["_static"]
html_extra_path = ["generated/llms.txt", "../skills/fedtailor/SKILL.md"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": True, "top_of_page_buttons": []}

# Headings have the anchors that links between Markdown files use.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
suppress_warnings = [
    "myst.header",  # generated pages begin their sections at ###
    "ref.python",  # `Diverged` is a name of several packages
]

smartquotes_action = "qe"  # `--option` keeps its hyphens
default_role = "code"  # `name` in docstrings
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True  # a line for each attribute, not four
nitpicky = False


def setup(app):
    app.add_lexer("sh", highlight.Commands)
    pages.write(HERE / "generated")
    app.connect("source-read", repository_links.rewrite)
    app.connect("source-read", notebooks.add_link)
    # Before napoleon reads the sections of a docstring.
    app.connect("autodoc-process-docstring", pages.tidy_docstring, priority=100)
