"""Optional packages, the extras that install them, and messages for missing ones."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from types import MappingProxyType
from typing import Final

from surefoot.errors import MissingExtraError

EXTRAS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "guard": ("cel",),
        "evaluation": ("matplotlib", "PIL", "sklearn"),
        "data": ("datasets", "pyarrow", "zstandard"),
        "models": (
            "huggingface_hub", "pyarrow", "safetensors", "sklearn", "torch", "transformers",
        ),
        "train": ("accelerate", "peft"),
        "server": (
            "httptools", "latex2mathml", "markdown_it", "prometheus_client",
            "pygments", "python_multipart", "sqlalchemy", "starlette", "uvicorn",
        ),
        "postgres": ("psycopg",),
        "gguf": ("gguf",),
        "ray": ("ray",),
        "pydantic-ai": ("pydantic_ai",),
        "openai-agents": ("agents",),
        "langgraph": ("langgraph",),
        "trl": ("trl",),
    }
)  # fmt: skip
"""Names that are imported, by the extra of ``pyproject.toml`` that installs them. Of a package that several
extras install, messages name the first."""


def installed(module: str) -> bool:
    """Whether a package can be imported."""
    try:
        return find_spec(module) is not None
    except ImportError:  # a finder refuses it
        return False


def need(module: str, what: str) -> None:
    """Raise ``MissingExtraError`` if ``module``, which ``what`` needs, is not installed."""
    if not installed(module):
        raise MissingExtraError(f"{what} needs {sentence(module)}")


def sentence(module: str) -> str | None:
    """The package and the line that installs its extra; ``None`` if no extra has it."""
    top = module.partition(".")[0]
    for extra, modules in EXTRAS.items():
        if top in modules:
            return f"the package {top}: pip install '.[{extra}]' in a clone of surefoot"
    return None
