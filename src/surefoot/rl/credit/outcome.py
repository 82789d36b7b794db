"""Credit for the final answer alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from surefoot.rl.credit.rule import Need, Scored, Stream


class Outcome(BaseModel):
    """Outcome reward: r = 1 for a right answer, 0 for a wrong one, at the last token (T - 1).

    Every token has the same return, so nothing says which step was to blame. The reward of RLOO (Ahmadian et
    al., arXiv 2402.14740) and of outcome-supervised GRPO (DeepSeekMath, arXiv 2402.03300, section 4.1.2).
    A rollout that nobody judged has no reward: its stream is empty.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rule: Literal["outcome"] = "outcome"
    needs: ClassVar[frozenset[Need]] = frozenset({"outcome"})

    def credit(self, batch: Sequence[Sequence[Scored]]) -> list[list[tuple[Stream, ...]]]:
        """One stream a rollout."""
        return [[(outcome_stream(one),) for one in group] for group in batch]


def outcome_stream(rollout: Scored, *, weight: float = 1.0) -> Stream:
    """The outcome at the last token; empty where it is not judged."""
    if rollout.outcome is None:
        return Stream(at=(), values=(), weight=weight)
    return Stream(at=(rollout.last,), values=(rollout.outcome,), weight=weight)
