import math

import numpy as np
import pytest

from surefoot.stats.bootstrap import (
    Bootstrap,
    bootstrap_mean,
    bootstrap_statistic,
    group_numbers,
    mean_over_runs,
)
from surefoot.stats.roc import roc_auc


def rng(seed=0):
    return np.random.default_rng(seed)


def width(interval):
    return interval.high - interval.low


def test_mean_interval_matches_the_normal_theory():
    values = rng(1).normal(3.0, 2.0, size=400)
    interval = bootstrap_mean(values, rng=rng())
    half = 1.96 * values.std() / np.sqrt(400)
    assert interval.value == pytest.approx(values.mean())
    assert interval.low == pytest.approx(values.mean() - half, abs=0.1 * half)
    assert interval.high == pytest.approx(values.mean() + half, abs=0.1 * half)


def test_interval_covers_the_truth_about_as_often_as_it_says():
    source = rng(2)
    hits = 0
    for _ in range(300):
        interval = bootstrap_mean(source.random(60) < 0.3, draws=500, rng=source)
        hits += interval.low <= 0.3 <= interval.high
    assert 0.89 <= hits / 300 <= 0.98


def test_constant_and_single_values_have_no_width():
    for values in ([0.5] * 10, [0.25]):
        interval = bootstrap_mean(values, rng=rng())
        assert (interval.low, interval.value, interval.high) == (values[0],) * 3


def test_same_generator_same_interval():
    assert bootstrap_mean([0, 1, 1, 0], rng=rng(5)) == bootstrap_mean([0, 1, 1, 0], rng=rng(5))


def test_chunks_cover_all_draws():
    values = rng(3).random(3000)  # more than one chunk of indices
    interval = bootstrap_mean(values, draws=2000, rng=rng())
    half = 1.96 * values.std() / np.sqrt(3000)
    assert width(interval) == pytest.approx(2 * half, rel=0.1)


def test_paired_difference_is_narrower_than_two_intervals():
    hard = rng(4).random(200)
    first, second = hard + 0.05, hard
    paired = bootstrap_mean(first - second, rng=rng())
    assert paired.value == pytest.approx(0.05)
    assert width(paired) < 1e-9 < width(bootstrap_mean(first, rng=rng()))


def test_statistic_over_singletons_is_the_plain_bootstrap():
    values = rng(7).random(80)
    general = bootstrap_statistic(range(80), lambda r: values[r.items].mean(), draws=4000, rng=rng())
    plain = bootstrap_mean(values, draws=4000, rng=rng(1))
    assert general.value == pytest.approx(plain.value)
    assert general.low == pytest.approx(plain.low, abs=0.01)
    assert general.high == pytest.approx(plain.high, abs=0.01)


def test_clusters_stay_whole_and_copies_are_told_apart():
    ids = ["p", "q", "p", "r", "q"]
    seen = []

    def statistic(resample):
        for cluster in np.unique(resample.clusters):
            items = resample.items[resample.clusters == cluster]
            seen.append(tuple(int(i) for i in items))
        assert len(np.unique(resample.clusters)) == 3
        return 0.0

    bootstrap_statistic(ids, statistic, draws=50, rng=rng())
    assert set(seen) == {(0, 2), (1, 4), (3,)}


def test_interval_of_correlated_steps_is_wider_by_cluster():
    cluster = np.repeat(np.arange(40), 10)
    values = np.repeat(rng(8).random(40), 10)  # ten equal steps a trace: 40 facts, not 400
    whole = bootstrap_statistic(cluster.tolist(), lambda r: values[r.items].mean(), rng=rng())
    step_wise = bootstrap_statistic(range(400), lambda r: values[r.items].mean(), rng=rng())
    assert width(whole) == pytest.approx(width(step_wise) * np.sqrt(10), rel=0.15)


def test_undefined_draws_are_counted():
    def only_if_zero_is_drawn(resample):
        return 1.0 if 0 in resample.items else np.nan

    interval = bootstrap_statistic([0, 1, 2], only_if_zero_is_drawn, draws=900, rng=rng())
    assert (interval.value, interval.low, interval.high) == (1.0, 1.0, 1.0)
    assert interval.undefined == pytest.approx(900 * (2 / 3) ** 3, abs=60)
    never = bootstrap_statistic([0], lambda r: float("nan"), draws=10, rng=rng())
    assert np.isnan([never.value, never.low, never.high]).all()
    assert never.undefined == 10


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bootstrap_mean([], rng=rng()), "'values'"),
        (lambda: bootstrap_mean([1.0, float("nan")], rng=rng()), r"values\[1\] is NaN"),
        (lambda: bootstrap_mean([1.0], draws=0, rng=rng()), "'draws'"),
        (lambda: bootstrap_statistic([], lambda r: 0.0, rng=rng()), "'cluster_ids'"),
    ],
)
def test_bad_arguments_name_the_field(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("as_array", [False, True])
def test_auc_is_that_of_each_resample(as_array):
    score, good = rng(1).integers(12, size=200) / 12, rng(2).choice([1.0, 0.0, -1.0, np.nan], size=200)
    score[rng(3).random(200) < 0.1] = np.nan
    problems = rng(4).integers(15, size=200)
    expected = bootstrap_statistic(
        problems.tolist(),
        lambda draw: roc_auc(score[draw.items], good[draw.items]),
        draws=50,
        rng=rng(5),
    )
    given = problems if as_array else problems.tolist()
    assert Bootstrap(draws=50, seed=5).auc(score, good, given) == expected


def test_auc_of_draws_without_a_pair_is_undefined():
    found = Bootstrap(draws=100).auc([0.2, 0.8], [0.0, 1.0], ["a", "b"])
    assert found.value == found.low == found.high == 1
    assert 30 < found.undefined < 70  # half of the draws have one problem twice


def test_groups_are_numbered_by_their_first_item():
    assert group_numbers(["b", "a", "b", "c"]).tolist() == [0, 1, 0, 2]
    assert group_numbers(np.array([7, 3, 7, 9])).tolist() == [0, 1, 0, 2]
    assert group_numbers(np.array([], dtype=int)).tolist() == []


def test_runs_and_problems_are_both_samples():
    values = rng(1).normal(size=200)
    alone = mean_over_runs([values], rng=rng(0))
    assert alone == bootstrap_mean(values, rng=rng(0)), "one run: problems alone"
    # problems that do not vary: Student's t, 2.776 standard errors at 4 degrees of freedom
    runs = np.array([0.1, 0.2, 0.3, 0.4, 0.5])
    error = runs.std(ddof=1) / math.sqrt(5)
    seeds = mean_over_runs(np.repeat(runs[:, None], 30, axis=1), draws=200_000, rng=rng(0))
    assert (seeds.value, seeds.high) == pytest.approx((0.3, 0.3 + 2.776 * error), abs=0.005)
    # equal runs add nothing
    same = mean_over_runs([values] * 5, rng=rng(0))
    assert same.bounds == pytest.approx(alone.bounds)


def test_the_interval_over_runs_covers():
    """Five runs whose means vary as the problems do: 95 % of intervals hold the truth."""
    random, held, alone = rng(3), 0, 0
    for _ in range(400):
        values = random.normal(size=(5, 1)) / 4 + random.normal(size=40) / 4 + random.normal(size=(5, 40)) / 4
        held += mean_over_runs(values, draws=1000, rng=random).includes(0)
        alone += bootstrap_mean(values.mean(axis=0), draws=1000, rng=random).includes(0)
    assert 0.92 < held / 400 < 0.99
    assert alone / 400 < 0.8
