"""From an archive of agent runs to the table of choices among the runs of each task.

    python recipes/terminal-bench/run.py ARCHIVE [SCORES …]

ARCHIVE is a folder or a tar file of runs in any format that ``surefoot import`` reads, with several runs a
task and their results: Terminal-Bench, SWE-bench style runs, tau-bench. Each further file of step scores or
labels (a reward model's, a judge's) is compared with the choices that read nothing.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path


def surefoot(*words: str | Path) -> None:
    """Run one command of surefoot and end with its status if it fails."""
    command = [sys.executable, "-m", "surefoot", *map(str, words)]
    status = subprocess.run(command, check=False).returncode  # noqa: S603 - a list, no shell
    if status:
        sys.exit(status)


def main() -> None:
    """Unpack, import, choose."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("archive", type=Path)
    parser.add_argument("scores", nargs="*", type=Path)
    parser.add_argument("--keep", type=Path, help="folder for the imported runs and the chosen ones")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder, runs = options.archive, (options.keep or Path(scratch)) / "imported"
        if folder.is_file() and tarfile.is_tarfile(folder):
            folder = Path(scratch) / "runs"
            with tarfile.open(options.archive) as archive:
                archive.extractall(folder, filter="data")
        surefoot("import", folder, "--out", runs, "--force")
        for scores in options.scores or [None]:
            named = ("--scores", scores) if scores else ()
            out = runs / f"chosen-{scores.stem if scores else 'shortest'}.jsonl"
            surefoot("select", runs / "traces.jsonl", *named, "--out", out, "--force")


if __name__ == "__main__":
    main()
