"""PRM800K as published (Lightman et al., arXiv 2305.20050): one record a labelling session.

Each step offers completions, of which one (or the labeller's own) was chosen and continued.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from pydantic import ModelWrapValidatorHandler, field_validator, model_validator

from surefoot.errors import RecordError
from surefoot.formats._prm800k_shared import (
    FRAME_KEY,
    PLACES_KEY,
    RATINGS,
    RECORD_KEY,
    Rated,
    labelled_trace,
)
from surefoot.formats._rows import ReadReport, Row, read_rows
from surefoot.protocols import LabelledTrace
from surefoot.records import Problem, content_id

_ANSWER_MARK = "# Answer"


class _Completion(Row):
    text: str
    rating: float | None = None
    flagged: bool | None = None

    @field_validator("rating")
    @classmethod
    def _known(cls, rating: float | None) -> float | None:
        if rating not in RATINGS:
            raise ValueError(f"a rating is -1, 0, 1 or null, not {rating}")
        return rating


class _HumanCompletion(_Completion):
    """Some exports give the labeller's step as its text alone; then ``order`` is empty."""

    @model_validator(mode="wrap")
    @classmethod
    def _note_order(cls, data: object, handler: ModelWrapValidatorHandler[Self]) -> Self:
        row = handler({"text": data} if isinstance(data, str) else data)
        row._order = tuple(data) if isinstance(data, dict) else ()
        return row


class _Step(Row):
    completions: list[_Completion] | None = None
    human_completion: _HumanCompletion | None = None
    chosen_completion: int | None = None


class _Label(Row):
    steps: list[_Step]
    total_time: int | float | None = None
    finish_reason: str | None = None


class _Question(Row):
    problem: str
    ground_truth_solution: str | None = None
    ground_truth_answer: str | None = None
    pre_generated_steps: list[str] | None = None
    pre_generated_answer: str | None = None
    pre_generated_verifier_score: float | None = None


class _Record(Row):
    labeler: str
    timestamp: str
    generation: int | None = None
    is_quality_control_question: bool | None = None
    is_initial_screening_question: bool | None = None
    question: _Question
    label: _Label


def read_prm800k(
    path: Path | str, *, report: ReadReport | None = None, separator: str = "\n"
) -> Iterator[LabelledTrace]:
    """Traces of each record: first the main path, then each alternative completion as its own trace.

    The main path follows the chosen (or the labeller's own) completions. Where the last step has neither, as
    when the labeller stopped at the first error, it ends with the pre-generated step if that was rated, else
    with the first completion rated −1. An alternative is the chosen prefix and that completion, labelled on
    that last step alone, so that every rating is one label and no prefix is invented. Neutral stays 0.

    ``evidence.rater`` is the labeller, ``created`` the time stamp (taken as UTC), ``finish_reason`` that of
    the session, ``trace.answer`` what follows ``# Answer`` in the last step. ``meta`` holds ``branch``
    (``main`` or ``alternative``), the record's flags, ``rows``: the flags of each label's completion, and
    what ``write_prm800k`` needs to give the record back: ``record`` (which one), ``places`` (step and number
    of each labelled completion) and, on the first trace of a record, ``frame`` (all else).

    ``separator`` is put between steps, which the records hold apart.

    Raises ``RecordError`` for a bad record unless a ``report`` counts it.
    """
    for items in read_rows(path, _Record, lambda number, record: _traces(number, record, separator), report):
        yield from items


