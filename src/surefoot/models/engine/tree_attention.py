"""Attention of a causal trunk over token trees, with the keys and values of earlier passes at hand.

All tokens of a pass, whatever sequence they belong to, go through the trunk as one row without padding; a
token's ancestors in the tree are its context (tree attention: SpecInfer, arXiv 2305.09781). Keys and values
lie in a pool by slot, which lets a pass attend to tokens of earlier passes (RadixAttention: SGLang, arXiv
2312.07104).

A mask over the whole row would cost the square of its tokens. A trunk that was loaded with the attention
``flex_attention`` runs one FlexAttention kernel a layer, which skips the tiles that show nothing. With any
other, attention is computed block by block: the queries of a few branches against the keys of their common
ancestors and their own, with a dense mask for each block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

from surefoot.models.engine.tree_plan import (
    TILE,
    KeyIntervals,
    Slots,
    TokenBranch,
    key_intervals,
    row_blocks,
)

_BLOCKS = "surefoot_tree"
_TILES = "surefoot_tree_flex"
_FLEX = "flex_attention"
_BLOCK = {"cpu": 128}
"""Queries of one call of attention, by device: tried on a CPU (neighbours did as well), a guess elsewhere."""
_CALL = {"cpu": 4e6}
"""What a further call of attention costs, in floating-point operations left undone meanwhile."""
_HARMLESS = {"dropout", "is_causal", "sliding_window", "position_ids", "cache_position", "use_cache"}
"""Arguments that change nothing here: windows are kept out by ``engine.packing.tree_limit``."""


class TokenPool:
    """Keys, values and last hidden states of tokens, by slot; it grows as tokens come.

    A slot is in use from :meth:`allocate` until :meth:`release`. Holders (:meth:`hold`, :meth:`drop`) keep
    slots through a release. It grows by half at a time, but beyond ``usual`` slots only by the requested
    number."""

    def __init__(self, usual: int | None = None) -> None:
        self._usual = usual
        self._used = np.zeros(0, dtype=bool)
        self._holders = np.zeros(0, dtype=np.int64)
        self._rows: dict[tuple[int, str], torch.Tensor] = {}

    @property
    def used(self) -> int:
        """Slots in use."""
        return int(self._used.sum())

    @property
    def held(self) -> int:
        """Slots in use."""
        return int(np.count_nonzero(self._holders))

    @property
    def capacity(self) -> int:
        """Slots for which there is memory."""
        return len(self._used)

    @property
    def nbytes(self) -> int:
        """Memory of all slots, free ones too."""
        return sum(rows.nbytes for rows in self._rows.values())

    def allocate(self, count: int) -> Slots:
        """Slots for ``count`` new tokens."""
        free = np.flatnonzero(~self._used)
        if len(free) < count:
            ahead = len(self._used) // 2
            if self._usual is not None:
                ahead = min(ahead, self._usual - len(self._used))
            self._grow(max(count - len(free), ahead))
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
        """Free all unused slots except ``keep``."""
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
class _AttentionBlock:
    """Queries in rows ``first`` to ``last`` - 1 and the keys that they see."""

    first: int
    last: int
    slots: torch.Tensor | None = None
    """Of the keys, shape [K]; ``None`` for a single branch that begins at the root and sees only itself."""
    mask: torch.Tensor | None = None
    """Shape [last - first, K], added to the scores: 0 = seen, minus infinity = not."""


@dataclass(frozen=True, kw_only=True)
class _TiledKeys:
    """All keys of a pass, and the tiles that their queries see."""

    slots: torch.Tensor
    mask: BlockMask


@dataclass(frozen=True, kw_only=True)
class _Pass:
    pool: TokenPool
    slots: torch.Tensor
    keys: list[_AttentionBlock] | _TiledKeys


_RUNNING: ContextVar[_Pass] = ContextVar("tree pass")


@contextmanager
def attending_to_trees(trunk: PreTrainedModel) -> Iterator[None]:
    """Inside, the trunk's attention is this module's. Raises ``ValueError`` if the trunk does not let it."""
    implementation = trunk.config._attn_implementation
    name = _TILES if implementation == _FLEX else _BLOCKS
    trunk.set_attn_implementation(name)
    if trunk.config._attn_implementation != name:
        raise ValueError(f"{type(trunk).__name__} does not let its attention be replaced")
    try:
        yield
    finally:
        trunk.set_attn_implementation(implementation)


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
    intervals = key_intervals(branches)
    keys: list[_AttentionBlock] | _TiledKeys
    if trunk.config._attn_implementation == _TILES:
        keys = _tiled(intervals, device)
    else:
        free = _CALL.get(device.type, 5e9) / (4 * trunk.config.get_text_config().hidden_size)
        rows = row_blocks(branches, size=_BLOCK.get(device.type, 512), free=free)
        keys = [_block(intervals, *block, device, trunk.dtype) for block in rows]
    running = _Pass(pool=pool, slots=torch.from_numpy(slots).to(device), keys=keys)
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


def _block(
    keys: KeyIntervals, first: int, last: int, alone: bool, device: torch.device, dtype: torch.dtype
) -> _AttentionBlock:
    if alone:
        return _AttentionBlock(first=first, last=last)
    seen = keys.of_rows(first, last)
    begin, end = (torch.from_numpy(bound[seen]).to(device) for bound in (keys.begin, keys.end))
    rows = torch.arange(first, last, device=device)[:, None]
    # as numbers: from a boolean mask each layer would recompute them
    mask = torch.zeros((last - first, len(seen)), dtype=dtype, device=device)
    mask.masked_fill_((rows < begin) | (rows >= end), -torch.inf)
    return _AttentionBlock(
        first=first, last=last, slots=torch.from_numpy(keys.slots[seen]).to(device), mask=mask
    )


def _tiled(keys: KeyIntervals, device: torch.device) -> _TiledKeys:
    # whole tiles: the kernel reads the bounds of every key of a tile
    padded = -len(keys.slots) % TILE
    begin = torch.from_numpy(np.pad(keys.begin, (0, padded), constant_values=keys.rows)).to(device)
    end, slots = (
        torch.from_numpy(np.pad(values, (0, padded))).to(device) for values in (keys.end, keys.slots)
    )

    def seen(_batch: torch.Tensor, _head: torch.Tensor, row: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (begin[key] <= row) & (row < end[key])

    tiles = keys.tiles()
    mask = BlockMask.from_kv_blocks(
        *_listed(tiles.partial, device),
        *_listed(tiles.full, device),
        BLOCK_SIZE=TILE,
        mask_mod=seen,
        seq_lengths=(keys.rows, len(slots)),
        compute_q_blocks=False,  # which only a backward pass needs
    )
    return _TiledKeys(slots=slots, mask=mask)


def _listed(tiles: np.ndarray, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Number of tiles in each row, and their columns first, as in BlockMask."""
    columns = np.argsort(~tiles, axis=1, kind="stable").astype(np.int32)
    counts = tiles.sum(axis=1, dtype=np.int32)
    return torch.from_numpy(counts)[None, None].to(device), torch.from_numpy(columns)[None, None].to(device)


