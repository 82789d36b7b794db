"""A tool policy over recorded runs: what it would have released, blocked, or could not decide."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from surefoot.labelling.verifiers.tool_calls import Breach, ToolCallVerifier, ToolRule
from surefoot.labelling.verifiers.tool_policy import (
    Outcome,
    RuleOutcome,
    ToolPolicy,
    call_results,
    parse_arguments,
)
from surefoot.records import ToolCall, Trace

_RULES: tuple[ToolRule, ...] = ("schema", "repeated-call", "policy")


@dataclass(kw_only=True)
class RuleCounts:
    """What a rule of the policy says of all calls of its tools."""

    tools: tuple[str, ...]
    reason: str
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def microseconds(self) -> float:
        """Mean time of one evaluation."""
        return 1e6 * self.seconds / max(1, self.outcomes.total())


@dataclass(frozen=True, kw_only=True)
class StoppedCall:
    """A call that the policy would not have released."""

    trace_id: str
    message: int
    tool: str
    arguments: str
    action: Literal["blocked", "undecided"]
    reason: str


@dataclass(kw_only=True)
class PolicyReplay:
    """Result of :func:`replay_policy`."""

    rules: list[RuleCounts]
    runs: int = 0
    calls: int = 0
    stopped: list[StoppedCall] = field(default_factory=list)

    def count(self, action: Literal["released", "blocked", "undecided"]) -> int:
        """Calls that this would have happened to."""
        if action == "released":
            return self.calls - len(self.stopped)
        return sum(call.action == action for call in self.stopped)


def replay_policy(policy: ToolPolicy, runs: Iterable[Trace]) -> PolicyReplay:
    """Judge every call of recorded runs after the recorded calls before it, as a guard does whose policy this
    is: its arguments, its schema if the run lists the tools, repetitions, and the rules."""
    replay = PolicyReplay(rules=[RuleCounts(tools=rule.tools, reason=rule.message) for rule in policy.rules])
    verifier = ToolCallVerifier(policy=policy, rules=_RULES)

    def count(outcome: RuleOutcome) -> None:
        counts = replay.rules[outcome.rule]
        counts.outcomes[outcome.outcome] += 1
        counts.seconds += outcome.seconds

    for run in runs:
        replay.runs += 1
        results = list(call_results(run.messages))
        replay.calls += len(results)
        breaches_by_call = verifier.check_calls(run.messages, run.tools, results, len(results), count)
        for result, by_rules in zip(results, breaches_by_call, strict=True):
            breaches = _unreadable(result.call) or by_rules
            broken = [breach.reason for breach in breaches if not breach.undecidable]
            if breaches:
                stopped = StoppedCall(
                    trace_id=run.id,
                    message=result.message,
                    tool=result.call.name,
                    arguments=result.call.arguments,
                    action="blocked" if broken else "undecided",
                    reason="; ".join(broken or [breach.reason for breach in breaches]),
                )
                replay.stopped.append(stopped)
    return replay


def _unreadable(call: ToolCall) -> list[Breach]:
    try:
        parse_arguments(call.arguments)
    except ValueError as error:
        return [Breach(f"the arguments cannot be read in one way only: {str(error)[:200]}")]
    return []
