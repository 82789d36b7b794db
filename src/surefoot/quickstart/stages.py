"""Jobs of the stages that sample, label and score."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from surefoot.answers import AnswerChecker, Grader
from surefoot.lab.checkpoints import POLICY
from surefoot.labelling.monte_carlo import MonteCarloLabeller
from surefoot.labelling.stopping import SoftEstimate
from surefoot.models.loading import load_prm
from surefoot.policies.traces import sample_traces
from surefoot.policies.transformers import TransformersPolicy
from surefoot.protocols import ProblemTrace, Sampling
from surefoot.records import Problem, StepLabel, StepScores, Trace
from surefoot.segment import Line
from surefoot.work import Job, Opened


@dataclass(frozen=True, kw_only=True)
class SampleJob(Job[Trace]):
    """Traces of problems by the lab's policy, cut and graded."""

    n: int
    seed: int
    max_tokens: int
    record: type[Trace] = Trace

    @contextmanager
    def open(self) -> Iterator[Opened]:
        """Load the policy."""
        policy = TransformersPolicy.from_pretrained(POLICY)
        with _grader() as grader:

            async def work(problems: Sequence[Problem]) -> list[Trace]:
                traces = await sample_traces(
                    policy,
                    problems,
                    n=self.n,
                    seed=self.seed,
                    segmenter=Line(),
                    grader=grader,
                    sampling=Sampling(max_tokens=self.max_tokens),
                )
                return [trace for of_problem in traces for trace in of_problem]

            yield Opened(work=work)


@dataclass(frozen=True, kw_only=True)
class RolloutJob(Job[StepLabel]):
    """Monte Carlo labels by the lab's policy."""

    rollouts: int
    seed: int
    max_tokens: int
    record: type[StepLabel] = StepLabel

    @contextmanager
    def open(self) -> Iterator[Opened]:
        """Load the policy."""
        with _grader() as grader:
            labeller = MonteCarloLabeller(
                policy=TransformersPolicy.from_pretrained(POLICY),
                grader=grader,
                rule=SoftEstimate(rollouts=self.rollouts),
                sampling=Sampling(max_tokens=self.max_tokens),
                seed=self.seed,
            )

            async def work(items: Sequence[ProblemTrace]) -> list[StepLabel]:
                return [label for of_trace in await labeller.label(items) for label in of_trace]

            yield Opened(work=work)


@dataclass(frozen=True, kw_only=True)
class ScoreJob(Job[StepScores]):
    """Scores of the steps by one of the reward models."""

    model: Path
    record: type[StepScores] = StepScores

    @contextmanager
    def open(self) -> Iterator[Opened]:
        """Load the reward model."""
        yield Opened(work=load_prm(self.model).score_traces)


@contextmanager
def _grader() -> Iterator[Grader]:
    with AnswerChecker("exact") as checker:
        yield Grader(checker=checker, styles=("phrase",))
