"""``surefoot train implicit``: implicit reward models, from outcomes alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from surefoot.cli import _options as o
from surefoot.cli.train._options import Balance, Directory, InputOptions, LoopOptions, base_path

if TYPE_CHECKING:
    from surefoot.cli.train._run import Progress, Trained
    from surefoot.models.kinds.implicit import Read


def implicit(
    problems: o.Problems,
    traces: o.Traces,
    out: Directory,
    reads: InputOptions,
    options: LoopOptions,
    reference: Annotated[
        str,
        typer.Option(
            "--reference",
            help="What rewards are measured against: 'base', 'none' (uniform), a directory or hub name.",
        ),
    ] = "base",
    beta: Annotated[float, typer.Option("--beta", help="Reward per nat of log-ratio.")] = 0.05,
    read: Annotated[
        str,
        typer.Option(
            "--read", help="What a step's score is of: its own reward (step), or all so far (prefix)."
        ),
    ] = "step",
    balance: Balance = None,
    copy_reference: Annotated[
        bool,
        typer.Option(
            "--copy-reference/--no-copy-reference",
            help="Put the reference into the checkpoint, or note its name alone.",
        ),
    ] = True,
) -> None:
    """Train an implicit process reward model: a language model whose log-ratios reward each step.

    It needs outcomes and no step labels (Yuan et al., arXiv 2412.01981). For a 7B model the paper's learning
    rate is 5e-7. Start a killed command again and it goes on from its last checkpoint; the reference's
    log-probabilities are kept until training is done.

    Example: `surefoot train implicit --problems problems.jsonl --traces traces.jsonl --out iprm`
    """
    from surefoot.cli._pieces import file_inputs
    from surefoot.cli._shared import checked_options, choice, pair, read_all
    from surefoot.cli.train._run import in_run
    from surefoot.models.kinds.implicit import ImplicitSettings
    from surefoot.records import Problem, Trace, content_id
    from surefoot.training.config import ImplicitConfig

    choice("--read", read, "step", "prefix")
    with checked_options():
        encoding = reads.encoding()
        config = options.config(ImplicitConfig, balance=balance)
        ImplicitSettings.model_validate({"beta": beta})  # refused here, by the option's name
    items = pair(read_all(problems, Problem), read_all(traces, Trace))
    model: dict[str, Any] = {"reference": reference, "beta": beta, "read": read}

    def work(progress: Progress) -> Trained:
        import shutil

        from surefoot.cli.train._run import Trained, say_left_out
        from surefoot.models.engine.causal import CACHE
        from surefoot.models.kinds.implicit import ImplicitPRM
        from surefoot.training.implicit import build_outcome_examples, train_implicit

        prm = ImplicitPRM.initialise(
            base_path(reads.base),
            reference={"none": None, "base": "base"}.get(reference, base_path(reference)),
            beta=beta,
            read=cast("Read", read),
            encoding=encoding,
            cache=out,
        ).to(options.device)
        prm.card = prm.card.model_copy(update={"base": reads.base})
        data = build_outcome_examples(prm, items)
        say_left_out(data.dropped, data.first)
        log = train_implicit(
            prm, data.examples, config, out, with_reference=copy_reference, progress=progress
        )
        shutil.rmtree(out / CACHE, ignore_errors=True)
        return Trained(losses=log.losses, tokens=log.tokens, dropped=data.dropped)

    settings = {
        "model": model | {"base": reads.base, "copy_reference": copy_reference},
        "encoding": encoding.model_dump(),
        "training": config.model_dump(),
        "items": content_id(*items),
    }
    in_run("implicit", out, work, settings=settings, inputs=file_inputs(problems=problems, traces=traces))