def _start(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    settings: dict[str, object],
) -> tuple[_Pass, torch.Tensor, torch.Tensor]:
    """The pass under way; keys and values [capacity, heads, D] of the layer's whole pool, new ones included.

    Raises ``ValueError`` for what a tree cannot have.
    """
    strange = [name for name, value in settings.items() if value is not None and name not in _HARMLESS]
    if strange or attention_mask is not None or query.shape[2] != key.shape[2]:
        raise ValueError(f"no tree attention with {', '.join(strange) or 'a mask'}")
    running = _RUNNING.get()
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    slots = running.slots.to(key.device)  # a trunk may be spread over devices
    # [1, heads, N, D] -> [N, heads, D]: a token's heads together, which makes gathering a copy of rows
    keys = running.pool.write(layer, "key", slots, key[0].transpose(0, 1))
    values = running.pool.write(layer, "value", slots, value[0].transpose(0, 1))
    return running, keys, values


def _attend_by_blocks(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **settings: object,
) -> tuple[torch.Tensor, None]:
    """Attention of one layer, in the form transformers' AttentionInterface asks for."""
    running, keys, values = _start(module, query, key, value, attention_mask, settings)
    output = query.new_empty((1, query.shape[2], query.shape[1], value.shape[-1]))
    for block in running.keys:  # type: ignore[union-attr]
        mask = None
        if block.slots is None:
            k, v = key[:, :, block.first : block.last], value[:, :, block.first : block.last]
        else:
            k, v = (_gather(rows, block.slots) for rows in (keys, values))
            mask = None if block.mask is None else block.mask.to(query)
        # heads that share keys are the heads of a batch of their own: no kernel needs copies of the keys then
        shared, each = key.shape[1], query.shape[1] // key.shape[1]
        q = query[0, :, block.first : block.last].unflatten(0, (shared, each))
        k, v = (tensor[0][:, None].expand(-1, each, -1, -1) for tensor in (k, v))
        attended = scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=scaling
        )
        output[:, block.first : block.last] = attended.flatten(0, 1).transpose(0, 1)
    return output, None


def _attend_by_tiles(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **settings: object,
) -> tuple[torch.Tensor, None]:
    """The same by FlexAttention."""
    running, keys, values = _start(module, query, key, value, attention_mask, settings)
    tiled: _TiledKeys = running.keys  # type: ignore[assignment]
    attended = _flex(query.device.type)(
        query,
        _gather(keys, tiled.slots),
        _gather(values, tiled.slots),
        block_mask=tiled.mask,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return attended.transpose(1, 2).contiguous(), None


def _gather(rows: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """[capacity, heads, D] -> [1, heads, K, D]."""
    return rows.index_select(0, slots.to(rows.device)).transpose(0, 1)[None]


@cache
def _flex(device: str) -> Callable[..., Any]:
    """The kernel; compiled for a GPU. On a CPU it is for comparison alone: compiling takes a C++ compiler."""
    kernel: Callable[..., Any] = flex_attention
    return torch.compile(kernel, dynamic=True) if device == "cuda" else kernel


AttentionInterface.register(_BLOCKS, _attend_by_blocks)
AttentionInterface.register(_TILES, _attend_by_tiles)
