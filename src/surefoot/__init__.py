"""surefoot: process supervision, feedback on every step of a model's reasoning."""

from importlib.metadata import version

__version__ = version("surefoot")
