"""Who&When (arXiv 2505.00212): the agent and step that caused a failed run, with baselines.

A prediction is a step; its agent is the speaker of that step. As in the paper all runs count, so a run
without a prediction is wrong. The paper's script searches for the true step within the digits of the
predicted one ("1" in "12") and for the true name within the predicted one; here both must be equal, names in
any case.

Figures, with 95 % intervals over problems: ``agent``, the share of runs whose agent is found; ``within``, by
steps, the share whose true step is at most so far away (0 is the step accuracy); ``missing`` runs without a
prediction, which are wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from surefoot.errors import LabelError, counted
from surefoot.evaluation.benchmarks.agent_steps import Kind
from surefoot.evaluation.frame import JudgedTrace
from surefoot.evaluation.measures import Measured, Ratios, members_by
from surefoot.evaluation.report import Section
from surefoot.evaluation.splits import HALVES, half_of
from surefoot.evaluation.step_scores import System
from surefoot.evaluation.verdict import Conclusion, Counts, detected
from surefoot.formats.who_and_when import agent_name
from surefoot.protocols import LabelledTrace
from surefoot.stats.bootstrap import Bootstrap, FloatArray

TOLERANCES = (0, 1, 2, 3, 4, 5)
"""Maximum distances between predicted and true step."""


@dataclass(frozen=True, kw_only=True)
class BlamedRun:
    """One failed run with its decisive error."""

    trace_id: str
    problem_id: str
    subset: str
    step: int
    agent: str
    """The agent to blame, as written in :attr:`speakers`."""
    speakers: tuple[str | None, ...]
    """[steps]: the agent who speaks, in lower case; ``None`` for a person."""

    @property
    def agent_steps(self) -> list[int]:
        """Indices of the steps of agents."""
        return [step for step, speaker in enumerate(self.speakers) if speaker is not None]


BLAMES = Ratios(
    names=("agent", *map(str, TOLERANCES)),
    of=lambda totals: [totals[:, 0, column] / totals[:, 0, -1] for column in range(1, 2 + len(TOLERANCES))],
    totals={"missing": 0},
)
"""Of the columns of :func:`_all_hits`, and a column of ones."""


def blamed_runs(data: Mapping[str, Sequence[LabelledTrace]]) -> list[BlamedRun]:
    """Runs by subset, with their step labelled −1 and the agent named in the data set.

    Raises ``LabelError`` for a run without such a step or without agents, and for duplicate ids.
    """
    runs: dict[str, BlamedRun] = {}
    for subset, items in data.items():
        for item in items:
            trace = item.trace
            wrong = [label.step for label in item.labels if label.kind == "correctness" and label.value == -1]
            names = [agent_name(trace.messages[s.message]) for s in trace.steps if s.message is not None]
            speakers = tuple(None if name is None else name.casefold() for name in names)
            if not wrong or not any(speakers):
                raise LabelError(f"run {trace.id} lacks a step labelled −1, or names of agents; leave it out")
            if trace.id in runs:
                raise LabelError(f"run {trace.id} occurs twice in the data; give each file once")
            named = trace.meta.get("who_and_when", {}).get("mistake_agent") or speakers[min(wrong)] or ""
            runs[trace.id] = BlamedRun(
                trace_id=trace.id,
                problem_id=trace.problem_id,
                subset=subset,
                step=min(wrong),
                agent=named.casefold(),
                speakers=speakers,
            )
    return list(runs.values())


def evaluate_who_and_when(
    runs: Sequence[BlamedRun], systems: Sequence[System], *, draws: int = 1000, seed: int = 0
) -> Measured:
    """Compare baselines and ``systems`` (aligned with ``runs``) with the truth.

    A scorer blames the agents' step with its lowest score, the first of equals; a judge its first bad step.
    Raises ``LabelError`` without runs.
    """
    if not runs:
        raise LabelError("give at least one run")
    hits: list[tuple[str, Kind, FloatArray]] = [
        (name, "floor", rows) for name, rows in _baselines(runs).items()
    ]
    for system in systems:
        steps = [_blamed_step(system, number, run) for number, run in enumerate(runs)]
        hits.append((system.name, system.kind, _all_hits(runs, steps)))
    bootstrap, problems = Bootstrap(draws=draws, seed=seed), np.array([run.problem_id for run in runs])
    subsets = members_by([run.subset for run in runs])

    def figures(rows: FloatArray, members: list[int]) -> Measured:
        counts = np.column_stack([rows[members], np.ones(len(members))])
        row = BLAMES.row(bootstrap, counts, problems[members])
        within = {tolerance: row[str(tolerance)] for tolerance in TOLERANCES}
        return Measured(agent=row.agent, within=within, missing=row.missing)

    return Measured(
        runs={name: len(members) for name, members in subsets.items()},
        other_speaker=sum(run.speakers[run.step] != run.agent for run in runs),
        systems=[system.summary() for system in systems],
        scores=[
            Measured(
                system=name,
                kind=kind,
                subsets={label: figures(rows, members) for label, members in subsets.items()},
                name=f"baseline: {name}" if kind == "floor" else name,
            )
            for name, kind, rows in hits
        ],
    )


def _blamed_step(system: System, number: int, run: BlamedRun) -> int | None:
    if system.kind == "labels":
        return next((step for step, good in enumerate(system.good[number]) if good is False), None)
    scores = system.scores[number]
    scored = [(score, step) for step in run.agent_steps if (score := scores[step]) is not None]
    return min(scored)[1] if scored else None


def _all_hits(runs: Sequence[BlamedRun], steps: Sequence[int | None]) -> FloatArray:
    """[runs, 2 + tolerances] of predicted steps: missing, agent, then the step within each tolerance."""
    rows = []
    for run, step in zip(runs, steps, strict=True):
        if step is None:
            rows.append([1.0] + [0.0] * (1 + len(TOLERANCES)))
        else:
            near = [float(abs(step - run.step) <= tolerance) for tolerance in TOLERANCES]
            rows.append([0.0, float(run.speakers[step] == run.agent), *near])
    return np.array(rows)


def _baselines(runs: Sequence[BlamedRun]) -> dict[str, FloatArray]:
    """Hits of rules that do not read the messages; expected hits for the random rule."""

    def most_active(run: BlamedRun) -> int:
        agent = Counter(name for name in run.speakers if name is not None).most_common(1)[0][0]
        return run.speakers.index(agent)

    def first_of(run: BlamedRun, agents: Sequence[str]) -> int | None:
        return next((run.speakers.index(name) for name in agents if name in run.speakers), None)

    steps: dict[str, list[int | None]] = {
        "first step": [run.agent_steps[0] for run in runs],
        "last step": [run.agent_steps[-1] for run in runs],
        "first step of who speaks most": [most_active(run) for run in runs],
        "first step of who is blamed most elsewhere": [
            first_of(run, agents) for run, agents in zip(runs, _blamed_elsewhere(runs), strict=True)
        ],
    }
    hits = {name: _all_hits(runs, predicted) for name, predicted in steps.items()}
    hits["random agent, random step"] = np.array([_random(run) for run in runs])
    return hits


def _blamed_elsewhere(runs: Sequence[BlamedRun]) -> list[list[str]]:
    """For each run the agents by how often they are blamed in the other half of its subset's problems."""
    halves = [half_of(run.problem_id) for run in runs]
    counts: dict[tuple[str, int], Counter[str]] = {}
    for run, half in zip(runs, halves, strict=True):
        counts.setdefault((run.subset, half), Counter())[run.agent] += 1
    empty: Counter[str] = Counter()
    return [
        [name for name, _ in counts.get((run.subset, HALVES - 1 - half), empty).most_common()]
        for run, half in zip(runs, halves, strict=True)
    ]


