"""How far a trained scorer can be trusted, measured on problems that it was not trained on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np

from surefoot.answers import AnswerChecker, group_equal
from surefoot.io import write_records
from surefoot.labels import as_target, target_is_good
from surefoot.models.card import Trust
from surefoot.protocols import Candidate, LabelledTrace, ProblemTrace, StepScorer
from surefoot.records import Record, StepScores
from surefoot.scores import TraceRule, checked_scores, trace_rule, trace_score
from surefoot.search.selection import SELECTORS
from surefoot.stats.bootstrap import bootstrap_mean
from surefoot.stats.intervals import Interval, wilson_interval
from surefoot.stats.reading import (
    MOST_ROWS,
    RIVALS,
    Reading,
    StepFacts,
    reading_gate,
    rival_scores,
    step_facts,
)
from surefoot.stats.roc import auc_by_problem, roc_auc

STEPS, CHOICES = "held-out-steps.jsonl", "held-out-choices.jsonl"
"""Files of a training run, from which the figures of its :class:`Trust` can be computed again."""


class HeldOutStep(Record):
    """A step of a held-out problem: its score, and whether it is good."""

    problem_id: str
    trace_id: str
    step: int
    score: float
    good: bool
    characters: int
    """Length of its text."""
    prefix: str | None = None
    """Identifies its problem and the steps before it; ``None`` in files of earlier versions."""
    rivals: tuple[float, ...] = ()
    """Its score by each of :data:`surefoot.stats.RIVALS`, fitted on the training rows; empty in files of
    earlier versions."""


class HeldOutChoice(Record):
    """Whether the trace of a problem that a rule chose has the right answer."""

    problem_id: str
    best_of_n: bool
    majority: bool


@dataclass(frozen=True, kw_only=True)
class HeldOutScores:
    """Rows that :func:`trust_of` computes its figures from."""

    steps: Sequence[HeldOutStep]
    choices: Sequence[HeldOutChoice]

    def write(self, directory: Path) -> None:
        """Write both as files of records."""
        write_records(directory / STEPS, self.steps)
        write_records(directory / CHOICES, self.choices)


def score_held_out(
    scorer: StepScorer, items: Sequence[LabelledTrace], training: Iterable[LabelledTrace] = ()
) -> HeldOutScores:
    """Score ``items``: labelled steps, and choices by the scorer and by majority voting.

    A trace without labels counts by its outcome, at its last step. Problems with several graded traces give
    a choice. The rivals are fitted on ``training``, or without it on the other problems.
    """
    records = checked_scores(scorer, [ProblemTrace(problem=item.problem, trace=item.trace) for item in items])
    steps, step_inputs = [], []
    for item, record in zip(items, records, strict=True):
        facts = step_facts(item.problem, item.trace)
        for row in _steps(item, record):
            steps.append(row.model_copy(update={"prefix": facts[row.step].prefix}))
            step_inputs.append(facts[row.step])
    labelled = training_rows(training)
    if steps:
        names, good = [row.problem_id for row in steps], [row.good for row in steps]
        fitted = ([fact for fact, _ in labelled], [good for _, good in labelled]) if labelled else None
        rivals = rival_scores(step_inputs, names, good, fitted)
        steps = [
            row.model_copy(update={"rivals": tuple(scores)})
            for row, scores in zip(steps, rivals.T.tolist(), strict=True)
        ]
    return HeldOutScores(steps=steps, choices=_choices(items, records, trace_rule(scorer)))


def training_rows(items: Iterable[LabelledTrace], most: int = MOST_ROWS) -> list[tuple[StepFacts, bool]]:
    """Facts and labels of at most so many labelled steps, all with the same chance: rivals are fitted on no
    more, and memory does not grow with the data."""
    rows: list[tuple[StepFacts, bool]] = []
    steps, random = 0, Random(0)
    for item in items:
        facts: Sequence[StepFacts] = ()
        for step, good in _good_steps(item).items():
            steps += 1
            at = len(rows) if len(rows) < most else random.randrange(steps)
            if at < most:
                facts = facts or step_facts(item.problem, item.trace)
                rows[at : at + 1] = [(facts[step], good)]
    return rows


def reading_of(rows: Sequence[HeldOutStep]) -> Reading | None:
    """Whether the scorer reads; ``None`` for rows of an earlier version, which lack prefixes or rivals."""
    prefixes = [row.prefix for row in rows if row.prefix is not None and row.rivals]
    if len(prefixes) < len(rows):
        return None
    return reading_gate(
        [row.score for row in rows],
        np.array([row.rivals for row in rows]).T,
        [row.good for row in rows],
        problems=[row.problem_id for row in rows],
        prefixes=prefixes,
        characters=[row.characters for row in rows],
    )


def trust_of(rows: HeldOutScores) -> Trust | None:
    """Step AUC with its interval over problems, and the AUC of its best rival; a threshold; and
    best-of-N by the scorer against majority voting.

    Length and position alone are rivals, too, and may rank either way round, whichever is better. ``None`` if
    the steps are all good, or all bad: there is no AUC then.
    """
    good = np.array([row.good for row in rows.steps], dtype=bool)
    if good.all() or not good.any():
        return None
    scores = np.array([row.score for row in rows.steps])
    problems = [row.problem_id for row in rows.steps]
    area = bootstrap_mean(auc_by_problem(scores, good, problems), rng=np.random.default_rng(0))
    plain = {"length": [row.characters for row in rows.steps], "position": [row.step for row in rows.steps]}
    rivals = {name: abs(roc_auc(values, good) - 0.5) + 0.5 for name, values in plain.items()}
    fitted = zip(RIVALS, np.array([row.rivals for row in rows.steps]).T, strict=False)
    rivals |= {name: roc_auc(values, good) for name, values in fitted}
    rival = max(rivals, key=lambda name: rivals[name])
    chosen = [row.best_of_n for row in rows.choices]
    voted = [row.majority for row in rows.choices]
    leads = np.subtract(chosen, voted, dtype=float)
    lead = bootstrap_mean(leads, rng=np.random.default_rng(0)) if chosen else None
    return Trust(
        problems=len(set(problems)),
        steps=len(rows.steps),
        auc=(area.value, area.low, area.high),
        rival=rival,
        rival_auc=rivals[rival],
        threshold=balanced_threshold(scores, good),
        choices=len(chosen),
        best_of_n=float(np.mean(chosen)) if chosen else None,
        majority=float(np.mean(voted)) if voted else None,
        lead=(lead.value, lead.low, lead.high) if lead else None,
        reading=reading_of(rows.steps),
    )


def false_accepts(rows: Iterable[HeldOutStep], threshold: float, how: TraceRule) -> Interval | None:
    """Share of the solutions with a wrong step that score ``threshold`` or more, with its 95 % interval.

    A solution's score aggregates its labelled steps by ``how``; an unlabelled step may score less than its
    lowest. ``None`` if no solution has a wrong step.
    """
    solutions: dict[str, list[HeldOutStep]] = {}
    for row in rows:
        solutions.setdefault(row.trace_id, []).append(row)
    wrong = [steps for steps in solutions.values() if not all(step.good for step in steps)]
    values = [trace_score([step.score for step in steps], how) for steps in wrong]
    accepted = sum(value is not None and value >= threshold for value in values)
    return wilson_interval(accepted, len(wrong)) if wrong else None


def balanced_threshold(scores: np.ndarray, good: np.ndarray) -> float:
    """The threshold with the highest mean of the shares of good steps from it on and of bad steps below it.

    Halfway between two scores, and of equal ones the lowest. Both have shape [steps].
    """
    distinct = np.unique(scores)
    cuts = np.concatenate([distinct[:1], (distinct[1:] + distinct[:-1]) / 2])
    passed = 1 - np.searchsorted(np.sort(scores[good]), cuts) / good.sum()
    caught = np.searchsorted(np.sort(scores[~good]), cuts) / (~good).sum()
    return float(cuts[np.argmax(passed + caught)])


def _steps(item: LabelledTrace, record: StepScores) -> list[HeldOutStep]:
    """The steps with score and label."""
    trace, good = item.trace, _good_steps(item)
    return [
        HeldOutStep(
            problem_id=item.problem.id,
            trace_id=trace.id,
            step=step,
            score=score,
            good=good[step],
            characters=len(trace.step_text(step)),
        )
        for step, score in enumerate(record.scores)
        if score is not None and step in good
    ]


def _good_steps(item: LabelledTrace) -> dict[int, bool]:
    """Whether the steps with a known label are good."""
    steps = len(item.trace.steps)
    targets = {label.step: as_target(label, neutral=1.0) for label in item.labels if label.step < steps}
    if not item.labels and item.trace.outcome is not None and steps:
        targets = {steps - 1: float(item.trace.outcome)}
    return {step: target_is_good(target) for step, target in targets.items() if target is not None}


def _choices(
    items: Sequence[LabelledTrace], records: Sequence[StepScores], how: TraceRule
) -> list[HeldOutChoice]:
    """Whether best-of-N and majority voting are right, for each problem with several graded traces."""
    groups: dict[str, list[int]] = {}
    for at, item in enumerate(items):
        if item.trace.outcome is not None:
            groups.setdefault(item.problem.id, []).append(at)
    choices: list[HeldOutChoice] = []
    with AnswerChecker() as checker:
        for problem, group in groups.items():
            answers = group_equal([items[at].trace.answer for at in group], checker)
            if len(group) < 2 or not any(answers):
                continue
            pool = [
                Candidate(
                    answer=answer, score=trace_score(records[at].scores, how), refuted=records[at].refuted()
                )
                for answer, at in zip(answers, group, strict=True)
            ]
            best, majority = (
                bool(items[group[SELECTORS[rule].select(pool)]].trace.outcome)
                for rule in ("best_of_n", "majority")
            )
            choices.append(HeldOutChoice(problem_id=problem, best_of_n=best, majority=majority))
    return choices
