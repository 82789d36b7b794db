"""Two processes train as one does: the same losses from the same batches, with DDP and with FSDP."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("accelerate")

PROGRAM = """
import json, sys
from pathlib import Path
from surefoot.models.card import CheckpointCard
from surefoot.models.kinds.classifier import RewardModel
from surefoot.training.config import TrainingConfig
from surefoot.training.classifier import train
from surefoot.training.examples import Example
base, out, settings = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
model = RewardModel.initialise(base, CheckpointCard(kind="prm", label_source="test", base="tiny"))
examples = [
    Example(trace_id=str(n), ids=(1, *(4 + n * k % 15 for k in range(n % 7 + 2))), positions=(n % 7 + 2,),
            targets=(float(n % 2),))
    for n in range(21)
]
def stop(done, total, loss):
    if done == settings.get("stop"):
        raise SystemExit(3)
config = TrainingConfig(epochs=3, batch_size=5, checkpoint_every=2, head_epochs=1, learning_rate=0.01)
train(model, examples, config, out, validation=examples[:6], progress=stop)
"""


def run(base: Path, out: Path, *, processes: int, stop: int | None = None, **environment: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-c", PROGRAM, str(base), str(out), json.dumps({"stop": stop})]
    base_environment = os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"} | environment
    if processes == 1:
        running = [subprocess.Popen(command, env=base_environment)]
    else:
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(processes)}
        running = [
            subprocess.Popen(
                command,
                env=base_environment | address | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(processes)
        ]
    assert [one.wait(timeout=300) for one in running] == [3 if stop else 0] * processes


FSDP = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_TRANSFORMER_CLS_TO_WRAP": "LlamaDecoderLayer",
}


def outcome(directory: Path) -> dict:
    return json.loads((directory / "training.json").read_text())


@pytest.fixture(scope="module")
def one_process(lab_base, tmp_path_factory) -> dict:
    folder = tmp_path_factory.mktemp("one")
    run(lab_base, folder, processes=1)
    return outcome(folder)


@pytest.mark.slow
@pytest.mark.parametrize("environment", [{}, FSDP], ids=["ddp", "fsdp"])
def test_two_processes_give_the_losses_of_one(lab_base, one_process, tmp_path, environment):
    run(lab_base, tmp_path, processes=2, **environment)
    two = outcome(tmp_path)
    assert two["losses"] == pytest.approx(one_process["losses"], rel=1e-3)
    assert two["norms"] == pytest.approx(one_process["norms"], rel=2e-2)
    assert two["tokens"] == one_process["tokens"]


@pytest.mark.slow
def test_two_processes_that_are_stopped_go_on_to_equal_numbers(lab_base, tmp_path):
    run(lab_base, tmp_path / "whole", processes=2, **FSDP)
    run(lab_base, tmp_path / "cut", processes=2, stop=5, **FSDP)
    run(lab_base, tmp_path / "cut", processes=2, **FSDP)
    for name in ("training.json", "model.safetensors", "head.safetensors"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
