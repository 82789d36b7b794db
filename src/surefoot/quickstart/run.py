"""The whole main job in one run: problems → traces → labels → reward models → better answers.

Each stage writes files into the run directory and can be killed at any moment; the next start resumes
there. Random numbers depend on the seed and on the piece of work only, so an interrupted run
ends with the same files as one that was not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

from surefoot.answers import AnswerChecker, Grader
from surefoot.io import Run, read_records, write_records
from surefoot.lab.checkpoints import POLICY, TRUNK
from surefoot.lab.world import ExactLabeller, generate_problems
from surefoot.labelling.monte_carlo import MonteCarloLabeller
from surefoot.labelling.stopping import SoftEstimate
from surefoot.models.card import CheckpointCard
from surefoot.models.encoding import Encoding
from surefoot.models.kinds.classifier import RewardModel
from surefoot.models.loading import load_prm
from surefoot.policies.traces import sample_traces
from surefoot.policies.transformers import TransformersPolicy
from surefoot.protocols import LabelledTrace, ProblemTrace, Sampling
from surefoot.quickstart.comparison import READINGS, ScoredTraces, compare
from surefoot.quickstart.config import QuickstartConfig
from surefoot.quickstart.report import write_report
from surefoot.records import Problem, Record, StepLabel, StepScores, Trace
from surefoot.segment import Line
from surefoot.training.classifier import train
from surefoot.training.config import OutcomeTargets, StepTargets
from surefoot.training.examples import build_examples

R = TypeVar("R", bound=Record)
Progress = Callable[[str, int, int], None]
"""Called with the stage's name, the pieces done and the pieces in all."""

MODELS = ("orm", "prm", "prm_gold")
_TEST_SEED = 1_000_000  # apart from every training seed


@dataclass(frozen=True, kw_only=True)
class _Context:
    """What every stage needs."""

    run: Run
    config: QuickstartConfig
    policy: TransformersPolicy
    grader: Grader
    progress: Progress

    def path(self, name: str) -> Path:
        return self.run.directory / name


def run_quickstart(run: Run, config: QuickstartConfig, progress: Progress) -> Path:
    """Do or finish the run; returns the path of ``summary.json``."""
    with AnswerChecker("exact") as checker:
        context = _Context(
            run=run,
            config=config,
            policy=TransformersPolicy.from_pretrained(POLICY),
            grader=Grader(checker=checker, styles=("phrase",)),
            progress=progress,
        )
        train_problems, test_problems = _problems(context)
        train_traces = _sample(context, "train", train_problems, config.train_samples, config.seed)
        labels = _label(context, train_problems, train_traces)
        _train(context, train_problems, train_traces, labels)
        test_traces = _sample(context, "test", test_problems, config.test_samples, config.seed + _TEST_SEED)
        scores = {name: _score(context, name, test_problems, test_traces) for name in MODELS}
        return _report(context, test_problems, test_traces, scores, train_traces, labels)


def _problems(context: _Context) -> tuple[list[Problem], list[Problem]]:
    """Training and test problems; the test problems are the same for every seed and in no training set."""
    config = context.config
    test = generate_problems(config.test_problems, seed=_TEST_SEED)
    train = generate_problems(config.train_problems, seed=config.seed, exclude=test)
    for name, problems in (("train", train), ("test", test)):
        write_records(context.path(f"{name}-problems.jsonl"), problems)
    return train, test


def _sample(
    context: _Context, split: Literal["train", "test"], problems: list[Problem], n: int, seed: int
) -> list[Trace]:
    stage, config = f"{split}-traces", context.config
    chunks = _chunks(problems, config.shard)

    def work(number: int) -> list[Trace]:
        traces = asyncio.run(
            sample_traces(
                context.policy,
                chunks[number],
                n=n,
                seed=seed,
                segmenter=Line(),
                grader=context.grader,
                sampling=Sampling(max_tokens=config.max_tokens),
            )
        )
        return [trace for of_problem in traces for trace in of_problem]

    return _sharded(context, stage, Trace, len(chunks), work)


def _label(
    context: _Context, problems: list[Problem], traces: list[Trace]
) -> dict[str, list[list[StepLabel]]]:
    """Monte Carlo labels, and the exact ones beside them; both in the order of ``traces``."""
    config = context.config
    items = _pair(problems, traces)
    chunks = _chunks(items, config.shard * config.train_samples)
    labeller = MonteCarloLabeller(
        policy=context.policy,
        grader=context.grader,
        rule=SoftEstimate(rollouts=config.rollouts),
        sampling=Sampling(max_tokens=config.max_tokens),
        seed=config.seed,
    )

    def work(number: int) -> list[StepLabel]:
        return [label for of_trace in asyncio.run(labeller.label(chunks[number])) for label in of_trace]

    monte_carlo = _sharded(context, "train-labels", StepLabel, len(chunks), work)
    exact = asyncio.run(ExactLabeller(after_error="wrong").label(items))
    write_records(context.path("train-labels-exact.jsonl"), [label for row in exact for label in row])
    return {"monte_carlo": _by_trace(traces, monte_carlo), "exact": exact}


