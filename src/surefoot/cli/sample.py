"""``surefoot sample``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from surefoot import policies
from surefoot.cli import options as o
from surefoot.cli.runs import map_pieces, predict_usage, read_table, say_prediction
from surefoot.cli.settings import Command, Flag
from surefoot.cli.terminal import note
from surefoot.errors import counted
from surefoot.labelling.specification import Specification
from surefoot.policies.devices import Loading
from surefoot.policies.prompts import PromptFormat
from surefoot.protocols import Sampling
from surefoot.records import Problem, Trace
from surefoot.segment import segmenter
from surefoot.work.jobs import Job, Opened


class SampleTraces(Command):
    """Sample solutions of problems from a policy, cut them into steps and grade their answers.

    The output holds one trace per sample. A request that failed leaves a trace with an empty text and an
    `error`. With `--environment` the samples are runs of an agent, and the environment says what the outcome
    is. If the command is stopped, the same command resumes.

    Example: `surefoot sample problems.jsonl --n 16 --policy lab --out traces.jsonl`
    """

    problems: o.ProblemsArgument
    out: o.Out = "-"
    specification: o.SpecificationFile = None
    """JSON file of a specification that stands before the prompt, with `--chat` in the system message. The
    output does not hold it."""
    n: Annotated[int, Flag(short="-n")] = Field(default=8, ge=1, description="Traces per problem.")
    segment: o.Segment = "line"
    environment: o.EnvironmentName = None
    turns: int = Field(default=30, ge=1, description="Most messages of an agent in one run.")
    seed: o.Seed = 0
    policy: o.PolicySettings
    prompt: PromptFormat = PromptFormat()
    sampling: Sampling = Sampling()
    grading: o.GradingSettings = o.GradingSettings()
    loading: o.Models = Loading()
    workers: o.Workers = 1
    engine: o.EngineName = "local"
    retry_failed: o.RetryFailed = False
    dry_run: o.DryRun = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.environment is not None and self.dry_run:
            raise ValueError("'dry_run' cannot foresee the turns of an 'environment'; sample a few problems")
        if self.environment is not None and self.specification:
            raise ValueError("'specification' stands before the prompt, which an 'environment' writes itself")
        o.check_agent(self.environment, self.policy)
        return self

    def outputs(self) -> list[Path]:
        return [] if self.dry_run else super().outputs()

    def run(self) -> None:
        problems = read_table(self.problems, Problem)
        if self.dry_run:
            self._predict(problems)
            return
        size = max(1, self.policy.batch_size // self.n)  # one batch, which a slow model takes minutes for
        config = {"piece": 1 if self.policy.base_url else size}
        job = Job(record=Trace, load=self.opened, failure=_failure, config=config)
        outcome = map_pieces(
            self,
            job,
            problems,
            size,
            self.out,
            policy=self.policy,
            engine=o.open_engine(self.engine, self.workers, self.loading),
            retry_failed=self.retry_failed,
        )
        note(f"{counted(outcome.written, 'trace')} written; {outcome.failed} with an error")
        outcome.require_complete()

    @cached_property
    def _prompt(self) -> PromptFormat:
        """The prompt with the specification."""
        if not self.specification:
            return self.prompt
        text = Specification.of_file(self.specification).text
        if not self.prompt.chat:
            return replace(self.prompt, template=text + self.prompt.template)
        return replace(self.prompt, system="\n\n".join(filter(None, (self.prompt.system, text))))

    def _predict(self, problems: Sequence[Problem]) -> None:
        alone = self.policy.base_url and self.policy.dialect == "openai"
        usage = predict_usage(
            problems,
            lambda problem: str(self._prompt.render(problem)),
            replies=self.n,
            max_tokens=self.sampling.max_tokens,
            prompts=self.n if alone else 1,
        )
        traces = counted(self.n * len(problems), "trace")
        say_prediction(f"{traces} of {counted(len(problems), 'problem')}", usage)

    @contextmanager
    def opened(self) -> Iterator[Opened]:
        """The work of a job, with the policy loaded."""
        environment = policies.load_environment(self.environment) if self.environment else None
        chat = self.prompt.chat or environment is not None
        policy = self.policy.open(chat=chat, loading=self.loading)
        if environment is not None:
            self.policy.check(policy, "tool_calls", o.CALL_TOOLS, accept_unknown=True)
        with self.grading.open() as grader:

            async def work(piece: Sequence[Problem]) -> list[Trace]:
                if environment is not None:
                    traces = await policies.sample_runs(
                        policy,
                        piece,
                        environment,
                        n=self.n,
                        seed=self.seed,
                        sampling=self.sampling,
                        max_turns=self.turns,
                    )
                else:
                    traces = await policies.sample_traces(
                        policy,
                        piece,
                        n=self.n,
                        seed=self.seed,
                        segmenter=segmenter(self.segment),
                        grader=grader,
                        prompt=self._prompt,
                        sampling=self.sampling,
                    )
                return [trace for of_problem in traces for trace in of_problem]

            yield Opened(work=work, policy=policy)


def _failure(traces: Sequence[Trace]) -> str | None:
    """Why no request for these traces succeeded, if none did."""
    if any(trace.error is None or trace.text for trace in traces):
        return None
    return traces[-1].error
