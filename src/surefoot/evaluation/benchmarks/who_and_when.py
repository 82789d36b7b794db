"""Who&When (arXiv 2505.00212): which agent is to blame for a failed run, and at which step; beside floors.

A prediction is a step; its agent is who speaks there. As in the paper all runs count, so that a run without a
prediction is wrong. Its script looks for the true step within the digits of the predicted one ("1" in "12")
and for the true name within the predicted one; here both must be equal, names without regard to case.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from surefoot.errors import LabelError
from surefoot.evaluation.benchmarks.processbench import sources_table
from surefoot.evaluation.report import JSONResult, Report
from surefoot.evaluation.splits import HALVES, half_of
from surefoot.evaluation.step_scores import System, SystemCounts
from surefoot.formats.who_and_when import agent_name
from surefoot.protocols import LabelledTrace
from surefoot.stats.bootstrap import bootstrap_totals
from surefoot.stats.intervals import Interval

TOLERANCES = (0, 1, 2, 3, 4, 5)
"""Steps that a prediction may be away from the true one."""

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class BlamedRun:
    """One failed run with its decisive error."""

    trace_id: str
    problem_id: str
    subset: str
    step: int
    agent: str
    """Who is to blame, as :attr:`speakers` has it."""
    speakers: tuple[str | None, ...]
    """[steps]: the agent who speaks, in lower case; ``None`` for a person."""

    @property
    def agent_steps(self) -> list[int]:
        """Indices of the steps of agents."""
        return [step for step, speaker in enumerate(self.speakers) if speaker is not None]


@dataclass(frozen=True, kw_only=True)
class BlameAccuracy:
    """95 % intervals over problems."""

    agent: Interval
    within: Mapping[int, Interval]
    """Share of runs whose true step is at most so many steps away; 0 is the step accuracy."""
    missing: int
    """Runs without a prediction; they are wrong."""


@dataclass(frozen=True, kw_only=True)
class BlameScore:
    """One system, or one floor."""

    system: str
    kind: Literal["floor", "scores", "labels"]
    subsets: Mapping[str, BlameAccuracy]


@dataclass(frozen=True, kw_only=True)
class BlameEvaluation(JSONResult):
    """All floors and systems over the same runs."""

    runs: Mapping[str, int]
    other_speaker: int
    """Runs in which somebody else than the agent to blame speaks at the step to blame."""
    systems: tuple[SystemCounts, ...]
    scores: tuple[BlameScore, ...]
    settings: Mapping[str, Any]


def blamed_runs(data: Mapping[str, Sequence[LabelledTrace]]) -> list[BlamedRun]:
    """Runs by subset, with their step labelled −1 and the agent that the data set names.

    Raises ``LabelError`` for a run without such a step or without an agent's, and for an id that occurs
    twice.
    """
    runs: dict[str, BlamedRun] = {}
    for subset, items in data.items():
        for item in items:
            run = _blamed_run(item, subset)
            if run.trace_id in runs:
                raise LabelError(f"run {run.trace_id} occurs twice in the data; give each file once")
            runs[run.trace_id] = run
    return list(runs.values())


def _blamed_run(item: LabelledTrace, subset: str) -> BlamedRun:
    trace = item.trace
    wrong = [one.step for one in item.labels if one.kind == "correctness" and one.value == -1]
    names = [agent_name(trace.messages[step.message]) for step in trace.steps if step.message is not None]
    speakers = tuple(None if name is None else name.casefold() for name in names)
    if not wrong or not any(speakers):
        raise LabelError(f"run {trace.id} has no step labelled −1, or no agent's; leave it out")
    named = trace.meta.get("who_and_when", {}).get("mistake_agent") or speakers[min(wrong)] or ""
    return BlamedRun(
        trace_id=trace.id,
        problem_id=trace.problem_id,
        subset=subset,
        step=min(wrong),
        agent=named.casefold(),
        speakers=speakers,
    )


def evaluate_who_and_when(
    runs: Sequence[BlamedRun], systems: Sequence[System], *, draws: int = 1000, seed: int = 0
) -> BlameEvaluation:
    """Hold floors and ``systems`` (laid beside ``runs``, in order) against the truth.

    A scorer blames the agents' step that it scores lowest, the first of equals; a judge its first bad step.
    Raises ``LabelError`` for no runs.
    """
    if not runs:
        raise LabelError("give at least one run")
    entries: list[tuple[str, Literal["floor", "scores", "labels"], FloatArray, FloatArray]] = [
        *((name, "floor", hits, np.zeros(len(runs))) for name, hits in _floors(runs).items())
    ]
    for system in systems:
        said = [_blames(system, number, run) for number, run in enumerate(runs)]
        hits = np.array([_hits(run, step) for run, step in zip(runs, said, strict=True)])
        missing = np.array([step is None for step in said], dtype=float)
        entries.append((system.name, system.kind, hits, missing))
    subsets = list(dict.fromkeys(run.subset for run in runs))
    members = {name: np.array([run.subset == name for run in runs]) for name in subsets}
    return BlameEvaluation(
        runs={name: int(own.sum()) for name, own in members.items()},
        other_speaker=sum(run.speakers[run.step] != run.agent for run in runs),
        systems=tuple(system.summary() for system in systems),
        scores=tuple(
            BlameScore(
                system=name,
                kind=kind,
                subsets={
                    subset: _accuracy(hits, missing, own, runs, draws, seed)
                    for subset, own in members.items()
                },
            )
            for name, kind, hits, missing in entries
        ),
        settings={"draws": draws, "seed": seed},
    )


def _blames(system: System, number: int, run: BlamedRun) -> int | None:
    if system.kind == "labels":
        return next((step for step, good in enumerate(system.good[number]) if good is False), None)
    scores = system.scores[number]
    known = [(score, step) for step in run.agent_steps if (score := scores[step]) is not None]
    return min(known)[1] if known else None


def _hits(run: BlamedRun, step: int | None) -> list[float]:
    """Agent, then the step within each tolerance."""
    if step is None:
        return [0.0] * (1 + len(TOLERANCES))
    near = [float(abs(step - run.step) <= tolerance) for tolerance in TOLERANCES]
    return [float(run.speakers[step] == run.agent), *near]


def _floors(runs: Sequence[BlamedRun]) -> dict[str, FloatArray]:
    """Hits [runs, 1 + tolerances] of rules that do not read what is said; expected ones of those that
    draw."""
    blamed = _blamed_elsewhere(runs)

    def talks_most(run: BlamedRun) -> int:
        agent = Counter(name for name in run.speakers if name is not None).most_common(1)[0][0]
        return run.speakers.index(agent)

    def first_of(run: BlamedRun, agents: Sequence[str]) -> int | None:
        return next((run.speakers.index(name) for name in agents if name in run.speakers), None)

    chosen: dict[str, list[int | None]] = {
        "first step": [run.agent_steps[0] for run in runs],
        "last step": [run.agent_steps[-1] for run in runs],
        "first step of who speaks most": [talks_most(run) for run in runs],
        "first step of who is blamed most elsewhere": [
            first_of(run, agents) for run, agents in zip(runs, blamed, strict=True)
        ],
    }
    made = {
        name: np.array([_hits(run, step) for run, step in zip(runs, steps, strict=True)])
        for name, steps in chosen.items()
    }
    made["random agent, random step"] = np.array([_drawn(run) for run in runs])
    return made


def _blamed_elsewhere(runs: Sequence[BlamedRun]) -> list[list[str]]:
    """For each run the agents by how often they are blamed in its subset's other half of the problems."""
    half = [half_of(run.problem_id) for run in runs]
    counts: dict[tuple[str, int], Counter[str]] = {}
    for run, own in zip(runs, half, strict=True):
        counts.setdefault((run.subset, own), Counter())[run.agent] += 1
    empty: Counter[str] = Counter()
    return [
        [name for name, _ in counts.get((run.subset, HALVES - 1 - own), empty).most_common()]
        for run, own in zip(runs, half, strict=True)
    ]


