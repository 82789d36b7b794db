"""Hidden states of many traces that begin alike, each common prefix read once.

The hidden state of a causal trunk depends on the tokens before it only. The traces of one problem, or the
alternatives that raters saw at each step of one solution (PRM800K has some thirty a problem), form a tree of
tokens; its nodes are laid out depth first in one sequence, with an attention mask that shows each token its
ancestors and itself, and its depth as position (SpecInfer's tree attention, arXiv 2305.09781).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from surefoot.models.reward_model import pad_batch

Tokens = tuple[int, ...]

_PADDED_TOKENS = 16_384
"""Padded tokens of one pass over sequences that cannot share their prefixes."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What one pass through the trunk gave."""

    tokens: int
    """Tokens that went through the trunk, padding left out."""
    states: dict[int, torch.Tensor]
    """By number of the sequence: float32 states at its positions, shape [positions, hidden], on the CPU."""


@dataclass(frozen=True, kw_only=True)
class TokenTree:
    """Sequences laid over each other; N nodes in depth-first order."""

    ids: Tokens
    """Token of each node, shape [N]."""
    parents: Tokens
    """Node before each node, shape [N]; -1 at a first token."""
    depths: Tokens
    """Position of each node in its own sequence, shape [N]."""
    members: tuple[int, ...]
    """Which of the given sequences are in this tree."""
    paths: tuple[Tokens, ...]
    """For each member, the node of each of its tokens."""

    def visible(self) -> NDArray[np.bool_]:
        """Which nodes (columns) each node (row) may attend to: its ancestors and itself, shape [N, N]."""
        seen = np.zeros((len(self.ids), len(self.ids)), dtype=bool)
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                seen[node] = seen[parent]
            seen[node, node] = True
        return seen


