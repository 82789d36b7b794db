"""The same work in one process or many: pieces, and the engines that do them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
