"""How much is imported before a command starts to work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.worlds.digits import PRM
from surefoot.cli import COMMANDS, GROUPS, load_settings
from surefoot.cli.settings import options_of

SLOW = {"torch", "transformers", "rich", "sqlalchemy", "starlette", "pyarrow", "aiohttp", "jinja2"}


def imported(*lines: tuple[str, ...]) -> list[set[str]]:
    """Top-level modules that are imported after each of the command lines, run one after the other."""
    program = f"""
import sys
for line in {lines!r}:
    sys.argv = ["surefoot", *line]
    try:
        from surefoot.cli import main
        main()
    except SystemExit:
        print(*{{name.split('.')[0] for name in sys.modules}}, file=sys.stderr)
        print("end of a command", file=sys.stderr)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    parts = ended.stderr.split("end of a command\n")[:-1]
    assert len(parts) == len(lines)
    return [set(part.splitlines()[-1].split()) for part in parts]


def test_groups_need_no_settings():
    for modules in imported(("--version",), ("--help",), ("train", "--help"), ("lable",)):
        assert modules.isdisjoint({"pydantic", *SLOW})


def test_settings_of_commands_import_nothing_slow():
    program = (
        "import sys; from surefoot.cli import COMMANDS, load_settings\n"
        "for path in COMMANDS: load_settings(path)\n"
        "print(*{name.split('.')[0] for name in sys.modules})"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert set(ended.stdout.split()).isdisjoint(SLOW)


def test_what_does_not_exist_is_reported_before_torch_is_imported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for modules in imported(
        ("score", "-m", "nowhere", "--problem", "p", "--solution", "s"),
        ("score", "nowhere.jsonl", "--problems", "nowhere.jsonl", "-m", "nowhere"),
        ("sample", "nowhere.jsonl", "--policy=lab"),
        ("search", "beam", "nowhere.jsonl", "--policy=lab", "--prm", "nowhere"),
        ("rl", "nowhere.jsonl", "--policy=lab", "--out", "nowhere"),
        ("train", "orm", "nowhere.jsonl", "--problems", "nowhere.jsonl", "--base=lab", "--out=nowhere"),
    ):
        assert "torch" not in modules
    assert not list(Path().iterdir())


@pytest.mark.slow
def test_a_score_imports_a_model_of_transformers_and_nothing_slow_beside():
    """The import of ``LlamaModel`` takes nine tenths of the time of a first score."""
    program = f"""
import sys
from transformers import LlamaModel
before = set(sys.modules)
sys.argv = ["surefoot", "score", "--prm", "{PRM}", "--problem", "Start with 7.", "--solution", "7 = 0"]
from surefoot.cli import main
try:
    main()
finally:
    packages = {{name.split(".")[0] for name in set(sys.modules) - before}}
    print(*packages - sys.stdlib_module_names, file=sys.stderr)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    light = {"annotated_types", "click", "lazy_loader", "pydantic", "pydantic_core", "surefoot"}
    with_tokenizers = {"tokenizers", "transformers", "typing_inspection"}
    assert set(ended.stderr.splitlines()[-1].split()) <= light | with_tokenizers


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_help_shows_few_options_and_every_required_one(command):
    options = [option for option in options_of(load_settings(command)) if option.names]
    common = [option for option in options if option.common]
    assert len(common) <= 14
    if len(options) > 14:
        assert len(common) >= 2


def test_every_group_has_commands():
    assert all(any(path.startswith(f"{group} ") for path in COMMANDS) for group in GROUPS)
