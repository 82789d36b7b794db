"""Step rewards and the outcome together, each with a weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from surefoot.rl.credit.clip_delta import ClipDelta
from surefoot.rl.credit.implicit import Implicit
from surefoot.rl.credit.min_form import MinForm
from surefoot.rl.credit.outcome import outcome_stream
from surefoot.rl.credit.rule import Need, RewardStream, ScoredRollout
from surefoot.rl.credit.summed import Summed

Process: TypeAlias = Annotated[Summed | MinForm | ClipDelta | Implicit, Field(discriminator="rule")]
"""Rules without an outcome of their own."""


class Mixed(BaseModel):
    """Process and verifiable reward: ``process`` · A_process + ``outcome`` · A_outcome.

    Each source has its own baseline, and is weighted after it. It is PURE's PRM + VR (arXiv
    2504.15275; 1 and 1), Clip and Delta's J = α Σ r_k + Correct (arXiv 2410.15115; ``process`` = α) and PRIME
    (arXiv 2502.01456; 1 and 1: the ``rm_coef`` 5 of its scripts does not reach the advantages).
    An outcome that was not judged is no reward; the process part stays.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rule: Literal["mixed"] = Field(default="mixed", description="Step rewards plus the outcome.")
    of: Process = Field(default=MinForm(), description="Rule of the process reward; PURE uses min-form.")
    process: float = Field(default=1.0, gt=0, description="Weight of the process reward.")
    outcome: float = Field(default=1.0, gt=0, description="Weight of the outcome.")

    @property
    def needs(self) -> frozenset[Need]:
        """What the inner rule reads, and the outcome."""
        return self.of.needs | {"outcome"}

    def credit(self, batch: Sequence[Sequence[ScoredRollout]]) -> list[list[tuple[RewardStream, ...]]]:
        """The inner rule's streams, then the outcome's."""
        inner = self.of.credit(batch)
        return [
            [
                (*(self._weighted(stream) for stream in streams), outcome_stream(one, weight=self.outcome))
                for one, streams in zip(group, rewards, strict=True)
            ]
            for group, rewards in zip(batch, inner, strict=True)
        ]

    def _weighted(self, stream: RewardStream) -> RewardStream:
        return replace(stream, weight=stream.weight * self.process)
