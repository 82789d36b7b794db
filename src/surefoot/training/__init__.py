"""Training of reward models, verifiers and cloned policies: examples, losses, one loop.

The settings classes load without torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
