"""Does a fused scorer read? Verdicts on equations and the text of a step, against length and position.

    python benchmarks/fusion.py --data DIR [--quick] [--json FILE]

``DIR`` holds ``prm800k/phase1_{train_plus,test}.jsonl.gz`` and
``processbench/{gsm8k,math.fixed}.json.gz``. No model runs. The scorer is fitted on PRM800K problems of parts
0 to 4 (of 8, by CRC-32 of the problem), on which the rules of the equation verifier were developed too; it is
measured on parts 5 to 7 and on the test file.

- ``auc``, ``within_problem``, ``within_prefix``: pairs of a good and a bad step, of all, of one problem, and
  among the continuations of one prefix; ``…_minus_baseline``: the paired difference to the better of boosted
  trees and a logistic regression on length and position alone, fitted on the same steps.
- ``swapped_number_noticed``: of good steps with an equation, the share whose score falls when the last number
  is another, less the share whose score rises.
- ``processbench_*``: F1 with the threshold that was chosen on held-out training problems (flags of the
  verifier alone: ``benchmarks/equations.py``).

Intervals are over problems.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from surefoot import __version__
from surefoot.evaluation.benchmarks import processbench_f1
from surefoot.formats import read_prm800k_steps, read_processbench
from surefoot.models import FusedScorer
from surefoot.protocols import LabelledTrace, ProblemTrace
from surefoot.records import Trace
from surefoot.search import score_held_out, trust_of
from surefoot.stats import Interval, Resample, bootstrap_statistic, roc_auc, roc_auc_within
from surefoot.training import FusionConfig, fit_fused

DRAWS = 300
BATCH = 256
NUMBER = re.compile(r"\d+(?=\D*$)")
Figure = dict[str, object]
AucOf = Callable[[NDArray[np.float64], Resample], float]


@dataclass(frozen=True)
class Rows:
    """Distinct rated steps."""

    scores: NDArray[np.float64]
    layout: NDArray[np.float64]
    """Shape [rows, 2]: characters and position."""
    good: NDArray[np.bool_]
    problems: list[str]
    prefixes: list[tuple[str, ...]]


def part(item: LabelledTrace) -> int:
    """The part of eight that a problem is in."""
    return zlib.crc32(item.problem.text.encode()) % 8


def rated(items: Iterable[LabelledTrace], scorer: FusedScorer | None) -> Rows:
    """Each rated step once for a prefix, scored if there is a scorer."""
    rows: dict[tuple[str, ...], tuple[float, float, float, bool, str]] = {}
    for batch in batches(items):
        pairs = [ProblemTrace(problem=item.problem, trace=item.trace) for item in batch]
        records = scorer.score_traces(pairs) if scorer else [None] * len(batch)
        for item, record in zip(batch, records, strict=True):
            texts = [item.trace.step_text(step).strip() for step in range(len(item.trace.steps))]
            for label in item.labels:
                if label.value is not None:
                    score = (record.scores[label.step] if record else None) or 0.0
                    key = (item.problem.id, *texts[: label.step + 1])
                    size = len(texts[label.step])
                    rows.setdefault(key, (score, size, label.step, label.value > -1, item.problem.id))
    return Rows(
        scores=np.array([row[0] for row in rows.values()]),
        layout=np.array([row[1:3] for row in rows.values()], dtype=float),
        good=np.array([row[3] for row in rows.values()]),
        problems=[row[4] for row in rows.values()],
        prefixes=[key[:-1] for key in rows],
    )


def batches(items: Iterable[LabelledTrace]) -> Iterator[list[LabelledTrace]]:
    """Pieces of ``BATCH`` traces."""
    batch: list[LabelledTrace] = []
    for item in items:
        batch.append(item)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def compare(name: str, rows: Rows, trained: Rows) -> list[Figure]:
    """AUC of the scorer, and its lead over length and position."""
    models = (
        HistGradientBoostingClassifier(
            max_iter=100, learning_rate=0.06, early_stopping=False, random_state=0
        ),
        make_pipeline(StandardScaler(), LogisticRegression()),
    )
    rivals = [model.fit(trained.layout, trained.good).predict_proba(rows.layout)[:, 1] for model in models]
    figures: list[Figure] = []
    groups = {"auc": None, "within_problem": rows.problems, "within_prefix": rows.prefixes}
    for measure, group in groups.items():
        numbers = np.unique(list(map(hash, group)), return_inverse=True)[1] if group else None

        def auc(
            scores: NDArray[np.float64], sample: Resample, numbers: NDArray[np.intp] | None = numbers
        ) -> float:
            at = sample.items
            if numbers is None:
                return roc_auc(scores[at], rows.good[at]).value
            # a problem that was drawn twice is two groups
            return roc_auc_within(
                scores[at], rows.good[at], sample.clusters * len(rows.good) + numbers[at]
            ).value

        everything = Resample(items=np.arange(len(rows.good)), clusters=np.zeros(len(rows.good), dtype=int))
        rival = max(rivals, key=lambda scores: auc(scores, everything))

        def lead(sample: Resample, auc: AucOf = auc, rival: NDArray[np.float64] = rival) -> float:
            return auc(rows.scores, sample) - auc(rival, sample)

        for suffix, statistic in (("", partial(auc, rows.scores)), ("_minus_baseline", lead)):
            interval = bootstrap_statistic(
                rows.problems, statistic, draws=DRAWS, rng=np.random.default_rng(0)
            )
            figures.append(figure(f"{name}_{measure}{suffix}", interval, len(rows.good)))
    return figures


def figure(name: str, interval: Interval, count: int) -> Figure:
    """One line of the result, printed as it comes."""
    made: Figure = {
        "name": name, "value": interval.value, "low": interval.low, "high": interval.high, "items": count,
    }  # fmt: skip
    print(
        f"{name:44s} {interval.value:7.3f} [{interval.low:.3f}, {interval.high:.3f}]  n={count}", flush=True
    )
    return made


def swapped(items: Sequence[LabelledTrace], scorer: FusedScorer) -> Figure:
    """Good steps with an equation whose last number is changed: does the score fall?"""
    rng = np.random.default_rng(0)
    chosen: dict[tuple[str, str], ProblemTrace] = {}
    for item in items:
        for label in item.labels:
            text = item.trace.step_text(label.step)
            if label.value == 1 and "=" in text and NUMBER.search(text):
                steps = item.trace.steps[: label.step + 1]
                trace = item.trace.model_copy(update={"steps": steps})
                chosen.setdefault((item.problem.id, text), ProblemTrace(problem=item.problem, trace=trace))
    originals = list(chosen.values())
    changed = []
    for item in originals:
        step = item.trace.steps[-1]
        text = item.trace.step_text(len(item.trace.steps) - 1)
        new = NUMBER.sub(lambda match: str(int(match[0]) + int(rng.integers(1, 10))), text)
        whole = (item.trace.text or "")[: step.start] + new
        last = step.model_copy(update={"end": step.start + len(new)})
        trace = Trace(problem_id=item.problem.id, text=whole, steps=(*item.trace.steps[:-1], last))
        changed.append(ProblemTrace(problem=item.problem, trace=trace))
    before = np.array([record.scores[-1] for record in scorer.score_traces(originals)], dtype=float)
    after = np.array([record.scores[-1] for record in scorer.score_traces(changed)], dtype=float)
    net = np.sign(before - after)
    interval = bootstrap_statistic(
        [item.problem.id for item in originals],
        lambda sample: float(net[sample.items].mean()),
        draws=DRAWS,
        rng=np.random.default_rng(0),
    )
    return figure("swapped_number_noticed", interval, len(net))


def on_processbench(path: Path, scorer: FusedScorer, threshold: float, limit: int | None) -> Figure:
    """F1 of the first step below the threshold."""
    items = list(read_processbench(path))[:limit]
    traces = [ProblemTrace(problem=item.problem, trace=item.trace) for item in items]
    scores = [list(record.scores) for batch in range(0, len(traces), BATCH)
              for record in scorer.score_traces(traces[batch : batch + BATCH])]  # fmt: skip
    labels = [next((label.step for label in item.labels if label.value == -1), -1) for item in items]
    interval = bootstrap_statistic(
        [item.problem.id for item in items],
        lambda sample: (
            processbench_f1(
                [scores[at] for at in sample.items], [labels[at] for at in sample.items], threshold
            ).f1
        ),
        draws=DRAWS,
        rng=np.random.default_rng(0),
    )
    return figure(f"processbench_{path.name.split('.')[0]}_f1", interval, len(items))


def main(words: Sequence[str] | None = None) -> int:
    """Run it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--quick", action="store_true", help="few problems: minutes")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(words)
    train_file, test_file = (
        options.data / "prm800k" / f"phase1_{name}.jsonl.gz" for name in ("train_plus", "test")
    )
    parts = (0,) if options.quick else (0, 1, 2, 3, 4)
    development = [item for item in read_prm800k_steps(train_file) if part(item) in parts]
    held_out = {item.problem.id for item in development if zlib.crc32(item.problem.id.encode()) % 10 == 0}
    training = [item for item in development if item.problem.id not in held_out]
    scorer = fit_fused(
        training, FusionConfig(), models={}, verifiers=("equations",), name="fused", label_source="human"
    )
    for choice, auc in scorer.settings.auc.items():
        print(f"  out of fold, {choice:24s} {auc:.3f}")
    trust = trust_of(score_held_out(scorer, [item for item in development if item.problem.id in held_out]))
    print(f"  {trust}")
    trained = rated(training, None)
    test = list(read_prm800k_steps(test_file))
    if options.quick:
        kept = sorted({item.problem.id for item in test})[:25]
        test = [item for item in test if item.problem.id in kept]
    figures = compare("test", rated(test, scorer), trained)
    figures.append(swapped(test, scorer))
    if not options.quick:
        fresh = (item for item in read_prm800k_steps(train_file) if part(item) > 4)
        figures += compare("fresh", rated(fresh, scorer), trained)
    for name in ("gsm8k", "math.fixed"):
        path = options.data / "processbench" / f"{name}.json.gz"
        threshold = trust.threshold if trust else 0.5
        figures.append(on_processbench(path, scorer, threshold, 60 if options.quick else None))
    if options.json:
        record = {"version": __version__, "command": sys.argv, "figures": figures, "auc": scorer.settings.auc}
        options.json.write_text(json.dumps(record, indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
