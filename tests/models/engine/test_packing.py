"""Trees of tokens: every distinct token read once, and the states of plain reading."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    BertConfig,
    BertModel,
    BloomConfig,
    BloomModel,
    Gemma2Config,
    Gemma2Model,
    GPT2Config,
    GPT2Model,
    LlamaConfig,
    LlamaModel,
    MambaConfig,
    MambaModel,
    MistralConfig,
    MistralModel,
    PreTrainedModel,
    Qwen2Config,
    Qwen2Model,
)

from surefoot.models.engine.packing import read_states, read_trees, tree_limit
from surefoot.models.engine.tree_attention import TokenPool

SEQUENCES = [(1, 2, 3, 4), (1, 2, 3, 5, 6), (1, 2), (7, 2, 3), (1, 2, 3, 4), (1, 2, 9, 5, 6, 1)]
DISTINCT = 4 + 2 + 4 + 3  # 1234, 56 after 123, 9561 after 12, 723
SMALL = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
SHARED_HEADS = SMALL | {"intermediate_size": 32, "num_key_value_heads": 1}
SPECIAL = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}


def llama() -> PreTrainedModel:
    torch.manual_seed(0)
    return LlamaModel(LlamaConfig(**SHARED_HEADS)).eval()


def gpt2() -> PreTrainedModel:
    torch.manual_seed(0)
    sizes = {"vocab_size": 32, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64}
    return GPT2Model(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).eval()


def qwen2() -> PreTrainedModel:
    torch.manual_seed(0)
    return Qwen2Model(Qwen2Config(**SHARED_HEADS, **SPECIAL)).eval()


def bert() -> PreTrainedModel:
    torch.manual_seed(0)
    return BertModel(BertConfig(**SMALL, intermediate_size=32)).eval()


def plain(trunk: PreTrainedModel, sequence: tuple[int, ...]) -> torch.Tensor:
    with torch.no_grad():
        return trunk(input_ids=torch.tensor([sequence])).last_hidden_state[0]


def assert_plain(trunk: PreTrainedModel, sequences, states: dict[int, torch.Tensor]) -> None:
    assert sorted(states) == list(range(len(sequences)))
    for number, sequence in enumerate(sequences):
        torch.testing.assert_close(states[number], plain(trunk, sequence), atol=1e-5, rtol=1e-4)


def everywhere(sequences) -> list[range]:
    return [range(len(sequence)) for sequence in sequences]


@pytest.mark.parametrize("batch_tokens", [1, 3, 5, 1000])
@pytest.mark.parametrize("make", [llama, gpt2, qwen2])
def test_trees_give_the_states_of_plain_reading_whatever_the_size_of_a_pass(make, batch_tokens) -> None:
    trunk = make()
    before = trunk.config._attn_implementation
    assert tree_limit(trunk) == sys.maxsize
    readings = list(
        read_trees(trunk, TokenPool(), SEQUENCES, everywhere(SEQUENCES), {}, batch_tokens=batch_tokens)
    )
    states = {number: found for reading in readings for number, found in reading.states.items()}
    assert_plain(trunk, SEQUENCES, states)
    assert sum(reading.tokens for reading in readings) == DISTINCT
    assert trunk.config._attn_implementation == before


TRUNK = llama()


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(
    sequences=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12).map(tuple), max_size=10),
    batch_tokens=st.integers(1, 30),
)
def test_any_tree_is_read_as_its_sequences_are(sequences, batch_tokens: int) -> None:
    readings = list(
        read_trees(TRUNK, TokenPool(), sequences, everywhere(sequences), {}, batch_tokens=batch_tokens)
    )
    states = {number: found for reading in readings for number, found in reading.states.items()}
    assert_plain(TRUNK, sequences, states)
    distinct = {sequence[: end + 1] for sequence in sequences for end in range(len(sequence))}
    assert sum(reading.tokens for reading in readings) == len(distinct)


def test_long_branches_are_cut_into_blocks() -> None:
    trunk, rng = llama(), np.random.default_rng(0)
    stem = tuple(rng.integers(0, 32, 300).tolist())
    ends = [tuple(rng.integers(0, 32, size).tolist()) for size in (400, 3, 150, 1, 2, 40)]
    sequences = [stem + end for end in ends]
    readings = list(read_trees(trunk, TokenPool(), sequences, everywhere(sequences), {}, batch_tokens=500))
    assert_plain(trunk, sequences, {k: found for reading in readings for k, found in reading.states.items()})


def test_what_is_known_is_not_read_again() -> None:
    trunk, pool = llama(), TokenPool()
    first = [(1, 2, 3, 4), (7, 2, 3)]
    for reading in read_trees(trunk, pool, first, everywhere(first), {}):
        for slots in reading.paths.values():
            pool.hold(slots)  # before the next pass
    for later in ([(1, 2, 3, 4, 5), (7, 2, 9), (1, 2, 8), (1, 2, 8, 8)], first):
        known = {0: reading.paths[0], 1: reading.paths[1][:2], 2: reading.paths[0][:2]}
        known = {k: slots for k, slots in known.items() if k < len(later)}
        again = list(read_trees(trunk, pool, later, everywhere(later), known, batch_tokens=2))
        assert_plain(trunk, later, {k: found for one in again for k, found in one.states.items()})
        assert sum(one.tokens for one in again) == (4 if later is not first else 1)


def test_memory_does_not_grow_with_the_number_of_sequences() -> None:
    pool = TokenPool()
    sequences = [(a, b, c, a, b) for a in range(4) for b in range(8) for c in range(8)]
    list(read_trees(llama(), pool, sequences, everywhere(sequences), {}, batch_tokens=20))
    assert pool.used == 0
    assert pool.capacity < 60


@pytest.mark.parametrize("make", [llama, bert])
def test_states_come_at_the_positions_asked_for(make) -> None:
    trunk = make()
    positions = [[1, 3], [4], [0, 1], [], [2], [5, 0]]
    readings = list(read_states(trunk, SEQUENCES, positions, batch_tokens=12))
    states = {number: found for reading in readings for number, found in reading.states.items()}
    assert (
        sum(reading.tokens for reading in readings) == {llama: DISTINCT, bert: sum(map(len, SEQUENCES))}[make]
    )
    for number, (sequence, wanted) in enumerate(zip(SEQUENCES, positions, strict=True)):
        torch.testing.assert_close(states[number], plain(trunk, sequence)[wanted], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("make", [llama, gpt2])
def test_half_precision_is_near(make) -> None:
    trunk = make().to(torch.bfloat16)
    assert tree_limit(trunk) == sys.maxsize
    for reading in read_trees(trunk, TokenPool(), SEQUENCES, everywhere(SEQUENCES), {}, batch_tokens=4):
        for number, states in reading.states.items():
            assert states.dtype == torch.bfloat16
            torch.testing.assert_close(states, plain(trunk, SEQUENCES[number]), atol=0.06, rtol=0.06)


def test_trunks_that_cannot_be_read_in_trees_are_told_apart() -> None:
    """They look ahead, cap attention, keep a state, or do not let their attention be replaced."""
    gemma = Gemma2Config(**SHARED_HEADS, **SPECIAL, head_dim=8)
    mamba = MambaConfig(vocab_size=32, hidden_size=16, num_hidden_layers=2, **SPECIAL)
    bloom = BloomConfig(vocab_size=32, hidden_size=16, n_layer=2, n_head=2, **SPECIAL)
    for trunk in (bert(), Gemma2Model(gemma), MambaModel(mamba), BloomModel(bloom)):
        assert tree_limit(trunk.eval()) == 0


def test_a_window_is_the_longest_sequence_for_trees() -> None:
    torch.manual_seed(0)
    trunk = MistralModel(MistralConfig(**SHARED_HEADS, sliding_window=12)).eval()
    assert tree_limit(trunk) == 12
    long = (*range(20), 3, 4)
    for sequences, shared in (([(*range(12),), (*range(11), 1)], True), ([long, (*long[:-1], 9)], False)):
        readings = list(read_states(trunk, sequences, everywhere(sequences)))
        assert_plain(trunk, sequences, {k: found for one in readings for k, found in one.states.items()})
        assert (sum(one.tokens for one in readings) < sum(map(len, sequences))) == shared


def test_refused_texts_without_tokens_are_not_read() -> None:
    trunk = MistralModel(MistralConfig(**SHARED_HEADS)).eval()
    sequences = [(), SEQUENCES[0], ()]
    everything: dict[int, int] = {}
    for limit in (0, None):
        for reading in read_states(trunk, sequences, [[], [0], []], batch_tokens=1, limit=limit):
            everything |= {number: next(iter(states.shape)) for number, states in reading.states.items()}
        assert everything == {0: 0, 1: 1, 2: 0}
