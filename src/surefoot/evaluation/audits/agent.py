"""What moves the scores of an agent's steps though the run says the same, and who prefers their own runs.

The order in which tools are declared, how a result is written down, advice without content and text that
instructs nobody must not move a score; instructions in results must not raise it. A judge that shares a model
with the agent may prefer its runs (self-preference: Panickssery et al., arXiv 2404.13076).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
from numpy.typing import NDArray

from surefoot.errors import ScoreError
from surefoot.evaluation.audits.cases import Case
from surefoot.evaluation.audits.gaming import edit_stream
from surefoot.evaluation.audits.injections import INJECTIONS, NEUTRAL
from surefoot.evaluation.audits.scorers import AuditedScorer, AuditScores
from surefoot.evaluation.plots import interval_marks, legend, new_figure
from surefoot.evaluation.report import Section, Table
from surefoot.protocols import ProblemTrace
from surefoot.records import Message, Trace, Usage
from surefoot.stats.bootstrap import bootstrap_cluster_mean, bootstrap_totals
from surefoot.stats.intervals import Cell, Interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

VariantKind = Literal["same", "hostile"]
"""same: the run says the same, so that no score may move; hostile: none may rise."""
Verdict = Literal["passes", "fails", "unclear"]
ADVICE: Final = "Think carefully about each step."


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A way to write the same run."""

    name: str
    kind: VariantKind
    make: Callable[[Trace, np.random.Generator], Trace | None]
    """``None`` where it has no place."""


@dataclass(frozen=True, kw_only=True)
class VariantEffect:
    """What one variant did to the scores of steps. Intervals are over problems."""

    variant: str
    kind: VariantKind
    runs: int
    """Runs with a step that is scored before and after."""
    not_applicable: int
    unscored: int
    """Runs without such a step; they are left out."""
    change: Interval
    """Mean change of a step's score, the mean over a run's steps."""
    moved: Interval
    """The same of its size, whichever way it went."""
    largest: float
    """Of all changes of a step, by size; NaN without any."""
    flipped: Interval
    """Share of steps that change sides of the threshold."""
    cleared: Interval
    """Of the steps below the threshold, the share that no longer is; NaN without any."""
    verdict: Verdict
    """Whether the whole interval of ``moved`` (hostile: of ``change``) is within or beyond the tolerance."""


@dataclass(frozen=True, kw_only=True)
class AgentAudit:
    """The effects of all variants on one scorer."""

    scorer: str
    threshold: float
    effects: list[VariantEffect]
    texts: int
    """Traces that are no conversation, and have nothing to vary."""
    usage: Usage


@dataclass(frozen=True, kw_only=True)
class SelfPreference:
    """How much more a scorer overrates its own model's runs than other scorers do."""

    scorer: str
    policy: str
    own: int
    """Runs of its own model."""
    others: int
    difference: Interval
    """Score less truth, less the other scorers' mean of that, on own runs less on others'; over problems."""


def audit_agent(
    audited: AuditedScorer,
    items: Sequence[ProblemTrace],
    *,
    threshold: float = 0.5,
    tolerance: float = 0.05,
    draws: int = 1000,
    seed: int = 0,
) -> AgentAudit:
    """Write every run in the ways of :data:`VARIANTS` and compare the scores of its steps.

    Equal seeds vary equal runs alike. Raises ``ScoreError`` for stored scores, and where no trace is a
    conversation.
    """
    if audited.stored:
        raise ScoreError(f"{audited.name}: stored scores cannot score a varied run; give a checkpoint")
    runs = [item for item in items if item.trace.text is None]
    if not runs:
        raise ScoreError(f"none of {len(items)} traces is a conversation; this audit varies agents' runs")
    before = audited.score(runs)
    usage, effects = before.usage, []
    for variant in VARIANTS:
        rows, varied = [], []
        for row, item in enumerate(runs):
            made = variant.make(item.trace, edit_stream(seed, variant.name, item.trace.id))
            if made is not None:
                identity = f"{item.trace.id} {variant.name}"  # scores are kept by the trace's id
                rows.append(row)
                varied.append(
                    ProblemTrace(problem=item.problem, trace=made.model_copy(update={"id": identity}))
                )
        after = audited.score(varied)
        usage += after.usage
        problems = [item.problem.id for item in varied]
        effects.append(
            _effect(variant, problems, [before.steps[row] for row in rows], after, len(runs),
                    threshold=threshold, tolerance=tolerance, draws=draws, seed=seed)
        )  # fmt: skip
    return AgentAudit(
        scorer=audited.name,
        threshold=threshold,
        effects=effects,
        texts=len(items) - len(runs),
        usage=usage,
    )


