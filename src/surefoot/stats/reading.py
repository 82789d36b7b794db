"""Does a scorer read the steps? Its AUC is compared with rivals that do not, where these predict little.

Long steps, late steps and steps full of digits are wrong more often, so a scorer that never reads can have a
good AUC. All continuations of one prefix have the same problem and position, and some have similar lengths.
The difference to the strongest of three rivals (:data:`RIVALS`) is paired, with intervals over problems.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from surefoot.extras import need
from surefoot.records import FrozenModel, Problem, Trace
from surefoot.stats.bootstrap import Bootstrap, FloatArray, group_folds, group_numbers
from surefoot.stats.intervals import FEWEST_UNITS, Interval
from surefoot.stats.regression import logistic_regression, standardized

RIVALS: Final = ("length and position", "counts of characters", "a bag of words")
"""What a scorer has to beat: a logistic regression on the first, boosted trees on the first two, and a
logistic regression on the words of the step alone."""

_PLACES = 10
"""Features of length and position; the others count characters."""
_COUNTED = "=+-*/^\\$?!,.:()"
_WORD, _NUMBER = re.compile(r"\w+|[^\w\s]"), re.compile(r"\d+")
_BUCKETS = 1 << 15
"""Hashed words of a bag."""
MOST_ROWS = 50_000
"""Rows that a rival is fitted on, spread evenly over the data: more change no figure and cost minutes."""
_SIMILAR = 1.25
"""Most times that one of two steps of similar length is as long as the other."""


class Reading(FrozenModel):
    """AUC of a scorer minus the AUC of the rival that comes closest, with 95 % intervals over problems."""

    rival: str = RIVALS[0]
    """The one that decides."""
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
        return f"{verdict}: {where} its AUC minus the AUC of {self.rival} is {spell(*first)}{similar}"


@dataclass(frozen=True, kw_only=True)
class StepFacts:
    """What the rivals know of a step."""

    prefix: str
    """Identifies the problem and the steps before."""
    characters: int
    features: tuple[float, ...]
    """Length of the step in characters and words, what came before, the problem's length, their logarithms,
    and the step's number; then counts of kinds of characters, of numbers, and the longest number."""
    words: tuple[str, ...]
    """Its distinct words and marks."""


def step_facts(problem: Problem, trace: Trace, chosen: Sequence[bool] | None = None) -> list[StepFacts]:
    """One for each step, or for each step ``chosen``, ``[steps]``."""
    digest, offset, facts = blake2b(problem.id.encode(), digest_size=8), 0, []
    for step in range(len(trace.steps)):
        text = trace.step_text(step)
        if chosen is None or chosen[step]:
            sizes = (len(text), len(text.split()), offset, len(problem.text))
            extent = (*map(float, sizes), *np.log1p(sizes).tolist(), float(step), float(np.log1p(step)))
            facts.append(
                StepFacts(
                    prefix=digest.hexdigest(),
                    characters=len(text),
                    features=extent + _counts(text),
                    words=tuple(sorted(set(_WORD.findall(text.lower())))),
                )
            )
        offset += len(text)
        digest.update(text.encode(errors="surrogatepass") + b"\0")
    return facts


def _counts(text: str) -> tuple[float, ...]:
    """Counts of characters by kind: no word and no number is read. The line break that joins a step to the
    next counts, too: in data made of prefixes and alternatives it tells which step was continued."""
    numbers = [len(number) for number in _NUMBER.findall(text)]
    letters, digits = sum(map(str.isalpha, text)), sum(numbers)
    upper, spaces = sum(map(str.isupper, text)), sum(map(str.isspace, text))
    remaining = len(text) - letters - digits - spaces
    shape = (letters / max(1, len(text)), len(numbers), max(numbers, default=0))
    return tuple(map(float, (digits, letters, upper, spaces, remaining, *map(text.count, _COUNTED), *shape)))


def rival_scores(
    facts: Sequence[StepFacts],
    problems: Sequence[str],
    good: ArrayLike,
    training: tuple[Sequence[StepFacts], ArrayLike] | None = None,
) -> FloatArray:
    """Log odds of good of steps by each of :data:`RIVALS`, ``[3, N]``.

    ``training`` has the facts and labels of all training rows. Without these, the models of a step are fitted
    on the other problems of ``facts``, which makes them stronger than models that come from other data. 0
    everywhere if one class is absent. Raises ``MissingExtraError`` without scikit-learn.
    """
    training_of = [None] * 3 if training is None else [(rows, training[1]) for rows in _inputs(training[0])]
    parts = zip((_by_lengths, _by_trees, _by_words), _inputs(facts), training_of, strict=True)
    return np.vstack([_scores(fit, rows, problems, good, known) for fit, rows, known in parts])


