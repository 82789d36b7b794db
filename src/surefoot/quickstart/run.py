"""The whole main job in one run: problems → traces → labels → reward models → better answers.

Each stage writes files into the run directory and can be killed at any moment; the next start resumes
there. Random numbers depend on the seed and on the piece of work only, so an interrupted run
ends with the same files as one that was not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from surefoot.answers import AnswerChecker, Grader
from surefoot.evaluation.frame import worked_examples
from surefoot.io import Run, read_records, write_json, write_records
from surefoot.io.joins import JoinedTraces, join_traces
from surefoot.io.lineage import model_hashes, portable
from surefoot.io.tables import open_table
from surefoot.lab.checkpoints import POLICY, TRUNK
from surefoot.lab.world import ExactLabeller, generate_problems
from surefoot.labelling.monte_carlo import MonteCarloLabeller, MonteCarloSettings
from surefoot.models.card import CheckpointCard
from surefoot.models.encoding import Encoding
from surefoot.models.kinds.classifier import RewardModel
from surefoot.models.loading import load_prm
from surefoot.policies.episodes import sample_traces
from surefoot.policies.transformers import TransformersPolicy
from surefoot.protocols import LabelledTrace, ProblemTrace, Sampling
from surefoot.quickstart.comparison import READINGS, ScoredTraces, compare, judged_traces
from surefoot.quickstart.config import QuickstartConfig
from surefoot.quickstart.summary import Summary, findings, report_of
from surefoot.records import Problem, Record, StepLabel, StepScores, Trace
from surefoot.segment import Line, cut_trace
from surefoot.training.classifier import train
from surefoot.training.config import OutcomeTargets, StepTargets
from surefoot.training.examples import build_examples
from surefoot.work import Engine, Job, Opened, Pieces, Progress, map_resumable

R = TypeVar("R", bound=Record)
Loader = Callable[[], AbstractContextManager[Opened]]
MODELS = ("orm", "prm", "prm_gold")


def run_quickstart(
    run: Run, config: QuickstartConfig, progress: Progress, *, engine: Engine | None = None, command: str = ""
) -> Summary:
    """Do or finish the run; the summary is also in ``summary.json``, and in ``report.html``.

    The ``engine`` samples, labels and scores; the files are the same whoever does. Without one, this process.
    ``progress`` gets the stages of :func:`surefoot.quickstart.config.expected_seconds`.
    """
    # the test problems are the same for every seed and in no training set
    test_problems = generate_problems(config.test_problems, seed=config.test_seed)
    train_problems = generate_problems(config.train_problems, seed=config.seed, exclude=test_problems)
    for name, problems in (("train", train_problems), ("test", test_problems)):
        write_records(run.directory / f"{name}-problems.jsonl", problems)
    stages = _Stages(run, config, progress, engine)
    run.note(stages.lineage())
    train_traces = stages.sample("train", config.train_samples, config.seed)
    labels = stages.label(train_problems, train_traces)
    stages.train(train_problems, train_traces, labels)
    test_traces = stages.sample("test", config.test_samples, config.seed + config.test_seed)
    scored = ScoredTraces(
        problems=test_problems, traces=test_traces, scores={name: stages.score(name) for name in MODELS}
    )
    with run.timed("compare"):
        progress("compare", 0, 1)
        summary = compare(
            scored,
            scorers={
                name: [load_prm(run.directory / model) for model in stages.models(name)] for name in MODELS
            },
            train_traces=train_traces,
            labels=labels,
            training={
                model: run.result(f"train-{model}") for name in MODELS for model in stages.models(name)
            },
            seed=config.seed,
        )
        progress("compare", 1, 1)
    examples = worked_examples(judged_traces(scored))
    report_of(summary, examples=examples, command=command).write(run.directory / "report.html")
    seconds = {stage: round(value, 1) for stage, value in run.seconds.items()}
    more = {"findings": findings(summary), "seconds": seconds | {"total": round(sum(seconds.values()), 1)}}
    write_json(run.directory / "summary.json", summary.to_json() | more)
    return summary


@dataclass(frozen=True)
class _Stages:
    run: Run
    config: QuickstartConfig
    progress: Progress
    engine: Engine | None

    def models(self, name: str) -> list[str]:
        """Directories of the models of a kind, by training seed; the first is ``name`` itself."""
        return [f"{name}-{run}" if run else name for run in range(self.config.training_seeds)]

    def lineage(self) -> dict[str, Any]:
        """The models of the lab that the run uses, and what each file and checkpoint is made from."""
        policy, trunk = portable(POLICY), portable(TRUNK)
        made_from = {
            f"{part}-{what}.jsonl": [f"{part}-problems.jsonl", *inputs]
            for part in ("train", "test")
            for what, inputs in (("problems", []), ("traces", [policy]))
        }
        made_from |= {"train-problems.jsonl": [], "test-problems.jsonl": []}
        traces = ["train-problems.jsonl", "train-traces.jsonl"]
        made_from |= {"train-labels.jsonl": [*traces, policy], "train-labels-exact.jsonl": traces}
        for kind, labels in zip(MODELS, ("", "train-labels.jsonl", "train-labels-exact.jsonl"), strict=True):
            for model in self.models(kind):
                made_from[model] = [trunk, *traces, *filter(None, [labels])]
                made_from[f"scores-{model}.jsonl"] = [model, "test-problems.jsonl", "test-traces.jsonl"]
        made_from |= {key: list(made_from) for key in ("summary.json", "report.html")}
        models = {portable(folder): model_hashes(folder) for folder in (POLICY, TRUNK)}
        return {"models": models, "made_from": made_from}

    def sample(self, split: Literal["train", "test"], n: int, seed: int) -> list[Trace]:
        problems = open_table(self.run.directory / f"{split}-problems.jsonl", Problem)
        load = partial(_sampler, n=n, seed=seed, max_tokens=self.config.max_tokens)
        return self._map(f"{split}-traces", Trace, problems, 1, load)

    def label(self, problems: list[Problem], traces: list[Trace]) -> dict[str, list[list[StepLabel]]]:
        """Monte Carlo labels and exact labels, both in the order of ``traces``."""
        load = partial(
            _labeller,
            rollouts=self.config.rollouts,
            seed=self.config.seed,
            max_tokens=self.config.max_tokens,
        )
        items = self._joined("train")
        monte_carlo = self._map("train-labels", StepLabel, items, self.config.train_samples, load)
        exact = asyncio.run(ExactLabeller(after_error="wrong").label(_pair(problems, traces)))
        path = self.run.directory / "train-labels-exact.jsonl"
        write_records(path, [label for row in exact for label in row])
        by_trace: dict[str, list[StepLabel]] = {trace.id: [] for trace in traces}
        for label in monte_carlo:
            by_trace[label.trace_id].append(label)
        return {"monte_carlo": [by_trace[trace.id] for trace in traces], "exact": exact}

    def train(
        self, problems: list[Problem], traces: list[Trace], labels: dict[str, list[list[StepLabel]]]
    ) -> None:
        """Three models on the same traces from the same trunk: what differs is the supervision."""
        pairs = _pair(problems, traces)
        plans: dict[str, tuple[CheckpointCard, str, StepTargets | OutcomeTargets]] = {
            "orm": (_card("orm", "outcome", "outcome"), "exact", OutcomeTargets()),
            "prm": (_card("prm", "value", "monte-carlo"), "monte_carlo", StepTargets()),
            "prm_gold": (_card("prm_gold", "correctness", "lab-checker"), "exact", StepTargets()),
        }
        for name, (card, source, targets) in plans.items():
            items = [
                LabelledTrace(problem=pair.problem, trace=pair.trace, labels=tuple(row))
                for pair, row in zip(pairs, labels[source], strict=True)
            ]
            for number, folder in enumerate(self.models(name)):
                if self.run.done(stage := f"train-{folder}"):
                    continue
                model = RewardModel.initialise(TRUNK, card)
                data = build_examples(model.tokenizer, card.encoding, items, targets)
                training = self.config.training.model_copy(update={"seed": self.config.seed + number})
                with self.run.timed(stage):
                    progress = partial(self._report, f"train {name}", number)
                    log = train(
                        model, data.examples, training, self.run.directory / folder, progress=progress
                    )
                self.run.finish(stage, {"tokens": log.tokens, "dropped": dict(data.dropped)})

    def score(self, name: str) -> list[list[StepScores]]:
        """Scores of the test traces by the models of a kind, one list per training seed."""
        joined, per_problem = self._joined("test"), self.config.test_samples
        return [
            self._map(
                f"scores-{model}",
                StepScores,
                joined,
                per_problem,
                partial(_scorer, self.run.directory / model),
                report=partial(self._report, f"scores-{name}", number),
            )
            for number, model in enumerate(self.models(name))
        ]

    def _report(self, stage: str, number: int, done: int, total: int, _loss: float = 0.0) -> None:
        """Progress of a stage that goes over the models of a kind, at model ``number``."""
        self.progress(stage, number * total + done, self.config.training_seeds * total)

    def _joined(self, split: Literal["train", "test"]) -> JoinedTraces:
        """The traces of a split that have steps, with their problems."""
        problems = open_table(self.run.directory / f"{split}-problems.jsonl", Problem)
        traces = open_table(self.run.directory / f"{split}-traces.jsonl", Trace)
        return join_traces(problems, traces, cut_trace)[0]

    def _map(
        self,
        stage: str,
        record: type[R],
        items: Sequence[Any],
        per_problem: int,
        load: Loader,
        report: Callable[[int, int], None] | None = None,
    ) -> list[R]:
        """The records of all items, in ``<stage>.jsonl``, unless an earlier start finished that."""
        report = report or partial(self.progress, stage)
        path = self.run.directory / f"{stage}.jsonl"
        if not path.exists() or path.with_name(f"{path.name}.work").exists():
            with self.run.timed(stage) as save_time:

                def progress(_: str, done: int, total: int) -> None:
                    save_time()
                    report(done, total)

                job = Job(record=record, load=load, command=f"quickstart: {stage}")
                pieces = Pieces(items, self.config.shard * per_problem)
                map_resumable(job, pieces, str(path), engine=self.engine, progress=progress)
        return list(read_records(path, record))


@contextmanager
def _sampler(*, n: int, seed: int, max_tokens: int) -> Iterator[Opened]:
    """Traces of problems by the lab's policy, cut and graded."""
    policy = TransformersPolicy.from_pretrained(POLICY)
    with AnswerChecker("exact") as checker:
        grader = Grader(checker=checker, styles=("phrase",))

        async def work(problems: Sequence[Problem]) -> list[Trace]:
            sampling = Sampling(max_tokens=max_tokens)
            traces = await sample_traces(
                policy, problems, n=n, seed=seed, segmenter=Line(), grader=grader, sampling=sampling
            )
            return [trace for of_problem in traces for trace in of_problem]

        yield Opened(work=work)