def _random(run: BlamedRun) -> list[float]:
    """Expected hits of a random agent among the speakers, and of a random step of agents."""
    steps = run.agent_steps
    agents = {run.speakers[step] for step in steps}
    near = [sum(abs(step - run.step) <= tolerance for step in steps) / len(steps) for tolerance in TOLERANCES]
    return [0.0, (run.agent in agents) / len(agents), *near]


def judged_blames(
    runs: Sequence[BlamedRun], items: Sequence[LabelledTrace], systems: Sequence[System]
) -> Iterator[JudgedTrace]:
    """The runs with the step that the first system blames, for worked examples."""
    for number, (run, item) in enumerate(zip(runs, items, strict=True)):
        for system in systems[:1]:
            blamed = _blamed_step(system, number, run)
            scores = system.scores[number] if system.kind == "scores" else ()
            yield JudgedTrace(item=item, error=run.step, predicted=blamed, scores=scores)


def _verdict(score: Measured, result: Measured) -> Conclusion:
    """The step accuracy in the largest subset, against its best baseline."""
    subset = max(result.runs, key=lambda name: result.runs[name])
    floors = [other for other in result.scores if other.kind == "floor"]
    best = max(floors, key=lambda other: other.subsets[subset].within[0].value)
    null = best.subsets[subset].within[0].value
    row = score.subsets[subset]
    runs = result.runs[subset]
    counts = Counts(
        found=round(row.within[0].value * runs),
        wrong=runs - row.missing,
        alarms=0,
        right=0,
        of=runs,
        what="step to blame",
        unit="run",
    )
    text = f"of {subset}'s runs: the step is found. The best baseline, {best.system}, finds {null:.2f}."
    rival = f'"{best.system}"'
    return detected(counts, row.within[0], text, runs, rival=rival, null=null, silence_counts=True)


def who_and_when_section(result: Measured) -> Section:
    """Accuracies by subset with the baselines first."""
    verdicts = {score.system: [_verdict(score, result)] for score in result.scores if score.kind != "floor"}
    return Section(
        title="Who&When",
        tested="wrong steps on public benchmarks",
        about=f"{counted(sum(result.runs.values()), 'failed run')}. A prediction is a step and the agent "
        "that speaks there; a run without a prediction counts as wrong. Baselines do not read the messages. "
        f"In {counted(result.other_speaker, 'run')} the agent to blame does not speak at the step to blame, "
        "so no prediction can get both right. Intervals are 95 %, by bootstrap over problems.",
        results=result,
        verdicts=verdicts,
        sentence="" if verdicts else "No scorer was given: these are the baselines that it has to beat.",
        limits=[f"{', '.join(f'{name}: {count}' for name, count in result.runs.items())} (runs)."],
    )
