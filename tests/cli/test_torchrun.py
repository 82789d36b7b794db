"""What `torchrun` starts in two processes on a CPU is one training, or is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import good, refused
from safetensors.torch import load_file

from surefoot.io import write_records
from surefoot.records import StepLabel

pytest.importorskip("accelerate")

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
TRAINING = ("--epochs=2", "--head-epochs=0", "--batch-size=5", "--learning-rate=0.01")


def environment() -> dict[str, str]:
    """What a shell has that asks accelerate for nothing."""
    asked = {name: value for name, value in os.environ.items() if not name.startswith("ACCELERATE_")}
    return asked | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture
def training(lab_base, lab_items, tmp_path) -> list[str]:
    """Words of the command after `surefoot train`, but for `--out`."""
    labels = [
        StepLabel(
            trace_id=item.trace.id, step=step, kind="correctness", value=float(step != 1), source="test"
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


def run(*words: str | Path) -> None:
    ended = subprocess.run(
        [str(word) for word in words], env=environment(), capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stderr


@pytest.mark.slow
def test_two_processes_of_torchrun_share_the_gradient_and_one_writes(training, tmp_path):
    good("train", *training, "--out", tmp_path / "one")
    run(*TORCHRUN, "-m", "surefoot", "train", *training, "--out", tmp_path / "two")
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


@pytest.mark.parametrize("command", ["imitate", "expert-iteration"])
def test_what_one_process_does_refuses_others(command, monkeypatch, tmp_path):
    monkeypatch.setenv("WORLD_SIZE", "2")
    problems = tmp_path / "p.jsonl"
    problems.write_text('{"text": "1 + 1", "answer": "2"}\n')
    expert = ["--expert", "lab-exact"] if command == "imitate" else []
    said = refused(command, problems, "--policy=lab", "--out", tmp_path / "out", *expert)
    assert f"{command} works in one process, and 2 were started: run it without torchrun" in said
    assert not (tmp_path / "out").exists()
