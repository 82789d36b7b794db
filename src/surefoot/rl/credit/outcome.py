"""Credit for the final answer alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from surefoot.rl.credit.rule import Need, RewardStream, ScoredRollout


class Outcome(BaseModel):
    """Outcome reward: r = 1 for a correct answer, 0 for a wrong one, at the last token (T - 1).

    Every token has the same return, so nothing says which step was to blame. The reward of RLOO (Ahmadian et
    al., arXiv 2402.14740) and of outcome-supervised GRPO (DeepSeekMath, arXiv 2402.03300, section 4.1.2).
    A rollout that was not judged has no reward: its stream is empty.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rule: Literal["outcome"] = Field(default="outcome", description="Credit by the final answer alone.")
    needs: ClassVar[frozenset[Need]] = frozenset({"outcome"})

    def credit(self, batch: Sequence[Sequence[ScoredRollout]]) -> list[list[tuple[RewardStream, ...]]]:
        """One stream per rollout."""
        return [[(outcome_stream(one),) for one in group] for group in batch]


def outcome_stream(rollout: ScoredRollout, *, weight: float = 1.0) -> RewardStream:
    """The outcome at the last token; empty where it is not judged."""
    if rollout.outcome is None:
        return RewardStream(at=(), values=(), weight=weight)
    return RewardStream(at=(rollout.last,), values=(rollout.outcome,), weight=weight)
