"""Every program in examples/ runs as a user would run it, in an empty directory."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from surefoot import Problem

ROOT = Path(__file__).parents[1]
EXAMPLES = {path.name: path for path in sorted((ROOT / "examples").glob("*.py"))}

SLOW: frozenset[str] = frozenset(
    {"score_solution.py", "generative_verifier.py", "reinforce.py", "search.py", "label_with_monte_carlo.py"}
)
"""Names of the examples that take more than a few seconds."""

NEEDS = {"z3_verifier.py": "z3"}
"""Modules of other packages that an example imports; without them it is skipped."""

OPTIONS = {"generative_verifier.py": ["--traces", "30", "--epochs", "1", "--test", "6"]}
"""Sizes for those that would take longer without."""

RUN = r"""
import runpy, sys, warnings
warnings.filterwarnings("error", module=r"surefoot(\.|$)")
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""A warning that surefoot causes is an error; those of other packages are their own affair."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in EXAMPLES]
)
def test_example_runs(name: str, tmp_path: Path) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(EXAMPLES[name]), *OPTIONS.get(name, [])],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "MPLBACKEND": "Agg"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip(), "an example prints what it found"


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
    assert set(EXAMPLES) >= SLOW | set(OPTIONS) | set(NEEDS)
