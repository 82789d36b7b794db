"""Settings of the site that `make docs` builds (tools/docs.py)."""

from importlib.metadata import version as installed_version

project = "surefoot"
release = installed_version("surefoot")
copyright = "the surefoot authors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "index"
html_theme = "furo"
html_title = f"surefoot {release}"
html_copy_source = False
myst_heading_anchors = 4
autodoc_member_order = "groupwise"
# docstrings of fields begin with a shape, such as [steps], which autodoc takes for a name
suppress_warnings = ["ref.python"]