def _inputs(facts: Sequence[StepFacts]) -> tuple[FloatArray, FloatArray, Any]:
    """What each rival reads of N steps: places; these and counts; words, sparse, ``[N, _BUCKETS]``."""
    need("sklearn", "the reading gate")
    from sklearn.feature_extraction import FeatureHasher

    features = np.array([item.features for item in facts], dtype=float)
    hasher = FeatureHasher(_BUCKETS, input_type="string", alternate_sign=False)
    return features[:, :_PLACES], features, hasher.transform(item.words for item in facts)


def _scores(
    fit: Callable[[Any, NDArray[np.bool_], Any], FloatArray],
    rows: Any,
    problems: Sequence[str],
    good: ArrayLike,
    training: tuple[Any, ArrayLike] | None,
) -> FloatArray:
    """Of ``rows``, ``[N]``, by a model fitted on ``training``, or for each fold on the others."""
    if training is not None:
        return _fitted(fit, training[0], np.asarray(training[1], dtype=bool), rows)
    labels, folds = np.asarray(good, dtype=bool), group_folds(problems, 10)
    scores = np.zeros(len(labels))
    for fold in np.unique(folds):
        test = folds == fold
        scores[test] = _fitted(fit, rows[~test], labels[~test], rows[test])
    return scores


def _fitted(
    fit: Callable[[Any, NDArray[np.bool_], Any], FloatArray], inputs: Any, good: NDArray[np.bool_], rows: Any
) -> FloatArray:
    if good.all() or not good.any():
        return np.zeros(rows.shape[0])
    if len(good) > MOST_ROWS:
        chosen = np.linspace(0, len(good) - 1, MOST_ROWS).astype(int)
        inputs, good = inputs[chosen], good[chosen]
    return fit(inputs, good, rows)


def _by_lengths(known: FloatArray, good: NDArray[np.bool_], rows: FloatArray) -> FloatArray:
    beta = logistic_regression(standardized(known, known), good, penalty=1.0)
    return np.asarray(beta[0] + standardized(rows, known) @ beta[1:])


def _by_trees(known: FloatArray, good: NDArray[np.bool_], rows: FloatArray) -> FloatArray:
    from sklearn.ensemble import HistGradientBoostingClassifier

    trees = HistGradientBoostingClassifier(
        max_iter=150,
        learning_rate=0.06,
        max_leaf_nodes=15,
        l2_regularization=5.0,
        early_stopping=False,
        random_state=0,
    )
    return np.asarray(trees.fit(known, good).decision_function(rows))


def _by_words(known: Any, good: NDArray[np.bool_], rows: Any) -> FloatArray:
    from sklearn.linear_model import LogisticRegression

    return np.asarray(LogisticRegression(max_iter=300).fit(known, good).decision_function(rows))


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
    """Compare ``scores`` ``[N]`` of labelled steps with each row of ``baseline`` (:func:`rival_scores`),
    ``[R, N]`` or ``[N]``; the other arguments have shape ``[N]``, too."""
    rivals = np.atleast_2d(np.asarray(baseline, dtype=float))
    compared = np.concatenate([np.asarray(scores, dtype=float)[None], rivals])
    labels, sizes = np.asarray(good, dtype=bool), np.asarray(characters, dtype=float)
    problem = group_numbers(problems)
    paired: list[int] = []
    deciding: list[tuple[float, str]] = []
    """Lower bound of each difference, and its rival."""

    def difference(groups: Sequence[str], ratio: float) -> tuple[float, float, float] | None:
        counts = _pairs_won(compared, labels, sizes, group_numbers(groups), problem, ratio)
        counts = counts[counts[:, 0] > 0]
        paired.append(len(counts))
        if not paired[-1]:
            return None

        def statistic(totals: FloatArray) -> FloatArray:
            return (totals[:, 0, 1:2] - totals[:, 0, 2:]) / totals[:, 0, :1]

        rows = Bootstrap(draws=draws).totals([counts], statistic)
        lowest = min(range(len(rows)), key=lambda at: rows[at].low)
        deciding.append((rows[lowest].low, RIVALS[lowest]))
        return rows[lowest].value, rows[lowest].low, rows[lowest].high

    within_prefix, similar_length = difference(prefixes, np.inf), difference(prefixes, _SIMILAR)
    decided = len(deciding) if within_prefix else None
    within_problem = difference(problems, np.inf)
    return Reading(
        rival=min(deciding[:decided])[1] if deciding[:decided] else RIVALS[0],
        problems=min(paired[:2]) if within_prefix else paired[2],
        within_prefix=within_prefix,
        similar_length=similar_length,
        within_problem=within_problem,
    )


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