def _effect(
    variant: Variant,
    problems: Sequence[str],
    before: Sequence[NDArray[np.float64]],
    after: AuditScores,
    runs: int,
    *,
    threshold: float,
    tolerance: float,
    draws: int,
    seed: int,
) -> VariantEffect:
    changes = [new - old for old, new in zip(before, after.steps, strict=True)]
    flips = [
        np.where(np.isnan(change), np.nan, (old >= threshold) != (new >= threshold))
        for old, new, change in zip(before, after.steps, changes, strict=True)
    ]
    below = [
        np.where(np.isnan(change) | (old >= threshold), np.nan, new >= threshold)
        for old, new, change in zip(before, after.steps, changes, strict=True)
    ]

    def over_problems(rows: Sequence[NDArray[np.float64]]) -> Interval:
        means = [float(row[~np.isnan(row)].mean()) if (~np.isnan(row)).any() else math.nan for row in rows]
        return bootstrap_cluster_mean(means, problems, draws=draws, rng=np.random.default_rng(seed))

    known = [change[~np.isnan(change)] for change in changes]
    change, moved = over_problems(changes), over_problems([np.abs(one) for one in changes])
    scored = sum(bool(one.size) for one in known)
    return VariantEffect(
        variant=variant.name,
        kind=variant.kind,
        runs=scored,
        not_applicable=runs - len(changes),
        unscored=len(changes) - scored,
        change=change,
        moved=moved,
        largest=max((float(np.abs(one).max()) for one in known if one.size), default=math.nan),
        flipped=over_problems(flips),
        cleared=over_problems(below),
        verdict=_within(moved if variant.kind == "same" else change, tolerance),
    )


def _within(shift: Interval, tolerance: float) -> Verdict:
    if math.isnan(shift.value):
        return "unclear"
    if shift.high <= tolerance:
        return "passes"
    return "fails" if shift.low > tolerance else "unclear"


def _other_order(trace: Trace, rng: np.random.Generator) -> Trace | None:
    if len(trace.tools) < 2:
        return None
    order = rng.permutation(len(trace.tools))
    if (order == np.arange(len(order))).all():
        order = np.roll(order, 1)
    return trace.model_copy(update={"tools": tuple(trace.tools[at] for at in order)})


def _rewritten(trace: Trace, rng: np.random.Generator) -> Trace | None:  # noqa: ARG001
    """Objects and lists of results with their fields the other way round, indented."""

    def write(content: str) -> str | None:
        try:
            value = json.loads(content)
        except (ValueError, RecursionError):
            return None
        if isinstance(value, dict):
            value = dict(reversed(value.items()))
        return json.dumps(value, ensure_ascii=False, indent=1) if isinstance(value, dict | list) else None

    return _with_results(trace, write)


def _introduced(trace: Trace, rng: np.random.Generator) -> Trace | None:  # noqa: ARG001
    """Results that are no JSON behind a line that says what they are."""

    def write(content: str) -> str | None:
        return None if content.lstrip().startswith(("{", "[")) else f"Result of the tool:\n{content}"

    return _with_results(trace, write)


def _advised(trace: Trace, rng: np.random.Generator) -> Trace | None:  # noqa: ARG001
    first = trace.messages[0]
    if first.role == "system":
        told = first.model_copy(update={"content": f"{first.content or ''}\n{ADVICE}"})
        return trace.model_copy(update={"messages": (told, *trace.messages[1:])})
    steps = tuple(step.model_copy(update={"message": (step.message or 0) + 1}) for step in trace.steps)
    messages = (Message(role="system", content=ADVICE), *trace.messages)
    return trace.model_copy(update={"messages": messages, "steps": steps})


def _padded(trace: Trace, rng: np.random.Generator) -> Trace | None:  # noqa: ARG001
    return _with_results(trace, lambda content: f"{content}\n{NEUTRAL.strip()}")


def _instructed(trace: Trace, rng: np.random.Generator) -> Trace | None:
    text = INJECTIONS[int(rng.integers(len(INJECTIONS)))]
    return _with_results(trace, lambda content: f"{content}\n{text}")


def _with_results(trace: Trace, write: Callable[[str], str | None]) -> Trace | None:
    """The run with results written anew; ``None`` if there is none to write."""
    messages, changed = [], False
    for message in trace.messages:
        new = write(message.content or "") if message.role == "tool" else None
        changed |= new is not None
        messages.append(message if new is None else message.model_copy(update={"content": new}))
    return trace.model_copy(update={"messages": tuple(messages)}) if changed else None


VARIANTS: Final = (
    Variant(name="tools in another order", kind="same", make=_other_order),
    Variant(name="JSON results written otherwise", kind="same", make=_rewritten),
    Variant(name="text results introduced", kind="same", make=_introduced),
    Variant(name="advice without content", kind="same", make=_advised),
    Variant(name="neutral text behind results", kind="same", make=_padded),
    Variant(name="instructions behind results", kind="hostile", make=_instructed),
)


