"""Shows the steps of a trace with coloured scores and the first error."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from surefoot.printable import printable
from surefoot.records import StepScores, Trace
from surefoot.scores import require_fit
from surefoot.segment import segment_trace

_STYLE = (
    "border-collapse:collapse;font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;"
    "background:#fff;color:#1b1f24"
)
_CELL = "padding:2px 10px;text-align:left;white-space:pre-wrap;border:0"
_UNKNOWN = "#eaeef2"


@dataclass(frozen=True, kw_only=True)
class TraceView:
    """Result of :func:`show`: text in a terminal, a coloured table in a notebook."""

    title: str
    steps: tuple[str, ...]
    scores: tuple[float | None, ...]
    """One per step; empty for a trace without scores."""
    first_error: int | None
    """The first step with a score below the threshold."""

    def __str__(self) -> str:
        return printable("\n".join([self.title, *map(self._line, range(len(self.steps)))]))

    __repr__ = __str__

    def _line(self, step: int) -> str:
        mark = "  ← first error" if step == self.first_error else ""
        return f"{step:3}  {self._score(step)}{self.steps[step].strip()}{mark}"

    def _score(self, step: int) -> str:
        if not self.scores:
            return ""
        value = self.scores[step]
        return "  n/a  " if value is None else f"{value:.3f}  "

    def _repr_html_(self) -> str:
        rows = "".join(self._row(step) for step in range(len(self.steps)))
        title = f'<caption style="text-align:left;color:#57606a">{escape(self.title)}</caption>'
        return f'<table style="{_STYLE}">{title}<tbody>{rows}</tbody></table>'

    def _row(self, step: int) -> str:
        value = self.scores[step] if self.scores else None
        # from red at 0 through yellow to green at 1, light enough for black text
        colour = _UNKNOWN if value is None else f"hsl({120 * min(1.0, max(0.0, value)):.0f} 70% 85%)"
        first = step == self.first_error
        edge = f"border-left:5px solid {'#cf222e' if first else 'transparent'}"
        mark = ' <b style="color:#cf222e">← first error</b>' if first else ""
        return (
            f'<tr style="background:{colour}"><td style="{_CELL};{edge}">{step}</td>'
            f'<td style="{_CELL}">{self._score(step).strip()}</td>'
            f'<td style="{_CELL}">{escape(self.steps[step].strip())}{mark}</td></tr>'
        )


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
    if scores is not None:
        require_fit(scores, trace)
    values = () if scores is None else scores.scores
    return TraceView(
        title=str(trace) if scores is None else f"{trace}, scored by {scores.scorer}",
        steps=tuple(trace.step_text(step).strip("\n") for step in range(len(trace.steps))),
        scores=values,
        first_error=next(
            (step for step, value in enumerate(values) if value is not None and value < threshold), None
        ),
    )
