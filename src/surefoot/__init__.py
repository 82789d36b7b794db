"""surefoot: process supervision, feedback on every step of a model's reasoning.

The names here tell the whole story, from records to a measured reward model; each subpackage
(``surefoot.segment``, ``surefoot.labelling``, ``surefoot.search`` …) offers the rest of its part. Everything
is imported when it is first asked for, so ``import surefoot`` is quick.
"""

from typing import Any

import lazy_loader

_import, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version  # takes longer than all else here

        return version("surefoot")
    return _import(name)
