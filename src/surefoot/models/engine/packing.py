"""Hidden states of many traces that begin alike, each common prefix read once.

The hidden state of a causal trunk depends on the tokens before it only. The traces of one problem, or the
alternatives that raters saw at each step of one solution (PRM800K has some thirty a problem), form a tree of
tokens. Sorted, the sequences walk that tree depth first: each adds a branch to the path of the one before.
The branches go through the trunk in passes of a bounded number of tokens; a branch attends to its ancestors
in earlier passes through a pool of keys and values (``surefoot.models.engine.tree_attention``).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from surefoot.models.engine.tree_attention import (
    Slots,
    TokenBranch,
    TokenPool,
    attending_to_trees,
    read_branches,
)
from surefoot.tree import Tokens, shared_length

PASS_TOKENS = {"cpu": 1024}
"""Tokens of one pass by device. A CPU's caches hold what a layer makes of a thousand, and not of many more;
a GPU needs more to be busy."""
_PASS_TOKENS = 8192
"""Tokens of one pass on other devices."""


@dataclass(frozen=True, kw_only=True)
class TrunkOutput:
    """Result of one forward pass through the trunk."""

    new: dict[int, int]
    """By number of the sequence: its tokens that went through the trunk; those it shares with a sequence
    before it, or with the cache, are not counted again. Padding is left out."""
    states: dict[int, torch.Tensor]
    """By number of the sequence: states at its positions, shape [positions, hidden], in the trunk's dtype."""
    paths: dict[int, Slots]
    """By number of the sequence: where its tokens lie in the pool; empty for a padded pass."""

    @property
    def tokens(self) -> int:
        """Tokens that went through the trunk for the sequences of this reading."""
        return sum(self.new.values())


