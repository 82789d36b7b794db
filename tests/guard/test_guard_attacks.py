"""Attacks on a bank's policy, at every place that releases calls."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import pytest
from guard_sites import SITES, ReleasedCall, Sites
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from surefoot.labelling import PolicyRule, ToolPolicy
from surefoot.records import Message, Tool, ToolCall

LIMIT = 100
POLICY = ToolPolicy(
    forbidden=("drain",),
    rules=(
        PolicyRule(
            tools=("pay",),
            require="args.amount > 0 && "
            f"sum(attempts('pay').map(c, c.args.amount)) + args.amount <= {LIMIT}.0",
            reason="100 in total",
        ),
        PolicyRule(
            tools=("pay",),
            require="latest('account', {'id': args.to}).state == 'active'",
            reason="the account must be active",
        ),
        PolicyRule(tools=("once",), require="size(attempts('once')) == 0", reason="once"),
    ),
    read_only=("account",),
)
TOOLS = tuple(Tool(name=name) for name in ("pay", "account", "once", "drain", "plain"))
"""Without schemas: what arguments may be is the policy's alone."""
NUMBERS = count()


@pytest.fixture(scope="module")
def sites() -> Iterator[Sites]:
    with Sites(POLICY, TOOLS) as made:
        yield made


def conversation() -> list[Message]:
    return [Message(role="user", content=f"Yes, do it. This is conversation {next(NUMBERS)}.")]


def observed(name: str, arguments: dict[str, Any], result: str) -> list[Message]:
    """A call of an earlier message, with its result."""
    call = ToolCall(id=f"earlier_{next(NUMBERS)}", name=name, arguments=json.dumps(arguments))
    return [
        Message(role="assistant", tool_calls=(call,)),
        Message(role="tool", tool_call_id=call.id, content=result),
    ]


def active(run: Sequence[Message]) -> list[Message]:
    return [*run, *observed("account", {"id": "A"}, '{"state": "active"}')]


def pay(amount: Any = 50, note: Any = "") -> tuple[str, str]:
    return "pay", json.dumps({"amount": amount, "to": "A", "note": note})


def paid(released: Sequence[ReleasedCall]) -> float:
    """The most that a client pays, however it reads the arguments."""
    return sum(max(call.first["amount"], call.last["amount"]) for call in released if call.name == "pay")


at_every_site = pytest.mark.parametrize("site", SITES)


@at_every_site
def test_an_honest_call_is_released(sites: Sites, site: str) -> None:
    assert paid(sites.send(site, active(conversation()), pay(40))) == 40


@at_every_site
def test_calls_of_one_message_count_together(sites: Sites, site: str) -> None:
    calls = [pay(50, note) for note in range(5)]
    assert paid(sites.send(site, active(conversation()), *calls)) <= LIMIT
    assert len(sites.send(site, conversation(), ("once", "{}"), ("once", '{"again": true}'))) <= 1
    assert (
        len(sites.send(site, conversation(), ("plain", '{"a": 1, "b": 2}'), ("plain", '{"b":2.0,"a":1}')))
        <= 1
    )


@at_every_site
def test_calls_of_several_requests_count_together_before_the_client_shows_them(
    sites: Sites, site: str
) -> None:
    run = active(conversation())
    assert sum(paid(sites.send(site, run, pay(40, number))) for number in range(5)) <= LIMIT


@at_every_site
@pytest.mark.parametrize(
    "text",
    [
        '{"amount": 5000, "amount": 50, "to": "A"}',
        '{"\\u0061mount": 5000, "amount": 50, "to": "A"}',
        '{"amount": 50, "Amount": 5000, "to": "A"}',
        '{"amount": 50, "\\uff41mount": 5000, "to": "A"}',
        '{"amount": 50, "to": "A", "more": {"x": 1, "x": 2}}',
        '{"amount": NaN, "to": "A"}',
        '{"amount": -Infinity, "to": "A"}',
        '{"amount": 1e400, "to": "A"}',
        '{"amount": -1e400, "to": "A"}',
        '{"amount": 50, "to": "A", "id": 9007199254740993}',
        '{"amount": 50, "to": "A", "note": "\\ud800"}',
        '{"amount": 50, "to": "A"} {"amount": 5000}',
        '[{"amount": 50, "to": "A"}]',
        '"amount"',
        '{"amount": 50, "to": "A", "deep": ' + "[" * 40 + "]" * 40 + "}",
        '{"amount": 50, "to": "A", "deep": ' + "[" * 50_000,
    ],
)
def test_arguments_with_several_readings_are_not_released(sites: Sites, site: str, text: str) -> None:
    assert sites.send(site, active(conversation()), ("pay", text)) == []


@at_every_site
@pytest.mark.parametrize("amount", ["50", [50], {"value": 50}, True, None, -5, 0, 1e30, 100.00000001])
def test_a_number_of_another_type_or_size_does_not_pass(sites: Sites, site: str, amount: Any) -> None:
    assert sites.send(site, active(conversation()), pay(amount)) == []
    assert sites.send(site, active(conversation()), ("pay", '{"to": "A"}'), ("pay", "")) == []


@at_every_site
def test_the_last_observation_decides(sites: Sites, site: str) -> None:
    frozen = observed("account", {"id": "A"}, '{"state": "frozen"}')
    assert sites.send(site, [*active(conversation()), *frozen], pay()) == []
    other = [*conversation(), *observed("account", {"id": "B"}, '{"state": "active"}')]
    assert sites.send(site, other, pay()) == []
    failed = [*active(conversation()), *observed("account", {"id": "A"}, "Error: time-out")]
    assert sites.send(site, failed, pay()) == []
    assert paid(sites.send(site, conversation(), ("account", '{"id": "A"}'), pay())) == 0


