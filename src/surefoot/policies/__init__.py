"""Policies: who writes solutions, and how a problem becomes a prompt.

Each is a ``surefoot.protocols.Policy``: a model in this process, any OpenAI-compatible server, or a function.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
