"""The guard's stages, what follows from each, and the loop around them, with a scripted model."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from surefoot.errors import GuardError
from surefoot.guard import (
    Guard,
    GuardSettings,
    Review,
    calibrated_threshold,
    guarded_reply,
    rejection_messages,
)
from surefoot.protocols import ProblemTrace, Verdict
from surefoot.records import Message, StepScores, Tool, ToolCall, Usage

TOOLS = (
    Tool(
        name="refund",
        parameters=json.dumps(
            {"type": "object", "properties": {"order": {"type": "string"}}, "required": ["order"]}
        ),
    ),
    Tool(name="look"),
)
RUN = (Message(role="system", content="Look before you refund."), Message(role="user", content="Refund W1."))


def calling(name: str, **arguments: Any) -> Message:
    call = ToolCall(id=f"c-{name}{len(arguments)}", name=name, arguments=json.dumps(arguments))
    return Message(role="assistant", tool_calls=(call,))


GOOD, REFUND, BROKEN = calling("look"), calling("refund", order="W1"), calling("refund")
BYE = Message(role="assistant", content="Done.")


@dataclass
class LookFirst:
    """A refund is wrong unless something was looked at before; what else is done is not judged."""

    name: str = "look-first"
    fails: bool = False
    wait_s: float = 0.0

    def verify(self, items: Sequence[ProblemTrace]) -> list[list[Verdict]]:
        time.sleep(self.wait_s)
        if self.fails:
            raise OSError("secret.host is down")
        return [[self._verdict(item, step) for step in range(len(item.trace.steps))] for item in items]

    def _verdict(self, item: ProblemTrace, step: int) -> Verdict:
        called = [call.name for at in range(step + 1) for call in item.trace.calls_of(at)]
        if not called or called[-1] != "refund":
            return Verdict(value=None, reason="no refund")
        if "look" in called[:-1]:
            return Verdict(value=1, reason="looked at before")
        return Verdict(value=-1, reason="look at the order first")


class ByName:
    """Scores a call by its tool."""

    name = "by-name"

    def __init__(self, **scores: float | None) -> None:
        self.scores = scores

    def score_traces(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        return [
            StepScores(
                trace_id=item.trace.id,
                scorer=self.name,
                scores=tuple(
                    next((self.scores[call.name] for call in item.trace.calls_of(at)), 1.0)
                    for at in range(len(item.trace.steps))
                ),
                unscored_reason="too long",
                usage=Usage(verifier_tokens=5),
            )
            for item in items
        ]


class Script:
    """A model that says the next of its messages, and notes what it was asked."""

    def __init__(self, *messages: Message) -> None:
        self.messages, self.asked = list(messages), list[tuple[tuple[Message, ...], int]]()

    async def __call__(self, run: tuple[Message, ...], draw: int) -> Message:
        self.asked.append((run, draw))
        return self.messages.pop(0)


def check(reply: Message, *, run: Sequence[Message] = RUN, **settings: Any) -> Any:
    verifiers = settings.pop("verifiers", (LookFirst(),))
    guard = Guard(GuardSettings(**settings), verifiers=verifiers, scorer=ByName(look=0.9, refund=0.4))
    try:
        return asyncio.run(guard.check(run, TOOLS, reply))
    finally:
        guard.close()


def test_each_stage_sees_what_the_one_before_lets_through() -> None:
    looked = (*RUN, GOOD, Message(role="tool", tool_call_id="c-look0", content="W1: shipped"))
    released = check(REFUND, run=looked, threshold=0.3)
    assert released.action == "release"
    assert [(one.stage, one.finding, one.score) for one in released.calls[0].stages] == [
        ("schema", "pass", None),
        ("rule", "pass", None),
        ("score", "pass", 0.4),
    ]
    assert released.usage.verifier_tokens == 5
    assert released.by_stage is None

    low = check(REFUND, run=looked, threshold=0.5)
    assert (low.action, low.by_stage) == ("resample", "score")
    assert low.reason == "the reward model finds it suspicious"
    assert (low.calls[0].stages[-1].score, low.calls[0].stages[-1].threshold) == (0.4, 0.5)

    rule = check(REFUND, threshold=0.5)
    assert (rule.action, rule.reason, rule.by_stage) == ("reject", "look at the order first", "rule")
    assert len(rule.calls[0].stages) == 2

    schema = check(BROKEN, threshold=0.5)
    assert (schema.action, schema.by_stage) == ("resample", "schema")
    assert len(schema.calls[0].stages) == 1


def test_calls_of_a_message_are_released_together_or_not_at_all() -> None:
    both = Message(role="assistant", tool_calls=(*BROKEN.tool_calls, *GOOD.tool_calls))
    decision = check(both)
    assert decision.action == "resample"
    assert [one.action for one in decision.calls] == ["resample", "release"]
    told = rejection_messages(both, decision)
    assert [message.role for message in told] == ["assistant", "tool", "tool"]
    assert "required property" in (told[1].content or "")
    assert "another call" in (told[2].content or "")


def test_a_call_after_another_of_the_same_message_sees_it() -> None:
    both = Message(role="assistant", tool_calls=(*GOOD.tool_calls, *REFUND.tool_calls))
    assert check(both).action == "release"


@pytest.mark.parametrize("verifier", [LookFirst(fails=True), LookFirst(wait_s=0.3)])
def test_a_checker_that_fails_or_is_late_is_open_or_closed_as_set(verifier: LookFirst) -> None:
    closed = check(GOOD, verifiers=(verifier,), timeout_s=0.1)
    assert (closed.action, closed.calls[0].stages[-1].finding) == ("reject", "error")
    assert "could not be checked" in closed.reason
    assert "secret" not in closed.model_dump_json()
    opened = check(GOOD, verifiers=(verifier,), timeout_s=0.1, fail="open")
    assert (opened.action, opened.calls[0].stages[-1].finding) == ("release", "error")


def test_a_call_without_a_score_was_not_checked() -> None:
    guard = Guard(GuardSettings(threshold=0.1), scorer=ByName(look=None))
    decision = asyncio.run(guard.check(RUN, TOOLS, GOOD))
    assert (decision.action, decision.calls[0].stages[-1].reason) == ("reject", "too long")


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(GuardError, match="needs a reward model"):
        Guard(GuardSettings(threshold=0.5))
    with pytest.raises(GuardError, match="no tool calls"):
        check(BYE)


def reply(*said: Message, review: Any = None, **settings: Any) -> tuple[Any, Script]:
    script = Script(*said)
    guard = Guard(GuardSettings(**settings), verifiers=(LookFirst(),))
    return asyncio.run(guarded_reply(guard, script, RUN, TOOLS, review=review)), script


def test_a_broken_call_is_drawn_again_in_the_same_run() -> None:
    found, script = reply(BROKEN, GOOD)
    assert found.message == GOOD
    assert [one.action for one in found.decisions] == ["resample", "release"]
    assert script.asked == [(RUN, 0), (RUN, 1)]
    assert found.added == ()


def test_draws_and_rejections_are_bounded() -> None:
    found, script = reply(*[BROKEN] * 9, resamples=2, rejections=1)
    assert found.message is None
    assert [one.action for one in found.decisions] == ["resample", "resample", "reject", "reject"]
    assert len(script.asked) == 4
    assert found.blocked.startswith("blocked: ")


def test_a_rejected_call_is_told_why_and_the_model_may_mend_it() -> None:
    found, script = reply(REFUND, GOOD)
    assert found.message == GOOD
    assert script.asked[1][0] == (*RUN, *found.added)
    assert found.added[1].content == "Error: this call was not executed: look at the order first"
    assert found.added[1].error


def test_a_person_approves_denies_or_does_not_answer() -> None:
    async def approve(*_: Any) -> Any:
        return Review(approved=True, by="ada"), "1"

    async def deny(*_: Any) -> Any:
        return Review(approved=False, comment="ask the customer", by="ada"), "2"

    async def nobody(*_: Any) -> Any:
        return None, "3"

    found, _ = reply(REFUND, review=approve, on_rule="hold")
    assert found.message == REFUND
    assert found.decisions[0].review.by == "ada"
    found, script = reply(REFUND, BYE, review=deny, on_rule="hold")
    assert found.message == BYE
    assert script.asked[1][0][-1].content == "Error: this call was not executed: ask the customer"
    found, _ = reply(REFUND, review=nobody, on_rule="hold")
    assert found.message is None
    assert found.blocked == "held as number 3 until a person decides: look at the order first"
    found, _ = reply(REFUND, BYE, on_rule="hold")  # there is nobody to ask
    assert [one.action for one in found.decisions] == ["reject"]


def test_a_loop_of_replies_gets_what_is_released_alone() -> None:
    guard, script, executed = Guard(verifiers=(LookFirst(),)), Script(REFUND, GOOD, REFUND, BYE), []

    async def loop() -> tuple[Message, ...]:
        run: tuple[Message, ...] = RUN
        while True:
            found = await guarded_reply(guard, script, run, TOOLS, conversation="one")
            assert found.message is not None
            run += (*found.added, found.message)
            for call in found.message.tool_calls:
                executed.append(call.name)
                run += (Message(role="tool", tool_call_id=call.id, content="W1: shipped"),)
            if not found.message.tool_calls:
                return run

    run = asyncio.run(loop())
    assert executed == ["look", "refund"]
    assert [message.role for message in run[2:]] == [
        *("assistant", "tool", "assistant", "tool", "assistant", "tool", "assistant"),
    ]
    blocked = asyncio.run(guarded_reply(guard, Script(REFUND, REFUND), RUN, TOOLS))
    assert (blocked.message, blocked.blocked) == (None, "blocked: look at the order first")
    guard.close()


@pytest.mark.parametrize(("scores", "share", "threshold"), [(range(1, 30), 0.1, 3), (range(1, 10), 0.1, 1)])
def test_the_threshold_is_the_conformal_quantile(scores: Any, share: float, threshold: float) -> None:
    assert calibrated_threshold([float(score) for score in scores], share) == threshold


def test_the_threshold_blocks_at_most_the_share_of_good_calls() -> None:
    """Over all places that a new score may take among n others, exactly."""
    for n in range(9, 60):
        threshold = calibrated_threshold([float(at) for at in range(n)], 0.1)
        below = sum(place <= threshold for place in range(n + 1))  # a new one before the score of that rank
        assert below / (n + 1) <= 0.1 + 1e-12


def test_too_few_scores_give_no_threshold() -> None:
    with pytest.raises(GuardError, match="needs 19"):
        calibrated_threshold([0.5] * 18, 0.05)
