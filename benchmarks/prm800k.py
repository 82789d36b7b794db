"""A process reward model on human labels: frozen SmolLM2-135M, head trained on PRM800K phase 1.

    python benchmarks/prm800k.py --data DIR --model DIR [--quick] [--out DIR] [--json FILE]

``--data`` holds ``prm800k/phase1_train_plus.jsonl.gz``, ``prm800k/phase1_test.jsonl.gz`` and
``processbench/gsm8k.json.gz``; ``--model`` is a transformers checkpoint (``benchmarks/convert_smollm2.py``).
The rival is a logistic regression on lengths and positions, fitted on the same rows. See docs/prm800k.md.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from surefoot.evaluation.intervals import Interval, Resample, bootstrap_statistic
from surefoot.evaluation.steps import auc_within, best_threshold, processbench_f1, step_auc
from surefoot.models.card import CheckpointCard
from surefoot.models.encoding import Encoding, encode_traces
from surefoot.models.reward_model import RewardModel
from surefoot.models.scorer import Scorer
from surefoot.protocols import LabelledTrace, ProblemTrace
from surefoot.records import Problem, Trace, content_id
from surefoot.sources.prm800k_steps import read_prm800k_steps
from surefoot.sources.processbench import read_processbench
from surefoot.training.features import FrozenFeatures
from surefoot.training.loop import TrainingConfig, train
from surefoot.training.targets import Example, StepTargets, build_examples

TARGETS = StepTargets(neutral="good")
TRAINING = TrainingConfig(
    freeze_trunk=True, epochs=3, batch_size=64, learning_rate=1e-3, weight_decay=0.1, checkpoint_every=500
)
SEED = 0
DRAWS = 1000

StepLists = list[list[float | None]]
Labels = NDArray[np.int64]
AucOf = Callable[[NDArray[np.float64], Labels, Resample], float]


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much of each set is used; ``None`` = all of it."""

    train_problems: int
    test_problems: int | None = None
    bench_problems: int | None = None


FULL = Size(train_problems=400)
QUICK = Size(train_problems=6, test_problems=4, bench_problems=24)


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


def main() -> None:
    """Load, train, score, compare, write."""
    options = _options()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(options.threads)
    size = QUICK if options.quick else FULL
    if options.problems:
        size = Size(
            **dict(zip(("train_problems", "test_problems", "bench_problems"), options.problems, strict=True))
        )
    clock = Clock()
    train_items = first_problems(list(read_prm800k_steps(options.data / TRAIN_FILE)), size.train_problems)
    test_items = first_problems(list(read_prm800k_steps(options.data / TEST_FILE)), size.test_problems)
    bench_items = first_problems(list(read_processbench(options.data / BENCH_FILE)), size.bench_problems)
    _refuse_overlap(train_items, test_items)
    clock.stop("load")
    model, training = train_head(train_items, options.model, options.out, options.dtype)
    clock.stop("train")
    test_scores, test_tokens = score(model, test_items, options.out / "test")
    clock.stop("score PRM800K test")
    bench_scores, bench_tokens = score(model, bench_items, options.out / "processbench")
    clock.stop("score ProcessBench")
    difference = scorer_difference(model, bench_items, bench_scores)
    rival = LengthBaseline(rated_rows(train_items))
    figures = [
        *auc_figures(test_items, test_scores, rival.score(test_items)),
        *f1_figures(bench_items, bench_scores, rival.score(bench_items)),
    ]
    clock.stop("baseline and intervals")
    setting = {
        "quick": options.quick,
        "base": "SmolLM2-135M-Instruct, frozen",
        "dtype": options.dtype,
        "rival": "logistic regression on step length and position, same training rows",
        "training": training,
        "test": {"problems": len({i.problem.id for i in test_items}), "tokens": test_tokens},
        "processbench": {
            "subset": "gsm8k",
            "traces": len(bench_items),
            "tokens": bench_tokens,
        },
        "neutral": TARGETS.neutral,
        "optimiser": TRAINING.model_dump(),
        "largest_difference_from_scorer": difference,
        "seconds": clock.seconds,
        "torch_threads": torch.get_num_threads(),
    }
    report(figures, setting, options.json)


TRAIN_FILE = "prm800k/phase1_train_plus.jsonl.gz"
TEST_FILE = "prm800k/phase1_test.jsonl.gz"
BENCH_FILE = "processbench/gsm8k.json.gz"


def first_problems(items: list[LabelledTrace], count: int | None) -> list[LabelledTrace]:
    """All traces of ``count`` problems drawn without replacement; a larger draw contains a smaller one."""
    problems = list(dict.fromkeys(item.problem.id for item in items))
    order = np.random.default_rng(SEED).permutation(len(problems))[:count]
    chosen = {problems[index] for index in order}
    return [item for item in items if item.problem.id in chosen]


