"""``surefoot label``: ways to label steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from surefoot.cli import _options as o

app = typer.Typer(help="Label the steps of traces.", no_args_is_help=True)


@app.callback()
def label() -> None:
    """Label the steps of traces."""


@app.command("mc")
def monte_carlo(
    traces: Annotated[str, typer.Argument(help="File of trace records with steps, or - for standard input.")],
    problems: o.Problems,
    out: o.Out = "-",
    rollouts: Annotated[int, typer.Option("--rollouts", "-k", min=1, help="Completions per prefix.")] = 8,
    estimate: Annotated[
        str, typer.Option("--estimate", help="soft = share that succeeded, hard = any did.")
    ] = "soft",
    policy: o.PolicyName = "lab",
    base_url: o.BaseUrl = None,
    chat: o.Chat = False,
    system: o.System = None,
    template: o.Template = "{problem}\n",
    temperature: o.Temperature = 1.0,
    top_p: o.TopP = 1.0,
    max_tokens: o.MaxTokens = 512,
    stop: o.Stop = None,
    seed: o.Seed = 0,
    extract: o.Extract = "boxed,hash,phrase,last_number",
    equality: o.Equality = "math",
    concurrency: o.Concurrency = 16,
    batch_size: o.BatchSize = 256,
    device: o.Device = "cpu",
) -> None:
    """Label steps by Monte Carlo rollouts from each prefix (Math-Shepherd).

    The labels are values (chance of the right answer from here), with successes and trials as evidence.
    Start a killed command again and it goes on where it was.

    Example: `surefoot label mc traces.jsonl --problems problems.jsonl --rollouts 8 --out labels.jsonl`
    """
    import asyncio

    from surefoot.cli._pieces import file_inputs, in_pieces
    from surefoot.cli._shared import checked_options, grader, open_policy, pair, read_all
    from surefoot.errors import LabelError
    from surefoot.labelling.monte_carlo import MonteCarloLabeller
    from surefoot.policies.prompts import PromptFormat
    from surefoot.protocols import ProblemTrace, Sampling
    from surefoot.records import Problem, StepLabel, Trace

    config = {
        key: value for key, value in locals().items() if isinstance(value, str | int | float | list | None)
    }
    if estimate not in ("soft", "hard"):
        raise LabelError(f"--estimate is {estimate!r}; choose soft or hard")
    with checked_options():
        prompt = PromptFormat(template=template, chat=chat, system=system)
    items = pair(read_all(problems, Problem), read_all(traces, Trace))
    answered = [item for item in items if item.problem.answer is not None]
    if len(answered) < len(items):
        typer.echo(f"{len(items) - len(answered)} traces skipped: their problem has no 'answer'", err=True)
    with grader(extract, equality) as judge:
        labeller = MonteCarloLabeller(
            policy=open_policy(
                policy,
                base_url=base_url,
                chat=chat,
                concurrency=concurrency,
                batch_size=batch_size,
                device=device,
            ),
            grader=judge,
            prompt=prompt,
            rollouts=rollouts,
            estimate="soft" if estimate == "soft" else "hard",
            sampling=Sampling(
                temperature=temperature, top_p=top_p, max_tokens=max_tokens, stop=tuple(stop or ())
            ),
            seed=seed,
        )
        unknown = 0

        def work(piece: Sequence[ProblemTrace]) -> list[StepLabel]:
            nonlocal unknown
            labels = [label for of_trace in asyncio.run(labeller.label(piece)) for label in of_trace]
            unknown += sum(label.value is None for label in labels)
            return labels

        written = in_pieces(
            out,
            StepLabel,
            answered,
            work,
            size=50,
            command="label mc",
            config=config,
            inputs=file_inputs(problems=problems, traces=traces),
        )
    typer.echo(f"{written} labels written; {unknown} without a value (see their 'reason')", err=True)
