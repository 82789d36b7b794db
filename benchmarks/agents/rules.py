"""Rules on agent runs: planted faults in four domains, and how often each speaks in failed and other runs."""

from __future__ import annotations

import json
import tarfile
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.agents.real import share
from benchmarks.common.figures import Figures, figure
from surefoot.evaluation import Finding, inspect_traces
from surefoot.formats import ImportContext, ImportedTrace, ImportSettings, detect_format, import_traces
from surefoot.io import ReadReport
from surefoot.protocols import ProblemTrace
from surefoot.records import Message, Problem, Tool, ToolCall, Trace
from surefoot.segment import cut_trace, segment_trace

RUNS = [json.loads(line) for line in (Path(__file__).parent / "runs.jsonl").read_text("utf-8").splitlines()]
"""``run`` has what the user and the agent say, and calls of a tool with arguments and result; ``fault`` is
the rule that message ``at`` of the agent breaks, counted from 1."""


def planted_trace(row: dict[str, Any]) -> Trace:
    """The trace of a row of ``RUNS``; each message of the agent is a step."""
    messages: list[Message] = []
    for kind, *rest in row["run"]:
        if kind in ("user", "say"):
            messages.append(Message(role="user" if kind == "user" else "assistant", content=rest[0]))
            continue
        calls = rest if kind == "calls" else [(kind, *rest)]
        made = tuple(
            ToolCall(id=f"{len(messages)}.{number}", name=name, arguments=json.dumps(arguments))
            for number, (name, arguments, _) in enumerate(calls)
        )
        messages.append(Message(role="assistant", tool_calls=made))
        for call, (_, _, result) in zip(made, calls, strict=True):
            content = result if isinstance(result, str) else json.dumps(result)
            messages.append(Message(role="tool", tool_call_id=call.id, content=content))
    tools = tuple(Tool(name=name) for name in row["tools"])
    return segment_trace(Trace(problem_id="p", messages=tuple(messages), tools=tools), granularity="message")


def findings(traces: Sequence[ImportedTrace]) -> list[tuple[Trace, Sequence[Finding]]]:
    """Each trace with its findings."""
    found: list[tuple[Trace, Sequence[Finding]]] = []

    def add(item: ProblemTrace, of_trace: Sequence[Finding]) -> None:
        found.append((item.trace, of_trace))

    inspect_traces(traces, limit=0, each=add)
    return found


def planted() -> Figures:
    """Faults that are found at their step, and findings in right runs and at other steps."""
    traces = [ImportedTrace(problem=Problem(text="?"), trace=planted_trace(row)) for row in RUNS]
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for row, (_, found) in zip(RUNS, findings(traces), strict=True):
        counts[row["fault"] or "right runs"]["runs"] += 1
        for finding in found:
            kind = "advice" if finding.advice else "right" if finding.step == row["at"] else "wrong"
            counts[finding.check][kind] += 1
    return [
        figure(f"planted_{check}_{kind}", number, f"of {count['runs']} planted")
        for check, count in counts.items()
        for kind, number in count.items()
    ]


def archives(data: Path) -> Iterator[tuple[str, list[ImportedTrace]]]:
    """The runs of each archive or file of agent runs in a folder that says which runs failed."""
    for path in sorted(
        [*data.glob("*.tar.gz"), *data.glob("tau_bench*.json.gz"), *data.glob("*hotpotqa*.gz")]
    ):
        with tempfile.TemporaryDirectory() as folder:
            source = path
            if path.name.endswith(".tar.gz"):
                source = Path(folder)
                with tarfile.open(path) as archive:
                    archive.extractall(source, filter="data")
            context = ImportContext(settings=ImportSettings(), report=ReadReport(), failed=[])
            items = import_traces(source, detect_format(source, context.settings), context)
            runs = [(item.problem, item.trace) for item in items if item.trace is not None]
        yield (
            path.name.partition(".")[0],
            [
                ImportedTrace(problem=problem, trace=trace if trace.steps else cut_trace(trace))
                for problem, trace in runs
            ],
        )


def rule_figures(quick: bool, data: Path) -> Figures:
    """All of the above; shares of runs have intervals over tasks."""
    figures = planted()
    for name, traces in archives(data):
        found = findings(traces)
        for check in sorted({one.check for _, of_trace in found for one in of_trace}):
            rows = [(trace, any(one.check == check for one in of_trace)) for trace, of_trace in found]
            for outcome, word in ((False, "failed"), (True, "successful")):
                runs = [(trace.problem_id, hit) for trace, hit in rows if trace.outcome is outcome]
                if runs:
                    spoken = share(
                        [hit for _, hit in runs], [task for task, _ in runs], 100 if quick else 1000
                    )
                    figures.append(figure(f"{name}_{check}_{word}", 100 * spoken, f"% of {len(runs)} runs"))
    return figures
