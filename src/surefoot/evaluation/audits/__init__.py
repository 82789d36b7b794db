"""Audits for the known failures of reward models, for any step scorer; each with its report section."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
