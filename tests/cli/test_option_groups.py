"""Options in groups: what the command line sees, and what the command gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from surefoot.cli._groups import grouped


@dataclass(frozen=True, kw_only=True)
class Base:
    rate: Annotated[float, typer.Option("--rate", help="How fast.")] = 0.5
    word: Annotated[list[str] | None, typer.Option("--word")] = None


@dataclass(frozen=True, kw_only=True)
class More(Base):
    path: Annotated[str, typer.Option("--path", "-p")]
    rate: Annotated[float, typer.Option("--rate", help="Faster.")] = 2.0


@pytest.fixture
def seen() -> dict[str, object]:
    return {}


@pytest.fixture
def app(seen) -> typer.Typer:
    app = typer.Typer()

    @grouped
    def command(
        name: Annotated[str, typer.Argument()],
        options: More,
        loud: Annotated[bool, typer.Option("--loud/--soft")] = False,
    ) -> None:
        """Say it."""
        seen.update(name=name, options=options, loud=loud)

    app.command("say")(command)
    return app


def test_the_command_gets_the_group_made_of_what_was_given(app, seen):
    words = ["x", "-p", "here", "--word", "a", "--word", "b", "--loud"]
    assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0
    assert seen == {"name": "x", "options": More(path="here", rate=2.0, word=["a", "b"]), "loud": True}


def test_an_option_without_default_is_required(app):
    result = CliRunner().invoke(app, ["x"])
    assert result.exit_code == 2
    assert "--path" in result.output


def test_help_has_each_option_once_with_the_words_of_the_nearest_class(app):
    shown = CliRunner().invoke(app, ["--help"]).output
    assert shown.count("--rate") == 1
    assert "Faster." in shown
    assert "How fast." not in shown
    assert "Say it." in shown


def test_two_options_of_one_name_are_refused():
    def command(rate: Annotated[int, typer.Option("--rate")], options: Base) -> None:
        """Never called."""

    with pytest.raises(ValueError, match="duplicate parameter name: 'rate'"):
        grouped(command)
