"""Rules of a tool policy: what each kind says, what is refused when it is loaded, and what it may cost."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from call_events import event
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from surefoot.errors import LabelError
from surefoot.labelling import CallResult, PolicyRule, ToolPolicy
from surefoot.labelling.verifiers.tool_policy import CallHistory, judge_call
from surefoot.messages import canonical_arguments
from surefoot.records import Tool, ToolCall

AIRLINE = Path(__file__).parents[3] / "examples" / "policies" / "airline.json"


def outcome(require: str, *earlier: CallResult, user: tuple[str, ...] = ("Hello",), **arguments: Any) -> str:
    policy = ToolPolicy(rules=(PolicyRule(tools=("act",), require=require),))
    call = ToolCall(name="act", arguments=json.dumps(arguments))
    (found,) = judge_call(policy, call, CallHistory(earlier), user)
    return found.outcome


ORDER = event("get_order", {"total": 40, "id": 12345678901234567890}, order_id="A")


@pytest.mark.parametrize(
    ("require", "expected"),
    [
        ("args.amount <= latest('get_order', {'order_id': args.order}).total", "satisfied"),
        ("args.amount < latest('get_order', {'order_id': args.order}).total", "violated"),
        ("args.amount <= latest('get_order', {'order_id': 'B'}).total", "violated"),
        ("latest('get_order', {'order_id': 'B'}) == null", "satisfied"),
        ("args.amount <= latest('get_order').discount", "undecidable"),
        ("args.amount * 2.0 <= 80", "satisfied"),
        ("args.amount + 0.1 + 0.2 > 40.29", "satisfied"),
        ("sum(attempts('get_order').map(c, c.result.total)) == 40.0", "satisfied"),
        ("sum(attempts('get_order').map(c, c.result.id)) > 0", "satisfied"),
        ("sum(attempts('other').map(c, c.args.amount)) == 0.0", "satisfied"),
        ("sum(['1', 2.0]) > 0", "undecidable"),
        ("size(attempts('get_order')) < 2", "satisfied"),
        ("size(attempts('get_order', {'order_id': 'A'})) == 1", "satisfied"),
        ("args.method == 'card' || args.amount <= 20", "satisfied"),
        ("args.items.all(i, i.price * i.count <= 100.0)", "satisfied"),
        ("args.items.exists(i, i.price > 30)", "violated"),
        ("!calls.exists(c, c.turn == call.turn && c.name == 'pay')", "satisfied"),
        ("calls.all(c, c.answered && c.ok)", "satisfied"),
        ("last_user.matches('(?i)\\\\byes\\\\b')", "violated"),
        ("user.exists(t, t.contains('ello'))", "satisfied"),
        ("path(args.file).startsWith('/data/')", "satisfied"),
        ("host(args.url) in ['api.example.com']", "satisfied"),
        ("args.amount", "undecidable"),
        ("args.missing <= 100", "undecidable"),
        ("!has(args.missing) || args.missing <= 100", "satisfied"),
        ("args.method <= 100", "undecidable"),
        ("call.name == 'act'", "satisfied"),
    ],
)
def test_what_real_policies_say(require: str, expected: str) -> None:
    arguments = {
        "amount": 40,
        "order": "A",
        "method": "card",
        "items": [{"price": 10, "count": 3}],
        "file": "/data/./a.txt",
        "url": "https://API.example.com:443/x?y#z",
    }
    assert outcome(require, ORDER, **arguments) == expected


def test_only_the_last_answer_is_evidence_and_a_failed_one_is_none() -> None:
    active, frozen = event("look", {"state": "active"}), event("look", {"state": "frozen"})
    require = "latest('look').state == 'active'"
    assert outcome(require, frozen, active) == "satisfied"
    assert outcome(require, active, frozen) == "violated"
    assert outcome(require, active, event("look")) == "satisfied"  # it has no answer yet
    assert outcome(require, active, event("look", "Error: time-out")) == "violated"
    assert outcome("latest('look') == null", event("look", "Error: time-out")) == "violated"
    assert (
        outcome("latest('look', {'n': 1}) == null", event("look", 5, n=True), event("look", 5, n="1"))
        == "satisfied"
    )


@pytest.mark.parametrize(
    "url",
    [
        *("http://good.example@evil.example", "http://evil.example\\@good.example", "ftp://good.example"),
        *(
            "//good.example",
            "good.example",
            "http://good.example\t.evil",
            "http://%67ood.example",
            "http:///x",
        ),
        *("http://good.example:99999", "http://gööd.example", 5, None, ["http://good.example"], ""),
    ],
)
def test_addresses_that_programs_read_differently_violate_the_rule(url: Any) -> None:
    assert outcome("host(args.url) != 'evil.example'", url=url) == "violated"
    assert (
        outcome("host(args.url) in ['good.example', 'evil.example']", url="HTTPS://GOOD.example.")
        == "satisfied"
    )


@pytest.mark.parametrize(
    "path",
    [
        "/data/../etc/passwd",
        "/data/..",
        "//etc",
        "data/x",
        "/data/%2e%2e/x",
        "/data\\..\\x",
        "/database/x",
        "/data/\u2024\u2024/etc/passwd",
        "/data/\u2025/etc/passwd",
        "/etc\uff0f..\uff0fdata/x",
        "/data\uff0fx",
        "\uff0fdata/x",
        "/data/\uff052e\uff052e/x",
        "/data\uff3c..\uff3cx",
        5,
    ],
)
def test_paths_outside_a_folder_violate_the_rule(path: Any) -> None:
    assert outcome("path(args.path).startsWith('/data/')", path=path) == "violated"


def test_compatible_letters_of_a_path_are_one() -> None:
    assert outcome("path(args.path) != '/data/secret'", path="/data/\uff53ecret") == "violated"
    assert (
        outcome("path(args.path).startsWith('/data/')", path="/data/\u8868\uff08\uff11\uff09…") == "satisfied"
    )


def test_the_canonical_form_is_one_form() -> None:
    assert canonical_arguments(' {"b":1.0,"a" : "\\u00e9"} ') == '{"a": "é", "b": 1.0}'
    assert canonical_arguments("") == canonical_arguments("{ }") == "{}"
    assert canonical_arguments('{"n": 9007199254740992}') == '{"n": 9007199254740992}'


SCHEMA = {
    "type": "object",
    "properties": {
        "amount": {"type": "number"},
        "method": {"enum": ["card", "cash"]},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "to": {"type": "object", "properties": {"city": {"type": "string"}}},
        "any": {},
    },
}
TOOL = Tool(name="act", parameters=json.dumps(SCHEMA))


def test_rules_that_fit_the_tools_are_accepted() -> None:
    fitting = (
        "args.amount <= 5 && args.method in ['card'] && args.to.city.startsWith('R')",
        "!has(args.note) || args.note == 'x' || args.any == 5 || args.any == 'x'",
        "args.amount * 2.0 <= latest('act').amount && args.amount >= args.any",
    )
    rules = tuple(PolicyRule(tools=("act",), require=require) for require in fitting)
    assert ToolPolicy(rules=rules, tools=(TOOL,), read_only=("act",)).rules == rules
    for field in ("forbidden", "repeatable", "read_only"):
        with pytest.raises(ValidationError, match=f"{field}: tool 'atc' does not exist"):
            ToolPolicy(tools=(TOOL,), **{field: ("atc",)})
    with pytest.raises(ValidationError, match=r"rules.0.tools: tool 'atc' does not exist"):
        ToolPolicy(rules=(PolicyRule(tools=("atc",), require="true"),), tools=(TOOL,))


@pytest.mark.parametrize(
    ("require", "error"),
    [
        ("args.amount <=", "not a CEL expression"),
        ("arg.amount <= 5", "unknown variable 'arg'"),
        ("lates('x') == null", "unknown function 'lates'"),
        ("[1].all(args, true)", "a loop must not rename 'args'"),
        ("true" + " && true" * 400, "at most 2000 characters"),
    ],
)
def test_an_unusable_expression_is_refused(require: str, error: str) -> None:
    with pytest.raises(ValidationError, match=error):
        PolicyRule(tools=("act",), require=require)


def test_a_policy_file_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text('{"clauses": []}')
    with pytest.raises(LabelError, match=r"p.json: not a valid tool policy"):
        ToolPolicy.of_file(tmp_path / "p.json")


def test_the_cost_of_an_evaluation_is_bounded() -> None:
    many = list(range(3000))
    begin = time.perf_counter()
    assert outcome("args.n.all(a, args.n.all(b, a + b >= 0.0))", n=many) == "undecidable"
    assert outcome("args.n.all(a, a >= 0.0)", n=many) == "satisfied"
    events = [event("act", {"n": many})] * 400
    assert outcome("calls.all(c, c.result.n.size() > 0)", *events) == "undecidable"
    assert time.perf_counter() - begin < 2


def test_the_airline_policy() -> None:
    policy = ToolPolicy.of_file(AIRLINE)
    user = event("get_user_details", {"membership": "regular", "payment_methods": {"card": {}}}, user_id="u")
    flights = [{"flight_number": "HAT1", "date": "2024-05-20"}]
    fields = {"cabin": "economy", "insurance": "no", "total_baggages": 2, "created_at": "2024-05-01T10:00:00"}
    seen = event(
        "get_reservation_details", {"flights": flights, "passengers": [{}], **fields}, reservation_id="R"
    )

    def reasons(name: str, *earlier: CallResult, said: str = "Yes, please.", **arguments: Any) -> list[str]:
        call = ToolCall(name=name, arguments=json.dumps(arguments))
        outcomes = judge_call(policy, call, CallHistory(earlier), (said,))
        return [policy.rules[one.rule].reason for one in outcomes if one.outcome != "satisfied"]

    assert reasons("update_reservation_baggages", seen, reservation_id="R", total_baggages=3) == []
    removed = reasons("update_reservation_baggages", seen, reservation_id="R", total_baggages=1)
    assert removed == ["checked bags can be added but not removed"]
    unseen = reasons("update_reservation_passengers", reservation_id="R", passengers=[{}])
    assert unseen[0] == "look the reservation up first"
    (late,) = reasons("cancel_reservation", seen, reservation_id="R")
    assert late.startswith("cancel within 24 hours")
    cancelled = "Yes. The flight was cancelled by the airline."
    assert reasons("cancel_reservation", seen, said=cancelled, reservation_id="R") == []
    booking = {
        "user_id": "u",
        "passengers": [{}],
        "payment_methods": [{"payment_id": "credit_card_9", "amount": 5}],
    }
    assert reasons("book_reservation", user, **booking) == ["payment methods must be in the user's profile"]
    assert "certificates are for" in " ".join(
        reasons("send_certificate", user, seen, user_id="u", amount=100)
    )
    unconfirmed = reasons(
        "update_reservation_baggages", seen, said="Hm?", reservation_id="R", total_baggages=3
    )
    assert unconfirmed == ["list the details and obtain the user's explicit confirmation"]


NUMBERS = st.sampled_from([1, 2.5, 0.1, -3, 10**400, "5", None, True, [1]])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["pay", "Pay", "look"]), NUMBERS), max_size=6))
@pytest.mark.parametrize(
    ("short", "long"),
    [
        ("size(attempts('pay')) < 2", "size(attempts('pay', {})) < 2"),
        (
            "attempts('pay').size() + size(attempts(\"look\")) < 3",
            "size(attempts('pay', {})) + size(attempts('look', {})) < 3",
        ),
        (
            "sum(attempts('pay').map(c, c.args.amount)) + args.amount <= 5.0",
            "sum(attempts('pay', {}).map(c, c.args.amount)) + args.amount <= 5.0",
        ),
        ("'size(attempts(\\'pay\\'))' == args.note", "args.note == \"size(attempts('pay'))\""),
    ],
)
def test_totals_that_are_kept_say_what_reading_the_run_says(
    short: str, long: str, attempts: list[tuple[str, Any]]
) -> None:
    calls = [
        CallResult(
            message=at,
            number=0,
            call=ToolCall(name=name, arguments=json.dumps({"amount": value})),
            result=None,
        )
        for at, (name, value) in enumerate(attempts)
    ]
    call = ToolCall(name="pay", arguments=json.dumps({"amount": 1, "note": "size(attempts('pay'))"}))
    history = CallHistory(calls[3:], base=CallHistory(calls[:3]))
    [kept], [read] = (
        list(
            judge_call(
                ToolPolicy(rules=(PolicyRule(tools=("pay",), require=rule, reason="no"),)), call, history, ()
            )
        )
        for rule in (short, long)
    )
    assert (kept.outcome, kept.reason) == (read.outcome, read.reason)


def test_lists_that_an_expression_copies_are_bounded_by_the_work() -> None:
    policy = ToolPolicy(rules=(PolicyRule(tools=("pay",), require="size(args.items.map(i, i)) > 0"),))
    for length, outcome in ((1000, "satisfied"), (100_000, "undecidable")):
        call = ToolCall(name="pay", arguments=json.dumps({"items": [1] * length}))
        [verdict] = judge_call(policy, call, CallHistory(), ())
        assert verdict.outcome == outcome