@contextmanager
def _labeller(*, rollouts: int, seed: int, max_tokens: int) -> Iterator[Opened]:
    """Monte Carlo labels by the lab's policy."""
    with AnswerChecker("exact") as checker:
        labeller = MonteCarloLabeller(
            policy=TransformersPolicy.from_pretrained(POLICY),
            grader=Grader(checker=checker, styles=("phrase",)),
            settings=MonteCarloSettings(rollouts=rollouts),
            sampling=Sampling(max_tokens=max_tokens),
            seed=seed,
        )

        async def work(items: Sequence[ProblemTrace]) -> list[StepLabel]:
            return [label for of_trace in await labeller.label(items) for label in of_trace]

        yield Opened(work=work)


@contextmanager
def _scorer(model: Path) -> Iterator[Opened]:
    """Scores of the steps by one of the reward models."""
    yield Opened(work=load_prm(model).score_traces)


def _card(
    name: Literal["prm", "orm", "prm_gold"], means: Literal["value", "correctness", "outcome"], source: str
) -> CheckpointCard:
    return CheckpointCard(
        kind="orm" if name == "orm" else "prm",
        encoding=Encoding(max_length=256),
        aggregation=READINGS[name][1],
        score_means=means,
        label_source=source,
        base="surefoot-lab-trunk",
    )


def _pair(problems: list[Problem], traces: list[Trace]) -> list[ProblemTrace]:
    by_id = {problem.id: problem for problem in problems}
    return [ProblemTrace(problem=by_id[trace.problem_id], trace=trace) for trace in traces]
