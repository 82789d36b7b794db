"""Formats that surefoot reads and writes, one file each; ``SOURCES`` finds a reader by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from surefoot.errors import RecordError
from surefoot.protocols import LabelledTrace, ProblemTrace
from surefoot.records import Problem
from surefoot.sources._rows import ReadReport
from surefoot.sources._signs import Neutral, WriteReport
from surefoot.sources.gsm8k import read_gsm8k, read_gsm8k_solutions
from surefoot.sources.math500 import read_math500
from surefoot.sources.math_shepherd import read_math_shepherd, write_math_shepherd
from surefoot.sources.prm800k import read_prm800k
from surefoot.sources.prm800k_steps import read_prm800k_steps, write_prm800k_steps
from surefoot.sources.processbench import read_processbench, write_processbench
from surefoot.sources.stepwise import read_stepwise, write_stepwise

__all__ = [
    "SOURCES",
    "Neutral",
    "ReadReport",
    "WriteReport",
    "read_gsm8k",
    "read_gsm8k_solutions",
    "read_math500",
    "read_math_shepherd",
    "read_prm800k",
    "read_prm800k_steps",
    "read_processbench",
    "read_source",
    "read_stepwise",
    "write_math_shepherd",
    "write_prm800k_steps",
    "write_processbench",
    "write_stepwise",
]

Reader = Callable[..., Iterator[Problem] | Iterator[ProblemTrace] | Iterator[LabelledTrace]]

SOURCES: Mapping[str, Reader] = MappingProxyType(
    {
        "gsm8k": read_gsm8k,
        "gsm8k-solutions": read_gsm8k_solutions,
        "math500": read_math500,
        "math-shepherd": read_math_shepherd,
        "prm800k": read_prm800k,
        "prm800k-steps": read_prm800k_steps,
        "processbench": read_processbench,
        "stepwise": read_stepwise,
    }
)
"""Readers by name; each takes a path and ``report``."""


def read_source(
    name: str, path: Path | str, **options: Any
) -> Iterator[Problem] | Iterator[ProblemTrace] | Iterator[LabelledTrace]:
    """Read ``path`` with the reader called ``name``; ``options`` (such as ``report``) are passed to it.

    Raises ``RecordError`` for a name that is not in ``SOURCES``.
    """
    if name not in SOURCES:
        raise RecordError(f"no source is called '{name}'; choose one of {', '.join(SOURCES)}")
    return SOURCES[name](path, **options)
