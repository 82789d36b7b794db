"""Slow tests of benchmarks run where benchmarks or their tests changed, or where their folder is named."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FOLDERS = ("benchmarks", "tests/benchmarks")


def git(*words: str) -> str:
    command = ["git", "-C", str(ROOT), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def benchmarks_changed() -> bool:
    """Whether they differ from the branch point, or on the main branch from the last commit.

    Where git cannot tell, as in an archive or a shallow clone, they count as changed.
    """
    try:
        head, base = git("rev-parse", "HEAD"), git("merge-base", "HEAD", "main")
        differing = git("diff", "--name-only", "HEAD~1" if base == head else base, "--", *FOLDERS)
        return bool(differing or git("ls-files", "--others", "--exclude-standard", "--", *FOLDERS))
    except (OSError, subprocess.SubprocessError):
        return True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    slow = [one for one in items if one.path.is_relative_to(HERE) and one.get_closest_marker("slow")]
    named = any("benchmark" in argument for argument in config.args)
    if slow and not named and not benchmarks_changed():
        for one in slow:
            one.add_marker(pytest.mark.skip(reason="benchmarks are unchanged"))
