"""A small world in which the truth of every step is known, and the tiny models that live in it.

Problems are generated and every step is checked exactly; a scripted solver has known error rates; two shipped
language models solve the problems and serve as the trunk of reward models.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
