"""``surefoot score`` on checkpoints of published families."""

from __future__ import annotations

import json
import re
import shutil

import pytest
from command_line import good, refused
from published_checkpoints import BATCH, TINY, byte_tokenizer
from transformers import Qwen2Config, Qwen2ForTokenClassification

from surefoot import load_prm
from surefoot.errors import CheckpointError
from surefoot.io import read_records, write_records
from surefoot.models.families.checkpoint import Checkpoint
from surefoot.models.families.registry import FAMILIES, find_family
from surefoot.models.loading import is_own, locate
from surefoot.records import StepScores


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    directory = tmp_path_factory.mktemp("published") / "prm"
    config = Qwen2Config(**TINY, num_labels=2)
    Qwen2ForTokenClassification(config).save_pretrained(directory)
    byte_tokenizer(["<|endoftext|>"]).save_pretrained(directory)
    return directory


def test_a_pasted_solution(checkpoint):
    shown = good("score", "-m", checkpoint, "--problem", "1+1?", "--solution", "2\n\nso 2").out
    assert "min of the steps" in shown
    title, *steps = shown.splitlines()
    assert "2 steps" in title
    lines = [line for line in steps if line.strip()[0].isdigit()]
    assert len(lines) == 2
    for number, (line, text) in enumerate(zip(lines, ("2", "so 2"), strict=True), 1):
        assert re.match(rf" +{number}  [01]\.\d{{3}}  {text}(  ▽|$)", line)


def test_a_file_of_traces(checkpoint, tmp_path):
    write_records(tmp_path / "problems.jsonl", {one.problem.id: one.problem for one in BATCH}.values())
    write_records(tmp_path / "traces.jsonl", [one.trace for one in BATCH])
    files = ("--problems", tmp_path / "problems.jsonl", tmp_path / "traces.jsonl")
    for family in ("trl", "pure"):
        out = tmp_path / f"{family}.jsonl"
        good("score", "-m", checkpoint, *files, "--family", family, "--out", out)
        expected = [record.scores for record in load_prm(checkpoint, family=family).score_traces(BATCH)]
        assert [record.scores for record in read_records(out, StepScores)] == expected


def test_an_unknown_family(checkpoint):
    said = refused("score", "-m", checkpoint, "--problem", "1+1?", "--solution", "2", "--family", "other")
    assert "family='other' is not known; choose 'math-shepherd'" in said


def nameless_copy(checkpoint, directory):
    """The files of a plain language model, so that the name alone decides."""
    shutil.copytree(checkpoint, directory)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"architectures": ["Qwen2ForCausalLM"]}))
    return Checkpoint(directory)


def test_every_repository_is_known_by_its_name(checkpoint, tmp_path):
    nameless = nameless_copy(checkpoint, tmp_path / "nameless")
    for family, row in FAMILIES.items():
        assert row.load().CARD.family == family
        for repository in row.repositories:
            assert find_family(nameless, name=repository) == family
            assert find_family(nameless, name=repository.lower()) == family


def test_a_snapshot_in_the_cache_of_the_hub_is_known(checkpoint, tmp_path):
    snapshot = tmp_path / "models--Qwen--Qwen2.5-Math-7B-PRM800K" / "snapshots" / "0a1b"
    nameless = nameless_copy(checkpoint, snapshot)
    assert find_family(nameless, name=str(snapshot)) == "qwen-prm"
    # two owners use this name: the directory's alone does not tell
    bare = nameless_copy(checkpoint, tmp_path / "Qwen2.5-Math-7B-PRM800K")
    with pytest.raises(CheckpointError, match="plain language model that could be 'eurus'"):
        find_family(bare, name=str(bare.directory))


def test_files_that_cannot_be_read(checkpoint, tmp_path):
    assert is_own(tmp_path)
    assert locate(checkpoint) == checkpoint
    assert locate("no/such/prm").name == "prm"
    shutil.copytree(checkpoint, tmp_path / "bad")
    (tmp_path / "bad" / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be read"):
        load_prm(tmp_path / "bad")
    (tmp_path / "bad" / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="no weights; looked for"):
        load_prm(tmp_path / "bad")
    (tmp_path / "bad" / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json: not JSON"):
        load_prm(tmp_path / "bad")


def test_a_head_of_another_width(checkpoint, tmp_path):
    from safetensors.torch import load_file, save_file

    shutil.copytree(checkpoint, tmp_path / "bad")
    weights = load_file(tmp_path / "bad" / "model.safetensors")
    weights["score.weight"] = weights["score.weight"][:, :16].contiguous()
    save_file(weights, tmp_path / "bad" / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match="head reads 16 numbers, but the trunk's hidden size is 32"):
        load_prm(tmp_path / "bad")
