"""``surefoot guard``: tool policies in front of servers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from surefoot import evaluation
from surefoot import guard as g
from surefoot.cli import options as o
from surefoot.cli.runs import labelled, read_table
from surefoot.cli.settings import Command, Flag, OptionGroup
from surefoot.cli.terminal import echo, echo_table
from surefoot.errors import RunError, counted
from surefoot.guard.guard import call_steps, viewed_trace
from surefoot.guard.mcp import McpProxy, run_proxy
from surefoot.guard.records import Channel, GuardSettings
from surefoot.guard.replay import replay_policy
from surefoot.io import write_json
from surefoot.labelling import ToolCallVerifier, ToolPolicy, read_tool_policy
from surefoot.labelling.verifiers.tool_policy import packaged_policy
from surefoot.labels import LabelRule, binary_labels
from surefoot.policies.devices import Loading
from surefoot.protocols import ProblemTrace, StepScorer, StepVerifier
from surefoot.records import Problem, StepLabel, StepScores, Trace
from surefoot.scores import checked_scores

_PIECE = 200
"""Traces that are scored at once."""
_SHOWN = 5
"""Calls that are printed of those not released; ``--out`` has all."""
GUARD_LIMITS = ("max_calls", "max_argument_bytes", "remember_s", "timeout_s")
_GUARD = OptionGroup(title="Guard", common=("threshold",), omit=GUARD_LIMITS)


@contextmanager
def open_rules(names: Sequence[str], policy: str | None) -> Iterator[tuple[StepVerifier, ...]]:
    """A guard's rules; ``policy`` is the file of ``tool-calls``."""
    if not names:
        yield ()
        return
    calls = ToolCallVerifier(policy=read_tool_policy(policy) if policy else ToolPolicy())
    with o.open_verifiers(names, {"tool-calls": calls}) as labeller:
        yield labeller.verifiers


