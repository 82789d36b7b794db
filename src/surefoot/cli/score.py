"""``surefoot score``."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from surefoot.cli import _options as o

if TYPE_CHECKING:
    from surefoot.models.scorer import CheckpointScorer
    from surefoot.protocols import ProblemTrace


def score(
    model: Annotated[
        str, typer.Option("--model", "-m", help="Checkpoint directory or hub name of a reward model.")
    ],
    problem: Annotated[str | None, typer.Option("--problem", help="One problem's text.")] = None,
    solution: Annotated[
        str, typer.Option("--solution", help="One solution's text; - reads standard input.")
    ] = "-",
    segment: Annotated[
        str | None,
        typer.Option("--segment", help="How the solution is cut; by blank line or line if not given."),
    ] = None,
    threshold: Annotated[float, typer.Option("--threshold", help="A step below this is an error.")] = 0.5,
    problems: Annotated[str | None, typer.Option("--problems", help="File of problem records.")] = None,
    traces: Annotated[str | None, typer.Option("--traces", help="File of trace records.")] = None,
    out: o.Out = "-",
    device: o.Device = "cpu",
    family: Annotated[
        str | None,
        typer.Option("--family", help="Published family, where name and files do not tell, e.g. qwen-prm."),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option("--reference", help="Second model of an implicit reward, where it has moved."),
    ] = None,
    base: Annotated[
        str | None, typer.Option("--base", help="The model that an adapter is for, where it has moved.")
    ] = None,
    chains: Annotated[
        int, typer.Option("--chains", min=1, help="Critiques to average, of a generative verifier.")
    ] = 1,
    calibrated: Annotated[
        bool, typer.Option("--calibrated", help="Put scores through the checkpoint's calibration.json.")
    ] = False,
) -> None:
    """Score one pasted solution step by step, or a file of traces, with a reward model of any kind.

    Example: `surefoot score -m prm --problem "Start with 7. Add 3." < solution.txt`

    Example: `surefoot score -m prm --problems problems.jsonl --traces traces.jsonl --out scores.jsonl`
    """
    from surefoot.errors import ScoreError
    from surefoot.models.scorer import load_prm

    load = partial(
        load_prm,
        device=device,
        family=family,
        reference=reference,
        base=base,
        chains=chains,
        calibrated=calibrated,
    )
    if problem is not None:
        text = sys.stdin.read() if solution == "-" else solution
        _show(load(model), problem, text, segment, threshold)
    elif problems is not None and traces is not None:
        given = {
            "family": family,
            "reference": reference,
            "base": base,
            "chains": chains if chains > 1 else None,
            "calibrated": calibrated,
        }
        # what is not asked for is not written down: a command of an earlier version goes on
        settings = {name: value for name, value in given.items() if value}
        _score_file(load(model), {"model": model, **settings}, problems, traces, out)
    else:
        raise ScoreError("give --problem and a solution, or both --problems and --traces")


def _show(scorer: CheckpointScorer, problem: str, text: str, segment: str | None, threshold: float) -> None:
    from rich.console import Console
    from rich.text import Text

    from surefoot.cli._shared import checked_options
    from surefoot.models.scorer import cut
    from surefoot.protocols import ProblemTrace
    from surefoot.records import Problem
    from surefoot.segment import segmenter

    with checked_options():
        asked = Problem(text=problem)
    trace = cut(asked, text, segmenter(segment) if segment else None)
    [scores] = scorer.score_traces([ProblemTrace(problem=asked, trace=trace)])
    console = Console(highlight=False)
    bad = next(
        (step for step, value in enumerate(scores.scores) if value is not None and value < threshold), None
    )
    for step, value in enumerate(scores.scores):
        mark = "  ← first error" if step == bad else ""
        shown = " n/a " if value is None else f"{value:.3f}"
        style = "bold red" if step == bad else ""
        console.print(Text(f"{step:3}  {shown}  {trace.step_text(step).strip()}{mark}", style=style))
    if scores.unscored_reason:
        console.print(Text(scores.unscored_reason, style="yellow"))
    else:
        console.print(f"{scorer.card.aggregation} of the steps: {scorer.aggregate(scores):.3f}")
    if bad is None:
        console.print(f"no step scores below {threshold:g}")


def _score_file(
    scorer: CheckpointScorer, settings: Mapping[str, Any], problems: str, traces: str, out: str
) -> None:
    from surefoot.cli._pieces import file_inputs, in_pieces
    from surefoot.cli._shared import pair, read_all
    from surefoot.models.families import identifying_files
    from surefoot.models.generative import GenerativeVerifier
    from surefoot.models.verifier_checkpoint import FAMILY as GENERATIVE
    from surefoot.records import Problem, StepScores, Trace

    items = pair(read_all(problems, Problem), read_all(traces, Trace))
    unscored = 0

    def work(piece: Sequence[ProblemTrace]) -> list[StepScores]:
        nonlocal unscored
        records = scorer.score_traces(piece)
        unscored += sum(None in record.scores for record in records)
        return records

    written = in_pieces(
        out,
        StepScores,
        items,
        work,
        size=1000 if scorer.card.family != GENERATIVE else 50,  # critiques take long
        command="score",
        config=settings,
        inputs=file_inputs(problems=problems, traces=traces) | identifying_files(settings["model"]),
    )
    typer.echo(f"{written} traces scored; {unscored} with unscored steps (see 'unscored_reason')", err=True)
    verifier = getattr(scorer, "scorer", scorer)  # under a calibration
    if isinstance(verifier, GenerativeVerifier):
        for reason, count in verifier.invalid.most_common():
            typer.echo(f"{count} critiques not scored: {reason}", err=True)
