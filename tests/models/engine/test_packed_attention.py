"""Traces packed into a row are read one by one: the same states and gradients, and no mask over the row."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    GPT2Config,
    GPT2Model,
    LlamaConfig,
    LlamaModel,
    MistralConfig,
    MistralModel,
    PreTrainedModel,
    Qwen2Config,
    Qwen2Model,
)

from surefoot.models.engine.packed_attention import attending_to_each, packed_inputs
from surefoot.training.optimisation import recompute_activations

LENGTHS = (70, 3, 41, 200, 1, 70)
ROW = sum(LENGTHS)
SHARED = {"hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 16}
SIZES = {"vocab_size": 32, "num_hidden_layers": 2} | SHARED
GPT2 = GPT2Config(vocab_size=32, n_embd=16, n_layer=2, n_head=2, n_positions=256, attn_pdrop=0.0)
TRUNKS = {
    "llama": lambda: LlamaModel(LlamaConfig(**SIZES)),
    "qwen2": lambda: Qwen2Model(Qwen2Config(**SIZES)),
    "gpt2": lambda: GPT2Model(GPT2),
    "window": lambda: MistralModel(MistralConfig(**SIZES, sliding_window=100)),
}


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that is made inside."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else [made]:
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return made


def gradients(trunk: PreTrainedModel, rows: list[dict[str, torch.Tensor]]) -> list[torch.Tensor]:
    """States of all tokens, and the gradient of a function of them in the embeddings."""
    trunk.zero_grad()
    states = torch.cat([trunk(use_cache=False, **row).last_hidden_state[0] for row in rows])
    weights = torch.linspace(-1, 1, states.numel()).view_as(states)
    (states * weights).sum().backward()
    return [states.detach(), trunk.get_input_embeddings().weight.grad.clone()]


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("kind", TRUNKS)
def test_states_and_gradients_are_those_of_each_trace_alone(kind, recompute):
    torch.manual_seed(0)
    trunk = TRUNKS[kind]()
    trunk.train(recompute)  # activations are recomputed in training mode alone; there is no dropout
    ids = torch.randint(0, 32, (1, ROW))
    positions = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    alone = [{"input_ids": part} for part in ids.split(LENGTHS, dim=1)]
    expected = gradients(trunk.eval() if kind == "gpt2" else trunk, alone)
    if recompute and kind != "gpt2":
        recompute_activations(trunk)
    before = trunk.config._attn_implementation
    with attending_to_each(trunk):
        changed = trunk.config._attn_implementation != before
        packed = packed_inputs(trunk, positions, LENGTHS)
        found = gradients(trunk, [{"input_ids": ids, **packed}])
    assert trunk.config._attn_implementation == before
    assert changed == (kind in ("llama", "qwen2", "gpt2"))  # a window needs its mask
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)


def test_nothing_is_as_large_as_the_square_of_the_row():
    trunk = TRUNKS["llama"]().eval()
    ids = torch.randint(0, 32, (1, ROW))
    positions = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    with torch.no_grad(), attending_to_each(trunk), Largest() as each:
        trunk(input_ids=ids, use_cache=False, **packed_inputs(trunk, positions, LENGTHS))
    with torch.no_grad(), Largest() as masked:
        trunk(input_ids=ids, use_cache=False, position_ids=positions)
    assert masked.elements >= ROW**2
    assert each.elements < ROW**2 / 4


def test_without_lengths_or_with_a_mask_it_refuses():
    trunk = TRUNKS["llama"]().eval()
    with attending_to_each(trunk), pytest.raises(ValueError, match="takes their lengths"):
        trunk(input_ids=torch.ones((1, 4), dtype=torch.long), use_cache=False)
