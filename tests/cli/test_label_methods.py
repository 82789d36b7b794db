"""``surefoot label``: the methods in the help, and options that a method does not use."""

from __future__ import annotations

import ast
import inspect
from textwrap import dedent

import pytest
from command_line import good, refused, run

from surefoot.cli.label import models
from surefoot.cli.label.command import METHODS, Label
from surefoot.cli.settings import options_of
from surefoot.spec import parse_method

SETTINGS = {"verify": "rules=equations"}
NEEDED = {"problems": "p.jsonl", "policy": {"name": "m"}, "traces": "t.jsonl", "labels": ("v.jsonl",)}
SHARED = {"file", "method", "out", "dry_run"}
"""Fields that the command itself reads."""
READS = {
    "open_prover": {"policy", "prompt"},
    "open_policy": {"policy", "loading"},
    "say_rollouts": {"sampling"},
    "sampled": {"sampling"},
    "map": {"policy", "workers", "engine", "loading", "token_budget", "retry_failed"},
}
"""Fields that helpers read."""


def text(name: str) -> str:
    return f"{name}:{SETTINGS[name]}" if name in SETTINGS else name


def built(name: str, **fields: object) -> Label:
    kind = METHODS[name]
    needed = {field: NEEDED[field] for field in kind.needs}
    out = "out" if kind.folder else "-"
    return Label.model_validate({"file": "f.jsonl", "method": text(name), "out": out, **needed, **fields})


def another(field: str, below: str, default: object) -> object:
    values = {
        "sandbox": "docker", "workers": 2, "engine": "ray", "seed": 3, "token_budget": 5, "dialect": "vllm",
        "base_url": "http://localhost:1/v1", "extract": ("hash",), "equality": "exact", "dtype": "float32",
        "template": "Q: {problem}", "stop": ("x",), "chat": True,
    }  # fmt: skip
    if below in values:
        return values[below]
    return (not default) if isinstance(default, bool) else "x.json" if isinstance(default, str | None) else 1


@pytest.mark.parametrize("name", METHODS)
def test_an_option_is_used_or_refused(name):
    kind, command = METHODS[name], built(name)
    for option in options_of(Label):
        field, below = option.path[0], option.path[-1]
        if option.flag.argument or not option.names or field in ("out", *kind.needs):
            continue
        if below in ("dialect", "system", "device"):  # these need another option, or a GPU
            continue
        value = another(field, below, option.default)
        if field in ("labels", "stop"):
            value = ("x.jsonl",)
        if field == "sampling" and below != "stop":
            value = 1
        nested: object = value
        for key in reversed(option.path[1:]):
            nested = {key: nested}
        if command.chosen.uses(option.path):
            continue
        with pytest.raises(ValueError, match=f"{name} does not use {option.name}; it uses --"):
            built(name, **{field: nested})


def read_fields(kind: type) -> set[str]:
    """Fields of the command that the code of a method reads."""
    found: set[str] = set()
    for cls in kind.__mro__:
        if not cls.__module__.startswith("surefoot.cli.label"):
            continue
        for node in ast.walk(ast.parse(dedent(inspect.getsource(cls)))):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == "label"
            ):
                found |= READS.get(node.attr, {node.attr} & set(Label.model_fields))
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                found |= READS.get(node.func.id, set())
    return found


@pytest.mark.parametrize("name", METHODS)
def test_a_method_declares_the_options_that_it_reads(name):
    kind = METHODS[name]
    declared = {field.split(".")[0] for field in (*kind.needs, *kind.takes)}
    assert declared <= read_fields(kind) | {"workers", "engine", "problems", "dry_run"}
    unused_by_default = {
        "problems", "workers", "engine", "loading", "policy", "token_budget", "retry_failed",
        "allow_uninformative",
    }  # fmt: skip
    assert read_fields(kind) - SHARED - unused_by_default <= declared


def test_the_help_lists_methods_with_settings_and_defaults():
    words = " ".join(good("label", "--help").out.split())
    for name in METHODS:
        assert f" {name} " in words
    assert "estimate=soft, rollouts=8" in words
    assert "rule=first-error" in words


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("f", "verfy"), "did you mean 'verify'?"),
        (("f", "mc:rollout=3"), "did you mean 'rollouts'?"),
        (("f", "verify", "--problems", "p"), "write verify:rules=…"),
        (("f", "mc:rollouts=0", "--problems", "p", "--policy", "m"), "rollouts: Input should be greater"),
        (
            ("f", "advantage", "--problems", "p", "--labels", "a", "--labels", "b"),
            "give one file of --labels",
        ),
        (("f", "tree", "--policy", "m", "--out", "x.jsonl"), "is a directory here"),
    ],
)
def test_what_cannot_be_is_one_sentence(words, message):
    assert message in refused("label", *words)


def test_what_is_missing_is_named():
    ended = run("label", "f", "mc", "--problems", "p.jsonl")
    assert ended.status == 2
    assert "--policy is required by mc" in ended.err
    assert "--out is required by tree" in run("label", "f", "tree", "--policy", "lab").err


def test_the_manifest_holds_what_the_method_uses():
    assert built("verify", sandbox="docker").resolved() == {
        "method": "verify", "role": None, "rules": ["equations"], "environment": None, "gold_order": False,
        "tool_rules": list(parse_method("verify:rules=x", METHODS, what="method").tool_rules),
    }  # fmt: skip
    judge = built("judge", sampling={"top_p": 0.5}).resolved()
    assert judge["sampling"] == {"temperature": 0.0, "top_p": 0.5, "max_tokens": 2048, "stop": ()}
    assert judge["role"] == "automated judge"


def test_the_default_sampling_is_the_methods():
    assert built("mc").sampled.max_tokens == 512
    assert built("judge").sampled.temperature == 0
    assert built("critiques").sampled == models.Critiques().sampling
    votes = Label(file="f", method="judge:votes=3", problems="p", policy={"name": "m"})
    assert votes.sampled.temperature == 1
