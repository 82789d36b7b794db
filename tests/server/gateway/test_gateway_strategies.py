"""Strategies as text: one spelling each in records, few methods in metrics, names that the server gives."""

from __future__ import annotations

import pytest
from gateway_server import LineScorer, lines, served
from openai import OpenAI

from benchmarks.worlds.scripted import ScriptedPolicy
from surefoot.search import SEARCHES, search_of
from surefoot.server import Gateway, GatewaySettings
from surefoot.server.gateway.errors import ApiError
from surefoot.server.gateway.plan import one_by_one, strategy_of
from surefoot.server.gateway.schemas import StrategyOptions

ASKED = {"messages": [{"role": "user", "content": "hello"}]}


@pytest.mark.parametrize(
    ("text", "name", "draws"),
    [
        ("plain", "plain", 1),
        ("best-of-n", "best-of-n", 16),
        ("best_of_n:n=16,rule=best_of_n", "best-of-n", 16),
        ("best-of-n:n=08,rule=weighted_vote", "best-of-n:rule=weighted_vote,n=8", 8),
        ("majority:n=8", "majority:n=8", 8),
        ("beam:expand=3,width=5", "beam:width=5,expand=3", 15),
        ("dvts:n=20,expand=2", "dvts:n=20,expand=2", 20),
        ("rebase:n=16", "rebase", 16),
        ("particle:n=8,sweeps=3", "particle:n=8,sweeps=3", 24),
        ("mcts:paths=6,expand=2", "mcts:paths=6,expand=2", 12),
        ("revise:rounds=3", "revise:rounds=3", 4),
        ("resample:rule=first,threshold=0.5,retries=3", "resample:rule=first,threshold=0.5", 4),
    ],
)
def test_a_strategy_has_one_name_and_its_method_and_draws(text, name, draws):
    strategy = strategy_of(text)
    assert (strategy.name, strategy.draws) == (name, draws)
    assert strategy.method == name.partition(":")[0]
    assert strategy_of(strategy.name) == strategy


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("best-of-n:n=0", "greater than or equal to 1"),
        ("best-of-n:n=٠", "valid integer"),
        ("beam:width=2;expand=2", "valid integer"),
        ("beam:wide=2", "did you mean 'width'"),
        ("beam:width=2,width=3", "set twice"),
        ("beam:name=x", "unknown setting"),
        ("plain:n=2", "unknown search 'plain'"),
        ("best-of-n:n=4,rule=majority", "take the method majority"),
    ],
)
def test_what_makes_no_strategy_is_named(text, message):
    with pytest.raises(ApiError, match=message):
        strategy_of(text)


@pytest.mark.parametrize(
    ("text", "streams"),
    [
        ("plain", False),
        ("best-of-n", False),
        ("beam", False),
        ("resample", True),
        ("resample:n=2", False),
    ],
)
def test_steps_are_streamed_where_there_is_one_solution(text, streams):
    assert one_by_one(strategy_of(text)) == streams


def test_the_names_of_the_server_are_listed_and_used():
    settings = GatewaySettings(strategy="quick", strategies={"quick": "majority:n=2", "deep": "beam:width=8"})
    with (
        served(ScriptedPolicy(lines), LineScorer(), settings=settings) as found,
        OpenAI(base_url=found.url, api_key="none", max_retries=0) as client,
    ):
        assert [model.id for model in client.models.list()] == ["scripted", "surefoot", "quick", "deep"]
        named = {"surefoot": "majority:n=2", "scripted/quick": "majority:n=2", "deep": "beam:width=8"}
        for model, name in named.items():
            assert client.chat.completions.create(model=model, **ASKED).surefoot["strategy"] == name
        by_option = client.chat.completions.create(
            model="scripted", extra_body={"surefoot": {"strategy": "deep"}}, **ASKED
        )
        assert by_option.surefoot["strategy"] == "beam:width=8"
        assert 'surefoot_choices_total{method="majority"} 2.0' in found.gateway.metrics.text().decode()


@pytest.mark.parametrize(
    ("strategies", "message"),
    [
        ({"beam": "beam:width=2"}, "'beam' is a reserved name"),
        ({"plain": "majority"}, "'plain' is a reserved name"),
        ({"surefoot": "majority"}, "'surefoot' is a reserved name"),
        ({"scripted": "majority"}, "'scripted' is a reserved name"),
        ({"beam:quick": "majority"}, "is a reserved name"),
        ({"quick": "beem"}, "unknown strategy 'beem'; did you mean 'beam'"),
        ({"quick": "deep", "deep": "beam"}, "unknown strategy 'deep'"),
    ],
)
def test_a_name_that_means_something_else_is_refused(strategies, message):
    with pytest.raises(ApiError, match=message):
        Gateway(ScriptedPolicy(lines), LineScorer(), settings=GatewaySettings(strategies=strategies))


def test_the_default_names_are_searches():
    gateway = Gateway(ScriptedPolicy(lines), LineScorer())
    for name, text in GatewaySettings().strategies.items():
        search = gateway.planner.strategy("scripted", StrategyOptions(strategy=name))
        assert search == search_of(text)
    assert all(strategy_of(method).draws <= gateway.limits.max_candidates for method in SEARCHES)
