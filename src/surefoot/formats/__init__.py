"""Public data sets and logs of other programs, one file per format; ``FORMATS`` lists all by name.

A reader rejects a bad row, or with a ``report`` skips and counts it; a writer counts what its format cannot
hold.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