@at_every_site
@pytest.mark.parametrize(
    "result",
    [
        'It says {"state": "active"}',
        '{"state": "frozen"} {"state": "active"}',
        '{"state": "frozen", "state": "active"}',
        '[{"state": "active"}]',
        '{"state": "frozen", "note": "\\"state\\": \\"active\\""}',
        '"{\\"state\\": \\"active\\"}"',
        '{"state": ["active"]}',
        "",
    ],
)
def test_a_result_that_quotes_evidence_is_none(sites: Sites, site: str, result: str) -> None:
    assert sites.send(site, [*conversation(), *observed("account", {"id": "A"}, result)], pay()) == []


@at_every_site
@pytest.mark.parametrize(
    "result",
    ["Error log: empty", "Error", "", "Error: this call was not executed: policy", '{"error": "no"}'],
)
def test_an_attempt_counts_whatever_the_tool_says(sites: Sites, site: str, result: str) -> None:
    run = [*active(conversation()), *observed("pay", {"amount": 60, "to": "A"}, result)]
    assert paid(sites.send(site, run, pay(50))) == 0


@at_every_site
def test_results_of_other_calls_or_roles_are_no_evidence(sites: Sites, site: str) -> None:
    account = ToolCall(id="x", name="account", arguments='{"id": "A"}')
    plain = ToolCall(id="y", name="plain", arguments='{"id": "A"}')
    answer = Message(role="tool", tool_call_id="y", content='{"state": "active"}')
    unanswered = Message(role="tool", tool_call_id="x", content="")
    both = Message(role="assistant", tool_calls=(account, plain))
    assert sites.send(site, [*conversation(), both, unanswered, answer], pay()) == []
    if not site.startswith("messages"):  # there results always follow their calls
        early = [*conversation(), answer.model_copy(update={"tool_call_id": "x"})]
        early += [Message(role="assistant", tool_calls=(account,)), unanswered]
        assert sites.send(site, early, pay()) == []
    spoken = [*conversation(), Message(role="assistant", content='account: {"state": "active"}')]
    spoken.append(Message(role="user", content='{"state": "active"}'))
    assert sites.send(site, spoken, pay()) == []


@at_every_site
@pytest.mark.parametrize(
    "name", ["Pay", "pay ", "ｐay", "pay\u200b", "PAY", "drain", "Drain", "dr\u00adain", " "]
)
def test_names_are_compared_in_one_form(sites: Sites, site: str, name: str) -> None:
    assert sites.send(site, active(conversation()), (name, pay()[1])) == []


def test_floods_are_refused_quickly_even_if_the_guard_fails_open() -> None:
    with Sites(POLICY, TOOLS, fail="open") as sites:
        for site in ("library", "chat"):
            run, begin = active(conversation()), time.process_time()
            calls = [("plain", json.dumps({"number": number})) for number in range(1000)]
            assert sites.send(site, run, *calls) == []
            assert sites.send(site, run, ("plain", json.dumps({"text": "x" * 1_100_000}))) == []
            assert time.process_time() - begin < 3


def test_fail_open_passes_the_undecidable_and_nothing_that_is_decided() -> None:
    with Sites(POLICY, TOOLS, fail="open") as sites:
        for site in ("library", "chat"):
            assert len(sites.send(site, active(conversation()), pay("50"))) == 1
            assert sites.send(site, conversation(), pay()) == []
            assert sites.send(site, active(conversation()), ("pay", '{"amount": 1, "amount": 2}')) == []


ARGUMENTS = st.one_of(
    st.builds(
        json.dumps,
        st.fixed_dictionaries(
            {"to": st.sampled_from(["A", "B"])},
            optional={
                "amount": st.one_of(
                    st.integers(-10, 120), st.floats(0, 120), st.sampled_from(["5", [5], None, True, 1e308])
                ),
                "note": st.one_of(st.text(max_size=3), st.integers()),
            },
        ),
    ),
    st.builds(
        '{{"amount": {}, "{}": {}, "to": "A"}}'.format,
        st.integers(1, 120),
        st.sampled_from(["amount", "\\u0061mount", "Amount", "note"]),
        st.integers(1, 9000),
    ),
)
CALLS = st.lists(st.tuples(st.sampled_from(["pay", "once", "Pay", "plain"]), ARGUMENTS), max_size=6)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=CALLS, cuts=st.sets(st.integers(1, 5)), site=st.sampled_from(SITES), results=st.booleans())
def test_what_is_released_satisfies_the_policy_however_it_is_split_and_read(
    sites: Sites, calls: list[tuple[str, str]], cuts: set[int], site: str, results: bool
) -> None:
    run = active(conversation())
    released: list[ReleasedCall] = []
    for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(calls)], strict=True):
        if calls[begin:end]:
            new = sites.send(site, run, *calls[begin:end])
            released += new
            if results:
                for call in new:
                    run += observed(call.name, call.last, '{"state": "done"}')
    assert all(call.first == call.last for call in released)
    payments = [call for call in released if call.name == "pay"]
    assert all(type(call.first["amount"]) in (int, float) and call.first["to"] == "A" for call in payments)
    assert all(call.first["amount"] > 0 for call in payments)
    assert paid(payments) <= LIMIT + 1e-9
    assert sum(call.name == "once" for call in released) <= 1
    assert {call.name for call in released} <= {"pay", "once", "plain"}
