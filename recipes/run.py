"""Runs a recipe: a list of ordinary commands, printed one by one.

    python recipes/run.py NAME --out DIR [NAME=VALUE …]
    python recipes/run.py NAME --out DIR --dry-run     # what full size costs, on stand-ins of its size
    python recipes/run.py NAME --out DIR --tiny        # real code on tiny random weights, in seconds

``recipes/NAME/recipe.toml`` has the commands and the values that stand in them as ``$name``. A command whose
last file is there is not run again, and surefoot's own commands go on where they were stopped; those with
``--force`` write several files, and replace what a killed one left.
"""

from __future__ import annotations

import argparse
import os
import runpy
import shlex
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from math import prod
from pathlib import Path
from string import Template
from typing import Any

RECIPES = Path(__file__).parent
sys.path[:0] = [str(RECIPES), str(RECIPES.parent)]


@dataclass(frozen=True, kw_only=True)
class Command:
    """One command of a recipe."""

    run: str
    """``surefoot …``, ``python …`` or ``accelerate launch …``."""
    makes: str
    """The file that it writes at its end; a folder is there from its beginning."""
    dry: str = ""
    """Options with which it foretells its cost, such as ``--dry-run``; empty if it cannot."""
    times: str = "1"
    """How often the cost that it foretells from one stand-in trace a problem occurs."""
    product: tuple[str, ...] = ()
    """Values whose product is the cost of a command that cannot foretell it."""
    each: Mapping[str, str | list[str]] = field(default_factory=dict)
    """It is run for each combination of these values; a text is the name of a value that lists them."""

    def written(self, values: Mapping[str, Any]) -> Iterator[tuple[list[str], Path]]:
        """Words and result of one command for each combination."""
        choices = [values[given] if isinstance(given, str) else given for given in self.each.values()]
        for chosen in product(*choices):
            every = {**values, **dict(zip(self.each, chosen, strict=True))}
            run, makes = (Template(text).substitute(every) for text in (self.run, self.makes))
            yield shlex.split(run), Path(values["out"]) / makes


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """``recipe.toml`` of a folder."""

    name: str
    commands: tuple[Command, ...]
    values: Mapping[str, Any]
    tiny: Mapping[str, Any]
    """What replaces ``values`` at tiny size; ``stand-in:NAME`` is made by ``stand_ins.py``."""
    needs: Mapping[str, str] = field(default_factory=dict)
    """What the user has to give, and where it comes from."""
    dry: Mapping[str, Any] = field(default_factory=dict)
    """Files of stand-ins for ``--dry-run``: the size of the problems and traces at full size."""

    @classmethod
    def read(cls, name: str) -> Recipe:
        """The recipe of that folder."""
        stated = tomllib.loads((RECIPES / name / "recipe.toml").read_text(encoding="utf-8"))
        commands = tuple(Command(**command) for command in stated.pop("command"))
        return cls(name=name, commands=commands, **stated)


def names() -> list[str]:
    """The recipes that this program runs."""
    return sorted(path.parent.name for path in RECIPES.glob("*/recipe.toml"))


def main(words: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("recipe", choices=names())
    parser.add_argument("given", nargs="*", metavar="NAME=VALUE", help="values of the recipe, or its inputs")
    parser.add_argument("--out", type=Path, required=True)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--tiny", action="store_true", help="tiny random weights and a few problems")
    size.add_argument("--dry-run", action="store_true", help="print the commands and what they would cost")
    options = parser.parse_intermixed_args(words)
    recipe, out = Recipe.read(options.recipe), options.out
    out.mkdir(parents=True, exist_ok=True)
    given = dict(item.split("=", 1) for item in options.given)
    if unknown := sorted(given.keys() - recipe.values.keys() - recipe.needs.keys()):
        parser.error(f"{recipe.name} has no value {unknown[0]!r}; it has {', '.join(sorted(recipe.values))}")
    try:
        typed = {name: of_type(recipe.values.get(name, ""), name, text) for name, text in given.items()}
    except ValueError as error:
        parser.error(str(error))
    values = {**recipe.values, **(recipe.tiny if options.tiny else {}), **typed}
    values |= {"out": out, "recipe": RECIPES / recipe.name}
    if options.dry_run:
        foretell(recipe, {**dict.fromkeys(recipe.needs, "FILE"), **values}, out)
        return
    from stand_ins import stand_in

    for name, where in recipe.needs.items():
        if name not in values:
            parser.error(f"{recipe.name} needs {name}=PATH: {where}")
    values = {name: stand_in(value, out / "stand-ins") for name, value in values.items()}
    for command in recipe.commands:
        for words, makes in command.written(values):
            if not makes.is_file():
                run(words, here=options.tiny)


def of_type(default: Any, name: str, text: str) -> Any:
    """A value that the user gave, of the type of the recipe's own; commas separate the items of a list.

    Raises ``ValueError`` for a number that cannot be read, and for an empty item.
    """
    if isinstance(default, list):
        items = [item.strip() for item in text.split(",")]
        if not all(items):
            raise ValueError(f"{name}={text}: give values separated by commas, such as {','.join(default)}")
        return items
    try:
        return type(default)(text)
    except ValueError:
        raise ValueError(f"{name}={text}: give a number such as {default}") from None


def foretell(recipe: Recipe, values: Mapping[str, Any], out: Path) -> None:
    """Print the commands, and the cost of each that can foretell it, of stand-ins of full size."""
    from stand_ins import write_sizes

    sizes = write_sizes(recipe.dry, out / "sizes") if recipe.dry else out
    for command in recipe.commands:
        for words, _ in command.written(values):
            print(f"\n$ {shlex.join(words)}", flush=True)
        if command.product:
            factors = " × ".join(f"{values[name]:,} {name}" for name in command.product)
            print(f"  {factors} = {prod(values[name] for name in command.product):,}")
        if command.dry:
            [(words, _)] = command.written({**values, "out": sizes})
            require(run_here([*words, *shlex.split(command.dry)]))
            if (times := Template(command.times).substitute(values)) != "1":
                print(f"  {times} times that: the stand-in has one trace a problem", flush=True)


def run(words: list[str], *, here: bool) -> None:
    """Print a command and run it; ``here`` runs it in this process, which saves the imports."""
    print(f"\n$ {shlex.join(words)}", flush=True)
    begin, before = time.monotonic(), os.times()
    require(run_here(words) if here else run_apart(words))
    seconds = sum(os.times()[:4]) - sum(before[:4])
    print(f"  {time.monotonic() - begin:.0f} s, {seconds:.0f} s of CPU", flush=True)


def require(status: int) -> None:
    """End the program with the status of a command that failed."""
    if status:
        sys.exit(status)


def run_apart(words: list[str]) -> int:
    """In a process of its own, which can import what the clone has."""
    program = {
        "surefoot": ["-m", "surefoot"],
        "python": [],
        "accelerate": ["-m", "accelerate.commands.accelerate_cli"],
    }
    places = [str(RECIPES.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(places)}
    whole = [sys.executable, *program[words[0]], *words[1:]]
    return subprocess.run(whole, check=False, env=environment).returncode  # noqa: S603 - a list, no shell


def run_here(words: list[str]) -> int:
    """In this process."""
    saved, sys.argv = sys.argv, words if words[0] == "surefoot" else words[1:]
    try:
        if words[0] == "surefoot":
            from surefoot.cli import main as surefoot

            surefoot()
        else:
            runpy.run_path(words[1], run_name="__main__")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.argv = saved
    return 0


if __name__ == "__main__":
    main()
