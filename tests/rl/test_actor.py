"""Reading rollouts: padding, temperature and passes change nothing, and what is read is what drew them."""

from __future__ import annotations

import asyncio
import copy
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rollouts import made, of_item
from transformers import AutoModelForCausalLM, AutoTokenizer, Gemma2Config, Gemma2ForCausalLM

from surefoot.policies.transformers import TransformersPolicy
from surefoot.protocols import SampleRequest, Sampling
from surefoot.rl.learners import Actor, ReferencePolicy, microbatches, pad_rollouts

UNEVEN = [
    made([1, 7, 9], [4, 5, 2]),
    made([1], [8]),
    made([1, 7, 9, 11, 12, 13], [20, 21, 22, 23, 24, 6, 2]),
    made([1, 7], [4, 4, 4, 4]),
]


@pytest.fixture(scope="module", params=["lab_base", "gpt2_base"])
def model(request):
    return AutoModelForCausalLM.from_pretrained(request.getfixturevalue(request.param)).eval()


@pytest.fixture(scope="module")
def lab(lab_base):
    return AutoModelForCausalLM.from_pretrained(lab_base).eval(), AutoTokenizer.from_pretrained(lab_base)


def straight(model, rollouts, temperature) -> tuple[torch.Tensor, torch.Tensor]:
    """By the definition: one rollout at a time, whole logits, float64 from there on."""
    logprobs, entropies = [], []
    for rollout in rollouts:
        ids = torch.tensor([rollout.prompt_ids + rollout.ids])
        logits = model(input_ids=ids, use_cache=False).logits[0, len(rollout.prompt_ids) - 1 : -1]
        logp = (logits.double() / temperature).log_softmax(-1)
        logprobs.append(logp.gather(1, torch.tensor(rollout.ids)[:, None])[:, 0])
        entropies.append(-(logp.exp() * logp).sum(-1))
    return torch.cat(logprobs), torch.cat(entropies)


