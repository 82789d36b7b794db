"""The reward and the task of a run, as harnesses write them around its messages or into files next to them.

Harbor writes ``result.json``, ``verifier/reward.txt`` or ``reward.json``; Terminal-Bench ``results.json``;
wrappers of ATIF ``reward`` and ``task_name``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pydantic_core import from_json

from surefoot.formats.imports import IMPORT_KEY, NO_TASK, ImportContext, ImportedTrace
from surefoot.io.limits import FileLimits, open_bounded, read_whole
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
