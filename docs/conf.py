"""Settings of the site that `make docs` builds (tools/docs.py)."""

from contextlib import suppress
from importlib import import_module
from importlib.metadata import version as installed_version
from pathlib import Path

import surefoot

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
# entries of the API reference are closed until a link leads to one
html_css_files = ["entries.css"]
html_js_files = ["entries.js"]
html_static_path = ["static"]

# autodoc changes annotations of pydantic's BaseModel, after which modules with such classes do not load
SOURCE = Path(surefoot.__file__).parent
for stub in SOURCE.rglob("__init__.pyi"):
    package = import_module(".".join(("surefoot", *stub.parent.relative_to(SOURCE).parts)))
    for name in package.__all__:
        with suppress(ImportError):
            getattr(package, name)
