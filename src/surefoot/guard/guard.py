"""The guard: schema, then rules, then a reward model; what each says of every call of a message."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from surefoot.errors import GuardError
from surefoot.guard.conversations import MAX_REMEMBERED, CallMemory, Conversations, conversation_key
from surefoot.guard.records import (
    Action,
    CallVerdict,
    Finding,
    GuardDecision,
    GuardSettings,
    Protocol,
    Stage,
    StageVerdict,
)
from surefoot.guard.view import call_steps, monitor_view
from surefoot.labelling.verifiers.tool_calls import ToolCallVerifier
from surefoot.labelling.verifiers.tool_policy import CallResult, Outcome, overall
from surefoot.messages import call_error, canonical_arguments, normal_name
from surefoot.protocols import ProblemTrace, StepScorer, StepVerifier, verify_each
from surefoot.records import Message, Problem, Tool, ToolCall, Trace, Usage
from surefoot.scores import checked_scores
from surefoot.segment import segment_trace

_LOG = logging.getLogger("surefoot.guard")
_STRENGTH: Final[tuple[Action, ...]] = ("release", "hold", "defer", "resample", "reject")
"""Of several calls the action furthest to the right counts: a rejected message is not shown to a person."""
_ON_SCORE: Final[dict[Protocol, Action]] = {
    "trusted-monitoring": "reject",
    "defer-to-trusted": "defer",
    "defer-to-resample": "resample",
    "hold": "hold",
}
_WORKERS: Final = 8
_UNUSED: Final = 10_000
"""Decisions that may be outstanding."""


class Guard:
    """Decides about a model's tool calls before they are released.

    1. **schema**: the tool is among those offered, the arguments can be read in one way only and fit its JSON
       schema. Later stages see, and clients get, the canonical form of the arguments.
    2. **rule**: each of ``verifiers`` sees the run with the new calls; -1 is wrong, ``None`` unknown.
    3. **score**: with ``settings.threshold``, ``scorer`` gives each call a score; for a lower one
       ``settings.protocol`` says what follows. It sees the channels in ``settings.monitor_sees``.

    A later stage sees only messages of which the stages before found no call wrong. A checker that raises, or
    takes longer than ``settings.timeout_s``, has not checked, and a rule may be undecidable: then
    ``settings.fail`` says what follows. Checkers run in threads, so they must be safe to call from several; a
    checker that never returns keeps its thread.

    The messages of one conversation are judged one at a time. Each call of a message is judged after the ones
    before it, which count as attempts without a result; so do calls that were released before and that the
    messages do not show yet. Raises ``GuardError`` for a threshold without a scorer.
    """

    def __init__(
        self,
        settings: GuardSettings | None = None,
        *,
        verifiers: Sequence[StepVerifier] = (),
        scorer: StepScorer | None = None,
    ) -> None:
        self.settings = settings or GuardSettings()
        self.verifiers = tuple(verifiers)
        self.scorer = scorer
        if self.settings.threshold is not None and scorer is None:
            raise GuardError("'threshold' needs a reward model; give 'scorer', or no threshold")
        self._threads = ThreadPoolExecutor(_WORKERS, thread_name_prefix="surefoot-guard")
        self._conversations = Conversations()
        self._unused: OrderedDict[str, _Outstanding] = OrderedDict()

    async def check(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        reply: Message,
        *,
        caller: str = "",
        conversation: str | None = None,
        trusted: bool = False,
    ) -> GuardDecision:
        """What becomes of ``reply``, an assistant message with calls, after the run ``messages``.

        ``caller``, such as an API key's name, and ``conversation`` say which conversation it is; without the
        latter, the messages up to the user's first do. The message of a ``trusted`` model is not scored.
        Raises ``GuardError`` for a message without calls.
        """
        if not reply.tool_calls:
            raise GuardError("'reply' contains no tool calls to check")
        begin = time.monotonic()
        key = conversation_key(messages, conversation)
        async with self._conversations.turn(caller, key) as remembered:
            calls, usage = await self._checked(messages, tools, reply, remembered, trusted)
            action = max((call.action for call in calls), key=_STRENGTH.index)
            decision = GuardDecision(
                id=uuid.uuid4().hex,
                action=action,
                reason=next((call.reason for call in calls if call.action == action), ""),
                calls=tuple(call.verdict() for call in calls),
                latency_ms=1000 * (time.monotonic() - begin),
                usage=usage,
            )
            self._unused[decision.id] = _Outstanding(
                memory=remembered,
                calls=tuple(call.call for call in calls),
                turn=_turn(messages),
                readable=all(call.readable for call in calls),
            )
            while len(self._unused) > _UNUSED:
                self._unused.popitem(last=False)
            return self.settle(decision, action)

    def settle(self, decision: GuardDecision, action: Action, **fields: Any) -> GuardDecision:
        """A decision with another action, as after a person's review.

        Released and held calls count as attempts, others do not; a rejection is final. Calls that can be read
        in several ways are rejected instead of held or released. Raises ``GuardError`` for a decision of
        another guard, or a used one.
        """
        outstanding = self._outstanding(decision)
        if action in ("release", "hold") and not outstanding.readable:
            action = "reject"
        released = action in ("release", "hold")
        outstanding.memory.note(decision.id, outstanding.calls, outstanding.turn, released=released)
        if action == "reject":
            del self._unused[decision.id]
        return decision.model_copy(update={"action": action, **fields})

    def redeem(self, decision: GuardDecision) -> tuple[ToolCall, ...]:
        """The released calls, to be executed as they are. A decision can be redeemed once.

        Raises ``GuardError`` for a decision that releases nothing, has other calls than were checked, has
        been redeemed, or is another guard's.
        """
        if decision.action != "release":
            raise GuardError(f"the decision is to {decision.action}: nothing may be executed")
        outstanding = self._outstanding(decision)
        if not outstanding.readable:
            raise GuardError("the calls can be read in several ways: nothing may be executed")
        del self._unused[decision.id]
        return outstanding.calls

    def _outstanding(self, decision: GuardDecision) -> _Outstanding:
        outstanding = self._unused.get(decision.id)
        if outstanding is None or outstanding.calls != tuple(verdict.call for verdict in decision.calls):
            raise GuardError("this guard has not checked exactly these calls, or the decision has been used")
        return outstanding

    async def _checked(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        reply: Message,
        remembered: CallMemory,
        trusted: bool,
    ) -> tuple[list[_Call], Usage]:
        """The calls of ``reply`` with all findings, and the tokens of the reward model."""
        settings = self.settings
        calls = [_Call(call) for call in reply.tool_calls]
        _make_canonical(settings, remembered, tools, calls)
        reply = reply.model_copy(update={"tool_calls": tuple(call.call for call in calls)})
        await self._stage(calls, "schema", "schema", settings.on_schema, partial(_schema, tools, calls))
        usage = Usage()
        if any(call.action != "release" for call in calls):
            return calls, usage
        item = _item((*messages, reply), tools)
        results = remembered.results(messages, settings.remember_s) + [
            CallResult(message=len(messages), number=number, call=call, result=None, turn=_turn(messages))
            for number, call in enumerate(reply.tool_calls)
        ]
        for verifier in self.verifiers:
            check = (
                partial(_call_rules, verifier, item, results, len(calls))
                if isinstance(verifier, ToolCallVerifier)
                else partial(_rule, verifier, item)
            )
            await self._stage(calls, "rule", verifier.name, settings.on_rule, check)
        scorer, threshold = self.scorer, settings.threshold
        if trusted or any(call.action != "release" for call in calls):
            return calls, usage
        if scorer is not None and threshold is not None:
            view = _item(monitor_view((*messages, reply), settings.monitor_sees), tools)

            def score() -> list[_Found]:
                nonlocal usage
                [record] = checked_scores(scorer, [view])
                usage = record.usage
                reason = record.unscored_reason or "no score"
                return [_scored(record.scores[step], threshold, reason) for step in _new_steps(view)]

            name = getattr(scorer, "name", type(scorer).__name__)
            await self._stage(calls, "score", name, _ON_SCORE[settings.protocol], score)
        return calls, usage

    def close(self) -> None:
        """End the threads; call it once, at the end."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _stage(
        self,
        calls: Sequence[_Call],
        stage: Stage,
        checker: str,
        blocked: Action,
        check: Callable[[], list[_Found]],
    ) -> None:
        """Run ``check`` on all calls and record its findings."""
        begin = time.monotonic()
        try:
            async with asyncio.timeout(self.settings.timeout_s):
                findings = await asyncio.get_running_loop().run_in_executor(self._threads, check)
        except TimeoutError:
            late = _Found("error", f"{checker} took more than {self.settings.timeout_s:g} s")
            findings = [late] * len(calls)
        except Exception as error:
            _LOG.warning("%s failed", checker, exc_info=error)  # the text may be secret, so it stays here
            findings = [_Found("error", f"{checker} failed: {type(error).__name__}")] * len(calls)
        latency_ms = 1000 * (time.monotonic() - begin)
        for call, finding in zip(calls, findings, strict=True):
            call.stages.append(
                StageVerdict(
                    stage=stage,
                    checker=checker,
                    **finding._asdict(),
                    threshold=self.settings.threshold if stage == "score" else None,
                    latency_ms=latency_ms,
                )
            )
            if finding.finding == "fail":
                call.block(blocked, finding.reason)
            elif finding.finding == "error" and self.settings.fail == "closed":
                call.block("reject", f"it could not be checked ({finding.reason})")


