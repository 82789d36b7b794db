"""How often rules and judges name the first bad step of an agent's run.

    python recipes/first-bad-step/run.py RUNS [JUDGEMENTS]

RUNS is anything that ``surefoot import`` reads. With labels of people (AgentProcessBench) the script prints
for each way to name a step its coverage, the share of runs with a wrong step in which it names one, and its
precision, the share of named steps that are the first wrong one. By outcomes it prints how much more often
failed runs have a finding than successful runs of the same task. JUDGEMENTS is AgentProcessBench's file of
people's and judges' labels; pairs of judges name the step on which both agree.

The combination without a model takes a rule's verdict, else the last step of a run that the other runs of its
task outvote, else of one whose answer says that there is none. Its order and its numbers were chosen on every
second task.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from surefoot.evaluation import Finding, inspect_traces
from surefoot.formats import ImportContext, ImportSettings, detect_format, import_traces
from surefoot.formats.imports import ImportedTrace
from surefoot.formats.rows import raw_rows
from surefoot.io import ReadReport
from surefoot.labelling import call_results
from surefoot.labels import LabelRule, binary_labels, first_error
from surefoot.messages import call_arguments
from surefoot.records import StepLabel, Trace
from surefoot.segment import segment_trace
from surefoot.stats.bootstrap import Resample, bootstrap_statistic

RULE = LabelRule(neutral="good")
CHECK = re.compile(
    r"\b(?:pytest|unittest|npm test|make test|go test|cargo test|assert|verify|check|diff|test)\b"
)
NO_ANSWER = re.compile(
    r"insufficient|cannot|can't|could not|couldn't|not (?:clear|clearly|documented|specified|found|available"
    r"|possible|provide|enough)|no (?:individual|information|clear|direct|specific|answer)|none|unable"
    r"|unknown|please provide|neither|more (?:information|context)",
    re.IGNORECASE,
)
STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        "the a an of to in is was for on and or by with as at from that this which it be are were who what "
        "when where did do does how i we you he she they his her their its not has have had but if than then "
        "there so about into will can could would may also",
    )
)
EDIT = re.compile(r"<<|\bsed -i|\btee\b|\bpatch\b|>\s*\S+\.\w+")


def read(path: str) -> list[ImportedTrace]:
    """All runs of a file or folder."""
    context = ImportContext(settings=ImportSettings(), report=ReadReport(), failed=[])
    found = import_traces(path, detect_format(path), context)
    return [cut(item) for item in found if item.trace is not None]


def cut(item: ImportedTrace) -> ImportedTrace:
    """With the run's steps, if the format has none."""
    trace = item.trace
    return item if trace is None or trace.steps else replace(item, trace=segment_trace(trace))


def without_outcome(item: ImportedTrace) -> ImportedTrace:
    """As a check must see it that is measured by the outcome: without outcome and gold calls."""
    problem = item.problem and item.problem.model_copy(update={"meta": {}})  # gold calls may be in it
    trace = item.trace and item.trace.model_copy(update={"outcome": None, "meta": {}})
    return replace(item, problem=problem, trace=trace, labels=())


def step_at(trace: Trace, message: int) -> int | None:
    """The last step of a message."""
    return max((n for n, step in enumerate(trace.steps) if step.message == message), default=None)


def failed_calls(trace: Trace) -> list[int]:
    """Messages with a call that failed."""
    return [r.message for r in call_results(trace.messages) if r.result is not None and not r.succeeded]


def first_failed(trace: Trace) -> int | None:
    """The step of the first failed call."""
    return next((step_at(trace, message) for message in failed_calls(trace)), None)


def last_failed(trace: Trace) -> int | None:
    """The step of a failed call after which no call succeeded."""
    results = list(call_results(trace.messages))
    return step_at(trace, results[-1].message) if results and not results[-1].succeeded else None


def longest(trace: Trace) -> int | None:
    """The step whose result is the longest."""
    results = [r for r in call_results(trace.messages) if r.result is not None]
    best = max(results, key=lambda r: len(r.result.content or ""), default=None)
    return None if best is None else step_at(trace, best.message)


def unchecked(trace: Trace) -> int | None:
    """The last step, if a file was changed and nothing was checked after the last change."""
    results = call_results(trace.messages)
    texts = [" ".join(map(str, (call_arguments(r.call) or {}).values())) for r in results]
    edits = [n for n, text in enumerate(texts) if EDIT.search(text)]
    checks = [n for n, text in enumerate(texts) if CHECK.search(text)]
    silent = bool(edits) and max(checks, default=-1) <= edits[-1]
    return len(trace.steps) - 1 if silent and trace.steps else None


