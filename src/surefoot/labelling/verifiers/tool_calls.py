"""Rules on an agent's run: calls that fit no schema, repeat or break a policy, errors and claims.

A rule says that a step is wrong, or says nothing: to break no rule is no merit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from surefoot.errors import LabelError, SchemaError
from surefoot.messages import call_error
from surefoot.protocols import ProblemTrace, Verdict
from surefoot.records import Message, Problem, ToolCall, Trace
from surefoot.segment import reports_error

ToolRule = Literal["schema", "repeated-call", "ignored-error", "unsupported-claim", "policy"]
"""schema: the tool was offered, and its JSON schema takes the arguments; repeated-call: not the same call
with the same result again; ignored-error: no answer as if a failed call had not failed; unsupported-claim:
identifiers of the answer occur in what was said and observed; policy: the clauses of a
:class:`ToolPolicy`."""

TOOL_RULES: Final[tuple[ToolRule, ...]] = get_args(ToolRule)


class PolicyClause(BaseModel):
    """One rule for the calls of a tool; all that is set must hold. Successful calls alone count as earlier
    ones."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    tool: str
    needs: str | None = None
    """A tool that must have been called before, with success."""
    same: tuple[str, ...] = ()
    """Arguments that the call of ``needs`` must share."""
    shows: dict[str, JsonValue] | str | None = None
    """What the result of ``needs`` must show: fields of the JSON object that it begins with, or a text
    anywhere in it. Prefer fields: a text can be in what a stranger wrote and the tool repeats."""
    argument: str | None = None
    """The argument that the limits below are for; a call without it is not limited."""
    allowed: tuple[JsonValue, ...] | None = None
    minimum: float | None = None
    maximum: float | None = None
    most_calls: int | None = Field(default=None, ge=0)
    """Successful calls of ``tool`` in one run."""
    reason: str = ""
    """What the agent is told; without it, the clause itself."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        limits = (self.allowed, self.minimum, self.maximum) != (None, None, None)
        if limits != (self.argument is not None):
            raise ValueError("'argument' goes with 'allowed', 'minimum' or 'maximum', and they with it")
        if self.needs is None and (self.same or self.shows is not None):
            raise ValueError("'same' and 'shows' speak of the call of 'needs'; give it")
        if self.needs is None and self.argument is None and self.most_calls is None:
            raise ValueError("a clause demands something: give 'needs', 'argument' or 'most_calls'")
        return self


class ToolPolicy(BaseModel):
    """What an agent may do with its tools, in ``Problem.meta["tool_policy"]`` or given to the verifier."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    forbidden: tuple[str, ...] = ()
    """Tools that are never called."""
    clauses: tuple[PolicyClause, ...] = ()
    repeatable: tuple[str, ...] = ()
    """Tools that may be called again with the same arguments, such as one that waits for something."""
    read_only: tuple[str, ...] = ()
    """Tools that change nothing: a call is repeated though others of these lie between."""

    @classmethod
    def of(cls, problem: Problem) -> ToolPolicy:
        """That of a problem; an empty one where it has none.

        Raises ``LabelError`` where ``meta["tool_policy"]`` is something else.
        """
        try:
            return cls.model_validate(problem.meta.get("tool_policy") or {})
        except ValueError as error:
            raise LabelError(f"problem {problem.id}: 'tool_policy' is no policy: {error}") from error

    @classmethod
    def of_file(cls, path: str | Path) -> ToolPolicy:
        """That of a JSON file. Raises ``LabelError`` for a file that cannot be read, or holds something
        else."""
        try:
            return cls.model_validate_json(Path(path).read_bytes())
        except (OSError, ValueError) as error:
            raise LabelError(f"{path}: no policy of tools: {error}") from error


@dataclass(frozen=True, kw_only=True)
class CallResult:
    """A call of a run, with the message that answers it."""

    message: int
    """Index of the assistant's message."""
    place: int
    """Index among that message's calls."""
    call: ToolCall
    result: Message | None
    """``None``: the run has no answer to it, as where it is about to be made."""

    @property
    def succeeded(self) -> bool:
        """Whether there is an answer, and it reports no error."""
        return self.result is not None and not reports_error(self.result)


def call_results(messages: Sequence[Message]) -> Iterator[CallResult]:
    """Every call in order, with the result of the same id among the tool messages after it, else in the same
    place."""
    for number, message in enumerate(messages):
        if not message.tool_calls:
            continue
        following = number + 1
        while following < len(messages) and messages[following].role == "tool":
            following += 1
        results = messages[number + 1 : following]
        by_id = {one.tool_call_id: one for one in results if one.tool_call_id is not None}
        for place, call in enumerate(message.tool_calls):
            in_place = results[place] if place < len(results) else None
            if in_place is not None and in_place.tool_call_id is not None and call.id is not None:
                in_place = None
            result = by_id.get(call.id) if call.id is not None else None
            yield CallResult(message=number, place=place, call=call, result=result or in_place)


