"""A file that is missing, or a folder in its place, is a sentence with its path, whatever the command."""

import pytest
from command_line import run

from surefoot.cli import load_command
from surefoot.cli.commands import COMMANDS
from surefoot.cli.settings import REQUIRED

NO_INPUT = {"quickstart", "serve", "doctor"}
"""Commands that take no file, or that start work without one."""


def words_of(name, path):
    """Words of a command in which every required input is ``path``, and so is the first of its arguments."""
    words, written = [], path.parent / "out"
    command = load_command(name)
    for option in getattr(command, "runnable", command).options:
        if option.flag.argument:
            words.append(path)
        elif option.default is REQUIRED:
            words += [option.name, written if option.path[-1] == "out" else path]
    return [*name.split(), *words]


@pytest.mark.parametrize("kind", ["missing", "folder", "config"])
@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in NO_INPUT])
def test_a_file_that_cannot_be_read_is_named_in_a_sentence(name, kind, tmp_path):
    path = tmp_path / "given.jsonl"
    if kind == "folder":
        path.mkdir()
    words = words_of(name, path) if kind != "config" else [*name.split(), "--config", path]
    ended = run(*words)
    if ended.status:
        assert "Errno" not in ended.err
        assert "Traceback" not in ended.err
        assert ended.err.strip()
    if kind == "config":
        assert str(path) in ended.err
