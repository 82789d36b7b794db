"""AgentProcessBench's file of labels by people and by 20 judges, without the messages (arXiv 2603.14465)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from surefoot.errors import RecordError
from surefoot.formats.rows import FileRow, TraceBuilder, reader_of
from surefoot.io import ReadReport
from surefoot.protocols import LabelledTrace
from surefoot.records import Problem, Step, StepLabel, Trace

_OUTCOMES: Final = {1: True, 0: None, -1: False}

Sign = Literal[-1, 0, 1]
Signs = dict[str, Sign | None]
"""Labels by the index of their message; null where a judge gave none."""


@dataclass(frozen=True, kw_only=True)
class JudgedRun:
    """Labels of one run by people and by judges."""

    item: LabelledTrace
    """The labels of people; each step of the trace is one character in place of a message."""
    judges: Mapping[str, tuple[StepLabel, ...]]
    """By the judge's name; source ``judge``, with the name as the rater."""


class _Judge(FileRow):
    step_labels: Signs
    final_label: Sign | None = None


class _Row(FileRow):
    dataset: str
    data_source: str
    query_index: int
    sample_index: int
    human_step_labels: dict[str, Sign]
    human_final_label: Sign
    judges: dict[str, _Judge]


@reader_of(_Row)
def read_agent_judgements(row: _Row, builder: TraceBuilder) -> JudgedRun:
    """Human labels of AgentProcessBench and stored labels of judges, one run per row.

    Ids are as in :func:`surefoot.formats.read_agent_processbench`; steps are the labelled messages in order.
    """
    steps = {index: step for step, index in enumerate(row.human_step_labels)}
    if not steps:
        raise RecordError("field 'human_step_labels': empty")
    if not all(index.isdecimal() for index in steps) or sorted(steps, key=int) != list(steps):
        raise RecordError("field 'human_step_labels': message indices must be ascending numbers")
    task = f"{row.data_source}:{row.query_index}"
    trace = Trace(
        id=f"{task}:{row.sample_index}",
        problem_id=task,
        text="." * len(steps),
        steps=tuple(Step(start=n, end=n + 1, kind="message") for n in range(len(steps))),
        outcome=_OUTCOMES[row.human_final_label],
    )

    def labels(signs: Mapping[str, Sign | None], source: str, rater: str | None) -> tuple[StepLabel, ...]:
        if wrong := [index for index in signs if index not in steps]:
            raise RecordError(f"field 'step_labels': message {wrong[0]} is not from the assistant")
        return tuple(
            builder.label(trace.id, steps[index], sign, source, rater=rater, reason="no label given")
            for index, sign in signs.items()
        )

    return JudgedRun(
        item=LabelledTrace(
            problem=Problem(id=task, text=task, source=row.data_source),
            trace=trace,
            labels=labels(row.human_step_labels, "human", None),
        ),
        judges={name: labels(judge.step_labels, "judge", name) for name, judge in row.judges.items()},
    )


def read_people(path: Path | str, *, report: ReadReport | None = None) -> Iterator[LabelledTrace]:
    """The runs with the labels of people."""
    return (run.item for run in read_agent_judgements(path, report=report))


def read_judges(path: Path | str, *, report: ReadReport | None = None) -> Iterator[StepLabel]:
    """The labels of all judges."""
    runs = read_agent_judgements(path, report=report)
    return (label for run in runs for labels in run.judges.values() for label in labels)
