"""Choosing among solutions of the lab by a PRM, an ORM, votes and a check of the equations."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from benchmarks.common.figures import Figures, figure
from surefoot.lab import StepTruth, check_steps
from surefoot.labelling import EquationVerifier
from surefoot.protocols import ProblemTrace
from surefoot.records import Problem, StepScores, Trace
from surefoot.stats import bootstrap_mean, roc_auc_within

SIZES: Final = (1, 4, 16)
READINGS: Final[Mapping[str, Callable[[Sequence[float]], float]]] = {
    "lowest": min,
    "last": lambda scores: scores[-1],
    "product": lambda scores: float(np.prod(scores)),
}
"""How the scores of the steps become one of the solution. Every model is read in every way."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A sampled solution with its exact truth."""

    answer: str | None
    correct: bool
    truth: tuple[StepTruth, ...]
    refuted: tuple[bool, ...]
    """The steps in which `verify:rules=equations` finds an equation that does not hold."""
    length: int
    scores: Mapping[str, Sequence[float]]
    """Scores of the steps by model."""

    @property
    def first_error(self) -> str | None:
        """Kind of the first wrong step."""
        return next((step.kind for step in self.truth if not step.right), None)


def candidates(
    problems: Sequence[Problem], traces: Sequence[Trace], scores: Mapping[str, Sequence[StepScores]]
) -> list[list[Candidate]]:
    """The solutions of each problem, in the order of the samples."""
    by_model = {name: {one.trace_id: one.scores for one in rows} for name, rows in scores.items()}
    groups: dict[str, list[Candidate]] = {problem.id: [] for problem in problems}
    by_id = {problem.id: problem for problem in problems}
    verdicts = EquationVerifier().verify(
        [ProblemTrace(problem=by_id[trace.problem_id], trace=trace) for trace in traces]
    )
    for trace, found in zip(traces, verdicts, strict=True):
        truth = tuple(check_steps(by_id[trace.problem_id], trace))
        one = Candidate(
            answer=None if trace.answer is None else str(trace.answer),
            correct=bool(trace.outcome),
            truth=truth,
            refuted=tuple(verdict.value == -1 for verdict in found),
            length=len(truth),
            scores={
                name: [0.0 if score is None else score for score in rows[trace.id]] or [0.0]
                for name, rows in by_model.items()
            },
        )
        groups[trace.problem_id].append(one)
    return list(groups.values())


Rule = Callable[[Sequence[Candidate]], float]
"""Chance that the answer chosen among some candidates is right; ties are drawn by lot."""


def by_weight(weight: Callable[[Candidate], float]) -> Rule:
    """The candidate of the largest weight; one without an answer is chosen last."""

    def chance(group: Sequence[Candidate]) -> float:
        group = [one for one in group if one.answer is not None] or group
        weights = [weight(one) for one in group]
        best = max(weights)
        return float(np.mean([one.correct for one, w in zip(group, weights, strict=True) if w == best]))

    return chance


def by_vote(weight: Callable[[Candidate], float]) -> Rule:
    """The answer whose candidates have the largest weight together."""

    def chance(group: Sequence[Candidate]) -> float:
        votes: dict[str, float] = defaultdict(float)
        right: dict[str, bool] = {}
        for one in group:
            if one.answer is not None:
                votes[one.answer] += weight(one)
                right[one.answer] = one.correct
        best = max(votes.values(), default=0.0)
        return (
            float(np.mean([right[answer] for answer, vote in votes.items() if vote == best]))
            if votes
            else 0.0
        )

    return chance


def after_check(rule: Rule) -> Rule:
    """The same among the candidates whose equations hold, where there are any."""
    return lambda group: rule([one for one in group if not any(one.refuted)] or group)


def rules(models: Sequence[str]) -> dict[str, Rule]:
    """Every way to choose, with and without the check before it."""
    found: dict[str, Rule] = {
        "majority": by_vote(lambda _: 1.0),
        "shortest": by_weight(lambda one: -one.length),
        "longest": by_weight(lambda one: one.length),
        "one sample": lambda group: group[0].correct,
        "any": lambda group: float(any(one.correct for one in group)),
    }
    for model in models:
        for name, read in READINGS.items():
            found[f"{model} {name}"] = by_weight(lambda one, m=model, r=read: r(one.scores[m]))
            found[f"{model} vote {name}"] = by_vote(lambda one, m=model, r=read: r(one.scores[m]))
    return found | {f"check, {name}": after_check(rule) for name, rule in found.items() if name != "any"}


