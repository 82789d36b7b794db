"""Untrusted programs in isolation: ``open_sandbox`` runs programs and returns results."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
