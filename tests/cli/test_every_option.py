"""Every option of every command: its words reach its setting, and code reads that setting by its name.

Functions get settings as arguments that are written out (``draws=command.draws``), so mypy refuses a renamed
parameter, and this test a setting that nothing reads any more.
"""

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

import surefoot
from surefoot.cli import load_command, load_settings
from surefoot.cli.commands import COMMANDS
from surefoot.cli.parser import SettingsCommand
from surefoot.cli.settings import Command, Option, options_of

SOURCE = Path(surefoot.__file__).parent
COMMANDS_FOLDER = SOURCE / "cli"
READ_FROM_TABLES = {("columns",), ("rl", "guards"), ("monitor",)}
"""Settings whose names are made from a table of contents, alarms or shares; their own tests set each."""


@cache
def reads() -> dict[str, set[Path]]:
    """The files that read an attribute of each name, or take it from an object with ``vars``."""
    found = defaultdict[str, set[Path]](set)
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                found[node.attr].add(path)
    return found


def other_value(option: Option) -> str | None:
    """A word for ``option`` that is not its default; ``None`` for a switch."""
    if option.kind is bool:
        return None
    if option.choices:
        return next(choice for choice in option.choices if choice != option.default)
    if option.kind in (int, float):
        return str((option.default if isinstance(option.default, int | float) else 0) + 1)
    return "other"


def leaf(command: SettingsCommand) -> SettingsCommand:
    return getattr(command, "runnable", None) or command


@pytest.mark.parametrize("path", COMMANDS)
def test_the_words_of_each_option_reach_its_setting(path: str) -> None:
    command = leaf(load_command(path))
    for number, option in enumerate(command.options):
        value = other_value(option)
        if option.flag.argument:
            words = [value or ""]
        elif value is None:
            words = [option.negative if option.default else option.name]
        else:
            words = [option.name, value]
        parsed, _, _ = command.make_parser(command.make_context(path, [], resilient_parsing=True)).parse_args(
            ["--", *words] if option.flag.argument else words
        )
        got = parsed.get(f"value_{number}")
        if option.flag.argument:  # the first argument takes the word
            assert any(
                value in (entry if isinstance(entry, tuple | list) else [entry]) for entry in parsed.values()
            ), option.name
        elif value is None:
            assert got is not bool(option.default), option.name
        else:
            assert got == ([value] if option.repeated else value), option.name


@pytest.mark.parametrize("path", COMMANDS)
def test_code_reads_each_setting_by_its_name(path: str) -> None:
    kind: type[Command] = load_settings(path)
    unread = []
    for option in options_of(kind):
        first, last = option.path[0], option.path[-1]
        if not any(COMMANDS_FOLDER in reader.parents for reader in reads()[first]):
            unread.append(first)
        elif not reads()[last] and option.path[:-1] not in READ_FROM_TABLES:
            unread.append(".".join(option.path))
    assert unread == []