def answer(trace: Trace) -> str:
    """What the run answers."""
    last = trace.step_text(len(trace.steps) - 1) if trace.steps else ""
    found = re.findall(r"<answer>(.*?)</answer>", last, re.DOTALL)
    return trace.answer or (found[-1] if found else "")


def agree(one: str, other: str) -> bool:
    """Whether two answers have the same words, the words of one hold the other's, or most are common."""
    a, b = (set(re.findall(r"[a-z0-9]+", text.lower())) - STOP_WORDS for text in (one, other))
    return bool(a and b) and (a <= b or b <= a or len(a & b) >= 0.3 * (len(a) + len(b)))


def outvoted(runs: Sequence[Trace]) -> dict[str, int]:
    """The last step of each run whose answer three other runs of the task or more contradict with one voice,
    two more than give its own answer."""
    by_task: dict[str, list[Trace]] = defaultdict(list)
    for trace in runs:
        by_task[trace.problem_id].append(trace)
    named: dict[str, int] = {}
    for group in by_task.values():
        for trace in group:
            others = [other for other in group if other is not trace]
            own = 1 + sum(agree(answer(trace), answer(other)) for other in others)
            against = [
                sum(agree(answer(rival), answer(other)) for other in others if other is not rival) + 1
                for rival in others
                if not agree(answer(rival), answer(trace))
            ]
            if trace.steps and max(against, default=0) >= max(3, own + 2):
                named[trace.id] = len(trace.steps) - 1
    return named


def gives_up(trace: Trace) -> int | None:
    """The last step, if the answer says that there is none (English only)."""
    return len(trace.steps) - 1 if trace.steps and NO_ANSWER.search(answer(trace)) else None


def share(hits: Sequence[float], of: Sequence[float], tasks: Sequence[str]) -> str:
    """A ratio with its interval over tasks."""
    h, n = np.array(hits, dtype=float), np.array(of, dtype=float)

    def ratio(sample: Resample) -> float:
        return h[sample.items].sum() / n[sample.items].sum() if n[sample.items].sum() else np.nan

    return format(bootstrap_statistic(tasks, ratio, rng=np.random.default_rng(0)), ".1%")


def against_labels(
    name: str, named: Sequence[int | None], truth: Sequence[int | None], tasks: Sequence[str]
) -> None:
    """Coverage among runs with a first wrong step, precision among named steps, alarms in runs without."""
    wrong = [float(t is not None and t >= 0) for t in truth]
    right = [float(t == -1) for t in truth]
    spoke = [float(n is not None) for n in named]
    hit = [float(n is not None and n == t) for n, t in zip(named, truth, strict=True)]
    both = [w * s for w, s in zip(wrong, spoke, strict=True)]
    alarm = [r * s for r, s in zip(right, spoke, strict=True)]
    known = [s * float(t is not None) for s, t in zip(spoke, truth, strict=True)]
    columns = (share(both, wrong, tasks), share(hit, known, tasks), share(alarm, right, tasks))
    print(f"  {name[:48]:48} " + " ".join(f"{column:22}" for column in columns))


def lift(name: str, spoke: Sequence[bool], runs: Sequence[Trace]) -> None:
    """The difference between failed and successful runs of tasks that have both."""
    by_task: dict[str, list[tuple[bool, bool]]] = defaultdict(list)
    for said, trace in zip(spoke, runs, strict=True):
        if trace.outcome is not None:
            by_task[trace.problem_id].append((said, trace.outcome))
    rows = []
    for pairs in by_task.values():
        bad = [said for said, outcome in pairs if not outcome]
        good = [said for said, outcome in pairs if outcome]
        if bad and good:
            rows.append((np.mean(bad), np.mean(good)))
    table = np.array(rows)
    gaps = bootstrap_statistic(
        range(len(table)),
        lambda sample: float((table[sample.items, 0] - table[sample.items, 1]).mean()),
        rng=np.random.default_rng(0),
    )
    failed, right = table.mean(axis=0)
    print(f"  {name[:48]:48} failed {failed:6.1%}  right {right:6.1%}  {gaps:+.1p}  {len(table)} tasks")


