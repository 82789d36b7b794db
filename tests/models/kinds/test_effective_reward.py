import math

import pytest
from fixed_scorer import FixedScorer, one_character_steps

from surefoot.errors import ScoreError
from surefoot.models.kinds.effective_reward import EffectiveReward
from surefoot.protocols import StepScorer
from surefoot.records import Problem
from surefoot.scores import best_of_k


def effective(base, text="ab", **options):
    [record] = EffectiveReward(FixedScorer({text: base}), **options).score_traces(one_character_steps(text))
    return record


@pytest.mark.parametrize("best_of", [1, 4, 32])
def test_the_best_of_k_prover_follows_from_the_base(best_of):
    record = effective([0.2, 0.6], alpha=0.5, best_of=best_of, start=0.1)
    values = [best_of_k(value, best_of) for value in (0.1, 0.2, 0.6)]
    expected = [0.2 + 0.5 * (values[1] - values[0]), 0.6 + 0.5 * (values[2] - values[1])]
    assert record.scores == pytest.approx(expected)


def test_the_paper_s_numbers():
    assert effective([0.2], "a", alpha=1, start=0.1).scores[0] - 0.2 == pytest.approx(0.1)
    assert effective([0.2], "a", alpha=1, best_of=4, start=0.1).scores[0] - 0.2 == pytest.approx(0.2465)
    assert effective([0.2], "a", alpha=1, best_of=32, start=0.1).scores[0] - 0.2 == pytest.approx(
        0.0335, abs=5e-5
    )


def test_alpha_turns_the_order_of_two_steps():
    base = FixedScorer({"a": [0.50], "b": [0.45]})
    advantage = FixedScorer({"a": [(1 - 0.05) / 2], "b": [(1 + 0.20) / 2]})
    items = one_character_steps("a", "b")
    by_value = [r.scores[0] for r in EffectiveReward(base, advantage=advantage, alpha=0).score_traces(items)]
    by_both = [r.scores[0] for r in EffectiveReward(base, advantage=advantage, alpha=0.5).score_traces(items)]
    assert by_value == [0.50, 0.45]
    assert by_both == pytest.approx([0.475, 0.55])


def test_advantages_of_a_prover_telescope():
    prover = FixedScorer({"abc": [0.3, 0.9, 0.5]})
    base = [0.1, 0.2, 0.3]
    record = effective(base, "abc", alpha=1, prover=prover, start=0.4)
    parts = [score - value for score, value in zip(record.scores, base, strict=True)]
    assert math.fsum(parts) == pytest.approx(0.5 - 0.4)


def test_the_base_is_read_once_when_it_proves_itself():
    base = FixedScorer({"ab": [0.5, 0.5]})
    scorer = EffectiveReward(base, best_of=4, start=0.5)
    assert isinstance(scorer, StepScorer)
    [record] = scorer.score_traces(one_character_steps("ab"))
    assert (base.calls, record.usage.verifier_tokens) == (1, 10)
    [both] = EffectiveReward(base, prover=base, start=0.5).score_traces(one_character_steps("ab"))
    assert both.usage.verifier_tokens == 20


def test_without_a_start_the_first_step_is_unscored_and_says_so():
    record = effective([0.5, 0.6])
    assert record.scores == (None, pytest.approx(0.65))
    assert "start" in record.unscored_reason


def test_a_start_by_problem():
    problem = Problem(text="p").id
    assert effective([0.5], "a", alpha=1, start={problem: 0.25}).scores == (0.75,)
    assert effective([0.5], "a", alpha=1, start={"other": 0.25}).scores == (None,)


def test_unscored_steps_stay_unscored_with_the_reason():
    record = effective([0.5, None], start=0.5)
    assert record.scores == (0.5, None)
    assert record.unscored_reason == "too long"
    prover = FixedScorer({"ab": [None, 0.5]})
    record = effective([0.5, 0.5], prover=prover, start=0.5)
    assert record.scores == (None, None)
    assert record.unscored_reason == "too long"


def test_scores_that_are_no_values_are_refused():
    with pytest.raises(ScoreError, match=r"\[0, 1\]"):
        effective([0.5, 1.5], start=0.5)
    with pytest.raises(ScoreError, match="2 steps"):
        effective([0.5], start=0.5)


def test_impossible_options_are_refused():
    base = FixedScorer({})
    with pytest.raises(ValueError, match="advantage"):
        EffectiveReward(base, advantage=base, start=0.5)
    with pytest.raises(ValueError, match="best_of"):
        EffectiveReward(base, best_of=0)
