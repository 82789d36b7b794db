"""Rollouts from vLLM and weights given to it, on a server that is already running.

``SUREFOOT_VLLM_URL`` is its address (``http://localhost:8000/v1``). It serves, in float32, a small model with
a context of 256 tokens or more under the path of its checkpoint, on this machine, and was started with
``VLLM_SERVER_DEV_MODE=1``, ``VLLM_ALLOW_RUNTIME_LORA_UPDATING=True`` and ``--enable-lora``; on a CPU from a
checkpoint with a head of its own (``write_weights(..., untie=True)``). What it lacks is skipped. The tests
change the server's weights and put them back.
"""

from __future__ import annotations

import json
import os
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rollouts import rolled
from transformers import AutoModelForCausalLM, AutoTokenizer

from surefoot.errors import PolicyError
from surefoot.models.lora import Lora, add_adapter
from surefoot.policies.openai import OpenAIPolicy
from surefoot.rl.learners import Actor
from surefoot.rl.server_weights import PROBE, PROBE_TOKENS, ServerWeights, write_weights

URL = os.environ.get("SUREFOOT_VLLM_URL", "").rstrip("/")
ROOT = URL.removesuffix("/v1")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not URL, reason="SUREFOOT_VLLM_URL names no running vLLM server"),
]
PROBLEMS = [
    "Start with 3. Multiply by 2. Add 1.",
    "Start with 7. Add 5. Subtract 2. Multiply by 4. Add 3.",
    "Start with 1. Subtract 1. Add 8. Add 2. Multiply by 3. Subtract 5. Add 6. Multiply by 2.",
]


def ask(path: str, body: dict[str, Any] | None = None) -> Any:
    """The server's answer, without our client."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(path, data, {"Content-Type": "application/json"})  # noqa: S310
    with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310
        text = answer.read().decode()
        return json.loads(text) if text.startswith("{") else text


def needs(path):
    if path not in ask(f"{ROOT}/openapi.json")["paths"]:
        pytest.skip(f"the server was started without {path}")


@pytest.fixture(scope="module")
def served():
    """Name of the model on the server, and its checkpoint."""
    model = ask(f"{URL}/models")["data"][0]
    if not Path(model["root"]).is_dir():
        pytest.skip(f"the server's model, {model['root']}, is not the path of a checkpoint on this machine")
    return model["id"], Path(model["root"])


@pytest.fixture(scope="module")
def tokenizer(served):
    return AutoTokenizer.from_pretrained(served[1])


@pytest.fixture
def whole(served, tokenizer, tmp_path):
    """Publishes whole weights; the server's own are put back."""
    needs("/collective_rpc")
    name, directory = served
    if json.loads((directory / "config.json").read_text())["tie_word_embeddings"]:
        pytest.skip("the server's checkpoint has no head of its own")
    weights = ServerWeights(model=name, base_url=URL)
    yield weights
    weights.publish(load(directory), tokenizer, tmp_path)


def load(directory, **options):
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, **options).eval()


def with_noise(model, seed):
    """Trained weights moved by a tenth of their spread: another model that still writes text."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                scale = 0.1 * parameter.std() if parameter.ndim > 1 else 0.02
                parameter.add_(torch.randn(parameter.shape, generator=generator) * max(scale, 0.02))
    return model


def rollouts_of(name, tokenizer):
    policy = OpenAIPolicy(
        model=name, base_url=URL, mode="completions", dialect="vllm", max_retries=0, timeout_s=600.0
    )
    found = rolled(policy, tokenizer, PROBLEMS, n=8)
    rollouts = [rollout for group in found.groups for rollout in group]
    assert len(rollouts) + found.failed == 24
    assert len(rollouts) >= 12  # a changed model may end at once
    return rollouts


@torch.no_grad()
def under(model, rollouts):
    """Log-probabilities of each rollout's tokens under the model, as the trainer reads them."""
    read = Actor(model.eval()).read(rollouts)[0]
    return [part.numpy() for part in read.split([len(rollout.ids) for rollout in rollouts])]


