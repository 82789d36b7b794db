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
from surefoot.rl.credit.rule import Need, Scored, Stream
from surefoot.rl.credit.summed import Summed

Process: TypeAlias = Annotated[Summed | MinForm | ClipDelta | Implicit, Field(discriminator="rule")]
"""Rules without an outcome of their own."""


class Mixed(BaseModel):
    """Process and verifiable reward: ``process`` · A_process + ``outcome`` · A_outcome.

    Each source has a baseline of its own, and the weights come after it. It is PURE's PRM + VR (arXiv
    2504.15275; 1 and 1), Clip and Delta's J = α Σ r_k + Correct (arXiv 2410.15115; ``process`` = α) and PRIME
    (arXiv 2502.01456; 1 and 1: the ``rm_coef`` 5 of its scripts does not reach the advantages).
    Not judged outcomes are no reward; the process part stays.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rule: Literal["mixed"] = "mixed"
    of: Process = MinForm()
    """Where the process reward comes from; by default as in PURE."""
    process: float = Field(default=1.0, gt=0)
    outcome: float = Field(default=1.0, gt=0)

    @property
    def needs(self) -> frozenset[Need]:
        """What the inner rule reads, and the outcome."""
        return self.of.needs | {"outcome"}

    def credit(self, batch: Sequence[Sequence[Scored]]) -> list[list[tuple[Stream, ...]]]:
        """The inner rule's streams, then the outcome's."""
        inner = self.of.credit(batch)
        return [
            [
                (*(self._weighted(stream) for stream in streams), outcome_stream(one, weight=self.outcome))
                for one, streams in zip(group, given, strict=True)
            ]
            for group, given in zip(batch, inner, strict=True)
        ]

    def _weighted(self, stream: Stream) -> Stream:
        return replace(stream, weight=stream.weight * self.process)
