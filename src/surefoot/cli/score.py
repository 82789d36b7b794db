"""``surefoot score``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Self

import typer
from pydantic import Field, model_validator

from surefoot.cli import options as o
from surefoot.cli.settings import Command, Flag
from surefoot.errors import ScoreError

if TYPE_CHECKING:
    from surefoot.models.scorer import CheckpointScorer
    from surefoot.protocols import ProblemTrace
    from surefoot.records import StepScores


class Score(Command):
    """Score one pasted solution step by step, or a file of traces, with a reward model of any kind.

    One solution: `--problem TEXT`, and the solution on standard input or with `--solution`. The steps are
    shown with their scores and the first error is marked. A file: `--problems` and `--traces`; the output
    holds one record of step scores per trace.

    Example: `surefoot score -m prm --problem "Start with 7. Add 3." < solution.txt`

    Example: `surefoot score -m prm --problems problems.jsonl --traces traces.jsonl --out scores.jsonl`
    """

    models: Annotated[tuple[str, ...], Flag(name="--model", short="-m")] = Field(
        min_length=1,
        description="Checkpoint directory, hub name or URL of a reward model; several are an ensemble.",
    )
    problem: str | None = Field(default=None, description="One problem's text.")
    solution: str = Field(default="-", description="One solution's text; `-` reads standard input.")
    segment: o.Segment | None = Field(
        default=None,
        description="How the solution is cut into steps; if not given, as the model's training data, else by "
        "blank line or line.",
    )
    threshold: float = Field(default=0.5, description="A step below this is marked as an error.")
    problems: o.Problems | None = None
    traces: o.Traces | None = None
    out: o.Out = "-"
    device: o.Device = "cpu"
    family: o.Family = None
    tokenizer: o.Tokenizer = None
    reference: str | None = Field(
        default=None,
        description="Second model of an implicit reward, if it is not where the checkpoint says.",
    )
    base: str | None = Field(
        default=None, description="Model that an adapter belongs to, if it is not where the checkpoint says."
    )
    chains: int = Field(default=1, ge=1, description="Critiques of a generative verifier to average.")
    calibrated: o.Calibrated = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.problem is None and (self.problems is None or self.traces is None):
            raise ValueError("give 'problem' and a solution, or both 'problems' and 'traces'")
        return self

    def run(self) -> None:
        """Score, and show or write."""
        from surefoot.models.loading import load_prm

        scorer = load_prm(
            o.one_or_all(self.models),
            device=self.device,
            family=self.family,
            tokenizer=self.tokenizer,
            reference=self.reference,
            base=self.base,
            chains=self.chains,
            calibrated=self.calibrated,
        )
        if self.problem is not None:
            self._show(scorer, self.problem)
        else:
            self._score_file(scorer)

    def _show(self, scorer: CheckpointScorer, problem: str) -> None:
        from rich.console import Console
        from rich.text import Text

        from surefoot.cli.runs import checked_options
        from surefoot.models.scorer import cut
        from surefoot.protocols import ProblemTrace
        from surefoot.records import Problem
        from surefoot.segment import segmenter

        text = sys.stdin.read() if self.solution == "-" else self.solution
        with checked_options():
            asked = Problem(text=problem)
        trace = cut(asked, text, segmenter(self.segment) if self.segment else scorer.card.segmenter)
        [scores] = scorer.score_traces([ProblemTrace(problem=asked, trace=trace)])
        console = Console(highlight=False)
        low = (
            step for step, value in enumerate(scores.scores) if value is not None and value < self.threshold
        )
        bad = next(low, None)
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
            console.print(f"no step scores below {self.threshold:g}")

    def _score_file(self, scorer: CheckpointScorer) -> None:
        import asyncio

        from surefoot.cli.pieces import in_pieces
        from surefoot.cli.runs import file_inputs, pair, read_table
        from surefoot.models.kinds.generative import GenerativeVerifier
        from surefoot.models.loading import identifying_files
        from surefoot.models.remote.scorer import RemoteScorer
        from surefoot.records import Problem, StepScores, Trace

        items = pair(read_table(self.problems or "-", Problem), read_table(self.traces or "-", Trace))
        unscored, empty = 0, list[StepScores]()
        useful = False

        def work(piece: Sequence[ProblemTrace]) -> list[StepScores]:
            nonlocal unscored, useful
            records = scorer.score_traces(piece)
            unscored += sum(None in record.scores for record in records)
            without = [record for record in records if all(score is None for score in record.scores)]
            useful = useful or len(without) < len(records)
            empty.extend(without[:1])
            return records

        inputs = file_inputs(problems=self.problems, traces=self.traces) | identifying_files(
            o.one_or_all(self.models)
        )

        async def ask(piece: Sequence[ProblemTrace]) -> list[StepScores]:
            return await asyncio.to_thread(work, piece)

        written = in_pieces(
            self.out,
            StepScores,
            items,
            ask if isinstance(scorer, RemoteScorer) else work,
            size=_piece(scorer),
            in_flight=scorer.concurrency if isinstance(scorer, RemoteScorer) else 1,
            failed=_failure,
            command="score",
            config=self.resolved(),
            inputs=inputs,
        )
        typer.echo(
            f"{written} traces scored; {unscored} with unscored steps (see 'unscored_reason')", err=True
        )
        verifier = getattr(scorer, "scorer", scorer)  # the model that a calibration wraps
        if isinstance(verifier, GenerativeVerifier):
            for reason, count in verifier.invalid.most_common():
                typer.echo(f"{count} critiques not scored: {reason}", err=True)
        if empty and not useful:
            raise ScoreError(
                f"no step was scored; first trace, {empty[0].trace_id}: {empty[0].unscored_reason}"
            )


def _piece(scorer: CheckpointScorer) -> int:
    """Traces to score before they are saved: what one request to a server holds, else some minutes' worth."""
    from surefoot.models.remote.scorer import RemoteScorer

    if isinstance(scorer, RemoteScorer):
        return scorer.batch_size
    return 50 if scorer.writes else 1000


def _failure(records: Sequence[StepScores]) -> str | None:
    """Why a server gave no score for these traces, if it gave none."""
    reason = records[-1].unscored_reason or ""
    if reason.startswith("server: ") and all(set(record.scores) == {None} for record in records):
        return reason
    return None
