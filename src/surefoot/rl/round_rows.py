"""The curves of rounds of imitation and expert iteration: a row a round."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from surefoot.io import atomic_file
from surefoot.records import Usage
from surefoot.rl.log import EvaluationRow, scalars


class RoundRow(BaseModel):
    """What a round came to; round 0 is the policy as it was."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    round: int
    samples: int = 0
    """Solutions written in all rounds so far."""
    drawn: int = 0
    """Solutions written in this round."""
    learned: int = 0
    """Traces that were learned from, those of earlier rounds among them."""
    decisions: int = 0
    """Steps and ends that were learned."""
    dropped: dict[str, int] = Field(default_factory=dict)
    usage: Usage = Usage()
    updates: int = 0
    tokens: int = 0
    """Read by the updates."""
    loss: float | None = None
    """Mean of the last 50 updates, nats a token."""
    evaluation: EvaluationRow | None = None


def write_curves(path: Path, rows: Sequence[RoundRow]) -> None:
    """One flat JSON object a round; the evaluation's names are those of reinforcement learning."""
    with atomic_file(path) as stream:
        for row in rows:
            flat = row.model_dump(mode="json", exclude={"evaluation"}, exclude_none=True)
            if row.evaluation:
                flat |= {name: value for name, value in scalars(row.evaluation).items() if name not in flat}
            stream.write(json.dumps(flat).encode() + b"\n")
