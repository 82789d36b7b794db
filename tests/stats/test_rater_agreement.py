import gzip
import json
import math
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import cohen_kappa_score

from surefoot.errors import LabelError
from surefoot.stats.rater_agreement import agreement, alpha_of, cohens_kappa, contingency

NONE = math.nan

# Krippendorff (2011), section C: four observers, twelve units, missing values
TEXTBOOK = [
    [1, 2, 3, 3, 2, 1, 4, 1, 2, NONE, NONE, NONE],
    [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, NONE, 3],
    [NONE, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, NONE],
    [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, NONE],
]

RATINGS = st.integers(2, 4).flatmap(
    lambda raters: st.integers(1, 8).flatmap(
        lambda units: st.lists(
            st.lists(
                st.sampled_from([-1.0, 0.0, 1.0, 2.5, NONE]),
                min_size=units,
                max_size=units,
            ),
            min_size=raters,
            max_size=raters,
        )
    )
)


def same(a, b):
    return a == pytest.approx(b, abs=1e-9, nan_ok=True)


def alpha_by_pairs(ratings):
    """Krippendorff's definition: disagreement of pairs inside units over that of all pairs of values."""
    units = [[v for v in unit if not math.isnan(v)] for unit in zip(*ratings, strict=True)]
    units = [unit for unit in units if len(unit) > 1]
    pool = [value for unit in units for value in unit]
    if len(set(pool)) < 2:
        return NONE
    inside = sum(sum(a != b for a, b in permutations(unit, 2)) / (len(unit) - 1) for unit in units)
    overall = sum(a != b for a, b in permutations(pool, 2))
    return 1 - (inside / len(pool)) / (overall / (len(pool) * (len(pool) - 1)))


def test_alpha_of_the_textbook_example():
    assert round(agreement(TEXTBOOK).alpha, 3) == 0.743


def test_counts_of_the_textbook_example():
    found = agreement(TEXTBOOK)
    assert (found.raters, found.units, found.dropped) == (4, 11, 1)
    # units 2 and 6 hold one odd value and four different ones, unit 8 one odd value
    assert found.raw == pytest.approx((8 + 3 / 6 + 0 + 3 / 6) / 11)


def test_kappa_and_ac1_where_almost_all_is_good():
    # Gwet (2008), table 1: 118 of 125 agree, nearly all in one category
    first = [1] * 118 + [1] * 5 + [0] * 2
    second = [1] * 118 + [0] * 5 + [1] * 2
    found = agreement([first, second])
    assert found.raw == pytest.approx(118 / 125)
    assert round(found.kappa, 4) == -0.0234
    assert round(found.ac1, 4) == 0.9408


def test_kappa_of_a_known_table():
    # p_o = 35/50, p_e = .5 * .6 + .5 * .4
    assert cohens_kappa([[20, 5], [10, 15]]) == pytest.approx((0.7 - 0.5) / 0.5)


def test_alpha_of_two_raters_and_two_values_in_closed_form():
    # nominal, no missing: 1 - (n - 1) o_01 / (n_0 n_1), with n = 2 units values
    first, second = [0, 1, 0, 0, 0, 0, 0, 0, 1, 0], [1, 1, 1, 0, 0, 1, 0, 0, 0, 0]
    assert agreement([first, second]).alpha == pytest.approx(1 - 19 * 4 / (14 * 6))


@settings(deadline=None)
@given(RATINGS)
def test_alpha_is_what_the_pairs_say(ratings):
    assert same(agreement(ratings).alpha, alpha_by_pairs(ratings))


@settings(deadline=None)
@given(RATINGS)
def test_raw_agreement_and_ac1_are_what_the_pairs_say(ratings):
    units = [[v for v in unit if not math.isnan(v)] for unit in zip(*ratings, strict=True)]
    units = [unit for unit in units if len(unit) > 1]
    shares = [np.mean([a == b for a, b in permutations(unit, 2)]) for unit in units]
    raw = float(np.mean(shares)) if shares else NONE
    assert same(agreement(ratings).raw, raw)
    scale = sorted({value for unit in units for value in unit})
    if len(scale) < 2 or not shares:
        assert math.isnan(agreement(ratings).ac1)
        return
    prevalence = [np.mean([unit.count(value) / len(unit) for unit in units]) for value in scale]
    chance = sum(p * (1 - p) for p in prevalence) / (len(scale) - 1)
    assert same(agreement(ratings).ac1, (raw - chance) / (1 - chance))


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=30))
def test_kappa_is_that_of_scikit_learn(pairs):
    first, second = zip(*pairs, strict=True)
    ours = cohens_kappa(contingency(first, second))
    if math.isnan(ours):
        assert len({*first, *second}) == 1
    else:
        assert same(ours, float(cohen_kappa_score(first, second)))


@settings(deadline=None, max_examples=40)
@given(RATINGS, st.randoms(use_true_random=False))
def test_the_order_of_raters_and_units_does_not_matter(ratings, random):
    columns = list(zip(*ratings, strict=True))
    random.shuffle(columns)
    shuffled = [list(row) for row in zip(*columns, strict=True)]
    random.shuffle(shuffled)
    one, other = agreement(ratings), agreement(shuffled)
    assert (one.units, one.dropped) == (other.units, other.dropped)
    for name in ("raw", "kappa", "alpha", "ac1"):
        assert same(getattr(one, name), getattr(other, name)), name