def train_head(
    items: list[LabelledTrace], base: Path, out: Path, dtype: str
) -> tuple[RewardModel, dict[str, object]]:
    """Train a head on the frozen trunk, saved under ``out``, or load it; returns it and what was used."""
    card = CheckpointCard(
        kind="prm",
        encoding=Encoding(),
        score_means="correctness",
        label_source="human (PRM800K phase 1)",
        base="SmolLM2-135M-Instruct",
        frozen_trunk=True,
    )
    directory = out / f"prm-{len({item.problem.id for item in items})}"
    finished = directory / "training.json"  # written last
    earlier = finished.exists()
    model = RewardModel.load(directory) if earlier else RewardModel.initialise(base, card, dtype=dtype)
    made = build_examples(model.tokenizer, card.encoding, items, TARGETS)
    if not earlier:
        train(model, made.examples, TRAINING, directory)
    losses = json.loads(finished.read_text())["losses"]
    ratings = Counter(label.value for item in items for label in item.labels)
    return model, {
        "problems": len({item.problem.id for item in items}),
        "traces": len(made.examples),
        "labelled_steps": sum(len(example.targets) for example in made.examples),
        "ratings": {str(value): count for value, count in sorted(ratings.items(), key=str)},
        "dropped": dict(made.dropped),
        "updates": len(losses),
        "loss_first_and_last_20_updates": [float(np.mean(losses[:20])), float(np.mean(losses[-20:]))],
    }


def score(model: RewardModel, items: Sequence[LabelledTrace], directory: Path) -> tuple[StepLists, int]:
    """Scores of all steps of all traces, and the traces' tokens, common prefixes counted each time.

    The same numbers as ``Scorer`` gives up to rounding (``scorer_difference``), but a common prefix is read
    once: for PRM800K's alternatives one tenth of the work.
    """
    pairs = [ProblemTrace(problem=item.problem, trace=item.trace) for item in items]
    encoded = encode_traces(model.tokenizer, model.card.encoding, pairs)
    examples = []
    for item, trace in zip(items, encoded, strict=True):
        positions = tuple(at for at in trace.positions if at is not None)
        targets = (math.nan,) * len(positions)  # nothing is trained here
        examples.append(Example(trace_id=item.trace.id, ids=trace.ids, positions=positions, targets=targets))
    features = FrozenFeatures(model, examples, directory)
    scores: StepLists = []
    with torch.inference_mode():
        for example, trace in zip(examples, encoded, strict=True):
            found = model.scores(features.logits([example])).tolist()
            scores.append([*found, *[None] * trace.truncated_steps])  # the last steps are those cut off
    return scores, sum(len(trace.ids) for trace in encoded)


def scorer_difference(model: RewardModel, items: Sequence[LabelledTrace], scores: StepLists) -> float:
    """Largest difference between ``scores`` and those of the package's ``Scorer`` on a few traces."""
    few = items[:4]
    found = Scorer(model, name="check").score_traces(
        [ProblemTrace(problem=item.problem, trace=item.trace) for item in few]
    )
    return max(
        abs(a - b)
        for one, other in zip(found, scores, strict=False)
        for a, b in zip(one.scores, other, strict=True)
        if a is not None and b is not None
    )


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


class LengthBaseline:
    """What length and position alone know: logistic regression, fitted with the same neutral policy."""

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


def auc_figures(items: Sequence[LabelledTrace], ours: StepLists, rival: StepLists) -> list[dict[str, object]]:
    """AUC over held-out rated steps, three ways; intervals over problems."""
    rows = rated_rows(items)
    number = {item.trace.id: index for index, item in enumerate(items)}
    both = [
        np.array([lists[number[trace.id]][step] for _, trace, step in rows.items], dtype=float)
        for lists in (ours, rival)
    ]
    not_bad, positive = np.where(rows.ratings >= 0, 1, -1), np.where(rows.ratings > 0, 1, -1)
    groups = rows.siblings.max() + 1

    def pooled(scores: NDArray[np.float64], labels: NDArray[np.int64], draw: Resample) -> float:
        return step_auc(scores[draw.items], labels[draw.items]).value

    def among_siblings(scores: NDArray[np.float64], labels: NDArray[np.int64], draw: Resample) -> float:
        group = draw.clusters * groups + rows.siblings[draw.items]
        return auc_within(scores[draw.items], labels[draw.items], group).value

    figures = []
    for name, auc, labels in (
        ("step AUC, good or neutral against bad", pooled, not_bad),
        ("step AUC, good against neutral or bad", pooled, positive),
        ("step AUC among continuations of one prefix, good or neutral against bad", among_siblings, not_bad),
    ):

        def statistic(k: int, draw: Resample, auc: AucOf = auc, labels: Labels = labels) -> float:
            return auc(both[k], labels, draw)

        figures.append(figure(name, statistic, rows.problems, "AUC"))
    return figures


