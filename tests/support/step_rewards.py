"""Steps and scores that depend on the text alone, for tests of what hands rewards to other engines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import ClassVar

from surefoot.protocols import ProblemTrace
from surefoot.records import StepScores
from surefoot.rl.credit import Need
from surefoot.rl.sample import RewardStream, Sample


@dataclass(frozen=True)
class Every:
    """A step is so many characters."""

    characters: int

    def segment(self, text: str) -> list[tuple[int, int]]:
        if not text.strip():
            return []
        cuts = [*range(0, len(text), self.characters), len(text)]
        return list(pairwise(cuts))


class TextScorer:
    """Scores a step by its characters; a step with a ``?`` is not scored."""

    def score_traces(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        return [self._record(item) for item in items]

    def _record(self, item: ProblemTrace) -> StepScores:
        texts = [item.trace.step_text(step) for step in range(len(item.trace.steps))]
        scores = tuple(None if "?" in text else step_score(text) for text in texts)
        return StepScores(
            trace_id=item.trace.id,
            scorer="text",
            scores=scores,
            unscored_reason="asked" if None in scores else None,
        )


def step_score(text: str) -> float:
    """In [0, 1]."""
    return sum(map(ord, text)) % 11 / 10


def piece_starts(pieces: Sequence[str]) -> list[int]:
    """Where each token begins, given their texts: at its first visible character, if it has one."""
    starts = [0, *accumulate(map(len, pieces[:-1]))]
    return [
        start + (len(piece) - len(piece.lstrip()) if piece.strip() else 0)
        for start, piece in zip(starts, pieces, strict=True)
    ]


@dataclass(frozen=True)
class OnlyStep:
    """A credit rule that rewards one step (the last, if there are fewer), with 1."""

    step: int
    needs: ClassVar[frozenset[Need]] = frozenset()

    def credit(self, batch: Sequence[Sequence[Sample]]) -> list[list[tuple[RewardStream, ...]]]:
        return [
            [
                (RewardStream(at=(one.ends[min(self.step, len(one.ends) - 1)],), values=(1.0,)),)
                for one in group
            ]
            for group in batch
        ]
