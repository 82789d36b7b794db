"""Rules for agent runs: invalid, repeated or forbidden calls, ignored errors and unsupported claims.

A rule can only find a step wrong; a step that breaks no rule is left unlabelled.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any, Final, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from surefoot.errors import LabelError, SchemaError
from surefoot.messages import call_error
from surefoot.protocols import ProblemTrace, Verdict
from surefoot.records import Message, Problem, ToolCall, Trace
from surefoot.segment import reports_error

ToolRule = Literal["schema", "repeated-call", "ignored-error", "unsupported-claim", "policy"]
"""schema: the tool exists and its JSON schema allows the arguments; repeated-call: no call repeats an earlier
one with the same result; ignored-error: no answer ignores a failed call; unsupported-claim: identifiers in
the answer occur in earlier messages; policy: the clauses of a :class:`ToolPolicy`."""

TOOL_RULES: Final[tuple[ToolRule, ...]] = get_args(ToolRule)


class PolicyClause(BaseModel):
    """One rule for the calls of a tool: every field that is set must hold. Only successful earlier calls
    count."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    tool: str
    needs: str | None = None
    """A tool that must have been called successfully before."""
    same: tuple[str, ...] = ()
    """Arguments that the call of ``needs`` must share."""
    shows: dict[str, JsonValue] | str | None = None
    """Required in the result of ``needs``: fields of the JSON object at its start, or a text anywhere in it.
    Prefer fields: a tool may quote untrusted text that contains the text."""
    argument: str | None = None
    """The argument that the limits below apply to; a call without it is not limited."""
    allowed: tuple[JsonValue, ...] | None = None
    minimum: float | None = None
    maximum: float | None = None
    most_calls: int | None = Field(default=None, ge=0)
    """Successful calls of ``tool`` in one run."""
    reason: str = ""
    """Message for the agent; by default the clause itself."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        limits = (self.allowed, self.minimum, self.maximum) != (None, None, None)
        if limits != (self.argument is not None):
            raise ValueError("'argument' goes with 'allowed', 'minimum' or 'maximum', and they with it")
        if self.needs is None and (self.same or self.shows is not None):
            raise ValueError("'same' and 'shows' refer to the call of 'needs'; give it")
        if self.needs is None and self.argument is None and self.most_calls is None:
            raise ValueError("the clause requires nothing: give 'needs', 'argument' or 'most_calls'")
        return self


class ToolPolicy(BaseModel):
    """What an agent may do with its tools, in ``Problem.meta["tool_policy"]`` or given to the verifier."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    forbidden: tuple[str, ...] = ()
    """Tools that must not be called."""
    clauses: tuple[PolicyClause, ...] = ()
    repeatable: tuple[str, ...] = ()
    """Tools that may be called again with the same arguments, such as one that waits for something."""
    read_only: tuple[str, ...] = ()
    """Tools that change nothing: calls of them between two equal calls do not justify the repetition."""

    @classmethod
    def of(cls, problem: Problem) -> ToolPolicy:
        """The policy of a problem, by default an empty one. Raises ``LabelError`` for an invalid one."""
        try:
            return cls.model_validate(problem.meta.get("tool_policy") or {})
        except ValueError as error:
            raise LabelError(f"problem {problem.id}: 'tool_policy' is not a valid policy: {error}") from error

    @classmethod
    def of_file(cls, path: str | Path) -> ToolPolicy:
        """The policy in a JSON file. Raises ``LabelError`` if it cannot be read or is invalid."""
        try:
            return cls.model_validate_json(Path(path).read_bytes())
        except (OSError, ValueError) as error:
            raise LabelError(f"{path}: not a valid tool policy: {error}") from error


@dataclass(frozen=True, kw_only=True)
class CallResult:
    """A call of a run, with the message that answers it."""

    message: int
    """Index of the assistant's message."""
    number: int
    """Index among that message's calls."""
    call: ToolCall
    result: Message | None
    """``None``: the call has not been answered, for example because it is pending."""

    @property
    def succeeded(self) -> bool:
        """Whether the call was answered without an error."""
        return self.result is not None and not reports_error(self.result)