def _traces(row: int, record: _Record, separator: str) -> list[LabelledTrace]:
    question, steps = record.question, record.label.steps
    problem = Problem(
        text=question.problem,
        answer=question.ground_truth_answer,
        source="prm800k",
        meta={} if question.ground_truth_solution is None else {"solution": question.ground_truth_solution},
    )
    path, alternatives, taken = _walk(steps, question.pre_generated_steps or [])
    if not path and not alternatives:
        raise RecordError(
            f"field 'label.steps': no completion (finish_reason {record.label.finish_reason!r})"
        )
    created = _time(record.timestamp)
    meta = _meta(record) | {RECORD_KEY: content_id(record.labeler, record.timestamp, problem.id, row)}

    def made(
        parts: list[_Completion], rated: list[Rated], branch: str, place: object, places: list[list[int]]
    ) -> LabelledTrace:
        return labelled_trace(
            problem,
            [part.text for part in parts],
            rated,
            branch=branch,
            identity=(record.labeler, record.timestamp, problem.id, place),
            answer=_answer(parts[-1].text),
            created=created,
            separator=separator,
            rater=record.labeler,
            finish_reason=record.label.finish_reason,
            meta={**meta, PLACES_KEY: places},
        )

    main = [_rated(index, part, steps[index], True) for index, part in enumerate(path)]
    places = [[index, number] for index, number in enumerate(taken)]
    traces = [made(path, main, "main", None, places)] if path else []
    for index, number, other in alternatives:
        rated = [_rated(index, other, steps[index], False)]
        traces.append(made([*path[:index], other], rated, "alternative", [index, number], [[index, number]]))
    traces[0].trace.meta[FRAME_KEY] = _frame(record)
    return traces


def _walk(
    steps: list[_Step], pre_generated: list[str]
) -> tuple[list[_Completion], list[tuple[int, int, _Completion]], list[int]]:
    """The main path, the (step, number, completion) of all that branch from it, and the path's numbers."""
    path: list[_Completion] = []
    numbers: list[int] = []
    alternatives: list[tuple[int, int, _Completion]] = []
    for index, step in enumerate(steps):
        offered = [*(step.completions or []), *([step.human_completion] if step.human_completion else [])]
        if offered and len(path) < index:
            raise RecordError(
                f"field 'label.steps.{index - 1}': nothing was chosen, but another step follows"
            )
        taken = _taken(step, index, offered, pre_generated)
        if taken is not None:
            path.append(offered[taken])
            numbers.append(taken)
        alternatives += [(index, number, other) for number, other in enumerate(offered) if number != taken]
    return path, alternatives, numbers


def _taken(step: _Step, index: int, offered: list[_Completion], pre_generated: list[str]) -> int | None:
    """Number, among those offered, of the completion that the main path takes."""
    if step.chosen_completion is not None:
        if not 0 <= step.chosen_completion < len(step.completions or []):
            raise RecordError(
                f"field 'label.steps.{index}.chosen_completion': {step.chosen_completion} is absent"
            )
        return step.chosen_completion
    if step.human_completion is not None:
        return len(offered) - 1
    wanted = pre_generated[index] if index < len(pre_generated) else None
    for number, completion in enumerate(offered):
        if completion.text == wanted and completion.rating is not None:
            return number
    return next((number for number, completion in enumerate(offered) if completion.rating == -1.0), None)


def _rated(index: int, completion: _Completion, step: _Step, preferred: bool) -> Rated:
    human = completion is step.human_completion
    chosen = preferred and (human or step.chosen_completion is not None)
    row: dict[str, Any] = {"is_preferred_response": chosen, "is_human_response": human}
    if completion.flagged:
        row["flagged"] = True
    return Rated(step=index, rating=completion.rating, row=row)


def _answer(text: str) -> str | None:
    _, mark, answer = text.rpartition(_ANSWER_MARK)
    return (answer.strip() or None) if mark else None


def _time(stamp: str) -> datetime:
    try:
        moment = datetime.fromisoformat(stamp)
    except ValueError as error:
        raise RecordError(f"field 'timestamp': {error}") from error
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _meta(record: _Record) -> dict[str, Any]:
    own = {"generation", "is_quality_control_question", "is_initial_screening_question"}
    pre = {"pre_generated_answer", "pre_generated_verifier_score"}
    meta = record.model_dump(include=own, exclude_none=True)
    meta |= record.question.model_dump(include=pre, exclude_none=True)
    if record.label.total_time is not None:
        meta["total_time_ms"] = record.label.total_time
    return meta


def _frame(record: _Record) -> dict[str, Any]:
    """The record without the texts and ratings, which are in the traces; a rating's place stays as null."""
    frame = record.model_dump(exclude_unset=True)
    del frame["question"]["problem"]
    for step, given in zip(frame["label"]["steps"], record.label.steps, strict=True):
        for completion in [*(step.get("completions") or []), step.get("human_completion")]:
            if completion is not None:
                del completion["text"]
                completion.update({"rating": None} if "rating" in completion else {})
        if given.human_completion is not None and not given.human_completion.order:
            step["human_completion"] = ""
    return frame
