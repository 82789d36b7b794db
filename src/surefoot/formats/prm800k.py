"""PRM800K as published (Lightman et al., arXiv 2305.20050): one record per labelling session.

Each step offers completions, of which one (or the labeller's own) was chosen and continued.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, ModelWrapValidatorHandler, model_validator

from surefoot.errors import RecordError
from surefoot.formats._rows import (
    FileRow,
    WriteReport,
    joined_trace,
    read_expanded_rows,
    step_parts,
    write_rows,
)
from surefoot.io.files import ReadReport
from surefoot.protocols import LabelledTrace
from surefoot.records import Evidence, Problem, StepLabel, content_id


def _known(rating: float) -> float:
    if rating not in (-1.0, 0.0, 1.0):
        raise ValueError(f"a rating is -1, 0, 1 or null, not {rating}")
    return rating


Rating = Annotated[float, AfterValidator(_known)]

RECORD_KEY = "record"
"""Where ``Trace.meta`` says which record of a file a trace comes from."""
PLACES_KEY = "places"
"""Where it says which completions the labelled steps are: pairs of step and number."""
FRAME_KEY = "frame"
"""Where the first trace of a record keeps all of it that has no other place."""

_ANSWER_MARK = "# Answer"
_ORDER = {
    name: number
    for number, name in enumerate(
        (
            *("labeler", "timestamp", "generation"),
            *("is_quality_control_question", "is_initial_screening_question", "question", "label"),
            *("problem", "ground_truth_solution", "ground_truth_answer"),
            *("pre_generated_steps", "pre_generated_answer", "pre_generated_verifier_score"),
            *("steps", "total_time", "finish_reason"),
            *("completions", "human_completion", "chosen_completion"),
            *("text", "rating", "source", "flagged"),
        )
    )
}
"""Order of the published fields, level by level; a record's ``meta`` does not keep that of its own."""

_REASONS = ("found_error", "solution", "bad_problem", "give_up")


class _Completion(FileRow):
    text: str
    rating: Rating | None = None
    flagged: bool | None = None


class _HumanCompletion(_Completion):
    """Some exports give the labeller's step as its text alone; then ``order`` is empty."""

    @model_validator(mode="wrap")
    @classmethod
    def _note_order(cls, data: object, handler: ModelWrapValidatorHandler[Self]) -> Self:
        row = handler({"text": data} if isinstance(data, str) else data)
        row._order = tuple(data) if isinstance(data, dict) else ()
        return row


class _SessionStep(FileRow):
    completions: list[_Completion] | None = None
    human_completion: _HumanCompletion | None = None
    chosen_completion: int | None = None


class _SessionLabel(FileRow):
    steps: list[_SessionStep]
    total_time: int | float | None = None
    finish_reason: str | None = None


class _SessionQuestion(FileRow):
    problem: str
    ground_truth_solution: str | None = None
    ground_truth_answer: str | None = None
    pre_generated_steps: list[str] | None = None
    pre_generated_answer: str | None = None
    pre_generated_verifier_score: float | None = None


class _SessionRow(FileRow):
    labeler: str
    timestamp: str
    generation: int | None = None
    is_quality_control_question: bool | None = None
    is_initial_screening_question: bool | None = None
    question: _SessionQuestion
    label: _SessionLabel


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
    return read_expanded_rows(
        path, _SessionRow, lambda number, record: _traces(number, record, separator), report
    )


def write_prm800k(items: Iterable[LabelledTrace], path: Path | str) -> WriteReport:
    """Write one record per labelling session, as published. Atomic.

    Traces of one record, as ``read_prm800k`` gives them, become that record again, with the ratings that the
    traces have now; a completion whose trace is not among ``items`` is left out. All traces are held in
    memory. A trace from another source, or one whose record's first trace is missing, becomes a separate
    record with one completion per step, rated null where it has no label; its ``finish_reason`` stays if
    PRM800K knows it, else it is ``found_error`` where the last step is −1, else null.

    Neutral stays 0 and unknown is null. Dropped and counted: chat traces, traces without a correctness label,
    labels of other kinds, and all but the first label of a step.
    """
    report = WriteReport()
    groups: dict[object, list[LabelledTrace]] = {}
    for item in items:
        if item.trace.text is None:
            report.dropped["traces: chat trace"] += 1
        elif not any(label.kind == "correctness" for label in item.labels):
            report.dropped["traces: no correctness label"] += 1
        else:
            groups.setdefault(item.trace.meta.get(RECORD_KEY, item.trace.id), []).append(item)
    write_rows(path, _records(groups.values(), report))
    return report