def call_results(messages: Sequence[Message]) -> Iterator[CallResult]:
    """Every call in order, with its result: the tool message after it with the same id or at the same
    index."""
    for index, message in enumerate(messages):
        if not message.tool_calls:
            continue
        results = list(takewhile(lambda reply: reply.role == "tool", messages[index + 1 :]))
        by_id = {reply.tool_call_id: reply for reply in results if reply.tool_call_id is not None}
        for number, call in enumerate(message.tool_calls):
            result = by_id.get(call.id) if call.id is not None else None
            if result is None and number < len(results):
                at_index = results[number]
                result = at_index if None in (at_index.tool_call_id, call.id) else None
            yield CallResult(message=index, number=number, call=call, result=result)


def call_arguments(call: ToolCall) -> dict[str, Any] | None:
    """The arguments; ``None`` if they are not a JSON object."""
    try:
        parsed = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


@dataclass(frozen=True, kw_only=True)
class ToolCallVerifier:
    """A :class:`surefoot.protocols.StepVerifier` for runs with tools: -1 where a rule is broken, else
    unknown.

    The clauses of ``policy`` and of the problem's policy all apply. Rules are conservative, since a false
    alarm costs more than a miss:

    - *repeated-call*: the same tool and arguments as an earlier successful call, with nothing between them
      that could change the result (only calls of ``read_only`` tools), and the same result or none yet. After
      errors, the third such call.
    - *ignored-error*: all calls right before the run's last message failed, and that message does not admit
      it. English only.
    - *unsupported-claim*: an answer has an identifier (a letter, and four or more digits in a row) whose
      digits occur neither in a message by somebody else nor in a successful call. Plain numbers are ignored,
      because they can be computed.
    """

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
            }
        )
        broken = self._broken_by_calls(trace, policy)
        verdicts = []
        for number, step in enumerate(trace.steps):
            reasons: list[str] = []
            message = step.message
            if message is None:
                verdicts.append(Verdict(value=None, reason="a text, not a run with tools"))
                continue
            calls = range(len(trace.messages[message].tool_calls)) if step.call is None else [step.call]
            if step.part in ("message", "tool_call"):
                reasons += [reason for call in calls for reason in broken.get((message, call), ())]
            if step.part in ("message", "content") and not trace.messages[message].tool_calls:
                reasons += self._broken_by_text(trace, message, trace.step_text(number))
            if reasons:
                verdicts.append(Verdict(value=-1, reason="; ".join(reasons)))
            else:
                verdicts.append(Verdict(value=None, reason="breaks no rule"))
        return verdicts

    def _broken_by_calls(self, trace: Trace, policy: ToolPolicy) -> dict[tuple[int, int], list[str]]:
        """Reasons by message and number of a call."""
        broken: dict[tuple[int, int], list[str]] = {}
        earlier: list[CallResult] = []
        for result in call_results(trace.messages):
            reasons = broken.setdefault((result.message, result.number), [])
            if "schema" in self.rules and (wrong := _schema_error(trace, result.call)):
                reasons.append(f"schema: {wrong}")
            if "repeated-call" in self.rules and result.call.name not in policy.repeatable:
                reasons += _repetition(result, earlier, trace.messages, policy)
            if "policy" in self.rules:
                reasons += [f"policy: {reason}" for reason in _violations(policy, result.call, earlier)]
            earlier.append(result)
        return broken

    def _broken_by_text(self, trace: Trace, message: int, text: str) -> list[str]:
        reasons = []
        if "ignored-error" in self.rules and message == len(trace.messages) - 1:
            reasons += _ignored_error(trace.messages, message)
        if "unsupported-claim" in self.rules:
            reasons += _unsupported(trace.messages[:message], text)
        return reasons


def _schema_error(trace: Trace, call: ToolCall) -> str | None:
    if not trace.tools:  # the record does not list the tools
        return None
    try:
        return call_error(trace.tools, call)
    except SchemaError:
        return None


