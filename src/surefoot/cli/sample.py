"""``surefoot sample`` and ``execute``: solutions of a policy, and what programs among them return."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from surefoot import policies
from surefoot.cli import options as o
from surefoot.cli.runs import map_pieces, pair, predict_usage, read_table, say_prediction
from surefoot.cli.settings import Command, Flag
from surefoot.cli.terminal import note
from surefoot.errors import LabelError, counted
from surefoot.io import write_records
from surefoot.labelling import observe_programs
from surefoot.labelling.specification import Specification
from surefoot.labelling.verifiers.programs import Behaviour, grade_traces
from surefoot.policies.devices import Loading
from surefoot.policies.prompts import PromptFormat
from surefoot.protocols import ProblemTrace, Sampling
from surefoot.records import Problem, StepScores, Trace
from surefoot.sandbox import Sandbox, open_sandbox
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


SCORER = "visible-tests"


class Execute(Command):
    """Run programs: what each returns becomes its answer, and the visible tests it passes its score.

    Programs that return the same on the same inputs have the same answer, so `surefoot select` and
    `evaluate --as best-of-n` vote among them as among numbers; a program that fails or returns nothing on
    some input has none. Inputs are those of the visible tests and variations of them. Hidden tests are run
    for `--grade` alone, which fills in outcomes. Traces of one problem must lie together, as `sample` writes
    them. Programs run in a sandbox.

    Example: `surefoot execute traces.jsonl --problems problems.jsonl --scores visible.jsonl --out ran.jsonl`
    """

    traces: o.TracesArgument
    problems: o.Problems
    out: o.Out = "-"
    scores: Annotated[Path | None, Flag(output=True)] = None
    """File for scores by visible tests: the share that a program passes, at each step."""
    grade: bool = Field(default=False, description="Fill in outcomes by the hidden tests.")
    seed: o.Seed = 0
    sandbox: o.SandboxName = "bubblewrap"

    def run(self) -> None:
        if self.scores and self.out == "-":
            raise LabelError("--scores is written from the file of traces; give --out a file, too")
        items = pair(self.problems, self.traces)
        counts: Counter[str] = Counter()
        with open_sandbox(self.sandbox) as sandbox:
            job = Job(record=Trace, work=lambda piece: self._executed(sandbox, piece))

            def count(line: bytes) -> None:
                counts.update(_counted(Trace.model_validate_json(line)))

            outcome = map_pieces(self, job, items, 4, self.out, by_problem=True, on_line=count)
        if not counts["programs"]:
            raise LabelError(f"{self.problems}: no problem has a programming task in meta['code']")
        note(", ".join(f"{count} {name}" for name, count in counts.items() if count))
        if self.scores:
            write_records(self.scores, _scores(read_table(self.out, Trace)))
        outcome.require_complete()

    def _executed(self, sandbox: Sandbox, items: Sequence[ProblemTrace]) -> list[Trace]:
        behaviours = observe_programs(sandbox, items, seed=self.seed)
        graded = grade_traces(sandbox, items) if self.grade else [None] * len(items)
        return [
            self._with(item.trace, behaviour, None if verdict is None else verdict.passed)
            for item, behaviour, verdict in zip(items, behaviours, graded, strict=True)
        ]

    def _with(self, trace: Trace, behaviour: Behaviour | None, passed: bool | None) -> Trace:
        if behaviour is None:
            return trace
        result = {"passed": behaviour.visible_passed, "of": behaviour.visible, "clean": behaviour.clean}
        changes = {"answer": behaviour.answer(), "meta": trace.meta | {"executed": result}}
        return trace.model_copy(update=changes | ({"outcome": passed} if self.grade else {}))


def _counted(trace: Trace) -> Iterator[str]:
    result = trace.meta.get("executed")
    if result is None:
        yield "traces without a program, unchanged"
        return
    yield "programs"
    if result["clean"]:
        yield "that return something on every input"
    if result["of"] and result["passed"] == result["of"]:
        yield "that pass all visible tests"
    if not result["of"]:
        yield "without visible tests"
    if trace.outcome:
        yield "that are right"


def _scores(traces: Sequence[Trace]) -> Iterator[StepScores]:
    """The share of visible tests as the score of every step, so that every aggregation gives this share."""
    for trace in traces:
        result = trace.meta.get("executed") or {"of": 0}
        if not result["of"]:
            yield StepScores.unscored(trace, SCORER, "no visible test")
        else:
            share = result["passed"] / result["of"]
            yield StepScores(trace_id=trace.id, scorer=SCORER, scores=(share,) * len(trace.steps))
