"""How well a selection rule does with k samples, estimated from a pool of n >= k samples per problem.

The first k samples alone would give a noisy answer and waste the other n - k. The estimators here average
over all subsets of k (closed form), or over a random set of subsets where no closed form exists (votes).

Ties. All estimators give the expected value of the stable rule of ``surefoot.search.selection`` when the k
samples come in random order. For best-of-n this is a uniformly random choice among the best-scored samples;
for votes, an answer among the tied ones wins in proportion to its number of votes.

Scores. ``None``, NaN or infinite means "not scored", which is never preferred.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from surefoot.protocols import Candidate
from surefoot.search.selection import SELECTORS, TIE_TOLERANCE, SelectorName, WeightedVote, preference

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.int32]

Method = Literal["pass", SelectorName]


@dataclass(frozen=True, kw_only=True)
class Pool:
    """The n samples of one problem, in the order sampled; all three have length n."""

    answers: Sequence[str | None]
    """Canonical final answers; ``None`` = no answer."""
    correct: Sequence[bool] | BoolArray
    scores: Sequence[float | None] | FloatArray
    """Aggregated scores; ``None`` or NaN = not scored."""
    gate: Sequence[float | None] | FloatArray | None = None
    """Only the samples with the highest values take part
    (:func:`surefoot.search.selection.select_among`); ``None`` = all do."""


def pass_at_k(n: int, c: int, k: int) -> float:
    """Chance that k of n samples, c of them correct, hold a correct one: 1 - C(n-c, k) / C(n, k).

    Chen et al. 2021 (arXiv 2107.03374), eq. 1, as a product of n - (n - c) factors that stays in [0, 1].
    Raises ``ValueError`` unless 0 <= c <= n and 1 <= k <= n.
    """
    _check_size(n, k)
    if not 0 <= c <= n:
        raise ValueError(f"'c' must lie in [0, n={n}], not {c}")
    if n - c < k:
        return 1.0
    return float(1.0 - np.prod(1.0 - k / np.arange(n - c + 1, n + 1)))


def best_of_n(
    scores: ArrayLike,
    correct: ArrayLike,
    k: int,
    *,
    answers: Sequence[str | None] | None = None,
    gate: ArrayLike | None = None,
) -> float:
    """Expected correctness of what ``BestOfN`` chooses of k samples taken without replacement from n.

    With samples in ascending order of preference, sample i (from 1) is the best of a subset with probability
    C(i-1, k-1) / C(n, k); tied samples share the sum of their probabilities. ``scores`` and ``correct``
    have shape [n], ``answers`` too: a sample without an answer ranks behind those with one. Without
    ``answers`` every sample has one. ``gate``, of shape [n], comes before both (``Pool.gate``). Raises
    ``ValueError`` if lengths differ or k is outside [1, n].
    """
    values, right = _scores(scores), _correct(correct)
    n = len(values)
    labels = [""] * n if answers is None else answers
    _check_lengths(scores=n, correct=len(right), answers=len(labels))
    _check_size(n, k)
    ranks = _ranks(labels, values)
    if gate is not None:
        first = _gate(gate)
        _check_lengths(scores=n, gate=len(first))
        ranks = np.unique(np.stack([first, ranks]), axis=1, return_inverse=True)[1].reshape(n)
    order = np.argsort(ranks, kind="stable")
    ranked, right = ranks[order], right[order]
    starts = np.flatnonzero(np.r_[True, ranked[1:] != ranked[:-1]])
    block_mean = np.add.reduceat(right, starts) / np.diff(np.r_[starts, n])
    return float(np.add.reduceat(_chance_of_being_best(n, k), starts) @ block_mean)


def selection_curve(
    pools: Sequence[Pool], method: Method, sizes: Sequence[int], *, draws: int = 400, rng: np.random.Generator
) -> FloatArray:
    """Expected accuracy per problem and number of samples, shape [problems, sizes].

    Keep the rows: intervals are over problems (``surefoot.stats``). For each problem one
    random order serves all sizes, and generators seeded alike serve all methods alike, so that differences
    between sizes and methods are less noisy than the values. ``"pass"`` is the ceiling of every selector.
    Raises ``ValueError`` naming the problem if its pool is ragged or smaller than a size, and for an
    unknown method.
    """
    accuracy = np.empty((len(pools), len(sizes)))
    # one child generator per problem: an exact shortcut in one problem must not shift the next
    for row, (pool, child) in enumerate(zip(pools, rng.spawn(len(pools)), strict=True)):
        try:
            accuracy[row] = pool_curve(pool, method, sizes, RandomOrders(len(pool.correct), draws, child))
        except ValueError as error:
            raise ValueError(f"pools[{row}]: {error}") from error
    return accuracy


class RandomOrders:
    """``draws`` random orders of the n samples of one pool, made when they are first needed.

    The curves of one pool by several methods can share them.
    """

    def __init__(self, n: int, draws: int, rng: np.random.Generator) -> None:
        self.n, self.draws, self._rng = n, draws, rng

    @cached_property
    def orders(self) -> IntArray:
        """Sample by place, [draws, n]; the first k places are a random subset."""
        order = self._rng.random((self.draws, self.n)).argsort(axis=1)
        return order.argsort(axis=1).astype(np.int32)


def pool_curve(pool: Pool, method: Method, sizes: Sequence[int], random: RandomOrders) -> list[float]:
    """A row of :func:`selection_curve`, [sizes]: expected accuracy in one problem."""
    right = _correct(pool.correct)
    n = len(right)
    _check_lengths(correct=n, answers=len(pool.answers), scores=len(pool.scores))
    for k in sizes:
        _check_size(n, k)
    if method == "pass":
        return [pass_at_k(n, int(right.sum()), k) for k in sizes]
    values = _scores(cast(ArrayLike, pool.scores))
    gate = None if pool.gate is None else _gate(cast(ArrayLike, pool.gate))
    _check_lengths(correct=n, gate=n if gate is None else len(gate))
    if method == "best_of_n":
        return [best_of_n(values, right, k, answers=pool.answers, gate=gate) for k in sizes]
    if method not in SELECTORS:
        raise ValueError(f"unknown method {method!r}; use pass, {', '.join(SELECTORS)}")
    selector = SELECTORS[method]
    ballot = _Ballot.of(pool.answers, right, None if method == "majority" else values, gate)
    if isinstance(selector, WeightedVote):
        ballot = replace(ballot, power=selector.power)
    return [_mean_over_subsets(ballot, k, random) for k in sizes]


def _ranks(answers: Sequence[str | None], values: FloatArray) -> NDArray[np.intp]:
    """Places in ``BestOfN``'s order of preference, from 0, the same for equals, [n]."""
    keys = [preference(Candidate(answer=a, score=v)) for a, v in zip(answers, values.tolist(), strict=True)]
    index = {key: at for at, key in enumerate(sorted(set(keys)))}
    return np.array([index[key] for key in keys], dtype=np.intp)


