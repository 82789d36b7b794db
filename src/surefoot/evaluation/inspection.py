"""What a file of solutions or agent runs contains, and which of its steps look wrong, without any model.

Every check is conservative: a run on which none of them speaks is unchecked, neither right nor wrong.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from types import MappingProxyType
from typing import Final

from surefoot.evaluation.verdict import inspection_sentence
from surefoot.formats.imports import IMPORT_KEY, ImportedTrace
from surefoot.labelling.verifiers.equations.verifier import EquationVerifier
from surefoot.labelling.verifiers.gold_calls import compare_gold_calls
from surefoot.labelling.verifiers.state_replay import gold_calls
from surefoot.labelling.verifiers.tool_calls import ADVICE, ToolCallVerifier
from surefoot.labelling.verifiers.tool_policy import CallResult, call_results
from surefoot.messages import call_arguments
from surefoot.protocols import ProblemTrace, StepVerifier, Verdict, verify_each
from surefoot.records import Problem, StepScores, Trace

CHECKS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "gold-call": "a call that changes something, with other arguments than the gold calls of its tool",
        "unsupported-argument": "an id, amount, date or path in a call that no earlier message contains",
        "ignored-error": "an answer after a failed call that does not mention the failure",
        "claim-without-call": "an answer that says that something was done which no successful call did",
        "call-in-text": "a call that is written as text, so that no tool was called",
        "equation": "an equation that does not hold",
        "unsupported-claim": "an identifier in an answer that no earlier message contains",
        "repeated-call": "the same call again, with nothing in between that could change its result",
        "schema": "a call that the tool's declared schema does not allow",
        "wrong-answer": "a wrong answer after few messages, if no check above speaks; at the last step",
        "missing-gold-call": "a gold call that the run does not make; shown at the last step",
        "empty-answer": "a run or solution without an answer",
        "truncated": "an answer that was cut off, by a limit, a failure or a filter",
    }
)
"""All checks, the most reliable first; this is the order of the most suspicious steps."""
BLAMING: Final = tuple(CHECKS)[:10]
"""Checks whose findings can be a verdict on a step: at least 70 % of the steps that they name were wrong on
every corpus with ten such steps. The others say that something is odd, not which step is wrong."""
_SHORT_RUN = 4
"""Messages of the agent up to which the last step is the likely first error if the answer is wrong."""
_PER_CHECK = 3
"""Steps of one check among the most suspicious, unless the others leave room."""
_TOP, _QUOTED, _NAMES = 10, 160, 8
_COMPACT = re.compile(r"[,:](?=[\"\[{])")
"""Where compact JSON lacks the space at which a line can break."""

_COUNTED: Final = (
    "problems", "problems with a reference answer", "traces", "solutions", "chats", "agent runs", "correct",
    "wrong", "of unknown outcome", "cut off by a limit or a filter", "with gold calls",
    "with declared tools", "without any step", "steps",
)  # fmt: skip
_JSON_TYPES: Final[Mapping[type, str]] = {
    bool: "boolean", dict: "object", float: "number", int: "number", list: "array", str: "string",
    type(None): "null",
}  # fmt: skip
Readable = ImportedTrace | StepScores


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One suspicious step."""

    check: str
    trace_id: str
    problem_id: str
    outcome: bool | None
    """Whether the run succeeded, as the file says."""
    file: str | None
    """Its file, if several were read."""
    row: int | None
    """Row of the trace in its file, counted from 1, where the format has rows."""
    step: int
    """Number of the step, counted from 1; 0 in a trace without steps."""
    reason: str
    quote: str
    """The beginning of the step's text."""
    advice: bool = False
    """Too unreliable for a verdict: worth a look, and no label."""


@dataclass(frozen=True, kw_only=True)
class ToolUse:
    """Calls of one tool in all runs."""

    name: str
    calls: int
    errors: int
    arguments: str
    """Names and JSON types of its arguments in successful calls."""


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """The contents of a file, and what the checks find in it."""

    contents: Mapping[str, int]
    """Counts; empty kinds are left out."""
    lengths: Mapping[str, str]
    """Median and maximum of the traces' steps, messages and characters."""
    models: Mapping[str, int]
    """Traces by the model that wrote them."""
    labels: Mapping[str, int]
    """Labels by kind and value."""
    tools: tuple[ToolUse, ...]
    findings: Mapping[str, int]
    """Suspicious steps by check."""
    advice: Mapping[str, int]
    """The subset that only advises, without a verdict."""
    first_suspicious: tuple[Finding, ...]
    """For each run with a verdict, the first step that has one."""
    with_findings: int
    """Traces in which a check speaks."""
    all_findings: tuple[Finding, ...]
    """Verdicts before advice, then the most reliable checks first."""
    complete: bool
    """Whether all traces were read; otherwise only the first ones."""

    @property
    def most_suspicious(self) -> tuple[Finding, ...]:
        """The first findings, of each check no more than a few unless the others leave room."""
        ranks, of_check = [], Counter[tuple[bool, str]]()
        for finding in self.all_findings:
            kind = finding.advice, finding.check
            of_check[kind] += 1
            ranks.append((finding.advice, of_check[kind] > _PER_CHECK))
        order = sorted(range(len(ranks)), key=ranks.__getitem__)
        return tuple(self.all_findings[at] for at in order[:_TOP])

    @property
    def summary(self) -> str:
        """What the checks say of the traces, in one sentence."""
        traces, named = self.contents.get("traces", 0), len(self.first_suspicious)
        return inspection_sentence(traces, named, self.with_findings)


