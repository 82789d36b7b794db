"""PRM800K as published (Lightman et al., arXiv 2305.20050): one record per labelling session.

Each step offers completions, of which one (or the labeller's own) was chosen and continued.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Required

from pydantic import AfterValidator, ConfigDict, ValidatorFunctionWrapHandler, WrapValidator, with_config
from typing_extensions import TypedDict

from surefoot.errors import RecordError
from surefoot.formats._paths import PathTraces, Rated
from surefoot.formats._rows import Finite, WriteReport, read_expanded_rows, step_parts, write_rows
from surefoot.io.files import ReadReport
from surefoot.protocols import LabelledTrace
from surefoot.records import Problem, StepLabel, as_json, content_id


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


@with_config(ConfigDict(strict=True, allow_inf_nan=False))
class _Fields(TypedDict, total=False, extra_items=Finite):  # type: ignore[call-arg]  # mypy lacks PEP 728
    """Base of the rows. They are plain dicts, not models, because a file has millions of completions."""


class _Completion(_Fields, total=False):
    text: Required[str]
    rating: Rating | None
    flagged: bool | None


def _own_text(data: object, handler: ValidatorFunctionWrapHandler) -> object:
    return data if isinstance(data, str) else handler(data)


_HumanCompletion = Annotated[_Completion, WrapValidator(_own_text)]
"""Some exports give the labeller's step as its text alone; it stays a text."""


class _SessionStep(_Fields, total=False):
    completions: list[_Completion] | None
    human_completion: _HumanCompletion | None
    chosen_completion: int | None


class _SessionLabel(_Fields, total=False):
    steps: Required[list[_SessionStep]]
    total_time: int | float | None
    finish_reason: str | None


class _SessionQuestion(_Fields, total=False):
    problem: Required[str]
    ground_truth_solution: str | None
    ground_truth_answer: str | None
    pre_generated_steps: list[str] | None
    pre_generated_answer: str | None
    pre_generated_verifier_score: float | None


class _SessionRow(_Fields, total=False):
    labeler: Required[str]
    timestamp: Required[str]
    generation: int | None
    is_quality_control_question: bool | None
    is_initial_screening_question: bool | None
    question: Required[_SessionQuestion]
    label: Required[_SessionLabel]


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


class _Offer(NamedTuple):
    """A completion, or the labeller's own, with its place."""

    step: int
    number: int
    """Among those of the step; the labeller's own comes last."""
    text: str
    rating: float | None
    human: bool
    flagged: bool


def _traces(row: int, record: _SessionRow, separator: str) -> Iterator[LabelledTrace]:
    question, label = record["question"], record["label"]
    solution = question.get("ground_truth_solution")
    problem = Problem(
        text=question["problem"],
        answer=question.get("ground_truth_answer"),
        source="prm800k",
        meta={} if solution is None else {"solution": solution},
    )
    steps, rater, stamp, finish_reason = (
        label["steps"],
        record["labeler"],
        record["timestamp"],
        label.get("finish_reason"),
    )
    path, alternatives = _walk(steps, question.get("pre_generated_steps") or [])
    if not path and not alternatives:
        raise RecordError(f"field 'label.steps': no completion (finish_reason {finish_reason!r})")
    traces = PathTraces(problem, separator=separator, created=_time(stamp), rater=rater)
    meta = _meta(record) | {RECORD_KEY: content_id(rater, stamp, problem.id, row)}
    frame = {FRAME_KEY: _frame(record)}
    identity = as_json([rater, stamp, problem.id])[1:-1]

    texts = [one.text for one in path]

    def made(rated: list[_Offer], branch: str, place: str) -> LabelledTrace:
        *_, last = rated
        own = {**meta, **frame, PLACES_KEY: [[one.step, one.number] for one in rated]}
        frame.clear()  # the first trace alone has it
        return traces.labelled(
            texts[: last.step],
            last.text,
            [_rated(one, steps[one.step], preferred=branch == "main") for one in rated],
            branch=branch,
            identity=f"{identity},{place}",
            answer=_answer(last.text),
            finish_reason=finish_reason,
            meta=own,
        )

    if path:
        yield made(path, "main", "null")
    for one in alternatives:
        yield made([one], "alternative", f"[{one.step},{one.number}]")


