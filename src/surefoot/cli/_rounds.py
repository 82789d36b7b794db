"""Options that ``imitate`` and ``expert-iteration`` share, and what they make."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from surefoot.cli import _options as o
from surefoot.cli.train._options import LargeLoopOptions

if TYPE_CHECKING:
    from surefoot.protocols import StepScorer
    from surefoot.records import Problem
    from surefoot.rl.rounds import RoundRow
    from surefoot.rl.task import Task

Directory = Annotated[Path, typer.Option("--out", "-o", help="Run directory; round-N in it is a policy.")]
Start = Annotated[
    str, typer.Option("--policy", help="Policy to start from: 'lab', a checkpoint directory or hub name.")
]
HeldOut = Annotated[
    str | None, typer.Option("--held-out", help="File of problems to evaluate on after every round.")
]
EvaluationSamples = Annotated[
    int, typer.Option("--evaluation-samples", min=1, help="Samples a held-out problem.")
]
Rounds = Annotated[int, typer.Option("--rounds", min=1, help="Rounds of writing and learning.")]
RoundProblems = Annotated[
    int | None, typer.Option("--round-problems", min=1, help="Problems a round, in turn; else all in each.")
]
FineTuneFrom = Annotated[
    str, typer.Option("--start", help="Fine-tune in each round from the first policy, or the last one.")
]
Data = Annotated[str, typer.Option("--data", help="Learn from the data of all rounds so far, or the last.")]
MaxLength = Annotated[
    int | None, typer.Option("--max-length", min=8, help="Tokens of the longest example; else the context.")
]
KeepRounds = Annotated[
    str, typer.Option("--keep", help="Keep the weights of all rounds, or of the last one alone.")
]
DecodeBatch = Annotated[
    int, typer.Option("--decode-batch", min=1, help="Samples decoded together in this process.")
]


@dataclass(frozen=True, kw_only=True)
class RoundsOptions(LargeLoopOptions):
    """Who learns, on what, and how a round is made."""

    problems: o.Problems
    out: Directory
    policy: Start = "lab"
    held_out: HeldOut = None
    gold: o.Gold = None
    evaluation_samples: EvaluationSamples = 1
    rounds: Rounds = 3
    round_problems: RoundProblems = None
    start: FineTuneFrom = "first"
    keep: KeepRounds = "all"
    temperature: o.Temperature = 1.0
    max_tokens: o.MaxTokens = 512
    max_length: MaxLength = None
    decode_batch: DecodeBatch = 256
    epochs: Annotated[int, typer.Option("--epochs", min=1, help="Passes over a round's examples.")] = 2

    def settings(self) -> dict[str, Any]:
        """Fields of :class:`surefoot.rl.rounds_config.RoundsConfig`. Raises ``ValidationError``
        (pydantic)."""
        names = ("rounds", "temperature", "max_tokens", "max_length", "start", "keep", "evaluation_samples")
        settings = {name: getattr(self, name) for name in (*names, "seed")}
        settings |= {"problems": self.round_problems, "batch_size": self.decode_batch}
        from surefoot.training.config import SFTConfig

        return settings | {"training": self.config(SFTConfig)}

    def decisive(self) -> dict[str, Any]:
        """What else decides what a run comes to."""
        return {"policy": self.policy, "gold": self.gold}

    def start_policy(self) -> str | Path:
        """The policy to start from."""
        from surefoot.lab.checkpoints import POLICY

        return POLICY if self.policy == "lab" else self.policy

    @contextmanager
    def task(
        self, problems: Sequence[Problem], reading: o.ReadingOptions, scorer: StepScorer | None = None
    ) -> Iterator[Task]:
        """What is learned, with the grader and the verifiers open."""
        from surefoot.cli._shared import grader, read_all
        from surefoot.cli._step_judges import verifiers
        from surefoot.records import Problem
        from surefoot.rl.task import Task
        from surefoot.segment import segmenter

        with ExitStack() as stack:
            yield Task(
                problems=problems,
                held_out=read_all(self.held_out, Problem) if self.held_out else (),
                segmenter=segmenter(reading.segment),
                grader=stack.enter_context(grader(reading.extract, reading.equality)),
                prompt=reading.prompt(),
                scorer=scorer,
                gold=verifiers(stack, self.gold) if self.gold else None,
            )


def say_rounds(out: Path, rows: Sequence[RoundRow]) -> None:
    """A line a round on standard error: what was learned, what it came to, what was dropped."""
    for row in rows:
        said = []
        if row.round:
            loss = "" if row.loss is None else f", loss {row.loss:.4f}"
            said.append(f"{row.drawn} solutions written, {row.decisions} steps learned{loss}")
        if row.evaluation:
            right, wrong = row.evaluation.accuracy, row.evaluation.trace_error
            said.append(f"accuracy {right:.1%}")
            if wrong:
                said.append(f"trace error {wrong:.1%}")
        if said:
            typer.echo(f"round {row.round}: {'; '.join(said)}", err=True)
        for reason, count in row.dropped.items():
            typer.echo(f"  left out: {count} {reason}", err=True)
    typer.echo(f"policy: {out / f'round-{rows[-1].round}'}", err=True)
