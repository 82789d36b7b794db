"""Label Studio's JSON: one task per trace, one paragraph per step, people's labels and models' predictions.

The format is the one of Label Studio's import and ``JSON`` export (labelstud.io/guide/task_format);
``LABELLING_CONFIG`` is the matching labelling interface.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, cast

from pydantic import Field

from surefoot.errors import RecordError
from surefoot.formats.rows import RECORD_BYTES, FileRow, TraceBuilder, WriteReport, reader_of, write_rows
from surefoot.io.files import FileLimits, RowSize
from surefoot.protocols import LabelledTrace
from surefoot.records import Evidence, LabelKind, Problem, StepLabel, Trace, content_id

LABELLING_CONFIG: Final = """<View>
  <Header value="$problem"/>
  <Paragraphs name="steps" value="$steps" layout="dialogue" nameKey="author" textKey="text"
              granularity="paragraph"/>
  <ParagraphLabels name="label" toName="steps" choice="single">
    <Label value="correct" background="#0072b2" hotkey="1"/>
    <Label value="neutral" background="#999999" hotkey="2"/>
    <Label value="wrong" background="#d55e00" hotkey="3"/>
    <Label value="unknown" background="#f0e442" hotkey="4"/>
    <Label value="value" background="#56b4e9"/>
    <Label value="advantage" background="#cc79a7"/>
  </ParagraphLabels>
  <Number name="number" toName="steps" perRegion="true" min="-1" max="1" step="any"/>
