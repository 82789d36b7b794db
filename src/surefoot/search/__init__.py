"""Choosing among solutions, and search guided by step scores.

Selection rules with unbiased estimates of how well they do with k samples; and searches, one file per method,
all on one base, :class:`SearchMethod`, run by :func:`run_search`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
