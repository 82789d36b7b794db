"""The gateway: an OpenAI-compatible server that searches and verifies, with scores, health and metrics."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
