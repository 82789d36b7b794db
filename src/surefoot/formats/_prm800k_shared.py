"""What the two forms of PRM800K (Lightman et al., arXiv 2305.20050) have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from surefoot.formats._spans import SEPARATOR_KEY, join_parts
from surefoot.protocols import LabelledTrace
from surefoot.records import Evidence, Problem, StepLabel, Trace, content_id

RATINGS = (-1.0, 0.0, 1.0, None)

RECORD_KEY = "record"
"""Where ``Trace.meta`` says which record of a file a trace comes from."""
PLACES_KEY = "places"
"""Where it says which completions the labelled steps are: pairs of step and number."""
FRAME_KEY = "frame"
"""Where the first trace of a record keeps all of it that has no other place."""


@dataclass(frozen=True, kw_only=True)
class Rated:
    """One rated completion: where it stands in its trace, and what has no place in a label."""

    step: int
    rating: float | None
    row: Mapping[str, Any]
    """Fields of the source row, kept in ``trace.meta["rows"]``, one object a label."""


def labelled_trace(
    problem: Problem,
    parts: Sequence[str],
    rated: Sequence[Rated],
    *,
    branch: str,
    identity: Sequence[object],
    answer: str | None,
    created: datetime,
    separator: str,
    rater: str | None = None,
    finish_reason: str | None = None,
    meta: Mapping[str, Any] | None = None,
) -> LabelledTrace:
    """One path through a record, with the labels of ``rated``. A rating of ``None`` is an unknown label."""
    text, steps = join_parts(parts, separator)
    trace = Trace(
        id=content_id("prm800k", branch, *identity, list(parts)),
        problem_id=problem.id,
        text=text,
        steps=steps,
        answer=answer,
        finish_reason=finish_reason,
        meta={
            **(meta or {}),
            "branch": branch,
            "rows": [dict(entry.row) for entry in rated],
            SEPARATOR_KEY: separator,
        },
    )
    labels = tuple(
        StepLabel(
            trace_id=trace.id,
            step=entry.step,
            kind="correctness",
            value=entry.rating,
            reason=_reason(entry) if entry.rating is None else None,
            source="human",
            evidence=Evidence(rater=rater),
            created=created,
        )
        for entry in rated
    )
    return LabelledTrace(problem=problem, trace=trace, labels=labels)


def _reason(entry: Rated) -> str:
    return "written by the labeller, not rated" if entry.row["is_human_response"] else "not rated"