@settings(deadline=None)
@given(st.lists(st.sampled_from([-1.0, 0.0, 1.0, NONE]), min_size=1, max_size=10), st.integers(2, 4))
def test_identical_raters_agree_fully(values, raters):
    found = agreement([values] * raters, categories=(-1, 0, 1))
    known = [value for value in values if not math.isnan(value)]
    assert found.units == len(known)
    assert same(found.raw, 1.0 if known else NONE)
    assert same(found.ac1, 1.0 if known else NONE)
    assert same(found.kappa, 1.0 if len(set(known)) > 1 else NONE)
    assert same(found.alpha, 1.0 if len(set(known)) > 1 else NONE)


@settings(deadline=None)
@given(RATINGS, st.integers(0, 8))
def test_alpha_comes_from_sums_that_add_up_over_parts(ratings, cut):
    scale = [-1.0, 0.0, 1.0, 2.5]
    margin, disagreement = np.zeros(4), 0.0
    for part in ([row[:cut] for row in ratings], [row[cut:] for row in ratings]):
        units = [[v for v in unit if not math.isnan(v)] for unit in zip(*part, strict=True)]
        for unit in (unit for unit in units if len(unit) > 1):
            margin += [unit.count(value) for value in scale]
            disagreement += sum(a != b for a, b in permutations(unit, 2)) / (len(unit) - 1)
    assert same(alpha_of(margin, disagreement), agreement(ratings).alpha)


@settings(deadline=None)
@given(RATINGS, st.integers(1, 5))
def test_units_that_occur_again_count_again(ratings, times):
    often = [row * times for row in ratings]
    once, again = agreement(ratings), agreement(often)
    assert (again.units, again.dropped) == (times * once.units, times * once.dropped)
    assert same((again.raw, again.kappa, again.ac1), (once.raw, once.kappa, once.ac1))
    assert same(again.alpha, alpha_by_pairs(often))


def test_a_value_of_its_own_for_each_unit_needs_no_table_of_all_values():
    rng = np.random.default_rng(0)
    first = rng.random(300_000)  # a table of values by values would take 720 GB
    second = (first + rng.random(300_000)) / 2
    found = agreement([first, second])
    assert found.raw == 0
    assert found.alpha == pytest.approx(0, abs=1e-5)


def test_kappa_of_many_raters_is_the_mean_over_pairs_that_have_one():
    raters = [[0, 0, 1, 1], [0, 1, 1, 1], [0, 0, 0, 1]]
    pairs = [cohens_kappa(contingency(raters[a], raters[b])) for a, b in ((0, 1), (0, 2), (1, 2))]
    assert agreement(raters).kappa == pytest.approx(np.mean(pairs))
    # the third shares only units of one value with the others: no kappa there
    raters[2] = [NONE, NONE, NONE, 1]
    assert agreement(raters).kappa == pytest.approx(pairs[0])


def test_nothing_in_common_is_undefined_not_zero():
    found = agreement([[1, NONE], [NONE, 1]])
    assert (found.units, found.dropped) == (0, 2)
    assert all(math.isnan(value) for value in (found.raw, found.kappa, found.alpha, found.ac1))
    empty = agreement(np.empty((2, 0)))
    assert (empty.units, empty.dropped) == (0, 0)
    assert math.isnan(empty.raw)


def test_one_category_throughout_leaves_only_raw_and_ac1():
    assert math.isnan(agreement([[1, 1], [1, 1]]).ac1)
    found = agreement([[1, 1], [1, 1]], categories=(-1, 1))
    assert math.isnan(found.kappa)
    assert math.isnan(found.alpha)
    assert found.raw == found.ac1 == 1.0


def test_wrong_shapes_and_values_are_refused():
    with pytest.raises(LabelError, match=r"shape \[raters, units\]"):
        agreement([1, 2, 3])
    with pytest.raises(LabelError, match="NaN for missing"):
        agreement([[1, 2], [1]])
    with pytest.raises(LabelError, match="NaN for missing"):
        contingency([1, 2], [1])
    with pytest.raises(LabelError, match="holds 0, which is not among the categories"):
        agreement([[0, 1], [1, 1]], categories=(-1, 1))


JUDGES = Path(__file__).parents[2] / "../shared/data/agent/apb_human_vs_judges.jsonl.gz"


@pytest.mark.skipif(not JUDGES.exists(), reason="AgentProcessBench sample is not here")
def test_twenty_judges_beside_people_on_real_agent_runs():
    with gzip.open(JUDGES, "rt", encoding="utf-8") as file:
        records = [json.loads(line) for line in file]
    steps = [(record, step) for record in records for step in record["human_step_labels"]]
    names = sorted({name for record in records for name in record["judges"]})
    human = [float(record["human_step_labels"][step]) for record, step in steps]
    judges = [
        [
            NONE if label is None else float(label)
            for record, step in steps
            for label in [record["judges"].get(name, {}).get("step_labels", {}).get(step)]
        ]
        for name in names
    ]
    assert len(names) == 20
    for judge in judges:
        both = ~np.isnan(judge)
        found = agreement([human, judge])
        # independent counts: plain accuracy, and scikit-learn's kappa
        assert found.units == both.sum()
        assert found.raw == pytest.approx(np.mean(np.array(human)[both] == np.array(judge)[both]))
        assert found.kappa == pytest.approx(
            cohen_kappa_score(np.array(human)[both], np.array(judge)[both]), abs=1e-9
        )
    together = agreement(judges)
    assert 0.3 < together.alpha < together.raw < 1
