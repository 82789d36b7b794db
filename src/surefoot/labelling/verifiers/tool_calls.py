"""Rules for agent runs: invalid, repeated or forbidden calls, ignored errors and unsupported claims.

A rule can only find a step wrong; a step that breaks no rule is left unlabelled.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Final, Literal, get_args

from surefoot.errors import LabelError, SchemaError
from surefoot.failures import result_failed
from surefoot.labelling.verifiers.tool_policy import (
    CallResult,
    ReadLimit,
    RuleOutcome,
    ToolPolicy,
    call_results,
    json_text,
    judge_call,
    overall,
)
from surefoot.messages import call_arguments, call_error
from surefoot.protocols import RUN_CHANNELS, ProblemTrace, Verdict
from surefoot.records import Message, Tool, ToolCall, Trace

ToolRule = Literal["schema", "repeated-call", "ignored-error", "unsupported-claim", "call-in-text", "policy"]
"""schema: the tool exists and its JSON schema allows the arguments; repeated-call: no call repeats an earlier
one with the same result; ignored-error: no answer ignores a failed call; unsupported-claim: identifiers in
the answer occur in earlier messages; call-in-text: no call is written as text, which calls nothing; policy:
the rules of a :class:`ToolPolicy`."""

TOOL_RULES: Final[tuple[ToolRule, ...]] = get_args(ToolRule)


@dataclass(frozen=True, kw_only=True)
class ToolCallVerifier:
    """A :class:`surefoot.protocols.StepVerifier` for runs with tools: -1 where a rule is broken, else
    unknown.

    The rules of ``policy`` and of the problem's policy all apply. Rules are conservative, since a false
    alarm costs more than a miss:

    - *repeated-call*: the same tool and arguments as an earlier successful call, with nothing between them
      that could change the result (only calls of ``read_only`` tools), and the same result or none yet. After
      errors, the third such call.
    - *ignored-error*: all calls right before the run's last message failed, and that message does not admit
      it. English only.
    - *unsupported-claim*: an answer in a run with tools has an identifier (a letter, and four or more digits
      in a row) whose digits occur neither in a message of another role nor in a successful call. Plain
      numbers are ignored, because they can be computed. Agents without tools may report observations in their
      own messages, as in Who&When.
    - *call-in-text*: a message of a run with tools contains the markup of a call or of a result
      (``<tool_call>``), but no call, and no tool answers it.
    """

    reads = RUN_CHANNELS
    rules: tuple[ToolRule, ...] = TOOL_RULES
    policy: ToolPolicy = field(default_factory=ToolPolicy)
    name: str = "tool-calls"

    def __post_init__(self) -> None:
        if unknown := set(self.rules) - set(TOOL_RULES):
            raise LabelError(
                f"unknown rule {', '.join(sorted(unknown))}; choose from {', '.join(TOOL_RULES)}"
            )

    def verify(self, items: Sequence[ProblemTrace]) -> list[list[Verdict]]:
        """One list per item, one verdict per step.

        Raises ``LabelError`` for an invalid ``meta["tool_policy"]``.
        """
        return [self._verify(item) for item in items]

    def _verify(self, item: ProblemTrace) -> list[Verdict]:
        trace, problem_policy = item.trace, ToolPolicy.of(item.problem)
        policy = ToolPolicy(
            **{
                name: getattr(self.policy, name) + getattr(problem_policy, name)
                for name in ToolPolicy.model_fields
                if name != "tools"
            }
        )
        results = list(call_results(trace.messages))
        judged = zip(results, self._outcomes(trace.messages, trace.tools, policy, results, 0), strict=True)
        by_call = {(result.message, result.number): outcomes for result, outcomes in judged}
        verdicts = []
        for number, step in enumerate(trace.steps):
            outcomes: list[RuleOutcome] = []
            message = step.message
            if message is None:
                verdicts.append(Verdict(value=None, reason="a text, not a run with tools"))
                continue
            calls = range(len(trace.messages[message].tool_calls)) if step.call is None else [step.call]
            if step.part in ("message", "tool_call"):
                outcomes += [outcome for call in calls for outcome in by_call.get((message, call), ())]
            if step.part in ("message", "content") and not trace.messages[message].tool_calls:
                outcomes += self._broken_by_text(trace, message, trace.step_text(number))
            outcome, reason = overall(outcomes)
            value: Literal[-1] | None = -1 if outcome == "violated" else None
            verdicts.append(Verdict(value=value, reason=reason or "breaks no rule"))
        return verdicts

    def check_calls(
        self, messages: Sequence[Message], tools: Sequence[Tool], results: Sequence[CallResult], new: int
    ) -> list[list[RuleOutcome]]:
        """What the rules say of the last ``new`` calls of ``results``, which may have calls that ``messages``
        do not show. The policy is the verifier's alone."""
        return list(self._outcomes(messages, tools, self.policy, results, len(results) - new))

    def _outcomes(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        policy: ToolPolicy,
        results: Sequence[CallResult],
        begin: int,
    ) -> Iterator[list[RuleOutcome]]:
        """What the rules say of each call from number ``begin`` on."""
        repeats, limit = _Repeats(policy), ReadLimit()
        user = [message.content or "" for message in messages if message.role == "user"]
        earlier: list[CallResult] = []
        unanswered = 0
        """Calls of the current message: it is judged before it has results."""
        for number, result in enumerate(results):
            if number and results[number - 1].message != result.message:
                earlier[number - unanswered :] = results[number - unanswered : number]
                unanswered, limit = 0, ReadLimit()
            repeated = repeats.add(result) if "repeated-call" in self.rules else None
            if number >= begin:
                reasons = [repeated] if repeated else []
                if "schema" in self.rules and (wrong := _schema_error(tools, result.call)):
                    reasons.insert(0, f"schema: {wrong}")
                if "policy" in self.rules and policy.forbids(result.call.name):
                    reasons.append(f"policy: {result.call.name} is forbidden")
                outcomes = [RuleOutcome(outcome="violated", reason=reason) for reason in reasons]
                if "policy" in self.rules:
                    outcomes += judge_call(policy, result.call, earlier, user[: result.turn], limit)
                yield outcomes
            earlier.append(replace(result, result=None))
            unanswered += 1

    def _broken_by_text(self, trace: Trace, message: int, text: str) -> list[RuleOutcome]:
        reasons = []
        if "ignored-error" in self.rules and message == len(trace.messages) - 1:
            reasons += _ignored_error(trace.messages, message)
        if trace.tools or any(row.tool_calls for row in trace.messages):
            if "unsupported-claim" in self.rules:
                reasons += _unsupported(trace.messages[:message], text)
            if "call-in-text" in self.rules:
                reasons += _call_in_text(trace, message, text)
        return [RuleOutcome(outcome="violated", reason=reason) for reason in reasons]


