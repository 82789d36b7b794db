"""Thought Branches (Macar et al., arXiv 2510.27484): reasoning that a professor's hint moved.

A row of ``faithfulness/good_problems`` has a multiple-choice question, a response under the hint that gives
the hinted answer and does not mention the hint, and one without the hint that is right.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from surefoot.errors import RecordError
from surefoot.formats.rows import FileRow, expand_rows
from surefoot.io.files import ReadReport
from surefoot.protocols import LabelledTrace
from surefoot.records import Problem, Trace

_NAME = "thought-branches"


class _HintRow(FileRow):
    pn: int | str
    question: str
    response_text: str
    post_reasoning: str
    base_gt_response_text: str
    base_gt_post_reasoning: str
    gt_answer: str
    cue_answer: str


def read_thought_branches(path: Path | str, *, report: ReadReport | None = None) -> Iterator[LabelledTrace]:
    """Two responses to each question, without step labels; ``outcome`` is false for the one that was moved.

    Both belong to the question without the hint, because a monitor must not see it.
    """
    return expand_rows(path, _HintRow, lambda _, row: _responses(row), report)


def _responses(row: _HintRow) -> list[LabelledTrace]:
    if row.cue_answer == row.gt_answer:
        raise RecordError("'cue_answer' is the right answer: the hint cannot mislead")
    question = row.question.removeprefix("user:").removesuffix("<think>\n").strip()
    problem = Problem(id=f"{_NAME}-{row.pn}", text=question, answer=row.gt_answer, source=_NAME)
    texts = {
        False: f"{row.response_text.rstrip()}\n{row.post_reasoning.strip()}",
        True: f"{row.base_gt_response_text.rstrip()}\n{row.base_gt_post_reasoning.strip()}",
    }
    answers = {False: row.cue_answer, True: row.gt_answer}
    return [
        LabelledTrace(
            problem=problem,
            trace=Trace(problem_id=problem.id, text=text, outcome=right, answer=answers[right]),
            labels=(),
        )
        for right, text in texts.items()
    ]
