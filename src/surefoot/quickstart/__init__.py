"""The whole main job in one run: problems, traces, labels, reward models, better answers, a report."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
