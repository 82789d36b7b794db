"""Commands made of settings: options, files, assignments, precedence, refusals and the manifest."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

import click
import pytest
from click.testing import CliRunner
from pydantic import BaseModel, ConfigDict, Field, model_validator

from surefoot.cli.parser import SettingsCommand
from surefoot.cli.settings import Command, Flag, OptionGroup, options_of
from surefoot.errors import RunError


class Adapter(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    rank: int = Field(default=8, ge=1, description="Rank.")
    targets: tuple[str, ...] = ()


class Training(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    epochs: int = Field(default=3, ge=1, description="Passes over the data.")
    rate: float = Field(default=0.5, gt=0, le=1, description="How fast.")
    adapter: Adapter | None = None
    freeze: bool = False
    hidden: int = 7

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.adapter and self.freeze:
            raise ValueError("'adapter_rank' and 'freeze' exclude each other")
        return self


@dataclass(frozen=True, kw_only=True)
class Method:
    """A search."""

    width: Annotated[int, Field(ge=1)] = 4
    """Prefixes that"""
    name: str = "beam"


class Say(Command):
    """Say it.

    Example: `say x`
    """

    seen: ClassVar[list[Say]] = []

    word: Annotated[str, Flag(argument=True)] = Field(description="What to say.")
    out: Annotated[Path, Flag(short="-o", transient=True)] = Field(description="Where.")
    tone: Literal["calm", "shrill"] = Field(default="calm", description="How.")
    names: tuple[str, ...] = Field(default=(), description="To whom.")
    loud: bool = True
    limit: int | None = Field(default=None, ge=1, description="How often.")
    training: Annotated[
        Training,
        OptionGroup(title="Fit", names={"rate": "--learning-rate"}, omit=("hidden",), transient=("freeze",)),
    ] = Training(epochs=5)
    method: Annotated[Method, OptionGroup(omit=("name",))] = Method(width=9)

    def run(self) -> None:
        self.seen.append(self)


@pytest.fixture
def say(monkeypatch):
    app = click.Group(commands=[SettingsCommand("say", Say)])

    def call(*words: object) -> Say:
        result = CliRunner().invoke(app, ["say", *map(str, words)], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return Say.seen.pop()

    call.app = app
    return call


def test_defaults_are_those_of_the_classes_and_of_the_nested_instances(say):
    assert say("x", "-o", "here") == Say(word="x", out=Path("here"))
    assert say("x", "-o", "here").training == Training(epochs=5)


def test_options_of_every_kind(say):
    said = say(
        *("x", "--out", "o", "--tone", "shrill", "--names", "a", "--names", "b", "--no-loud", "--limit", "2"),
        *("--learning-rate", "0.25", "--adapter-rank", "4", "--adapter-targets", "q", "--width", "1"),
    )
    training = Training(epochs=5, rate=0.25, adapter=Adapter(rank=4, targets=("q",)))
    assert said.training == training
    assert (said.tone, said.names, said.loud, said.limit) == ("shrill", ("a", "b"), False, 2)
    assert said.method == Method(width=1)


@pytest.mark.parametrize("ending", ["toml", "json"])
def test_options_win_over_assignments_over_the_file_over_defaults(say, tmp_path, ending):
    table = {"tone": "shrill", "limit": 1, "training": {"epochs": 1, "rate": 0.1, "hidden": 2}, "width": 3}
    file = tmp_path / f"settings.{ending}"
    toml = 'tone = "shrill"\nlimit = 1\nwidth = 3\n[training]\nepochs = 1\nrate = 0.1\nhidden = 2\n'
    file.write_text(toml if ending == "toml" else json.dumps(table))
    assigned = (
        "--set",
        "training.epochs=2",
        "--set",
        "rate=0.2",
        "--set",
        "limit=2",
        "--set",
        "adapter.rank=3",
    )
    said = say("x", "--config", file, *assigned, "-o", "o", "--limit", 3)
    assert said.training == Training(epochs=2, rate=0.2, hidden=2, adapter=Adapter(rank=3))
    assert (said.tone, said.limit, said.method.width) == ("shrill", 3, 3)


def test_a_file_can_give_what_is_required(say, tmp_path):
    (tmp_path / "s.json").write_text('{"word": "x", "out": "o"}')
    assert say("--config", tmp_path / "s.json") == Say(word="x", out=Path("o"))


def test_what_is_missing_or_unknown_is_status_2(say):
    for words, name in (
        (["x"], "--out"),
        (["-o", "o"], "WORD"),
        (["x", "-o", "o", "--nothing"], "--nothing"),
    ):
        result = CliRunner().invoke(say.app, ["say", *words], env={"COLUMNS": "200", "TERM": "dumb"})
        assert result.exit_code == 2
        assert name in result.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tone", "odd"], "--tone is 'odd'; choose calm or shrill"),
        (["--epochs", "0"], "--epochs: Input should be greater than or equal to 1"),
        (["--learning-rate", "x"], "--learning-rate: Input should be a valid number"),
        (["--adapter-rank", "1", "--freeze"], "--adapter-rank and --freeze exclude each other"),
        (["--width", "0"], "--width"),
        (["--set", "training.hidden=x"], "training.hidden: "),
        (["--set", "training.nothing=1"], "'nothing'; choose from epochs"),
        (["--set", "nothing=1"], "'nothing'; choose from word"),
        (["--set", "nothing"], "NAME=VALUE"),
        (["--set", "tone.x=1", "--set", "tone.x.y=1"], "is not a table"),
        (["--config", "nowhere.toml"], "nowhere.toml"),
    ],
)
def test_a_refusal_names_the_option(say, words, message):
    with pytest.raises(RunError) as refusal:
        say("x", "-o", "o", *words)
    assert message in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("deep.json", "[" * 100_000),
        ("deep.toml", "a = " + "[" * 100_000),
        ("long.json", "9" * 5_000),
        ("long.toml", "a = " + "9" * 5_000),
        ("list.json", "[]"),
        ("half.json", '"\\ud800"'),
        ("bytes.toml", "\udcff"),
    ],
)
def test_a_broken_file_of_settings_is_named(say, name, text, tmp_path):
    (tmp_path / name).write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(RunError, match=name):
        say("x", "-o", "o", "--config", tmp_path / name)


def test_a_value_that_is_too_deep_for_json_is_a_text(say):
    deep = "[" * 100_000
    assert say("-o", "o", "--set", f"word={deep}").word == deep


def test_the_manifest_holds_what_a_result_depends_on(say):
    resolved = say("x", "-o", "o", "--adapter-rank", "4").resolved()
    assert resolved == {
        "word": "x",
        "tone": "calm",
        "names": [],
        "loud": True,
        "limit": None,
        "training": {"epochs": 5, "rate": 0.5, "adapter": {"rank": 4, "targets": []}, "hidden": 7},
        "method": {"width": 9, "name": "beam"},
    }


def test_help_shows_panels_defaults_and_bounds(say):
    output = CliRunner().invoke(say.app, ["say", "--help"]).output
    shown = " ".join(re.sub("[│─╭╮╰╯]", " ", output).split())
    for text in (
        "Say it.",
        "Fit",
        "Method",
        "default: 5",
        "calm|shrill",
        "Prefixes that",
        "required",
    ):
        assert text in shown
    assert "--hidden" not in shown
    assert "--rate" not in shown


def test_two_options_of_one_name_are_refused():
    class Twice(Say):
        epochs: int = 1

    with pytest.raises(ValueError, match="--epochs"):
        SettingsCommand("twice", Twice)


def test_every_setting_has_a_place():
    paths = [".".join(option.path) for option in options_of(Say)]
    assert paths[-4:] == ["training.freeze", "training.hidden", "method.width", "method.name"]
