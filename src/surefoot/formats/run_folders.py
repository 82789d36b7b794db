"""A folder of runs: which files are runs, their rewards and tasks, and where agents keep their sessions.

Harnesses write reward and task around a run's messages or into files next to them: Harbor ``result.json``,
``verifier/reward.txt`` or ``reward.json``; Terminal-Bench ``results.json``; wrappers of ATIF ``reward`` and
``task_name``. The result in a folder belongs to the one run below it. Harbor keeps a run in several forms
under ``agent/``: the trajectory is read, else the agent's session, else its events.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from pydantic_core import from_json

from surefoot.errors import RecordError
from surefoot.formats.imports import IMPORT_KEY, NO_TASK, ImportContext, ImportedTrace
from surefoot.io.files import FileLimits, open_bounded, read_whole
from surefoot.records import Problem, trusted_copy

REWARDS_KEY: Final = "rewards"
"""``Trace.meta`` entry with the rewards of a run by the place that states them."""
TESTS_KEY: Final = "tests"
"""``Trace.meta`` entry with the status of each test."""
_FILES: Final = (
    "result.json", "results.json", "reward.txt", "reward.json", "verifier/reward.txt", "verifier/reward.json",
    "verifier/ctrf.json",
)  # fmt: skip
"""Files of results, relative to the folder of a run."""
RESULT_NAMES: Final = {Path(name).name for name in _FILES}
_REWARDS: Final = ("is_resolved", "resolved", "reward", "score", "success", "passed")
_TASKS: Final = ("task_name", "task_id", "instance_id")
_ENDS: Final = ("exception_info", "failure_mode", "error")


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """What one or several places say of a run."""

    rewards: Mapping[str, float | None]
    """By place; ``None`` where a place gives none."""
    task_id: str | None = None
    task: str | None = None
    ended: str | None = None
    """What ended the run before its end."""
    tests: Mapping[str, str] | None = None
    """The status of each test of the harness."""

    @property
    def outcome(self) -> bool | None:
        """Whether the run has the full reward; unknown where places disagree."""
        rewards = {*self.rewards.values()}
        [reward] = rewards if len(rewards) == 1 else [None]
        return None if reward is None else reward >= 1


def result_of(row: Mapping[str, Any], place: str = "file") -> TrialResult | None:
    """The result in an object; ``None`` if it has neither reward nor task."""
    inner = row.get("verifier_result")
    rewards = inner.get("rewards") if isinstance(inner, Mapping) else row.get("rewards")
    names = [name for name in _REWARDS if name in row]
    if isinstance(rewards, Mapping):
        value = rewards.get("reward", next(iter(rewards.values())) if len(rewards) == 1 else None)
    else:
        value = row[names[0]] if names else None
    task_id = next((row[name] for name in _TASKS if isinstance(row.get(name), str)), None)
    if not (names or task_id or "verifier_result" in row or rewards):
        return None
    ended = next((row[name] for name in _ENDS if row.get(name) not in (None, "unset", "none")), None)
    return TrialResult(
        rewards={place: _reward(value)},
        task_id=task_id,
        task=row["instruction"] if isinstance(row.get("instruction"), str) else None,
        ended=str(ended.get("exception_type") if isinstance(ended, Mapping) else ended) if ended else None,
        tests=_tests(row.get("parser_results")),
    )


def _tests(results: Any) -> dict[str, str] | None:
    """Statuses of tests by name: an object, or a list of objects as in CTRF."""
    if isinstance(results, list):
        results = {test.get("name"): test.get("status") for test in results if isinstance(test, Mapping)}
    if not isinstance(results, Mapping) or not results:
        return None
    return {str(name): str(status) for name, status in results.items()}


def result_beside(folder: Path) -> TrialResult | None:
    """The result in the files of a run's folder; ``None`` without any.

    A file that cannot be read as a result states nothing.
    """
    results = [result for name in _FILES if (result := _in_file(folder, name)) is not None]
    if not results:
        return None
    merged = {file: reward for result in results for file, reward in result.rewards.items()}
    parts = {
        name: next(filter(None, (getattr(result, name) for result in results)), None)
        for name in ("task_id", "task", "ended", "tests")
    }
    return replace(results[0], rewards=merged, **parts)


def _in_file(folder: Path, name: str) -> TrialResult | None:
    limits = FileLimits.from_environment()
    try:
        with open_bounded(folder / name, limits) as stream:
            text = read_whole(stream, limits).decode("utf-8").strip()
        if name.endswith(".txt"):
            return TrialResult(rewards={name: _reward(float(text))})
        value = from_json(text)
    except (OSError, ValueError):
        return None
    if not isinstance(value, Mapping):
        return None
    if name.endswith("ctrf.json"):
        tests = _tests((value.get("results") or {}).get("tests"))
        return TrialResult(rewards={}, tests=tests) if tests else None
    return result_of({"rewards": value} if name.endswith("reward.json") else value, name)


def _reward(value: object) -> float | None:
    if isinstance(value, bool | int | float) and math.isfinite(value):
        return float(value)
    return None


def with_result(
    imported: ImportedTrace, result: TrialResult | None, context: ImportContext, name: str = ""
) -> ImportedTrace:
    """The run with its outcome and task; runs of one task share the problem, whose text is the first one's.

    Where places disagree, which ``context.doubts`` notes with the run's ``name``, the outcome is unknown.
    """
    problem, trace = imported.problem, imported.trace
    if result is None or trace is None or problem is None:
        return imported
    rewards = trace.meta.get(REWARDS_KEY) or {}
    result = replace(result, rewards={**rewards, **result.rewards})
    fields: dict[str, Any] = {"meta": {**trace.meta, REWARDS_KEY: dict(result.rewards)}}
    if result.tests:
        fields["meta"][TESTS_KEY] = dict(result.tests)
    if len({*result.rewards.values()}) > 1:
        statements = ", ".join(
            f"{file} has {'none' if reward is None else f'{reward:g}'}"
            for file, reward in result.rewards.items()
        )
        why = f" ({result.ended})" if result.ended else ""
        context.doubts.append(f"{name or trace.id}: {statements}{why}; the outcome is unknown")
    if result.rewards:
        fields["outcome"] = result.outcome
    if result.ended and not trace.error:
        fields["error"] = result.ended
    if result.task_id or result.task:
        text = result.task or problem.text
        named = Problem(id=result.task_id or "", text=text, source=problem.source, answer=problem.answer)
        problem = context.problems.get(named.id)
        if problem is None or problem.text == NO_TASK:
            problem = context.problems[named.id] = named
        fields["problem_id"] = problem.id
    return ImportedTrace(problem=problem, trace=trusted_copy(trace, fields), labels=imported.labels)


def with_result_beside(
    items: Iterable[ImportedTrace], result: TrialResult | None, context: ImportContext, name: str
) -> Iterator[ImportedTrace]:
    """The runs of a file; the result next to it belongs to its one run, and not to subagents of that run."""
    held: list[ImportedTrace] = []
    for imported in items:
        note = (imported.trace.meta.get(IMPORT_KEY) or {}) if imported.trace is not None else {}
        is_run = imported.trace is not None and "subagent" not in note
        if is_run and held and result is not None:
            context.doubts.append(f"{name}: several runs in one file share a reward, which is not used")
            result = None
            yield from held
        if result is not None and (is_run or held):
            held.append(imported)
        else:
            yield imported
    if result is not None and held:
        yield with_result(held[0], result, context, name)
        yield from held[1:]


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
