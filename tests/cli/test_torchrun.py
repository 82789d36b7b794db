"""What `torchrun` starts in two processes on a CPU is one training, or is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from command_line import good, refused
from safetensors.torch import load_file
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from surefoot.io import write_records
from surefoot.records import StepLabel

pytest.importorskip("accelerate")

TRAINING = ("--epochs=2", "--head-epochs=0", "--batch-size=5", "--learning-rate=0.01")


@pytest.fixture
def training(lab_base, lab_items, tmp_path) -> list[str]:
    """Words of the command after `surefoot train`, but for `--out`."""
    labels = [
        StepLabel(
            trace_id=item.trace.id,
            step=step,
            kind="correctness",
            value=-1.0 if step == 1 else 1.0,
            source="test",
        )
        for item in lab_items
        for step in range(len(item.trace.steps))
    ]
    files = {
        "problems": [item.problem for item in lab_items],
        "traces": [item.trace for item in lab_items],
        "labels": labels,
    }
    words = ["prm", "--base", str(lab_base), *TRAINING]
    for name, records in files.items():
        write_records(tmp_path / f"{name}.jsonl", records)
        words += [*([] if name == "traces" else [f"--{name}"]), str(tmp_path / f"{name}.jsonl")]
    return words


def train(*words: str | Path) -> None:
    """`surefoot train` in a process that torchrun has forked."""
    torch.set_num_threads(1)  # the parent's threads do not exist here
    good("train", *words)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_two_processes_of_torchrun_share_the_gradient_and_one_writes(training, tmp_path, monkeypatch):
    for name in filter(lambda name: name.startswith("ACCELERATE_"), list(os.environ)):
        monkeypatch.delenv(name)  # a shell has none of them
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    good("train", *training, "--out", tmp_path / "one")
    # what `torchrun --standalone --nproc-per-node=2` runs, with forks: torch is not imported three times
    standalone = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        run_id=tmp_path.name,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        start_method="fork",
        max_restarts=0,
    )
    elastic_launch(standalone, train)(*training, "--out", tmp_path / "two")
    one, two = (json.loads((tmp_path / name / "training.json").read_text()) for name in ("one", "two"))
    assert (one["processes"], two["processes"]) == (1, 2)
    assert two["losses"] == pytest.approx(one["losses"], rel=1e-3)
    # that of the whole batch: of half of it, the norm would be another
    assert two["norms"] == pytest.approx(one["norms"], rel=2e-2)
    assert two["tokens"] == one["tokens"]
    written = [{path.name for path in (tmp_path / name).iterdir()} for name in ("one", "two")]
    assert written[0] == written[1]
    weights = load_file(tmp_path / "one" / "model.safetensors")
    for name, tensor in load_file(tmp_path / "two" / "model.safetensors").items():
        assert (tensor - weights[name]).abs().max() < 5e-4, name


def test_what_one_process_does_refuses_others(monkeypatch, tmp_path):
    monkeypatch.setenv("WORLD_SIZE", "2")
    problems = tmp_path / "p.jsonl"
    problems.write_text('{"text": "1 + 1", "answer": "2"}\n')
    said = refused("imitate", problems, "--policy=lab", "--out", tmp_path / "out")
    assert "imitate works in one process, and 2 were started: run it without torchrun" in said
    assert not (tmp_path / "out").exists()