def _train(
    context: _Context, problems: list[Problem], traces: list[Trace], labels: dict[str, list[list[StepLabel]]]
) -> None:
    """Three models on the same traces from the same trunk: what differs is the supervision."""
    pairs = _pair(problems, traces)
    plans: dict[str, tuple[CheckpointCard, list[list[StepLabel]], StepTargets | OutcomeTargets]] = {
        "orm": (_card("orm", "outcome", "outcome"), labels["exact"], OutcomeTargets()),
        "prm": (_card("prm", "value", "monte-carlo"), labels["monte_carlo"], StepTargets()),
        "prm_gold": (_card("prm_gold", "correctness", "lab-checker"), labels["exact"], StepTargets()),
    }
    for name in MODELS:
        if context.run.done(f"train-{name}"):
            continue
        card, of_steps, targets = plans[name]
        model = RewardModel.initialise(TRUNK, card)
        items = [
            LabelledTrace(problem=pair.problem, trace=pair.trace, labels=tuple(row))
            for pair, row in zip(pairs, of_steps, strict=True)
        ]
        data = build_examples(model.tokenizer, card.encoding, items, targets)
        training = context.config.training.model_copy(update={"seed": context.config.seed})
        with context.run.timed(f"train-{name}"):
            log = train(
                model,
                data.examples,
                training,
                context.path(name),
                progress=partial(_training_progress, context, name),
            )
        context.run.finish(f"train-{name}", {"tokens": log.tokens, "dropped": dict(data.dropped)})


def _training_progress(context: _Context, name: str, done: int, total: int, _loss: float) -> None:
    context.progress(f"train {name}", done, total)


def _card(
    name: Literal["prm", "orm", "prm_gold"],
    means: Literal["value", "correctness", "outcome"],
    source: str,
) -> CheckpointCard:
    return CheckpointCard(
        kind="orm" if name == "orm" else "prm",
        encoding=Encoding(max_length=256),
        aggregation=READINGS[name][1],
        score_means=means,
        label_source=source,
        base="surefoot-lab-trunk",
    )


def _score(context: _Context, name: str, problems: list[Problem], traces: list[Trace]) -> list[StepScores]:
    scorer = load_prm(context.path(name))
    items = [item for item in _pair(problems, traces) if item.trace.steps]
    chunks = _chunks(items, context.config.shard * context.config.test_samples)
    return _sharded(
        context, f"scores-{name}", StepScores, len(chunks), lambda number: scorer.score_traces(chunks[number])
    )


def _report(
    context: _Context,
    problems: list[Problem],
    traces: list[Trace],
    scores: dict[str, list[StepScores]],
    train_traces: list[Trace],
    labels: dict[str, list[list[StepLabel]]],
) -> Path:
    scored = ScoredTraces(problems=problems, traces=traces, scores=scores)
    with context.run.timed("compare"):
        context.progress("compare", 0, 1)
        summary = compare(
            scored,
            scorers={name: load_prm(context.path(name)) for name in MODELS},
            train_traces=train_traces,
            labels=labels,
            training={name: context.run.result(f"train-{name}") for name in MODELS},
            seed=context.config.seed,
        )
        context.progress("compare", 1, 1)
    write_report(summary, context.path("report.html"))
    return summary.write(context.path("summary.json"), seconds=context.run.seconds)


def _sharded(
    context: _Context, stage: str, record: type[R], count: int, work: Callable[[int], Sequence[R]]
) -> list[R]:
    """Do the pieces of a stage that are missing, then join them into ``<stage>.jsonl``."""
    path = context.path(f"{stage}.jsonl")
    shards = context.run.shards(stage, record)
    missing = shards.missing(count)
    context.progress(stage, count - len(missing), count)
    for number in missing:
        with context.run.timed(stage):
            shards.write(number, work(number))
        context.progress(stage, number + 1, count)
    if missing or not path.exists():
        shards.merge(path, count)
    return list(read_records(path, record))


def _pair(problems: list[Problem], traces: list[Trace]) -> list[ProblemTrace]:
    by_id = {problem.id: problem for problem in problems}
    return [ProblemTrace(problem=by_id[trace.problem_id], trace=trace) for trace in traces]


def _by_trace(traces: list[Trace], labels: list[StepLabel]) -> list[list[StepLabel]]:
    rows: dict[str, list[StepLabel]] = {trace.id: [] for trace in traces}
    for label in labels:
        rows[label.trace_id].append(label)
    return [rows[trace.id] for trace in traces]


T = TypeVar("T")


def _chunks(items: Sequence[T], size: int) -> list[Sequence[T]]:
    return [items[start : start + size] for start in range(0, len(items), size)]
