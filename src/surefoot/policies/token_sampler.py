"""Drawing tokens where the logits are, so that only token ids leave the device.

The numbers that decide are made beforehand, row by row, on the CPU (Philox, keyed by seed, prompt and number
of the sample). A device only turns them into tokens, by the inverse of the cumulated probabilities, and so
draws what the CPU draws, up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from surefoot.protocols import Sampling

_LIKELIEST = (1024, 16_384)
"""Tokens among which a nucleus is looked for, before it is in the whole vocabulary: sorting 150,000 takes
thirty times as long as finding the likeliest thousand."""


class TokenSampler:
    """Draws a token for each of B rows, turn by turn.

    ``noise`` ``[B, T]`` are numbers in [0, 1), one for each row and turn.
    """

    def __init__(self, settings: Sequence[Sampling], noise: np.ndarray, device: torch.device) -> None:
        # MPS lacks float64
        self._exact = torch.float32 if device.type == "mps" else torch.float64
        self._noise_bt = torch.from_numpy(noise).to(device, self._exact)
        self._temperature_b1 = torch.tensor([sampling.temperature for sampling in settings], device=device)[
            :, None
        ]
        self._top_p_b1 = torch.tensor([sampling.top_p for sampling in settings], device=device)[:, None]
        self._greedy = [sampling.temperature == 0 for sampling in settings]
        cut = [number for number, sampling in enumerate(settings) if sampling.top_p < 1]
        self._cut = torch.tensor(cut, dtype=torch.long, device=device)

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with some of the rows, in this order."""
        at = torch.tensor(rows, device=self._noise_bt.device)
        self._noise_bt, self._temperature_b1 = self._noise_bt[at], self._temperature_b1[at]
        self._top_p_b1 = self._top_p_b1[at]
        self._greedy = [self._greedy[row] for row in rows]
        self._cut = (self._top_p_b1[:, 0] < 1).nonzero()[:, 0]

    def draw(self, logits_bv: torch.Tensor, turn: int) -> torch.Tensor:
        """One token a row, ``[B]``, on the device of ``logits_bv`` (float32).

        The first whose cumulated probability exceeds the row's number; the likeliest at temperature 0.
        """
        if all(self._greedy):
            return logits_bv.argmax(-1)
        temperature = self._temperature_b1.masked_fill(self._temperature_b1 == 0, 1.0)
        chances_bv = torch.softmax(logits_bv / temperature, dim=-1)
        if len(self._cut):
            chances_bv[self._cut] = nucleus(chances_bv[self._cut], self._top_p_b1[self._cut])
        cumulated_bv = chances_bv.cumsum(-1, dtype=self._exact)
        threshold_b1 = self._noise_bt[:, turn, None] * cumulated_bv[:, -1:]
        tokens = torch.searchsorted(cumulated_bv, threshold_b1, right=True)[:, 0]
        tokens = tokens.clamp(max=logits_bv.shape[1] - 1)
        return torch.where(self._temperature_b1[:, 0] == 0, logits_bv.argmax(-1), tokens)


def nucleus(chances_bv: torch.Tensor, top_p_b1: torch.Tensor) -> torch.Tensor:
    """Each row's smallest set of tokens whose mass reaches ``top_p`` (Holtzman et al. 2020), all others 0."""
    kept_bv = torch.zeros_like(chances_bv)
    unfinished = torch.arange(len(chances_bv), device=chances_bv.device)
    vocabulary = chances_bv.shape[1]
    for size in sorted({min(size, vocabulary) for size in (*_LIKELIEST, vocabulary)}):
        ordered_bk, order_bk = chances_bv[unfinished].topk(size, dim=-1)
        mass_bk = ordered_bk.cumsum(-1)
        inside_bk = mass_bk - ordered_bk < top_p_b1[unfinished]
        kept_bv[unfinished] = kept_bv[unfinished].scatter_(-1, order_bk, ordered_bk * inside_bk)
        unfinished = unfinished[mass_bk[:, -1] < top_p_b1[unfinished, 0]]
        if not len(unfinished):
            break
    return kept_bv
