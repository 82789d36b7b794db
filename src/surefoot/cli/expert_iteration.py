"""``surefoot expert-iteration``: a policy learns from its own good solutions."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Annotated

import typer

from surefoot.cli._options import ReadingOptions
from surefoot.cli._rounds import Data, RoundsOptions


@dataclass(frozen=True, kw_only=True)
class ExpertIterationOptions(RoundsOptions):
    """How solutions are chosen."""

    samples: Annotated[int, typer.Option("--samples", min=1, help="Solutions a problem and round.")] = 8
    keep_solutions: Annotated[
        int,
        typer.Option("--keep-solutions", min=1, help="Different good solutions learned a problem and round."),
    ] = 4
    prm: Annotated[
        str | None,
        typer.Option("--prm", "-m", help="Checkpoint directory or hub name: every step must score well."),
    ] = None
    family: Annotated[
        str | None,
        typer.Option("--family", help="Published family, where name and files do not tell, e.g. qwen-prm."),
    ] = None
    verifier: Annotated[
        list[str] | None,
        typer.Option(
            "--verifier",
            help="In place of --prm: every step must be right by arithmetic, lab or module:Class; repeat.",
        ),
    ] = None
    threshold: Annotated[
        float, typer.Option("--threshold", min=0, max=1, help="Lowest score that every step must reach.")
    ] = 0.5
    data: Data = "last"


def expert_iteration(options: ExpertIterationOptions, reading: ReadingOptions) -> None:
    """Train a policy on its own good solutions, in rounds (expert iteration, STaR, ReST-EM).

    In each round it writes solutions, and learns from different ones with the right answer. By the answer
    alone, lucky answers after a wrong step are learned, too: `--prm` or `--verifier` keep out solutions with
    a bad step. Problems need an answer. Start a killed command again and it goes on where it was.

    Example: `surefoot expert-iteration --problems p.jsonl --policy lab --prm prm --threshold 0.5
    --held-out test.jsonl --gold lab --max-tokens 96 --out iterated`
    """
    from surefoot.cli._pieces import file_inputs
    from surefoot.cli._rounds import say_rounds
    from surefoot.cli._shared import checked_options, read_all, stages
    from surefoot.cli._step_judges import by_steps, step_scorer
    from surefoot.io import Run
    from surefoot.models.loading import identifying_files
    from surefoot.records import Problem
    from surefoot.rl.expert_iteration import iterate
    from surefoot.rl.rounds_config import ExpertIterationConfig

    threshold = options.threshold if by_steps(options.prm, options.verifier) else None
    with checked_options():
        mine = {name: getattr(options, name) for name in ("samples", "keep_solutions", "data")}
        config = ExpertIterationConfig.model_validate(options.settings() | mine | {"threshold": threshold})
    reading.prompt()  # refused before anything is read
    problems = read_all(options.problems, Problem)
    judge = {"prm": options.prm, "family": options.family, "verifier": options.verifier}
    resolved = {"rounds": config.decisive, **options.decisive(), **reading.decisive(), **judge}
    inputs = file_inputs(problems=options.problems, held_out=options.held_out)
    inputs |= identifying_files(options.prm) if options.prm else {}
    with ExitStack() as stack:
        scorer = step_scorer(
            stack, prm=options.prm, family=options.family, verifier=options.verifier, device=options.device
        )
        task = stack.enter_context(options.task(problems, reading, scorer))
        run = stack.enter_context(
            Run.open(options.out, command="expert-iteration", config=resolved, inputs=inputs)
        )
        progress = stack.enter_context(stages())
        rows = iterate(run, options.start_policy(), task, config, progress, device=options.device)
    say_rounds(options.out, rows)
