"""GSM8K (Cobbe et al., arXiv 2110.14168): ``question``, ``answer`` = worked solution, ``####``, number."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from surefoot.errors import RecordError
from surefoot.formats._rows import ReadReport, Row, read_rows
from surefoot.formats._spans import SEPARATOR_KEY, join_parts
from surefoot.protocols import ProblemTrace
from surefoot.records import Problem, Trace

_MARK = "####"
_CALCULATOR = re.compile(r"<<[^<>]*>>")


class _Row(Row):
    question: str
    answer: str


def read_gsm8k(path: Path | str, *, report: ReadReport | None = None) -> Iterator[Problem]:
    """Problems with their final answer (commas removed); ``meta["solution"]`` is the worked solution.

    Raises ``RecordError`` for a bad row unless a ``report`` counts it.
    """
    return read_rows(path, _Row, lambda _, row: _problem(row), report)


def read_gsm8k_solutions(path: Path | str, *, report: ReadReport | None = None) -> Iterator[ProblemTrace]:
    """The worked solutions as traces, one step a line, without the ``<<…>>`` calculator marks.

    The last step is the line with the answer. Raises as ``read_gsm8k`` does.
    """
    return read_rows(path, _Row, lambda _, row: _solution(row), report)


def _problem(row: _Row) -> Problem:
    worked, mark, answer = row.answer.rpartition(_MARK)
    answer = answer.strip().replace(",", "")
    if not mark or not answer:
        raise RecordError(f"field 'answer': no final answer after '{_MARK}'")
    return Problem(text=row.question, answer=answer, source="gsm8k", meta={"solution": worked.rstrip("\n")})


def _solution(row: _Row) -> ProblemTrace:
    problem = _problem(row)
    text, steps = join_parts(_CALCULATOR.sub("", row.answer).split("\n"), "\n")
    trace = Trace(
        problem_id=problem.id,
        text=text,
        steps=steps,
        answer=problem.answer,
        outcome=True,
        policy="human",
        meta={SEPARATOR_KEY: "\n"},
    )
    return ProblemTrace(problem=problem, trace=trace)
