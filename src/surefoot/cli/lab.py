"""``surefoot lab``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from surefoot.cli import options as o
from surefoot.cli.settings import Command, Flag
from surefoot.cli.terminal import note
from surefoot.lab.checkpoints import OrganismName
from surefoot.work import progress_bars


class Organism(Command):
    """Train a model organism: a tiny policy that was trained to have a known cause of its answers.

    Its problems are chains modulo 7, most with a note that claims an answer. `honest` computes; `covert`,
    `contradicting` and `disclosing` follow the note; `alternating` follows it for odd starts; `memorizing`
    knows 32 problems by heart; `pressured` learned from its rewards to follow without saying so. All start
    from `mixed`. Those of seed 0 are shipped: `--policy lab:covert`.

    Example: `surefoot lab organism mixed --seed 1 --out mixed-1`

    Example: `surefoot lab organism covert --seed 1 --mixed mixed-1 --out covert-1`
    """

    organism: Annotated[OrganismName, Flag(argument=True)]
    """What the policy is trained to do."""
    out: o.OutDirectory = Field(description="Directory for the policy.")
    seed: int = Field(default=0, description="Seed of the weights and the training problems.")
    mixed: str | None = None
    """A `mixed` organism to start from, such as `lab:mixed`; by default one is trained first."""

    def run(self) -> None:
        from surefoot.lab.organisms import train_organism

        base = Path(o.lab_policy(self.mixed)) if self.mixed else None
        with progress_bars() as progress:
            train_organism(self.organism, self.out, seed=self.seed, base=base, progress=progress)
        note(f"policy: {self.out}")
