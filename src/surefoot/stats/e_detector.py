"""Control charts with a stated false-alarm rate, for bounded signals of any distribution (e-detectors).

Shin, Ramdas and Rinaldo, "E-detectors: a nonparametric framework for sequential change detection" (arXiv
2203.03532). A signal x in [0, 1] whose mean is at most m gives the e-value L = 1 + λ (x - m) / m for any λ in
(0, 1): its mean is at most 1 whatever came before. The Shiryaev-Roberts recursion M ← (M + 1) L of such
values has a mean of at most t after t steps, and so has any average of M's over signals, directions and λ.
The first time at which the average reaches A is therefore at least A on average while nothing has changed:
at most one false alarm in A steps. The signals may depend on each other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

_BETS = np.array([0.05, 0.2, 0.5, 0.9])
_LARGEST = 1e200


class EDetector:
    """A chart of several signals, which alarms for a mean above ``highest`` or below ``lowest``.

    Both are [signals] in [0, 1]: bounds on the mean before a change, such as a confidence interval from a
    reference sample. ``run_length`` is A.
    """

    def __init__(self, lowest: Sequence[float], highest: Sequence[float], *, run_length: float) -> None:
        low, high = (np.clip(np.asarray(side, dtype=float), 1e-4, 1 - 1e-4) for side in (lowest, highest))
        self._means = np.stack([high, low])
        self._sizes = np.stack([high, low - 1])
        """Of the bets, negative for those on a mean below."""
        self.run_length = run_length
        self.sums: FloatArray = np.zeros((2, len(low), len(_BETS)))
        """[up or down, signals, bets]: the M's."""

    def restart(self, signal: int, lowest: float, highest: float) -> None:
        """Chart a signal from now on, with bounds from values before now; its M's begin at 0."""
        low, high = np.clip([lowest, highest], 1e-4, 1 - 1e-4)
        self._means[:, signal] = high, low
        self._sizes[:, signal] = high, low - 1
        self.sums[:, signal] = 0.0

    def add(self, values: FloatArray) -> float:
        """Evidence of a change after ``values`` [signals], NaN where not observed."""
        self.sums += 1
        self.sums *= self.e_values(values[None])[0]
        np.minimum(self.sums, _LARGEST, out=self.sums)
        return self.evidence

    @property
    def evidence(self) -> float:
        """The average of the M's; a change is claimed from ``run_length`` on."""
        return float(np.add.reduce(self.sums, axis=None)) / self.sums.size

    def e_values(self, rows: FloatArray) -> FloatArray:
        """[T, signals] → L of each, [T, up or down, signals, bets]; 1 where not observed."""
        signed = (rows[:, None] - self._means) / self._sizes
        signed[np.isnan(signed)] = 0.0
        values: FloatArray = signed[..., None] * _BETS
        values += 1
        return values

    def change_point(self, rows: FloatArray) -> int:
        """The first of ``rows`` [T, signals] after the change, by the chart with the most evidence."""
        growth = np.log(self.e_values(rows)).reshape(len(rows), -1)[:, int(self.sums.argmax())]
        return int(np.argmax(np.cumsum(growth[::-1])[::-1]))
