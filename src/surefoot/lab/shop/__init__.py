"""The shop: a desk at which an agent refunds, cancels and denies, with a policy, loopholes and tools that
fail.

The truth of every step is computed from the state; a scripted agent has known rates of error.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