_CALL_MARKUP = re.compile(
    r"<\|?(?:tool_calls?|tool_response|function_calls?)\b[^>]*>|<function=|\[TOOL_CALLS\]"
)


def _call_in_text(trace: Trace, message: int, text: str) -> list[str]:
    following = trace.messages[message + 1 : message + 2]
    answered = bool(following) and following[0].role == "tool"
    match = _CALL_MARKUP.search(text)
    if match is None or answered:
        return []
    return [f"call-in-text: {match.group()} is written as text, so no tool was called"]


def _schema_error(tools: Sequence[Tool], call: ToolCall) -> str | None:
    if not tools:  # the record does not list the tools
        return None
    try:
        return call_error(tools, call)
    except SchemaError:
        return None


class _Repeats:
    """Equal calls with nothing between them that could change the result, each found in constant time."""

    def __init__(self, policy: ToolPolicy) -> None:
        self._policy = policy
        self._equal: dict[str, list[tuple[int, CallResult]]] = {}
        self._changes: list[tuple[int, str]] = []
        """Positions and texts of the last call that may change something, and before it of the last such call
        that is unequal to it."""
        self._count = 0

    def add(self, result: CallResult) -> str | None:
        """Why a call repeats an earlier one."""
        text, reason = call_text(result.call), None
        if result.call.name not in self._policy.repeatable:
            reason = self._repeated(text, result)
        self._equal.setdefault(text, []).append((self._count, result))
        if result.call.name not in self._policy.read_only:
            unequal = [change for change in self._changes if change[1] != text]
            self._changes = [*unequal[-1:], (self._count, text)]
        self._count += 1
        return reason

    def _repeated(self, text: str, result: CallResult) -> str | None:
        barrier = max((position for position, other in self._changes if other != text), default=-1)
        for failures, (position, previous) in enumerate(reversed(self._equal.get(text, [])), 1):
            if position < barrier or previous.turn != result.turn:
                return None
            if previous.result is None:
                return "repeated-call: the same call has been made, and is not answered yet"
            if previous.succeeded:
                if result.result is not None and result.result.content != previous.result.content:
                    return None
                return "repeated-call: the same call has been made, and nothing has changed since"
            if failures == 2:
                return "repeated-call: the same call has failed twice"
        return None


