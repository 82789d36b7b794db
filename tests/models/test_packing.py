"""Token trees: every sequence whole and in order, and the states of plain reading."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2Model,
    LlamaConfig,
    LlamaModel,
    MistralConfig,
    MistralModel,
    PreTrainedModel,
)

from surefoot.models.packing import build_trees, can_read_trees, read_states, read_tree

SEQUENCES = [(1, 2, 3, 4), (1, 2, 3, 5, 6), (1, 2), (7, 2, 3), (1, 2, 3, 4), (1, 2, 9, 5, 6, 1)]
SMALL = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}


def llama() -> LlamaModel:
    torch.manual_seed(0)
    return LlamaModel(LlamaConfig(**SMALL, intermediate_size=32)).eval()


def gpt2() -> GPT2Model:
    torch.manual_seed(0)
    return GPT2Model(GPT2Config(vocab_size=32, n_embd=16, n_layer=2, n_head=2, n_positions=32)).eval()


@given(
    sequences=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8).map(tuple), max_size=12),
    limit=st.integers(1, 30),
)
def test_trees_hold_every_sequence_once_and_in_order(sequences: list[tuple[int, ...]], limit: int) -> None:
    trees = list(build_trees(sequences, limit=limit))
    assert sorted(member for tree in trees for member in tree.members) == list(range(len(sequences)))
    for tree in trees:
        assert len(tree.ids) <= max(limit, *(len(sequences[member]) for member in tree.members))
        for member, path in zip(tree.members, tree.paths, strict=True):
            assert tuple(tree.ids[node] for node in path) == sequences[member]
            assert [tree.depths[node] for node in path] == list(range(len(path)))
            assert all(tree.parents[after] == before for before, after in pairwise(path))
            assert tree.parents[path[0]] == -1


def test_a_shared_prefix_is_stored_once() -> None:
    (tree,) = build_trees(SEQUENCES)
    assert len(tree.ids) == 4 + 2 + 4 + 3  # 1234, 56 after 123, 9561 after 12, 723


def test_a_node_sees_its_ancestors_and_itself() -> None:
    (tree,) = build_trees(SEQUENCES)
    seen = tree.visible()
    for path in tree.paths:
        for place, node in enumerate(path):
            assert set(seen[node].nonzero()[0]) == set(path[: place + 1])


@pytest.mark.parametrize("make", [llama, gpt2])
def test_tree_reading_equals_plain_reading(make: type[PreTrainedModel]) -> None:
    trunk = make()
    assert can_read_trees(trunk)
    for limit in (6, 2048):
        for tree in build_trees(SEQUENCES, limit=limit):
            hidden = read_tree(trunk, tree)
            for member, path in zip(tree.members, tree.paths, strict=True):
                with torch.no_grad():
                    alone = trunk(input_ids=torch.tensor([SEQUENCES[member]])).last_hidden_state[0]
                torch.testing.assert_close(hidden[list(path)], alone, atol=1e-5, rtol=1e-4)


def bert() -> BertModel:
    torch.manual_seed(0)
    return BertModel(BertConfig(**SMALL, intermediate_size=32)).eval()


@pytest.mark.parametrize("make", [llama, bert])
def test_states_come_at_the_positions_asked_for(make) -> None:
    trunk = make()
    positions = [[1, 3], [4], [0, 1], [], [2], [5, 0]]
    readings = list(read_states(trunk, SEQUENCES, positions))
    states = {number: found for reading in readings for number, found in reading.states.items()}
    assert sum(reading.tokens for reading in readings) == {llama: 13, bert: sum(map(len, SEQUENCES))}[make]
    for number, (sequence, wanted) in enumerate(zip(SEQUENCES, positions, strict=True)):
        with torch.no_grad():
            alone = trunk(input_ids=torch.tensor([sequence])).last_hidden_state[0]
        torch.testing.assert_close(states[number], alone[wanted], atol=1e-5, rtol=1e-4)


def test_trunks_that_look_ahead_or_through_a_window_are_told_apart() -> None:
    window = MistralModel(
        MistralConfig(**SMALL, num_key_value_heads=2, intermediate_size=32, sliding_window=4)
    )
    assert not can_read_trees(bert())
    assert not can_read_trees(window.eval())