@dataclass(frozen=True, kw_only=True)
class _Ballot:
    """A pool as arrays. Shapes: n samples, A distinct answers, S subsets of k samples each, by their indices.

    Votes are counted in tables [S, A]. The work is in proportion to S (k + A), with no term in S n or n A.
    """

    correct: FloatArray  # [n]
    weights: FloatArray | None  # [n], NaN = not scored; None = every answer counts 1
    answer: IntArray  # [n], 0 … A - 1, -1 = none
    gate: FloatArray | None = None  # [n]; those with the highest value of a subset take part
    power: float = 1.0  # of the number of votes; see WeightedVote

    @classmethod
    def of(
        cls,
        answers: Sequence[Hashable],
        correct: FloatArray,
        weights: FloatArray | None,
        gate: FloatArray | None = None,
    ) -> _Ballot:
        index: dict[Hashable, int] = {}
        answer = np.array(
            [-1 if a is None else index.setdefault(a, len(index)) for a in answers], dtype=np.int32
        )
        return cls(correct=correct, weights=weights, answer=answer, gate=gate)

    @cached_property
    def _may_vote(self) -> BoolArray:
        """[n]"""
        answered = self.answer >= 0
        return answered if self.weights is None else answered & ~np.isnan(self.weights)

    @cached_property
    def _mixed(self) -> bool:
        """Whether voters with one answer were not all judged alike."""
        voters = self._may_vote
        pairs = set(zip(self.answer[voters].tolist(), self.correct[voters].tolist(), strict=True))
        return len(pairs) > len({answer for answer, _ in pairs})

    def expected(self, subsets: IntArray) -> FloatArray:
        """Expected correctness of the vote in each subset: [S, k] -> [S]."""
        playing = self._playing(subsets)
        votes = self._may_vote[subsets] & playing
        result = np.empty(len(subsets))
        voted = votes.any(axis=1)
        if voted.any():
            unscored = playing & (self.answer[subsets] >= 0) & ~self._may_vote[subsets]
            result[voted] = self._winner_value(subsets[voted], votes[voted], unscored[voted])
        if not voted.all():
            result[~voted] = self._without_votes(subsets[~voted], playing[~voted])
        return result

    def _playing(self, subsets: IntArray) -> BoolArray:
        """Mask of the samples that take part, [S, k]."""
        if self.gate is None:
            return np.ones(subsets.shape, dtype=bool)
        values = self.gate[subsets]
        return np.asarray(values == values.max(axis=1, keepdims=True))

    def _winner_value(self, subsets: IntArray, votes: BoolArray, unscored: BoolArray) -> FloatArray:
        shape = len(subsets), int(self.answer.max()) + 1
        rows, _ = np.nonzero(votes)
        samples = subsets[votes]
        cells = rows * shape[1] + self.answer[samples]

        def count(each: FloatArray | None = None) -> FloatArray:
            """Sum of ``each`` over the voters for an answer, or their number, [S, A]."""
            return np.bincount(cells, each, minlength=shape[0] * shape[1]).reshape(shape).astype(float)

        counts = count()
        totals = counts if self.weights is None else count(self.weights[samples])
        all_counts = counts
        if self.weights is not None and unscored.any():  # they vote with the lowest score, at most 0
            rows, _ = np.nonzero(unscored)
            lowest = np.where(votes, self.weights[subsets], 0.0).min(axis=1)
            more = np.zeros(shape)
            np.add.at(more, (rows, self.answer[subsets[unscored]]), 1.0)
            totals, all_counts = totals + more * np.minimum(lowest, 0.0)[:, None], counts + more
        if self.power != 1:
            totals = totals * np.maximum(all_counts, 1.0) ** (self.power - 1)
        totals = np.where(counts > 0, totals, -np.inf)
        best = totals.max(axis=1, keepdims=True)
        # the tied answer seen first in a random order is one in proportion to its votes
        share = np.where(totals >= best - TIE_TOLERANCE * np.abs(best), counts, 0.0)
        if self.weights is not None and self._mixed:
            # the winner's best-scored samples are handed out, and not any of them
            highest = np.full(shape[0] * shape[1], -np.inf)
            np.maximum.at(highest, cells, self.weights[samples])
            top = (self.weights[samples] == highest[cells]).astype(float)
            value = count(top * self.correct[samples]) / np.maximum(count(top), 1.0)
        else:
            value = count(self.correct[samples]) / np.maximum(counts, 1.0)
        return cast(FloatArray, (share * value).sum(axis=1) / share.sum(axis=1))

    def _without_votes(self, subsets: IntArray, playing: BoolArray) -> FloatArray:
        """Fallbacks of ``WeightedVote``: majority, or without any answer the best score."""
        if self.weights is None:
            return cast(FloatArray, (playing * self.correct[subsets]).sum(axis=1) / playing.sum(axis=1))
        scores = np.where(np.isnan(self.weights), -np.inf, self.weights)[subsets]
        scores = np.where(playing, scores, np.nan)
        top = scores == np.nanmax(scores, axis=1, keepdims=True)
        result = (top * self.correct[subsets]).sum(axis=1) / top.sum(axis=1)
        answered = ((self.answer[subsets] >= 0) & playing).any(axis=1)
        if answered.any():
            plain = replace(self, weights=None, power=1.0)
            result[answered] = plain.expected(subsets[answered])
        return cast(FloatArray, result)


