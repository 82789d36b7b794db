"""``surefoot lineage`` and ``surefoot card``: origin and measured abilities of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from surefoot import cards
from surefoot.cli import options as o
from surefoot.cli.settings import Command, Flag
from surefoot.cli.terminal import echo
from surefoot.errors import RunError, counted
from surefoot.io.atomic import atomic_file, make_directory
from surefoot.io.lineage import lineage


class Lineage(Command):
    """Trace a checkpoint, or a file that a command wrote, to the data and models it was made from.

    Each command records the hashes of its inputs and outputs, in a run's `manifest.json` or in
    `FILE.manifest.json` next to the output. A file that was edited by hand or is missing is marked with ✗,
    and the exit status is then 1. A source is a file that no command here has written; its licence is the
    one of `import --licence`, or of the README or LICENSE next to it.

    Example: `surefoot lineage runs/quickstart/prm`
    """

    target: Annotated[Path, Flag(argument=True)]
    """Directory of a checkpoint, or a file."""

    def run(self) -> None:
        tree = lineage(self.target)
        if tree.command is None:
            raise RunError(f"{self.target}: no command has recorded that it wrote it; name an output of one")
        for line in tree.lines():
            echo(line)
        broken = dict.fromkeys(f"{node.name}: {fault}" for node in tree.walk() for fault in node.faults)
        if broken:
            raise RunError(f"the chain is broken: {'; '.join(list(broken)[:5])}")


CardFile = Annotated[Path, Flag(argument=True, metavar="CARD")]


class CardBuild(Command):
    """Build a card of one or several runs: origin, measurements, failures.

    Writes `card.json`, `README.md` for the hub, `card.html`, and a safety case with links to the evidence.
    Every figure is computed from the runs' files. A file that was edited by hand, a run without a figure, and
    an evaluation or audit of the same models that is left out are errors.

    Example: `surefoot card build runs/quickstart/prm runs/quickstart/audit.json --name lab-prm
    --license Apache-2.0 --intended-use "tests of surefoot" --out runs/card`
    """

    runs: Annotated[tuple[Path, ...], Flag(argument=True, metavar="RUN")] = Field(min_length=1)
    """Run directories, folders of reports, or files that a command wrote."""
    out: o.OutDirectory = Field(description="Directory for the card, such as the checkpoint's.")
    name: str = Field(description="Name of the model on the card.")
    intended_use: str = "not stated"
    """What the model is for."""
    not_for: str = "not stated"
    """What it must not be used for."""
    licence: Annotated[str, Flag(name="--license")] = "not stated"
    """Licence of the model (SPDX)."""
    language: str = "en"
    """Language of the data."""
    scope: Path | None = None
    """Folder whose evaluations and audits of these models must be on the card; else the first run's."""

    def outputs(self) -> list[Path]:
        """The files of the card."""
        return [self.out / name for name in ("README.md", "card.html", "card.json", "safety-case.md")]

    def run(self) -> None:
        about = cards.About(
            name=self.name,
            intended_use=self.intended_use,
            not_for=self.not_for,
            licence=self.licence,
            language=self.language,
        )
        release = cards.build_card(self.runs, about, self.scope or self.runs[0].parent)
        make_directory(self.out)
        case = {"safety-case.md": cards.safety_case(release, self.out / "safety-case.md")}
        for name, text in (case | cards.render_all(release)).items():
            with atomic_file(self.out / name) as stream:
                stream.write(text.encode())
        echo(f"{about.name}: {release.summary}")
        figures, runs = counted(len(release.claims), "figure"), counted(len(release.runs), "run")
        echo(f"{self.out / 'card.json'}: {figures} of {runs}")


class CardCheck(Command):
    """Compute every figure of a card again, and compare; exit status 1 with reasons if anything differs.

    Found are: another checkpoint, changed data or labels, an edited number, role or sentence, a run or audit
    that is missing, another version. Changed data with a card that was built again are not found: commit the
    card, and `git diff` shows them.

    Example: `surefoot card check runs/card/card.json`
    """

    card: CardFile
    """The card's `card.json`."""

    def run(self) -> None:
        reasons = cards.check_card(self.card)
        for reason in reasons:
            echo(reason)
        if reasons:
            raise RunError(f"{self.card} does not hold: {len(reasons)} reasons")
        echo(f"{self.card} holds")
