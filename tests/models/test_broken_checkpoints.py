"""Files of foreign checkpoints: whatever is wrong with them is one error of this package, within seconds."""

from __future__ import annotations

import ast
import collections
import json
import random
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import surefoot
from surefoot.errors import CheckpointError, PolicyError
from surefoot.io.sources import reading_checkpoint
from surefoot.models.families.checkpoint import Checkpoint
from surefoot.policies.devices import LOADING
from surefoot.policies.loading import load_policy
from surefoot.policies.pretrained import load_pretrained

READERS = {"from_pretrained", "from_config", "get_config_dict", "load_adapter", "load_file", "safe_open"}
"""Functions of libraries that read files of a checkpoint."""
INSIDE = {"require_size", "_require_rank"}
"""Functions with such calls, which are themselves called where errors are turned."""
SOURCE = Path(surefoot.__file__).parent


def names(call: ast.Call) -> tuple[str, str]:
    """Object and function of a call."""
    if isinstance(call.func, ast.Attribute):
        return getattr(call.func.value, "id", ""), call.func.attr
    return "", getattr(call.func, "id", "")


def unguarded(node: ast.AST, guarded: bool = False) -> Iterator[ast.Call]:
    """Calls of readers outside of every ``with reading_checkpoint(…)``."""
    if isinstance(node, ast.FunctionDef) and node.name in INSIDE:
        return
    if isinstance(node, ast.With):
        contexts = [item.context_expr for item in node.items if isinstance(item.context_expr, ast.Call)]
        guarded = guarded or any(names(context)[1] == "reading_checkpoint" for context in contexts)
    if isinstance(node, ast.Call):
        owner, name = names(node)
        reads = name in READERS | INSIDE or (owner, name) == ("torch", "load")
        if reads and owner not in ("TransformersPolicy", "cls") and not guarded:
            yield node
    for child in ast.iter_child_nodes(node):
        yield from unguarded(child, guarded)


def test_every_reader_of_a_checkpoint_turns_its_errors() -> None:
    found = {
        f"{path.relative_to(SOURCE)}:{call.lineno}"
        for path in SOURCE.rglob("*.py")
        if any(name in (text := path.read_text()) for name in (*READERS, *INSIDE, "torch.load"))
        for call in unguarded(ast.parse(text))
    }
    assert found == set()


def test_only_errors_of_reading_are_turned() -> None:
    panic = type("PanicException", (BaseException,), {})
    for error in (ValueError("x"), RecursionError(), panic("x"), MemoryError()):
        with pytest.raises(CheckpointError, match=r"^what: "), reading_checkpoint("what"):
            raise error
    for error in (KeyboardInterrupt(), SystemExit(1), PolicyError("x")):
        with pytest.raises(type(error)), reading_checkpoint("what"):
            raise error


@pytest.fixture
def base(lab_base: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(lab_base, tmp_path / "base"))


FIELDS: dict[str, list[Any]] = {
    "num_hidden_layers": [10**7, 2**40, -1, "x", None],
    "num_labels": [10**9],
    "num_attention_heads": [10**7, 0],
    "vocab_size": [10**9, 0],
    "hidden_size": [10**9, "x"],
    "intermediate_size": [10**10],
    "id2label": [7],
    "rope_parameters": [{"rope_type": "none such"}],
    "architectures": [{}],
    "model_type": ["none such", 7],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in FIELDS for value in FIELDS[name]])
def test_a_configuration_that_lies_is_refused_before_the_model_is_made(
    base: Path, name: str, value: Any
) -> None:
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(config | {name: value}))
    for load in (
        lambda: load_pretrained(AutoModelForCausalLM, base, LOADING),
        lambda: Checkpoint(base).trunk(),
    ):
        # a nonsensical number of labels or heads may be of no consequence
        with suppress(CheckpointError):
            model = load()
            model = model[0] if isinstance(model, tuple) else model
            assert sum(weight.numel() for weight in model.parameters()) < 10**6
    if isinstance(value, int) and value > 10**6:
        with pytest.raises(PolicyError):
            load_policy(base)


class Forbidden:
    """A class that a file of weights names, and that must not be made."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("made"),)


@pytest.mark.parametrize(
    "content", [{"head.weight": Forbidden()}, collections.Counter("ab"), 7, {"head.weight": 7}]
)
def test_weights_of_pytorch_hold_tensors_and_nothing_else(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (base / "model.safetensors").unlink()
    torch.save(content, base / "pytorch_model.bin")
    with pytest.raises(CheckpointError):
        Checkpoint(base).tensor("head.weight")
    with pytest.raises(CheckpointError):
        Checkpoint(base).trunk()
    assert not (tmp_path / "made").exists()


def test_weights_of_pytorch_are_read_cut_anywhere(base: Path) -> None:
    weights = load_file(base / "model.safetensors")
    (base / "model.safetensors").unlink()
    torch.save(weights, base / "pytorch_model.bin")
    whole = (base / "pytorch_model.bin").read_bytes()
    name = next(iter(weights))
    assert torch.equal(Checkpoint(base).tensor(name), weights[name])
    for damaged in (*cut(whole, 6), *flipped(whole, 6)):
        (base / "pytorch_model.bin").write_bytes(damaged)
        with suppress(CheckpointError):
            Checkpoint(base).tensor(name)


def cut(data: bytes, count: int) -> list[bytes]:
    chance = random.Random(0)
    return [data[: chance.randrange(len(data))] for _ in range(count)]


def flipped(data: bytes, count: int) -> list[bytes]:
    """With other bytes, most in the head of the file, where lengths and names are."""
    chance, result = random.Random(1), []
    for _ in range(count):
        copy = bytearray(data)
        for _ in range(chance.choice((1, 3))):
            copy[chance.randrange(min(len(data), 3000))] = chance.choice((0, 34, 57, 123, 127, 255))
        result.append(bytes(copy))
    return result


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"]
)
def test_cut_and_flipped_files_are_read_or_refused(base: Path, name: str) -> None:
    whole = (base / name).read_bytes()
    for damaged in (*cut(whole, 8), *flipped(whole, 12)):
        (base / name).write_bytes(damaged)
        with suppress(CheckpointError):  # any other error is a fault
            load_pretrained(AutoModelForCausalLM, base, LOADING)
        with suppress(CheckpointError):
            checkpoint = Checkpoint(base)
            assert checkpoint.tokenizer
            assert checkpoint.tensors
