"""``surefoot sample``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from surefoot.cli import _options as o


def sample(
    problems: Annotated[str, typer.Argument(help="File of problem records, or - for standard input.")],
    out: o.Out = "-",
    n: Annotated[int, typer.Option("--n", "-n", min=1, help="Traces per problem.")] = 8,
    policy: o.PolicyName = "lab",
    base_url: o.BaseUrl = None,
    dialect: o.Dialect = "openai",
    chat: o.Chat = False,
    system: o.System = None,
    template: o.Template = "{problem}\n",
    temperature: o.Temperature = 1.0,
    top_p: o.TopP = 1.0,
    max_tokens: o.MaxTokens = 512,
    stop: o.Stop = None,
    seed: o.Seed = 0,
    segment: o.Segment = "line",
    extract: o.Extract = "boxed,hash,phrase,last_number",
    equality: o.Equality = "math",
    concurrency: o.Concurrency = 16,
    timeout: o.Timeout = 120.0,
    batch_size: o.BatchSize = 256,
    device: o.Device = "cpu",
) -> None:
    """Sample solutions of problems from a policy, cut them into steps and grade their answers.

    Start a killed command again and it goes on where it was.

    Example: `surefoot sample problems.jsonl --n 16 --policy lab --out traces.jsonl`
    """
    import asyncio

    from surefoot.cli._pieces import file_inputs, in_pieces
    from surefoot.cli._shared import checked_options, grader, open_policy, read_all
    from surefoot.policies.prompts import PromptFormat
    from surefoot.policies.traces import sample_traces
    from surefoot.protocols import Sampling
    from surefoot.records import Problem, Trace
    from surefoot.segment import segmenter

    config = {
        key: value for key, value in locals().items() if isinstance(value, str | int | float | list | None)
    }
    with checked_options():
        prompt = PromptFormat(template=template, chat=chat, system=system)
    source = open_policy(
        policy,
        base_url=base_url,
        dialect=dialect,
        chat=chat,
        concurrency=concurrency,
        timeout=timeout,
        batch_size=batch_size,
        device=device,
    )
    sampling = Sampling(temperature=temperature, top_p=top_p, max_tokens=max_tokens, stop=tuple(stop or ()))
    failed = 0
    with grader(extract, equality) as judge:

        def work(piece: Sequence[Problem]) -> list[Trace]:
            nonlocal failed
            traces = asyncio.run(
                sample_traces(
                    source,
                    piece,
                    n=n,
                    seed=seed,
                    segmenter=segmenter(segment),
                    grader=judge,
                    prompt=prompt,
                    sampling=sampling,
                )
            )
            flat = [trace for of_problem in traces for trace in of_problem]
            failed += sum(trace.error is not None for trace in flat)
            return flat

        written = in_pieces(
            out,
            Trace,
            read_all(problems, Problem),
            work,
            size=max(1, 4 * max(concurrency, batch_size // n)),
            command="sample",
            config=config,
            inputs=file_inputs(problems=problems),
        )
    typer.echo(f"{written} traces written; {failed} with an error", err=True)