class Mcp(Command):
    """Run an MCP server behind the guard: clients start this command instead of the server's.

    Calls that a rule forbids, or that do not fit the server's schema, never reach the server, and the client
    reads the reason as their result. The server's other messages pass unchanged. Write the server's command
    after `--`. A held call is refused, because this command cannot ask a reviewer.

    Example: `surefoot guard mcp --policy policy.json -- npx -y @modelcontextprotocol/server-filesystem /data`
    """

    server: Annotated[tuple[str, ...], Flag(argument=True, metavar="SERVER")]
    """Command of the MCP server and its arguments."""
    policy: Annotated[str | None, o.INPUT, Flag(common=True)] = None
    """JSON file of a tool policy, for the rule `tool-calls`."""
    rules: Annotated[tuple[str, ...], Flag(name="--rule")] = ("tool-calls",)
    """Rules that calls are checked by: `tool-calls`, or another verifier of `label FILE verify`."""
    reward_model: Annotated[o.JudgeSettings, OptionGroup(omit=("verifier", "sandbox"))] = o.JudgeSettings()
    loading: o.Models = Loading()
    guard: Annotated[GuardSettings, _GUARD] = GuardSettings()
    decisions: Annotated[Path | None, Flag(common=True)] = None
    """File that each decision is appended to, as a line of JSON."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.policy is not None and "tool-calls" not in self.rules:
            raise ValueError("'policy' belongs to --rule tool-calls")
        return self

    def run(self) -> None:
        with (
            open_rules(self.rules, self.policy) as verifiers,
            self.reward_model.open(self.loading) as scorer,
            self.decisions.open("a", encoding="utf-8") if self.decisions else nullcontext() as log,
        ):

            def note(decision: g.GuardDecision) -> None:
                if log is not None:
                    log.write(f"{decision.model_dump_json()}\n")
                    log.flush()

            guard = g.Guard(self.guard, verifiers=verifiers, scorer=scorer)
            try:
                status = asyncio.run(run_proxy(McpProxy(guard, on_decision=note), self.server))
            finally:
                guard.close()
        if status:
            raise RunError(f"the MCP server ended with status {status}")


class Hook(Command):
    """Check each tool call of Claude Code by a tool policy, as its `PreToolUse` hook.

    In a terminal the command prints the settings that set the hook up; put them into
    `~/.claude/settings.json`. Claude Code then starts it with each call on standard input. A call that a rule
    forbids is denied with the reason; one that a rule asks about, or cannot decide, waits for a person, who
    agrees to exactly this call, once; a call of a `read_only` tool is allowed, and the others are left to
    Claude Code's own permissions. Whatever fails or takes too long blocks the call.

    Example: `surefoot guard hook shell+files+git+network`
    Example: `surefoot guard hook policy.json < event.json`
    """

    policy: Annotated[str, Flag(argument=True)] = Field(
        description="JSON file of a tool policy, or packaged ones joined by `+`: `shell+files+git+network`."
    )

    def run(self) -> None:
        from surefoot.guard.hook import main

        if status := main(self.policy):
            raise SystemExit(status)


class Fit(Command):
    """Fit the guard's threshold on your own recorded runs, and report how often it blocks a good call.

    The runs are scored with `--prm`, which sees the channels that the guard will show it (`--monitor-sees`);
    or `--scores` has scores of the whole runs. Calls of successful runs are good;
    with `--labels`, steps labelled good, and steps labelled bad show how much the threshold catches;
    `--good all` counts every recorded call as good. The threshold is the highest one that blocks at most
    `--max-false-blocks` of good runs (split conformal prediction). The false-alarm rate is measured by
    cross-validation over problems, with a 95 % interval. Use runs that the model was not trained on.

    Example: `surefoot guard fit runs.jsonl --problems problems.jsonl --prm prm --max-false-blocks 0.05`
    """

    traces: o.TracesArgument
    problems: o.Problems
    labels: o.Labels | None = None
    reward_model: Annotated[o.JudgeSettings, OptionGroup(omit=("verifier", "sandbox"))] = o.JudgeSettings()
    loading: o.Models = Loading()
    scores: Annotated[str | None, o.INPUT] = None
    """File of step scores of the whole runs, in place of `--prm`."""
    monitor_sees: tuple[Channel, ...] = ()
    """What `--prm` sees besides instructions, users' messages, and assistants' contents and calls:
    `reasoning`, tools' `results`. A reward model trained on whole runs needs both."""
    good: Literal["successful", "labelled", "all"] | None = None
    """Calls that count as good; `labelled` with `--labels`, otherwise `successful`."""
    max_false_blocks: float = Field(default=0.05, gt=0, lt=1)
    """Largest share of good runs, or of good calls, to block."""
    unit: Annotated[Literal["run", "call"], Flag(common=True)] = "run"
    """What the share counts: runs with a blocked good call, or good calls."""
    out: Annotated[Path | None, Flag(short="-o", output=True)] = None
    """JSON file of the threshold and the measured rates."""
    seed: o.Seed = 0

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.scores is None) == (not self.reward_model.names):
            raise ValueError("'prm' scores the runs, or 'scores' has their scores; give one of them")
        if self.scores is not None and self.monitor_sees:
            raise ValueError("'monitor_sees' is for 'prm'; 'scores' are of whole runs")
        if self.good == "labelled" and self.labels is None:
            raise ValueError("'good' labelled needs 'labels'")
        return self

    def run(self) -> None:
        fit = g.fit_threshold(self._runs(), self.max_false_blocks, unit=self.unit, seed=self.seed)
        seen: tuple[Channel, ...] = self.monitor_sees if self.scores is None else ("reasoning", "results")
        for line in _summary(fit, seen):
            echo(line)
        if self.out is not None:
            write_json(self.out, {**asdict(fit), "monitor_sees": seen})

    def _runs(self) -> list[g.RunScores]:
        problems, traces = read_table(self.problems, Problem), read_table(self.traces, Trace)
        good_if = self.good or ("labelled" if self.labels else "successful")
        labels: Sequence[StepLabel] = read_table(self.labels, StepLabel) if self.labels else ()
        runs, unscored = [], ""
        with self._scorer() as scorer:
            items_left = iter(labelled(problems, traces, labels))
            while piece := list(islice(items_left, _PIECE)):
                items = [
                    ProblemTrace(
                        problem=item.problem,
                        trace=item.trace if self.scores else viewed_trace(item.trace, self.monitor_sees),
                    )
                    for item in piece
                ]
                for item, seen, scores in zip(piece, items, checked_scores(scorer, items), strict=True):
                    unscored = unscored or scores.unscored_reason or ""
                    labels_of = binary_labels(item.labels, len(item.trace.steps), LabelRule(neutral="good"))
                    whole_run = good_if == "all" or (good_if == "successful" and item.trace.outcome is True)
                    viewed_steps = call_steps(seen.trace)
                    calls: dict[bool | None, list[float | None]] = {True: [], False: [], None: []}
                    for call, step in call_steps(item.trace).items():
                        truth = True if labels_of[step].good is None and whole_run else labels_of[step].good
                        calls[truth].append(scores.scores[viewed_steps[call]])
                    good, bad = tuple(calls[True]), tuple(calls[False])
                    runs.append(g.RunScores(problem=item.problem.id, good=good, bad=bad))
        if not any(run.good for run in runs):
            raise RunError(f"no call counts as good with --good {good_if}; give --labels, or --good all")
        if all(score is None for run in runs for score in run.good):
            raise RunError(f"no good call has a score: {unscored or 'the scorer gives none'}")
        return runs

    @contextmanager
    def _scorer(self) -> Iterator[StepScorer]:
        if self.scores is not None:
            yield evaluation.StoredScores(read_table(self.scores, StepScores))
            return
        with self.reward_model.open(self.loading) as scorer:
            if scorer is not None:
                yield scorer


