"""Problems with reference answers: GSM8K and MATH-500."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from surefoot.errors import RecordError
from surefoot.formats.rows import FileRow, joined_trace, read_rows
from surefoot.io.files import ReadReport
from surefoot.protocols import ProblemTrace
from surefoot.records import Problem

_MARK = "####"
_CALCULATOR = re.compile(r"<<[^<>]*>>")


class _GSM8KRow(FileRow):
    """GSM8K (Cobbe et al., arXiv 2110.14168): ``answer`` is the worked solution, ``####`` and the number."""

    question: str
    answer: str


def read_gsm8k(path: Path | str, *, report: ReadReport | None = None) -> Iterator[Problem]:
    """Problems with their final answer (without commas); ``meta["solution"]`` is the worked solution."""
    return read_rows(path, _GSM8KRow, lambda _, row: _gsm8k_problem(row), report)


def read_gsm8k_solutions(path: Path | str, *, report: ReadReport | None = None) -> Iterator[ProblemTrace]:
    """The worked solutions as traces, one step per line, without the ``<<…>>`` calculator marks.

    The last step is the line with the answer. Raises as ``read_gsm8k`` does.
    """
    return read_rows(path, _GSM8KRow, lambda _, row: _gsm8k_solution(row), report)


def _gsm8k_problem(row: _GSM8KRow) -> Problem:
    worked, mark, answer = row.answer.rpartition(_MARK)
    answer = answer.strip().replace(",", "")
    if not mark or not answer:
        raise RecordError(f"field 'answer': no final answer after '{_MARK}'")
    return Problem(text=row.question, answer=answer, source="gsm8k", meta={"solution": worked.rstrip("\n")})


def _gsm8k_solution(row: _GSM8KRow) -> ProblemTrace:
    problem = _gsm8k_problem(row)
    lines = _CALCULATOR.sub("", row.answer).split("\n")
    trace = joined_trace(problem, lines, "\n", answer=problem.answer, outcome=True, policy="human")
    return ProblemTrace(problem=problem, trace=trace)


class _MATH500Row(FileRow):
    """MATH-500: the 500 test problems of Lightman et al. (arXiv 2305.20050) from MATH (arXiv 2103.03874)."""

    problem: str
    answer: str
    solution: str | None = None
    level: str | int | None = None
    subject: str | None = None
    unique_id: str | None = None


def read_math500(path: Path | str, *, report: ReadReport | None = None) -> Iterator[Problem]:
    """Problems with answers; ``meta`` holds level, subject, unique_id and solution where the row has them."""
    return read_rows(path, _MATH500Row, lambda _, row: _math500_problem(row), report)


def _math500_problem(row: _MATH500Row) -> Problem:
    meta = row.model_dump(include={"level", "subject", "unique_id", "solution"}, exclude_none=True)
    return Problem(text=row.problem, answer=row.answer, source="math500", meta=meta)
