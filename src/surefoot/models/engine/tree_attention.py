"""Attention of a causal trunk over token trees, with the keys and values of earlier passes at hand.

All tokens of a pass, whatever sequence they belong to, go through the trunk as one row without padding; a
token's ancestors in the tree are its context (tree attention: SpecInfer, arXiv 2305.09781). A mask over the
whole row would cost the square of its tokens, so attention is computed block by block: the queries of a few
branches against the keys of their common ancestors and their own. Keys and values lie in a pool by slot,
which lets a pass attend to tokens of earlier passes (RadixAttention: SGLang, arXiv 2312.07104).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

Slots = NDArray[np.int64]

_NAME = "surefoot_tree"
_BLOCK = {"cpu": 128}
"""Queries of one call of attention, by device: tried on a CPU (neighbours did as well), a guess elsewhere."""
_CALL = {"cpu": 4e6}
"""What a further call of attention costs, in floating-point operations left undone meanwhile."""
_HARMLESS = {"dropout", "is_causal", "sliding_window", "position_ids", "cache_position", "use_cache"}
"""Arguments that change nothing here: windows are kept out by ``engine.packing.tree_limit``."""


class TokenPool:
    """Keys, values and last hidden states of tokens, by slot; it grows as tokens come.

    A slot is in use from :meth:`allocate` until :meth:`release`. Holders (:meth:`hold`, :meth:`drop`) keep
    slots through a release.
    """

    def __init__(self) -> None:
        self._used = np.zeros(0, dtype=bool)
        self._holders = np.zeros(0, dtype=np.int64)
        self._rows: dict[tuple[int, str], torch.Tensor] = {}

    @property
    def used(self) -> int:
        """Slots in use."""
        return int(self._used.sum())

    @property
    def held(self) -> int:
        """Slots that somebody holds."""
        return int(np.count_nonzero(self._holders))

    @property
    def capacity(self) -> int:
        """Slots for which there is memory."""
        return len(self._used)

    def allocate(self, count: int) -> Slots:
        """Slots for ``count`` new tokens."""
        free = np.flatnonzero(~self._used)
        if len(free) < count:
            self._grow(max(count - len(free), len(self._used) // 2))
            free = np.flatnonzero(~self._used)
        slots = free[:count]
        self._used[slots] = True
        return slots

    def hold(self, slots: Slots) -> None:
        """Keep these until :meth:`drop` is called as often."""
        self._holders[slots] += 1

    def drop(self, slots: Slots) -> None:
        """Let go of these; they are free at the next :meth:`release` unless held by another."""
        self._holders[slots] -= 1

    def release(self, keep: Slots | None = None) -> None:
        """Free all slots that nobody holds, except ``keep``."""
        held = self._holders > 0
        if keep is not None:
            held[keep] = True
        self._used &= held

    def write(self, layer: int, kind: str, slots: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Put ``rows`` ``[N, ...]`` of one layer into ``slots`` ``[N]``; returns all ``[capacity, ...]``."""
        stored = self._rows.get((layer, kind))
        if stored is None or len(stored) < self.capacity:
            grown = rows.new_empty((self.capacity, *rows.shape[1:]))
            if stored is not None:
                grown[: len(stored)] = stored
            stored = self._rows[layer, kind] = grown
        return stored.index_copy_(0, slots, rows)

    def hidden(self, slots: torch.Tensor) -> torch.Tensor:
        """Last hidden states ``[N, H]`` of the tokens in ``slots``."""
        stored = self._rows.get((-1, "hidden"))
        return torch.empty((0, 0)) if stored is None else stored.index_select(0, slots)

    def _grow(self, more: int) -> None:
        self._used = np.concatenate([self._used, np.zeros(more, dtype=bool)])
        self._holders = np.concatenate([self._holders, np.zeros(more, dtype=np.int64)])


@dataclass(frozen=True, kw_only=True)
class TokenBranch:
    """New tokens of one sequence: those at depths ``start`` to ``stop`` - 1."""

    ids: tuple[int, ...]
    """The whole sequence."""
    path: Slots
    """Slot of each of its tokens, valid up to ``stop``."""
    start: int
    stop: int
    jump: bool
    """Whether its ancestors include tokens that are neither new nor ancestors of the branch before."""


@dataclass(frozen=True, kw_only=True)
class _AttentionBlock:
    """Queries in rows ``first`` to ``last`` - 1 and the keys that they see."""

    first: int
    last: int
    slots: torch.Tensor
    """Of the keys, shape [K]: common ancestors from the root, then the block's own tokens."""
    mask: torch.Tensor | None
    """Shape [last - first, K], added to the scores: 0 = seen, minus infinity = not; ``None`` for a single
    branch that begins at the root."""


@dataclass(frozen=True, kw_only=True)
class _Pass:
    pool: TokenPool
    slots: torch.Tensor
    blocks: list[_AttentionBlock]


_RUNNING: ContextVar[_Pass] = ContextVar("tree pass")


@contextmanager
def attending_to_trees(trunk: PreTrainedModel) -> Iterator[None]:
    """Inside, the trunk's attention is this module's. Raises ``ValueError`` if the trunk does not let it."""
    before = trunk.config._attn_implementation
    trunk.set_attn_implementation(_NAME)
    if trunk.config._attn_implementation != _NAME:
        raise ValueError(f"{type(trunk).__name__} does not let its attention be replaced")
    try:
        yield
    finally:
        trunk.set_attn_implementation(before)


