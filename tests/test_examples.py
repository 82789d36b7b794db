"""Every program in examples/ runs as a user would run it, in an empty directory."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from surefoot import Problem

ROOT = Path(__file__).parents[1]
EXAMPLES = {path.name: path for path in sorted((ROOT / "examples").glob("*.py"))}

SLOW: frozenset[str] = frozenset(
    {
        "score_solution.py",
        "reinforce.py",
        "compare_searches.py",
        "label_with_monte_carlo.py",
    }
)
"""Names of the examples that take more than a few seconds."""

NEEDS = {"z3_verifier.py": "z3"}
"""Modules of other packages that an example imports; without them it is skipped."""

RUN = r"""
import json, os, runpy, sys, warnings
warnings.filterwarnings("error", module=r"surefoot(\.|$)")
import surefoot.rl.loop, surefoot.search
for line in sys.stdin:
    folder, *sys.argv = json.loads(line)
    child = os.fork()
    if not child:
        os.chdir(folder)
        for fd, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"../{name}", os.O_WRONLY | os.O_CREAT), fd)
        runpy.run_path(sys.argv[0], run_name="__main__")
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""A process that imports torch once, and a fork of it for each example.

A warning that surefoot causes is an error; those of other packages are their own affair."""


def test_no_two_scripts_share_a_name():
    """Tests import scripts of all folders in one process, where a second module of a name is the first."""
    folders = ["examples", "tools", "tests/support"]
    names = Counter(path.name for folder in folders for path in (ROOT / folder).glob("*.py"))
    assert len(names) > 50
    assert {name for name, times in names.items() if times > 1} == set()


@pytest.fixture(scope="module")
def process() -> Iterator[subprocess.Popen[str]]:
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "MPLBACKEND": "Agg"}
    command = [sys.executable, "-c", RUN]
    with subprocess.Popen(
        command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        yield process


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in EXAMPLES]
)
def test_example_runs(name: str, process: subprocess.Popen[str], tmp_path: Path) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    folder = tmp_path / "empty"
    folder.mkdir()
    job = [str(folder), str(EXAMPLES[name])]
    process.stdin.write(json.dumps(job) + "\n")
    process.stdin.flush()
    status = process.stdout.readline()
    assert status == "0\n", (tmp_path / "err").read_text()
    assert (tmp_path / "out").read_text().strip(), "an example prints what it found"


@pytest.mark.parametrize(
    ("step", "value"),
    [
        ("It is not true that `Ann and Bob`.", None),
        ("Ann says `Bob`.", None),
        ("The claim `Ann and Bob` is false.", None),
        ("We do not know whether `Bob`.", None),
        ("`Ann and Bob` cannot hold.", None),
        ("Could it be that `Bob`?", None),
        ("According to Bob, Bob is a knight.", None),
        ("Therefore we have `Ann and Bob`.", -1),
        ("So `Ann` and `not Bob`.", 1),
        ("`Ann and not Bob` holds.", 1),
        ("So Bob is a knight.", -1),
        ("Ann", 1),
    ],
)
def test_z3_checks_only_what_a_step_claims(step: str, value: int | None) -> None:
    pytest.importorskip("z3")
    example = runpy.run_path(str(EXAMPLES["z3_verifier.py"]))
    logic = {
        "names": {"Ann": "bool", "Bob": "bool"},
        "premises": ["Ann", "not Bob"],
        "kinds": {"knight": True},
    }
    puzzle = example["Puzzle"](Problem(text="Who is a knight?", meta={"logic": logic}))
    assert puzzle.verdict(step).value == value


def test_slow_examples_exist() -> None:
    assert set(EXAMPLES) >= SLOW | set(NEEDS)