class _Found(NamedTuple):
    """What a checker says of one call."""

    finding: Finding
    reason: str = ""
    score: float | None = None


class _Call:
    """One call while it is checked."""

    def __init__(self, call: ToolCall) -> None:
        self.call = call
        self.reading = _Found("pass")
        """What was found when its arguments were read."""
        self.action: Action = "release"
        self.reason = ""
        self.stages: list[StageVerdict] = []

    @property
    def readable(self) -> bool:
        """Whether ``call`` has its canonical form."""
        return self.reading.finding == "pass"

    def block(self, action: Action, reason: str) -> None:
        """Note why it is not released; the first reason stands."""
        if self.action == "release":
            self.action, self.reason = action, reason

    def verdict(self) -> CallVerdict:
        """As it is recorded."""
        return CallVerdict(call=self.call, action=self.action, reason=self.reason, stages=tuple(self.stages))


def _item(messages: tuple[Message, ...], tools: Sequence[Tool]) -> ProblemTrace:
    """The run with the new message as checkers see it."""
    questions = [message.content for message in messages if message.role == "user" and message.content]
    problem = Problem(text=questions[-1] if questions else "(no user message)")
    trace = Trace(problem_id=problem.id, messages=messages, tools=tuple(tools))
    return ProblemTrace(problem=problem, trace=segment_trace(trace))