</View>
"""
"""Labelling interface of a Label Studio project into which these tasks are imported."""

_RECORDS_KEY = "surefoot"
"""Field of a task's ``data`` and of a region's ``meta`` with the original records."""

_VALUES: Mapping[str, float | None] = {
    **dict.fromkeys(("correct", "right", "good", "positive", "+", "+1", "1"), 1.0),
    **dict.fromkeys(("neutral", "0"), 0.0),
    **dict.fromkeys(("wrong", "incorrect", "error", "bad", "negative", "-", "-1"), -1.0),
    "unknown": None,
}
"""Value of each label name, in any case; the first name of each value is written."""
_NAMES: Mapping[float | None, str] = {1.0: "correct", 0.0: "neutral", -1.0: "wrong", None: "unknown"}
_MEASURES = ("value", "advantage")
"""Kinds whose value is a result of type ``number`` for the same region."""

_NAME = "label-studio"
_Origin = tuple[str, str | None, datetime]
"""Source, rater and time of labels without their own."""
_PROBLEM_FIELDS = ("problem", "question", "prompt")


class _Result(FileRow):
    """One entry of ``result``: a region with labels, or a number or note on one."""

    id: str | None = None
    type: str = ""
    value: dict[str, Any] = Field(default_factory=dict)
    meta: dict[str, Any] | None = None


class _Answers(FileRow):
    """An annotation (by a person) or a prediction (by a model)."""

    result: list[_Result] = Field(default_factory=list)
    was_cancelled: bool | None = None
    created_at: str | None = None
    completed_by: int | dict[str, Any] | None = None
    model_version: str | None = None


class _Task(FileRow):
    data: dict[str, Any]
    annotations: list[_Answers] | None = None
    predictions: list[_Answers] | None = None


@reader_of(_Task, "\n")
def read_label_studio(task: _Task, builder: TraceBuilder) -> LabelledTrace:
    """Traces with the labels of every annotation and prediction.

    A task written by :func:`write_label_studio` restores its records and each unchanged label with evidence
    and time. A changed or added label has the source ``human`` and the rater ``label-studio-<id>`` (never the
    e-mail address). Other tasks need ``data.problem`` (or ``question`` or ``prompt``) and ``data.steps``, a
    list of texts or of objects with ``text``. A region over several paragraphs labels each of them. Label
    names: correct, neutral, wrong and their usual synonyms; unknown.

    ``trace.meta["ignored"]`` counts skipped annotations and all other results.
    """
    texts = _step_texts(task.data)
    records = task.data.get(_RECORDS_KEY)
    problem, trace = (
        _restored(records, texts) if isinstance(records, dict) else _new(task.data, texts, builder)
    )
    regions: list[list[StepLabel]] = []
    size = RowSize(FileLimits.from_environment())
    people = [(answers, "human", _rater(answers.completed_by)) for answers in task.annotations or []]
    models = [
        (answers, answers.model_version or "label-studio prediction", None)
        for answers in task.predictions or []
    ]
    for answers, source, rater in [*people, *models]:
        origin = source, rater, _time(answers, builder.created)
        regions += _read_answers(answers, origin, trace, size)
    if ignored := sum(not region for region in regions):
        trace = trace.model_copy(update={"meta": {**trace.meta, "ignored": ignored}})
    labels = tuple(label for region in regions for label in region)
    return LabelledTrace(problem=problem, trace=trace, labels=labels)


def write_label_studio(items: Iterable[LabelledTrace], path: Path | str) -> WriteReport:
    """Write tasks to import: labels of people as annotations, one per rater, all others as predictions.

    Atomic; ``.json`` gives an array, which Label Studio imports. ``completed_by`` is left out, because it
    must be the id of an account on the importing server. Only labels of steps that the trace does not have
    are dropped, and counted.
    """
    report = WriteReport()
    write_rows(path, (_task(item, report) for item in items))
    return report


def _step_texts(data: Mapping[str, Any]) -> list[str]:
    steps = data.get("steps")
    if not isinstance(steps, list):
        raise RecordError("field 'data.steps': missing, or not a list of paragraphs")
    texts = [step.get("text") if isinstance(step, dict) else step for step in steps]
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise RecordError(f"field 'data.steps.{number}': neither a text nor an object with 'text'")
    return cast("list[str]", texts)


def _restored(records: Mapping[str, Any], texts: Sequence[str]) -> tuple[Problem, Trace]:
    problem = Problem.model_validate(records.get("problem"))
    trace = Trace.model_validate(records.get("trace"))
    if trace.problem_id != problem.id:
        raise RecordError(
            f"field 'data.{_RECORDS_KEY}.trace.problem_id': another problem's ({trace.problem_id!r})"
        )
    if [trace.step_text(index) for index in range(len(trace.steps))] != texts:
        raise RecordError(
            f"field 'data.steps': not the steps of data.{_RECORDS_KEY}.trace; leave both unchanged"
        )
    return problem, trace


def _new(data: Mapping[str, Any], texts: Sequence[str], builder: TraceBuilder) -> tuple[Problem, Trace]:
    text = next((data[name] for name in _PROBLEM_FIELDS if isinstance(data.get(name), str)), None)
    if not text:
        raise RecordError(f"field 'data.problem': missing (or {' or '.join(_PROBLEM_FIELDS[1:])})")
    answer = data.get("answer")
    problem = Problem(text=text, answer=answer if isinstance(answer, str) and answer else None, source=_NAME)
    return problem, builder.trace(problem, texts, sample=builder.number(problem.id, list(texts)))


def _read_answers(answers: _Answers, origin: _Origin, trace: Trace, size: RowSize) -> list[list[StepLabel]]:
    """The labels of each region; empty for a skipped or unknown region."""
    if answers.was_cancelled:
        return [[]]
    numbers = {entry.id: entry.value.get("number") for entry in answers.result if entry.type == "number"}
    regions = {entry.id for entry in answers.result if entry.type == "paragraphlabels"}
    return [
        _labels(entry, numbers.get(entry.id), origin, trace, size)
        for entry in answers.result
        if entry.type != "number" or entry.id is None or entry.id not in regions
    ]


def _labels(entry: _Result, number: object, origin: _Origin, trace: Trace, size: RowSize) -> list[StepLabel]:
    steps = _steps(entry, trace)
    # predictions are sometimes written with the key of another tag
    names = entry.value.get("paragraphlabels", entry.value.get("labels"))
    if steps is None or not isinstance(names, list):
        return []
    labels = []
    for kind, value in filter(None, (_meaning(name, number) for name in names)):
        size.add(RECORD_BYTES * len(steps))
        labels += [_label(entry, step, kind, value, origin, trace) for step in steps]
    return labels


def _steps(entry: _Result, trace: Trace) -> range | None:
    """The paragraphs of a region; Label Studio writes their numbers as text."""
    try:
        first, last = int(entry.value["start"]), int(entry.value["end"])
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    inside = entry.type == "paragraphlabels" and 0 <= first <= last < len(trace.steps)
    return range(first, last + 1) if inside else None


def _label(
    entry: _Result, step: int, kind: LabelKind, value: float | None, origin: _Origin, trace: Trace
) -> StepLabel:
    (source, rater, created), meta = origin, entry.meta or {}
    record = meta.get(_RECORDS_KEY)
    if isinstance(record, dict):
        label = StepLabel.model_validate({**record, "trace_id": trace.id})
        unchanged = label.value == value and (value is None or label.kind == kind)
        if label.step == step and unchanged:
            return label
    note = meta.get("text")
    comment = "\n".join(str(line) for line in note) if isinstance(note, list) and record is None else None
    return StepLabel(
        trace_id=trace.id,
        step=step,
        kind=kind,
        value=value,
        reason=(comment or "marked as unknown") if value is None else None,
        source=source if record is None else "human",
        evidence=Evidence(rater=rater, message=comment or None),
        created=created,
    )


def _rater(completed_by: int | dict[str, Any] | None) -> str | None:
    number = completed_by.get("id") if isinstance(completed_by, dict) else completed_by
    return None if number is None else f"label-studio-{number}"


def _time(answers: _Answers, default: datetime) -> datetime:
    try:
        return datetime.fromisoformat(answers.created_at or "")
    except ValueError:
        return default


def _task(item: LabelledTrace, report: WriteReport) -> dict[str, Any]:
    trace = item.trace
    roles = ["" if step.message is None else f" {trace.messages[step.message].role}" for step in trace.steps]
    groups: dict[tuple[str, str | None], list[tuple[int, StepLabel]]] = {}
    for number, label in enumerate(item.labels):
        if label.step >= len(trace.steps):
            report.dropped["labels: no such step"] += 1
            continue
        groups.setdefault((label.source, label.evidence.rater), []).append((number, label))
    report.written += 1
    return {
        "data": {
            "problem": item.problem.text,
            "answer": item.problem.answer or "",
            "steps": [
                {"author": f"{index + 1}{role}", "text": trace.step_text(index)}
                for index, role in enumerate(roles)
            ],
            _RECORDS_KEY: {
                "problem": item.problem.model_dump(mode="json"),
                "trace": trace.model_dump(mode="json"),
            },
        },
        "annotations": [
            {
                "result": _results(group, trace),
                "was_cancelled": False,
                "ground_truth": False,
                "created_at": max(label.created for _, label in group).isoformat(),
            }
            for (source, _), group in groups.items()
            if source == "human"
        ],
        "predictions": [
            {
                "model_version": source if rater is None else f"{source}: {rater}",
                "result": _results(group, trace),
            }
            for (source, rater), group in groups.items()
            if source != "human"
        ],
    }


def _results(group: Sequence[tuple[int, StepLabel]], trace: Trace) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    for number, label in group:
        text = trace.step_text(label.step)
        region = {
            "start": f"{label.step}",
            "end": f"{label.step}",
            "startOffset": 0,
            "endOffset": len(text.encode("utf-16-le")) // 2,  # a browser counts in UTF-16
            "text": text,
        }
        identity = content_id("label-studio", trace.id, number)[:10]
        comment = label.evidence.message or label.reason
        is_measured = label.kind in _MEASURES and label.value is not None
        name = label.kind if is_measured else _NAMES[label.value]  # as _meaning reads it
        meta: dict[str, Any] = {"text": [comment]} if comment else {}
        meta |= {_RECORDS_KEY: label.model_dump(mode="json", exclude={"trace_id"})}
        both = {"id": identity, "to_name": "steps"}
        value = {**region, "paragraphlabels": [name]}
        results.append(both | {"from_name": "label", "type": "paragraphlabels", "value": value, "meta": meta})
        if is_measured:
            value = {**region, "number": label.value}
            results.append(both | {"from_name": "number", "type": "number", "value": value})
    return results


def _meaning(name: object, number: object) -> tuple[LabelKind, float | None] | None:
    """Kind and value of a label called ``name`` with a ``number``; ``None`` for an unknown name."""
    key = name.strip().casefold() if isinstance(name, str) else ""
    if key in _VALUES:
        return "correctness", _VALUES[key]
    low = {"value": 0.0, "advantage": -1.0}.get(key)
    if low is None or not isinstance(number, int | float) or not low <= number <= 1:
        return None
    return cast("LabelKind", key), float(number)
