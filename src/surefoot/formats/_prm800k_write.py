"""PRM800K records as published, put together again from the traces that were made of them."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surefoot.formats._prm800k_shared import FRAME_KEY, PLACES_KEY, RECORD_KEY
from surefoot.formats._rows import WriteReport, write_rows
from surefoot.formats._spans import step_parts
from surefoot.protocols import LabelledTrace
from surefoot.records import StepLabel

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


@dataclass(frozen=True, kw_only=True)
class _Given:
    """A completion as the traces have it."""

    text: str
    rating: int | None


def write_prm800k(items: Iterable[LabelledTrace], path: Path | str) -> WriteReport:
    """Write one record a labelling session, as published. Atomic.

    Traces of one record, as ``read_prm800k`` gives them, become that record again, with the ratings that the
    traces have now; a completion whose trace is not among ``items`` is left out. All traces are held in
    memory. A trace from elsewhere, or one whose record's first trace is missing, is a record of its own with
    one completion a step, rated null where it has no label; its ``finish_reason`` is its own if PRM800K knows
    it, else ``found_error`` where the last step is −1, else null.

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
    given: dict[tuple[int, int], _Given] = {}
    for item in items:
        parts, ratings = step_parts(item.trace), _ratings(item, report)
        for step, number in item.trace.meta[PLACES_KEY]:
            given[step, number] = _Given(text=parts[step], rating=ratings.get(step))
    frame["question"]["problem"] = items[0].problem.text
    for index, step in enumerate(frame["label"]["steps"]):
        _fill_step(step, {number: made for (at, number), made in given.items() if at == index})
    return dict(_ordered(frame))


def _ordered(part: Any) -> Any:
    if isinstance(part, list):
        return [_ordered(item) for item in part]
    if not isinstance(part, dict):
        return part
    return {
        name: _ordered(part[name]) for name in sorted(part, key=lambda name: _ORDER.get(name, len(_ORDER)))
    }


def _fill_step(step: dict[str, Any], given: dict[int, _Given]) -> None:
    offered = step.get("completions") or []
    human = step.get("human_completion")
    if human is not None:
        mine = given.get(len(offered))
        step["human_completion"] = None if mine is None else mine.text if human == "" else _put(human, mine)
    kept = [number for number in range(len(offered)) if number in given]
    if offered:
        step["completions"] = [_put(offered[number], given[number]) for number in kept]
    if step.get("chosen_completion") is not None:
        step["chosen_completion"] = kept.index(step["chosen_completion"])


def _put(completion: dict[str, Any], given: _Given) -> dict[str, Any]:
    rated = "rating" in completion or given.rating is not None
    return {**completion, "text": given.text, **({"rating": given.rating} if rated else {})}


def _ratings(item: LabelledTrace, report: WriteReport) -> dict[int, int | None]:
    found: dict[int, int | None] = {}
    for label in item.labels:
        if label.kind != "correctness":
            report.dropped[f"labels: kind '{label.kind}'"] += 1
        elif label.step in found:
            report.dropped["labels: another one of the same step"] += 1
        else:
            found[label.step] = None if label.value is None else int(label.value)
    return found


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
