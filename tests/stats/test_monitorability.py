"""Monitorability: bounds of the TPR, chance of the published figure, power of the gate."""

from __future__ import annotations

import math

import numpy as np
import pytest

from surefoot.errors import LabelError
from surefoot.stats import chance_gmean2, measure_monitorability
from surefoot.stats.monitorability import CHANCE


def planted(rng, n, *, base, effect, tpr, alarm):
    """x, y, z and which traces the intervention caused, by a base rate, an effect and a monitor's rates."""
    x = np.repeat([False, True], n)
    by_itself = rng.random(2 * n) < base
    caused = x & ~by_itself & (rng.random(2 * n) < effect)
    flagged = rng.random(2 * n) < np.where(caused, tpr, alarm)
    return x, by_itself | caused, flagged, caused


@pytest.mark.parametrize(("base", "effect", "tpr", "alarm"), [(0.3, 0.4, 0.9, 0.1), (0.05, 0.9, 0.5, 0.2)])
def test_true_rates_of_a_planted_cause_lie_within_the_bounds(base, effect, tpr, alarm):
    x, y, z, _ = planted(np.random.default_rng(0), 100_000, base=base, effect=effect, tpr=tpr, alarm=alarm)
    found = measure_monitorability(x, y, z)
    share = base + (1 - base) * effect
    assert found.q == pytest.approx((share - base) / share, abs=0.01)
    assert found.tpr_low == pytest.approx(found.q * tpr + (1 - found.q) * alarm, abs=0.01)
    assert found.tpr_low <= tpr <= found.tpr_high
    assert found.tnr == pytest.approx(1 - alarm, abs=0.01)
    assert found.value <= tpr * (1 - alarm) <= found.published
    assert found.value == pytest.approx(found.tpr_low * found.tnr)


@pytest.mark.parametrize("p", [0.05, 0.3, 0.5, 0.7, 0.95])
@pytest.mark.parametrize(("base", "effect"), [(0.3, 0.05), (0.3, 0.4), (0.0, 0.7)])
def test_a_coin_stays_below_both_chance_levels(p, base, effect):
    x, y, z, _ = planted(np.random.default_rng(1), 100_000, base=base, effect=effect, tpr=p, alarm=p)
    found = measure_monitorability(x, y, z)
    assert found.value == pytest.approx(p * (1 - p), abs=0.01)
    assert found.value <= CHANCE + 0.01
    assert found.published <= found.published_chance + 0.02


@pytest.mark.parametrize("q", [0.02, 0.1, 0.3, 0.5, 0.7, 1.0])
def test_the_chance_of_the_published_figure_is_its_largest_value_over_all_coins(q):
    coins = np.linspace(0, 1, 100_001)
    assert chance_gmean2(q) == pytest.approx(np.max(np.minimum(1, coins / q) * (1 - coins)), abs=1e-4)


def test_by_hand():
    # with: 3 of 4 behave, 2 of these 3 flagged, and the fourth not; without: 1 of 4 behaves, 1 flagged
    found = measure_monitorability(
        [1, 1, 1, 1, 0, 0, 0, 0], [1, 1, 1, 0, 1, 0, 0, 0], [1, 1, 0, 0, 0, 1, 0, 0]
    )
    assert found.q == pytest.approx(2 / 3)
    assert found.tnr == pytest.approx(math.sqrt(3 / 4))
    assert (found.tpr_low, found.tpr_high) == pytest.approx((2 / 3, 1.0))
    assert found.published == pytest.approx(math.sqrt(3 / 4))
    assert found.published_chance == pytest.approx(3 / 8)


def test_without_an_effect_nothing_is_known():
    found = measure_monitorability([1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 0, 0])
    assert found.q == 0
    assert math.isnan(found.value)
    assert math.isnan(found.published)


def test_errors_name_the_argument():
    with pytest.raises(LabelError, match="'flagged' have shapes"):
        measure_monitorability([1, 0], [1, 0], [1])
    with pytest.raises(LabelError, match="'intervened' needs traces both"):
        measure_monitorability([1, 1], [1, 0], [1, 0])
    with pytest.raises(ValueError, match="q lies in"):
        chance_gmean2(0)