def _drawn(run: BlamedRun) -> list[float]:
    """Expected hits of an agent drawn among those who speak, and of a step drawn among theirs."""
    steps = run.agent_steps
    agents = {run.speakers[step] for step in steps}
    near = [sum(abs(step - run.step) <= tolerance for step in steps) / len(steps) for tolerance in TOLERANCES]
    return [(run.agent in agents) / len(agents), *near]


def _accuracy(
    hits: FloatArray,
    missing: FloatArray,
    own: NDArray[np.bool_],
    runs: Sequence[BlamedRun],
    draws: int,
    seed: int,
) -> BlameAccuracy:
    index: dict[str, int] = {}
    members = np.flatnonzero(own).tolist()
    rows = [index.setdefault(runs[number].problem_id, len(index)) for number in members]
    sums = np.zeros((len(index), hits.shape[1] + 1))
    np.add.at(sums, rows, np.column_stack([hits[own], np.ones(len(members))]))
    agent, *within = bootstrap_totals(
        [sums],
        lambda totals: totals[:, 0, :-1] / totals[:, 0, -1:],
        draws=draws,
        rng=np.random.default_rng(seed),
    )
    return BlameAccuracy(
        agent=agent, within=dict(zip(TOLERANCES, within, strict=True)), missing=int(missing[own].sum())
    )


def write_who_and_when_report(result: BlameEvaluation, path: Path) -> Report:
    """One page: sources, and a table for each subset, floors first."""
    report = Report("Who&When")
    report.text(
        f"{sum(result.runs.values())} failed runs. Intervals are 95 %, from {result.settings['draws']} "
        "bootstrap draws of problems. A prediction is a step, and its agent who speaks there; a run without "
        f"a prediction is wrong. In {result.other_speaker} runs the agent to blame is not who speaks at the "
        "step to blame, so that no prediction has both.",
        printed=True,
    )
    if result.systems:
        sources_table(report, result.systems)
    report.heading("Who, and when")
    report.text("Floors do not read what is said.", printed=True)
    for subset, runs in result.runs.items():
        report.table(
            ["source", "agent", "step", *(f"within {near}" for near in TOLERANCES[1:]), "missing"],
            [
                [
                    f"floor: {one.system}" if one.kind == "floor" else one.system,
                    found.agent,
                    *found.within.values(),
                    found.missing,
                ]
                for one in result.scores
                for found in (one.subsets[subset],)
            ],
            f"{subset}, {runs} runs: share with the right agent, and with the right step or one near it",
            spec=".1%",
            printed=4,
        )
    return report.write(path)
