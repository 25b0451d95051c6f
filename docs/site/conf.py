"""Sphinx's settings for the site. scripts/docs runs Sphinx."""

import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
root = pathlib.Path(__file__).resolve().parents[2]
project = "Tern"
release = re.search(r"TERN_VERSION \"(\S+)\"", (root / "include/tern/core/version.hpp").read_text())[1]
version = release
copyright = "the Tern authors"
extensions = ["breathe", "contents", "cpp_links", "myst_parser"]
templates_path: list[str] = []
exclude_patterns: list[str] = []
root_doc = "index"
highlight_language = "none"
pygments_style = "friendly"
pygments_dark_style = "monokai"

breathe_projects = {"tern": str(root / "build/docs/doxygen/xml")}
breathe_default_project = "tern"
breathe_show_include = False
cpp_index_common_prefix = ["tern::"]
primary_domain = "py"

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
# Sketches of programs and C++ with placeholders are no whole programs. Overloads that differ in constraints look alike to
# Sphinx. Types in signatures of Python are names of other libraries.
suppress_warnings = ["misc.highlighting_failure", "duplicate_declaration.cpp", "duplicate_declaration.c", "ref.python", "myst.xref_ambiguous"]

html_theme = "furo"
html_title = f"Tern {release}"
html_static_path = ["static"]
html_css_files = ["tern.css"]
html_search_scorer = str(pathlib.Path(__file__).resolve().parent / "scorer.js")
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": True, "sidebar_hide_name": False}
smartquotes = False
