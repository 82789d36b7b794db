"""Label Studio's export as labelled traces: tasks, regions, and whose each label is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from pydantic import Field

from surefoot.errors import RecordError
from surefoot.formats._form import Samples
from surefoot.formats._rows import ReadReport, Row, read_rows
from surefoot.formats._spans import SEPARATOR_KEY, join_parts
from surefoot.formats.label_studio.vocabulary import OURS, meaning
from surefoot.protocols import LabelledTrace
from surefoot.records import Evidence, LabelKind, Problem, StepLabel, Trace, now

_NAME = "label-studio"
_PROBLEM_FIELDS = ("problem", "question", "prompt")
_SEPARATOR = "\n"


class _Result(Row):
    """One entry of ``result``: a region with labels, or a number or note on one."""

    id: str | None = None
    type: str = ""
    value: dict[str, Any] = Field(default_factory=dict)
    meta: dict[str, Any] | None = None


class _Answers(Row):
    """An annotation (of a person) or a prediction (of a model)."""

    result: list[_Result] = Field(default_factory=list)
    was_cancelled: bool | None = None
    created_at: str | None = None
    completed_by: int | dict[str, Any] | None = None
    model_version: str | None = None


class _Task(Row):
    data: dict[str, Any]
    annotations: list[_Answers] | None = None
    predictions: list[_Answers] | None = None


def read_label_studio(path: Path | str, *, report: ReadReport | None = None) -> Iterator[LabelledTrace]:
    """Traces with the labels of every annotation and prediction.

    A task written by :func:`write_label_studio` gives its records back, and each label that nobody changed,
    evidence and time included; one that was changed or added is of source ``human``, its rater
    ``label-studio-<id>`` (never the e-mail address). Other tasks need ``data.problem`` (or ``question`` or
    ``prompt``) and ``data.steps``, a list of texts or of objects with ``text``. A region over several
    paragraphs labels each of them. Label names: correct, neutral, wrong and their usual synonyms; unknown.

    Skipped annotations and results that are none of these are counted in ``trace.meta["ignored"]``.
    Raises ``RecordError`` for a bad task unless a ``report`` counts it.
    """
    moment, samples = now(), Samples()
    return read_rows(path, _Task, lambda _, task: _item(task, moment, samples), report)


def _item(task: _Task, moment: datetime, samples: Samples) -> LabelledTrace:
    texts = _step_texts(task.data)
    ours = task.data.get(OURS)
    problem, trace = _written(ours, texts) if isinstance(ours, dict) else _made(task.data, texts, samples)
    found = _Found(trace=trace, labels=[], ignored=0)
    for answers in task.annotations or []:
        source = _Source(source="human", rater=_rater(answers.completed_by), created=_time(answers, moment))
        _take(answers, source, found)
    for answers in task.predictions or []:
        name = answers.model_version or "label-studio prediction"
        _take(answers, _Source(source=name, rater=None, created=_time(answers, moment)), found)
    if found.ignored:
        trace = trace.model_copy(update={"meta": {**trace.meta, "ignored": found.ignored}})
    return LabelledTrace(problem=problem, trace=trace, labels=tuple(found.labels))


def _step_texts(data: Mapping[str, Any]) -> list[str]:
    steps = data.get("steps")
    if not isinstance(steps, list):
        raise RecordError("field 'data.steps': missing, or no list of paragraphs")
    texts = [step.get("text") if isinstance(step, dict) else step for step in steps]
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise RecordError(f"field 'data.steps.{number}': neither a text nor an object with 'text'")
    return cast("list[str]", texts)


def _written(ours: Mapping[str, Any], texts: Sequence[str]) -> tuple[Problem, Trace]:
    problem, trace = Problem.model_validate(ours.get("problem")), Trace.model_validate(ours.get("trace"))
    if trace.problem_id != problem.id:
        raise RecordError(f"field 'data.{OURS}.trace.problem_id': another problem's ({trace.problem_id!r})")
    if [trace.step_text(index) for index in range(len(trace.steps))] != texts:
        raise RecordError(f"field 'data.steps': not the steps of data.{OURS}.trace; leave both unchanged")
    return problem, trace


def _made(data: Mapping[str, Any], texts: Sequence[str], samples: Samples) -> tuple[Problem, Trace]:
    text = next((data[name] for name in _PROBLEM_FIELDS if isinstance(data.get(name), str)), None)
    if not text:
        raise RecordError(f"field 'data.problem': missing (or {' or '.join(_PROBLEM_FIELDS[1:])})")
    answer = data.get("answer")
    problem = Problem(text=text, answer=answer if isinstance(answer, str) and answer else None, source=_NAME)
    solution, steps = join_parts(texts, _SEPARATOR)
    trace = Trace(
        problem_id=problem.id,
        text=solution,
        steps=steps,
        sample=samples.number(problem.id, list(texts)),
        meta={SEPARATOR_KEY: _SEPARATOR},
    )
    return problem, trace


@dataclass(kw_only=True)
class _Found:
    trace: Trace
    labels: list[StepLabel]
    ignored: int


@dataclass(frozen=True, kw_only=True)
class _Source:
    """Whose a label is that does not say so itself."""

    source: str
    rater: str | None
    created: datetime


def _take(answers: _Answers, source: _Source, found: _Found) -> None:
    if answers.was_cancelled:
        found.ignored += 1
        return
    numbers = {entry.id: entry.value.get("number") for entry in answers.result if entry.type == "number"}
    regions = {entry.id for entry in answers.result if entry.type == "paragraphlabels"}
    for entry in answers.result:
        if entry.type == "number" and entry.id is not None and entry.id in regions:
            continue
        taken = _labels(entry, numbers.get(entry.id), source, found.trace)
        found.labels += taken
        found.ignored += not taken


def _labels(entry: _Result, number: object, source: _Source, trace: Trace) -> list[StepLabel]:
    """Labels of one region; none where it is no such region, or means nothing here."""
    steps = _steps(entry, trace)
    # predictions are sometimes written with the key of another tag
    names = entry.value.get("paragraphlabels", entry.value.get("labels"))
    if steps is None or not isinstance(names, list):
        return []
    labels = []
    for name in names:
        means = meaning(name, number)
        if means is None:
            continue
        kind, value = means
        labels += [_label(entry, step, kind, value, source, trace) for step in steps]
    return labels


def _steps(entry: _Result, trace: Trace) -> range | None:
    """The paragraphs that a region covers. Label Studio writes their numbers as texts."""
    try:
        first, last = int(entry.value["start"]), int(entry.value["end"])
    except (KeyError, TypeError, ValueError):
        return None
    inside = entry.type == "paragraphlabels" and 0 <= first <= last < len(trace.steps)
    return range(first, last + 1) if inside else None


def _label(
    entry: _Result, step: int, kind: LabelKind, value: float | None, source: _Source, trace: Trace
) -> StepLabel:
    meta = entry.meta or {}
    kept = meta.get(OURS)
    if isinstance(kept, dict):
        label = StepLabel.model_validate({**kept, "trace_id": trace.id})
        unchanged = label.value == value and (value is None or label.kind == kind)
        if label.step == step and unchanged:
            return label
    note = meta.get("text")
    said = "\n".join(str(line) for line in note) if isinstance(note, list) and kept is None else None
    return StepLabel(
        trace_id=trace.id,
        step=step,
        kind=kind,
        value=value,
        reason=(said or "marked as unknown") if value is None else None,
        source=source.source if kept is None else "human",
        evidence=Evidence(rater=source.rater, message=said or None),
        created=source.created,
    )


def _rater(completed_by: int | dict[str, Any] | None) -> str | None:
    number = completed_by.get("id") if isinstance(completed_by, dict) else completed_by
    return None if number is None else f"label-studio-{number}"


def _time(answers: _Answers, otherwise: datetime) -> datetime:
    try:
        moment = datetime.fromisoformat(answers.created_at or "")
    except ValueError:
        return otherwise
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
