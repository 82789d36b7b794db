"""Every recipe of ``recipes/run.py`` runs on stand-ins, and says what it would cost at full size."""

from __future__ import annotations

import re
import shlex
import subprocess
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
            assert (
                makes.suffix or makes.name == "nothing"
            )  # a file: a folder is there before its command ends
            made.append(makes)
        assert all(isinstance(values[name], int) for name in command.product)
        lists = [of if isinstance(of, list) else values[of] for of in command.each.values()]
        assert all(isinstance(of, list) for of in lists)
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
            assert makes.is_file() or makes.name == "nothing", shlex.join(words)
    recipes.main([name, "--out", str(tmp_path), "--tiny"])
    assert first.count("\n$ ") > capfd.readouterr().out.count("\n$ ")  # what is there is not made again


KILLED = """
import os, sys
import surefoot.cli.reports as reports
setattr(getattr(reports, sys.argv[1]), "write", lambda *_, **__: os._exit(9))
sys.path.append("recipes")
import run
run.main(sys.argv[2:])
"""
"""A recipe that is killed where a class would write its file."""


@pytest.mark.slow
@pytest.mark.parametrize("at", ["ReportCommand", "Report"])  # before its first file, between the two
def test_a_killed_evaluation_is_run_again(at: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["processbench", "--out", str(tmp_path), "--tiny"]
    killing = [sys.executable, "-c", KILLED, at, *words]
    killed = subprocess.run(killing, cwd=ROOT, timeout=300, check=False)
    assert killed.returncode == 9
    assert (tmp_path / "processbench" / "processbench.json").exists() == (at == "Report")
    capfd.readouterr()
    recipes.main(words)
    assert "\n$ surefoot evaluate" in capfd.readouterr().out
    assert (tmp_path / "processbench" / "processbench.html").is_file()
    recipes.main(words)
    assert "$ " not in capfd.readouterr().out


def given(name: str, value: object) -> str:
    """``NAME=VALUE`` as a user writes it."""
    return f"{name}={','.join(value) if isinstance(value, list) else value}"


@pytest.mark.parametrize("name", NAMES)
def test_given_values_have_the_type_of_the_recipes_own(name: str) -> None:
    recipe = recipes.Recipe.read(name)
    for own in (recipe.values, recipe.tiny):
        for key, value in own.items():
            default = recipe.values.get(key, "")
            read = recipes.of_type(default, key, given(key, value).partition("=")[2])
            assert (type(read), read) == (type(default), value)


@pytest.mark.slow
def test_an_overridden_value_counts_in_the_cost(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    recipes.main(["math-shepherd-ppo", "--out", str(tmp_path), "--dry-run", "updates=10"])
    assert "10 updates × 128 problems × 4 samples × 512 tokens = 2,621,440" in capfd.readouterr().out


def test_a_given_list_is_split_at_commas() -> None:
    recipe = recipes.Recipe.read("smollm2")
    [training] = [command for command in recipe.commands if command.run.startswith("surefoot rl ")]
    for text, seeds in {"12": {"12"}, "1,2, 30": {"1", "2", "30"}}.items():
        values = {**recipe.values, "seeds": recipes.of_type(recipe.values["seeds"], "seeds", text)}
        written = training.written({**values, "out": "OUT", "recipe": "HERE"})
        assert {words[words.index("--seed") + 1] for words, _ in written} == seeds


@pytest.mark.parametrize("item", ["updates=ten", "updates=1.5", "validation=", "updates="])
def test_a_value_of_another_type_is_refused(
    item: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        recipes.main(["math-shepherd-ppo", "--out", str(tmp_path), "--dry-run", item])
    assert end.value.code == 2
    assert f"{item}: give a number such as " in capfd.readouterr().err


def test_an_empty_item_of_a_list_is_refused() -> None:
    with pytest.raises(ValueError, match=r"seeds=1,,2: give values separated by commas, such as 1,2,3"):
        recipes.of_type(["1", "2", "3"], "seeds", "1,,2")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_says_its_cost(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    recipes.main([name, "--out", str(tmp_path), "--dry-run"])
    assert re.search(r"about [\d,]+ tokens read|× \d[\d,]* tokens = [\d,]+", "".join(capfd.readouterr()))
