"""A folder of runs: which of its files are runs, and what the files next to them say of each; and the folders
in which coding agents keep their sessions.

The result in a folder (:mod:`surefoot.formats.trial_results`) belongs to the one run below it. Harbor keeps a
run in several forms under ``agent/``: the trajectory is read, else the agent's session, else its events.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from surefoot.errors import RecordError
from surefoot.formats.trial_results import RESULT_NAMES, TrialResult, result_beside

_ENDINGS: Final = (
    ".jsonl", ".jsonl.gz", ".json", ".json.gz", ".traj", ".eval", ".parquet", ".csv", ".tsv", ".db", ".txt",
)  # fmt: skip
_SUBAGENTS: Final = "subagents"
_MOST_FILES: Final = 200_000
_MOST_SESSIONS: Final = 100_000


@dataclass(frozen=True, kw_only=True)
class RunFile:
    """A file that may hold a run."""

    path: Path
    name: str
    """Path below the folder."""
    format: str
    result: TrialResult | None = None
    """What the files next to it say of its run."""


@dataclass(kw_only=True)
class RunFolder:
    """The runs of a folder, and why its other files are none."""

    runs: list[RunFile]
    unread: list[str]
    """``NAME: reason``, as the next two."""
    no_runs: list[str]
    second_forms: list[str]
    doubts: list[str]
    """Results that belong to no single run."""
    unusable: Counter[str] = field(default_factory=Counter)
    """Numbers of files that cannot hold a run, by their ending."""


def is_saved_dataset(folder: Path) -> bool:
    """Whether the ``datasets`` library wrote the folder."""
    return (folder / "state.json").exists() or (folder / "dataset_dict.json").exists()


def open_run_folder(folder: Path, format_of: Callable[[Path], str | None]) -> RunFolder:
    """Find the runs of ``folder`` and of the folders in it; hidden ones are left out.

    ``format_of`` gives a file's format, or ``None`` if it cannot hold a run, and raises ``RecordError``.
    """
    runs_in = RunFolder(runs=[], unread=[], no_runs=[], second_forms=[], doubts=[])
    by_result: dict[Path | None, list[Path]] = {}
    results: dict[Path, TrialResult | None] = {}
    for path in _files(folder):
        if not path.name.endswith(_ENDINGS):
            runs_in.unusable[path.suffix] += 1
            continue
        by_result.setdefault(_nearest(path, folder, results), []).append(path)
    for parent, paths in by_result.items():
        result = results[parent] if parent is not None else None
        _add(runs_in, folder, parent or folder, paths, result, format_of)
    runs_in.runs.sort(key=lambda run: run.name)
    return runs_in


def _files(folder: Path) -> Iterator[Path]:
    count = 0
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "_")))
        count += len(names)
        if count > _MOST_FILES:
            raise RecordError(
                f"{folder}: more than {_MOST_FILES:,} files; give the folders of the runs one by one"
            )
        yield from (Path(root, name) for name in sorted(names) if not name.startswith((".", "_")))


def _nearest(path: Path, folder: Path, results: dict[Path, TrialResult | None]) -> Path | None:
    """The closest folder at or above a file, up to ``folder``, that holds a result."""
    for parent in path.parents:
        if parent not in results:
            results[parent] = result_beside(parent)
        if results[parent] is not None:
            return parent
        if parent == folder:
            return None
    return None


def _add(
    runs_in: RunFolder,
    folder: Path,
    place: Path,
    paths: list[Path],
    result: TrialResult | None,
    format_of: Callable[[Path], str | None],
) -> None:
    """Add the runs among ``paths``, whose closest result is the one of ``place``."""
    forms = [path for path in paths if result and path.relative_to(place).parts[0] == "agent"]
    best: Path | None = None
    runs: list[RunFile] = []
    for path in sorted(paths, key=lambda path: (_rank(path), path)):
        name = path.relative_to(folder).as_posix()
        if best is not None and path in forms and not path.name.startswith(f"{best.stem}."):
            runs_in.second_forms.append(f"{name}: another form of the run in {best.name}")
            continue
        try:
            form = format_of(path)
        except RecordError as error:
            runs_in.unread.append(f"{name}: {str(error).removeprefix(f'{path}: ')}")
            continue
        if form is None:
            if path.name in RESULT_NAMES:
                pass  # read as a result
            elif path.suffix == ".txt":
                runs_in.unusable[path.suffix] += 1
            else:
                runs_in.no_runs.append(f"{name}: no messages, steps or solutions")
            continue
        runs.append(RunFile(path=path, name=name, format=form))
        best = path if best is None and path in forms else best
    mains = [run for run in runs if _SUBAGENTS not in run.path.parts and (best is None or run.path == best)]
    if result and len(mains) > 1 and result.outcome is not None:
        runs_in.doubts.append(f"{place}: its reward is not used, because {len(mains)} runs lie there")
    for run in runs:
        runs_in.runs.append(replace(run, result=result if [run] == mains else None))


def _rank(path: Path) -> int:
    """The order in which several forms of one run are preferred."""
    if path.name == "trajectory.json":
        return 0
    return 2 if path.suffix == ".txt" else 3 if _SUBAGENTS in path.parts else 1


@dataclass(frozen=True, kw_only=True)
class SessionFile:
    """A file with a session, or a database with several."""

    path: Path
    format: str
    changed_s: float
    """Time of its last change, in seconds since 1970."""
    size: int
    """Bytes."""


def session_places() -> dict[str, tuple[Path, str]]:
    """The folder of each agent, by the name of its format, and the pattern of the files there."""
    home = Path.home()

    def folder(variable: str, default: str) -> Path:
        return Path(os.environ.get(variable) or home / default)

    return {
        "claude-code": (folder("CLAUDE_CONFIG_DIR", ".claude") / "projects", "*/*.jsonl"),
        "codex": (folder("CODEX_HOME", ".codex") / "sessions", "*/*/*/rollout-*.jsonl"),
        "gemini-cli": (home / ".gemini/tmp", "*/chats/session-*.json*"),
        "opencode": (folder("XDG_DATA_HOME", ".local/share") / "opencode", "opencode*.db"),
        "mini-swe-agent": (folder("XDG_CONFIG_HOME", ".config") / "mini-swe-agent", "*.traj.json"),
    }


def newest_sessions(count: int) -> list[SessionFile]:
    """The newest sessions, the last changed one first."""
    sessions = []
    for name, (folder, pattern) in session_places().items():
        for path, _ in zip(folder.glob(pattern), range(_MOST_SESSIONS), strict=False):
            with suppress(OSError):
                facts = path.stat()
                file = SessionFile(path=path, format=name, changed_s=facts.st_mtime, size=facts.st_size)
                sessions.append(file)
    return sorted(sessions, key=lambda session: (-session.changed_s, session.path))[:count]
