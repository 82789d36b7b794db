"""Samples being written, and how their tokens are drawn."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from surefoot.protocols import SampleRequest


@dataclass
class Row:
    """One sample being written."""

    request_number: int
    sample: int
    request: SampleRequest
    ids: tuple[int, ...]
    limit: int
    tokens: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    cut: int | None = None

    def __post_init__(self) -> None:
        if self.limit <= 0:
            self.finish_reason = "length"

    def noise(self, count: int) -> np.ndarray:
        """Numbers in [0, 1), a stream of this sample's own (Philox keyed by seed, prompt and number)."""
        digest = hashlib.blake2b(
            np.asarray([self.request.seed, self.sample, *self.ids], dtype=np.int64).tobytes(), digest_size=16
        )
        return np.random.Generator(np.random.Philox(key=int.from_bytes(digest.digest(), "little"))).random(
            count
        )


def draw(logits: torch.Tensor, noise: np.ndarray, rows: Sequence[Row]) -> torch.Tensor:
    """One token a row ``[B]`` from ``logits`` ``[B, V]`` and numbers in [0, 1) ``[B]``.

    Inverse-CDF sampling: token = first whose cumulated probability exceeds the row's number.
    """
    temperature = torch.tensor([row.request.sampling.temperature for row in rows])[:, None]
    greedy = temperature[:, 0] == 0
    probabilities = torch.softmax(logits / temperature.masked_fill(temperature == 0, 1.0), dim=-1)
    for index in {i for i, row in enumerate(rows) if row.request.sampling.top_p < 1}:
        probabilities[index] = _nucleus(probabilities[index], rows[index].request.sampling.top_p)
    cumulated = probabilities.double().cumsum(-1)
    threshold = torch.from_numpy(noise)[:, None] * cumulated[:, -1:]
    drawn = torch.searchsorted(cumulated, threshold, right=True)[:, 0].clamp(max=logits.shape[1] - 1)
    return torch.where(greedy, logits.argmax(-1), drawn)


def _nucleus(probabilities: torch.Tensor, top_p: float) -> torch.Tensor:
    """Keep the smallest set of tokens whose mass reaches ``top_p`` (Holtzman et al. 2020)."""
    ordered, order = probabilities.sort(descending=True)
    outside = ordered.cumsum(-1) - ordered >= top_p
    return probabilities.index_fill(0, order[outside], 0.0)
