"""Readers and writers by the names that the command line uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

from surefoot.errors import RecordError
from surefoot.formats._rows import WriteReport
from surefoot.formats.agent_processbench import read_agent_processbench, write_agent_processbench
from surefoot.formats.bigbench_mistake import read_bigbench_mistake
from surefoot.formats.code_problems import read_humaneval, read_mbpp, read_mbpp_check
from surefoot.formats.label_studio import read_label_studio, write_label_studio
from surefoot.formats.math_aps import read_math_aps, write_math_aps
from surefoot.formats.math_shepherd import read_math_shepherd, write_math_shepherd
from surefoot.formats.prm800k import read_prm800k, write_prm800k
from surefoot.formats.prm800k_steps import read_prm800k_steps, write_prm800k_steps
from surefoot.formats.prmbench import read_prmbench, read_prmbench_controls
from surefoot.formats.problems import read_gsm8k, read_gsm8k_solutions, read_math500
from surefoot.formats.processbench import read_processbench, write_processbench
from surefoot.formats.stepwise import read_stepwise, write_stepwise
from surefoot.formats.who_and_when import read_who_and_when, write_who_and_when
from surefoot.io.sources import files_of
from surefoot.protocols import LabelledTrace, ProblemTrace
from surefoot.records import Problem

Reader = Callable[..., Iterator[Problem] | Iterator[ProblemTrace] | Iterator[LabelledTrace]]

SOURCES: Mapping[str, Reader] = MappingProxyType(
    {
        "agent-processbench": read_agent_processbench,
        "bigbench-mistake": read_bigbench_mistake,
        "gsm8k": read_gsm8k,
        "gsm8k-solutions": read_gsm8k_solutions,
        "humaneval": read_humaneval,
        "label-studio": read_label_studio,
        "math500": read_math500,
        "math-aps": read_math_aps,
        "math-shepherd": read_math_shepherd,
        "mbpp": read_mbpp,
        "mbpp-check": read_mbpp_check,
        "prm800k": read_prm800k,
        "prm800k-steps": read_prm800k_steps,
        "prmbench": read_prmbench,
        "prmbench-controls": read_prmbench_controls,
        "processbench": read_processbench,
        "stepwise": read_stepwise,
        "who-and-when": read_who_and_when,
    }
)
"""Readers by name; each takes a path and ``report``."""

SIGN_WRITERS: Mapping[str, Callable[..., WriteReport]] = MappingProxyType(
    {
        "math-shepherd": write_math_shepherd,
        "processbench": write_processbench,
        "stepwise": write_stepwise,
    }
)
"""Writers of formats with two signs; each takes labelled traces, a path, ``neutral`` and ``threshold``."""

WRITERS: Mapping[str, Callable[..., WriteReport]] = MappingProxyType(
    {
        **SIGN_WRITERS,
        "agent-processbench": write_agent_processbench,
        "label-studio": write_label_studio,
        "math-aps": write_math_aps,
        "prm800k": write_prm800k,
        "prm800k-steps": write_prm800k_steps,
        "who-and-when": write_who_and_when,
    }
)
"""All writers by name; those not in ``SIGN_WRITERS`` keep values as they are and take no options."""


def read_source(
    name: str, path: Path | str, **options: Any
) -> Iterator[Problem] | Iterator[ProblemTrace] | Iterator[LabelledTrace]:
    """Read ``path`` with the reader called ``name``; ``options`` (such as ``report``) are passed to it.

    A text may also be a pattern, a folder of shards or a URL, see :func:`surefoot.io.sources.files_of`; each
    file is read by itself.

    Raises ``RecordError`` for a name that is not in ``SOURCES``.
    """
    if name not in SOURCES:
        raise RecordError(f"no source is called '{name}'; choose one of {', '.join(SOURCES)}")
    read: Callable[..., Iterator[Any]] = SOURCES[name]
    return chain.from_iterable(read(file, **options) for file in files_of(path))