def under_server(name, rollouts):
    """The same, as vLLM reads them."""
    found = []
    for rollout in rollouts:
        prompt = [*rollout.prompt_ids, *rollout.ids]
        body = {"model": name, "prompt": prompt, "max_tokens": 1, "prompt_logprobs": 0}
        rows = ask(f"{URL}/completions", body)["choices"][0]["prompt_logprobs"][len(rollout.prompt_ids) :]
        logprobs = [row[str(token)]["logprob"] for row, token in zip(rows, rollout.ids, strict=True)]
        found.append(np.asarray(logprobs))
    return found


def assert_drawn_from(new, old, name, tokenizer):
    """Samples are likelier under the published model than under the old one, and vLLM has its numbers."""
    rollouts = rollouts_of(name, tokenizer)
    mine, before = under(new, rollouts), under(old, rollouts)
    np.testing.assert_allclose(np.concatenate(mine), np.concatenate(under_server(name, rollouts)), atol=1e-3)
    assert np.mean([a.sum() - b.sum() for a, b in zip(mine, before, strict=True)]) > 0.1


def test_the_trainer_reads_the_log_probabilities_by_which_vllm_draws(served, tokenizer):
    name, directory = served
    rollouts = rollouts_of(name, tokenizer)
    ours, theirs = under(load(directory), rollouts), under_server(name, rollouts)
    assert np.abs(np.concatenate(ours) - np.concatenate(theirs)).max() < 1e-3
    end = tokenizer.eos_token_id
    assert all((rollout.ids[-1] == end) == (rollout.trace.finish_reason != "length") for rollout in rollouts)
    assert all(end not in rollout.ids[:-1] for rollout in rollouts)


def test_rollouts_follow_whole_weights(whole, served, tokenizer, tmp_path):
    name, directory = served
    for seed in (1, 2):
        new = with_noise(load(directory), seed)
        assert whole.publish(new, tokenizer, tmp_path) < 1e-3
        assert_drawn_from(new, load(directory), name, tokenizer)


def test_a_tied_model_reaches_a_server_whose_head_is_its_own(whole, served, tokenizer, tmp_path):
    name, directory = served
    tied = with_noise(load(directory, tie_word_embeddings=True), 3)
    assert tied.get_output_embeddings().weight is tied.get_input_embeddings().weight
    unties = ServerWeights(model=name, base_url=URL, untie=True)
    assert unties.publish(tied, tokenizer, tmp_path) < 1e-3
    with pytest.raises(PolicyError, match="'untie'"):
        ServerWeights(model=name, base_url=URL, tolerance=1e-3).publish(
            with_noise(tied, 4), tokenizer, tmp_path
        )


def test_prefixes_of_the_old_weights_are_stale_until_they_are_dropped(whole, served, tokenizer, tmp_path):
    """What the reset is for: else the probe is continued from the old keys and values."""
    name, directory = served
    whole.publish(with_noise(load(directory), 1), tokenizer, tmp_path)
    write_weights(with_noise(load(directory), 2), tokenizer, tmp_path / "other")
    body = {"method": "reload_weights", "kwargs": {"weights_path": str(tmp_path / "other")}}
    ask(f"{ROOT}/collective_rpc", body)
    probe = {"model": name, "prompt": PROBE, "max_tokens": PROBE_TOKENS, "temperature": 0.0, "logprobs": 0}
    first = []
    for _ in range(2):
        answer = ask(f"{URL}/completions", probe)
        first.append(answer["choices"][0]["logprobs"]["token_logprobs"][0])
        assert ask(f"{ROOT}/reset_prefix_cache", {})["success"]
    assert abs(first[0] - first[1]) > 1e-3


def test_rollouts_follow_an_adapter(served, tokenizer, tmp_path):
    pytest.importorskip("peft")
    needs("/v1/load_lora_adapter")
    _, directory = served
    name, model = "surefoot-test", load(directory)
    add_adapter(model, Lora(rank=4), seed=0)
    weights = ServerWeights(model=name, base_url=URL)
    try:
        assert weights.publish(model, tokenizer, tmp_path) < 1e-3
        for seed in (1, 2):
            assert weights.publish(with_noise(model, seed), tokenizer, tmp_path) < 1e-3
            assert_drawn_from(model, load(directory), name, tokenizer)
    finally:
        ask(f"{URL}/unload_lora_adapter", {"lora_name": name})
