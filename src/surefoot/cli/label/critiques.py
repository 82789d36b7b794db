"""``surefoot label critiques``: critiques of traces, to train a generative verifier on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from surefoot.cli import _options as o

if TYPE_CHECKING:
    from surefoot.protocols import ProblemTrace
    from surefoot.training.critiques import TraceCritiques


def critiques(
    traces: Annotated[str, typer.Argument(help="File of trace records with steps, or - for standard input.")],
    problems: o.Problems,
    policy: Annotated[
        str,
        typer.Option(
            "--policy", help="Who writes: a checkpoint directory, a hub name, or the server's model."
        ),
    ],
    base_url: o.BaseUrl = None,
    dialect: o.Dialect = "openai",
    out: o.Out = "-",
    form: o.VerifierForm = None,
    chains: Annotated[int, typer.Option("--chains", "-k", min=1, help="Critiques per trace.")] = 4,
    temperature: o.Temperature = 0.1,
    top_p: o.TopP = 1.0,
    max_tokens: o.MaxTokens = 4096,
    seed: o.Seed = 0,
    token_budget: o.TokenBudget = None,
    time_budget: o.TimeBudget = None,
    concurrency: o.Concurrency = 16,
    timeout: o.Timeout = 120.0,
    batch_size: o.BatchSize = 16,
    device: o.Device = "cpu",
) -> None:
    """Let a language model criticise each step of traces; surefoot train verifier learns from what it wrote.

    Critiques are written down as they come. Which of them agree with labels, and can be read at all, is
    found out when a verifier is trained. Start a killed command again and it goes on where it was.

    Example: `surefoot label critiques traces.jsonl --problems problems.jsonl --policy Qwen/QwQ-32B
    --base-url http://localhost:8000/v1 --out critiques.jsonl`
    """
    import asyncio

    from surefoot.cli._pieces import Budget, file_inputs, in_pieces
    from surefoot.cli._shared import open_policy, pair, read_all, verifier_format
    from surefoot.errors import PolicyError
    from surefoot.protocols import Sampling
    from surefoot.records import Problem, Trace
    from surefoot.training.critiques import TraceCritiques, sample_critiques

    wanted = verifier_format(form)
    writer = open_policy(
        policy,
        base_url=base_url,
        chat=wanted.chat,
        concurrency=concurrency,
        timeout=timeout,
        batch_size=batch_size,
        device=device,
        dialect=dialect,
    )
    sampling = Sampling(temperature=temperature, top_p=top_p, max_tokens=max_tokens)
    missing = 0

    def work(piece: Sequence[ProblemTrace]) -> list[TraceCritiques]:
        nonlocal missing
        found = asyncio.run(
            sample_critiques(writer, piece, wanted, chains=chains, sampling=sampling, seed=seed)
        )
        missing += sum(chains - len(record.texts) for record in found)
        if not any(record.texts for record in found):
            raise PolicyError(
                f"no request of this piece succeeded, the last with: {found[-1].error}; mend that and start "
                "the same command again, finished pieces are kept"
            )
        return found

    written = in_pieces(
        out,
        TraceCritiques,
        _texts(pair(read_all(problems, Problem), read_all(traces, Trace))),
        work,
        size=50,
        command="label critiques",
        config={
            "policy": policy,
            "base_url": base_url,
            "format": wanted.model_dump(),
            "chains": chains,
            "sampling": [temperature, top_p, max_tokens],
            "seed": seed,
        },
        inputs=file_inputs(problems=problems, traces=traces),
        budget=Budget(tokens=token_budget, minutes=time_budget),
        cost=lambda records: sum(record.usage.tokens for record in records),
    )
    typer.echo(f"critiques of {written} traces written; {missing} failed (see 'error')", err=True)


def _texts(items: list[ProblemTrace]) -> list[ProblemTrace]:
    """Text traces; how many are chats, which a generative verifier does not read, is said."""
    found = [item for item in items if item.trace.text is not None]
    if len(found) < len(items):
        typer.echo(f"{len(items) - len(found)} traces skipped: a verifier reads text, not messages", err=True)
    return found
