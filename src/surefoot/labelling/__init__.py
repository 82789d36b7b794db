"""Step labels from Monte Carlo rollouts, tree search, judges, rules, experts and their consensus.

A labeller takes traces with their problems and gives one list of labels per trace
(:class:`surefoot.protocols.Labeller`).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