def inspect_traces(
    items: Iterable[Readable],
    *,
    limit: int = 5000,
    each: Callable[[ProblemTrace, Sequence[Finding]], None] = lambda *_: None,
) -> Inspection:
    """Inspect items one by one; a problem comes with its first trace, or before.

    ``limit`` bounds the number of traces (0 = all); ``each`` is called with each trace and its findings.
    Traces need steps.
    """
    contents, checker, first, all_findings = _Contents(), _Checker(), list[Finding](), list[Finding]()
    with_findings = 0
    for imported in _first(items, limit):
        if (item := contents.add(imported)) is not None:
            findings = checker.findings(item)
            first += first_suspicious(findings)
            all_findings += findings
            with_findings += bool(findings)
            each(item, findings)
    by_check = Counter(finding.check for finding in all_findings)
    order = {name: number for number, name in enumerate(CHECKS)}
    return Inspection(
        contents={name: count for name, count in (contents.counts + checker.failures).items() if count},
        lengths=contents.lengths(),
        models=dict(contents.models.most_common(_NAMES)),
        labels=dict(sorted(contents.labels.items())),
        tools=contents.tools(),
        findings={name: by_check[name] for name in CHECKS if by_check[name]},
        advice=dict(Counter(finding.check for finding in all_findings if finding.advice)),
        first_suspicious=tuple(first),
        with_findings=with_findings,
        all_findings=tuple(sorted(all_findings, key=lambda finding: (finding.advice, order[finding.check]))),
        complete=not limit or contents.counts["traces"] < limit,  # with as many, there may be more
    )


def first_suspicious(findings: Sequence[Finding]) -> list[Finding]:
    """The first step of one run with a verdict, or nothing."""
    blaming = [finding for finding in findings if not finding.advice]
    return sorted(blaming, key=lambda finding: (finding.step, BLAMING.index(finding.check)))[:1]


def _first(items: Iterable[Readable], limit: int) -> Iterator[Readable]:
    """The items up to the first trace beyond ``limit``."""
    traces = 0
    for item in items:
        traces += isinstance(item, ImportedTrace) and item.trace is not None
        if limit and traces > limit:
            return
        yield item


@dataclass
class _Contents:
    """Counts of one pass over the file."""

    counts: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(_COUNTED, 0)))
    models: Counter[str] = field(default_factory=Counter)
    labels: Counter[str] = field(default_factory=Counter)
    problems: dict[str, Problem] = field(default_factory=dict)
    sizes: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    calls: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    arguments: dict[str, set[tuple[str, str]]] = field(default_factory=lambda: defaultdict(set))
    """By tool: names and JSON types of the arguments of successful calls."""

    def add(self, imported: Readable) -> ProblemTrace | None:
        """Count an item; returns its trace with the problem."""
        if isinstance(imported, StepScores):
            self.counts[f"traces with scores by {imported.scorer}"] += 1
            return None
        problem, trace = imported.problem, imported.trace
        if problem is not None and problem.id not in self.problems:
            self.problems[problem.id] = problem
            self.counts["problems"] += 1
            self.counts["problems with a reference answer"] += problem.answer is not None
        for label in imported.labels:
            value = "unknown" if label.value is None else f"{label.value:+g}"
            self.labels[f"correctness {value}" if label.kind == "correctness" else label.kind] += 1
        if trace is None:
            return None
        unknown = Problem(id=trace.problem_id, text="(the file lacks its problem)")
        item = ProblemTrace(problem=self.problems.get(trace.problem_id, unknown), trace=trace)
        self._add_trace(item)
        return item

    def _add_trace(self, item: ProblemTrace) -> None:
        trace = item.trace
        with_calls = any(message.tool_calls for message in trace.messages)
        kind = "agent runs" if with_calls else "chats" if trace.messages else "solutions"
        outcome = {True: "correct", False: "wrong", None: "of unknown outcome"}[trace.outcome]
        self.counts.update(["traces", kind, outcome])
        self.counts["steps"] += len(trace.steps)
        self.counts["without any step"] += not trace.steps
        self.counts["cut off by a limit or a filter"] += trace.cut_off
        self.counts["with gold calls"] += gold_calls(item) is not None
        self.counts["with declared tools"] += bool(trace.tools)
        if trace.policy:
            self.models[trace.policy] += 1
        self.sizes["steps"].append(len(trace.steps))
        characters = sum(len(message.content or "") for message in trace.messages)
        self.sizes["characters"].append(len(trace.text or "") or characters)
        if trace.messages:
            self.sizes["messages"].append(len(trace.messages))
        for result in call_results(trace.messages):
            self.calls[result.call.name] += 1
            self.errors[result.call.name] += result.result is not None and not result.succeeded
            if result.succeeded:
                sent = call_arguments(result.call) or {}
                types = {(name, _JSON_TYPES[type(value)]) for name, value in sent.items()}
                self.arguments[result.call.name] |= types

    def lengths(self) -> dict[str, str]:
        return {name: f"{median(sizes):,.0f}, {max(sizes):,}" for name, sizes in self.sizes.items()}

    def tools(self) -> tuple[ToolUse, ...]:
        return tuple(
            ToolUse(
                name=name,
                calls=calls,
                errors=self.errors[name],
                arguments=", ".join(f"{key}: {kind}" for key, kind in sorted(self.arguments[name])),
            )
            for name, calls in self.calls.most_common()
        )


