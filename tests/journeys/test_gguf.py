"""A GGUF file, as llama.cpp and Ollama have them, opens as a model wherever a directory does."""

from __future__ import annotations

import json
import random
import struct
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from command_line import good, refused
from transformers import Qwen2Config, Qwen2ForCausalLM

from surefoot.errors import PolicyError
from surefoot.io import read_records
from surefoot.policies.loading import load_policy
from surefoot.records import StepScores, Trace

gguf = pytest.importorskip("gguf", reason="gguf is not installed: pip install '.[gguf]'")
pytest.importorskip("accelerate", reason="accelerate is not installed: pip install '.[gguf]'")

TOKENS = ["<|endoftext|>", *map(chr, range(33, 127)), "Ġ", "Ċ", "Ġa"]
"""Of a byte-level tokenizer: every printable character, the space, the line end, and one merge."""


@pytest.fixture(scope="module")
def model() -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(TOKENS),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        bos_token_id=0,
        eos_token_id=0,
    )
    return Qwen2ForCausalLM(config)


@pytest.fixture(scope="module")
def file(model: Qwen2ForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model as llama.cpp's converter writes it, in float32."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    config = model.config
    writer = gguf.GGUFWriter(str(path), "qwen2")
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10_000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, *[1] * (len(TOKENS) - 1)])
    writer.add_token_merges(["Ġ a"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), weight.numpy())
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()
    return path


def test_the_weights_and_the_text_are_those_of_the_file(model, file, tmp_path):
    from surefoot.models import CheckpointCard, RewardModel
    from surefoot.models.engine.causal import load_causal

    loaded, tokenizer = load_causal(file)
    text = "What is a sum? 3 + 4\n"
    ids = tokenizer(text, return_tensors="pt").input_ids
    assert tokenizer.decode(ids[0]) == text
    assert torch.equal(loaded(ids).logits, model(ids).logits)
    # a trunk for training, which can be saved: nothing of the quantiser is left
    card = CheckpointCard(kind="prm", label_source="none", base="tiny")
    RewardModel.initialise(file, card).save(tmp_path / "prm")
    assert json.loads((tmp_path / "prm" / "config.json").read_text())["hidden_size"] == 64


def test_it_samples_and_scores_from_the_command_line(file, tmp_path, monkeypatch):
    from surefoot.models import CheckpointCard, RewardModel

    monkeypatch.chdir(tmp_path)
    Path("problems.jsonl").write_text(json.dumps({"id": "p", "text": "What is 3 + 4?", "answer": "7"}) + "\n")
    words = ("sample", "problems.jsonl", "--policy", file, "--n", 2, "--max-tokens", 8, "--equality", "exact")
    good(*words, "--out", "traces.jsonl")
    traces = list(read_records("traces.jsonl", Trace))
    assert [trace.policy for trace in traces] == ["tiny.gguf"] * 2
    assert all(trace.text for trace in traces)
    card = CheckpointCard(kind="prm", label_source="none", base="tiny")
    RewardModel.initialise(file, card).save(tmp_path / "prm")
    good("score", "traces.jsonl", "-m", "prm", "--problems", "problems.jsonl", "--out", "scores.jsonl")
    assert {record.trace_id for record in read_records("scores.jsonl", StepScores)} == {t.id for t in traces}


def test_another_file_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("weights.bin").write_bytes(b"x")
    Path("problems.jsonl").write_text(json.dumps({"id": "p", "text": "1 + 1?"}) + "\n")
    sentence = refused("sample", "problems.jsonl", "--policy", "weights.bin", "--out", "t.jsonl")
    assert "weights.bin is a file; name the directory of the checkpoint, or a .gguf file" in sentence


def test_a_cut_or_lying_file_is_refused_in_a_sentence(file: Path, tmp_path: Path) -> None:
    whole, chance, damaged = file.read_bytes(), random.Random(0), tmp_path / "damaged.gguf"
    for number in range(40):
        copy = bytearray(whole)
        if number % 2:
            copy[chance.randrange(4500)] = chance.choice((0, 1, 9, 127, 255))  # the names and lengths
        else:
            del copy[chance.randrange(5000 if number % 4 else len(whole)) :]
        damaged.write_bytes(copy)
        with suppress(PolicyError):  # any other error is a fault
            load_policy(damaged)


def with_tensor_field(whole: bytes, name: bytes, dimensions: list[int], kind: int | None = None) -> bytes:
    """The file with another shape or type of one tensor."""
    at = whole.index(struct.pack("<Q", len(name)) + name) + 8 + len(name)
    (count,) = struct.unpack_from("<I", whole, at)
    end = at + 4 + 8 * count
    kinds = whole[end : end + 4] if kind is None else struct.pack("<I", kind)
    shape = struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
    return whole[:at] + shape + kinds + whole[end + 4 :]


NORM = b"output_norm.weight"
PUBLIC = {
    "a dimension of 0": lambda whole: with_tensor_field(whole, NORM, [0]),
    "a dimension of 2^42 + 1": lambda whole: with_tensor_field(whole, NORM, [2**42 + 1]),
    "dimensions whose product wraps to 64": lambda whole: with_tensor_field(whole, NORM, [2**32, 2**32, 64]),
    "a dimension of 2^63": lambda whole: with_tensor_field(whole, NORM, [2**63]),
    "a million dimensions": lambda whole: with_tensor_field(whole, NORM, [1] * 1_000_000),
    "a type that is none": lambda whole: with_tensor_field(whole, NORM, [64], 4_000_000_000),
    "an empty key": lambda whole: whole.replace(
        struct.pack("<Q", 12) + b"general.name", struct.pack("<Q", 0) + b"general.name", 1
    ),
    "token types of another width": lambda whole: whole.replace(
        b"tokenizer.ggml.token_type" + struct.pack("<II", 9, 5),
        b"tokenizer.ggml.token_type" + struct.pack("<II", 9, 0),
        1,
    ),
    "an alignment of 0": lambda whole: whole.replace(
        struct.pack("<Q", 12) + b"general.name" + struct.pack("<I", 8) + struct.pack("<Q", 4) + b"tiny",
        struct.pack("<Q", 17) + b"general.alignment" + struct.pack("<II", 4, 0),
        1,
    ),
}
"""Faults of readers of GGUF files that were reported in public."""


@pytest.mark.parametrize("fault", PUBLIC)
def test_faults_of_other_readers_are_refused_in_a_sentence(file: Path, tmp_path: Path, fault: str) -> None:
    whole = file.read_bytes()
    damaged = PUBLIC[fault](whole)
    assert damaged != whole
    (tmp_path / "damaged.gguf").write_bytes(damaged)
    with suppress(PolicyError):  # any other error is a fault
        load_policy(tmp_path / "damaged.gguf")


def test_a_number_of_layers_that_the_file_does_not_hold(file: Path, tmp_path: Path) -> None:
    key, whole = b"qwen2.block_count", file.read_bytes()
    at = whole.index(key) + len(key) + 4
    (tmp_path / "deep.gguf").write_bytes(whole[:at] + struct.pack("<I", 10_000_000) + whole[at + 4 :])
    with pytest.raises(PolicyError, match="10000000"):
        load_policy(tmp_path / "deep.gguf")
