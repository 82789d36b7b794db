"""Labelled traces as Label Studio's tasks to import."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from surefoot.formats._rows import WriteReport, write_rows
from surefoot.formats.label_studio.vocabulary import OURS, is_measured, name_of
from surefoot.protocols import LabelledTrace
from surefoot.records import StepLabel, Trace, content_id


def write_label_studio(items: Iterable[LabelledTrace], path: Path | str) -> WriteReport:
    """Write tasks to import: labels of people as annotations, one a rater, all others as predictions.

    Atomic; ``.json`` gives an array, which is what Label Studio imports. ``completed_by`` is left out, since
    it must name an account of the server that imports. Nothing is dropped but labels of steps that the trace
    does not have, which are counted.
    """
    report = WriteReport()
    write_rows(path, (_task(item, report) for item in items))
    return report


class _Groups(dict[tuple[str, str | None], list[tuple[int, StepLabel]]]):
    """Labels, with their numbers in the trace, by source and rater."""


def _task(item: LabelledTrace, report: WriteReport) -> dict[str, Any]:
    trace, people, models = item.trace, _Groups(), _Groups()
    for number, label in enumerate(item.labels):
        if label.step >= len(trace.steps):
            report.dropped["labels: no such step"] += 1
            continue
        groups = people if label.source == "human" else models
        groups.setdefault((label.source, label.evidence.rater), []).append((number, label))
    report.written += 1
    return {
        "data": {
            "problem": item.problem.text,
            "answer": item.problem.answer or "",
            "steps": [
                {"author": _author(trace, index), "text": trace.step_text(index)}
                for index in range(len(trace.steps))
            ],
            OURS: {"problem": item.problem.model_dump(mode="json"), "trace": trace.model_dump(mode="json")},
        },
        "annotations": [
            {
                "result": _results(group, trace),
                "was_cancelled": False,
                "ground_truth": False,
                "created_at": max(label.created for _, label in group).isoformat(),
            }
            for group in people.values()
        ],
        "predictions": [
            {
                "model_version": source if rater is None else f"{source}: {rater}",
                "result": _results(group, trace),
            }
            for (source, rater), group in models.items()
        ],
    }


def _author(trace: Trace, index: int) -> str:
    message = trace.steps[index].message
    return f"{index + 1}" if message is None else f"{index + 1} {trace.messages[message].role}"


def _results(group: Sequence[tuple[int, StepLabel]], trace: Trace) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    for number, label in group:
        text = trace.step_text(label.step)
        place = {
            "start": f"{label.step}",
            "end": f"{label.step}",
            "startOffset": 0,
            "endOffset": len(text.encode("utf-16-le")) // 2,  # a browser counts in UTF-16
            "text": text,
        }
        identity = content_id("label-studio", trace.id, number)[:10]
        said = label.evidence.message or label.reason
        results.append(
            {
                "id": identity,
                "from_name": "label",
                "to_name": "steps",
                "type": "paragraphlabels",
                "value": {**place, "paragraphlabels": [name_of(label)]},
                "meta": {
                    **({"text": [said]} if said else {}),
                    OURS: label.model_dump(mode="json", exclude={"trace_id"}),
                },
            }
        )
        if is_measured(label):
            results.append(
                {
                    "id": identity,
                    "from_name": "number",
                    "to_name": "steps",
                    "type": "number",
                    "value": {**place, "number": label.value},
                }
            )
    return results
