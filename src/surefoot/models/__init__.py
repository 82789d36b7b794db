"""Reward models: loading, scoring, their parts, and scorers that combine other scorers.

``load_prm`` opens any of them: a checkpoint trained here, a published one, a server, or an ensemble.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
