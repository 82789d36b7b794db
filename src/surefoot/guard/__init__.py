"""Tool calls are checked before they are released: by their schema, by rules, and by a reward model.

:class:`Guard` decides about one message of a model; :func:`guarded_reply` also samples again.
:mod:`surefoot.server` uses the same class for clients of any kind.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