def call_arguments(call: ToolCall) -> dict[str, Any] | None:
    """The arguments; ``None`` where they are no JSON object."""
    try:
        parsed = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


@dataclass(frozen=True, kw_only=True)
class ToolCallVerifier:
    """A :class:`surefoot.protocols.StepVerifier` of runs with tools: -1 where a rule is broken, else unknown.

    The policy is ``policy`` and that of the problem together. Rules are conservative, since an alarm without
    a cause costs more than a miss:

    - *repeated-call*: the same tool and arguments as an earlier call, with nothing between them that could
      change the result (only calls of ``read_only`` tools), where the earlier one succeeded and the result is
      the same, or not there yet. After errors, the third such call.
    - *ignored-error*: all calls before the run's last message failed, and that message admits nothing of it.
      English.
    - *unsupported-claim*: an answer has an identifier (a letter, and four digits or more in a row) whose
      digits occur in no message of others, and in no call that succeeded. Numbers are no matter: they can be
      computed.
    """

    rules: tuple[ToolRule, ...] = TOOL_RULES
    policy: ToolPolicy = field(default_factory=ToolPolicy)
    name: str = "tool-calls"

    def __post_init__(self) -> None:
        if unknown := set(self.rules) - set(TOOL_RULES):
            raise LabelError(
                f"no rule is called {', '.join(sorted(unknown))}; choose from {', '.join(TOOL_RULES)}"
            )

    def verify(self, items: Sequence[ProblemTrace]) -> list[list[Verdict]]:
        """One list per item, one verdict per step.

        Raises ``LabelError`` where a problem's ``meta["tool_policy"]`` is no policy.
        """
        return [self._verify(item) for item in items]

    def _verify(self, item: ProblemTrace) -> list[Verdict]:
        trace, of_problem = item.trace, ToolPolicy.of(item.problem)
        policy = ToolPolicy(
            forbidden=self.policy.forbidden + of_problem.forbidden,
            clauses=self.policy.clauses + of_problem.clauses,
            repeatable=self.policy.repeatable + of_problem.repeatable,
            read_only=self.policy.read_only + of_problem.read_only,
        )
        broken = self._broken_by_calls(trace, policy)
        verdicts = []
        for number, step in enumerate(trace.steps):
            reasons: list[str] = []
            message = step.message
            if message is None:
                verdicts.append(Verdict(value=None, reason="a text, no run with tools"))
                continue
            calls = range(len(trace.messages[message].tool_calls)) if step.call is None else [step.call]
            if step.part in ("message", "tool_call"):
                reasons += [reason for place in calls for reason in broken.get((message, place), ())]
            if step.part in ("message", "content") and not trace.messages[message].tool_calls:
                reasons += self._broken_by_text(trace, message, trace.step_text(number))
            if reasons:
                verdicts.append(Verdict(value=-1, reason="; ".join(reasons)))
            else:
                verdicts.append(Verdict(value=None, reason="breaks no rule"))
        return verdicts

    def _broken_by_calls(self, trace: Trace, policy: ToolPolicy) -> dict[tuple[int, int], list[str]]:
        """Reasons by message and place of a call."""
        broken: dict[tuple[int, int], list[str]] = {}
        earlier: list[CallResult] = []
        for one in call_results(trace.messages):
            reasons = broken.setdefault((one.message, one.place), [])
            if "schema" in self.rules and (wrong := _schema_error(trace, one.call)):
                reasons.append(f"schema: {wrong}")
            if "repeated-call" in self.rules and one.call.name not in policy.repeatable:
                reasons += _repeats(one, earlier, trace.messages, policy)
            if "policy" in self.rules:
                reasons += [f"policy: {reason}" for reason in _against(policy, one.call, earlier)]
            earlier.append(one)
        return broken

    def _broken_by_text(self, trace: Trace, message: int, text: str) -> list[str]:
        reasons = []
        if "ignored-error" in self.rules and message == len(trace.messages) - 1:
            reasons += _ignored_error(trace.messages, message)
        if "unsupported-claim" in self.rules:
            reasons += _unsupported(trace.messages[:message], text)
        return reasons


def _schema_error(trace: Trace, call: ToolCall) -> str | None:
    if not trace.tools:  # the record does not say what was offered
        return None
    try:
        return call_error(trace.tools, call)
    except SchemaError:
        return None


