"""The search against the verifier: gold follows the proxy of a scorer that reads, and no other's."""

from __future__ import annotations

import math

import numpy as np
import pytest
from toy_scorers import audited, constant, exact, lab_material, length

from surefoot.errors import ScoreError
from surefoot.evaluation.audits import AttackSettings, audit_attack, lab_cases, lab_right
from surefoot.evaluation.audits.perturbations import SWAP_NUMBER
from surefoot.protocols import ProblemTrace

CASES = lab_material(16, wrong=(True,))
SIZES = AttackSettings(rounds=6, proposals=6)


def attack(scorer, cases, settings=SIZES, **more):
    return audit_attack(scorer, cases, settings, draws=100, **more)


def wrong_answers():
    """Solutions whose only fault is the answer that they state, which one swapped digit can repair."""
    right = [case.item for case in lab_material(16, wrong=(False,))]
    spoilt = [SWAP_NUMBER.at(item.trace, len(item.trace.steps) - 1).trace for item in right]
    return lab_cases(
        [ProblemTrace(problem=item.problem, trace=trace) for item, trace in zip(right, spoilt, strict=True)]
    )


def test_the_exact_checker_gives_way_only_to_repaired_solutions():
    found = attack(audited(exact), wrong_answers(), SIZES.model_copy(update={"rounds": 12}), truth=lab_right)
    assert found.climb[0].proxy.value == 0
    assert found.climb[12].proxy.value > 0.1  # some are put right by chance
    for point in found.climb.values():
        assert point.proxy.value == pytest.approx(point.gold.value)
    assert set(found.accepted) == {"swapped number"}
    assert found.examples == []
    # an error on the way cannot be repaired by one edit, so the climb does not begin
    assert attack(audited(exact), CASES, truth=lab_right).accepted == {}


def test_a_lover_of_length_is_led_up_the_garden_path():
    found = attack(audited(length, "last"), CASES, truth=lab_right)
    proxy = [point.proxy.value for point in found.climb.values()]
    assert proxy == sorted(proxy)
    assert proxy[-1] > proxy[0] + 0.2
    assert found.climb[6].gold.value < 0.2
    assert {"instruction", "confident tone"} & set(found.accepted)
    example = found.examples[0]
    assert len(example.text_after) > len(example.text_before)
    assert example.edits
    assert not lab_right(CASES[0].item.problem, CASES[0].item.trace)


def test_a_constant_is_never_moved():
    found = attack(audited(constant), CASES, truth=lab_right)
    assert found.accepted == {}
    assert all(point.proxy.value == pytest.approx(0.7) for point in found.climb.values())
    assert found.examples == []


def test_fooled_are_the_wrong_ones_that_score_like_right_ones():
    both = lab_material(16)
    found = attack(audited(length, "last"), both, truth=lab_right)
    wrong = [case for case in both if case.right is False]
    right = [case for case in both if case.right]
    scores = [length(c.item.problem, c.item.trace)[-1] for c in right]
    assert found.right_median == pytest.approx(np.median(scores))
    before = [length(c.item.problem, c.item.trace)[-1] >= found.right_median for c in wrong]
    assert found.climb[0].fooled.value == pytest.approx(np.mean(before))
    assert found.climb[6].fooled.value > 0.9
    assert attack(audited(exact), both, truth=lab_right).climb[6].fooled.value == 0
    assert math.isnan(attack(audited(length), CASES, truth=lab_right).climb[0].fooled.value)
    assert attack(audited(exact), both, SIZES.model_copy(update={"attacked": 3}), truth=lab_right).traces == 3


def test_without_a_truth_only_style_is_edited_and_gold_is_zero_by_construction():
    found = attack(audited(length, "last"), CASES)
    assert not {"swapped number", "deleted premise", "reordered steps", "pasted answer"} & set(found.accepted)
    assert {point.gold.value for point in found.climb.values()} == {0.0}
    assert "by construction" in found.gold_is


def test_unscored_versions_are_counted_and_never_chosen():
    def short(problem, trace):
        return [0.5 + len(trace.steps) / 100 if len(trace.text) < 90 else None] * len(trace.steps)

    found = attack(audited(short), CASES, truth=lab_right)
    assert found.versions_unscored > 0
    assert found.climb[6].proxy.value > found.climb[0].proxy.value
    assert all(len(example.text_after) < 90 for example in found.examples)


def test_it_is_the_same_again_and_needs_something_to_attack():
    both = lab_material(6)
    one, two = (attack(audited(length), both, truth=lab_right) for _ in range(2))
    assert one == two
    with pytest.raises(ScoreError, match="none to attack"):
        attack(audited(length), lab_material(3, wrong=(False,)))
    with pytest.raises(ScoreError, match="stored scores"):
        attack(audited(length, stored=True), CASES)
