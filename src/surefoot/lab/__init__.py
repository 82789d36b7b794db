"""Word problems in English with exact truth of every step, and small models that live among them.

Problems are generated and every step is checked exactly; a shipped language model solves them with mistakes,
and shipped reward models find these.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
