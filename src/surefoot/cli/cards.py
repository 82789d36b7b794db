"""``surefoot lineage``: where a checkpoint or file comes from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from pydantic import Field

from surefoot.cli.settings import Command, Flag
from surefoot.cli.terminal import echo
from surefoot.errors import RunError


class Lineage(Command):
    """Trace a checkpoint, or a file that a command wrote, to the data and models it was made from.

    Each command records the hashes of its inputs and outputs, in a run's `manifest.json` or in
    `FILE.manifest.json` next to the output. A file that was edited by hand or is missing is marked with ✗,
    and the exit status is then 1. A source is a file that no command here has written; its licence is the one of
    `import --licence`, or of the README or LICENSE next to it.

    Example: `surefoot lineage runs/quickstart/prm`
    """

    target: Annotated[Path, Flag(argument=True)]
    """Directory of a checkpoint, or a file."""
    as_json: Annotated[bool, Flag(name="--json", common=True)] = Field(
        default=False, description="Print the tree as JSON."
    )

    def run(self) -> None:
        from surefoot.io.lineage import lineage

        tree = lineage(self.target)
        if tree.command is None:
            raise RunError(f"{self.target}: no command has recorded that it wrote it; name an output of one")
        if self.as_json:
            data = tree.model_dump(mode="json", exclude_defaults=True)
            echo(json.dumps(data, indent=1, ensure_ascii=False))
        else:
            for line in tree.lines():
                echo(line)
        broken = dict.fromkeys(f"{node.name}: {fault}" for node in tree.walk() for fault in node.faults)
        if broken:
            raise RunError(f"the chain is broken: {'; '.join(list(broken)[:5])}")
