"""Published benchmarks of step scorers and judges: ProcessBench and PRMBench."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