def read_states(
    trunk: PreTrainedModel, sequences: Sequence[Tokens], positions: Sequence[Sequence[int]]
) -> Iterator[Reading]:
    """Last hidden states at ``positions[k]`` of ``sequences[k]``, pass after pass, every sequence once.

    Common prefixes are read once where the trunk allows it (:func:`can_read_trees`), else sequences of
    similar length are padded together. Positions count from 0.
    """
    if can_read_trees(trunk):
        for tree in build_trees(sequences):
            hidden = read_tree(trunk, tree).float().cpu()
            states = {
                member: hidden[[path[at] for at in positions[member]]]
                for member, path in zip(tree.members, tree.paths, strict=True)
            }
            yield Reading(tokens=len(tree.ids), states=states)
        return
    order = sorted(range(len(sequences)), key=lambda index: len(sequences[index]))
    while order:
        longest = len(sequences[order[-1]])  # first: memory that is too small shows at once
        group = [order.pop() for _ in range(min(len(order), max(1, _PADDED_TOKENS // longest)))]
        hidden = _read_padded(trunk, [sequences[index] for index in group])
        states = {index: hidden[row, list(positions[index])] for row, index in enumerate(group)}
        yield Reading(tokens=sum(len(sequences[index]) for index in group), states=states)


def build_trees(sequences: Sequence[Tokens], *, limit: int = 4096) -> Iterator[TokenTree]:
    """Lay sequences over each other, at most ``limit`` nodes a tree (more if one sequence alone is longer).

    A tree is closed when it is full, and early where its next sequence would share little, because
    attention costs the square of its nodes. What it shares with a sequence of the next tree is read again:
    too low a limit costs more than the square does (on PRM800K, 2048 reads twice the tokens of 4096).
    """
    order = sorted(range(len(sequences)), key=lambda index: sequences[index])
    shared = [0] + [_common(sequences[a], sequences[b]) for a, b in pairwise(order)]
    start = nodes = 0
    for place, (index, common) in enumerate(zip(order, shared, strict=False)):
        new = len(sequences[index]) - common
        full = nodes + new > limit or (nodes > limit // 8 and common < len(sequences[index]) // 4)
        if place > start and full:
            yield _tree(sequences, order[start:place], shared[start:place])
            start, nodes, new = place, 0, len(sequences[index])
        nodes += new
    if order:
        yield _tree(sequences, order[start:], shared[start:])


@torch.no_grad()
def read_tree(trunk: PreTrainedModel, tree: TokenTree) -> torch.Tensor:
    """Last hidden states of all nodes, shape [N, hidden], as plain reading would give them up to rounding."""
    device, dtype = trunk.device, trunk.dtype
    mask = torch.zeros((len(tree.ids), len(tree.ids)), dtype=dtype)
    mask.masked_fill_(~torch.from_numpy(tree.visible()), torch.finfo(dtype).min)
    output = trunk(
        input_ids=torch.tensor([tree.ids], device=device),
        position_ids=torch.tensor([tree.depths], device=device),
        attention_mask=mask[None, None].to(device),
        use_cache=False,
    )
    return output.last_hidden_state[0]


def can_read_trees(trunk: PreTrainedModel) -> bool:
    """Whether :func:`read_tree` agrees with plain reading for this trunk, tried on a small tree.

    Not so for trunks that look ahead, that take no positions or no mask of their own, or that attend to a
    sliding window (which the small tree would not show).
    """
    config = trunk.config.get_text_config()
    kinds = getattr(config, "layer_types", None)
    windowed = getattr(config, "sliding_window", None) is not None if kinds is None else False
    if windowed or set(kinds or ["full_attention"]) != {"full_attention"}:
        return False
    size = int(config.vocab_size)
    stem = tuple(number * 7 % size for number in range(1, 9))
    sequences = [(*stem, *(number % size for number in ending)) for ending in ((2, 3, 11), (5, 3, 13))]
    (tree,) = build_trees(sequences)
    try:
        together = read_tree(trunk, tree)
        with torch.no_grad():
            alone = trunk(input_ids=torch.tensor(sequences, device=trunk.device)).last_hidden_state
    except (TypeError, ValueError, RuntimeError, IndexError):
        return False
    # rounding: float32 gives 1e-6, bfloat16 1e-2 in a deep trunk, where a wrong ancestor gives far more;
    # equal tokens in equal rows round alike, so looking ahead shows at any size
    tolerance = 1e-4 if trunk.dtype == torch.float32 else 0.05
    near = all(
        _difference(together[list(path)], alone[member]) < tolerance
        for member, path in zip(tree.members, tree.paths, strict=True)
    )
    return near and _difference(alone[0, : len(stem)], alone[1, : len(stem)]) < 1e-4


def _difference(states: torch.Tensor, expected: torch.Tensor) -> float:
    """Norm of the difference over the norm of what is expected."""
    return float((states.float() - expected.float()).norm() / expected.float().norm())


def _tree(sequences: Sequence[Tokens], members: list[int], shared: list[int]) -> TokenTree:
    ids: list[int] = []
    parents: list[int] = []
    depths: list[int] = []
    paths: list[Tokens] = []
    for number, index in enumerate(members):
        sequence, common = sequences[index], shared[number] if number else 0
        path = list(paths[-1][:common]) if number else []
        for depth in range(common, len(sequence)):
            parents.append(path[-1] if path else -1)
            path.append(len(ids))
            ids.append(sequence[depth])
            depths.append(depth)
        paths.append(tuple(path))
    return TokenTree(
        ids=tuple(ids),
        parents=tuple(parents),
        depths=tuple(depths),
        members=tuple(members),
        paths=tuple(paths),
    )


def _common(first: Tokens, second: Tokens) -> int:
    """Length of the common beginning."""
    for place, (a, b) in enumerate(zip(first, second, strict=False)):
        if a != b:
            return place
    return min(len(first), len(second))


@torch.no_grad()
def _read_padded(trunk: PreTrainedModel, sequences: list[Tokens]) -> torch.Tensor:
    ids, mask = pad_batch(sequences)
    output = trunk(input_ids=ids.to(trunk.device), attention_mask=mask.to(trunk.device), use_cache=False)
    return output.last_hidden_state.float().cpu()
