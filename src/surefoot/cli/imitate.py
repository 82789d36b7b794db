"""``surefoot imitate``: clone an expert's steps, or follow it on the policy's own states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from surefoot.cli import _options as o
from surefoot.cli._rounds import Data, RoundsOptions

if TYPE_CHECKING:
    from surefoot.protocols import Policy
    from surefoot.records import Problem
    from surefoot.rl.imitation import Expert
    from surefoot.training.cloning import Demonstration

EXACT = "lab-exact"
"""Name of the solver of the lab's world that makes no error."""


@dataclass(frozen=True, kw_only=True)
class ImitateOptions(RoundsOptions):
    """Whom to imitate, and where."""

    traces: Annotated[
        str | None, typer.Option("--traces", help="File of the expert's traces with steps, to clone.")
    ] = None
    labels: Annotated[
        str | None, typer.Option("--labels", help="File of step labels: only good steps are cloned.")
    ] = None
    threshold: Annotated[
        float, typer.Option("--threshold", min=0, max=1, help="A step with a value above this is good.")
    ] = 0.5
    expert: Annotated[
        str | None,
        typer.Option(
            "--expert",
            help=f"Policy to ask in the policy's own states: '{EXACT}', a checkpoint, a hub name or, with "
            "--base-url, the server's model.",
        ),
    ] = None
    base_url: o.BaseUrl = None
    dialect: o.Dialect = "openai"
    concurrency: o.Concurrency = 16
    timeout: o.Timeout = 120.0
    expert_chat: Annotated[
        bool, typer.Option("--expert-chat", help="Put the expert's prompt through its chat template.")
    ] = False
    expert_temperature: Annotated[
        float, typer.Option("--expert-temperature", min=0, help="Of the expert; 0 is greedy.")
    ] = 0.0
    stop: Annotated[
        list[str] | None,
        typer.Option(
            "--stop", help=r"Text at which the expert stops, such as \n: one step a request; repeat."
        ),
    ] = None
    samples: Annotated[int, typer.Option("--samples", min=1, help="Solutions a problem and round.")] = 1
    after: Annotated[
        str,
        typer.Option(
            "--after", help="States after the policy's first error: until_error (none of them) or all."
        ),
    ] = "until_error"
    match: Annotated[
        str,
        typer.Option("--match", help="When other words are no error: exact (never), numbers, tolerance."),
    ] = "exact"
    beta: Annotated[
        float,
        typer.Option(
            "--beta",
            min=0,
            max=1,
            help="In round n this to the power n of the problems are the expert's to solve.",
        ),
    ] = 0.0
    data: Data = "all"


def imitate(options: ImitateOptions, reading: o.ReadingOptions) -> None:
    """Train a policy to take an expert's steps: behaviour cloning of traces, or DAgger with an expert.

    With `--traces` their steps are learned (with `--labels` the good ones), the problem and other steps are
    read. With `--expert` the policy writes solutions, the expert says what it would have done at each step,
    and that is learned; with both, the traces come first. Start a killed command again and it goes on where
    it was.

    Example: `surefoot imitate --problems p.jsonl --traces solutions.jsonl --policy lab --out cloned`

    Example: `surefoot imitate --problems p.jsonl --expert lab-exact --rounds 4 --held-out test.jsonl
    --gold lab --max-tokens 96 --out dagger`
    """
    from surefoot.cli._pieces import file_inputs
    from surefoot.cli._rounds import say_rounds
    from surefoot.cli._shared import checked_options, choice, read_all, stages
    from surefoot.errors import RunError
    from surefoot.io import Run
    from surefoot.records import Problem
    from surefoot.rl.imitation import imitate as follow
    from surefoot.rl.rounds_config import ImitationConfig

    choice("--after", options.after, "until_error", "all")
    if options.traces is None and options.expert is None:
        raise RunError("there is nobody to imitate: give --traces, or --expert, or both")
    if options.labels and not options.traces:
        raise RunError("--labels are of --traces: give both")
    names = ("samples", "after", "match", "beta", "data")
    with checked_options():
        mine = {name: getattr(options, name) for name in names}
        config = ImitationConfig.model_validate(options.settings() | mine)
    reading.prompt()  # refused before anything is read
    problems = read_all(options.problems, Problem)
    given = _demonstrations(options, problems)
    resolved = {"rounds": config.decisive, **options.decisive(), **reading.decisive()}
    resolved |= _asked_of_expert(options)
    inputs = file_inputs(
        problems=options.problems, traces=options.traces, labels=options.labels, held_out=options.held_out
    )
    with (
        options.task(problems, reading) as task,
        Run.open(options.out, command="imitate", config=resolved, inputs=inputs) as run,
        stages() as progress,
    ):
        rows = follow(
            run,
            options.start_policy(),
            task,
            config,
            progress,
            demonstrations=given,
            expert=_expert(options, reading),
            device=options.device,
        )
    say_rounds(options.out, rows)


def _demonstrations(options: ImitateOptions, problems: list[Problem]) -> list[Demonstration]:
    """What is cloned of the files; the rest is counted on standard error."""
    if options.traces is None:
        return []
    from surefoot.cli._shared import labelled, pair, read_all
    from surefoot.labelling.expert import expert_traces
    from surefoot.records import StepLabel, Trace
    from surefoot.training.cloning import demonstrate, good_steps

    traces = read_all(options.traces, Trace)
    if options.labels:
        items = labelled(problems, traces, read_all(options.labels, StepLabel))
        found = [demonstrate(item.trace, good_steps(item, threshold=options.threshold)) for item in items]
        bare = sum(not one.steps for one in found)
        if bare:
            typer.echo(f"{bare} traces left out: no step of theirs is labelled good", err=True)
        return [one for one in found if one.steps]
    by_problem, left_out = expert_traces(item.trace for item in pair(problems, traces))
    for reason, count in left_out.items():
        typer.echo(f"{count} traces left out: {reason}", err=True)
    return [demonstrate(trace) for of_problem in by_problem.values() for trace in of_problem]


def _asked_of_expert(options: ImitateOptions) -> dict[str, Any]:
    names = ("expert", "base_url", "dialect", "expert_chat", "expert_temperature", "stop", "threshold")
    return {name: getattr(options, name) for name in names}


def _expert(options: ImitateOptions, reading: o.ReadingOptions) -> Expert | None:
    if options.expert is None:
        return None
    from surefoot.policies.prompts import PromptFormat
    from surefoot.protocols import Sampling
    from surefoot.rl.imitation import Expert

    return Expert(
        policy=_open(options, options.expert),
        prompt=PromptFormat(template=reading.template, chat=options.expert_chat),
        sampling=Sampling(
            temperature=options.expert_temperature,
            max_tokens=options.max_tokens,
            stop=tuple(text.replace(r"\n", "\n").replace(r"\t", "\t") for text in options.stop or ()),
        ),
    )


def _open(options: ImitateOptions, name: str) -> Policy:
    from surefoot.cli._shared import open_policy
    from surefoot.lab.solver import NoisySolver

    if name == EXACT and not options.base_url:
        return NoisySolver(error_rate=0.0, name=EXACT)
    return open_policy(
        name,
        base_url=options.base_url,
        dialect=options.dialect,
        chat=options.expert_chat,
        concurrency=options.concurrency,
        timeout=options.timeout,
        batch_size=options.decode_batch,
        device=options.device,
    )
