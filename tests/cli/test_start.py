"""How much is imported before a command starts to work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from surefoot.cli import COMMANDS, GROUPS, load_settings
from surefoot.cli.settings import options_of

SLOW = {"torch", "transformers", "rich", "sqlalchemy", "fastapi", "pyarrow"}


def imported(*words: str) -> set[str]:
    """Top-level modules that a command line imports."""
    program = (
        "import sys; from surefoot.cli import main\n"
        "try: main()\n"
        "except SystemExit: print(*{name.split('.')[0] for name in sys.modules}, file=sys.stderr)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=60, check=False
    )
    return set(ended.stderr.splitlines()[-1].split())


@pytest.mark.parametrize("words", [("--version",), ("--help",), ("label", "--help"), ("lable",)])
def test_groups_need_no_settings(words):
    assert imported(*words).isdisjoint({"pydantic", *SLOW})


def test_settings_of_commands_import_nothing_slow():
    program = (
        "import sys; from surefoot.cli import COMMANDS, load_settings\n"
        "for path in COMMANDS: load_settings(path)\n"
        "print(*{name.split('.')[0] for name in sys.modules})"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert set(ended.stdout.split()).isdisjoint(SLOW)


@pytest.mark.parametrize(
    "words",
    [
        ("score", "-m", "nowhere", "--problem", "p", "--solution", "s"),
        ("score", "nowhere.jsonl", "--problems", "nowhere.jsonl", "-m", "nowhere"),
        ("sample", "nowhere.jsonl"),
        ("search", "beam", "nowhere.jsonl", "--prm", "nowhere"),
        ("train", "orm", "nowhere.jsonl", "--problems", "nowhere.jsonl", "--out", "nowhere"),
    ],
)
def test_what_does_not_exist_is_reported_before_torch_is_imported(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "torch" not in imported(*words)
    assert not list(Path().iterdir())


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_help_shows_few_options_and_every_required_one(command):
    options = [option for option in options_of(load_settings(command)) if option.names]
    common = [option for option in options if option.common]
    assert len(common) <= 14
    if len(options) > 14:
        assert len(common) >= 2


def test_every_group_has_commands():
    assert all(any(path.startswith(f"{group} ") for path in COMMANDS) for group in GROUPS)
