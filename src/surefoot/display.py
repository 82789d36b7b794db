"""Shows the steps of a trace with scores, and the first score below a threshold."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from surefoot.answers.extraction import extract_answer
from surefoot.printable import printable
from surefoot.records import StepScores, Trace
from surefoot.scores import require_fit
from surefoot.segment import segment_trace


@dataclass(frozen=True, kw_only=True)
class TraceView:
    """Result of :func:`show`; prints one step a line, numbered from 1."""

    title: str
    steps: tuple[str, ...]
    scores: tuple[float | None, ...]
    """One per step; empty for a trace without scores."""
    first_below: int | None
    """0-based index of the first step with a score below the threshold. It need not be an error."""
    threshold: float

    def __str__(self) -> str:
        return printable("\n".join([self.title, *map(self._line, range(len(self.steps)))]))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The same as a table of a notebook; the first low score is in bold."""
        lines = [f"<pre>{escape(printable(self._line(step)))}</pre>" for step in range(len(self.steps))]
        if self.first_below is not None:
            lines[self.first_below] = f"<b>{lines[self.first_below]}</b>"
        rows = "".join(f"<tr><td>{line}</td></tr>" for line in lines)
        return f"<table><caption>{escape(printable(self.title))}</caption>{rows}</table>"

    def _line(self, step: int) -> str:
        mark = f"  ▽ first score below {self.threshold:g}" if step == self.first_below else ""
        value = self.scores[step] if self.scores else None
        score = "" if not self.scores else "  n/a  " if value is None else f"{value:.3f}  "
        return f"{step + 1:3}  {score}{self.steps[step].strip()}{mark}"


def show(solution: Trace | str, scores: StepScores | None = None, *, threshold: float = 0.5) -> TraceView:
    """The steps of a trace with their ``scores``, and the first step that scores below ``threshold``.

    A text is cut into steps as in ``prm.score``. Scores learned from Monte Carlo labels predict the chance of
    success, so a correct early step of a hard problem may score below ½: choose the threshold on problems
    with known errors.

    Raises ``ScoreError`` if the scores belong to another trace or are not one per step.
    """
    if isinstance(solution, str):
        name = scores.trace_id if scores else ""
        trace = segment_trace(Trace(id=name, problem_id="", text=solution))
    else:
        trace = solution
    if trace.answer is None and trace.text:
        trace = trace.model_copy(update={"answer": extract_answer(trace.text, ("boxed", "hash", "phrase"))})
    if scores is not None:
        require_fit(scores, trace)
    values = () if scores is None else scores.scores
    return TraceView(
        title=str(trace) if scores is None else f"{trace}, scored by {scores.scorer}",
        steps=tuple(trace.step_text(step).strip("\n") for step in range(len(trace.steps))),
        scores=values,
        threshold=threshold,
        first_below=next(
            (step for step, value in enumerate(values) if value is not None and value < threshold), None
        ),
    )
