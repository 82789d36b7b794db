"""surefoot: process supervision, feedback on every step of a model's reasoning."""

from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from surefoot.models.loading import load_prm

__version__ = version("surefoot")
__all__ = ["__version__", "load_prm"]


def __getattr__(name: str) -> object:
    """``load_prm`` brings torch with it, so it is imported when first asked for."""
    if name == "load_prm":
        from surefoot.models.loading import load_prm

        return load_prm
    raise AttributeError(f"module 'surefoot' has no attribute {name!r}")
