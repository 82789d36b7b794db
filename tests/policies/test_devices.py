"""A device that is not there is one sentence, before anything is loaded."""

from __future__ import annotations

import pytest
import torch
from command_line import refused

from surefoot import load_policy
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
