"""A scorer that says what it was told, for tests of what is built on scorers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from surefoot.protocols import ProblemTrace
from surefoot.records import Problem, Step, StepScores, Trace, Usage


@dataclass
class FixedScorer:
    """Scores by trace text; counts its calls. A ``None`` among them gets the reason ``too long``."""

    scores: Mapping[str, Sequence[float | None]]
    name: str = "fixed"
    calls: int = field(default=0, init=False)

    def score_traces(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        self.calls += 1
        return [self._record(item) for item in items]

    def _record(self, item: ProblemTrace) -> StepScores:
        scores = tuple(self.scores[item.trace.text or ""])
        return StepScores(
            trace_id=item.trace.id,
            scorer=self.name,
            scores=scores,
            unscored_reason="too long" if None in scores else None,
            usage=Usage(verifier_tokens=10, calls=1),
        )


def one_character_steps(*texts: str, problem: str = "p") -> list[ProblemTrace]:
    """Traces whose steps are single characters."""
    found = Problem(text=problem)
    return [
        ProblemTrace(
            problem=found,
            trace=Trace(
                problem_id=found.id,
                text=text,
                steps=tuple(Step(start=at, end=at + 1) for at in range(len(text))),
            ),
        )
        for text in texts
    ]
