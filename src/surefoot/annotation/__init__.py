"""Labels by people: the database of projects, items and labels, and the web pages over it."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
