"""Step rewards for other engines: returns, and rewards at tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from step_rewards import Every, TextScorer, step_score

from benchmarks.worlds.digits.checkpoints import build_tokenizer
from surefoot.answers import AnswerChecker, Grader
from surefoot.errors import TrainingError
from surefoot.records import Problem
from surefoot.rl.advantage import at_tokens, token_rewards, total_return
from surefoot.rl.credit import (
    AnchorState,
    ClipDelta,
    Credit,
    Effective,
    Implicit,
    MinForm,
    Mixed,
    Outcome,
    Summed,
)
from surefoot.rl.engines.rewards import StepRewards
from surefoot.segment import Line

EXACT = Grader(checker=AnswerChecker("exact"))
PROBLEM = Problem(text="Start with 3. Add 4.", answer="7")
RULES = [
    Summed(),
    MinForm(),
    ClipDelta(),
    Mixed(of=MinForm(), process=0.5),
    Mixed(of=Summed(), outcome=2.0),
]


def rewards(credit: Credit, characters: int = 3) -> StepRewards:
    return StepRewards(credit=credit, segmenter=Every(characters), scorer=TextScorer(), grader=EXACT)


@given(
    text=st.text(alphabet="0123456789+-= \n?", max_size=40),
    characters=st.integers(1, 7),
    rule=st.sampled_from(RULES),
)
def test_later_sums_of_token_rewards_are_the_returns(text, characters, rule):
    tokenizer = build_tokenizer()
    judge = rewards(rule, characters)
    ids = [*tokenizer(text)["input_ids"][1:], tokenizer.eos_token_id]
    response = judge.decode(PROBLEM, ids, tokenizer)
    (credited,) = judge.reward([response])
    (known,) = judge.reward([judge.sample(PROBLEM, response.trace.text)])
    dense = token_rewards(credited)
    streams = [one for one in credited.rewards if one.at]
    if dense is None:
        assert not streams
        assert total_return(known) is total_return(credited) is None
        return
    returns = sum(at_tokens(one, one.weight * np.array(one.values), len(ids)) for one in streams)
    assert dense.shape == (len(ids),)
    np.testing.assert_allclose(dense[::-1].cumsum()[::-1], returns, atol=1e-12)
    assert {int(at) for at in np.flatnonzero(dense)} <= {at for one in credited.rewards for at in one.at}
    # the whole response is worth the same where the tokens are not known
    assert total_return(known) == pytest.approx(total_return(credited))
    assert total_return(credited) == pytest.approx(returns[0])


def test_the_total_is_the_rules_return():
    text = "12+34=46"
    scores = [step_score("12+"), step_score("34="), step_score("46")]

    def of(rule: Credit) -> float | None:
        return total_return(rewards(rule).reward([rewards(rule).sample(PROBLEM, text)])[0])

    assert of(Summed()) == pytest.approx(sum(scores))
    assert of(MinForm(temperature=1e-3, signed=False)) == pytest.approx(min(scores))
    assert of(MinForm(temperature=1e-3)) == pytest.approx(2 * min(scores) - 1)
    assert of(ClipDelta(eta=1)) == pytest.approx(scores[0] - 1)


def test_what_is_not_known_counts_as_the_worst_of_its_group():
    some, none, empty = "123?56", "???", " \n"
    summed = rewards(Summed())
    responses = [summed.sample(PROBLEM, text) for text in (some, none, empty)]
    found = [total_return(one) for one in summed.reward(responses)]
    worst = step_score("123")  # the only step that is scored
    assert found == pytest.approx([2 * worst, worst, worst])
    assert total_return(summed.reward([summed.sample(PROBLEM, none)])[0]) is None
    # nobody scored it, yet its answer is wrong
    outcome = StepRewards(credit=Outcome(), segmenter=Line(), grader=EXACT)
    graded = [outcome.sample(PROBLEM, text) for text in (some, none, empty)]
    assert [total_return(one) for one in outcome.reward(graded)] == [0.0, 0.0, 0.0]
    assert total_return(outcome.reward([outcome.sample(PROBLEM, "Answer: 7")])[0]) == 1.0


def test_an_empty_response_keeps_its_place():
    tokenizer = build_tokenizer()
    texts = ["12", "", "345"]
    ids = [[*tokenizer(text)["input_ids"][1:], tokenizer.eos_token_id] for text in texts]
    judge = rewards(Summed())
    scored = judge.score([judge.decode(PROBLEM, one, tokenizer) for one in ids])
    assert [one.tokens for one in scored] == list(map(len, ids))
    assert [one.scores for one in scored] == [(step_score("12"),), (None,), (step_score("345"),)]
    assert [one.ends for one in scored] == [(one.tokens - 1,) for one in scored]


def test_refusals():
    with pytest.raises(TrainingError, match="is trained with the policy"):
        StepRewards(credit=Mixed(of=Implicit()), segmenter=Line(), scorer=TextScorer())
    with pytest.raises(TrainingError, match="give a 'scorer'"):
        StepRewards(credit=MinForm(), segmenter=Line())
    with pytest.raises(TrainingError, match="equal states of an environment"):
        StepRewards(credit=AnchorState(), segmenter=Line())
    with pytest.raises(TrainingError, match="without an answer: 'open'"):
        rewards(Mixed(of=Summed())).sample(Problem(text="open"), "7")
    with pytest.raises(TrainingError, match="advantages of single steps"):
        rewards(Effective(start=0.5)).reward([rewards(Effective(start=0.5)).sample(PROBLEM, "12+")])