def read_states(
    trunk: PreTrainedModel,
    sequences: Sequence[Tokens],
    positions: Sequence[Sequence[int]],
    *,
    batch_tokens: int = 16_384,
    limit: int | None = None,
) -> Iterator[TrunkOutput]:
    """Last hidden states at ``positions[k]`` of ``sequences[k]``, pass after pass, every sequence once.

    Each distinct token is read once where the trunk allows it (``limit``, by default asked of
    :func:`tree_limit`), else sequences of similar length are padded together. Positions count from 0;
    ``batch_tokens`` bounds the tokens of a pass, with padding (one sequence may be longer).
    """
    limit = tree_limit(trunk) if limit is None else limit
    if max(map(len, sequences), default=0) <= limit:
        yield from read_trees(trunk, TokenPool(), sequences, positions, {}, batch_tokens=batch_tokens)
        return
    order = sorted(range(len(sequences)), key=lambda number: len(sequences[number]))
    if unread := [number for number in order if not len(sequences[number])]:  # texts that were refused
        order = order[len(unread) :]
        size = trunk.config.get_text_config().hidden_size
        nothing = torch.empty(0, size, dtype=trunk.dtype, device=trunk.device)
        yield TrunkOutput(new=dict.fromkeys(unread, 0), states=dict.fromkeys(unread, nothing), paths={})
    while order:
        longest = len(sequences[order[-1]])  # first: memory that is too small shows at once
        group = [order.pop() for _ in range(min(len(order), max(1, batch_tokens // longest)))]
        hidden = _read_padded(trunk, [sequences[number] for number in group])
        states = {number: hidden[row, list(positions[number])] for row, number in enumerate(group)}
        yield TrunkOutput(new={number: len(sequences[number]) for number in group}, states=states, paths={})


def read_trees(
    trunk: PreTrainedModel,
    pool: TokenPool,
    sequences: Sequence[Tokens],
    positions: Sequence[Sequence[int]],
    known: Mapping[int, Slots],
    *,
    batch_tokens: int = 16_384,
) -> Iterator[TrunkOutput]:
    """:func:`read_states` for a trunk that can read trees, each distinct token once.

    ``known[k]``: slots of the tokens with which ``sequences[k]`` begins, if the pool has them (held by the
    caller). New slots are released after the next pass unless the caller holds them by then.
    """
    size = min(batch_tokens, PASS_TOKENS.get(trunk.device.type, _PASS_TOKENS))
    order = sorted(range(len(sequences)), key=lambda number: sequences[number])
    branches: list[TokenBranch] = []
    ended: dict[int, Slots] = {}
    new: dict[int, int] = {}
    room = size
    previous: Tokens = ()
    path: Slots = np.zeros(0, dtype=np.int64)
    jump = False  # whether the next branch leaves the path of the branch before it

    def flush() -> TrunkOutput:
        if branches:
            with attending_to_trees(trunk):
                read_branches(trunk, pool, branches)
        states = {}
        for number, slots in ended.items():
            at = torch.from_numpy(slots[list(positions[number])])
            states[number] = pool.hidden(at.to(trunk.device))
        return TrunkOutput(new={number: new[number] for number in ended}, states=states, paths=dict(ended))

    for number in order:
        ids = sequences[number]
        common, have = shared_length(previous, ids), known.get(number, path[:0])
        start = max(common, len(have))
        above = have if len(have) > common else path[:common]
        jump |= len(have) > common  # stays so past a sequence that is known whole and adds no branch
        path = np.concatenate([above, np.zeros(len(ids) - start, dtype=np.int64)])
        previous, new[number] = ids, len(ids) - start
        while start < len(ids):
            if not room:
                yield flush()
                pool.release(keep=path[:start])
                branches, ended, room = [], {}, size
            stop = min(len(ids), start + room)
            path[start:stop] = pool.allocate(stop - start)
            branches.append(TokenBranch(ids=ids, path=path, start=start, stop=stop, jump=jump))
            room, start, jump = room - (stop - start), stop, False
        ended[number] = path
    if ended:
        yield flush()
    pool.release()


def pad_batch(sequences: list[tuple[int, ...]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Right-pad token ids to ``[B, T]``; returns ids and mask. Padding is id 0, masked, never read."""
    rows = [torch.tensor(sequence) for sequence in sequences]
    ids, mask = (pad_sequence(part, batch_first=True) for part in (rows, [*map(torch.ones_like, rows)]))
    return ids, mask


def tree_limit(trunk: PreTrainedModel) -> int:
    """Longest sequence that :func:`read_trees` reads as plain reading would; 0 = it does not.

    Tried on a small tree: 0 for trunks that look ahead, keep a recurrent state, do not take positions, or
    whose attention cannot be replaced. A sliding window, which the small tree would not show, is the limit.
    """
    config = trunk.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if not kinds <= {"full_attention", "sliding_attention"}:
        return 0
    window = getattr(config, "sliding_window", None)
    if "sliding_attention" in kinds and window is None:
        return 0
    if not _agrees(trunk, int(config.vocab_size)):
        return 0
    return sys.maxsize if window is None else int(window)


def _agrees(trunk: PreTrainedModel, vocabulary: int) -> bool:
    """Whether reading a small tree in two passes gives the states of plain reading."""
    stem = tuple(number * 7 % vocabulary for number in range(1, 9))
    sequences = [(*stem, *(number % vocabulary for number in ending)) for ending in ((2, 3, 11), (5, 3, 13))]
    everywhere = [range(len(sequence)) for sequence in sequences]
    try:
        readings = list(read_trees(trunk, TokenPool(), sequences, everywhere, {}, batch_tokens=10))
        with torch.no_grad():
            alone = trunk(input_ids=torch.tensor(sequences, device=trunk.device)).last_hidden_state
    except (AttributeError, KeyError, LookupError, TypeError, ValueError, RuntimeError):
        return False
    # rounding: float32 gives 1e-6, bfloat16 1e-2 in a deep trunk, where a wrong ancestor gives far more;
    # equal tokens in equal rows round alike, so looking ahead shows at any size
    tolerance = 1e-4 if trunk.dtype == torch.float32 else 0.05
    near = all(
        _difference(states, alone[number]) < tolerance
        for reading in readings
        for number, states in reading.states.items()
    )
    return near and _difference(alone[0, : len(stem)], alone[1, : len(stem)]) < 1e-4


def _difference(states: torch.Tensor, expected: torch.Tensor) -> float:
    """Norm of the difference over the norm of the expected values."""
    return float((states.float() - expected.float()).norm() / expected.float().norm())


@torch.no_grad()
def _read_padded(trunk: PreTrainedModel, sequences: list[Tokens]) -> torch.Tensor:
    ids, mask = pad_batch(sequences)
    output = trunk(input_ids=ids.to(trunk.device), attention_mask=mask.to(trunk.device), use_cache=False)
    return output.last_hidden_state