def main() -> None:
    """Read the runs, then the judgements."""
    items = read(sys.argv[1])
    runs = [item.trace for item in items if item.trace is not None]
    tasks = [trace.problem_id for trace in runs]
    verdicts: dict[str, int] = {}
    findings: dict[str, int] = {}

    def note(_: object, found: Sequence[Finding]) -> None:
        for finding in found:
            step = finding.step - 1
            findings[finding.trace_id] = min(step, findings.get(finding.trace_id, step))
            if not finding.advice:
                verdicts[finding.trace_id] = min(step, verdicts.get(finding.trace_id, step))

    inspect_traces((without_outcome(item) for item in items), limit=0, each=note)
    ways: dict[str, Callable[[Trace], int | None]] = {
        "rules: verdicts": lambda trace: verdicts.get(trace.id),
        "rules: with advice": lambda trace: findings.get(trace.id),
        "last step": lambda trace: len(trace.steps) - 1 if trace.steps else None,
        "first failed call": first_failed,
        "no success after failure": last_failed,
        "no check after last edit": unchecked,
        "longest result": longest,
    }

    votes = outvoted(runs)

    def combined(trace: Trace) -> int | None:
        order = (verdicts.get(trace.id), votes.get(trace.id), gives_up(trace))
        return next((step for step in order if step is not None), None)

    def without_verdicts(trace: Trace) -> int | None:
        return votes[trace.id] if trace.id in votes else gives_up(trace)

    ways |= {
        "outvoted by the task's other runs": lambda trace: votes.get(trace.id),
        "answer that gives up": gives_up,
        "outvoted, else gives up": without_verdicts,
        "verdicts, else outvoted, else gives up": combined,
    }
    labels: list[Sequence[StepLabel]] = [item.labels for item in items]
    if any(labels):
        truth = [
            first_error([b.good for b in binary_labels(of, len(trace.steps), RULE)])
            for of, trace in zip(labels, runs, strict=True)
        ]
        order = {task: number for number, task in enumerate(dict.fromkeys(tasks))}
        parts = {"all tasks": (0, 1), "even tasks: chosen on": (0,), "odd tasks: tested on": (1,)}
        for part, halves in parts.items():
            at = [n for n, task in enumerate(tasks) if order[task] % 2 in halves]
            wrong = sum((truth[n] or 0) >= 0 and truth[n] is not None for n in at)
            print(f"{part}, {len(at)} runs, {wrong} with a wrong step: coverage, precision, alarms in others")
            for name, way in ways.items():
                named = [way(runs[n]) for n in at]
                against_labels(name, named, [truth[n] for n in at], [tasks[n] for n in at])
    if any(trace.outcome is not None for trace in runs):
        print(f"{len(runs)} runs: share with a finding, by outcome, in tasks with both")
        for name, way in ways.items():
            lift(name, [way(trace) is not None for trace in runs], runs)
    for path in sys.argv[2:]:
        judgements(Path(path))


def judgements(path: Path) -> None:
    """Judges alone, and the pairs that agree most precisely in at least two fifths of the runs."""
    judged = [row for _, row in raw_rows(path)]
    tasks = [f"{row['data_source']}:{row['query_index']}" for row in judged]
    truth = [_first_wrong(row["human_step_labels"], row) for row in judged]
    rows: dict[str, list[int | None]] = defaultdict(list)
    for row in judged:
        for name, of in row["judges"].items():
            found = _first_wrong(of["step_labels"], row)
            rows[name].append(None if found == -1 else found)
    wrong = sum(t is not None and t >= 0 for t in truth)
    print(f"{len(judged)} runs with judges, {wrong} with a wrong step: coverage, precision, alarms")
    for name, named in sorted(rows.items()):
        against_labels(name, named, truth, tasks)
    against_labels("last step", [len(row["human_step_labels"]) - 1 for row in judged], truth, tasks)
    pairs = []
    for one, other in combinations(rows, 2):
        named = [a if a == b else None for a, b in zip(rows[one], rows[other], strict=True)]
        known = [(n, t) for n, t in zip(named, truth, strict=True) if n is not None and t is not None]
        if sum(t >= 0 for _, t in known) >= 0.4 * wrong:
            pairs.append((sum(n == t for n, t in known) / len(known), f"{one} and {other}", named))
    for _, name, named in sorted(pairs, key=lambda pair: -pair[0])[:5]:
        against_labels(name, named, truth, tasks)


def _first_wrong(signs: Mapping[str, int | None], row: Mapping[str, Any]) -> int | None:
    """The first step that is not labelled 0 or 1; -1 for none, ``None`` if a missing label hides it."""
    said = [signs.get(message) for message in row["human_step_labels"]]
    return first_error([None if sign is None else sign >= 0 for sign in said])


if __name__ == "__main__":
    main()