def _summary(fit: g.ThresholdFit, seen: Sequence[Channel]) -> Iterator[str]:
    """Lines for the terminal."""
    share = f"{fit.max_false_blocks:.1%} of good {fit.unit}s"
    data = f"{counted(fit.problems, 'problem')}, {counted(fit.runs, 'run')}"
    yield f"threshold {fit.threshold:.4g} blocks at most {share} ({data})"
    alarms = f"{fit.blocked_good_runs:.1%} of runs, {fit.blocked_good_calls:.1%} of calls"
    yield f"false alarms, cross-validated: {alarms}"
    if fit.blocked_bad_calls is None:
        yield "caught: not known, because no call is labelled bad"
    else:
        yield f"caught: {fit.blocked_bad_calls:.1%} of {counted(fit.bad_calls, 'call')} that are labelled bad"
    if fit.unscored_calls:
        yield f"{counted(fit.unscored_calls, 'call')} not scored; a guard that fails closed blocks them"
    view = "".join(f" --guard-monitor-sees {channel}" for channel in seen)
    yield f"use it with: surefoot serve --guard --guard-threshold {fit.threshold:.6g}{view}"


class CheckPolicy(Command):
    """Replay a tool policy over recorded runs: which calls it would have released, blocked, or not decided.

    Each call is judged after the recorded calls before it. Rules for tools that the runs do not list are
    refused.

    Example: `surefoot guard check policy.json --runs traces.jsonl --out replay.json`
    """

    policy: Annotated[str, o.INPUT, Flag(argument=True)] = Field(
        description="JSON file of a tool policy, or packaged ones joined by `+`: `shell+files+git+network`."
    )
    runs: Annotated[str, o.INPUT]
    """File of the runs, in any format that `surefoot import` reads."""
    out: Annotated[Path | None, Flag(output=True)] = None
    """JSON file with all counts, and each call that is not released."""

    def run(self) -> None:
        policy, runs = read_tool_policy(self.policy), read_table(self.runs, Trace)
        tools = {tool.name: tool for run in runs for tool in run.tools}
        if tools and packaged_policy(self.policy) is None:  # a packaged one is for all tools of Claude Code
            try:
                policy.check_tools(list(tools.values()))
            except ValueError as error:
                raise RunError(f"{self.policy}: {error}") from error
        replay = replay_policy(policy, runs)
        if self.out is not None:
            totals = {"runs": replay.runs, "calls": replay.calls, **replay.counts}
            write_json(self.out, {**totals, "rules": replay.rules, "stopped": replay.stopped})
        summary = ", ".join(f"{count} {name}" for name, count in replay.counts.items())
        echo(f"{counted(replay.calls, 'call')} of {counted(replay.runs, 'run')}: {summary}")
        columns = ("rule", "satisfied", "approval", "violated", "undecidable", "reason")
        headers = ("rule", "satisfied", "asked", "violated", "undecidable", "reason")
        echo_table(None, headers, ([str(row[column]) for column in columns] for row in replay.rules))
        for call in replay.stopped[:_SHOWN]:
            echo(f"{call['action']}: {call['tool']} {call['arguments'][:200]}")
            echo(f"  {call['trace_id']}: {call['reason']}")
