"""The whole main job in one run: problems → traces → labels → reward models → better answers.

Each stage writes files into the run directory and can be killed at any moment; the next start resumes
there. Random numbers depend on the seed and on the piece of work only, so an interrupted run
ends with the same files as one that was not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from surefoot.io import Run, read_records, write_records
from surefoot.io.joins import JoinedTraces, join_traces
from surefoot.io.tables import open_table
from surefoot.lab.checkpoints import TRUNK
from surefoot.lab.world import ExactLabeller, generate_problems
from surefoot.models.card import CheckpointCard
from surefoot.models.encoding import Encoding
from surefoot.models.kinds.classifier import RewardModel
from surefoot.models.loading import load_prm
from surefoot.protocols import LabelledTrace, ProblemTrace
from surefoot.quickstart.comparison import READINGS, ScoredTraces, compare
from surefoot.quickstart.config import QuickstartConfig
from surefoot.quickstart.report import write_report
from surefoot.quickstart.stages import RolloutJob, SampleJob, ScoreJob
from surefoot.records import Problem, Record, StepLabel, StepScores, Trace
from surefoot.segment import cut_trace
from surefoot.training.classifier import train
from surefoot.training.config import OutcomeTargets, StepTargets
from surefoot.training.examples import build_examples
from surefoot.work import Engine, Job, Pieces, Progress, map_resumable

R = TypeVar("R", bound=Record)
MODELS = ("orm", "prm", "prm_gold")
_TEST_SEED = 1_000_000  # apart from every training seed


@dataclass(frozen=True, kw_only=True)
class _Context:
    """What every stage needs."""

    run: Run
    config: QuickstartConfig
    engine: Engine | None
    progress: Progress

    def path(self, name: str) -> Path:
        return self.run.directory / name


def run_quickstart(
    run: Run, config: QuickstartConfig, progress: Progress, *, engine: Engine | None = None
) -> Path:
    """Do or finish the run; returns the path of ``summary.json``.

    The ``engine`` samples, labels and scores; the files are the same whoever does. Without one, this process.
    """
    context = _Context(run=run, config=config, engine=engine, progress=progress)
    train_problems, test_problems = _problems(context)
    train_traces = _sample(context, "train", config.train_samples, config.seed)
    labels = _label(context, train_problems, train_traces)
    _train(context, train_problems, train_traces, labels)
    test_traces = _sample(context, "test", config.test_samples, config.seed + _TEST_SEED)
    scores = {name: _score(context, name) for name in MODELS}
    return _report(context, test_problems, test_traces, scores, train_traces, labels)


def _problems(context: _Context) -> tuple[list[Problem], list[Problem]]:
    """Training and test problems; the test problems are the same for every seed and in no training set."""
    config = context.config
    test = generate_problems(config.test_problems, seed=_TEST_SEED)
    train = generate_problems(config.train_problems, seed=config.seed, exclude=test)
    for name, problems in (("train", train), ("test", test)):
        write_records(context.path(f"{name}-problems.jsonl"), problems)
    return train, test


def _sample(context: _Context, split: Literal["train", "test"], n: int, seed: int) -> list[Trace]:
    problems = open_table(context.path(f"{split}-problems.jsonl"), Problem)
    job = SampleJob(n=n, seed=seed, max_tokens=context.config.max_tokens)
    return _map(context, f"{split}-traces", problems, context.config.shard, job)


def _label(
    context: _Context, problems: list[Problem], traces: list[Trace]
) -> dict[str, list[list[StepLabel]]]:
    """Monte Carlo labels and exact labels, both in the order of ``traces``."""
    config = context.config
    job = RolloutJob(rollouts=config.rollouts, seed=config.seed, max_tokens=config.max_tokens)
    size = config.shard * config.train_samples
    monte_carlo = _map(context, "train-labels", _joined(context, "train"), size, job)
    exact = asyncio.run(ExactLabeller(after_error="wrong").label(_pair(problems, traces)))
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


def _score(context: _Context, name: str) -> list[StepScores]:
    size = context.config.shard * context.config.test_samples
    items = _joined(context, "test")
    return _map(context, f"scores-{name}", items, size, ScoreJob(model=context.path(name)))


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


def _map(context: _Context, stage: str, items: Sequence[Any], size: int, job: Job[R]) -> list[R]:
    """Map the job over the items into ``<stage>.jsonl``, unless an earlier start finished that."""
    path = context.path(f"{stage}.jsonl")
    if not path.exists() or context.path(f"{path.name}.work").exists():
        with context.run.timed(stage) as save_time:

            def progress(_: str, done: int, total: int) -> None:
                save_time()
                context.progress(stage, done, total)

            job = replace(job, command=f"quickstart: {stage}")
            pieces = Pieces(items, size)
            map_resumable(job, pieces, str(path), engine=context.engine, progress=progress)
    return list(read_records(path, job.record))


def _joined(context: _Context, split: Literal["train", "test"]) -> JoinedTraces:
    """The traces of a split that have steps, with their problems."""
    problems = open_table(context.path(f"{split}-problems.jsonl"), Problem)
    return join_traces(problems, open_table(context.path(f"{split}-traces.jsonl"), Trace), cut_trace)[0]


def _pair(problems: list[Problem], traces: list[Trace]) -> list[ProblemTrace]:
    by_id = {problem.id: problem for problem in problems}
    return [ProblemTrace(problem=by_id[trace.problem_id], trace=trace) for trace in traces]


def _by_trace(traces: list[Trace], labels: list[StepLabel]) -> list[list[StepLabel]]:
    rows: dict[str, list[StepLabel]] = {trace.id: [] for trace in traces}
    for label in labels:
        rows[label.trace_id].append(label)
    return [rows[trace.id] for trace in traces]
