"""Which calls a guard remembers of a conversation, its order, and what a decision is good for."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as runs
from hypothesis import strategies as st

from surefoot.errors import GuardError
from surefoot.guard import Guard, GuardSettings, Review, checked_call, guarded_reply
from surefoot.guard.conversations import MOST_BYTES, MOST_CONVERSATIONS, ConversationLog, Conversations
from surefoot.guard.guard import MOST_UNUSED
from surefoot.labelling import PolicyRule, ToolCallVerifier, ToolPolicy
from surefoot.labelling.verifiers.tool_policy import CallResult
from surefoot.records import Message, Tool, ToolCall

TOOLS = (Tool(name="pay"), Tool(name="look"))
ONCE = ToolPolicy(rules=(PolicyRule(tools=("pay",), require="size(attempts('pay')) == 0", reason="once"),))
RUN = (Message(role="user", content="Pay."),)


def guard(policy: ToolPolicy = ONCE, **settings: Any) -> Guard:
    return Guard(GuardSettings(**settings), verifiers=(ToolCallVerifier(policy=policy),))


def paying(amount: int = 1, name: str = "pay") -> Message:
    call = ToolCall(id=f"c{amount}", name=name, arguments=json.dumps({"amount": amount}))
    return Message(role="assistant", tool_calls=(call,))


def check(of: Guard, reply: Message, run: tuple[Message, ...] = RUN, **options: Any) -> Any:
    return asyncio.run(of.check(run, TOOLS, reply, **options))


def test_a_decision_is_redeemed_once_for_the_calls_that_were_checked() -> None:
    bank = guard()
    decision = check(bank, paying(1))
    other = check(bank, paying(2, "look"))
    swapped = decision.model_copy(update={"calls": other.calls})
    with pytest.raises(GuardError, match="exactly these calls"):
        bank.redeem(swapped)
    with pytest.raises(GuardError, match="exactly these calls"):
        guard().redeem(decision)
    assert [call.arguments for call in bank.redeem(decision)] == ['{"amount": 1}']
    with pytest.raises(GuardError, match="has been used"):
        bank.redeem(decision)
    refused = check(bank, paying(3))
    with pytest.raises(GuardError, match="nothing may be executed"):
        bank.redeem(refused)


def test_of_threads_that_use_one_decision_one_gets_the_calls() -> None:
    bank, wins, errors = guard(), list[Any](), list[Exception]()
    decision, start = check(bank, paying(1)), threading.Barrier(8)

    def use() -> None:
        start.wait(10)
        try:
            wins.append(bank.redeem(decision))
        except GuardError as error:
            errors.append(error)

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (len(wins), len(errors)) == (1, 7)


def test_unreadable_calls_are_rejected_where_others_are_held() -> None:
    call = ToolCall(id="c", name="pay", arguments='{"amount": 1, "amount": 2}')

    async def approve(*_: Any) -> Any:
        return Review(approved=True), None

    async def ask(*_: Any) -> Message:
        return Message(role="assistant", tool_calls=(call,))

    for settings in ({"on_schema": "hold"}, {"resamples": 0, "after_resamples": "hold"}):
        bank = guard(**settings, rejections=0)
        reply = asyncio.run(guarded_reply(bank, ask, RUN, TOOLS, review=approve))
        assert reply.message is None
        decision = asyncio.run(bank.check(RUN, TOOLS, asyncio.run(ask())))
        with pytest.raises(GuardError):
            bank.redeem(decision.model_copy(update={"action": "release"}))


def test_a_flood_of_refused_decisions_leaves_nothing_behind_and_evicts_no_other() -> None:
    bank = guard()
    good = check(bank, paying(1))
    for number in range(300):
        assert (
            asyncio.run(checked_call(bank, RUN, TOOLS, paying(number + 2).tool_calls[0])).action == "reject"
        )
        broken = ToolCall(id="c", name="pay", arguments="[" * (number + 1))
        assert asyncio.run(checked_call(bank, RUN, TOOLS, broken)).action == "resample"
    assert len(bank._unused) == 1
    assert len(bank.redeem(good)) == 1


def test_conversations_are_kept_apart_by_caller_name_and_beginning() -> None:
    bank = guard()
    assert check(bank, paying()).action == "release"
    assert check(bank, paying(2)).action == "reject"
    assert check(bank, paying(2), caller="other").action == "release"
    assert check(bank, paying(2), conversation="other").action == "release"
    assert check(bank, paying(3), conversation="other").action == "reject"
    assert check(bank, paying(2), (Message(role="user", content="Pay, too."),)).action == "release"
    later = (*RUN, Message(role="assistant", content="Sure?"), Message(role="user", content="Yes."))
    assert check(bank, paying(2), later).action == "reject"


def test_a_conversation_without_a_user_has_one_key() -> None:
    bank, system = guard(), Message(role="system", content="Pay.")
    assert check(bank, paying(), (system,)).action == "release"
    assert check(bank, paying(2), (system, Message(role="assistant", content="Well."))).action == "reject"


def test_a_released_call_counts_once_with_the_messages_that_show_it_and_is_forgotten_in_time() -> None:
    twice = ToolPolicy(rules=(PolicyRule(tools=("pay",), require="size(attempts('pay')) < 2"),))
    bank = guard(twice)
    assert check(bank, paying()).action == "release"
    shown = (*RUN, paying(), Message(role="tool", tool_call_id="c1", content="paid"))
    assert check(bank, paying(2), shown).action == "release"
    assert check(bank, paying(3), shown).action == "reject"
    forgetful = guard(remember_s=1e-9)
    assert [check(forgetful, paying(n)).action for n in (1, 2)] == ["release", "release"]


def test_refused_calls_are_no_attempts_and_held_ones_are() -> None:
    positive = (*ONCE.rules, PolicyRule(tools=("pay",), require="args.amount < 5", reason="at most 5"))
    replies = [paying(9), paying(1)]

    async def ask(*_: Any) -> Message:
        return replies.pop(0)

    bank = guard(ToolPolicy(rules=positive))
    reply = asyncio.run(guarded_reply(bank, ask, RUN, TOOLS))
    assert reply.message == paying(1)
    holding = guard(ToolPolicy(rules=positive), on_rule="hold")
    assert check(holding, paying(9)).action == "hold"
    assert check(holding, paying(1)).action == "hold"


def test_a_denied_or_interrupted_call_may_be_made_later() -> None:
    bank = guard(
        ToolPolicy(rules=(*ONCE.rules, PolicyRule(tools=("pay",), require="args.amount < 5"))), on_rule="hold"
    )

    async def deny(*_: Any) -> Any:
        return Review(approved=False), None

    async def interrupt(*_: Any) -> Any:
        raise KeyError

    nine, one = paying(9).tool_calls[0], paying(1).tool_calls[0]
    with pytest.raises(KeyError):
        asyncio.run(checked_call(bank, RUN, TOOLS, nine, review=interrupt))
    assert asyncio.run(checked_call(bank, RUN, TOOLS, nine, review=deny)).action == "reject"
    assert asyncio.run(checked_call(bank, RUN, TOOLS, one)).action == "release"


def test_one_of_many_concurrent_calls_is_released_in_any_thread() -> None:
    bank, actions = guard(), list[str]()

    def work(first: int) -> None:
        async def several() -> None:
            calls = [paying(first + number).tool_calls[0] for number in range(5)]
            decisions = await asyncio.gather(*[checked_call(bank, RUN, TOOLS, call) for call in calls])
            actions.extend(decision.action for decision in decisions)

        asyncio.run(several())

    threads = [threading.Thread(target=work, args=(10 * number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(actions) == ["reject"] * 19 + ["release"]


def test_a_cancelled_check_releases_nothing_and_keeps_the_order() -> None:
    class Slow:
        name = "slow"

        def __init__(self) -> None:
            self.free, self.running, self.most = threading.Event(), 0, 0

        def verify(self, items: Any) -> Any:
            self.running += 1
            self.most = max(self.most, self.running)
            self.free.wait(5)
            self.running -= 1
            return ToolCallVerifier().verify(items)

    slow = Slow()
    bank = Guard(verifiers=(slow, ToolCallVerifier(policy=ONCE)))

    async def main() -> list[Any]:
        checks = [asyncio.ensure_future(bank.check(RUN, TOOLS, paying(number))) for number in range(4)]
        await asyncio.sleep(0.05)
        checks[1].cancel()
        await asyncio.sleep(0.05)
        slow.free.set()
        return await asyncio.gather(*checks, return_exceptions=True)

    first, cancelled, *rest = asyncio.run(main())
    assert first.action == "release"
    assert isinstance(cancelled, asyncio.CancelledError)
    assert [decision.action for decision in rest] == ["reject", "reject"]
    assert slow.most == 1


def answered(call: ToolCall, text: str = "ok") -> tuple[Message, ...]:
    asked = Message(role="assistant", tool_calls=(call,))
    return asked, Message(role="tool", tool_call_id=call.id, content=text)


@pytest.mark.parametrize("text", ["note: this call was not executed: echo", "done"])
def test_a_call_that_was_refused_once_and_then_released_stays_an_attempt(text: str) -> None:
    bank, first = guard(remember_s=0.05), paying(1)
    both = Message(role="assistant", tool_calls=(*first.tool_calls, *paying(2).tool_calls))
    assert check(bank, both).action == "reject"
    assert check(bank, first).action == "release"
    run = (*RUN, *answered(first.tool_calls[0], text))
    assert check(bank, paying(3), run).action == "reject"
    time.sleep(0.1)
    for shown in (run, (*RUN, first)):
        assert check(bank, paying(4), shown).action == "reject"


def test_a_release_is_not_taken_for_an_equal_call_that_the_messages_showed_before() -> None:
    total = "sum(attempts('pay').map(c, c.args.amount)) + args.amount <= 100.0"
    policy = ToolPolicy(rules=(PolicyRule(tools=("pay",), require=total),), repeatable=("pay",))
    bank, run = guard(policy), (*RUN, *answered(paying(40).tool_calls[0]))
    assert check(bank, paying(40), run).action == "release"
    assert check(bank, paying(50), run).action == "reject"
    assert check(bank, paying(20), run).action == "release"


OPERATIONS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.booleans()), max_size=12)


@runs(max_examples=60, deadline=None)
@given(OPERATIONS)
def test_a_long_run_that_is_read_on_is_judged_as_one_that_is_read_anew(operations: Any) -> None:
    rules = ("size(attempts('pay')) < 24", "sum(attempts('pay').map(c, c.args.amount)) + args.amount <= 60.0")
    policy = ToolPolicy(rules=tuple(PolicyRule(tools=("pay",), require=rule) for rule in rules))
    banks = [guard(policy), guard(policy)]
    begin = tuple(
        message
        for n in range(20)
        for message in answered(ToolCall(id=f"b{n}", name="pay", arguments=f'{{"amount": 1, "n": {n}}}'))
    )
    run = [*RUN, *begin]
    for number, (what, amount, shows) in enumerate(operations):
        if what == 0:
            run.append(Message(role="user", content="Go on."))
        elif what == 1:
            del run[-amount or len(run) :]
        call = ToolCall(id=f"c{number}", name="pay", arguments=json.dumps({"amount": amount}))
        for conversation in banks[1]._conversations._by_caller.get("", {}).values():
            conversation.prefix = None
        decisions = [check(bank, Message(role="assistant", tool_calls=(call,)), tuple(run)) for bank in banks]
        assert decisions[0].action == decisions[1].action
        assert decisions[0].reason == decisions[1].reason
        if shows or what == 2:
            refused = "Error: this call was not executed: no"
            run += answered(call, "ok" if decisions[0].action == "release" else refused)[: 2 - (what == 3)]


def test_a_check_does_the_same_work_at_any_length_of_the_run() -> None:
    require = "call.turn == 1 && args.amount <= 100000.0"
    policy = ToolPolicy(rules=(PolicyRule(tools=("pay",), require=require),))
    verifier, memory = ToolCallVerifier(policy=policy), Conversations(600)
    log, run, work = ConversationLog(memory, ""), list(RUN), dict[int, int]()
    for number in range(1_500):
        call, steps = (
            ToolCall(id=f"c{number}", name="pay", arguments=json.dumps({"amount": 1, "n": number})),
            0,
        )

        def count(*_: Any) -> None:
            nonlocal steps
            steps += 1

        sys.setprofile(count)
        [judge] = log.read(run, [verifier]).judges
        new = CallResult(message=len(run), number=0, call=call, result=None, turn=1)
        outcomes = list(judge.judge([new], TOOLS, ["Pay."]))
        sys.setprofile(None)
        assert {outcome.outcome for outcome in outcomes[0]} == {"satisfied"}
        work[number], run = steps, [*run, *answered(call)]
    assert work[1_400] <= work[100] + 5


def test_a_session_does_not_end_after_a_thousand_calls() -> None:
    bank, run = guard(ToolPolicy()), RUN

    async def session() -> None:
        nonlocal run
        for number in range(1_100):
            decision = await bank.check(run, TOOLS, paying(number))
            run += answered(bank.redeem(decision)[0])

    asyncio.run(session())


def test_a_request_that_is_sent_again_gets_its_decision_again_and_counts_once() -> None:
    twice = ToolPolicy(rules=(PolicyRule(tools=("pay",), require="size(attempts('pay')) < 2"),))
    bank = guard(twice)
    first = check(bank, paying(1), request="a")
    other_id = Message(
        role="assistant", tool_calls=(paying(1).tool_calls[0].model_copy(update={"id": "new"}),)
    )
    for _ in range(4):
        again = check(bank, other_id, request="a")
        assert again.action == "release"
        assert bank.redeem(again) == (first.calls[0].call,)
    assert check(bank, paying(1), request="b").reason.startswith("repeated-call")
    assert check(bank, paying(1), request="a", caller="other").action == "release"
    assert check(bank, paying(2), request="a").action == "release"
    assert check(bank, paying(3), request="a").action == "reject"


def test_what_callers_make_a_guard_remember_takes_no_room_from_others() -> None:
    async def turns() -> list[str | None]:
        memory, full = Conversations(600), list[str | None]()
        for number in range(MOST_CONVERSATIONS + 1):
            async with memory.turn("flood", str(number)) as log:
                full.append(log.full)
        async with memory.turn("flood", "0") as log, memory.turn("other", "0") as others:
            return [full[-2], full[-1], log.full, others.full]

    assert asyncio.run(turns()) == [None, "this client has 10000 conversations", None, None]
    memory = Conversations(600)
    log = ConversationLog(memory, "flood")
    memory.grow("flood", MOST_BYTES)
    assert not log.has_room(1)
    assert ConversationLog(memory, "other").has_room(MOST_BYTES // 2)
    bank = guard(ToolPolicy())
    good = check(bank, paying(1), caller="other")
    record = bank._unused[good.id]
    for number in range(2 * MOST_UNUSED):
        bank._unused[str(number)] = replace(record, caller="flood")
        if len(bank._unused) > MOST_UNUSED:
            bank._drop_unused()
            break
    assert len(bank.redeem(good)) == 1
    assert "0" not in bank._unused


def test_what_is_remembered_is_bounded() -> None:
    bank = guard(ToolPolicy(), max_calls=1000)
    calls = tuple(ToolCall(id=str(n), name="pay", arguments=json.dumps({"n": n})) for n in range(1200))
    assert check(bank, Message(role="assistant", tool_calls=calls[:600])).action == "release"
    full = check(bank, Message(role="assistant", tool_calls=calls[600:]))
    assert (full.action, full.reason) == ("resample", "600 released calls are not among the messages")
