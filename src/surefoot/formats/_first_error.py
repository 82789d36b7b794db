"""Labels by the place of the first error, as ProcessBench and BIG-Bench-Mistake give them, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from surefoot.errors import RecordError
from surefoot.formats._rows import WriteReport
from surefoot.formats._spans import join_parts
from surefoot.labels import AFTER_FIRST_ERROR, NO_ERROR, LabelRule, Neutral, binary_labels, up_to_first_error
from surefoot.protocols import LabelledTrace
from surefoot.records import Evidence, Problem, Step, StepLabel, Trace


def first_error_item(
    problem: Problem,
    parts: Sequence[str],
    first: int | None,
    make_trace: Callable[[str, tuple[Step, ...]], Trace],
    *,
    field: str,
    separator: str,
    source: str,
    created: datetime,
) -> LabelledTrace:
    """A row of ``steps`` with the index of the first wrong one in ``field``; ``None`` = all are right.

    ``make_trace`` gets the steps' text, joined by ``separator``, and their spans; it is not called for a row
    that is refused. Raises ``RecordError`` for a row without steps and an index that none of them has.
    """
    if not parts:
        raise RecordError("field 'steps': empty")
    if first is not None and not 0 <= first < len(parts):
        raise RecordError(f"field {field!r}: {first}, but there are {len(parts)} steps")
    trace = make_trace(*join_parts(parts, separator))
    values = up_to_first_error(NO_ERROR if first is None else first, len(parts))
    labels = correctness_labels(trace.id, values, source=source, created=created)
    return LabelledTrace(problem=problem, trace=trace, labels=labels)


def correctness_labels(
    trace_id: str,
    values: Sequence[float | None],
    *,
    source: str,
    created: datetime,
    error_message: str | None = None,
) -> tuple[StepLabel, ...]:
    """One label a step; a value of ``None`` is unknown for being after the first error.

    ``error_message`` becomes the evidence of the labels that are −1.
    """
    return tuple(
        StepLabel(
            trace_id=trace_id,
            step=index,
            kind="correctness",
            value=value,
            reason=AFTER_FIRST_ERROR if value is None else None,
            source=source,
            evidence=Evidence(message=error_message if value == -1.0 else None),
            created=created,
        )
        for index, value in enumerate(values)
    )


@dataclass(frozen=True, kw_only=True)
class FirstError:
    """Where the first error is; ``None`` = there is none."""

    step: int | None


def first_error(
    item: LabelledTrace, *, neutral: Neutral, threshold: float | None, report: WriteReport
) -> FirstError | None:
    """The first error that the labels of a trace show; ``None`` for a trace that cannot be written.

    That is a chat trace, one without steps, and one where a step at or before the first error has no sign.
    It is counted in ``report``, as are the steps after the error that do have a sign, which these formats
    have no place for.
    """
    if item.trace.text is None:
        report.dropped["traces: chat trace"] += 1
        return None
    if not item.trace.steps:
        report.dropped["traces: no steps"] += 1
        return None
    signs = binary_labels(
        item.labels, len(item.trace.steps), LabelRule(neutral=neutral, good_above=threshold)
    )
    stop = next((index for index, sign in enumerate(signs) if not sign.good), None)
    if stop is None:
        return FirstError(step=None)
    if signs[stop].good is None:
        report.dropped[f"traces: no sign before the first error ({signs[stop].reason})"] += 1
        return None
    after = sum(sign.good is not None for sign in signs[stop + 1 :])
    if after:
        report.dropped[f"signs: {AFTER_FIRST_ERROR}"] += after
    return FirstError(step=stop)