class _Checker:
    """All checks of one trace."""

    def __init__(self) -> None:
        self._equations, self._tool_calls = EquationVerifier(), ToolCallVerifier()
        self.failures: Counter[str] = Counter()
        """Traces that a verifier failed on."""

    def findings(self, item: ProblemTrace) -> list[Finding]:
        """The suspicious steps, in order."""
        trace = item.trace
        pairs, advice = [*self._of_answer(item)], list[tuple[int, str]]()
        if trace.messages:
            pairs += self._of_calls(item)
            for step, verdict in enumerate(self._verdicts(self._tool_calls, item)):
                reason = verdict.reason or ""
                if verdict.value == -1 or reason.startswith(ADVICE):
                    check, _, reason = reason.removeprefix(ADVICE).partition(": ")
                    pairs.append((step, check, reason))
                    advice += [(step, check)] * (verdict.value is None)
        for step, verdict in enumerate(self._verdicts(self._equations, item)):
            if verdict.value == -1:
                pairs.append((step, "equation", (verdict.reason or "").removeprefix("does not hold: ")))
        messages = sum(message.role == "assistant" for message in trace.messages)
        answer, reference = trace.answer, item.problem.answer
        wrong = trace.outcome is False and answer is not None and reference is not None
        named = any(check in BLAMING and (step, check) not in advice for step, check, _ in pairs)
        if wrong and 0 < messages <= _SHORT_RUN and not named:
            why = f"the answer is {answer}, the reference {reference}"
            pairs.append((len(trace.steps) - 1, "wrong-answer", _shortened(why)))
        note = trace.meta.get(IMPORT_KEY) or {}
        return [
            Finding(
                trace_id=trace.id,
                problem_id=trace.problem_id,
                outcome=trace.outcome,
                file=note.get("file"),
                row=note.get("row"),
                step=step + 1,
                check=check,
                reason=reason,
                quote=_shortened(trace.step_text(step)) if step >= 0 else "",
                advice=check not in BLAMING or (step, check) in advice,
            )
            for step, check, reason in sorted(pairs, key=lambda pair: pair[0])
        ]

    def _verdicts(self, verifier: StepVerifier, item: ProblemTrace) -> list[Verdict]:
        [verdicts] = verify_each(verifier, [item])
        if any(verdict.failed for verdict in verdicts):
            self.failures[f"traces that the check {verifier.name} failed on"] += 1
        return verdicts

    def _of_calls(self, item: ProblemTrace) -> Iterator[tuple[int, str, str]]:
        trace, gold = item.trace, compare_gold_calls(item)
        if gold is None:
            return
        for result in call_results(trace.messages):
            verdict = gold.verdicts[result.message, result.number]
            if verdict.value == -1:
                yield _step_of(trace, result), "gold-call", f"{result.call.name}: {verdict.reason}"
        for call in gold.missing:
            yield len(trace.steps) - 1, "missing-gold-call", _shortened(str(call))

    def _of_answer(self, item: ProblemTrace) -> Iterator[tuple[int, str, str]]:
        trace = item.trace
        last = len(trace.steps) - 1
        answers = [message for message in trace.messages if message.role == "assistant"]
        if trace.cut_off:
            yield last, "truncated", f"it ended with {trace.finish_reason}"
        written = [answer.tool_calls or (answer.content or "").strip() for answer in answers[-1:]]
        if not (trace.text or "").strip() and not any(written):
            yield last, "empty-answer", trace.error or "the last message has neither text nor calls"


def _step_of(trace: Trace, result: CallResult) -> int:
    """The step of a call."""
    steps = [
        number
        for number, step in enumerate(trace.steps)
        if step.message == result.message and (step.part == "message" or step.call == result.number)
    ]
    return steps[0] if steps else len(trace.steps) - 1


def _shortened(text: str) -> str:
    line = _COMPACT.sub(r"\g<0> ", " ".join(text.split()))
    return line if len(line) <= _QUOTED else f"{line[: _QUOTED - 1]}…"