@dataclass(frozen=True, kw_only=True)
class Rated:
    """One rated completion: where it stands in its trace, and what has no place in a label."""

    step: int
    rating: float | None
    row: Mapping[str, Any]
    """Fields of the source row, kept in ``trace.meta["rows"]``, one object per label."""


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
    trace = joined_trace(
        problem,
        parts,
        separator,
        id=content_id("prm800k", branch, *identity, list(parts)),
        answer=answer,
        finish_reason=finish_reason,
        meta={**(meta or {}), "branch": branch, "rows": [dict(entry.row) for entry in rated]},
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


def _traces(row: int, record: _SessionRow, separator: str) -> Iterator[LabelledTrace]:
    question, steps = record.question, record.label.steps
    problem = Problem(
        text=question.problem,
        answer=question.ground_truth_answer,
        source="prm800k",
        meta={} if question.ground_truth_solution is None else {"solution": question.ground_truth_solution},
    )
    path, alternatives, chosen = _walk(steps, question.pre_generated_steps or [])
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
    places = [[index, number] for index, number in enumerate(chosen)]
    frame = {FRAME_KEY: _frame(record)}
    if path:
        first = made(path, main, "main", None, places)
        first.trace.meta.update(frame)
        frame = {}
        yield first
    for index, number, other in alternatives:
        rated = [_rated(index, other, steps[index], False)]
        one = made([*path[:index], other], rated, "alternative", [index, number], [[index, number]])
        one.trace.meta.update(frame)
        frame = {}
        yield one


def _walk(
    steps: list[_SessionStep], pre_generated: list[str]
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
        chosen = _chosen(step, index, offered, pre_generated)
        if chosen is not None:
            path.append(offered[chosen])
            numbers.append(chosen)
        alternatives += [(index, number, other) for number, other in enumerate(offered) if number != chosen]
    return path, alternatives, numbers


def _chosen(
    step: _SessionStep, index: int, offered: list[_Completion], pre_generated: list[str]
) -> int | None:
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


def _rated(index: int, completion: _Completion, step: _SessionStep, preferred: bool) -> Rated:
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


def _meta(record: _SessionRow) -> dict[str, Any]:
    own = {"generation", "is_quality_control_question", "is_initial_screening_question"}
    pre = {"pre_generated_answer", "pre_generated_verifier_score"}
    meta = record.model_dump(include=own, exclude_none=True)
    meta |= record.question.model_dump(include=pre, exclude_none=True)
    if record.label.total_time is not None:
        meta["total_time_ms"] = record.label.total_time
    return meta


def _frame(record: _SessionRow) -> dict[str, Any]:
    """The record without the texts and ratings, which are in the traces; a rating's place stays as null."""
    frame = record.model_dump(exclude_unset=True)
    del frame["question"]["problem"]
    for step, source in zip(frame["label"]["steps"], record.label.steps, strict=True):
        for completion in [*(step.get("completions") or []), step.get("human_completion")]:
            if completion is not None:
                del completion["text"]
                completion.update({"rating": None} if "rating" in completion else {})
        if source.human_completion is not None and not source.human_completion.order:
            step["human_completion"] = ""
    return frame


@dataclass(frozen=True, kw_only=True)
class _CompletionText:
    """A completion as the traces have it."""

    text: str
    rating: int | None


def _records(groups: Iterable[list[LabelledTrace]], report: WriteReport) -> Iterator[dict[str, Any]]:
    for group in groups:
        whole = [item for item in group if _is_whole(item)]
        frame = next((item.trace.meta[FRAME_KEY] for item in whole if FRAME_KEY in item.trace.meta), None)
        if frame is not None:
            report.written += 1
            yield _filled(copy.deepcopy(frame), whole, report)
        others = group if frame is None else [item for item in group if not _is_whole(item)]
        report.written += len(others)
        yield from (_alone(item, report) for item in others)


def _is_whole(item: LabelledTrace) -> bool:
    """Does the trace still have the steps that its places speak of?"""
    places = item.trace.meta.get(PLACES_KEY)
    return isinstance(places, list) and bool(places) and places[-1][0] == len(item.trace.steps) - 1


def _filled(frame: Any, items: Sequence[LabelledTrace], report: WriteReport) -> dict[str, Any]:
    """``frame`` with problem, texts and ratings."""
    texts: dict[tuple[int, int], _CompletionText] = {}
    for item in items:
        parts, ratings = step_parts(item.trace), _ratings(item, report)
        for step, number in item.trace.meta[PLACES_KEY]:
            texts[step, number] = _CompletionText(text=parts[step], rating=ratings.get(step))
    frame["question"]["problem"] = items[0].problem.text
    for index, step in enumerate(frame["label"]["steps"]):
        _fill_step(step, {number: made for (at, number), made in texts.items() if at == index})
    return dict(_ordered(frame))


def _ordered(part: Any) -> Any:
    if isinstance(part, list):
        return [_ordered(item) for item in part]
    if not isinstance(part, dict):
        return part
    return {
        name: _ordered(part[name]) for name in sorted(part, key=lambda name: _ORDER.get(name, len(_ORDER)))
    }


def _fill_step(step: dict[str, Any], texts: dict[int, _CompletionText]) -> None:
    offered = step.get("completions") or []
    human = step.get("human_completion")
    if human is not None:
        text = texts.get(len(offered))
        step["human_completion"] = None if text is None else text.text if human == "" else _put(human, text)
    present = [number for number in range(len(offered)) if number in texts]
    if offered:
        step["completions"] = [_put(offered[number], texts[number]) for number in present]
    if step.get("chosen_completion") is not None:
        step["chosen_completion"] = present.index(step["chosen_completion"])


def _put(completion: dict[str, Any], text: _CompletionText) -> dict[str, Any]:
    rated = "rating" in completion or text.rating is not None
    return {**completion, "text": text.text, **({"rating": text.rating} if rated else {})}


def _ratings(item: LabelledTrace, report: WriteReport) -> dict[int, int | None]:
    ratings: dict[int, int | None] = {}
    for label in item.labels:
        if label.kind != "correctness":
            report.dropped[f"labels: kind '{label.kind}'"] += 1
        elif label.step in ratings:
            report.dropped["labels: another one of the same step"] += 1
        else:
            ratings[label.step] = None if label.value is None else int(label.value)
    return ratings


def _alone(item: LabelledTrace, report: WriteReport) -> dict[str, Any]:
    """A record of its own for a trace that no record is known of."""
    ratings = _ratings(item, report)
    parts = step_parts(item.trace)
    stopped = ratings.get(len(parts) - 1) == -1
    first = next(label for label in item.labels if label.kind == "correctness")
    reason = item.trace.finish_reason if item.trace.finish_reason in _REASONS else None
    return {
        "labeler": first.evidence.rater or "unknown",
        "timestamp": _stamp(first),
        "generation": None,
        "is_quality_control_question": False,
        "is_initial_screening_question": False,
        "question": {"problem": item.problem.text, "ground_truth_answer": item.problem.answer},
        "label": {
            "steps": [
                {
                    "completions": [{"text": part, "rating": ratings.get(index), "flagged": None}],
                    "human_completion": None,
                    "chosen_completion": None if stopped and index == len(parts) - 1 else 0,
                }
                for index, part in enumerate(parts)
            ],
            "total_time": None,
            "finish_reason": reason or ("found_error" if stopped else None),
        },
    }


def _stamp(label: StepLabel) -> str:
    """Time without a zone, as the published records have it."""
    return label.created.replace(tzinfo=None).isoformat()
