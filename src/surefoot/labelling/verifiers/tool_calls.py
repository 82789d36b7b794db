"""Rules for agent runs: invalid, repeated or forbidden calls, arguments from nowhere, ignored errors and
unsupported claims.

A rule can only find a step wrong; a step that breaks no rule is left unlabelled. Where a rule was right in
less than 70 % of the cases on some corpus, it only gives advice: a reason without a label.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby, takewhile
from typing import Final, Literal, get_args

from surefoot.errors import LabelError, SchemaError
from surefoot.labelling.verifiers.gold_calls import only_reads
from surefoot.labelling.verifiers.provenance import Claim, Provenance, admits, asserts, claims, stems_of_name
from surefoot.labelling.verifiers.provenance import stem as stem_of
from surefoot.labelling.verifiers.tool_policy import (
    CallHistory,
    CallResult,
    ReadLimit,
    RuleOutcome,
    ToolPolicy,
    call_results,
    json_text,
    judge_call,
    overall,
    runs_commands,
)
from surefoot.messages import call_arguments, call_error
from surefoot.protocols import RUN_CHANNELS, ProblemTrace, Verdict
from surefoot.records import Message, Tool, ToolCall, Trace

ToolRule = Literal[
    "schema", "repeated-call", "unsupported-argument", "ignored-error", "claim-without-call",
    "unsupported-claim", "call-in-text", "policy",
]  # fmt: skip
"""schema: the tool exists and its JSON schema allows the arguments; repeated-call: no call repeats an earlier
one with the same result; unsupported-argument: ids, amounts, dates and paths of a call come from somewhere;
ignored-error: no answer ignores a failed call; claim-without-call: what the answer says was done, a call did;
unsupported-claim: identifiers in the answer occur in earlier messages; call-in-text: no call is written as
text, which calls nothing; policy: the rules of a :class:`ToolPolicy`."""

TOOL_RULES: Final[tuple[ToolRule, ...]] = get_args(ToolRule)
_TURN, _LAST_TURN = 40, 400
"""Messages before an answer, and before the last one, in which a failed call is looked for."""
_REPAIR: Final = 50
"""Calls among which one can repair a call that its tool refused."""
_UNRELIABLE: Final = ("schema", "repeated-call", "unsupported-argument")
ADVICE: Final = "advice: "
"""Beginning of the reason of a verdict without a value, if a rule speaks that is unreliable there."""


@dataclass(frozen=True, kw_only=True)
class ToolCallVerifier:
    """A :class:`surefoot.protocols.StepVerifier` for runs with tools: -1 where a rule is broken, else
    unknown.

    The rules of ``policy`` and of the problem's policy all apply. Rules are conservative, since a false
    alarm costs more than a miss:

    - *schema*: advice if the tool answered all the same, or a later call repaired it.
    - *repeated-call*: the same tool and arguments as an earlier successful call, with nothing between them
      that could change the result (only calls of tools that read, by their name or ``read_only``), and the
      same result or none yet. After errors, the third such call.
    - *unsupported-argument*: an id, an amount, a date, or the path of a deletion occurs in no text of a
      person, tool or schema, and follows from no two numbers there. It is advice unless it looks like a
      confusion (:meth:`Provenance.unknown`). Calls that fail have been answered.
    - *ignored-error*: since the user's last message a call that changes something failed, no later one
      repaired it, and the answer neither admits it nor repeats words of the error. If other changes
      succeeded, the answer must claim what the failed call was for. English only, as the next.
    - *claim-without-call*: an answer says that something was done for which the tools have a name ("I have
      sent the statement", ``send_statement``), and no such call was made, or every such call failed.
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
        trace, policy = item.trace, self.policy + ToolPolicy.of(item.problem)
        results = list(call_results(trace.messages))
        judged = self._outcomes(trace.messages, trace.tools, policy, results)
        by_call: dict[tuple[int, int], list[RuleOutcome]] = {}
        for index, (result, outcomes) in enumerate(zip(results, judged, strict=True)):
            if outcomes and outcomes[0].reason.startswith("schema"):
                unknown = all(tool.name != result.call.name for tool in trace.tools)
                next_calls = results[index + 1 : index + 1 + _REPAIR]
                fixed = any(later.succeeded if unknown else _repairs(result, later) for later in next_calls)
                outcomes[0] = _outcome(outcomes[0].reason, advice=result.succeeded or fixed)
            by_call[result.message, result.number] = outcomes
        if "unsupported-argument" in self.rules:
            for result, unsupported in _unsupported_arguments(trace, results):
                by_call[result.message, result.number].append(unsupported)
        verdicts = []
        for number, step in enumerate(trace.steps):
            outcomes = []
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
            advice = ADVICE if outcome == "undecidable" and reason.startswith(_UNRELIABLE) else ""
            verdicts.append(Verdict(value=value, reason=advice + reason or "breaks no rule"))
        return verdicts

    def check_calls(self, trace: Trace, results: Sequence[CallResult]) -> Iterator[list[RuleOutcome]]:
        """What the rules say of each of the ``results`` of a run. The policy is the verifier's alone."""
        return self._outcomes(trace.messages, trace.tools, self.policy, results)

    def _outcomes(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        policy: ToolPolicy,
        results: Sequence[CallResult],
    ) -> Iterator[list[RuleOutcome]]:
        """What the rules say of each call."""
        judge = CallJudge(self.rules, policy)
        user = [message.content or "" for message in messages if message.role == "user"]
        for _, of_message in groupby(results, lambda result: result.message):
            yield from judge.judge(list(of_message), tools, user)

    def _broken_by_text(self, trace: Trace, message: int, text: str) -> list[RuleOutcome]:
        reasons = []
        if "ignored-error" in self.rules:
            most = _LAST_TURN if message == len(trace.messages) - 1 else _TURN
            reasons += _ignored_error(trace.messages[:message], text, most)
        if trace.tools or any(row.tool_calls for row in trace.messages):
            if "claim-without-call" in self.rules and not reasons:
                reasons += _claim_without_call(trace, message, text)
            if "unsupported-claim" in self.rules:
                reasons += _unsupported(trace.messages[:message], text)
            if "call-in-text" in self.rules:
                reasons += _call_in_text(trace, message, text)
        return list(map(_outcome, reasons))


def _outcome(reason: str, *, advice: bool = False) -> RuleOutcome:
    return RuleOutcome(outcome="undecidable" if advice else "violated", reason=reason)


_REPEATABLE = re.compile(
    r"(?:^|_)(?:scroll|sleep|swipe|wait|zoom|(?:next|previous)_page|go_(?:back|forward))(?:_|$)",
    re.IGNORECASE,
)
"""Tools that are called again for the next part of a page or for a change that takes time."""
_UNFINISHED = re.compile(
    r"\b(?:pending|processing|in[ _-]?progress|running|queued|waiting|loading|starting|building|not ready)\b",
    re.IGNORECASE,
)


class CallJudge:
    """Applies rules to a run message by message: the work for a call does not grow with the run,
    except where a rule of the policy reads the run."""

    def __init__(
        self, rules: Sequence[ToolRule], policy: ToolPolicy, *, base: CallJudge | None = None
    ) -> None:
        self._rules, self._policy = rules, policy
        self._history: CallHistory = CallHistory(base=base._history if base is not None else None)
        self._repeats: _Repeats = _Repeats(policy, base._repeats if base is not None else None)

    def fork(self) -> CallJudge:
        """A copy that continues from here; this judge stays as it is."""
        return CallJudge(self._rules, self._policy, base=self)

    def add(self, results: Sequence[CallResult]) -> None:
        """Add calls that are not judged."""
        for result in results:
            if "repeated-call" in self._rules:
                self._repeats.add(result)
            self._history.add(result)

    def judge(
        self, results: Sequence[CallResult], tools: Sequence[Tool], user: Sequence[str]
    ) -> Iterator[list[RuleOutcome]]:
        """What the rules say of each call of the next message, after which the calls are added.

        A message is judged before it has results: its earlier calls count as attempts without one. ``user``
        has the texts of the user's messages.
        """
        earlier, limit = CallHistory(base=self._history), ReadLimit()
        for result in results:
            call, outcomes = result.call, list[RuleOutcome]()
            if "schema" in self._rules and (wrong := _schema_error(tools, call)):
                outcomes.append(_outcome(f"schema: {wrong}"))
            if "repeated-call" in self._rules and (repeated := self._repeats.add(result)):
                executed = result.result is not None
                outcomes.append(_outcome(repeated, advice=executed and runs_commands(call)))
            if "policy" in self._rules:
                outcomes += judge_call(self._policy, call, earlier, user[: result.turn], limit)
            yield outcomes
            earlier.add(replace(result, result=None))
        for result in results:
            self._history.add(result)


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

    def __init__(self, policy: ToolPolicy, base: _Repeats | None = None) -> None:
        self._policy, self._base = policy, base
        self._equal: dict[str, list[tuple[int, CallResult]]] = {}
        self._changes: list[tuple[int, str]] = base._changes if base is not None else []
        """Positions and texts of the last call that may change something, and before it of the last such call
        that is unequal to it."""
        self._count: int = base._count if base is not None else 0

    def add(self, result: CallResult) -> str | None:
        """Why a call repeats an earlier one."""
        text, reason = call_text(result.call), None
        if result.call.name not in self._policy.repeatable and not _REPEATABLE.search(result.call.name):
            reason = self._repeated(text, result)
        self._equal.setdefault(text, []).append((self._count, result))
        if result.call.name not in self._policy.read_only and not only_reads(result.call.name):
            unequal = [change for change in self._changes if change[1] != text]
            self._changes = [*unequal[-1:], (self._count, text)]
        self._count += 1
        return reason

    def _newest(self, text: str) -> Iterator[tuple[int, CallResult]]:
        yield from reversed(self._equal.get(text, ()))
        if self._base is not None:
            yield from self._base._newest(text)

    def _repeated(self, text: str, result: CallResult) -> str | None:
        barrier = max((position for position, other in self._changes if other != text), default=-1)
        for failures, (position, previous) in enumerate(self._newest(text), 1):
            if position < barrier or previous.turn != result.turn:
                return None
            if previous.result is None:
                return "repeated-call: the same call has been made, and is not answered yet"
            if previous.succeeded:
                if result.result is not None and result.result.content != previous.result.content:
                    return None
                if only_reads(result.call.name) and _is_unfinished(previous.result.content or ""):
                    return None  # polling
                return "repeated-call: the same call has been made, and nothing has changed since"
            if failures == 2:
                return "repeated-call: the same call has failed twice"
        return None


def _is_unfinished(content: str) -> bool:
    """Whether a result says that its work is still running. Of a JSON object only the short fields count: a
    text in it may quote anybody."""
    try:
        record = json.loads(content)
    except (ValueError, RecursionError):
        return _UNFINISHED.search(content) is not None
    values = record.values() if isinstance(record, dict) else ()
    return any(isinstance(value, str) and _UNFINISHED.fullmatch(value.strip()) for value in values)


def call_text(call: ToolCall) -> str:
    """A text that is equal for calls that are equal as JSON, whose numbers 1 and 1.0 are equal."""
    parsed = call_arguments(call)
    return f"{call.name} {call.arguments if parsed is None else json_text(parsed)}"


def _unsupported_arguments(
    trace: Trace, results: Sequence[CallResult]
) -> Iterator[tuple[CallResult, RuleOutcome]]:
    """Calls with arguments that nothing before them shows. A run that does not show the user's messages,
    or has pictures, is left out."""
    provenance, replied = Provenance(), 0
    for tool in trace.tools:
        provenance.add(f"{tool.description or ''} {tool.parameters or ''}")
    by_message: dict[int, list[CallResult]] = {}
    if all(runs_commands(result.call) for result in results):
        return
    for result in results:
        by_message.setdefault(result.message, []).append(result)
    for number, message in enumerate(trace.messages):
        if message.attachments or (message.role == "assistant" and not number):
            return
        if message.role != "assistant":
            provenance.add(message.content or "", "tool" if message.role == "tool" else "person")
        if message.role == "user":  # who has read the agent's earlier messages
            for earlier in trace.messages[replied:number]:
                if earlier.role == "assistant":
                    provenance.add(earlier.content or "", "person")
            replied = number
        for result in by_message.get(number, ()):
            failed = result.result is not None and not result.succeeded
            if not failed and not runs_commands(result.call):
                unknown = list(provenance.unknown(result.call.name, call_arguments(result.call) or {}))
                faults = [what for what, is_fault in unknown if is_fault]
                if unknown:
                    names = ", ".join((faults or [what for what, _ in unknown])[:3])
                    reason = f"unsupported-argument: {names} occurs in no earlier message"
                    yield result, _outcome(reason, advice=not faults)
            if result.succeeded and not only_reads(result.call.name):
                provenance.add(result.call.arguments)


def _ignored_error(earlier_messages: Sequence[Message], text: str, most: int) -> list[str]:
    """What an answer ignores of the last ``most`` messages."""
    latest = earlier_messages[-most:]
    turn = list(takewhile(lambda message: message.role != "user", reversed(latest)))[::-1]
    of_turn = [result for result in call_results(turn) if result.result is not None]
    if not of_turn or any(runs_commands(result.call) for result in of_turn):
        return []
    failed = [
        result
        for number, result in enumerate(of_turn)
        if not result.succeeded and not any(map(partial(_repairs, result), of_turn[number + 1 :]))
    ]
    changed = [result for result in of_turn if result.succeeded and not only_reads(result.call.name)]
    if len(failed) < len(of_turn):
        failed = [result for result in failed if not only_reads(result.call.name)]
    if not failed or not asserts(text):
        return []
    errors = [result.result.content or "" for result in failed if result.result]
    words = " ".join(message.content or "" for message in earlier_messages if message.role != "tool")
    if admits(text, errors, words + " ".join(str(result.call) for result in of_turn)):
        return []
    for result in reversed(failed):
        if not changed or any(_is_about(claim, result, changed) for claim in claims(text)):
            return [f"ignored-error: {result.call.name} failed, and the answer does not say so"]
    return []


def _repairs(failed: CallResult, later: CallResult) -> bool:
    """Whether a later call succeeds at what a failed one was for: with its tool, or with a value of it."""
    if not later.succeeded:
        return False
    same_kind = only_reads(failed.call.name) or not only_reads(later.call.name)
    same_values = same_kind and not _values(failed.call).isdisjoint(_values(later.call))
    return later.call.name == failed.call.name or same_values


def _values(call: ToolCall) -> set[str]:
    """Texts of a call's arguments that tell it from others."""
    leaves = (json_text(value) for value in (call_arguments(call) or {}).values())
    return {leaf.lower().strip('"') for leaf in leaves if len(leaf) > 3}


def _is_about(claim: Claim, failed: CallResult, changed: Sequence[CallResult]) -> bool:
    """Whether a claim is of a failed call, and not of one that succeeded."""
    other_stems = {stem for result in changed for stem in stems_of_name(result.call.name)}
    values = _values(failed.call).difference(*(_values(result.call) for result in changed))
    words = set(stems_of_name(failed.call.name)) - other_stems
    return bool(words & claim.stems) or any(value in claim.sentence for value in values)


def _claim_without_call(trace: Trace, message: int, text: str) -> list[str]:
    claimed = [claim for claim in claims(text) if not claim.past]
    calls = list(call_results(trace.messages[:message])) if claimed else []
    successful = [result for result in calls if result.result is None or result.succeeded]
    if not claimed or any(
        runs_commands(result.call) or _INTERFACE.search(result.call.name) for result in successful
    ):
        return []  # commands and clicks can do anything
    names = {tool.name for tool in trace.tools} | {result.call.name for result in calls}
    tools = {name: stems_of_name(name) for name in sorted(names) if not only_reads(name)}
    done_stems = {stem for result in successful for stem in tools.get(result.call.name, ())}
    texts = [row.content or "" for row in trace.messages[:message] if row.role != "assistant"]
    texts += [result.call.arguments for result in successful]
    shown_stems = {stem_of(word) for text in texts for word in _WORDS.findall(text)}
    for claim in claimed:
        of_verb = [name for name, stems in tools.items() if claim.stem in stems[:1]]
        of_object = [name for name, stems in tools.items() if claim.by_agent and claim.stems & set(stems[1:])]
        by_other = claim.stem in shown_stems if not claim.by_agent else done_stems and not of_verb
        if (
            claim.stem in done_stems
            or by_other
            or any(result.call.name in of_verb + of_object for result in successful)
        ):
            continue
        for name in of_verb or of_object:
            return [f"claim-without-call: “{claim.sentence[:80]}”, but no call of {name} succeeded before"]
    return []


_INTERFACE = re.compile(
    r"click|type|press|fill|submit|select|navigate|execute|run_|computer|browser", re.IGNORECASE
)
"""Tools of which one call can be a part of any action."""
_WORDS = re.compile(r"[^\W\d_]+")
_IDENTIFIER = re.compile(
    r"(?<![\w.-])(?!(?:ISO|RFC|IEEE|CVE|PEP)\b)#?[A-Za-z][A-Za-z_-]*?(\d{4,})[\w-]*", re.ASCII
)
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
