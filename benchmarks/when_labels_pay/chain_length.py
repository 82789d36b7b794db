"""When do step labels pay? PRM against ORM in every cell of the map."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from transformers import AutoModelForCausalLM

from benchmarks.when_labels_pay.traces import (
    OPERATIONS,
    IntArray,
    Traces,
    draw_problems,
    misconceptions,
    read_traces,
    sample,
)
from benchmarks.worlds.digits import POLICY, TRUNK

FloatArray = NDArray[np.float64]

TRUNKS = {"slips": TRUNK, "no slips": POLICY}
"""The shipped trunk has read corrected slips; the shipped policy has not, and was trained for less long."""
LENGTHS = (2, 4, 7, 10)
FLIPPED = {"exact": 0.0, "10 % flipped": 0.1, "30 % flipped": 0.3}
NOISES = (*FLIPPED, "Monte Carlo")
SAMPLES = (4, 16, 64)
COMPARISONS = ("traces", "labels", "cost")
"""The ORM learns from the PRM's traces; from as many outcomes as the PRM has step labels; or from as many
traces as the policy writes tokens for the PRM's labels, at ``ROLLOUTS`` completions of each prefix."""
ROLLOUTS = 4
ACCURACY = 0.45
PER_PROBLEM = 4
MOST = max(SAMPLES)
STRENGTHS = (0.01, 1.0)
VOTES = ("best_of_n", "weighted_vote", "agreement")
HEADS = {"prm": ("step", "prefix"), "orm": ("step", "prefix", "prefix, last step")}
"""A head reads a step's features, or also their sum over the steps so far; trained at every step, or at the
last. The last is for outcomes only."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    traces: int = 64
    """Labelled for the PRM."""
    tuning: int = 50
    test: int = 100
    """Problems."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One cell on one seed and trunk."""

    length: int
    recoverability: str
    noise: str
    samples: int
    trunk: str
    seed: int
    wrong_labels: float
    """Share of the PRM's labels that differ from whether the prefix is free of errors."""
    recovered: float
    """Share of the traces with a wrong line whose answer is right."""
    accuracy: float
    """Of one sample."""
    majority: list[float]
    """Accuracy of each test problem, [test]; so for the next two."""
    prm: list[float]
    orm: dict[str, list[float]]
    """By comparison."""
    rules: dict[str, str]
    """What was chosen, by scorer."""