class Wrapper(torch.nn.Module):
    """Stands around a module as DDP does: a gradient is exchanged of what passes through it."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module, self.passed = module, 0

    def forward(self, *given):
        self.passed += 1
        return self.module(*given)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_a_padded_batch_gives_what_each_rollout_alone_gives(model, temperature):
    with torch.no_grad():
        read = Actor(model, temperature=temperature).read(UNEVEN, entropy=True)
        logprobs, entropies = straight(model, UNEVEN, temperature)
    torch.testing.assert_close(read[0].double(), logprobs, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(read[1].double(), entropies, atol=1e-4, rtol=1e-4)


def test_logits_that_are_capped_after_the_head_are_read_from_the_model():
    torch.manual_seed(0)
    model = Gemma2ForCausalLM(
        Gemma2Config(
            vocab_size=32,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
            initializer_range=1.0,
            final_logit_softcapping=1.0,
        )
    ).eval()
    with torch.no_grad():
        read = Actor(model).read(UNEVEN, entropy=True)
        logprobs, entropies = straight(model, UNEVEN, 1.0)
    torch.testing.assert_close(read[0].double(), logprobs, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(read[1].double(), entropies, atol=1e-4, rtol=1e-4)


def test_in_a_wrapper_the_same_is_read_and_the_head_sees_response_tokens_alone(model):
    actor, seen = Actor(model, temperature=0.7), []
    hook = model.get_output_embeddings().register_forward_hook(
        lambda _head, given, _logits: seen.append(given[0].shape[:-1].numel())
    )
    try:
        plain = actor.read(UNEVEN, entropy=True)
        wrapper = Wrapper(actor.reader)
        wrapped = actor.read(UNEVEN, entropy=True, called=wrapper)
    finally:
        hook.remove()
    assert wrapper.passed == 1
    assert torch.equal(wrapped[0], plain[0])
    assert torch.equal(wrapped[1], plain[1])
    assert seen == 2 * [sum(len(rollout.ids) for rollout in UNEVEN)]  # padded: 4 rows of 13 tokens


def test_gradients_are_those_of_the_definition(model):
    found, expected = copy.deepcopy(model), copy.deepcopy(model)
    read = Actor(found, temperature=0.7).read(UNEVEN, entropy=True)
    read[0].sum().backward()
    straight(expected, UNEVEN, 0.7)[0].sum().backward()
    for mine, other in zip(found.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, atol=2e-3, rtol=2e-3)


def test_an_entropy_that_is_only_watched_has_no_gradient(lab):
    read = Actor(lab[0]).read(UNEVEN, entropy=True)
    alone = Actor(lab[0]).read(UNEVEN)
    assert len(alone) == 1
    watched, expected = (
        torch.autograd.grad(total, lab[0].lm_head.weight)[0]
        for total in (read[0].sum() + read[1].sum(), alone[0].sum())
    )
    assert expected.abs().max() > 0.1
    torch.testing.assert_close(watched, expected)


def test_places_are_those_of_the_token_before():
    padded = pad_rollouts(UNEVEN, torch.device("cpu"))
    rows, before = padded.rows_s, padded.at_s
    drawn = padded.ids_bt[rows, before + 1].tolist()
    assert drawn == [token for rollout in UNEVEN for token in rollout.ids]
    assert padded.mask_bt.sum(1).tolist() == [6, 2, 13, 6]


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 30)), max_size=30), st.integers(1, 120))
def test_passes_hold_every_rollout_once_and_keep_the_bound(sizes, bound):
    rollouts = [made([1] * prompt, [2] * response) for prompt, response in sizes]
    found = microbatches(rollouts, bound)
    assert sorted(index for part in found for index in part) == list(range(len(rollouts)))
    lengths = [sum(size) for size in sizes]
    for part in found:
        assert len(part) == 1 or len(part) * max(lengths[index] for index in part) <= bound
    longest = [max(lengths[index] for index in part) for part in found]
    assert longest == sorted(longest, reverse=True)


@pytest.mark.parametrize("microbatch_tokens", [1, 20, 10_000])
def test_log_probabilities_come_in_the_order_of_the_rollouts(lab, microbatch_tokens):
    found = Actor(lab[0]).logprobs(UNEVEN, microbatch_tokens=microbatch_tokens)
    assert [len(one) for one in found] == [len(rollout.ids) for rollout in UNEVEN]
    assert {one.dtype for one in found} == {np.dtype(np.float64)}
    with torch.no_grad():
        expected = straight(lab[0], UNEVEN, 1.0)[0].numpy()
    np.testing.assert_allclose(np.concatenate(found), expected, atol=1e-4)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_shared_prompts_that_are_read_once_change_nothing(model, temperature):
    prompt = (1, 7, 9, 11, 12, 13)
    rollouts = [made(prompt, [4 + place * number % 9 for place in range(2 + number)]) for number in range(9)]
    rollouts += [made(prompt[:4], [8, 2]), rollouts[3]]
    alone = Actor(model, temperature=temperature)
    found = alone.logprobs(rollouts, microbatch_tokens=48)
    with torch.no_grad():
        expected = straight(model, rollouts, temperature)[0].numpy()
        padded = alone.read(rollouts)[0].double().numpy()
    np.testing.assert_allclose(np.concatenate(found), expected, atol=1e-4)
    np.testing.assert_allclose(np.concatenate(found), padded, atol=1e-4)
    kept = ReferencePolicy(model, temperature=temperature, bf16=False).logprobs(
        rollouts, microbatch_tokens=48
    )
    np.testing.assert_allclose(np.concatenate(kept), expected, atol=1e-4)


def test_the_reference_stays_when_the_policy_moves(lab):
    model = copy.deepcopy(lab[0])
    reference = ReferencePolicy(model, temperature=1.0, bf16=False)
    before = reference.logprobs(UNEVEN, microbatch_tokens=100)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1
    after = reference.logprobs(UNEVEN, microbatch_tokens=100)
    moved = Actor(model).logprobs(UNEVEN, microbatch_tokens=100)
    for one, other, mine in zip(before, after, moved, strict=True):
        assert np.array_equal(one, other)
        assert np.abs(one - mine).max() > 1e-3


@pytest.mark.slow
def test_tokens_are_drawn_with_the_chances_that_are_read(lab):
    """Pairs of first tokens of 4000 samples against the product of their two chances, by chi square."""
    model, tokenizer = lab
    temperature, count, prompt = 0.6, 4000, "Start with 7. Add 3.\n"
    policy = TransformersPolicy(model, tokenizer, name="tiny", batch_size=4000)
    request = SampleRequest(
        prompt=prompt, n=count, seed=3, sampling=Sampling(temperature=temperature, max_tokens=2)
    )
    (result,) = asyncio.run(policy.sample([request]))
    seen = Counter(completion.token_ids for completion in result.completions)
    end = tokenizer.eos_token_id
    vocabulary = range(len(tokenizer))
    pairs = [(end,), *((a, b) for a in vocabulary if a != end for b in vocabulary)]
    prompt_ids = tokenizer(prompt)["input_ids"]
    read = Actor(model, temperature=temperature).logprobs(
        [made(prompt_ids, pair) for pair in pairs], microbatch_tokens=16_384
    )
    expected = count * np.exp([one.sum() for one in read])
    assert expected.sum() == pytest.approx(count, rel=1e-4)
    assert set(seen) <= set(pairs)
    common = expected >= 5
    found = np.array([seen[pair] for pair in pairs], dtype=float)
    cells = (
        np.append(found[common], found[~common].sum()),
        np.append(expected[common], expected[~common].sum()),
    )
    chi = float(((cells[0] - cells[1]) ** 2 / cells[1]).sum())
    freedom = len(cells[0]) - 1
    assert freedom > 30
    assert chi < freedom + 4 * np.sqrt(2 * freedom)
    likely = [made(prompt_ids, pair) for pair, many in zip(pairs, common, strict=True) if many]
    wrong = Actor(model).logprobs(likely, microbatch_tokens=16_384)
    other = count * np.exp([one.sum() for one in wrong])  # of temperature 1: the test would notice
    assert ((found[common] - other) ** 2 / other).sum() > freedom + 20 * np.sqrt(2 * freedom)


def test_what_a_policy_drew_is_read_as_it_decoded_it(lab, lab_items):
    """Greedy tokens are the likeliest at every place, whatever they are batched with."""
    model, tokenizer = lab
    policy = TransformersPolicy(model, tokenizer, name="tiny")
    requests = [
        SampleRequest(prompt=item.problem.text + "\n", sampling=Sampling(temperature=0, max_tokens=15))
        for item in lab_items[:5]
    ]
    results = asyncio.run(policy.sample(requests))
    rollouts = [
        made(of_item(tokenizer, item).prompt_ids, result.completions[0].token_ids)
        for item, result in zip(lab_items, results, strict=False)
    ]
    with torch.no_grad():
        padded = pad_rollouts(rollouts, torch.device("cpu"))
        logits = model(input_ids=padded.ids_bt, attention_mask=padded.mask_bt).logits
    best = logits[padded.rows_s, padded.at_s].argmax(-1).tolist()
    assert best == [token for rollout in rollouts for token in rollout.ids]
