"""Public formats that surefoot reads and writes, one file each; ``SOURCES`` finds a reader by name.

A reader refuses a bad row, or with a ``report`` skips and counts it; a writer counts what its format drops.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
