"""Release cards: one record of what a model is, recomputed from the files behind it, and its renderings."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