def call_text(call: ToolCall) -> str:
    """A text that is equal for calls that are equal as JSON, whose numbers 1 and 1.0 are equal."""
    parsed = call_arguments(call)
    return f"{call.name} {call.arguments if parsed is None else json_text(parsed)}"


_ADMITS = re.compile(
    r"\b(?:errors?|fail\w*|unable|can ?not|can't|could|not|no|none|sorry|apolog\w*|unfortunately|problem"
    r"|issue|instead|transfer\w*|denied|reject\w*|declin\w*|missing|unavailable|impossible|tr(?:y|ied)"
    r"|retry|please|however|but)\b|n't\b|\?",
    re.IGNORECASE,
)


def _ignored_error(messages: Sequence[Message], last: int) -> list[str]:
    observed = list(takewhile(lambda message: message.role == "tool", reversed(messages[:last])))
    text = messages[last].content or ""
    if not observed or not all(map(result_failed, observed)) or not text.strip():
        return []
    # the words below are English
    if not text.isascii() or _ADMITS.search(text):
        return []
    return ["ignored-error: the last call failed, and the answer does not say so"]


_IDENTIFIER = re.compile(r"(?<![\w.-])#?[A-Za-z][A-Za-z_-]*?(\d{4,})[\w-]*", re.ASCII)
_NAMED_NUMBER = re.compile(
    r"(?:(?<![A-Za-z])(?:id|ids|number|order|reference|ticket|booking|reservation|confirmation|account|invoice"
    r"|transaction|tracking))[\"'#:=\s]{1,4}(?:(?:is|was)[\"'#:\s]{1,4})?(\d{4,})(?![\w.,-]*\d)",
    re.ASCII | re.IGNORECASE,
)
"""A number that the text calls an identifier, such as ``order 12446`` or ``"order_id": 12446``."""
_DIGITS = re.compile(r"\d{4,}", re.ASCII)


def _unsupported(before: Sequence[Message], text: str) -> list[str]:
    claimed = {
        match[1]: match[0]
        for pattern in (_IDENTIFIER, _NAMED_NUMBER)
        for match in pattern.finditer(text)
        if not (len(match[1]) == 4 and match[1][:2] in ("19", "20"))  # a year
    }
    if not claimed or any(message.attachments for message in before):
        return []
    texts = [message.content or "" for message in before if message.role != "assistant"]
    texts += [result.call.arguments for result in call_results(before) if result.succeeded]
    numbers = {number for text in texts for number in _DIGITS.findall(text)}
    unsupported = sorted(
        identifier
        for digits, identifier in claimed.items()
        if not any(digits in number for number in numbers)
    )
    if not unsupported:
        return []
    names = ", ".join(unsupported[:3])[:200]
    return [f"unsupported-claim: {names} occurs in no earlier message or successful call"]
