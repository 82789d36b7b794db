"""Learning from step rewards: reinforcement learning, behaviour cloning, and expert iteration.

``train_policy`` trains on a ``Task`` by the settings of an ``RLConfig``; ``PRESETS`` has the published
methods.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