def accuracies(
    groups: Sequence[Sequence[Candidate]], models: Sequence[str]
) -> dict[str, dict[int, np.ndarray]]:
    """By rule and number of samples the chance of a right answer to each problem ``[P]``.

    Of fewer samples than there are, all blocks that follow each other are used.
    """
    return {
        name: {
            size: np.array(
                [
                    np.mean([rule(group[at : at + size]) for at in range(0, len(group) - size + 1, size)])
                    for group in groups
                ]
            )
            for size in SIZES
        }
        for name, rule in rules(models).items()
    }


def policy_figures(groups: Sequence[Sequence[Candidate]], name: str) -> Figures:
    """How often the policy is right, what its first errors are, and what right answers rest on."""
    every = [one for group in groups for one in group]
    wrong = [one for one in every if not one.correct]
    right = [one for one in every if one.correct]
    kinds = Counter(one.first_error for one in every)
    one_sample = bootstrap_mean(
        [np.mean([one.correct for one in group]) for group in groups], rng=np.random.default_rng(0)
    )
    found = [
        figure(f"{name} right", 100 * one_sample, note=f"{len(groups)} problems, {len(every)} solutions")
    ]
    for kind in ("slip", "reasoning", "form"):
        share = 100 * kinds[kind] / max(1, sum(count for key, count in kinds.items() if key))
        of_wrong = 100 * sum(one.first_error == kind for one in wrong) / max(1, len(wrong))
        found.append(figure(f"{name} first errors {kind}", share, note=f"{of_wrong:.0f} % of wrong answers"))
    resting = sum(one.first_error is not None for one in right)
    found.append(
        figure(
            f"{name} right answers on a wrong step",
            100 * resting / max(1, len(right)),
            note=f"{resting} of {len(right)}",
        )
    )
    return found


def choice_figures(
    found: Mapping[str, Mapping[int, np.ndarray]], pairs: Sequence[tuple[str, str]], name: str
) -> Figures:
    """Accuracy of every rule, and paired differences with intervals over problems."""
    figures = [
        figure(f"{name} {rule} N={size}", 100 * float(values.mean()))
        for rule, by_size in found.items()
        for size, values in by_size.items()
    ]
    for first, second in pairs:
        gap = found[first][SIZES[-1]] - found[second][SIZES[-1]]
        figures.append(
            figure(
                f"{name} {first} - {second} N={SIZES[-1]}",
                100 * bootstrap_mean(gap, rng=np.random.default_rng(0)),
                "points",
            )
        )
    return figures


def step_figures(groups: Sequence[Sequence[Candidate]], models: Sequence[str], name: str) -> Figures:
    """AUC of right steps against first errors of each kind; only steps with no error before them count.

    Pairs are of one problem, so that telling hard problems from easy ones gains nothing. ``position`` says
    that earlier steps are right, ``equations`` that those are whose equations hold.
    """
    kinds: list[str | None] = []
    problems: list[int] = []
    scores: dict[str, list[float]] = {key: [] for key in (*models, "position", "equations")}
    for number, group in enumerate(groups):
        for one in group:
            for at, truth in enumerate(one.truth):
                kinds.append(truth.kind)
                problems.append(number)
                for model in models:
                    scores[model].append(one.scores[model][at])
                scores["position"].append(-at)
                scores["equations"].append(-float(one.refuted[at]))
                if not truth.right:
                    break
    found = []
    for kind in ("any", "slip", "reasoning"):
        used = [at for at, each in enumerate(kinds) if each is None or kind in ("any", each)]
        good = [1 if kinds[at] is None else -1 for at in used]
        for model, values in scores.items():
            auc = roc_auc_within([values[at] for at in used], good, [problems[at] for at in used])
            note = f"{good.count(-1)} wrong"
            found.append(figure(f"{name} step AUC {kind} {model}", auc, "AUC", note=note))
    return found
