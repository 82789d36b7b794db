"""The chain of commands behind a checkpoint: through imports, merged shards, labels and training."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import good, refused, run
from model_chain import make_chain

from surefoot.io import write_records
from surefoot.io.lineage import lineage, record_of
from surefoot.lab import generate_problems


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory, gpt2_base: Path) -> Path:
    """Two imports with different licences, merged, labelled by rule, and a model trained on that."""
    folder = tmp_path_factory.mktemp("chain")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        make_chain(gpt2_base)
    return folder


@pytest.fixture
def here(chain: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(chain)
    return chain


def test_a_checkpoint_is_traced_to_sources_and_licences(here: Path, gpt2_base: Path):
    nodes = {node.name: node for node in lineage(Path("prm")).walk()}
    made = {name: node.command for name, node in nodes.items() if node.command}
    assert made == {
        "prm": "train prm",
        "l.jsonl": "label",
        "traces.jsonl": "segment",
        **{f"data{n}/{what}.jsonl": "import" for n in (0, 1) for what in ("problems", "traces")},
    }
    licences = {name: node.licence for name, node in nodes.items() if not node.command}
    assert licences == {"part0.jsonl": "MIT", "part1.jsonl": "CC-BY-4.0", str(gpt2_base): "not stated"}
    assert not any(node.faults for node in nodes.values())
    [base] = [node for name, node in nodes.items() if name == str(gpt2_base)]
    assert base.sha256.keys() == {"config.json", "model.safetensors"}


def test_the_command_prints_the_chain(here: Path):
    printed = good("lineage", "prm").out
    assert "prm (surefoot train prm)" in printed
    assert "    part1.jsonl (source, licence: CC-BY-4.0)" in printed


def test_an_edit_by_hand_is_reported(here: Path):
    labels = here / "l.jsonl"
    original = labels.read_bytes()
    labels.write_bytes(original.replace(b'"value":-1', b'"value":1', 1))
    try:
        ended = run("lineage", "prm")
    finally:
        labels.write_bytes(original)
    assert ended.status == 1
    assert "✗ it was edited by hand after surefoot label wrote it" in ended.out
    assert "✗ it changed after surefoot train prm read it" in ended.out
    good("lineage", "prm")


def test_an_edit_before_training_is_reported(here: Path, gpt2_base: Path):
    edited = here / "edited.jsonl"
    good("segment", "traces.jsonl", "--segment", "line", "--out", "edited.jsonl")
    original = edited.read_bytes()
    edited.write_bytes(original + original.splitlines(keepends=True)[0].replace(b"The answer", b"An answer"))
    good("segment", "edited.jsonl", "--out", "after.jsonl")
    assert "it was edited by hand after surefoot segment wrote it" in refused("lineage", "after.jsonl")
    edited.write_bytes(original)
    assert "it changed after surefoot segment read it" in refused("lineage", "after.jsonl")


def test_retrained_and_missing_files(here: Path):
    head = here / "prm" / "head.safetensors"
    weights = head.read_bytes()
    head.write_bytes(weights[:-1] + b"x")
    says = refused("lineage", "prm")
    head.write_bytes(weights)
    assert "head.safetensors was edited by hand after surefoot train prm wrote it" in says
    (here / "part0.jsonl").rename(here / "away.jsonl")
    says = refused("lineage", "prm")
    (here / "away.jsonl").rename(here / "part0.jsonl")
    assert "part0.jsonl: missing" in says


def test_a_failed_command_leaves_the_record_of_the_old_output(here: Path):
    record, _ = record_of(here / "l.jsonl")
    words = ("traces.jsonl", "verify:rules=equations", "--problems", "prm/training.json")
    refused("label", *words, "--out", "l.jsonl", "--force")
    again, _ = record_of(here / "l.jsonl")
    assert again.manifest == record.manifest


def test_shipped_models_are_named_by_their_place_in_the_package(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_records("p.jsonl", generate_problems(1, seed=0))
    good("sample", "p.jsonl", "--policy", "lab", "-n", "1", "--max-tokens", "20", "--out", "t.jsonl")
    nodes = {node.name: node.licence for node in lineage(Path("t.jsonl")).walk()}
    assert nodes == {"t.jsonl": None, "p.jsonl": "not stated", "surefoot:lab/shipped/policy": "Apache-2.0"}


def test_a_file_without_a_record(tmp_path: Path):
    (tmp_path / "a.txt").write_text("a")
    assert "no command has recorded" in refused("lineage", tmp_path / "a.txt")
    assert "does not exist" in refused("lineage", tmp_path / "nowhere")
