"""Does a scorer read the steps? Its AUC is compared with length and position where these predict little.

Long steps and late steps are wrong more often, so a scorer that never reads can have a good AUC. All
continuations of one prefix have the same problem and position, and some have similar lengths. The difference
to a logistic regression on length and position is paired, with intervals over problems.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import ArrayLike, NDArray

from surefoot.records import FrozenModel, Problem, Trace
from surefoot.stats.bootstrap import Bootstrap, FloatArray, group_folds, group_numbers
from surefoot.stats.intervals import FEWEST_UNITS, Interval
from surefoot.stats.regression import logistic_regression, standardized

_SIMILAR = 1.25
"""Most times that one of two steps of similar length is as long as the other."""


class Reading(FrozenModel):
    """AUC of a scorer minus the AUC of length and position, with 95 % intervals over problems."""

    problems: int
    """With pairs in each comparison that decides."""
    within_prefix: tuple[float, float, float] | None
    """Over pairs of a good and a bad continuation of one prefix; ``None`` without such pairs."""
    similar_length: tuple[float, float, float] | None
    """Only pairs whose lengths differ by at most a quarter."""
    within_problem: tuple[float, float, float] | None
    """Over pairs of steps of one problem."""

    @property
    def interval(self) -> Interval | None:
        """The lowest of the differences that decide: those within a prefix, without any that within a
        problem. ``None`` if one of them could not be measured."""
        measured = [self.within_prefix, self.similar_length] if self.within_prefix else [self.within_problem]
        intervals = [Interval(value=row[0], low=row[1], high=row[2]) for row in measured if row is not None]
        return min(intervals, key=lambda one: one.low) if len(intervals) == len(measured) else None

    @property
    def reads(self) -> bool:
        """Whether the differences that decide are certainly above 0."""
        return self.interval is not None and self.interval.low > 0 and self.problems >= FEWEST_UNITS

    def __str__(self) -> str:
        first = self.within_prefix or self.within_problem
        if first is None:
            return "whether it reads the steps is not known: no problem has a good and a bad one"
        where = "among continuations of one prefix" if self.within_prefix else "within a problem"
        verdict = "it reads the steps" if self.reads else "it is not shown to read the steps"
        spell = "{:+.3f} [{:+.3f}, {:+.3f}]".format
        similar = f", of similar length {spell(*self.similar_length)}" if self.similar_length else ""
        return f"{verdict}: {where} its AUC minus the AUC of length and position is {spell(*first)}{similar}"


@dataclass(frozen=True, kw_only=True)
class StepFacts:
    """What a step is compared by, without its words."""

    prefix: str
    """Identifies the problem and the steps before."""
    characters: int
    features: tuple[float, ...]
    """Length of the step in characters and words, what came before, the problem's length, their logarithms,
    and the step's number."""


def step_facts(problem: Problem, trace: Trace, chosen: Sequence[bool] | None = None) -> list[StepFacts]:
    """One for each step, or for each step ``chosen``, ``[steps]``."""
    digest, offset, facts = blake2b(problem.id.encode(), digest_size=8), 0, []
    for step in range(len(trace.steps)):
        text = trace.step_text(step)
        if chosen is None or chosen[step]:
            sizes = (len(text), len(text.split()), offset, len(problem.text))
            features = (*map(float, sizes), *np.log1p(sizes).tolist(), float(step), float(np.log1p(step)))
            facts.append(StepFacts(prefix=digest.hexdigest(), characters=len(text), features=features))
        offset += len(text)
        digest.update(text.encode(errors="surrogatepass") + b"\0")
    return facts


def length_scores(
    features: ArrayLike,
    problems: Sequence[str],
    good: ArrayLike,
    training: tuple[ArrayLike, ArrayLike] | None = None,
) -> FloatArray:
    """Log odds of good of steps, from their length and position alone, ``[N]``.

    ``features`` ``[N, F]`` come from :class:`StepFacts`; ``training`` has the features and labels of all
    training rows. Without these, the model of a step is fitted on the other problems of ``features``, which
    makes it stronger than one that comes from other data. 0 everywhere if one class is absent.
    """
    rows, labels = np.asarray(features, dtype=float), np.asarray(good, dtype=bool)
    if training is not None:
        return _log_odds(*training, rows)
    folds, scores = group_folds(problems, 10), np.zeros(len(rows))
    for fold in np.unique(folds):
        test = folds == fold
        scores[test] = _log_odds(rows[~test], labels[~test], rows[test])
    return scores


def _log_odds(features: ArrayLike, good: ArrayLike, rows: FloatArray) -> FloatArray:
    """Of ``rows``, by a logistic regression on ``features``."""
    labels = np.asarray(good, dtype=bool)
    if labels.all() or not labels.any():
        return np.zeros(len(rows))
    beta = logistic_regression(standardized(features, features), labels, penalty=1.0)
    return np.asarray(beta[0] + standardized(rows, features) @ beta[1:])


def reading_gate(
    scores: ArrayLike,
    baseline: ArrayLike,
    good: ArrayLike,
    *,
    problems: Sequence[str],
    prefixes: Sequence[str],
    characters: ArrayLike,
    draws: int = 1_000,
) -> Reading:
    """Compare ``scores`` with ``baseline`` (:func:`length_scores`) on labelled steps; all have shape [N]."""
    compared = np.stack([np.asarray(scores, dtype=float), np.asarray(baseline, dtype=float)])
    labels, sizes = np.asarray(good, dtype=bool), np.asarray(characters, dtype=float)
    problem = group_numbers(problems)

    paired = []

    def difference(groups: Sequence[str], ratio: float) -> tuple[float, float, float] | None:
        counts = _pairs_won(compared, labels, sizes, group_numbers(groups), problem, ratio)
        paired.append(int((counts[:, 0] > 0).sum()))
        if not paired[-1]:
            return None

        def statistic(totals: FloatArray) -> FloatArray:
            with np.errstate(invalid="ignore"):
                return (totals[:, 0, 1] - totals[:, 0, 2])[:, None] / totals[:, 0, :1]

        [interval] = Bootstrap(draws=draws).totals([counts[counts[:, 0] > 0]], statistic)
        return interval.value, interval.low, interval.high

    differences = {
        "within_prefix": difference(prefixes, np.inf),
        "similar_length": difference(prefixes, _SIMILAR),
        "within_problem": difference(problems, np.inf),
    }
    return Reading(problems=min(paired[:2]) if paired[0] else paired[2], **differences)


def _pairs_won(
    scores: FloatArray,
    good: NDArray[np.bool_],
    sizes: FloatArray,
    groups: NDArray[np.intp],
    problem: NDArray[np.intp],
    ratio: float,
) -> FloatArray:
    """By problem: pairs of a good and a bad step of one group, and of these won by each row of ``scores``
    ``[S, N]``; a tie is half won. Lengths of a pair differ by a factor of ``ratio`` at most."""
    counts = np.zeros((int(problem.max(initial=-1)) + 1, 1 + len(scores)))
    order = np.argsort(groups, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(groups[order])) + 1):
        better, worse = rows[good[rows]], rows[~good[rows]]
        if not (len(better) and len(worse)):
            continue
        apart = np.abs(np.log1p(sizes[better, None]) - np.log1p(sizes[worse]))
        near = apart <= np.log(ratio)
        gap = scores[:, better, None] - scores[:, None, worse]
        won = (gap > 0) + 0.5 * (gap == 0)
        counts[problem[rows[0]]] += [near.sum(), *(won * near).sum(axis=(1, 2))]
    return counts
