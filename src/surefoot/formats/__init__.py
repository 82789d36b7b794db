"""Public data sets and logs of other programs, one file per format; ``FORMATS`` lists all by name.

A reader raises ``RecordError`` for a bad row, or with a ``report`` skips and counts it. Labels of rows
without a timestamp get the time of reading as ``created``. A writer counts items that its format cannot hold.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