def _walk(steps: list[_SessionStep], pre_generated: list[str]) -> tuple[list[_Offer], list[_Offer]]:
    """The main path, and all that branch from it."""
    path: list[_Offer] = []
    alternatives: list[_Offer] = []
    for index, step in enumerate(steps):
        offered = _offered(index, step)
        if offered and len(path) < index:
            raise RecordError(
                f"field 'label.steps.{index - 1}': nothing was chosen, but another step follows"
            )
        chosen = _chosen(step, index, offered, pre_generated)
        if chosen is not None:
            path.append(offered[chosen])
        alternatives += [other for other in offered if other.number != chosen]
    return path, alternatives


def _offered(index: int, step: _SessionStep) -> list[_Offer]:
    human = step.get("human_completion")
    rows = list(step.get("completions") or [])
    count = len(rows)
    if human is not None:
        rows.append({"text": human} if isinstance(human, str) else human)
    return [
        _Offer(index, number, row["text"], row.get("rating"), number == count, bool(row.get("flagged")))
        for number, row in enumerate(rows)
    ]


def _chosen(step: _SessionStep, index: int, offered: list[_Offer], pre_generated: list[str]) -> int | None:
    """Number, among those offered, of the completion that the main path takes."""
    chosen = step.get("chosen_completion")
    if chosen is not None:
        if not 0 <= chosen < len(step.get("completions") or []):
            raise RecordError(f"field 'label.steps.{index}.chosen_completion': {chosen} is absent")
        return chosen
    if step.get("human_completion") is not None:
        return len(offered) - 1
    wanted = pre_generated[index] if index < len(pre_generated) else None
    for one in offered:
        if one.text == wanted and one.rating is not None:
            return one.number
    return next((one.number for one in offered if one.rating == -1.0), None)


def _rated(one: _Offer, step: _SessionStep, *, preferred: bool) -> Rated:
    chosen = preferred and (one.human or step.get("chosen_completion") is not None)
    row = {"is_preferred_response": chosen, "is_human_response": one.human}
    if one.flagged:
        row["flagged"] = True
    return Rated(one.step, one.rating, row)


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
    known = {
        "generation": record.get("generation"),
        "is_quality_control_question": record.get("is_quality_control_question"),
        "is_initial_screening_question": record.get("is_initial_screening_question"),
        "pre_generated_answer": record["question"].get("pre_generated_answer"),
        "pre_generated_verifier_score": record["question"].get("pre_generated_verifier_score"),
        "total_time_ms": record["label"].get("total_time"),
    }
    return {name: value for name, value in known.items() if value is not None}


def _frame(record: _SessionRow) -> dict[str, Any]:
    """The record without the texts and ratings, which are in the traces; a rating's place stays as null."""
    frame: dict[str, Any] = {**record, "question": dict(record["question"]), "label": dict(record["label"])}
    del frame["question"]["problem"]
    frame["label"]["steps"] = [_step_frame(step) for step in record["label"]["steps"]]
    return frame


def _step_frame(step: Mapping[str, Any]) -> dict[str, Any]:
    frame = dict(step)
    if frame.get("completions"):
        frame["completions"] = [_completion_frame(one) for one in frame["completions"]]
    if frame.get("human_completion") is not None:
        human = frame["human_completion"]
        frame["human_completion"] = "" if isinstance(human, str) else _completion_frame(human)
    return frame


def _completion_frame(completion: Mapping[str, Any]) -> dict[str, Any]:
    frame = {**completion, "rating": None} if "rating" in completion else dict(completion)
    del frame["text"]
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
