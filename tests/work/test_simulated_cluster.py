"""The Ray engine's scheduling on the benchmark's simulated cluster, whose clock is virtual."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from _scale_simulation import World, simulate


@pytest.mark.parametrize("seed", range(3))
def test_workers_that_die_lose_and_double_nothing(seed):
    done = simulate(World(workers=40, pieces=800, slow_share=0.1, mean_life_s=900.0), seed=seed)
    assert done.deaths > 20
    assert done.lost_or_doubled == 0
    assert 800 < done.calls < 800 + 2 * done.deaths


def test_equal_workers_are_busy():
    done = simulate(World(workers=100, pieces=10_000, piece_s=30.0))
    # a minute to start, 3000 s of work each, and half a piece at the end
    assert done.efficiency == pytest.approx(3000 / 3075, abs=0.01)


def test_a_long_piece_waits_at_no_slow_worker():
    done = simulate(World(workers=20, pieces=200, slow_share=0.2, slow_factor=10.0))
    assert done.tail_s < 1.5 * 10 * 60, "one piece of a slow worker, not two"
