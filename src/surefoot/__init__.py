"""surefoot: process supervision, feedback on every step of a model's reasoning.

The names here tell the whole story, from records to a measured reward model; each subpackage
(``surefoot.segment``, ``surefoot.labelling``, ``surefoot.search`` …) offers the rest of its part. Everything
is imported when it is first asked for, so ``import surefoot`` is quick.
"""

from importlib.metadata import version

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__version__ = version("surefoot")
