"""Intervals and tiles of a pass against the ancestors of each token, by brute force."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaModel

from surefoot.models.engine.packing import read_trees
from surefoot.models.engine.tree_attention import TokenPool
from surefoot.models.engine.tree_plan import TILE, TokenBranch, key_intervals, row_blocks


def branches_of(sequences: list[tuple[int, ...]], known: int) -> list[TokenBranch]:
    """The branches of sorted sequences in one pass; the first ``known`` tokens of each were read before."""
    slots: dict[tuple[int, ...], int] = {}
    branches, before = [], ()
    for ids in sorted(set(sequences)):
        prefixes = [ids[: end + 1] for end in range(len(ids))]
        start = next((at for at, prefix in enumerate(prefixes) if prefix not in slots), len(ids))
        start = max(start, min(known, len(ids)))
        path = np.array([slots.setdefault(prefix, len(slots)) for prefix in prefixes])
        if start < len(ids):
            jump = ids[:start] != before[:start]
            branches.append(TokenBranch(ids=ids, path=path, start=start, stop=len(ids), jump=jump))
            before = ids
    return branches


@settings(deadline=None, max_examples=100)
@given(
    sequences=st.lists(
        st.lists(st.integers(0, 2), min_size=1, max_size=9).map(tuple), min_size=1, max_size=9
    ),
    known=st.integers(0, 4),
    size=st.integers(1, 5),
    free=st.sampled_from([0.0, 10.0, 1e9]),
)
def test_a_row_sees_its_ancestors_and_itself(sequences, known, size, free):
    branches = branches_of(sequences, known)
    if not branches:
        return
    keys = key_intervals(branches)
    ancestors = [
        set(branch.path[: at + 1].tolist()) for branch in branches for at in range(branch.start, branch.stop)
    ]
    assert keys.rows == len(ancestors)
    rows = np.arange(keys.rows)[:, None]
    seen = (keys.begin <= rows) & (rows < keys.end)
    for row, expected in enumerate(ancestors):
        found = keys.slots[seen[row]].tolist()
        assert sorted(found) == sorted(expected)
    blocks = list(row_blocks(branches, size=size, free=free))
    assert [row for first, last, _ in blocks for row in range(first, last)] == list(range(keys.rows))
    for first, last, alone in blocks:
        some = keys.of_rows(first, last)
        assert set(some) == set(np.flatnonzero(seen[first:last].any(0)))
        if alone:
            assert set(keys.slots[some]) == set(keys.slots[keys.begin >= first][: last - first])


def long_tree(rng: np.random.Generator) -> list[tuple[int, ...]]:
    """A stem of 300 tokens, whose branches leave it and each other at many places."""
    stem = tuple(rng.integers(0, 32, 300).tolist())
    sequences = [stem]
    for size in (400, 3, 150, 1, 2, 40, 90):
        base = sequences[int(rng.integers(len(sequences)))]
        sequences.append(base[: int(rng.integers(1, len(base)))] + tuple(rng.integers(0, 32, size).tolist()))
    return sequences


@pytest.mark.parametrize("known", [0, 130, 280])
def test_tiles_hold_all_that_is_seen_and_full_ones_nothing_else(known):
    keys = key_intervals(branches_of(long_tree(np.random.default_rng(known)), known))
    rows = np.arange(keys.rows)[:, None]
    seen = (keys.begin <= rows) & (rows < keys.end)
    padded = np.zeros((-(-seen.shape[0] // TILE) * TILE, -(-seen.shape[1] // TILE) * TILE), dtype=bool)
    padded[: seen.shape[0], : seen.shape[1]] = seen
    tiled = padded.reshape(padded.shape[0] // TILE, TILE, -1, TILE)
    in_rows = np.arange(padded.shape[0]).reshape(-1, TILE) < keys.rows
    tiles = keys.tiles()
    assert not (tiles.partial & tiles.full).any()
    assert (tiled.any((1, 3)) <= (tiles.partial | tiles.full)).all()
    every = (tiled | ~in_rows[:, :, None, None]).all((1, 3))  # rows beyond the last are not computed
    assert (tiles.full <= every).all()
    assert tiles.full.sum() >= 1
    assert (tiles.partial | tiles.full).sum() < tiles.full.size  # there is something to skip


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")  # slow there, and right
def test_flex_attention_gives_the_states_of_plain_reading():
    torch.manual_seed(0)
    sizes = {"vocab_size": 32, "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 32}
    trunk = LlamaModel(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)).eval()
    sequences = long_tree(np.random.default_rng(1))
    everywhere = [range(len(sequence)) for sequence in sequences]
    with torch.no_grad():
        plain = [trunk(input_ids=torch.tensor([sequence])).last_hidden_state[0] for sequence in sequences]
    trunk.set_attn_implementation("flex_attention")
    for output in read_trees(trunk, TokenPool(), sequences, everywhere, {}, batch_tokens=400):
        for number, states in output.states.items():
            torch.testing.assert_close(states, plain[number], atol=1e-5, rtol=1e-4)
    assert trunk.config._attn_implementation == "flex_attention"
