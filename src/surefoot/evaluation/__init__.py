"""Best-of-N curves, label quality, calibration, benchmarks, audits, and the reports that show them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
