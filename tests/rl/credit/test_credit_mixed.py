"""Rules within rules, their configuration, and the table of names."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError
from scored_rollouts import credited, scored

from surefoot.rl import credit
from surefoot.rl.advantage import ADVANTAGES, Advantage, LeaveOneOut
from surefoot.rl.config import PRESETS
from surefoot.rl.credit import (
    CREDITS,
    ClipDelta,
    Credit,
    CreditRule,
    Effective,
    Implicit,
    MinForm,
    Mixed,
    Outcome,
    Summed,
)


def test_both_sources_come_with_their_weights() -> None:
    rule = Mixed(of=Summed(), process=0.5, outcome=2.0)
    ((streams,),) = rule.credit([[scored([0.9, 0.4], outcome=1.0)]])
    assert [(stream.at, stream.values, stream.weight) for stream in streams] == [
        ((1, 3), (0.9, 0.4), 0.5),
        ((3,), (1.0,), 2.0),
    ]


def test_each_source_has_its_own_baseline_and_the_weights_come_after() -> None:
    group = [scored([0.9], outcome=1.0), scored([0.5], outcome=0.0)]
    streams = Mixed(of=Summed(), process=10.0, outcome=3.0).credit([group])[0]
    first, second = LeaveOneOut().advantages([[credited(2, *mine) for mine in streams]])[0]
    assert first.tolist() == pytest.approx([10 * 0.4 + 3] * 2)
    assert second.tolist() == pytest.approx([-(10 * 0.4 + 3)] * 2)


def test_an_answer_that_nobody_judged_leaves_the_process_reward() -> None:
    ((streams,),) = Mixed(of=Summed()).credit([[scored([0.9])]])
    assert [stream.values for stream in streams] == [(0.9,), ()]


@pytest.mark.parametrize(
    ("rule", "needs"),
    [
        (Outcome(), {"outcome"}),
        (Summed(), {"scores"}),
        (Effective(), {"scores", "outcome"}),
        (Mixed(of=ClipDelta()), {"scores", "outcome"}),
        (Mixed(of=Implicit()), {"log_ratios", "outcome"}),
    ],
)
def test_a_rule_says_what_it_reads(rule: Credit, needs: set[str]) -> None:
    assert rule.needs == needs


@pytest.mark.parametrize("inner", [Mixed(of=Summed()), Outcome(), Effective()])
def test_a_rule_with_an_outcome_of_its_own_is_not_mixed_again(inner: Credit) -> None:
    with pytest.raises(ValidationError, match="'summed', 'min-form', 'clip-delta', 'implicit'"):
        TypeAdapter(Credit).validate_python({"rule": "mixed", "of": inner.model_dump()})


def test_every_rule_and_estimator_is_found_by_its_tag() -> None:
    for tag, kind in CREDITS.items():
        rule = kind()
        assert TypeAdapter(Credit).validate_json(rule.model_dump_json()) == rule
        assert rule.rule == tag
    for tag, kind in ADVANTAGES.items():
        estimator = kind()
        assert TypeAdapter(Advantage).validate_json(estimator.model_dump_json()) == estimator
        assert estimator.kind == tag
    rules = {
        kind for kind in vars(credit).values() if isinstance(kind, type) and issubclass(kind, CreditRule)
    }
    assert set(CREDITS.values()) == rules - {CreditRule}
    assert set(ADVANTAGES) == {"group", "leave-one-out", "gae", "none"}


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(ValidationError, match="extra"):
        TypeAdapter(Credit).validate_python({"rule": "summed", "temperature": 0.1})
    with pytest.raises(ValidationError, match="process"):
        Mixed(of=Summed(), process=0.0)


def test_presets_are_the_published_pairs() -> None:
    assert PRESETS["process-grpo"]["credit"] == Summed()
    assert PRESETS["process-grpo"]["advantage"].kind == "group"
    assert Mixed().of == MinForm()
    assert PRESETS["prime"]["credit"] == Mixed(of=Implicit())
    assert PRESETS["prime"]["accuracy_band"] == (0.2, 0.8)
