"""Train a verifier that writes critiques, and let it verify solutions it has not seen.

    python -m benchmarks.verifiers.generative               # too short to learn it; writes ./verifier
    python -m benchmarks.verifiers.generative --traces 5000 --epochs 6 --test 300  # ten minutes on one core

A scripted critic of the lab's world, which errs in one verdict of twenty, writes the critiques. Those that
agree with the exact labels on every step are kept, and the lab's small language model learns to write them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import time
from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.worlds import critic
from benchmarks.worlds.digits import TRUNK, Difficulty, ExactLabeller, NoisySolver, generate_problems
from surefoot.answers import AnswerChecker, Grader
from surefoot.evaluation.benchmarks import processbench_f1
from surefoot.models import GenerativeVerifier, load_verifier
from surefoot.policies import sample_traces
from surefoot.protocols import LabelledTrace, ProblemTrace, Sampling
from surefoot.records import Problem
from surefoot.segment import Line
from surefoot.stats import roc_auc
from surefoot.training import VerifierConfig, build_critique_examples, sample_critiques, train_verifier

DIFFICULTY = Difficulty(min_operations=1, max_operations=3)


def labelled(problems: list[Problem], *, seed: int) -> list[LabelledTrace]:
    """One solution of each problem by a solver that errs in one line of three, with exact labels."""
    solver = NoisySolver(error_rate=0.35)
    with AnswerChecker("exact") as checker:
        grader = Grader(checker=checker, styles=("phrase",))
        sampled = asyncio.run(
            sample_traces(solver, problems, n=1, seed=seed, segmenter=Line(), grader=grader)
        )
    items = [ProblemTrace(problem=p, trace=traces[0]) for p, traces in zip(problems, sampled, strict=True)]
    labels = asyncio.run(ExactLabeller().label(items))
    return [
        LabelledTrace(problem=item.problem, trace=item.trace, labels=tuple(of_trace))
        for item, of_trace in zip(items, labels, strict=True)
    ]


def train(items: list[LabelledTrace], directory: Path, config: VerifierConfig) -> dict[str, object]:
    """Critiques → filter → fine-tuning; returns what was kept, dropped and learned."""
    tokenizer = AutoTokenizer.from_pretrained(TRUNK)
    tokenizer.add_tokens(list(critic.PIECES))
    model = AutoModelForCausalLM.from_pretrained(TRUNK)
    model.resize_token_embeddings(len(tokenizer))
    traces = [ProblemTrace(problem=item.problem, trace=item.trace) for item in items]
    written = sample_critiques(critic.NoisyCritic(error_rate=0.05), traces, critic.FORMAT, chains=2)
    critiques = [record.texts for record in asyncio.run(written)]
    data = build_critique_examples(tokenizer, items, critiques, critic.FORMAT, seed=config.seed)
    start = time.perf_counter()
    log = train_verifier(
        model,
        tokenizer,
        data.examples,
        critic.FORMAT,
        config,
        directory,
        base="surefoot-lab-trunk",
        label_source="digit-checker",
    )
    return {
        "critiques": sum(map(len, critiques)),
        "kept": len(data.examples),
        "dropped": dict(data.dropped),
        "updates": len(log.losses),
        "first_loss": log.losses[0],
        "last_loss": log.losses[-1],
        "seconds": time.perf_counter() - start,
    }


def evaluate(verifier: GenerativeVerifier, items: list[LabelledTrace]) -> dict[str, object]:
    """Step AUC up to the first error, ProcessBench's accuracies at ½, and what could not be read."""
    scores = verifier.score_traces([ProblemTrace(problem=i.problem, trace=i.trace) for i in items])
    values = [[label.value for label in item.labels] for item in items]
    firsts = [of_trace.index(-1.0) if -1.0 in of_trace else -1 for of_trace in values]
    neutral_is_good = [[1.0 if v == 0.0 else v for v in of_trace] for of_trace in values]
    auc = roc_auc([s for record in scores for s in record.scores], [v for of in neutral_is_good for v in of])
    bench = processbench_f1([record.scores for record in scores], firsts, 0.5)
    ends = roc_auc([record.scores[-1] for record in scores], [1.0 if first < 0 else -1.0 for first in firsts])
    return {
        "traces": len(items),
        "step_auc": None if math.isnan(auc) else auc,  # unknown: nothing could be compared
        "solution_auc": None if math.isnan(ends) else ends,
        "first_error_accuracy": bench.acc_error,
        "no_error_accuracy": bench.acc_correct,
        "f1": bench.f1,
        "invalid": dict(verifier.invalid),
        "verifier_tokens": sum(record.usage.verifier_tokens for record in scores),
    }


def main() -> None:
    """Train, evaluate on other problems, print both as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--traces", type=int, default=100, help="solutions to write critiques of")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--test", type=int, default=40, help="solutions to verify")
    parser.add_argument("--chains", type=int, default=1, help="critiques of each solution to average")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("verifier"))
    options = parser.parse_args()
    problems = generate_problems(options.traces + options.test, seed=options.seed, difficulty=DIFFICULTY)
    items = labelled(problems, seed=options.seed)
    config = VerifierConfig(epochs=options.epochs, batch_size=16, learning_rate=1e-3, seed=options.seed)
    report = train(items[: options.traces], options.out, config)
    print(json.dumps(report, indent=2))
    sampling = Sampling(temperature=0.6 if options.chains > 1 else 0.0, max_tokens=192)
    verifier = load_verifier(options.out, chains=options.chains, sampling=sampling)
    print(json.dumps(evaluate(verifier, items[options.traces :]), indent=2))


if __name__ == "__main__":
    main()
