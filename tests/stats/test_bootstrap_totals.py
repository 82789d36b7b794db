import numpy as np
import pytest

from surefoot.stats.bootstrap import bootstrap_mean, bootstrap_totals


def rng(seed=0):
    return np.random.default_rng(seed)


def share(totals):
    return totals[:, 0, :1] / totals[:, 0, 1:2]


def test_a_share_of_ones_is_the_mean_with_its_interval():
    values = rng(1).random(200) < 0.3
    [found] = bootstrap_totals([np.stack([values, np.ones(200)], axis=1)], share, draws=4000, rng=rng())
    plain = bootstrap_mean(values, draws=4000, rng=rng())
    assert found.value == plain.value
    assert found.low == pytest.approx(plain.low, abs=0.01)
    assert found.high == pytest.approx(plain.high, abs=0.01)


def test_strata_keep_their_size_in_every_draw():
    seen = []

    def sizes(totals):
        seen.append(totals[..., 0])
        return totals[:, :, 0].sum(axis=1, keepdims=True)

    bootstrap_totals([np.ones((3, 1)), np.ones((5, 1))], sizes, draws=50, rng=rng())
    assert (seen[0] == [3, 5]).all()


def test_many_draws_are_made_in_chunks():
    counts = np.stack([rng(2).random(3000), np.ones(3000)], axis=1)
    [found] = bootstrap_totals([counts], share, draws=1500, rng=rng())
    half = 1.96 * counts[:, 0].std() / np.sqrt(3000)
    assert found.high - found.low == pytest.approx(2 * half, rel=0.1)


def test_statistics_share_their_draws_and_nan_is_counted():
    counts = np.array([[1.0, 1.0], [0.0, 0.0]])

    def both(totals):
        with np.errstate(invalid="ignore"):
            ratio = share(totals)
        return np.concatenate([ratio, totals[:, 0, :1]], axis=1)

    ratio, total = bootstrap_totals([counts], both, draws=400, rng=rng())
    assert (ratio.low, ratio.value, ratio.high) == (1.0, 1.0, 1.0)
    assert 60 < ratio.undefined < 140  # both draws are the empty problem: one in four
    assert (total.low, total.value, total.high, total.undefined) == (0.0, 1.0, 2.0, 0)


@pytest.mark.parametrize("strata", [[], [np.empty((0, 2))], [np.ones(3)], [np.ones((2, 2)), np.ones((2, 3))]])
def test_what_cannot_be_drawn_is_refused(strata):
    with pytest.raises(ValueError, match="'strata' must be arrays"):
        bootstrap_totals(strata, share, rng=rng())


def test_no_draws_are_refused():
    with pytest.raises(ValueError, match="'draws' must be at least 1"):
        bootstrap_totals([np.ones((2, 2))], share, draws=0, rng=rng())
