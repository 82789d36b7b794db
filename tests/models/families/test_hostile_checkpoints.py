"""Checkpoints of others: broken configurations, indexes and weight files are refused by name."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import hostile_files as hostile
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from surefoot.errors import CheckpointError
from surefoot.models.card import CARD, read_card
from surefoot.models.families.checkpoint import Checkpoint
from surefoot.models.lora import ADAPTER, base_of

CASES = settings(max_examples=int(os.environ.get("SUREFOOT_HOSTILE_EXAMPLES", "10")), deadline=None)
CONFIG = {"architectures": ["A"], "model_type": "llama", "num_labels": 2, "id2label": {"0": "a"}}
SHARDS = {"metadata": {}, "weight_map": {"a.weight": "model.safetensors", "b": "model.safetensors"}}
WEIGHTS = save({"a.weight": torch.ones(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}, {"format": "pt"})
ADAPTED = {"base_model_name_or_path": "base", "peft_type": "LORA"}
CARD_FIELDS = {
    "kind": "prm",
    "encoding": {"template": "{problem}", "max_length": 9},
    "aggregation": "min",
    "score_means": "correctness",
    "label_source": "s",
    "base": "b",
    "weights": {"model.safetensors": "0"},
}


def write(folder: Path, **contents: bytes) -> Path:
    files = {"config": "config.json", "index": "model.safetensors.index.json", "weights": "model.safetensors"}
    whole = {"config": json.dumps(CONFIG).encode(), "weights": WEIGHTS} | contents
    for name, content in whole.items():
        (folder / files[name]).write_bytes(content)
    return folder


def read_all(folder: Path) -> None:
    checkpoint = Checkpoint(folder)
    assert isinstance(checkpoint.architectures, tuple)
    assert isinstance(checkpoint.labels, int)
    for name in checkpoint.tensors:
        assert checkpoint.tensor(name).dtype == torch.float32
    assert checkpoint.tensor("a.weight", [0]).shape[0] == 1


def one(row: dict) -> st.SearchStrategy[bytes]:
    whole = hostile.broken_rows((row,)).map(lambda rows: rows[0].encode("utf-8", "surrogatepass"))
    return whole | hostile.broken_bytes(json.dumps(row).encode())


@pytest.mark.parametrize("part", ["config", "index", "weights"])
@CASES
@given(data=st.data())
def test_broken_checkpoints_are_read_or_refused(part, data):
    ways = {"config": one(CONFIG), "index": one(SHARDS), "weights": hostile.broken_bytes(WEIGHTS)}
    with TemporaryDirectory() as folder:
        write(Path(folder), **{part: data.draw(ways[part])})
        began = time.monotonic()
        with suppress(CheckpointError):  # any other error is a fault
            read_all(Path(folder))
        assert time.monotonic() - began < 10


@CASES
@given(adapter=one(ADAPTED), card=one(CARD_FIELDS))
def test_broken_cards_and_adapters_are_read_or_refused(adapter, card):
    with TemporaryDirectory() as folder:
        (Path(folder) / ADAPTER).write_bytes(adapter)
        (Path(folder) / CARD).write_bytes(card)
        for read in (base_of, read_card):
            with suppress(CheckpointError):
                read(Path(folder))


def test_a_whole_checkpoint_is_read(tmp_path):
    read_all(write(tmp_path))
    read_all(write(tmp_path, index=json.dumps(SHARDS).encode()))


@pytest.mark.parametrize("place", ["../outside.safetensors", "/etc/passwd", "", ".", 7, None])
def test_an_index_leads_to_no_file_elsewhere(place, tmp_path):
    (tmp_path / "outside.safetensors").write_bytes(WEIGHTS)
    inside = tmp_path / "inside"
    inside.mkdir()
    write(inside, index=json.dumps({"weight_map": {"a.weight": place}}).encode())
    with pytest.raises(CheckpointError, match=r"index\.json: "):
        Checkpoint(inside).tensor("a.weight")


@pytest.mark.parametrize("text", ['{"a":' * 100_000, "[]", '"x"', "\ud800"])
def test_a_configuration_that_is_none_is_named(text, tmp_path):
    (tmp_path / "config.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(CheckpointError, match=r"config\.json"):
        Checkpoint(tmp_path)
