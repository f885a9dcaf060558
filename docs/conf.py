"""The documentation as a site: python -m sphinx -W -b html docs site"""

from __future__ import annotations

from tvmconvgrad.version import __version__

project = "tvmconvgrad"
author = "The tvmconvgrad authors"
project_copyright = author
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
html_theme = "furo"
html_title = f"{project} {version}"
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]
suppress_warnings = [
    "myst.xref_missing",
    "myst.header",
]  # links to files beside docs/, which are read in the repository
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_mock_imports = ["torch"]
