"""A tool policy over recorded runs: the calls that it releases, blocks, or cannot decide about."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from surefoot.labelling.verifiers.tool_calls import ToolCallVerifier
from surefoot.labelling.verifiers.tool_policy import RuleOutcome, ToolPolicy, call_results, overall
from surefoot.messages import parse_arguments
from surefoot.records import ToolCall, Trace

_ACTIONS = {
    "satisfied": "released", "approval": "asked", "violated": "blocked", "undecidable": "undecided"
}  # fmt: skip


@dataclass(kw_only=True)
class PolicyReplay:
    """Result of :func:`replay_policy`."""

    rules: list[dict[str, Any]]
    """Each rule with its number of outcomes."""
    runs: int = 0
    calls: int = 0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_ACTIONS.values(), 0))
    """Calls that would have been ``released``, ``asked`` about, ``blocked`` or ``undecided``."""
    stopped: list[dict[str, Any]] = field(default_factory=list)
    """Each call that would not have been released, with the reason."""


def replay_policy(policy: ToolPolicy, runs: Iterable[Trace]) -> PolicyReplay:
    """Judge every call of recorded runs after the recorded calls before it, as a guard with this policy does:
    its arguments, its schema if the run lists the tools, repetitions, and the rules."""
    rules: list[dict[str, Any]] = [
        {"rule": number, "tools": rule.tools, "reason": rule.message, **dict.fromkeys(_ACTIONS, 0)}
        for number, rule in enumerate(policy.rules)
    ]
    replay = PolicyReplay(rules=rules)
    verifier = ToolCallVerifier(policy=policy, rules=("schema", "repeated-call", "policy"))
    for run in runs:
        replay.runs += 1
        results = list(call_results(run.messages))
        for result, outcomes in zip(results, verifier.check_calls(run, results), strict=True):
            replay.calls += 1
            for outcome in outcomes:
                if outcome.rule is not None:
                    rules[outcome.rule][outcome.outcome] += 1
            worst, reason = overall([*_unreadable(result.call), *outcomes])
            replay.counts[_ACTIONS[worst]] += 1
            if worst != "satisfied":
                call = {"tool": result.call.name, "arguments": result.call.arguments, "reason": reason}
                source = {"trace_id": run.id, "message": result.message, "action": _ACTIONS[worst]}
                replay.stopped.append(source | call)
    return replay


def _unreadable(call: ToolCall) -> list[RuleOutcome]:
    try:
        parse_arguments(call.arguments, exact=True)
    except ValueError as error:
        reason = f"the arguments cannot be read in one way only: {str(error)[:200]}"
        return [RuleOutcome(outcome="violated", reason=reason)]
    return []
