"""How far a trained scorer can be trusted, measured on problems that it was not trained on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from surefoot.answers import AnswerChecker, group_equal
from surefoot.labels import as_target, target_is_good
from surefoot.models.card import Trust
from surefoot.protocols import Candidate, LabelledTrace, ProblemTrace, StepScorer
from surefoot.records import StepScores
from surefoot.scores import TraceRule, checked_scores, trace_rule, trace_score
from surefoot.search.selection import SELECTORS
from surefoot.stats.bootstrap import bootstrap_difference, bootstrap_mean
from surefoot.stats.roc import auc_by_problem, roc_auc


def measure_trust(scorer: StepScorer, items: Sequence[LabelledTrace]) -> Trust | None:
    """Step AUC with its interval over problems, and the AUC of length and of position; a threshold; and,
    where problems have several graded traces, best-of-N by the scorer against majority voting.

    A trace without labels counts by its outcome, at its last step. The baselines may rank either way round,
    whichever is better. ``None`` if the steps are all good, or all bad: there is no AUC then.
    """
    records = checked_scores(scorer, [ProblemTrace(problem=item.problem, trace=item.trace) for item in items])
    steps = [row for item, record in zip(items, records, strict=True) for row in _steps(item, record)]
    good = np.array([row[1] for row in steps], dtype=bool)
    if good.all() or not good.any():
        return None
    scores = np.array([row[0] for row in steps])
    problems = [row[4] for row in steps]
    area = bootstrap_mean(auc_by_problem(scores, good, problems), rng=np.random.default_rng(0))
    length, position = (roc_auc([row[column] for row in steps], good).value for column in (2, 3))
    chosen, voted = _choices(items, records, trace_rule(scorer))
    lead = bootstrap_difference(chosen, voted, rng=np.random.default_rng(0)) if chosen else None
    return Trust(
        problems=len(set(problems)),
        steps=len(steps),
        auc=(area.value, area.low, area.high),
        length_auc=max(length, 1 - length),
        position_auc=max(position, 1 - position),
        threshold=balanced_threshold(scores, good),
        choices=len(chosen),
        best_of_n=float(np.mean(chosen)) if chosen else None,
        majority=float(np.mean(voted)) if voted else None,
        lead=(lead.value, lead.low, lead.high) if lead else None,
    )


def balanced_threshold(scores: np.ndarray, good: np.ndarray) -> float:
    """The threshold with the highest mean of the shares of good steps from it on and of bad steps below it.

    Halfway between two scores, and of equal ones the lowest. Both have shape [steps].
    """
    distinct = np.unique(scores)
    cuts = np.concatenate([distinct[:1], (distinct[1:] + distinct[:-1]) / 2])
    passed = 1 - np.searchsorted(np.sort(scores[good]), cuts) / good.sum()
    caught = np.searchsorted(np.sort(scores[~good]), cuts) / (~good).sum()
    return float(cuts[np.argmax(passed + caught)])


def _steps(item: LabelledTrace, record: StepScores) -> list[tuple[float, bool, int, int, str]]:
    """Score, whether it is good, length and number of each step with score and label; and the problem."""
    trace = item.trace
    targets = {label.step: as_target(label, neutral=1.0) for label in item.labels}
    if not item.labels and trace.outcome is not None and trace.steps:
        targets = {len(trace.steps) - 1: float(trace.outcome)}
    return [
        (
            score,
            target_is_good(target, neutral="good"),
            len(trace.step_text(step)),
            step,
            item.problem.id,
        )
        for step, score in enumerate(record.scores)
        if score is not None and (target := targets.get(step)) is not None
    ]


def _choices(
    items: Sequence[LabelledTrace], records: Sequence[StepScores], how: TraceRule
) -> tuple[list[bool], list[bool]]:
    """Whether best-of-N and majority voting are right, for each problem with several graded traces."""
    groups: dict[str, list[int]] = {}
    for at, item in enumerate(items):
        if item.trace.outcome is not None:
            groups.setdefault(item.problem.id, []).append(at)
    chosen: list[bool] = []
    voted: list[bool] = []
    with AnswerChecker("numeric") as checker:
        for group in groups.values():
            answers = group_equal([items[at].trace.answer for at in group], checker)
            if len(group) < 2 or not any(answers):
                continue
            pool = [
                Candidate(
                    answer=answer,
                    score=trace_score(records[at].scores, how),
                    refuted=records[at].refuted(),
                )
                for answer, at in zip(answers, group, strict=True)
            ]
            for rule, right in (("best_of_n", chosen), ("majority", voted)):
                right.append(bool(items[group[SELECTORS[rule].select(pool)]].trace.outcome))
    return chosen, voted
