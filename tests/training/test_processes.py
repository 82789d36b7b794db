"""Two processes train as one does: the same losses from the same batches, with DDP and with FSDP."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from forked_ranks import run_ranks
from safetensors.torch import load_file

pytest.importorskip("accelerate")

IMPORTS = """
import json, os, sys
from pathlib import Path
# what each rank would otherwise import anew
import torch, torch.distributed.fsdp, torch.distributed.tensor, transformers.models.llama.modeling_llama
import accelerate.utils.fsdp_utils
from accelerate import Accelerator
from surefoot.models.card import CheckpointCard
from surefoot.models.kinds.classifier import RewardModel
from surefoot.models.engine.causal import load_causal, save_causal
from surefoot.models.kinds.implicit import ImplicitPRM
from surefoot.training.config import ImplicitConfig, SFTConfig, TrainingConfig
from surefoot.training.classifier import train
from surefoot.training.examples import Example
from surefoot.training.implicit import train_implicit
from surefoot.training.sft import fit_tokens
"""

PROGRAM = """
base, out, runs = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
examples = [
    Example(trace_id=str(n), ids=(1, *(4 + n * k % 15 for k in range(n % 7 + 2))), positions=(n % 7 + 2,),
            targets=(float(n % 2),))
    for n in range(21)
]
plain = TrainingConfig(epochs=3, batch_size=5, checkpoint_every=2, head_epochs=1, learning_rate=0.01)
settings = dict(epochs=3, batch_size=5, learning_rate=0.01)
tokens = [  # what is learned of each: its last tokens
    Example(trace_id=one.trace_id, ids=one.ids, positions=tuple(range(1, len(one.ids))), targets=one.targets)
    for one in examples
]
for name, stop_at, environment in runs:
    os.environ.update(environment)
    if name.endswith("tokens"):
        model, tokenizer = load_causal(base)
        fit_tokens(model, tokens, SFTConfig(**settings), out / name, name="it",
                   save=lambda state: save_causal(model, tokenizer, out / name, state=state))
        end_group()
        continue
    if name.endswith("implicit"):
        model = ImplicitPRM.initialise(base)
        train_implicit(model, tokens, ImplicitConfig(**settings), out / name)
        end_group()
        continue
    model = RewardModel.initialise(base, CheckpointCard(kind="prm", label_source="test", base="tiny"))
    config = plain.model_copy(update={"layout": "tree"}) if name.endswith("tree") else plain
    def stop(done, total, loss):
        if done == stop_at:
            raise KeyboardInterrupt
    try:
        train(model, examples, config, out / name, validation=examples[:6], progress=stop)
        stopped = False
    except KeyboardInterrupt:
        stopped = True
    assert stopped == (stop_at is not None)
    end_group()
"""

FSDP = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_TRANSFORMER_CLS_TO_WRAP": "LlamaDecoderLayer",
}

RUNS = [
    ("ddp", None, {}),
    ("ddp-tokens", None, {}),
    ("ddp-implicit", None, {}),
    ("ddp-tree", None, {}),
    ("fsdp", None, FSDP),
    ("cut", 5, FSDP),
    ("cut", None, FSDP),
    ("fsdp-tokens", None, FSDP),
    ("fsdp-implicit", None, FSDP),
    ("fsdp-tree", None, FSDP),
]
"""Folder, step at which the run is stopped, environment."""


def outcome(directory: Path) -> dict:
    return json.loads((directory / "training.json").read_text())


@pytest.fixture(scope="module")
def folders(lab_base, tmp_path_factory) -> tuple[Path, Path]:
    """Runs of one process, and of two."""
    one, two = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("two")
    plain = [(name, None, {}) for name in ("plain", "plain-tokens", "plain-implicit", "plain-tree")]
    jobs = {1: (lab_base, one, json.dumps(plain)), 2: (lab_base, two, json.dumps(RUNS))}
    run_ranks(IMPORTS, PROGRAM, jobs, tmp_path_factory.mktemp("groups"))
    return one, two


@pytest.mark.slow
@pytest.mark.parametrize("way", ["ddp", "fsdp"])
@pytest.mark.parametrize("kind", ["", "-tokens", "-implicit", "-tree"])
def test_two_processes_give_the_losses_of_one(folders, way, kind):
    single, double = folders[0] / f"plain{kind}", folders[1] / f"{way}{kind}"
    one, two = outcome(single), outcome(double)
    assert (one["processes"], two["processes"]) == (1, 2)
    assert two["losses"] == pytest.approx(one["losses"], rel=1e-3)
    assert two["norms"] == pytest.approx(one["norms"], rel=2e-2)
    assert two["tokens"] == one["tokens"]
    weights = load_file(single / "model.safetensors")
    saved = load_file(double / "model.safetensors")
    assert saved.keys() == weights.keys()
    for name, tensor in saved.items():
        assert (tensor - weights[name]).abs().max() < 2e-3, name


@pytest.mark.slow
def test_two_processes_that_are_stopped_resume_to_equal_numbers(folders):
    for name in ("training.json", "model.safetensors", "head.safetensors"):
        whole = (folders[1] / "fsdp" / name).read_bytes()
        assert (folders[1] / "cut" / name).read_bytes() == whole, name


@pytest.mark.slow
def test_a_rank_that_fails_ends_the_one_that_waits_for_it(tmp_path):
    body = """
if os.environ["RANK"] == "0":
    raise RuntimeError("rank 0 fails")
torch.distributed.barrier()
"""
    with pytest.raises(AssertionError, match="rank 0 fails"):
        run_ranks("import os, torch", body, {2: ()}, tmp_path, timeout_s=60)