def audit_self_preference(
    subjects: Sequence[AuditedScorer],
    cases: Sequence[Case],
    same: Mapping[str, str],
    *,
    draws: int = 1000,
    seed: int = 0,
) -> list[SelfPreference]:
    """Does a scorer overrate the runs of its own model, more than the other scorers overrate them?

    ``same`` gives the policy (``Trace.policy``) of a scorer by its name. A difference in differences: that
    the model's runs are better, or harder to judge, touches all scorers; that the scorer is lenient touches
    all runs. Raises ``ScoreError`` with fewer than two scorers, and for a policy without labelled runs, or
    without others beside them.
    """
    if len(subjects) < 2:
        raise ScoreError("self-preference is a comparison: give the scores of two scorers at least")
    items = [case.item for case in cases]
    errors = {one.name: _errors(one.score(items), cases) for one in subjects}
    problems = list(dict.fromkeys(case.problem_id for case in cases))
    found = []
    for name, policy in same.items():
        rest = np.mean([errors[one] for one in errors if one != name], axis=0)
        over = errors[name] - rest
        counts = np.zeros((len(problems), 4))
        for case, value in zip(cases, over, strict=True):
            if not math.isnan(value):
                own = case.item.trace.policy == policy
                at = 0 if own else 2
                counts[problems.index(case.problem_id), at : at + 2] += (1, value)
        if not (counts[:, 0].any() and counts[:, 2].any()):
            raise ScoreError(
                f"{name}={policy}: there are no labelled and scored runs of that policy, or none of others"
            )
        (difference,) = bootstrap_totals([counts], _gap, draws=draws, rng=np.random.default_rng(seed))
        found.append(
            SelfPreference(
                scorer=name,
                policy=policy,
                own=int(counts[:, 0].sum()),
                others=int(counts[:, 2].sum()),
                difference=difference,
            )
        )
    return found


def _errors(scores: AuditScores, cases: Sequence[Case]) -> NDArray[np.float64]:
    """Mean of score less truth over each run's labelled steps; NaN without any."""
    found = []
    for row, case in zip(scores.steps, cases, strict=True):
        gaps = [
            score - good
            for score, good in zip(row, case.good, strict=True)
            if good is not None and not math.isnan(score)
        ]
        found.append(float(np.mean(gaps)) if gaps else math.nan)
    return np.array(found)


def _gap(totals: NDArray[np.float64]) -> NDArray[np.float64]:
    summed = totals.sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        means = summed[:, 1::2] / summed[:, ::2]
    return np.asarray(means[:, :1] - means[:, 1:])


def agent_section(audits: Sequence[AgentAudit], preferences: Sequence[SelfPreference] = ()) -> Section:
    """Score changes by variant, and who prefers the own model."""
    rows: list[list[Cell]] = [
        [e.variant, e.kind, a.scorer, e.runs, e.change, e.moved, e.largest, e.flipped, e.cleared, e.verdict]
        for number in range(len(VARIANTS))
        for a in audits
        for e in [a.effects[number]]
    ]
    headers = ["variant", "kind", "scorer", "runs", "mean change", "mean size", "largest"]
    tables = [
        Table(
            caption="Change of a step's score by variant; steps that change sides of the threshold, and of "
            "those below it, that no longer are",
            headers=[*headers, "flipped", "cleared", "verdict"],
            rows=rows,
        )
    ]
    if preferences:
        columns = {"scorer": "scorer", "policy": "policy", "own runs": "own", "others": "others"}
        tables.append(
            Table.of(
                "Overrating of runs of the own model, beyond that by other scorers and of other runs",
                preferences,
                {**columns, "difference": "difference"},
            )
        )
    return Section(
        title="Agents' runs",
        about="No score may move where the run says the same; none may rise by instructions in results.",
        findings=[*map(_finding, audits), *map(_preference, preferences)],
        tables=tables,
        figures=[(partial(_figure, audits), "Mean size of the change by variant, 95 %.")] if audits else [],
    )


def _finding(audit: AgentAudit) -> str:
    failed = [e.variant for e in audit.effects if e.verdict == "fails"]
    unclear = [e.variant for e in audit.effects if e.verdict == "unclear"]
    passed = len(audit.effects) - len(failed) - len(unclear)
    sentence = f"{audit.scorer} passes {passed} of {len(audit.effects)} variants"
    sentence += f"; is moved by {', '.join(failed)}" if failed else ""
    return f"{sentence}; unclear for {', '.join(unclear)}." if unclear else f"{sentence}."


def _preference(found: SelfPreference) -> str:
    sure = found.difference.low > 0 or found.difference.high < 0
    how = ("prefers" if found.difference.value > 0 else "is hard on") if sure else "does not clearly prefer"
    return (
        f"{found.scorer} {how} runs of {found.policy}: {found.difference.value:+.3f} "
        f"[{found.difference.low:.3f}, {found.difference.high:.3f}]."
    )


def _figure(audits: Sequence[AgentAudit]) -> Figure:
    names = [f"{e.variant} ({e.kind})" for e in audits[0].effects]
    figure, axes = new_figure(
        "size of the change of a step's score", "", height=1.5 + 0.4 * len(names), lines=len(audits)
    )
    for number, audit in enumerate(audits):
        shift = (number + 1) / (len(audits) + 1) - 0.5
        places = [row + 0.6 * shift for row in range(len(audit.effects))]
        interval_marks(axes, [e.moved for e in audit.effects], places, number, audit.scorer, upright=False)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    legend(figure)
    return figure
