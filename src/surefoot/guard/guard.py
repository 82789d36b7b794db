"""The guard: schema, then rules, then a reward model; what each says of every call of a message."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from typing import Any, Final, NamedTuple

from surefoot.errors import GuardError
from surefoot.guard.conversations import (
    CALL_BYTES,
    MOST_HIDDEN,
    ConversationLog,
    Conversations,
    Key,
    LoggedDecision,
    State,
    View,
    conversation_key,
)
from surefoot.guard.records import (
    Action,
    CallVerdict,
    Channel,
    Finding,
    GuardDecision,
    GuardSettings,
    Protocol,
    Stage,
    StageVerdict,
)
from surefoot.labelling.verifiers.tool_calls import CallJudge, ToolCallVerifier
from surefoot.labelling.verifiers.tool_policy import CallResult, Outcome, overall
from surefoot.messages import call_error, canonical_arguments, normal_name
from surefoot.protocols import ProblemTrace, StepScorer, StepVerifier, verify_each
from surefoot.records import Message, Problem, Tool, ToolCall, Trace, Usage
from surefoot.scores import checked_scores
from surefoot.segment import reasoning_spans, segment_trace

_LOG = logging.getLogger("surefoot.guard")
_STRENGTH: Final[tuple[Action, ...]] = ("release", "hold", "resample", "reject")
"""Of several calls the action furthest to the right counts: a rejected message is not shown to a person."""
_ON_SCORE: Final[dict[Protocol, Action]] = {
    "trusted-monitoring": "reject",
    "defer-to-resample": "resample",
    "hold": "hold",
}
WORKERS: Final = 8
MOST_UNUSED: Final = 10_000
"""Decisions that are neither used nor rejected."""
_STATES: Final[dict[Action, State]] = {"release": "released", "hold": "held"}


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
        self._threads = ThreadPoolExecutor(WORKERS, thread_name_prefix="surefoot-guard")
        self._call_verifiers = [
            verifier for verifier in self.verifiers if isinstance(verifier, ToolCallVerifier)
        ]
        self._conversations = Conversations(self.settings.remember_s)
        self._unused: dict[str, LoggedDecision] = {}

    async def check(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        reply: Message,
        *,
        caller: str = "",
        conversation: str | None = None,
        request: str | None = None,
    ) -> GuardDecision:
        """What becomes of ``reply``, an assistant message with calls, after the run ``messages``.

        ``caller``, such as an API key's name, and ``conversation`` say which conversation it is; without the
        latter, the messages up to the user's first do. ``request`` identifies the request: if a client that
        lost the answer sends it again and the model makes equal calls, they are released again with their
        first ids, and count once. Raises ``GuardError`` for a message without calls.
        """
        if not reply.tool_calls:
            raise GuardError("'reply' contains no tool calls to check")
        begin = time.monotonic()
        key = conversation_key(messages, conversation)
        async with self._conversations.turn(caller, key) as log:
            check = await self._checked(messages, tools, reply, log, request)
            calls, earlier = check.calls, check.earlier
            # before the calls: a reader that was too slow may still be at work on them
            readable, view = all(call.readable for call in calls), check.view
            action = max((call.action for call in calls), key=_STRENGTH.index)
            decision = GuardDecision(
                id=uuid.uuid4().hex,
                action=action,
                reason=next((call.reason for call in calls if call.action == action), ""),
                calls=earlier.decision.calls if earlier else tuple(call.verdict() for call in calls),
                latency_ms=1000 * (time.monotonic() - begin),
                usage=check.usage,
            )
            keys = tuple(call.key for call in calls) if view is not None else ()
            self._unused[decision.id] = LoggedDecision(
                decision=decision,
                caller=caller,
                calls=tuple(verdict.call for verdict in decision.calls),
                turn=len(view.user) if view is not None else 0,
                readable=readable and view is not None,
                conversation=None if earlier else log,
                request=request,
                keys=keys,
                shown_before=view.equal_calls(keys) if view is not None else (),
            )
            if len(self._unused) > MOST_UNUSED:
                self._drop_unused()
            return self.settle(decision, action)

    def _drop_unused(self) -> None:
        """Drop the oldest decision of the caller who has most of them."""
        [(caller, _)] = Counter(record.caller for record in self._unused.values()).most_common(1)
        del self._unused[next(number for number, record in self._unused.items() if record.caller == caller)]

    def settle(self, decision: GuardDecision, action: Action, **fields: Any) -> GuardDecision:
        """A decision with another action, as after a person's review.

        Released and held calls count as attempts, others do not; a rejection is final. Calls that can be read
        in several ways are rejected instead of held or released. Raises ``GuardError`` for a decision of
        another guard, or a used one.
        """
        record = self._record(decision)
        if action in ("release", "hold") and not record.readable:
            action = "reject"
        record.reviewed = record.reviewed or fields.get("review") is not None
        if record.conversation is not None:
            record.conversation.note(record, _STATES.get(action, "refused"))
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
        record = self._record(decision)
        if not record.readable:
            raise GuardError("the calls can be read in several ways: nothing may be executed")
        if self._unused.pop(decision.id, None) is None:  # another thread was first
            raise GuardError("the decision has been used")
        return record.calls

    def _record(self, decision: GuardDecision) -> LoggedDecision:
        record = self._unused.get(decision.id)
        if record is None or record.calls != tuple(verdict.call for verdict in decision.calls):
            raise GuardError("this guard has not checked exactly these calls, or the decision has been used")
        return record

    async def _checked(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        reply: Message,
        log: ConversationLog,
        request: str | None,
    ) -> _Check:
        """The calls of ``reply`` with all findings."""
        settings = self.settings
        check = _Check([_Call(call) for call in reply.tool_calls])
        calls = check.calls

        def read() -> list[_Found]:
            check.view = view = log.read(messages, self._call_verifiers)
            _make_canonical(settings, log, view.hidden, tools, calls)
            keys = [call.key for call in calls]
            if request is not None and all(call.readable for call in calls):
                check.earlier = log.answer(request, keys)
            return _schema(tools, calls)

        await self._stage(calls, "schema", "schema", settings.on_schema, read)
        view = check.view
        if view is None or check.earlier is not None or check.stopped:
            return check
        reply = reply.model_copy(update={"tool_calls": tuple(call.call for call in calls)})
        judges = iter(view.judges)

        @cache
        def item() -> ProblemTrace:  # takes time linear in the run
            return _item((*messages, reply), tools)

        for verifier in self.verifiers:
            rules = (
                partial(_call_rules, next(judges), view.user, tools, len(messages), reply.tool_calls)
                if isinstance(verifier, ToolCallVerifier)
                else partial(_rule, verifier, item)
            )
            await self._stage(calls, "rule", verifier.name, settings.on_rule, rules)
        scorer, threshold = self.scorer, settings.threshold
        if check.stopped:
            return check
        if scorer is not None and threshold is not None:

            def score() -> list[_Found]:
                seen = _item(monitor_view((*messages, reply), settings.monitor_sees), tools)
                [record] = checked_scores(scorer, [seen])
                check.usage = record.usage
                reason = record.unscored_reason or "no score"
                return [_scored(record.scores[step], threshold, reason) for step in _new_steps(seen)]

            name = getattr(scorer, "name", type(scorer).__name__)
            await self._stage(calls, "score", name, _ON_SCORE[settings.protocol], score)
        return check

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
            elif finding.finding == "ask":
                call.block("hold", finding.reason)
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
        self.reading = _Found("error", "it was not read")
        """What was found when its arguments were read."""
        self.action: Action = "release"
        self.reason = ""
        self.stages: list[StageVerdict] = []

    @property
    def readable(self) -> bool:
        """Whether ``call`` has its canonical form."""
        return self.reading.finding == "pass"

    @cached_property
    def key(self) -> Key:
        """Digests by which it is remembered."""
        return Key.of(self.call)

    def block(self, action: Action, reason: str) -> None:
        """Note why it is not released; the first reason stands, unless it only held the call."""
        if self.action == "release" or (self.action == "hold" and action != "hold"):
            self.action, self.reason = action, reason

    def verdict(self) -> CallVerdict:
        """As it is recorded."""
        return CallVerdict(call=self.call, action=self.action, reason=self.reason, stages=tuple(self.stages))


@dataclass
class _Check:
    """What a check has found so far."""

    calls: list[_Call]
    view: View | None = None
    """``None``: the run was not read."""
    earlier: LoggedDecision | None = None
    """The decision that an equal request has already."""
    usage: Usage = field(default_factory=Usage)
    """Tokens of the reward model."""

    @property
    def stopped(self) -> bool:
        return any(call.action != "release" for call in self.calls)


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


def _make_canonical(
    settings: GuardSettings, log: ConversationLog, hidden: int, tools: Sequence[Tool], calls: Sequence[_Call]
) -> None:
    """Give every call its canonical form, or note why it has none."""
    size = sum(len(call.call.arguments.encode(errors="replace")) for call in calls)
    wrong = None
    if len(calls) > settings.max_calls:
        wrong = f"the message has {len(calls)} calls, and {settings.max_calls} are allowed"
    elif size > settings.max_argument_bytes:
        wrong = f"the arguments have {size} bytes, and {settings.max_argument_bytes} are allowed"
    elif hidden + len(calls) > MOST_HIDDEN:
        wrong = f"{hidden} released calls are not among the messages"
    elif log.full is not None or not log.has_room(size + CALL_BYTES * len(calls)):
        wrong = f"no more can be remembered: {log.full or 'too many calls were released lately'}"
    names = {tool.name: normal_name(tool.name) for tool in tools}
    ids = Counter(call.call.id for call in calls if call.call.id is not None)
    for call in calls:
        name, call_id = call.call.name, call.call.id
        reason = wrong
        if reason is None and call_id is not None and ids[call_id] > 1:
            reason = f"two calls of the message have the id {call_id[:100]!r}"
        if reason is None and name not in names and normal_name(name) in names.values():
            similar = next(offered for offered in names if names[offered] == normal_name(name))
            reason = f"tool {name[:100]!r} does not exist; it is called {similar!r}"
        try:
            if reason is None:
                arguments = canonical_arguments(call.call.arguments)
                call.call = call.call.model_copy(update={"arguments": arguments})
        except ValueError as error:
            reason = f"the arguments cannot be read in one way only: {str(error)[:200]}"
        call.reading = _Found("pass") if reason is None else _Found("fail", reason)


def _schema(tools: Sequence[Tool], calls: Sequence[_Call]) -> list[_Found]:
    """The verdict of the schemas, or why a call lacks a canonical form."""
    if not all(call.readable for call in calls):
        return [call.reading for call in calls]
    reasons = [call_error(tools, call.call) for call in calls]
    return [_Found("pass") if reason is None else _Found("fail", reason) for reason in reasons]


def _call_rules(
    judge: CallJudge, user: Sequence[str], tools: Sequence[Tool], message: int, calls: Sequence[ToolCall]
) -> list[_Found]:
    findings: dict[Outcome, Finding] = {
        "violated": "fail", "undecidable": "error", "approval": "ask", "satisfied": "unknown"
    }  # fmt: skip
    new = [
        CallResult(message=message, number=number, call=call, result=None, turn=len(user))
        for number, call in enumerate(calls)
    ]
    verdicts = map(overall, judge.judge(new, tools, user))
    return [_Found(findings[outcome], reason) for outcome, reason in verdicts]


def _rule(verifier: StepVerifier, make_item: Callable[[], ProblemTrace]) -> list[_Found]:
    item = make_item()
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


def monitor_view(messages: Sequence[Message], sees: Collection[Channel]) -> tuple[Message, ...]:
    """The messages without the channels that are not in ``sees``.

    Reasoning goes from its field and, as ``<think>`` blocks, from assistants' contents; a tool's message
    keeps only the id of its call. No message or call is removed or added, so each has its place as before.
    """
    return tuple(message.model_copy(update=_hidden(message, sees)) for message in messages)


def _hidden(message: Message, sees: Collection[Channel]) -> dict[str, Any]:
    """The fields that change."""
    if message.role == "tool":
        hides = "results" not in sees
        return {"content": "", "name": None, "attachments": (), "error": None} if hides else {}
    if message.role != "assistant" or "reasoning" in sees:
        return {}
    content = message.content
    while content and (spans := reasoning_spans(content)):  # the rest can be a block again
        content = "".join(
            content[end:start]
            for (_, end), (start, _) in zip([(0, 0), *spans], [*spans, (len(content), 0)], strict=True)
        )
    return {"reasoning": None, "content": content or None}


def viewed_trace(trace: Trace, sees: Collection[Channel]) -> Trace:
    """A recorded run as a guard's scorer would see it, with the steps that a guard cuts."""
    view = {"messages": monitor_view(trace.messages, sees), "steps": ()}
    return segment_trace(trace.model_copy(update=view))


def call_steps(trace: Trace) -> dict[tuple[int, int], int]:
    """The step of each call, by the numbers of its message and of the call there."""
    steps = {}
    for number, step in enumerate(trace.steps):
        if step.message is not None and step.part in ("tool_call", "message"):
            calls = trace.messages[step.message].tool_calls
            for call in range(len(calls)) if step.call is None else (step.call,):
                steps[step.message, call] = number
    return steps
