"""Solutions that clients give: texts or steps become traces."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from surefoot.errors import SegmentError
from surefoot.gateway.http.errors import ApiError
from surefoot.gateway.schemas import Sent
from surefoot.protocols import ProblemTrace
from surefoot.records import Problem, Step, Trace
from surefoot.segment import BlankLine, Line, segment_trace, segmenter


class Given(Sent):
    """A problem with a solution: its ``steps``, or its text in ``solution``."""

    problem: str = Field(min_length=1)
    steps: list[Annotated[str, Field(min_length=1)]] | None = Field(
        default=None, min_length=1, max_length=2000
    )
    """Exact pieces of the solution, each with the white space that ends it."""
    solution: str | None = Field(default=None, min_length=1)
    segment: str | None = Field(default=None, max_length=20)
    """How ``solution`` is cut: blank-line, line, sentence, step-k, ki; by blank line or line if not given."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.steps is None) == (self.solution is None):
            raise ValueError("give either 'steps' or 'solution'")
        if self.segment is not None and self.steps is not None:
            raise ValueError("'segment' is for a 'solution'; 'steps' are cut already")
        return self


def item_of(given: Given) -> ProblemTrace:
    """The record of what was given. Raises :class:`ApiError`."""
    problem = Problem(text=given.problem)
    if given.steps is not None:
        return item_of_steps(problem, given.steps)
    return cut(problem, given.solution or "", given.segment)


def item_of_steps(problem: Problem, steps: list[str]) -> ProblemTrace:
    """A trace of which each of ``steps`` is a step."""
    spans, at = [], 0
    for text in steps:
        spans.append(Step(start=at, end=at + len(text)))
        at += len(text)
    trace = Trace(problem_id=problem.id, text="".join(steps), steps=tuple(spans))
    return ProblemTrace(problem=problem, trace=trace)


def cut(problem: Problem, solution: str, segment: str | None = None) -> ProblemTrace:
    """A solution cut into steps. Raises :class:`ApiError` if there is none, or no such way of cutting."""
    how = BlankLine() if "\n\n" in solution.strip() else Line()
    if segment is not None:
        if segment.startswith("regex:"):  # a client's pattern could keep the server busy for ever
            raise ApiError(400, "segment: patterns are not taken here; send 'steps'", param="segment")
        try:
            how = segmenter(segment)  # type: ignore[assignment]
        except SegmentError as error:
            raise ApiError(400, f"segment: {error}", param="segment") from error
    trace = segment_trace(Trace(problem_id=problem.id, text=solution), how)
    if not trace.steps:
        raise ApiError(400, "solution: is empty", param="solution")
    return ProblemTrace(problem=problem, trace=trace)
