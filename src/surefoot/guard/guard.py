"""The guard: schema, then rules, then a reward model; what each says of every call of a message."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from surefoot.errors import GuardError
from surefoot.guard.records import (
    Action,
    Blocked,
    CallVerdict,
    Finding,
    GuardDecision,
    GuardSettings,
    Stage,
    StageVerdict,
)
from surefoot.messages import call_error
from surefoot.protocols import ProblemTrace, StepScorer, StepVerifier
from surefoot.records import Message, Problem, Tool, ToolCall, Trace, Usage
from surefoot.scores import checked_scores
from surefoot.segment import segment_trace

_LOG = logging.getLogger("surefoot.guard")
_STRENGTH: Final[tuple[Action, ...]] = ("release", "hold", "resample", "reject")
"""Of several calls the action furthest to the right counts: a rejected message is not shown to a person."""
_WORKERS: Final = 8


class Guard:
    """Decides about a model's tool calls before they are released.

    1. **schema**: the tool is among those offered, and the arguments fit its JSON schema.
    2. **rule**: each of ``verifiers`` sees the run with the new calls; -1 is wrong, ``None`` unknown.
    3. **score**: with ``settings.threshold``, ``scorer`` gives each call a score; a lower one is wrong.

    A later stage sees only messages of which the stages before found no call wrong. A checker that raises, or
    takes longer than ``settings.timeout_s``, has not checked: ``settings.fail`` says what follows. Checkers
    run in threads, so they must be safe to call from several; a checker that never returns keeps its thread.
    Raises ``GuardError`` for a threshold without a scorer.
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

    async def check(
        self, messages: Sequence[Message], tools: Sequence[Tool], reply: Message
    ) -> GuardDecision:
        """What becomes of ``reply``, an assistant message with calls, after the run ``messages``.

        Raises ``GuardError`` for a message without calls.
        """
        if not reply.tool_calls:
            raise GuardError("'reply' contains no tool calls to check")
        begin = time.monotonic()
        item = _item(messages, tools, reply)
        steps = [
            number
            for number, step in enumerate(item.trace.steps)
            if step.message == len(messages) and step.part == "tool_call"
        ]
        calls = [_Call(call) for call in reply.tool_calls]
        await self._stage(
            calls, "schema", "schema", self.settings.on_schema, partial(_schema, tools, reply.tool_calls)
        )
        if all(call.action == "release" for call in calls):
            for verifier in self.verifiers:
                await self._stage(
                    calls,
                    "rule",
                    verifier.name,
                    self.settings.on_rule,
                    partial(_rule, verifier, item, steps),
                )
        usage = Usage()
        scorer, threshold = self.scorer, self.settings.threshold
        if scorer is not None and threshold is not None and all(call.action == "release" for call in calls):

            def score() -> list[_Found]:
                nonlocal usage
                [record] = checked_scores(scorer, [item])
                usage = record.usage
                reason = record.unscored_reason or "no score"
                return [_scored(record.scores[step], threshold, reason) for step in steps]

            name = getattr(scorer, "name", type(scorer).__name__)
            await self._stage(calls, "score", name, self.settings.on_score, score)
        action = max((call.action for call in calls), key=_STRENGTH.index)
        return GuardDecision(
            action=action,
            reason=next((call.reason for call in calls if call.action == action), ""),
            calls=tuple(call.verdict() for call in calls),
            latency_ms=1000 * (time.monotonic() - begin),
            usage=usage,
        )

    def close(self) -> None:
        """End the threads; call it once, at the end."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _stage(
        self,
        calls: Sequence[_Call],
        stage: Stage,
        checker: str,
        blocked: Blocked,
        check: Callable[[], list[_Found]],
    ) -> None:
        """Run ``check`` on all calls and record its findings."""
        begin = time.monotonic()
        try:
            async with asyncio.timeout(self.settings.timeout_s):
                findings = await asyncio.get_running_loop().run_in_executor(self._threads, check)
        except TimeoutError:
            findings = [_Found("error", f"{checker} took more than {self.settings.timeout_s:g} s")] * len(
                calls
            )
        except Exception as error:
            _LOG.warning("%s failed", checker, exc_info=error)  # the text may be secret, so it stays here
            findings = [_Found("error", f"{checker} failed: {type(error).__name__}")] * len(calls)
        latency_ms = 1000 * (time.monotonic() - begin)
        for call, finding in zip(calls, findings, strict=True):
            call.stages.append(
                StageVerdict(
                    stage=stage,
                    checker=checker,
                    finding=finding.finding,
                    reason=finding.reason,
                    score=finding.score,
                    threshold=self.settings.threshold if stage == "score" else None,
                    latency_ms=latency_ms,
                )
            )
            if finding.finding == "fail":
                call.block(blocked, finding.reason)
            elif finding.finding == "error" and self.settings.fail == "closed":
                call.block("reject", f"it could not be checked ({finding.reason})")


class _Found:
    """What a checker says of one call."""

    def __init__(self, finding: Finding, reason: str = "", score: float | None = None) -> None:
        self.finding, self.reason, self.score = finding, reason, score


class _Call:
    """One call while it is checked."""

    def __init__(self, call: ToolCall) -> None:
        self.call = call
        self.action: Action = "release"
        self.reason = ""
        self.stages: list[StageVerdict] = []

    def block(self, action: Blocked, reason: str) -> None:
        """Note why it is not released; the first reason stands."""
        if self.action == "release":
            self.action, self.reason = action, reason

    def verdict(self) -> CallVerdict:
        """As it is recorded."""
        return CallVerdict(call=self.call, action=self.action, reason=self.reason, stages=tuple(self.stages))


def _item(messages: Sequence[Message], tools: Sequence[Tool], reply: Message) -> ProblemTrace:
    """The run with the new message as checkers see it."""
    questions = [message.content for message in messages if message.role == "user" and message.content]
    problem = Problem(text=questions[-1] if questions else "(no user message)")
    trace = Trace(problem_id=problem.id, messages=(*messages, reply), tools=tuple(tools))
    return ProblemTrace(problem=problem, trace=segment_trace(trace))


def _schema(tools: Sequence[Tool], calls: Sequence[ToolCall]) -> list[_Found]:
    reasons = [call_error(tools, call) for call in calls]
    return [_Found("pass") if reason is None else _Found("fail", reason) for reason in reasons]


def _rule(verifier: StepVerifier, item: ProblemTrace, steps: Sequence[int]) -> list[_Found]:
    [verdicts] = verifier.verify([item])
    if len(verdicts) != len(item.trace.steps):
        raise GuardError(f"{verifier.name} gave {len(verdicts)} verdicts for {len(item.trace.steps)} steps")
    findings: dict[int | None, Finding] = {-1: "fail", 0: "pass", 1: "pass", None: "unknown"}
    return [_Found(findings[verdicts[step].value], verdicts[step].reason) for step in steps]


def _scored(score: float | None, threshold: float, reason: str) -> _Found:
    if score is None:
        return _Found("error", reason)
    if score < threshold:
        return _Found("fail", f"it scores {score:.3f}, and {threshold:g} is required", score)
    return _Found("pass", score=score)
