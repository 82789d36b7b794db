"""Small worlds in which the truth of every step is known, and the tiny models that live in the first.

Problems are generated and every step is checked exactly; scripted solvers and critics have known error rates;
two shipped language models solve the problems and serve as the trunk of reward models. Model organisms are
policies whose true cause is known: for faithfulness tests and monitors.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
