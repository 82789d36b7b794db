"""Readers of data sets that only benchmarks use, by name.

    python -m benchmarks.readers r-judge rjudge.json.gz --out rjudge

writes ``problems.jsonl``, ``traces.jsonl`` and ``labels.jsonl``, as ``surefoot import`` does for its formats.
Of published scores it writes ``scores.jsonl``, of published judges ``labels.jsonl``.
"""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from benchmarks.readers.agent_judgements import read_judges, read_people
from benchmarks.readers.bfcl_results import read_bfcl_results
from benchmarks.readers.bigbench_mistake import read_bigbench_mistake
from benchmarks.readers.fover import read_fover_scores
from benchmarks.readers.math_aps import read_math_aps
from benchmarks.readers.r_judge import read_r_judge
from benchmarks.readers.shade_arena import read_shade_arena
from benchmarks.readers.thought_branches import read_thought_branches
from surefoot.protocols import LabelledTrace
from surefoot.records import Record

READERS: Final[Mapping[str, Callable[..., Iterator[LabelledTrace]]]] = MappingProxyType(
    {
        "agent-people": read_people,
        "bfcl": read_bfcl_results,
        "bigbench-mistake": read_bigbench_mistake,
        "math-aps": read_math_aps,
        "r-judge": read_r_judge,
        "shade-arena": read_shade_arena,
        "thought-branches": read_thought_branches,
    }
)
"""Each takes a path and ``report``, which counts the rows that it skips."""

RECORDS: Final[Mapping[str, tuple[Callable[..., Iterator[Record]], str]]] = MappingProxyType(
    {
        "agent-judges": (read_judges, "labels.jsonl"),
        "fover": (read_fover_scores, "scores.jsonl"),
    }
)
"""Readers, called alike, of what others say of traces, and the file that the records are written to."""
