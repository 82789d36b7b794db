"""A policy that remembers writes what one that does not would write, and reads less."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DeepseekV3Config,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
)

from benchmarks.worlds.digits.world import generate_problems
from surefoot.policies.transformers import TransformersPolicy, bytes_per_token
from surefoot.protocols import SampleRequest, Sampling

STEP = Sampling(max_tokens=9, stop=("\n",))


@pytest.fixture(params=["lab_base", "gpt2_base"])
def base(request):
    """In float64, where rounding decides no sample."""
    path = request.getfixturevalue(request.param)
    return AutoModelForCausalLM.from_pretrained(path).double(), AutoTokenizer.from_pretrained(path)


def request(prompt: str, prefix: str = "", **more) -> SampleRequest:
    return SampleRequest(prompt=prompt, prefix=prefix, sampling=STEP, **more)


def run(policy, requests):
    return asyncio.run(policy.sample(requests))


def texts(results):
    return [[(c.text, c.finish_reason, c.tokens) for c in result.completions] for result in results]


@pytest.mark.slow
@pytest.mark.parametrize("remember", [30, 300, 100_000])
def test_a_search_gets_the_same_samples_and_reads_less(base, remember):
    plain = TransformersPolicy(*base, name="plain", batch_size=5)
    keeping = TransformersPolicy(*base, name="keeping", batch_size=5, remember=remember)
    rng = np.random.default_rng(0)
    prompts = [problem.text + "\n" for problem in generate_problems(3, seed=5)]
    beams = [(prompt, "") for prompt in prompts]
    read = {"plain": 0, "keeping": 0}
    for _ in range(5):
        asked = [request(prompt, prefix, n=2) for prompt, prefix in beams]
        results = run(plain, asked), run(keeping, asked)
        assert texts(results[0]) == texts(results[1])
        for name, found in zip(read, results, strict=True):
            read[name] += sum(result.usage.prompt_tokens for result in found)
        grown = [
            (prompt, prefix + c.text)
            for (prompt, prefix), result in zip(beams, results[0], strict=True)
            for c in result.completions
        ]
        # forks, deaths, and returns to where a search was before
        beams = [grown[k] for k in rng.integers(0, len(grown), 5)] + beams[:1]
    assert keeping._known.held <= max(remember, 0)
    if remember == 100_000:
        assert read["keeping"] < 0.5 * read["plain"]


def test_what_was_written_is_not_read_again(lab_base):
    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(lab_base).double(),
        AutoTokenizer.from_pretrained(lab_base),
    )
    policy = TransformersPolicy(model, tokenizer, name="p", remember=10_000)
    prompt = "Start with 7. Add 3.\n"
    [first] = run(policy, [request(prompt)])
    assert first.usage.prompt_tokens == len(tokenizer(prompt)["input_ids"])
    [again] = run(policy, [request(prompt, first.completions[0].text)])
    # the last token's logits are wanted, so one token is always read
    assert again.usage.prompt_tokens == 1
    [asked_again] = run(policy, [request(prompt, first.completions[0].text, seed=1)])
    assert asked_again.usage.prompt_tokens == 1


def test_without_remember_nothing_is_kept(lab_base):
    policy = TransformersPolicy.from_pretrained(lab_base)
    run(policy, [request("Start with 7. Add 3.\n", n=3)])
    assert policy._known.held == 0


def test_a_sliding_window_is_not_kept(lab_base):
    tokenizer = AutoTokenizer.from_pretrained(lab_base)
    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        sliding_window=4,
        max_position_embeddings=64,
    )
    model = MistralForCausalLM(config).double()
    prompt = "Start with 7. Add 3.\n"
    keeping = TransformersPolicy(model, tokenizer, name="p", remember=10_000)
    plain = TransformersPolicy(model, tokenizer, name="p")
    for prefix in ("", "7 + 3 = 0\n"):
        asked = [request(prompt, prefix, n=2)]
        assert texts(run(keeping, asked)) == texts(run(plain, asked))
    assert keeping._known.held == 0


SMALL = {"vocab_size": 20, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 3}


@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(**SMALL, num_attention_heads=4, num_key_value_heads=2),
        Qwen2Config(**SMALL, num_attention_heads=4, num_key_value_heads=1),
        MistralConfig(
            **SMALL, num_attention_heads=4, num_key_value_heads=2, head_dim=10, sliding_window=None
        ),
    ],
    ids=lambda config: config.model_type,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bytes_of_a_token_are_those_of_its_keys_and_values(config, dtype):
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    tokens = torch.tensor([[1, 2, 3, 4, 5]])
    with torch.no_grad():
        layers = model(tokens, use_cache=True).past_key_values.layers
    held = sum(part.nbytes for layer in layers for part in (layer.keys, layer.values))
    assert bytes_per_token(config, dtype) * tokens.numel() == held


def test_bytes_of_a_token_are_enough_for_latent_attention():
    config = DeepseekV3Config(
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        qk_nope_head_dim=6,
        qk_rope_head_dim=4,
        v_head_dim=5,
    )
    assert bytes_per_token(config, torch.float32) == 2 * 4 * (10 + 5) * 4


def test_bytes_of_a_token_of_known_models(base):
    llama = LlamaConfig(hidden_size=4096, num_hidden_layers=32, num_attention_heads=32)
    qwen = Qwen2Config(hidden_size=3584, num_hidden_layers=28, num_attention_heads=28, num_key_value_heads=4)
    assert bytes_per_token(llama, torch.float16) == 524_288
    assert bytes_per_token(qwen, torch.bfloat16) == 57_344
    assert bytes_per_token(MambaConfig(), torch.float32) is None  # a state, no keys and values
    model, tokenizer = base
    policy = TransformersPolicy(model, tokenizer, name="p", remember=10_000)
    run(policy, [request("Start with 7. Add 3.\n", n=3)])
    blocks = {id(place.block): place.block for place in policy._known._index._values.values()}
    held = sum(part.nbytes for block in blocks.values() for pair in block.layers for part in pair)
    assert held == policy._known.held * bytes_per_token(model.config, model.dtype)
