"""Every recipe of ``recipes/run.py`` runs on stand-ins, and says what it would cost at full size."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "recipes"))
import run as recipes  # noqa: E402

NAMES = recipes.names()


def test_there_are_recipes() -> None:
    assert len(NAMES) > 0


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_says_what_it_expects_and_what_was_not_run(name: str) -> None:
    page = (ROOT / "recipes" / name / "README.md").read_text(encoding="utf-8")
    assert f"python recipes/run.py {name} " in page
    assert re.search(r"^#+ .*not (?:been )?run|\bnot run\b", page, re.M | re.I)


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_is_a_list_of_ordinary_commands(name: str) -> None:
    recipe = recipes.Recipe.read(name)
    values = {**recipe.values, **dict.fromkeys(recipe.needs, "FILE"), "out": "OUT", "recipe": "HERE"}
    made = []
    for command in recipe.commands:
        for words, makes in command.written(values):
            assert words[0] in ("surefoot", "python", "accelerate")
            made.append(makes)
    assert len(made) == len(set(made))
    assert recipe.tiny.keys() <= recipe.values.keys() | recipe.needs.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_runs_on_stand_ins(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    recipes.main([name, "--out", str(tmp_path), "--tiny"])
    first = capfd.readouterr().out
    recipe = recipes.Recipe.read(name)
    values = {**recipe.values, **recipe.tiny, "out": tmp_path, "recipe": "HERE"}
    for command in recipe.commands:
        for words, makes in command.written({**dict.fromkeys(recipe.needs, "FILE"), **values}):
            assert makes.exists() or makes.name == "nothing", shlex.join(words)
    recipes.main([name, "--out", str(tmp_path), "--tiny"])
    assert first.count("\n$ ") > capfd.readouterr().out.count("\n$ ")  # what is there is not made again


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_says_its_cost(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    recipes.main([name, "--out", str(tmp_path), "--dry-run"])
    assert re.search(r"about [\d,]+ tokens read|× \d[\d,]* tokens = [\d,]+", "".join(capfd.readouterr()))