def _repetition(
    result: CallResult, earlier: Sequence[CallResult], messages: Sequence[Message], policy: ToolPolicy
) -> list[str]:
    failures = 0
    since = result.message
    for previous in reversed(earlier):
        if any(message.role == "user" for message in messages[previous.message : since]):
            break
        since = previous.message
        if not _same(previous.call, result.call):
            if previous.call.name in policy.read_only:
                continue
            break
        if previous.succeeded:
            first, second = previous.result, result.result
            if first is not None and (second is None or second.content == first.content):
                return ["repeated-call: the same call has been made, and nothing has changed since"]
            break
        failures += previous.result is not None
        if failures == 2:
            return ["repeated-call: the same call has failed twice"]
    return []


def _same(left: ToolCall, right: ToolCall) -> bool:
    if left.name != right.name:
        return False
    if left.arguments == right.arguments:
        return True
    parsed = call_arguments(left)
    return parsed is not None and parsed == call_arguments(right)


def _violations(policy: ToolPolicy, call: ToolCall, earlier: Sequence[CallResult]) -> Iterator[str]:
    if call.name in policy.forbidden:
        yield f"{call.name} is forbidden"
    arguments = call_arguments(call) or {}
    for clause in policy.clauses:
        if clause.tool == call.name and (wrong := _breaks(clause, arguments, earlier)):
            yield clause.reason or wrong


def _breaks(clause: PolicyClause, arguments: dict[str, Any], earlier: Sequence[CallResult]) -> str | None:
    successful = [result for result in earlier if result.succeeded]
    if clause.most_calls is not None:
        count = sum(result.call.name == clause.tool for result in successful)
        if count >= clause.most_calls:
            return f"{clause.tool} has been called {count} times, and {clause.most_calls} are allowed"
    if clause.needs is not None and not any(_satisfies(clause, arguments, result) for result in successful):
        same = f" with the same {', '.join(clause.same)}" if clause.same else ""
        shows = "" if clause.shows is None else f" showing {json.dumps(clause.shows, ensure_ascii=False)}"
        return f"{clause.tool} needs an earlier {clause.needs}{same}{shows}"
    if clause.argument is None or clause.argument not in arguments:
        return None
    value = arguments[clause.argument]
    if clause.allowed is not None and value not in clause.allowed:
        return f"{clause.argument} is {str(value)[:100]!r}, which is not allowed"
    if isinstance(value, int | float) and not isinstance(value, bool):
        if clause.minimum is not None and value < clause.minimum:
            return f"{clause.argument} is {value}, below {clause.minimum:g}"
        if clause.maximum is not None and value > clause.maximum:
            return f"{clause.argument} is {value}, above {clause.maximum:g}"
    return None


def _satisfies(clause: PolicyClause, arguments: dict[str, Any], result: CallResult) -> bool:
    if result.call.name != clause.needs:
        return False
    earlier = call_arguments(result.call) or {}
    if any(earlier.get(name) != arguments.get(name) for name in clause.same):
        return False
    content = (result.result.content or "") if result.result is not None else ""
    if isinstance(clause.shows, dict):
        fields = _leading_object(content)
        return all(name in fields and fields[name] == value for name, value in clause.shows.items())
    return clause.shows is None or clause.shows in content


def _leading_object(text: str) -> dict[str, Any]:
    """The JSON object at the start of a text; the text after it may not be the tool's own."""
    try:
        value, _ = json.JSONDecoder().raw_decode(text.lstrip())
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


_ADMITS = re.compile(
    r"\b(?:errors?|fail\w*|unable|can ?not|can't|could|not|no|none|sorry|apolog\w*|unfortunately|problem"
    r"|issue|instead|transfer\w*|denied|reject\w*|declin\w*|missing|unavailable|impossible|tr(?:y|ied)"
    r"|retry|please|however|but)\b|n't\b|\?",
    re.IGNORECASE,
)


def _ignored_error(messages: Sequence[Message], last: int) -> list[str]:
    observed = list(takewhile(lambda message: message.role == "tool", reversed(messages[:last])))
    text = messages[last].content or ""
    if not observed or not all(map(reports_error, observed)) or not text.strip():
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
