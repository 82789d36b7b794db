"""What prm800k.py trains on and measures: problems, traces, rated rows, and what lengths alone know."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from surefoot.formats import read_prm800k_steps, read_processbench
from surefoot.protocols import LabelledTrace
from surefoot.records import Problem, Trace, content_id

TRAIN_FILE = "prm800k/phase1_train_plus.jsonl.gz"
TEST_FILE = "prm800k/phase1_test.jsonl.gz"
BENCH_FILES = {"gsm8k": "processbench/gsm8k.json.gz", "math": "processbench/math.fixed.json.gz"}
SEED = 0

StepLists = list[list[float | None]]
Lengths = Callable[[Sequence[LabelledTrace]], list[int]]
"""Tokens of each trace."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much of each set is used; ``None`` = all of it."""

    train_problems: int | None
    test_problems: int | None
    bench_problems: int | None
    """Of each subset of ProcessBench."""
    alternatives: int | None
    """Training traces a problem beside its main solution."""
    longest: int | None
    """Tokens of the longest training trace."""


@dataclass(frozen=True, kw_only=True)
class Material:
    """The traces of a run."""

    train: list[LabelledTrace]
    test: list[LabelledTrace]
    bench: dict[str, list[LabelledTrace]]
    """By subset of ProcessBench."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Traces of the drawn training problems that are not trained on, by reason."""

    @property
    def sets(self) -> dict[str, list[LabelledTrace]]:
        """What is scored, by name."""
        return {"test": self.test} | self.bench


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rated steps, one entry a label: R rows."""

    items: list[tuple[Problem, Trace, int]]
    """Problem, trace and step of each row."""
    ratings: NDArray[np.float64]
    """-1, 0 or +1, shape [R]."""
    problems: list[str]
    siblings: NDArray[np.int64]
    """Number of the prefix that the step continues, shape [R]."""


def load_material(data: Path, size: Size, lengths: Lengths) -> Material:
    """Read the files of ``data`` and draw from them. Exits if a training problem is a test problem, too."""
    drawn = first_problems(list(read_prm800k_steps(data / TRAIN_FILE)), size.train_problems)
    train, left_out = thin(drawn, size, lengths)
    test = first_problems(list(read_prm800k_steps(data / TEST_FILE)), size.test_problems)
    bench = {
        name: first_problems(list(read_processbench(data / file)), size.bench_problems)
        for name, file in BENCH_FILES.items()
    }
    for name, items in ({"test": test} | bench).items():
        if common := {i.problem.text for i in train} & {i.problem.text for i in items}:
            raise SystemExit(f"{len(common)} training problems are in {name}, too")
    return Material(train=train, test=[i for i in test if rated(i)], bench=bench, left_out=left_out)


def first_problems(items: list[LabelledTrace], count: int | None) -> list[LabelledTrace]:
    """All traces of ``count`` problems drawn without replacement; a larger draw contains a smaller one."""
    problems = list(dict.fromkeys(item.problem.id for item in items))
    order = np.random.default_rng(SEED).permutation(len(problems))[:count]
    chosen = {problems[index] for index in order}
    return [item for item in items if item.problem.id in chosen]


def thin(
    items: Sequence[LabelledTrace], size: Size, lengths: Lengths
) -> tuple[list[LabelledTrace], Counter[str]]:
    """Of each problem the main solution and some alternatives, and a count of what is left out.

    The main solution is the trace with the most rated steps. Alternatives are drawn among those that are
    short enough, whatever their rating; a larger draw contains a smaller one.
    """
    left_out: Counter[str] = Counter()
    problems: dict[str, list[tuple[LabelledTrace, int]]] = {}
    for item, tokens in zip(items, lengths(items), strict=True):
        if rated(item):
            problems.setdefault(item.problem.id, []).append((item, tokens))
        else:
            left_out["without a rating"] += 1
    chosen = []
    for problem, traces in problems.items():
        main = max(range(len(traces)), key=lambda number: rated(traces[number][0]))
        longest = math.inf if size.longest is None else size.longest
        short = [number for number, (_, tokens) in enumerate(traces) if tokens <= longest]
        left_out["too long"] += len(traces) - len(short)
        others = [number for number in short if number != main]
        rng = np.random.default_rng([SEED, int(content_id("alternatives", problem), 16) % 2**32])
        drawn = rng.permutation(others)[: size.alternatives].tolist()
        left_out["further alternatives"] += len(others) - len(drawn)
        kept = {*drawn, *({main} & set(short))}
        chosen += [traces[number][0] for number in sorted(kept)]
    return chosen, left_out


def rated(item: LabelledTrace) -> int:
    """Number of rated steps."""
    return sum(label.value is not None for label in item.labels)


def rated_rows(items: Sequence[LabelledTrace]) -> Rows:
    """One row for each label that has a value."""
    rows = [
        (item, label.step, label.value) for item in items for label in item.labels if label.value is not None
    ]
    prefixes: dict[tuple[str, str, int], int] = {}
    siblings = [
        prefixes.setdefault((item.problem.id, item.trace.prefix(step), step), len(prefixes))
        for item, step, _ in rows
    ]
    return Rows(
        items=[(item.problem, item.trace, step) for item, step, _ in rows],
        ratings=np.array([value for _, _, value in rows]),
        problems=[item.problem.id for item, _, _ in rows],
        siblings=np.array(siblings),
    )


def first_bad(item: LabelledTrace) -> int:
    """Index of the first step labelled -1, or -1."""
    return next((label.step for label in item.labels if label.value == -1.0), -1)


def halves(items: Sequence[LabelledTrace]) -> NDArray[np.int64]:
    """0 or 1 for each trace, by a hash of its problem, shape [traces]."""
    return np.array([int(content_id("half", item.problem.id), 16) % 2 for item in items])


class LengthBaseline:
    """What length and position alone know: logistic regression; neutral counts as good."""

    def __init__(self, rows: Rows) -> None:
        features = [self._features(*row) for row in rows.items]
        self._model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
        self._model.fit(features, rows.ratings >= 0)

    def score(self, items: Sequence[LabelledTrace]) -> StepLists:
        """Probability of a good step for every step."""
        scores: StepLists = []
        for item in items:
            features = [self._features(item.problem, item.trace, k) for k in range(len(item.trace.steps))]
            scores.append(self._model.predict_proba(features)[:, 1].tolist())
        return scores

    @staticmethod
    def _features(problem: Problem, trace: Trace, step: int) -> list[float]:
        text = trace.step_text(step)
        before = trace.steps[step].start
        lengths = [len(text), len(text.split()), before, len(problem.text)]
        return [*map(float, lengths), *(float(np.log1p(n)) for n in lengths), step, float(np.log1p(step))]
