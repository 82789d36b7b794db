"""Statistics that every part of the package shares: intervals, bootstrap, AUC, reliability, agreement."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
