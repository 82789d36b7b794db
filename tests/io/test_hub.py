"""Models by hub name and revision, from a cache as huggingface_hub lays it out, without a network."""

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from transformers import AutoModelForCausalLM

from benchmarks.worlds.digits.checkpoints import POLICY, TRUNK
from surefoot.errors import CheckpointError, PolicyError, RunError
from surefoot.io import Run
from surefoot.io.sources import checkpoint_directory, hub_commits, is_hub_name, pinned, split_revision
from surefoot.models.card import CheckpointCard
from surefoot.models.engine.causal import load_causal, save_causal
from surefoot.models.kinds.classifier import RewardModel
from surefoot.models.loading import load_prm
from surefoot.models.lora import Lora, add_adapter, base_of
from surefoot.policies.transformers import TransformersPolicy

OLD, NEW = "a" * 40, "b" * 40


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, and no network."""
    folder = tmp_path / "hub"
    folder.mkdir()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return folder


def put(cache: Path, name: str, commit: str, *refs: str) -> Path:
    """The folder of a commit of ``owner/name``, to which ``refs`` point."""
    repository = cache / f"models--{name.replace('/', '--')}"
    for ref in refs:
        (repository / "refs").mkdir(parents=True, exist_ok=True)
        (repository / "refs" / ref).write_text(commit)
    folder = repository / "snapshots" / commit
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def two_commits(cache):
    """``acme/tiny``: the first commit is the tag v1, the second the branch main, with other weights."""
    shutil.copytree(POLICY, put(cache, "acme/tiny", OLD, "v1"), dirs_exist_ok=True)
    model, tokenizer = load_causal(POLICY)
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(2)
    save_causal(model, tokenizer, put(cache, "acme/tiny", NEW, "main"))
    return cache


def test_a_name_has_a_revision_after_the_at_sign_and_a_path_is_no_name(tmp_path, monkeypatch):
    assert split_revision("acme/tiny") == ("acme/tiny", None)
    assert split_revision("acme/tiny@refs/pr/1") == ("acme/tiny", "refs/pr/1")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "one@2").mkdir(parents=True)
    assert is_hub_name("acme/tiny@v1")
    for path in ("runs/one@2", tmp_path, "lab", "a/b/c", "./x", "../x", "acme/tiny@", "acme/tiny@-x"):
        assert not is_hub_name(path)
    assert checkpoint_directory("runs/one@2") == Path("runs/one@2")


def test_a_revision_chooses_the_files_and_its_commit_is_known(two_commits):
    for name, commit in (("", NEW), ("@main", NEW), ("@v1", OLD), (f"@{OLD}", OLD)):
        assert checkpoint_directory(f"acme/tiny{name}").name == commit
        assert pinned(f"acme/tiny{name}") == f"acme/tiny@{commit}"
    assert pinned("acme/other@v1") == "acme/other@v1"
    with pytest.raises(CheckpointError, match="'acme/tiny@v9' is not a directory"):
        checkpoint_directory("acme/tiny@v9")


def test_policies_load_the_revision_that_is_asked_for(two_commits):
    old, new = (TransformersPolicy.from_pretrained(f"acme/tiny{at}") for at in ("@v1", ""))
    weight = AutoModelForCausalLM.from_pretrained(POLICY).get_input_embeddings().weight
    torch.testing.assert_close(old.model.get_input_embeddings().weight, weight)
    torch.testing.assert_close(new.model.get_input_embeddings().weight, weight * 2)
    assert old.name == "tiny@v1"
    with pytest.raises(PolicyError, match=r"acme/tiny@v9"):
        TransformersPolicy.from_pretrained("acme/tiny@v9")


def test_a_checkpoint_names_the_commit_of_its_base(cache, tmp_path):
    shutil.copytree(TRUNK, put(cache, "acme/trunk", OLD, "main"), dirs_exist_ok=True)
    model = RewardModel.initialise("acme/trunk", CheckpointCard(kind="prm", label_source="test", base="?"))
    model.save(tmp_path / "whole")
    assert json.loads((tmp_path / "whole" / "surefoot.json").read_text())["base"] == f"acme/trunk@{OLD}"

    pytest.importorskip("peft")
    add_adapter(model.trunk, Lora(rank=2), seed=0)
    model.save(tmp_path / "adapter")
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["revision"]) == ("acme/trunk", OLD)
    assert base_of(tmp_path / "adapter") == f"acme/trunk@{OLD}"
    (cache / "models--acme--trunk" / "refs" / "main").write_text(NEW)  # a commit that is not here
    RewardModel.load(tmp_path / "adapter")


def test_reward_models_load_by_revision(cache, tmp_path, lab_items):
    model = RewardModel.initialise(TRUNK, CheckpointCard(kind="prm", label_source="test", base="lab"))
    model.save(put(cache, "acme/prm", OLD, "v1"))
    with torch.no_grad():
        model.head.bias.fill_(1.0)
    model.save(put(cache, "acme/prm", NEW, "main"))
    first, second = (load_prm(f"acme/prm{at}").score_traces(lab_items[:1])[0].scores for at in ("@v1", ""))
    assert set(first) == {0.5}
    assert second == pytest.approx((1 / (1 + math.exp(-1)),) * len(first))


def test_a_run_records_the_commits_and_another_commit_is_another_run(two_commits, tmp_path):
    config = {
        "policy": {"name": "acme/tiny"},
        "prm": ["acme/prm@v1"],
        "served": {"name": "acme/tiny@v1", "base_url": "u"},
    }
    assert hub_commits(config) == {"acme/tiny": NEW}
    with Run.open(tmp_path / "run", command="test", config=config) as run:
        assert run.manifest["models"] == {"acme/tiny": NEW}
        prm = put(two_commits, "acme/prm", OLD, "v1")  # as if it were fetched meanwhile
        (prm / "config.json").write_text("{}")
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["models"] == {"acme/tiny": NEW, "acme/prm@v1": OLD}
    Run.open(tmp_path / "run", command="test", config=config).close()
    put(two_commits, "acme/tiny", OLD, "main")
    with pytest.raises(RunError, match=r"models\.acme/tiny"):
        Run.open(tmp_path / "run", command="test", config=config)


def test_code_of_a_repository_does_not_run(cache, tmp_path):
    folder = put(cache, "acme/code", OLD, "main")
    shutil.copytree(POLICY, folder, dirs_exist_ok=True)
    marker = tmp_path / "ran"
    (folder / "evil.py").write_text(f"open({str(marker)!r}, 'w')\nclass Config: pass\nclass Model: pass\n")
    config = json.loads((folder / "config.json").read_text())
    auto = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "evil", "auto_map": auto}))
    with pytest.raises(PolicyError, match="acme/code"):
        TransformersPolicy.from_pretrained("acme/code")
    with pytest.raises(CheckpointError, match="acme/code"):
        load_causal("acme/code")
    assert not marker.exists()
