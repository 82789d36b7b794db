"""``surefoot train verifier``: verifiers that write critiques, from critiques that agree with labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, cast

import typer

from surefoot.cli import _options as o
from surefoot.cli.train._options import Directory, LargeLoopOptions, Rate, base_path

if TYPE_CHECKING:
    from surefoot.cli.train._run import Progress, Trained
    from surefoot.labels import Neutral
    from surefoot.protocols import LabelledTrace
    from surefoot.records import StepLabel
    from surefoot.training.critiques import TraceCritiques


@dataclass(frozen=True, kw_only=True)
class VerifierLoopOptions(LargeLoopOptions):
    """ThinkPRM's updates (1.5B, full weights)."""

    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Critiques per update.")] = 32
    learning_rate: Rate = 6e-5


def verifier(
    problems: o.Problems,
    traces: o.Traces,
    labels: Annotated[str, typer.Option("--labels", help="File of correctness labels, to hold verdicts to.")],
    critiques: Annotated[
        str, typer.Option("--critiques", help="File of critiques (surefoot label critiques).")
    ],
    out: Directory,
    base: Annotated[
        str, typer.Option("--base", help="Language model to start from: checkpoint directory or hub name.")
    ],
    options: VerifierLoopOptions,
    form: o.VerifierForm = None,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", min=1, help="Longest critique; others are left out and counted.")
    ] = 4096,
    neutral: Annotated[
        str, typer.Option("--neutral", help="What a 0 rating is: good, bad or drop (leave the trace out).")
    ] = "good",
    balance: Annotated[
        bool,
        typer.Option(
            "--balance/--no-balance", help="As many critiques of right as of wrong solutions, or all."
        ),
    ] = True,
) -> None:
    """Train a generative verifier: a language model that criticises each step, then says yes or no.

    Of the critiques those are kept whose verdicts can be read and all agree with the labels (ThinkPRM, arXiv
    2504.16828); the others are counted by reason. Start a killed command again and it goes on from its last
    checkpoint.

    Example: `surefoot train verifier --problems p.jsonl --traces t.jsonl --labels l.jsonl
    --critiques c.jsonl --base Qwen/Qwen2.5-1.5B-Instruct --out verifier`
    """
    from surefoot.cli._pieces import file_inputs
    from surefoot.cli._shared import checked_options, choice, labelled, read_all, verifier_format
    from surefoot.cli.train._run import in_run
    from surefoot.errors import TrainingError
    from surefoot.records import Problem, StepLabel, Trace, content_id
    from surefoot.training.config import VerifierConfig
    from surefoot.training.critiques import TraceCritiques

    choice("--neutral", neutral, "good", "bad", "drop")
    wanted = verifier_format(form)
    with checked_options():
        config = options.config(VerifierConfig)
    gold = [label for label in read_all(labels, StepLabel) if label.kind == "correctness"]
    if not gold:
        raise TrainingError(f"{labels}: no label of kind 'correctness', which verdicts have to agree with")
    items = labelled(read_all(problems, Problem), read_all(traces, Trace), gold)
    texts = _texts(items, read_all(critiques, TraceCritiques))

    def work(progress: Progress) -> Trained:
        from surefoot.cli.train._run import Trained, say_left_out
        from surefoot.models.engine.causal import load_causal
        from surefoot.training.critiques import build_critique_examples
        from surefoot.training.sft import train_verifier

        model, tokenizer = load_causal(base_path(base), dtype="float32", trust_remote_code=False)
        data = build_critique_examples(
            tokenizer,
            items,
            texts,
            wanted,
            max_tokens=max_tokens,
            neutral=cast("Neutral", neutral),
            balance=balance,
            seed=options.seed,
        )
        say_left_out(data.dropped)
        log = train_verifier(
            model.to(options.device),
            tokenizer,
            data.examples,
            wanted,
            config,
            out,
            base=base,
            label_source=_sources(gold),
            progress=progress,
        )
        kept = f"{len(data.examples)} of {data.critiques} critiques"
        return Trained(losses=log.losses, tokens=log.tokens, dropped=data.dropped, remarks=[kept])

    settings = {
        "base": base,
        "format": wanted.model_dump(),
        "data": {"max_tokens": max_tokens, "neutral": neutral, "balance": balance},
        "training": config.model_dump(),
        "items": content_id(texts, *items),
    }
    inputs = file_inputs(problems=problems, traces=traces, labels=labels, critiques=critiques)
    in_run("verifier", out, work, settings=settings, inputs=inputs)


def _texts(items: list[LabelledTrace], critiques: list[TraceCritiques]) -> list[list[str]]:
    """The critiques of each item; those of unknown traces, and traces without any, are counted."""
    of_trace: dict[str, list[str]] = {item.trace.id: [] for item in items}
    strays = 0
    for record in critiques:
        if record.trace_id in of_trace:
            of_trace[record.trace_id] += record.texts
        else:
            strays += len(record.texts)
    if strays:
        typer.echo(f"{strays} critiques skipped: their 'trace_id' is in no usable trace", err=True)
    if bare := sum(not texts for texts in of_trace.values()):
        typer.echo(f"{bare} traces have no critique", err=True)
    return [of_trace[item.trace.id] for item in items]


def _sources(labels: list[StepLabel]) -> str:
    return ", ".join(sorted({label.source for label in labels}))
