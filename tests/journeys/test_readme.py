"""What README tells a newcomer to type, and the output that it shows."""

from __future__ import annotations

import contextlib
import io
import itertools
import re
from pathlib import Path

import pytest
from command_line import good

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
BLOCK = re.compile(r"^```(bash|python|text)\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = BLOCK.findall(README)


def shown_after(language: str, containing: str) -> tuple[str, list[str]]:
    """A block, and the lines of the output below it; a line of dots stands for lines that are left out."""
    for (kind, block), (below, output) in itertools.pairwise(BLOCKS):
        if kind == language and containing in block:
            assert below == "text"
            return block, [line for line in output.splitlines() if line.strip() not in ("", "…")]
    pytest.fail(f"README has no {language} block with {containing}")


def test_the_five_lines_print_what_stands_below_them():
    program, lines = shown_after("python", 'load_prm("lab")')
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(program, "README", "exec"), {"__name__": "__main__"})  # noqa: S102 - of the README
    assert out.getvalue().splitlines() == lines
    assert "Dev has Ines's 9 - 6 = 3.  ▽" in out.getvalue(), "the wrong step is found"


def test_the_shipped_prm_scores_from_the_command_line(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    question = "Hugo counts 90 coins. Hugo has 5 times as many as Ann. Ann has 7 fewer than Kai."
    question += " How many coins does Kai have?"
    solution = (
        "Hugo has 5 times as many as Ann. Ann has Hugo's 90 / 5 = 18.\n"
        "Ann has 7 fewer than Kai. Kai has Ann's 18 - 7 = 11.\nAnswer: 11.\n"
    )
    ended = good("score", "-m", "lab", "--problem", question, "--solution", solution)
    first, second = (float(line.split()[1]) for line in ended.out.splitlines()[1:3])
    assert first > 0.9
    assert second < 0.1


def test_the_command_without_a_model_prints_what_stands_below_it(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "80")
    block, lines = shown_after("bash", "inspect")
    printed = iter(good(*block.partition("#")[0].split()[1:]).out.splitlines())
    for line in lines:
        assert line in printed, f"not printed, or not in this order: {line}"


def test_a_solution_is_under_its_licence():
    licence = (ROOT / "examples" / "gsm8k.LICENSE").read_text("utf-8")
    assert "MIT License" in licence
    assert "Copyright (c) 2021 OpenAI" in licence


def test_the_picture_shows_the_first_solution():
    import json
    from html import unescape

    row = json.loads((ROOT / "examples" / "gsm8k.jsonl").read_text("utf-8").splitlines()[0])
    picture = unescape((ROOT / "docs" / "images" / "checked-solution.svg").read_text("utf-8"))
    assert all(f">{line}<" in picture for line in row["solution"].splitlines())
    assert "first error: does not hold: 25/75 x 100% = 25%" in picture
