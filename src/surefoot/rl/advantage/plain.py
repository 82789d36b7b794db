"""No baseline (REINFORCE)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from surefoot.rl.advantage.estimator import Credited
from surefoot.rl.advantage.tokens import group_advantages, settle
from surefoot.rl.credit.rule import FloatArray, Stream


class Plain(BaseModel):
    """REINFORCE (Williams 1992): A_t = the return from token t, sum of the rewards at or after it.

    Unbiased, with the most variance. With rewards of one sign all rollouts are pushed one way; ``whiten``
    (REINFORCE++, arXiv 2501.03262) centres and scales over the tokens of the batch.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["none"] = "none"
    needs_values: ClassVar[bool] = False
    compares: ClassVar[bool] = False
    whiten: bool = False

    def advantages(self, batch: Sequence[Sequence[Credited]]) -> list[list[FloatArray]]:
        """One array [T] for every rollout of every group."""
        found = [group_advantages(group, _as_they_are, least=1) for group in batch]
        return settle(batch, found, whiten=self.whiten)


def _as_they_are(streams: Sequence[Stream]) -> list[FloatArray]:
    return [np.array(stream.values) for stream in streams]