def measure(seed: int, sizes: Sizes, *, lengths: tuple[int, ...] = LENGTHS) -> Iterator[Measured]:
    """All cells of one seed: policy, problems, labels and heads are its own."""
    trunks = {name: AutoModelForCausalLM.from_pretrained(path).eval() for name, path in TRUNKS.items()}
    for length, (level, operations) in itertools.product(lengths, OPERATIONS.items()):
        rng = np.random.default_rng([seed, length, list(OPERATIONS).index(level)])
        policy = misconceptions(rng, length, operations, ACCURACY)
        pool = draw_problems(rng, -(-_most_traces(sizes.traces, length) // PER_PROBLEM), length, operations)
        held = draw_problems(rng, sizes.tuning + sizes.test, length, operations)
        trained, tested = sample(rng, policy, pool, PER_PROBLEM), sample(rng, policy, held, MOST)
        for name, trunk in trunks.items():
            train, test = read_traces(trunk, pool, trained), read_traces(trunk, held, tested)
            bench = Selection(train, test, held.correct()[:, -1], sizes.tuning, seed)
            label_rng = np.random.default_rng([seed, length])
            wrong, right = ~test.good.all(axis=1)[test.where], test.outcome[test.where]
            rows = train.where.reshape(-1)[: sizes.traces]
            values = policy.values(pool)[np.arange(sizes.traces) // PER_PROBLEM]
            truth = np.logical_and.accumulate(train.good[rows], axis=1)
            for noise in NOISES:
                targets = _labels(label_rng, noise, train, rows, values)
                known = ~np.isnan(targets)
                prm = bench.best("prm", train.features[rows], targets)
                counts = {
                    "traces": sizes.traces,
                    "labels": int(known.sum()),
                    "cost": _most_traces(sizes.traces, length),
                }
                rivals = {comparison: bench.orm(count) for comparison, count in counts.items()}
                for size in SAMPLES:
                    yield Measured(
                        length=length,
                        recoverability=level,
                        noise=noise,
                        samples=size,
                        trunk=name,
                        seed=seed,
                        wrong_labels=float((targets[known] != truth[known]).mean()),
                        recovered=float(right[wrong].mean()),
                        accuracy=float(right.mean()),
                        majority=bench.majority(size).tolist(),
                        prm=prm[size].accuracy,
                        orm={comparison: rival[size].accuracy for comparison, rival in rivals.items()},
                        rules={"prm": prm[size].rule}
                        | {comparison: rival[size].rule for comparison, rival in rivals.items()},
                    )


def _most_traces(traces: int, length: int) -> int:
    """Traces that cost as many lines as ``traces`` with rollouts from each of their prefixes."""
    return round(traces * (1 + ROLLOUTS * (length - 1) / 2))


def _labels(
    rng: np.random.Generator, noise: str, train: Traces, rows: IntArray, values: FloatArray
) -> FloatArray:
    """Labels of the lines of ``rows`` [traces, L]: 1 good, 0 bad, NaN none.

    People stop at the first line that they call wrong; Monte Carlo labels every prefix, good if a rollout of
    it ends in the right answer.
    """
    if noise == "Monte Carlo":
        chance = np.take_along_axis(values, train.lines[rows][..., None], axis=2)[..., 0]
        return (rng.binomial(ROLLOUTS, chance.clip(0, 1)) > 0).astype(float)
    good = train.good[rows] ^ (rng.random(train.lines[rows].shape) < FLIPPED[noise])
    after = np.cumsum(~good, axis=1) - ~good > 0
    return np.where(after, np.nan, good.astype(float))


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The best of all on the tuning problems."""

    accuracy: list[float]
    """Of each test problem."""
    rule: str


class Selection:
    """Chooses head, strength, rule and vote on tuning problems and reports the others."""

    def __init__(self, train: Traces, test: Traces, truth: IntArray, tuning: int, seed: int) -> None:
        self.train, self.test, self.tuning = train, test, tuning
        self.answers = test.lines[test.where, -1]
        self.right = self.answers == truth[:, None]
        self.jitter = np.random.default_rng(seed).random(self.right.shape) * 1e-9
        self.by_count: dict[int, dict[int, Chosen]] = {}

    def orm(self, count: int) -> dict[int, Chosen]:
        """The ORM of the first ``count`` training traces, by number of samples."""
        if count not in self.by_count:
            rows = self.train.where.reshape(-1)[:count]
            outcomes = self.train.outcome[rows, None].astype(float)
            targets = np.broadcast_to(outcomes, self.train.lines[rows].shape).copy()
            self.by_count[count] = self.best("orm", self.train.features[rows], targets)
        return self.by_count[count]

    def majority(self, size: int) -> FloatArray:
        """Accuracy of the test problems, [test]."""
        return self._vote(self._equal, "weighted_vote", size)[0, self.tuning :]

    def best(self, kind: str, features: FloatArray, targets: FloatArray) -> dict[int, Chosen]:
        """Train every head on ``features`` [T, L, D] and choose, by number of samples."""
        tables: dict[int, list[FloatArray]] = {size: [] for size in SAMPLES}
        names = []
        for head, strength in itertools.product(HEADS[kind], STRENGTHS):
            scores = fitted(head, strength, features, targets, self.test.features)
            reduced = np.stack(
                [
                    scores.min(axis=1),
                    np.exp(np.log(scores).sum(axis=1)),
                    scores[:, -1],
                    scores.mean(axis=1),
                    scores.sum(axis=1),
                ]
            )[:, self.test.where]
            for vote in VOTES:
                names += [f"{vote} {rule}, {head} C={strength:g}" for rule in _RULES]
                for size in SAMPLES:
                    tables[size].append(self._vote(reduced, vote, size))
        names.append("majority")
        results = {}
        for size in SAMPLES:
            table = np.concatenate([*tables[size], self._vote(self._equal, "weighted_vote", size)])
            choice = int(table[:, : self.tuning].mean(axis=1).argmax())
            accuracy = table[choice, self.tuning :].tolist()
            results[size] = Chosen(accuracy=accuracy, rule=names[choice])
        return results

    @property
    def _equal(self) -> FloatArray:
        """A score for which a weighted vote is a majority vote."""
        return np.ones((1, *self.right.shape))

    def _vote(self, scores: FloatArray, vote: str, size: int) -> FloatArray:
        """Expected accuracy of ``scores`` [rules, P, samples] in disjoint groups of ``size``, [rules, P]."""
        count, problems, samples = scores.shape
        scores = (scores + self.jitter).reshape(count, -1, size)
        answers, right = self.answers.reshape(-1, size), self.right.reshape(-1, size)
        if vote == "best_of_n":
            chosen = np.take_along_axis(right[None], scores.argmax(axis=-1)[..., None], axis=-1)
        else:
            groups = np.arange(count * len(answers)).reshape(count, -1, 1) * 10
            cells = (groups + answers[None]).ravel()
            totals = np.bincount(cells, scores.ravel(), minlength=count * len(answers) * 10)
            if vote == "agreement":
                totals /= np.sqrt(np.bincount(cells, minlength=len(totals)).clip(1))
            winner = totals.reshape(count, -1, 10).argmax(axis=-1)
            truth = np.where(right.any(axis=1), answers[np.arange(len(answers)), right.argmax(axis=1)], -1)
            chosen = winner == truth
        return chosen.reshape(count, problems, samples // size).mean(axis=-1)


_RULES = ("min", "product", "last", "mean", "sum")


def fitted(
    head: str, strength: float, features: FloatArray, targets: FloatArray, held: FloatArray
) -> FloatArray:
    """Chances of the lines of ``held`` [U, L, D] by a logistic regression on ``features`` [T, L, D]."""
    mean, scale = features.mean(axis=(0, 1)), features.std(axis=(0, 1)) + 1e-6
    train = (features - mean) / scale
    if head != "step":
        train = np.concatenate([train, train.cumsum(axis=1)], axis=-1)
    known = ~np.isnan(targets)
    if head.endswith("last step"):
        known[:, :-1] = False
    labels = targets[known]
    if len(np.unique(labels)) < 2:
        return np.full(held.shape[:2], labels.mean() if len(labels) else 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a fit that stops early is still a scorer
        model = LogisticRegression(C=strength, max_iter=60, tol=1e-3).fit(train[known], labels)
    weights = model.coef_[0].reshape(-1, len(mean)).T / scale[:, None]
    parts = held @ weights - mean @ weights
    margin = parts[..., 0] + (parts[..., 1].cumsum(axis=1) if head != "step" else 0.0) + model.intercept_[0]
    return np.asarray(1 / (1 + np.exp(-margin.clip(-30, 30))))
