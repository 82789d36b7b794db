"""What every labelling command does around its labeller: pieces, budget, summary of what it cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from surefoot.cli._pieces import Budget, in_pieces
from surefoot.errors import PolicyError
from surefoot.records import StepLabel, Usage

if TYPE_CHECKING:
    from pathlib import Path

    from surefoot.protocols import Labeller, ProblemTrace


def answered(items: list[ProblemTrace]) -> list[ProblemTrace]:
    """Items whose problem has a reference answer; how many have none is said on standard error."""
    known = [item for item in items if item.problem.answer is not None]
    if len(known) < len(items):
        typer.echo(f"{len(items) - len(known)} traces skipped: their problem has no 'answer'", err=True)
    return known


def write_labels(
    out: str,
    labeller: Labeller,
    items: Sequence[ProblemTrace],
    *,
    command: str,
    config: Mapping[str, Any],
    inputs: Mapping[str, Path],
    size: int = 50,
    budget: Budget | None = None,
) -> None:
    """Label ``items``, ``size`` traces at a time, into the file ``out``; says at the end what came of it.

    Raises ``PolicyError`` when every request of a piece failed, as when the server is gone: the pieces
    before it are kept, and the same command goes on from there.
    """
    import asyncio

    def work(piece: Sequence[ProblemTrace]) -> list[StepLabel]:
        labels = [label for of_trace in asyncio.run(labeller.label(piece)) for label in of_trace]
        tally.add(labels)
        tried = [label for label in labels if label.evidence.usage.calls]
        # a reply that came but says nothing has cost tokens; one that never came has not
        if tried and all(label.value is None and not label.evidence.usage.tokens for label in tried):
            raise PolicyError(
                f"no request of this piece succeeded, the last with: {tried[-1].reason}; mend that and start "
                "the same command again, finished pieces are kept"
            )
        return labels

    tally = Tally()
    in_pieces(
        out,
        StepLabel,
        items,
        work,
        size=size,
        command=command,
        config=config,
        inputs=inputs,
        budget=budget,
        cost=spent_tokens,
    )
    typer.echo(tally.summary(), err=True)


def spent_tokens(labels: Sequence[StepLabel]) -> int:
    """Tokens that these labels cost: read and written by the policy, and by a judge."""
    return sum((label.evidence.usage for label in labels), Usage()).tokens


class Tally:
    """Labels written, those without a value by reason, and what they cost."""

    def __init__(self) -> None:
        self.labels, self.tokens = 0, 0
        self.unknown: Counter[str] = Counter()

    def add(self, labels: Sequence[StepLabel]) -> None:
        """Count these too."""
        self.labels += len(labels)
        self.tokens += spent_tokens(labels)
        self.unknown.update(label.reason or "" for label in labels if label.value is None)

    def summary(self) -> str:
        """Lines for standard error."""
        lines = [
            f"{self.labels} labels written, {self.unknown.total()} of them without a value; "
            f"{self.tokens} tokens"
        ]
        lines += [f"  {count} without a value: {reason}" for reason, count in self.unknown.most_common(5)]
        if len(self.unknown) > 5:
            lines.append(f"  {len(self.unknown) - 5} other reasons, see 'reason' in the labels")
        return "\n".join(lines)