def f1_figures(items: Sequence[LabelledTrace], ours: StepLists, rival: StepLists) -> list[dict[str, object]]:
    """ProcessBench F1 with thresholds from the other half, and by the published convention."""
    labels = [first_bad(item) for item in items]
    problems = [item.problem.id for item in items]
    half = np.array([int(content_id("half", item.problem.id), 16) % 2 for item in items])
    figures = []
    for name, split in (
        ("ProcessBench gsm8k F1, threshold from the other half", half),
        ("ProcessBench gsm8k F1, threshold from the same traces (published convention)", None),
    ):
        shifted = [_minus_threshold(scores, labels, split) for scores in (ours, rival)]

        def statistic(k: int, draw: Resample, shifted: list[StepLists] = shifted) -> float:
            drawn = [shifted[k][index] for index in draw.items]
            return processbench_f1(drawn, [labels[index] for index in draw.items], 0.0).f1

        figures.append(figure(name, statistic, problems, "F1"))
    return figures


def first_bad(item: LabelledTrace) -> int:
    """Index of the first step labelled -1, or -1."""
    return next((label.step for label in item.labels if label.value == -1.0), -1)


def _minus_threshold(scores: StepLists, labels: list[int], half: NDArray[np.int64] | None) -> StepLists:
    """Scores less the threshold fitted on the traces of the other half (or on all): bad is below 0."""
    everything = np.arange(len(scores))
    fits = {None: everything} if half is None else {k: everything[half != k] for k in (0, 1)}
    cuts = {
        k: best_threshold([scores[i] for i in fit], [labels[i] for i in fit]).threshold
        for k, fit in fits.items()
    }
    cut = [cuts[None if half is None else int(half[index])] for index in everything]
    return [[None if s is None else s - cut[i] for s in scores[i]] for i in everything]


def figure(
    name: str, statistic: Callable[[int, Resample], float], clusters: Sequence[str], unit: str
) -> dict[str, object]:
    """Ours (0), the rival's (1) and their ratio, each with its 95 % interval over problems."""

    def interval(function: Callable[[Resample], float]) -> Interval:
        return bootstrap_statistic(clusters, function, draws=DRAWS, rng=np.random.default_rng(SEED))

    def ratio(draw: Resample) -> float:
        below = statistic(1, draw)
        return statistic(0, draw) / below if below else float("nan")

    own, other, ratios = (
        interval(lambda d: statistic(0, d)),
        interval(lambda d: statistic(1, d)),
        interval(ratio),
    )
    return {
        "name": name,
        "value": own.value,
        "unit": unit,
        "ratio": ratios.value,
        "low": ratios.low,
        "high": ratios.high,
        "value_low": own.low,
        "value_high": own.high,
        "rival": other.value,
        "rival_low": other.low,
        "rival_high": other.high,
    }


class Clock:
    """Seconds of each stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.monotonic()

    def stop(self, stage: str) -> None:
        """The stage ends now."""
        now = time.monotonic()
        self.seconds[stage], self._last = round(now - self._last, 1), now
        logging.info("%s: %.1f s", stage, self.seconds[stage])


def report(figures: list[dict[str, object]], setting: dict[str, object], path: Path | None) -> None:
    """Print a table, and write JSON if asked."""
    print(f"{'figure':76} {'ours':22} {'length only':22} ratio")
    for f in figures:
        ours = f"{f['value']:.3f} [{f['value_low']:.3f}, {f['value_high']:.3f}]"
        rival = f"{f['rival']:.3f} [{f['rival_low']:.3f}, {f['rival_high']:.3f}]"
        print(f"{f['name']:76} {ours:22} {rival:22} {f['ratio']:.2f} [{f['low']:.2f}, {f['high']:.2f}]")
    print(json.dumps(setting, indent=2))
    if path:
        path.write_text(json.dumps({"figures": figures, "setting": setting}, indent=2) + "\n")


def _refuse_overlap(first: list[LabelledTrace], second: list[LabelledTrace]) -> None:
    common = {item.problem.text for item in first} & {item.problem.text for item in second}
    if common:
        raise SystemExit(f"{len(common)} problems are in both the training and the test file")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("prm800k-run"), help="the checkpoint goes here")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="a few problems: shows that it runs")
    parser.add_argument("--dtype", default="bfloat16", help="bfloat16 (default) or float32")
    parser.add_argument(
        "--problems", type=int, nargs=3, metavar=("TRAIN", "TEST", "BENCH"), help="problems of each set"
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    return parser.parse_args()


if __name__ == "__main__":
    main()
