"""Programs that nobody trusts, in isolation: ``open_sandbox``, programs in, results out."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
