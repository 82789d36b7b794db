"""Does a fused scorer read? Verdicts on equations and the text of a step, against length and position.

    python benchmarks/fusion.py --data DIR [--quick] [--json FILE]

``DIR`` holds ``prm800k/phase1_{train_plus,test}.jsonl.gz``, ``processbench/{gsm8k,math.fixed}.json.gz`` and
``bon/math500_prm_scored_pool.jsonl.gz``. No model runs. The scorer is fitted on PRM800K problems of parts
0 to 4 (of 8, by CRC-32 of the problem), on which the rules of the equation verifier were developed too; it is
measured on the test file and on parts 5 to 7 without the problems whose flags were read to improve these
rules (``fresh``), each rated step once for a prefix.

- ``auc``: over all pairs of a good and a bad step.
- ``within_prefix``, ``similar_length``, ``within_problem``: the reading gate, differences to a logistic
  regression on length and position that was fitted on the same steps (``surefoot.stats.reading_gate``).
- ``swapped_number_noticed``: of good steps with an equation, the share whose score falls when the last number
  is another, less the share whose score rises.
- ``processbench_*``: F1 with the threshold that was chosen on held-out training problems (flags of the
  verifier alone: ``benchmarks/equations.py``).
- ``pool_*``: an answer from 16 of at least 24 candidates a problem (MATH-500), by a vote weighted by the
  lowest step and by best-of-N with it, less majority voting on the same candidates; for the fused scorer,
  for trees without verdicts, and for the process reward model that made the pool.

Intervals are over problems.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np

from surefoot import __version__
from surefoot.answers import AnswerChecker
from surefoot.evaluation import evaluate_best_of_n, grade_stored, judged_candidates
from surefoot.evaluation.benchmarks import processbench_f1
from surefoot.formats import read_candidate_pool, read_prm800k_steps, read_processbench
from surefoot.models import FusedScorer, Trust
from surefoot.protocols import LabelledTrace, ProblemTrace
from surefoot.records import Trace
from surefoot.search import score_held_out, trust_of
from surefoot.stats import Interval, bootstrap_statistic
from surefoot.training import FusionConfig, fit_fused

DRAWS = 300
BATCH = 256
SAMPLES, LEAST = 16, 24
"""Candidates that a rule selects from, and the fewest of a problem in the pool."""
NUMBER = re.compile(r"\d+(?=\D*$)")
Figure = dict[str, object]


def in_parts(path: Path, parts: Sequence[int]) -> Iterator[LabelledTrace]:
    """Rated traces of the problems in these of eight parts; each rated step once for a prefix."""
    seen: set[tuple[str, ...]] = set()
    for item in read_prm800k_steps(path):
        if zlib.crc32(item.problem.text.encode()) % 8 not in parts:
            continue
        texts = [item.trace.step_text(step).strip() for step in range(len(item.trace.steps))]
        labels = []
        for label in item.labels:
            key = (item.problem.id, *texts[: label.step + 1])
            if label.value is not None and key not in seen:
                seen.add(key)
                labels.append(label)
        if labels:
            yield replace(item, labels=tuple(labels))


def improved_on(path: Path) -> set[str]:
    """Problems of parts 5 to 7 whose flags were read to improve the verifier (``equations.HELD_OUT``)."""
    texts = {item.problem.text for item in read_prm800k_steps(path)}
    parts = [text for text in texts if zlib.crc32(text.encode()) % 8 in (5, 6, 7)]
    return set(sorted(parts, key=lambda text: hashlib.sha256(b"equations" + text.encode()).digest())[:120])


def figure(name: str, value: Interval | Sequence[float] | None, count: int) -> Figure:
    """One line of the result, printed as it comes."""
    if isinstance(value, Interval):
        value = (value.value, value.low, value.high)
    shown = "not measured" if value is None else "{:7.3f} [{:.3f}, {:.3f}]".format(*value)
    print(f"{name:36s} {shown}  n={count}", flush=True)
    return {"name": name, "value": value, "items": count}


def trusted(scorer: FusedScorer, items: Iterable[LabelledTrace], training: Sequence[LabelledTrace]) -> Trust:
    """The scorer on ``items``, next to length and position fitted on ``training``."""
    trust = trust_of(score_held_out(scorer, list(items), training))
    if trust is None or trust.reading is None:
        raise SystemExit("error: the rated steps are all good or all bad; is the file complete?")
    return trust


def gate(name: str, trust: Trust) -> list[Figure]:
    """AUC and reading gate."""
    print(f"  {name}: {trust}")
    reading = trust.reading.model_dump(exclude={"problems"}) if trust.reading else {}
    return [
        figure(f"{name}_{key}", value, trust.steps) for key, value in {"auc": trust.auc, **reading}.items()
    ]


def swapped(items: Iterable[LabelledTrace], scorer: FusedScorer) -> Figure:
    """Good steps with an equation whose last number is changed: does the score fall?"""
    rng = np.random.default_rng(0)
    originals, changed = [], []
    for item in items:
        for label in item.labels:
            steps = item.trace.steps[: label.step + 1]
            text = item.trace.step_text(label.step)
            if label.value != 1 or "=" not in text or not NUMBER.search(text):
                continue
            trace = item.trace.model_copy(update={"steps": steps})
            originals.append(ProblemTrace(problem=item.problem, trace=trace))
            new = NUMBER.sub(lambda match: str(int(match[0]) + int(rng.integers(1, 10))), text)
            last = steps[-1].model_copy(update={"end": steps[-1].start + len(new)})
            whole = (item.trace.text or "")[: last.start] + new
            trace = Trace(problem_id=item.problem.id, text=whole, steps=(*steps[:-1], last))
            changed.append(ProblemTrace(problem=item.problem, trace=trace))
    before, after = (
        np.array([record.scores[-1] for record in scorer.score_traces(of_kind)], dtype=float)
        for of_kind in (originals, changed)
    )
    net = np.sign(before - after)
    problems = [item.problem.id for item in originals]
    interval = bootstrap_statistic(
        problems, lambda sample: float(net[sample.items].mean()), draws=DRAWS, rng=np.random.default_rng(0)
    )
    return figure("swapped_number_noticed", interval, len(net))


def on_processbench(path: Path, scorer: FusedScorer, threshold: float, limit: int | None) -> Figure:
    """F1 of the first step below the threshold."""
    items = list(islice(read_processbench(path), limit))
    records = scorer.score_traces([ProblemTrace(problem=item.problem, trace=item.trace) for item in items])
    scores = [list(record.scores) for record in records]
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


def on_pool(path: Path, scorers: Mapping[str, FusedScorer], limit: int | None) -> list[Figure]:
    """Selection of an answer by the lowest step, less majority voting, paired by problem."""
    with AnswerChecker() as checker:
        stored = grade_stored(islice(read_candidate_pool(path), limit), checker, ("boxed",))
        candidates = judged_candidates(stored.traces, checker, least=LEAST)
    problems = {problem.id: problem for problem in stored.problems}
    items = [ProblemTrace(problem=problems[trace.problem_id], trace=trace) for trace in stored.traces]
    scores = {"stored_prm": stored.scores}
    for name, scorer in scorers.items():
        batches = (items[start : start + BATCH] for start in range(0, len(items), BATCH))
        scores[name] = [record for batch in batches for record in scorer.score_traces(batch)]
    result = evaluate_best_of_n(candidates, scores, rules=("weighted_vote", "best_of_n"), sizes=[SAMPLES])
    accuracy = {curve.name: curve.accuracy[SAMPLES] for curve in result.curves}
    figures = [figure(f"pool_{name}", accuracy[name], result.problems) for name in ("pass@N", "majority")]
    return figures + [
        figure(f"pool_{curve.scorer}_{curve.rule}", curve.minus_majority[SAMPLES], result.problems)
        for curve in result.curves
        if curve.aggregation == "min"
    ]


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
    development = list(in_parts(train_file, (0,) if options.quick else range(5)))
    held_out = {item.problem.id for item in development if zlib.crc32(item.problem.id.encode()) % 10 == 0}
    training = [item for item in development if item.problem.id not in held_out]
    scorer = fit_fused(
        training, FusionConfig(), models={}, verifiers=("equations",), name="fused", label_source="human"
    )
    for choice, auc in scorer.settings.auc.items():
        print(f"  out of fold, {choice:24s} {auc:.3f}", flush=True)
    chosen_on = [item for item in development if item.problem.id in held_out]
    threshold = trusted(scorer, chosen_on, training).threshold
    test = list(in_parts(test_file, (0, 1) if options.quick else range(8)))
    figures = gate("test", trusted(scorer, test, training))
    figures.append(swapped(test, scorer))
    if not options.quick:
        read = improved_on(train_file)
        fresh = (item for item in in_parts(train_file, (5, 6, 7)) if item.problem.text not in read)
        figures += gate("fresh", trusted(scorer, fresh, training))
    for name in ("gsm8k", "math.fixed"):
        path = options.data / "processbench" / f"{name}.json.gz"
        figures.append(on_processbench(path, scorer, threshold, 60 if options.quick else None))
    textual = fit_fused(training, FusionConfig(), models={}, verifiers=(), name="text", label_source="human")
    path = options.data / "bon" / "math500_prm_scored_pool.jsonl.gz"
    figures += on_pool(path, {"fused": scorer, "without_verdicts": textual}, 20 if options.quick else None)
    if options.json:
        record = {"version": __version__, "command": sys.argv, "figures": figures, "auc": scorer.settings.auc}
        options.json.write_text(json.dumps(record, indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
