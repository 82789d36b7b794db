"""A folder of runs: which of its files are runs, and what the files beside them say of each.

The verdict in a folder (:mod:`surefoot.formats.verdicts`) belongs to the one run below it. Harbor keeps a run
in several forms under ``agent/``: the trajectory is read, else the agent's session, else its printed events.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from surefoot.errors import RecordError
from surefoot.formats.verdicts import VERDICT_NAMES, Verdict, verdict_beside

_ENDINGS: Final = (
    ".jsonl", ".jsonl.gz", ".json", ".json.gz", ".traj", ".eval", ".parquet", ".csv", ".tsv", ".db", ".txt",
)  # fmt: skip
_SUBAGENTS: Final = "subagents"
_MOST_FILES: Final = 200_000


@dataclass(frozen=True, kw_only=True)
class RunFile:
    """A file that may hold a run."""

    path: Path
    name: str
    """Path below the folder."""
    format: str
    verdict: Verdict | None = None
    """What the files beside it say of its run."""


@dataclass(kw_only=True)
class RunFolder:
    """The runs of a folder, and why its other files are none."""

    runs: list[RunFile]
    left_out: list[str]
    """``NAME: reason``"""
    doubts: list[str]
    """Verdicts that belong to no single run."""


def is_saved_dataset(folder: Path) -> bool:
    """Whether the ``datasets`` library wrote the folder."""
    return (folder / "state.json").exists() or (folder / "dataset_dict.json").exists()


def open_run_folder(folder: Path, format_of: Callable[[Path], str | None]) -> RunFolder:
    """Find the runs of ``folder`` and of the folders in it; hidden ones are left out.

    ``format_of`` gives a file's format, or ``None`` if it cannot hold a run, and raises ``RecordError``.
    """
    found = RunFolder(runs=[], left_out=[], doubts=[])
    by_verdict: dict[Path | None, list[Path]] = {}
    verdicts: dict[Path, Verdict | None] = {}
    for path in _files(folder):
        by_verdict.setdefault(_nearest(path, folder, verdicts), []).append(path)
    for place, paths in by_verdict.items():
        verdict = verdicts[place] if place is not None else None
        _add(found, folder, place or folder, paths, verdict, format_of)
    found.runs.sort(key=lambda run: run.name)
    return found


def _files(folder: Path) -> Iterator[Path]:
    count = 0
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "_")))
        count += len(names)
        if count > _MOST_FILES:
            raise RecordError(
                f"{folder}: more than {_MOST_FILES:,} files; give the folders of the runs one by one"
            )
        yield from (
            Path(root, name)
            for name in sorted(names)
            if name.endswith(_ENDINGS) and not name.startswith((".", "_"))
        )


def _nearest(path: Path, folder: Path, verdicts: dict[Path, Verdict | None]) -> Path | None:
    """The closest folder at or above a file, up to ``folder``, that holds a verdict."""
    for place in path.parents:
        if place not in verdicts:
            verdicts[place] = verdict_beside(place)
        if verdicts[place] is not None:
            return place
        if place == folder:
            return None
    return None


def _add(
    found: RunFolder,
    folder: Path,
    place: Path,
    paths: list[Path],
    verdict: Verdict | None,
    format_of: Callable[[Path], str | None],
) -> None:
    """Add the runs among ``paths``, whose closest verdict is the one of ``place``."""
    forms = [path for path in paths if verdict and path.relative_to(place).parts[0] == "agent"]
    best: Path | None = None
    runs: list[RunFile] = []
    for path in sorted(paths, key=lambda path: (_rank(path), path)):
        name = path.relative_to(folder).as_posix()
        if best is not None and path in forms and not path.name.startswith(f"{best.stem}."):
            found.left_out.append(f"{name}: another form of the run in {best.name}")
            continue
        try:
            form = format_of(path)
        except RecordError as error:
            found.left_out.append(f"{name}: {str(error).removeprefix(f'{path}: ')}")
            continue
        if form is None:
            if path.name not in VERDICT_NAMES and path.suffix != ".txt":
                found.left_out.append(f"{name}: no messages, steps or solutions")
            continue
        runs.append(RunFile(path=path, name=name, format=form))
        best = path if best is None and path in forms else best
    mains = [run for run in runs if _SUBAGENTS not in run.path.parts and (best is None or run.path == best)]
    if verdict and len(mains) > 1 and verdict.outcome is not None:
        found.doubts.append(f"{place}: its reward is not used, because {len(mains)} runs lie there")
    for run in runs:
        of_run = verdict if [run] == mains else None
        found.runs.append(RunFile(path=run.path, name=run.name, format=run.format, verdict=of_run))


def _rank(path: Path) -> int:
    """The order in which several forms of one run are preferred."""
    if path.name == "trajectory.json":
        return 0
    return 2 if path.suffix == ".txt" else 3 if _SUBAGENTS in path.parts else 1