@torch.no_grad()
def read_branches(trunk: PreTrainedModel, pool: TokenPool, branches: Sequence[TokenBranch]) -> None:
    """Read new tokens in one pass; their last hidden states are in the pool afterwards.

    Call it inside :func:`attending_to_trees`. ``branches`` come depth first: unless it is a jump, the
    ancestors of a branch lie on the path of the branch before it.
    """
    device = trunk.device
    ids = [token for branch in branches for token in branch.ids[branch.start : branch.stop]]
    depths = np.concatenate([np.arange(branch.start, branch.stop) for branch in branches])
    slots = np.concatenate([branch.path[branch.start : branch.stop] for branch in branches])
    config = trunk.config.get_text_config()
    free = _CALL.get(device.type, 5e9) / (4 * config.hidden_size)
    groups = _group(branches, size=_BLOCK.get(device.type, 512), free=free)
    running = _Pass(
        pool=pool,
        slots=torch.from_numpy(slots).to(device),
        blocks=list(_blocks(groups, device, trunk.dtype)),
    )
    token = _RUNNING.set(running)
    try:
        output = trunk(
            input_ids=torch.tensor([ids], device=device),
            position_ids=torch.from_numpy(depths)[None].to(device),
            use_cache=False,
        )
    finally:
        _RUNNING.reset(token)
    pool.write(-1, "hidden", running.slots, output.last_hidden_state[0])


def _group(branches: Sequence[TokenBranch], *, size: int, free: float) -> Iterator[list[TokenBranch]]:
    """Which branches are one block. ``free``: masked scores that cost as much as a further call."""
    group: list[TokenBranch] = []
    rows = 0
    for branch in branches:
        for start in range(branch.start, branch.stop, size) if branch.start else [0]:
            stop = min(branch.stop, start + size) if branch.start else branch.stop
            piece = TokenBranch(
                ids=branch.ids,
                path=branch.path,
                start=start,
                stop=stop,
                jump=branch.jump and start == branch.start,
            )
            new = stop - start
            unseen = new * (group[0].start + rows - start) + rows * new if group else 0
            if group and (piece.jump or not group[0].start or not start or unseen > free):
                yield group
                group, rows = [], 0
            group.append(piece)
            rows += new
    if group:
        yield group


def _blocks(
    groups: Iterator[list[TokenBranch]], device: torch.device, dtype: torch.dtype
) -> Iterator[_AttentionBlock]:
    first = 0
    for group in groups:
        above = group[0].start
        slots = [group[0].path[:above], *(piece.path[piece.start : piece.stop] for piece in group)]
        last = first + sum(piece.stop - piece.start for piece in group)
        mask = None
        if above or len(group) > 1:  # as numbers: from a boolean mask each layer would make them anew
            unseen = torch.from_numpy(~_visible(group)).to(device)
            mask = torch.zeros(unseen.shape, dtype=dtype, device=device).masked_fill_(unseen, -torch.inf)
        yield _AttentionBlock(
            first=first, last=last, slots=torch.from_numpy(np.concatenate(slots)).to(device), mask=mask
        )
        first = last


def _visible(group: list[TokenBranch]) -> NDArray[np.bool_]:
    """Which keys (columns: ancestors of the first branch, then all tokens of the group) each token sees."""
    above = group[0].start
    rows = sum(piece.stop - piece.start for piece in group)
    visible = np.zeros((rows, above + rows), dtype=bool)
    columns = np.arange(above)
    row = 0
    for piece in group:
        new = piece.stop - piece.start
        columns = columns[: piece.start]
        visible[row : row + new, columns] = True
        visible[row : row + new, above + row : above + row + new] = np.tri(new, dtype=bool)
        columns = np.concatenate([columns, np.arange(above + row, above + row + new)])
        row += new
    return visible


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **settings: object,
) -> tuple[torch.Tensor, None]:
    """Attention of one layer, in the form transformers' AttentionInterface asks for."""
    strange = [name for name, value in settings.items() if value is not None and name not in _HARMLESS]
    if strange or attention_mask is not None or query.shape[2] != key.shape[2]:
        raise ValueError(f"no tree attention with {', '.join(strange) or 'a mask'}")
    running = _RUNNING.get()
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    # [1, heads, N, D] -> [N, heads, D]: a token's heads together, which makes gathering a copy of rows
    keys = running.pool.write(layer, "key", running.slots, key[0].transpose(0, 1))
    values = running.pool.write(layer, "value", running.slots, value[0].transpose(0, 1))
    output = query.new_empty((1, query.shape[2], query.shape[1], value.shape[-1]))
    repeats = query.shape[1] // key.shape[1]
    for block in running.blocks:
        if block.mask is None:
            k, v = key[:, :, block.first : block.last], value[:, :, block.first : block.last]
        else:
            k = keys.index_select(0, block.slots).transpose(0, 1)[None]
            v = values.index_select(0, block.slots).transpose(0, 1)[None]
        grouped = repeats > 1 and (block.mask is None or query.device.type == "cpu")
        if repeats > 1 and not grouped:  # CUDA has no fast kernel for shared heads with a mask
            k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
        attended = scaled_dot_product_attention(
            query[:, :, block.first : block.last],
            k,
            v,
            attn_mask=None if block.mask is None else block.mask.to(query.dtype),
            is_causal=block.mask is None,
            scale=scaling,
            enable_gqa=grouped,
        )
        output[:, block.first : block.last] = attended.transpose(1, 2)
    return output, None


AttentionInterface.register(_NAME, _attend)