def _mean_over_subsets(ballot: _Ballot, k: int, random: RandomOrders) -> float:
    n = random.n
    if random.draws < 1:
        raise ValueError(f"'draws' must be at least 1, not {random.draws}")
    if k == 1:
        return float(ballot.correct.mean())
    if math.comb(n, k) <= max(n, random.draws):
        subsets = np.array(list(itertools.combinations(range(n), k)), dtype=np.int32)
    else:
        subsets = random.orders[:, :k]
    return float(ballot.expected(subsets).mean())


def _chance_of_being_best(n: int, k: int) -> FloatArray:
    """C(i-1, k-1) / C(n, k) for i = 1..n, as a running product down from k / n, so nothing overflows."""
    i = np.arange(n, 1, -1)
    ratio = np.maximum(i - k, 0) / (i - 1)
    return cast(FloatArray, np.cumprod(np.r_[k / n, ratio])[::-1])


def _scores(scores: ArrayLike) -> FloatArray:
    values = np.asarray(scores, dtype=float)  # None becomes NaN
    return np.where(np.isfinite(values), values, np.nan)


def _gate(gate: ArrayLike) -> FloatArray:
    values = np.asarray(gate, dtype=float)  # None becomes NaN
    return np.where(np.isfinite(values), values, -np.inf)


def _correct(correct: ArrayLike) -> FloatArray:
    values = np.asarray(correct, dtype=float)
    if values.ndim != 1 or np.isnan(values).any():
        raise ValueError(
            "'correct' must be a flat list without unknown values; drop unjudged samples and count them"
        )
    return values


def _check_lengths(**lengths: int) -> None:
    if len(set(lengths.values())) > 1:
        raise ValueError("lengths differ: " + ", ".join(f"'{name}' has {n}" for name, n in lengths.items()))


def _check_size(n: int, k: int) -> None:
    if not 1 <= k <= n:
        raise ValueError(f"'k' must lie in [1, n={n}], not {k}")