def _new_steps(item: ProblemTrace) -> list[int]:
    """The steps of the last message's calls, in order."""
    last = len(item.trace.messages) - 1
    return [step for (message, _), step in call_steps(item.trace).items() if message == last]


@dataclass(frozen=True, kw_only=True)
class _Outstanding:
    """What a decision is bound to."""

    memory: CallMemory
    calls: tuple[ToolCall, ...]
    turn: int
    readable: bool


def _turn(messages: Sequence[Message]) -> int:
    return sum(message.role == "user" for message in messages)


def _make_canonical(
    settings: GuardSettings, remembered: CallMemory, tools: Sequence[Tool], calls: Sequence[_Call]
) -> None:
    """Give every call its canonical form, or note why it has none."""
    size = sum(len(call.call.arguments.encode(errors="replace")) for call in calls)
    wrong = None
    if len(calls) > settings.max_calls:
        wrong = f"the message has {len(calls)} calls, and {settings.max_calls} are allowed"
    elif size > settings.max_argument_bytes:
        wrong = f"the arguments have {size} bytes, and {settings.max_argument_bytes} are allowed"
    elif len(remembered.released) + len(calls) > MAX_REMEMBERED:
        wrong = f"{len(remembered.released)} released calls are not among the messages"
    names = {tool.name: normal_name(tool.name) for tool in tools}
    ids = Counter(call.call.id for call in calls if call.call.id is not None)
    for call in calls:
        name, call_id = call.call.name, call.call.id
        reason = wrong
        if reason is None and call_id is not None and ids[call_id] > 1:
            reason = f"two calls of the message have the id {call_id[:100]!r}"
        if reason is None and name not in names and normal_name(name) in names.values():
            similar = next(offered for offered in names if names[offered] == normal_name(name))
            reason = f"there is no tool {name[:100]!r}; the tool is called {similar!r}"
        try:
            if reason is None:
                arguments = canonical_arguments(call.call.arguments)
                call.call = call.call.model_copy(update={"arguments": arguments})
        except ValueError as error:
            reason = f"the arguments cannot be read in one way only: {str(error)[:200]}"
        if reason is not None:
            call.reading = _Found("fail", reason)


def _schema(tools: Sequence[Tool], calls: Sequence[_Call]) -> list[_Found]:
    """The verdict of the schemas, or why a call lacks a canonical form."""
    if not all(call.readable for call in calls):
        return [call.reading for call in calls]
    reasons = [call_error(tools, call.call) for call in calls]
    return [_Found("pass") if reason is None else _Found("fail", reason) for reason in reasons]


def _call_rules(
    verifier: ToolCallVerifier, item: ProblemTrace, results: Sequence[CallResult], new: int
) -> list[_Found]:
    findings: dict[Outcome, Finding] = {"violated": "fail", "undecidable": "error", "satisfied": "unknown"}
    verdicts = map(overall, verifier.check_calls(item.trace.messages, item.trace.tools, results, new))
    return [_Found(findings[outcome], reason) for outcome, reason in verdicts]


def _rule(verifier: StepVerifier, item: ProblemTrace) -> list[_Found]:
    [verdicts] = verify_each(verifier, [item])
    if any(verdict.failed for verdict in verdicts):
        raise GuardError(verdicts[0].reason)
    findings: dict[int | None, Finding] = {-1: "fail", 0: "pass", 1: "pass", None: "unknown"}
    return [_Found(findings[verdicts[step].value], verdicts[step].reason) for step in _new_steps(item)]


def _scored(score: float | None, threshold: float, reason: str) -> _Found:
    if score is None:
        return _Found("error", reason)
    if score < threshold:
        # The reason reaches the policy, which could learn from the score what the monitor overlooks.
        return _Found("fail", "the reward model finds it suspicious", score)
    return _Found("pass", score=score)
