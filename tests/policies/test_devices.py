"""A device that is not there is one sentence, before anything is loaded."""

from __future__ import annotations

import pytest
import torch
from command_line import good, refused

from surefoot import load_policy
from surefoot.concurrency import own_device
from surefoot.errors import DeviceError
from surefoot.policies.devices import Loading, check_device

NO_CUDA = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")


@NO_CUDA
@pytest.mark.parametrize(
    "words",
    [
        ("score", "-m", "no/such/prm", "--problem", "p", "--solution", "s"),
        ("sample", "nowhere.jsonl", "--policy=lab"),
        ("train", "orm", "--problems", "p", "t", "--base=lab", "--out", "x"),
    ],
    ids=lambda words: words[0],
)
def test_cuda_without_cuda_is_one_sentence(words):
    says = refused(*words, "--device", "cuda")
    assert says.startswith("device 'cuda': ")
    assert "choose cpu" in says


@NO_CUDA
def test_the_python_api_says_the_same():
    with pytest.raises(DeviceError, match="device 'cuda:1': "):
        load_policy("anything", loading=Loading(device="cuda:1"))


def test_a_device_that_is_none():
    with pytest.raises(DeviceError, match="choose cpu, cuda, cuda:1 or mps"):
        check_device("gpu")
    check_device("cpu")


@pytest.mark.parametrize(
    ("processes", "rank", "name", "expected"),
    [
        (8, 3, "cuda", "cuda:3"),
        (8, 0, "cuda", "cuda:0"),
        (8, 3, "xpu", "xpu:3"),
        (8, 3, "cuda:1", "cuda:1"),
        (8, 3, "cpu", "cpu"),
        (8, 3, "mps", "mps"),
        (1, 0, "cuda", "cuda"),
    ],
)
def test_each_of_several_processes_takes_its_own_device(monkeypatch, processes, rank, name, expected):
    monkeypatch.setenv("WORLD_SIZE", str(processes))
    monkeypatch.setenv("LOCAL_RANK", str(rank))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: processes)
    monkeypatch.setattr(torch.xpu, "device_count", lambda: processes)
    assert own_device(name) == expected
    placed = []
    model = torch.nn.Linear(1, 1)
    monkeypatch.setattr(model, "to", placed.append)
    Loading.model_construct(device=name, device_map=None).place(model)
    assert placed == [expected]


def test_a_process_that_sees_one_device_takes_it(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert own_device("cuda") == "cuda:0"


@NO_CUDA
def test_a_prediction_needs_no_device(tmp_path):
    (tmp_path / "p.jsonl").write_text('{"text": "1 + 1", "answer": "2"}\n')
    good(
        "sample", tmp_path / "p.jsonl", "--policy=lab", "--device=cuda", "--dry-run", "--out", tmp_path / "t"
    )
    assert "device 'cuda': " in refused(
        "sample", tmp_path / "p.jsonl", "--policy=lab", "--device=cuda", "--out", tmp_path / "t"
    )
