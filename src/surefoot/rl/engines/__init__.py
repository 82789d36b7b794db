"""Step and turn rewards for engines that train elsewhere: TRL's GRPO trainer, verl, SkyRL, prime-rl."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
