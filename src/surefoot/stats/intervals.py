"""An estimate with its interval, how it prints, the decision it allows, and Wilson's interval of a rate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Interval:
    """An estimate with the bounds of its interval, in the unit of the estimate.

    Prints as ``0.83 [0.801, 0.859]``. A format specification holds for all three numbers: ``f"{x:.3f}"``
    gives ``0.830 [0.801, 0.859]``, ``f"{x:.1%}"`` gives ``83.0% [80.1, 85.9]`` and ``f"{x:+.1p}"``, for
    differences of shares, ``+2.1 points [-0.8, +5.0]``. What is undefined prints as ``n/a``.
    """

    value: float
    low: float
    high: float
    undefined: int = 0
    """Bootstrap draws left out because the statistic was NaN there (e.g. a class was absent)."""

    def __str__(self) -> str:
        return format(self, ".4g")

    def __format__(self, spec: str) -> str:
        if math.isnan(self.value):
            return "n/a"
        number, factor, unit = _parsed(spec or ".4g")
        low, high = (_number(factor * bound, number) for bound in (self.low, self.high))
        return f"{_number(factor * self.value, number)}{unit} [{low}, {high}]"

    def __mul__(self, factor: float) -> Interval:
        """The same in another unit, e.g. ``100 * interval`` in percent."""
        low, high = sorted((self.low * factor, self.high * factor))
        return Interval(value=self.value * factor, low=low, high=high, undefined=self.undefined)

    __rmul__ = __mul__

    @property
    def bounds(self) -> tuple[float, float]:
        """Low and high."""
        return self.low, self.high

    def less(self, other: Interval) -> Interval:
        """The difference to ``other``, if the two are independent (Newcombe 1998, method 10)."""
        value = self.value - other.value
        low = value - math.hypot(self.value - self.low, other.high - other.value)
        high = value + math.hypot(self.high - self.value, other.value - other.low)
        return Interval(value=value, low=low, high=high)

    def includes(self, number: float) -> bool:
        """Whether ``number`` lies within the bounds."""
        return self.low <= number <= self.high


UNKNOWN = Interval(value=math.nan, low=math.nan, high=math.nan)
"""Nothing could be measured."""


Decision = Literal["yes", "no", "not decided"]

FEWEST_UNITS = 10
"""Bootstrap intervals of fewer units are too narrow to decide anything."""


def decide(estimate: Interval, units: int, *, smallest: float, null: float = 0.0) -> Decision:
    """Whether an effect above ``null`` exists that is not certainly smaller than ``smallest``.

    ``smallest`` is the smallest effect of interest, in the unit of the estimate. ``no``: the whole interval
    lies below ``null + smallest``, which excludes every effect of interest. ``yes``: otherwise, if it lies
    above ``null``. ``not decided``: it contains both, or it comes from too few ``units`` (the resampled
    problems), or nothing varied among them (an interval without width, widened by the rule of three).
    """
    low, high = estimate.bounds
    if math.isnan(low) or math.isnan(high) or units < FEWEST_UNITS:
        return "not decided"
    if low == high:
        low, high = low - 3 / units, high + 3 / units
    if high < null + smallest:
        return "no"
    return "yes" if low > null else "not decided"


def units_needed(estimate: Interval, units: int, *, smallest: float) -> int | None:
    """About how many units :func:`decide` needs; ``None`` if the interval is undefined.

    An interval no wider than ``smallest`` cannot contain both the null and the smallest effect. Its width
    falls with the square root of the number of units.
    """
    width = estimate.high - estimate.low
    if math.isnan(width) or not units:
        return None
    # an interval without width has the width 6 / units by the rule of three
    needed = units * (width / smallest) ** 2 if width else 6 / smallest
    return max(math.ceil(needed), FEWEST_UNITS)


Cell = str | int | float | Interval | None
"""What a table may hold; ``None`` and NaN are shown as "n/a"."""


def format_cell(value: Cell, spec: str = ".4g") -> str:
    """A table's cell as text; ``spec`` is for floats and intervals, as :class:`Interval` takes it."""
    if isinstance(value, Interval):
        return format(value, spec)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "n/a"
    if not isinstance(value, float):
        return str(value)
    number, factor, unit = _parsed(spec)
    return _number(factor * value, number) + unit


def wilson_interval(successes: int, trials: int, *, level: float = 0.95) -> Interval:
    """Wilson's score interval of a success rate (Wilson 1927; Brown, Cai and DasGupta 2001, eq. 4).

    Its coverage is nominal for a number of trials fixed beforehand; after a rule that stops on success it
    only describes the trials. Raises ``ValueError`` unless 0 ≤ successes ≤ trials, trials > 0 and
    0 < level < 1.
    """
    if not 0 < level < 1:
        raise ValueError(f"level lies between 0 and 1, not {level}")
    if not 0 <= successes <= trials or trials < 1:
        raise ValueError(
            f"an interval needs 0 <= successes <= trials, trials > 0; got {successes} of {trials}"
        )
    z = NormalDist().inv_cdf((1 + level) / 2)
    share, scale = successes / trials, 1 + z * z / trials
    centre = (share + z * z / (2 * trials)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    # without these two cases, rounding could put the ends a little inside 0 and 1
    low = 0.0 if successes == 0 else centre - half
    high = 1.0 if successes == trials else centre + half
    return Interval(value=share, low=low, high=high)


def _parsed(spec: str) -> tuple[str, float, str]:
    """Specification of one number, the factor it is shown with, and the unit that follows it."""
    if spec.endswith("%"):
        return f"{spec[:-1]}f", 100, "%"
    if spec.endswith("p"):
        return f"{spec[:-1]}f", 100, " points"
    return spec, 1, ""


def _number(value: float, spec: str) -> str:
    return "n/a" if math.isnan(value) else format(value, f"+z{spec[1:]}" if spec[0] == "+" else f"z{spec}")