def _repeats(
    one: CallResult, earlier: Sequence[CallResult], messages: Sequence[Message], policy: ToolPolicy
) -> list[str]:
    failures = 0
    since = one.message
    for before in reversed(earlier):
        if any(message.role == "user" for message in messages[before.message : since]):
            break
        since = before.message
        if not _same(before.call, one.call):
            if before.call.name in policy.read_only:
                continue
            break
        if before.succeeded:
            known, new = before.result, one.result
            if known is not None and (new is None or new.content == known.content):
                return ["repeated-call: the same call has been made, and nothing has changed since"]
            break
        failures += before.result is not None
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


def _against(policy: ToolPolicy, call: ToolCall, earlier: Sequence[CallResult]) -> Iterator[str]:
    """What of the policy the call breaks."""
    if call.name in policy.forbidden:
        yield f"{call.name} is forbidden"
    arguments = call_arguments(call) or {}
    for clause in policy.clauses:
        if clause.tool == call.name and (wrong := _breaks(clause, arguments, earlier)):
            yield clause.reason or wrong


def _breaks(clause: PolicyClause, arguments: dict[str, Any], earlier: Sequence[CallResult]) -> str | None:
    done = [one for one in earlier if one.succeeded]
    if clause.most_calls is not None:
        made = sum(one.call.name == clause.tool for one in done)
        if made >= clause.most_calls:
            return f"{clause.tool} has been called {made} times, and {clause.most_calls} are allowed"
    if clause.needs is not None and not any(_satisfies(clause, arguments, one) for one in done):
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


def _satisfies(clause: PolicyClause, arguments: dict[str, Any], one: CallResult) -> bool:
    if one.call.name != clause.needs:
        return False
    theirs = call_arguments(one.call) or {}
    if any(theirs.get(name) != arguments.get(name) for name in clause.same):
        return False
    said = (one.result.content or "") if one.result is not None else ""
    if isinstance(clause.shows, dict):
        shown = _leading_object(said)
        return all(name in shown and shown[name] == value for name, value in clause.shows.items())
    return clause.shows is None or clause.shows in said


def _leading_object(text: str) -> dict[str, Any]:
    """The JSON object that a text begins with; what follows it was not said by the tool."""
    try:
        found, _ = json.JSONDecoder().raw_decode(text.lstrip())
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


_ADMITS = re.compile(
    r"\b(?:errors?|fail\w*|unable|can ?not|can't|could|not|no|none|sorry|apolog\w*|unfortunately|problem"
    r"|issue|instead|transfer\w*|denied|reject\w*|declin\w*|missing|unavailable|impossible|tr(?:y|ied)"
    r"|retry|please|however|but)\b|n't\b|\?",
    re.IGNORECASE,
)


def _ignored_error(messages: Sequence[Message], last: int) -> list[str]:
    observed = []
    for message in reversed(messages[:last]):
        if message.role != "tool":
            break
        observed.append(message)
    text = messages[last].content or ""
    if not observed or not all(map(reports_error, observed)) or not text.strip():
        return []
    # in another language nobody here can tell what is admitted
    if not text.isascii() or _ADMITS.search(text):
        return []
    return ["ignored-error: the last call failed, and the answer does not say so"]


_IDENTIFIER = re.compile(r"(?<![\w.-])#?[A-Za-z][A-Za-z_-]*?(\d{4,})[\w-]*", re.ASCII)
_CALLED_ONE = re.compile(
    r"(?:(?<![A-Za-z])(?:id|ids|number|order|reference|ticket|booking|reservation|confirmation|account|invoice"
    r"|transaction|tracking))[\"'#:=\s]{1,4}(?:(?:is|was)[\"'#:\s]{1,4})?(\d{4,})(?![\w.,-]*\d)",
    re.ASCII | re.IGNORECASE,
)
"""A number that the text calls one, such as ``order 12446`` or ``"order_id": 12446``."""
_RUN = re.compile(r"\d{4,}", re.ASCII)


def _unsupported(before: Sequence[Message], text: str) -> list[str]:
    claimed = {
        found[1]: found[0]
        for pattern in (_IDENTIFIER, _CALLED_ONE)
        for found in pattern.finditer(text)
        if not _is_year(found[1])
    }
    if not claimed or any(message.attachments for message in before):
        return []
    known = {
        run
        for message in before
        if message.role != "assistant"
        for run in _RUN.findall(message.content or "")
    }
    known |= {
        run for one in call_results(before) if one.succeeded for run in _RUN.findall(one.call.arguments)
    }
    unknown = [
        identifier for digits, identifier in claimed.items() if not any(digits in run for run in known)
    ]
    if not unknown:
        return []
    named = ", ".join(sorted(unknown)[:3])[:200]
    return [f"unsupported-claim: {named} occurs in nothing that was said or observed"]


def _is_year(digits: str) -> bool:
    return len(digits) == 4 and digits[:2] in ("19", "20")
