"""Attention of a causal trunk over token trees, with the keys and values of earlier passes at hand.

All tokens of a pass, whatever sequence they belong to, go through the trunk as one row without padding; a
token's ancestors in the tree are its context (tree attention: SpecInfer, arXiv 2305.09781). Keys and values
lie in a pool by slot, which lets a pass attend to tokens of earlier passes (RadixAttention: SGLang, arXiv
2312.07104).

A mask over the whole row would cost the square of its tokens. So attention is computed block by block: the
queries of a few branches against the keys of their common ancestors and their own, with a dense mask for each
block. In training, where all tokens are new and need gradients, FlexAttention does the same on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

Slots = NDArray[np.int64]


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
class KeyIntervals:
    """The keys of one pass: row q sees key k if ``begin[k] <= q < end[k]``. All of shape [K]."""

    slots: Slots
    begin: NDArray[np.int64]
    """Never falls from one key to the next."""
    end: NDArray[np.int64]
    rows: int

    def of_rows(self, first: int, last: int) -> NDArray[np.int64]:
        """Which keys rows ``first`` to ``last`` - 1 see."""
        behind = int(np.searchsorted(self.begin, last))
        return np.flatnonzero(self.end[:behind] > first)


def key_intervals(branches: Sequence[TokenBranch]) -> KeyIntervals:
    """The keys of a pass over ``branches``, which come depth first."""
    slots: list[Slots] = []
    begin: list[NDArray[np.int64]] = []
    closed: list[tuple[NDArray[np.int64], int]] = []
    path = numbers = np.zeros(
        0, dtype=np.int64
    )  # slots of the tokens that are open, and their numbers as keys
    row = keys = 0
    for branch in branches:
        above = branch.path[: branch.start]
        both = min(len(path), len(above))
        equal = path[:both] == above[:both]
        common = both if equal.all() else int(equal.argmin())
        closed.append((numbers[common:], row))
        fresh, new = above[common:], branch.stop - branch.start
        slots += [fresh, branch.path[branch.start : branch.stop]]
        begin += [np.full(len(fresh), row), np.arange(row, row + new)]
        path = branch.path[: branch.stop]
        numbers = np.concatenate([numbers[:common], np.arange(keys, keys + len(fresh) + new)])
        row, keys = row + new, keys + len(fresh) + new
    end = np.full(keys, row)
    for interval, at in closed:
        end[interval] = at
    return KeyIntervals(slots=np.concatenate(slots), begin=np.concatenate(begin), end=end, rows=row)


def row_blocks(branches: Sequence[TokenBranch], *, size: int, free: float) -> Iterator[tuple[int, int, bool]]:
    """Rows that one call of attention takes: first, last + 1, and whether they are one branch from the root.

    ``size``: most rows of a branch in one. ``free``: masked scores that cost as much as a further call.
    """
    first = rows = above = pieces = 0
    for branch in branches:
        for start in range(branch.start, branch.stop, size) if branch.start else [0]:
            stop = min(branch.stop, start + size) if branch.start else branch.stop
            jump = branch.jump and start == branch.start
            new = stop - start
            unseen = new * (above + rows - start) + rows * new if pieces else 0
            if pieces and (jump or not above or not start or unseen > free):
                yield first, first + rows, not above and pieces == 1
                first, rows, pieces = first + rows, 0, 0
            if not pieces:
                above = start
            rows, pieces = rows + new, pieces + 1
    if pieces:
        yield first, first + rows, not above and pieces == 1


_NAME = "surefoot_tree"
_BLOCK = {"cpu": 128}
"""Queries of one call of attention, by device: tried on a CPU (neighbours did as well), a guess elsewhere."""
_ROWS = 128
"""Of a branch alone, in the gradient."""
_CALL = {"cpu": 4e6}
"""What a further call of attention costs, in floating-point operations left undone meanwhile."""
_HARMLESS = {"is_causal", "sliding_window", "position_ids", "cache_position", "use_cache"}
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
        """Slots that have a holder."""
        return int(np.count_nonzero(self._holders))

    @property
    def capacity(self) -> int:
        """Slots for which there is memory."""
        return len(self._used)

    def allocate(self, count: int) -> Slots:
        """Slots for ``count`` new tokens."""
        free = np.flatnonzero(~self._used)
        if len(free) < count:
            ahead = len(self._used) // 2
            if self._usual is not None:
                ahead = min(ahead, self._usual - len(self._used))
            more = max(count - len(free), ahead)
            self._used = np.pad(self._used, (0, more))
            self._holders = np.pad(self._holders, (0, more))
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
class TreePass:
    """Which tokens of one pass see which; in training the argument ``tree`` of a trunk's forward pass."""

    slots: torch.Tensor
    blocks: list[_AttentionBlock]
    pool: TokenPool | None = None
    """Keys and values of earlier passes; ``None`` if all tokens are new, and a slot is a row."""
    block_mask: BlockMask | None = None
    """For FlexAttention, in place of the blocks."""


_RUNNING: ContextVar[TreePass] = ContextVar("tree pass")


@contextmanager
def attending_to_trees(trunk: PreTrainedModel) -> Iterator[None]:
    """Inside, the trunk's attention is this module's. Raises ``ValueError`` if the trunk does not let it."""
    implementation = trunk.config._attn_implementation
    trunk.set_attn_implementation(_NAME)
    if trunk.config._attn_implementation != _NAME:
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
    ids, position_ids = branch_tokens(branches, trunk.device)
    running = tree_pass(trunk, branches, pool)
    token = _RUNNING.set(running)
    try:
        output = trunk(input_ids=ids, position_ids=position_ids, use_cache=False)
    finally:
        _RUNNING.reset(token)
    pool.write(-1, "hidden", running.slots, output.last_hidden_state[0])


def branch_tokens(branches: Sequence[TokenBranch], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and positions ``[1, N]`` of the new tokens of a pass."""
    ids = [token for branch in branches for token in branch.ids[branch.start : branch.stop]]
    depths = np.concatenate([np.arange(branch.start, branch.stop) for branch in branches])
    return torch.tensor([ids], device=device), torch.from_numpy(depths)[None].to(device)


def tree_pass(
    trunk: PreTrainedModel, branches: Sequence[TokenBranch], pool: TokenPool | None = None
) -> TreePass:
    """What the tokens of ``branches``, which come depth first, see.

    Without ``pool`` the branches hold whole trees (or traces side by side), and the slots of their paths are
    the rows of the pass.
    """
    if trunk.config._attn_implementation != _NAME:
        raise ValueError("outside attending_to_trees the trunk would read a tree as one text")
    device = trunk.device
    at = np.concatenate([branch.path[branch.start : branch.stop] for branch in branches])
    slots = torch.from_numpy(at).to(device)
    intervals = key_intervals(branches)
    if pool is None and device.type == "cuda":
        return TreePass(slots=slots, blocks=[], block_mask=flex_mask(intervals, device))
    free = _CALL.get(device.type, 5e9) / (4 * trunk.config.get_text_config().hidden_size)
    rows = row_blocks(branches, size=_BLOCK.get(device.type, 512), free=free)
    blocks = [_block(intervals, *block, device, trunk.dtype) for block in rows]
    return TreePass(slots=slots, blocks=blocks, pool=pool)


def flex_mask(keys: KeyIntervals, device: torch.device) -> BlockMask:
    """FlexAttention's mask of a pass whose keys are its own tokens in order."""
    end = torch.from_numpy(keys.end).to(device)

    def sees(_batch: torch.Tensor, _head: torch.Tensor, row: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (key <= row) & (row < end[key])

    return create_block_mask(sees, B=None, H=None, Q_LEN=keys.rows, KV_LEN=keys.rows, device=str(device))


@cache
def _compiled_flex_attention() -> Any:
    return torch.compile(flex_attention, dynamic=True)


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


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    tree: TreePass | None = None,
    **settings: object,
) -> tuple[torch.Tensor, None]:
    """Attention of one layer, in the form transformers' AttentionInterface asks for.

    Raises ``ValueError`` for what a tree cannot have.
    """
    strange = [name for name, value in settings.items() if value is not None and name not in _HARMLESS]
    if strange or attention_mask is not None or query.shape[2] != key.shape[2]:
        raise ValueError(f"no tree attention with {', '.join(strange) or 'a mask'}")
    running = tree or _RUNNING.get(None)
    if running is None:
        raise ValueError("no tree attention: the trunk does not hand its argument 'tree' down to it")
    if running.block_mask is not None:
        if dropout:
            raise ValueError("FlexAttention does not support dropout: set the model's attention_dropout to 0")
        attend = _compiled_flex_attention() if query.is_cuda else flex_attention
        grouped = query.shape[1] != key.shape[1]
        output = attend(query, key, value, block_mask=running.block_mask, scale=scaling, enable_gqa=grouped)
        return output.transpose(1, 2).contiguous(), None
    if running.pool is None and not dropout and torch.is_grad_enabled():
        dtype = product_dtype(query)
        query, key, value = (part.to(dtype) for part in (query, key, value))
        output = _BlockAttention.apply(query, key, value, running.blocks, scaling)
        return output, None
    new_kv: tuple[torch.Tensor, ...] = (_by_token(key), _by_token(value))
    stored = new_kv
    if running.pool is not None:
        layer = int(module.layer_idx)  # type: ignore[arg-type]
        slots = running.slots.to(key.device)  # a trunk may be spread over devices
        kinds = zip(("key", "value"), new_kv, strict=True)
        stored = tuple(running.pool.write(layer, kind, slots, rows) for kind, rows in kinds)
    return _attended(query, new_kv, stored, running.blocks, scaling, dropout), None


def product_dtype(operand: torch.Tensor | PreTrainedModel) -> torch.dtype:
    """The type of the operand's matrix products: autocast's, inside autocast."""
    device = operand.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else operand.dtype


def _by_token(part: torch.Tensor) -> torch.Tensor:
    """``[1, heads, N, D]`` as ``[N, heads, D]``: a token's heads together, so that gathering copies rows."""
    return part[0].transpose(0, 1)


def _attended(
    query: torch.Tensor,
    new_kv: tuple[torch.Tensor, ...],
    stored: tuple[torch.Tensor, ...],
    blocks: Sequence[_AttentionBlock],
    scaling: float | None,
    dropout: float,
) -> torch.Tensor:
    """Attention ``[1, N, heads, D]`` of ``query`` ``[1, heads, N, D]``.

    ``new_kv`` are the keys and values ``[N, shared, D]`` of the pass, and ``stored`` all of them by slot.
    """
    outputs = []
    for block in blocks:
        q, k, v, mask = _block_inputs(query, new_kv, stored, block)
        k, v = (tensor[:, None].expand(-1, q.shape[1], -1, -1) for tensor in (k, v))
        attended = scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=mask is None, scale=scaling
        )
        outputs.append(attended.flatten(0, 1).transpose(0, 1))
    return torch.cat(outputs)[None]


def _block_inputs(
    query: torch.Tensor,
    new_kv: tuple[torch.Tensor, ...],
    stored: tuple[torch.Tensor, ...],
    block: _AttentionBlock,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Queries ``[shared, each, R, D]``, keys and values ``[shared, K, D]`` and mask ``[R, K]`` of a block.

    Heads that share keys are the heads of a separate batch: no kernel needs copies of the keys then.
    """
    shared = new_kv[0].shape[1]
    q = query[0, :, block.first : block.last].unflatten(0, (shared, query.shape[1] // shared))
    if block.slots is None:
        k, v = (rows[block.first : block.last].transpose(0, 1) for rows in new_kv)
        return q, k, v, None
    at = block.slots.to(query.device)
    k, v = (rows.index_select(0, at).transpose(0, 1) for rows in stored)
    return q, k, v, None if block.mask is None else block.mask.to(query)


class _BlockAttention(torch.autograd.Function):
    """Attention of a training pass, whose gradient adds up in one tensor of keys and one of values.

    Left to autograd, each block would make zeros as large as all keys, and the fused kernel for CPUs takes
    twice as long backwards in bfloat16 as these matrix products.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        blocks: Sequence[_AttentionBlock],
        scaling: float | None,
    ) -> torch.Tensor:
        """``[1, N, heads, D]``."""
        new_kv = (_by_token(key), _by_token(value))
        output = _attended(query, new_kv, new_kv, blocks, scaling, 0.0)
        ctx.save_for_backward(query, key, value, output)
        ctx.blocks, ctx.scale = blocks, query.shape[-1] ** -0.5 if scaling is None else scaling
        return output

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Gradients of query, key and value (softmax's: FlashAttention-2, arXiv 2307.08691, section 2.2)."""
        query, key, value, output = ctx.saved_tensors
        new_kv = (_by_token(key), _by_token(value))
        exact = torch.promote_types(query.dtype, torch.float32)
        query_grad = torch.empty_like(query)
        key_grad, value_grad = (torch.zeros_like(rows, dtype=exact) for rows in new_kv)
        inner = (grad.to(exact) * output).sum(-1)[0]  # [N, heads]
        for block, slots, mask in chain.from_iterable(map(_pieces, ctx.blocks)):
            rows = slice(block.first, block.last)
            slots, mask = slots.to(query.device), mask.to(query)
            q, k, v, _ = _block_inputs(query, new_kv, new_kv, block)
            each, count = q.shape[1:3]
            q, g = q.flatten(1, 2), grad[0, rows].transpose(0, 1).unflatten(0, (-1, each)).flatten(1, 2)
            of_rows = inner[rows].T.unflatten(0, (-1, each)).flatten(1, 2)[..., None].to(q)
            # few passes over [shared, each * R, K] in the type of the products: they take most of the time
            weights = torch.baddbmm(mask.repeat(each, 1), q, k.mT, alpha=ctx.scale).softmax(-1)
            score_grad = torch.baddbmm(of_rows, g, v.mT, beta=-1).mul_(weights)
            key_grad.index_add_(0, slots, torch.bmm(score_grad.mT, q).transpose(0, 1).to(exact))
            value_grad.index_add_(0, slots, torch.bmm(weights.mT, g).transpose(0, 1).to(exact))
            query_grad[0, :, rows] = torch.bmm(score_grad, k).unflatten(1, (each, count)).flatten(0, 1)
        key_grad *= ctx.scale
        by_head = (part.transpose(0, 1)[None].to(query) for part in (key_grad, value_grad))
        return query_grad.mul_(ctx.scale), *by_head, None, None


def _pieces(block: _AttentionBlock) -> Iterator[tuple[_AttentionBlock, torch.Tensor, torch.Tensor]]:
    """The block with its slots and mask.

    A branch that sees itself is cut into rows with the keys before them: all its scores, half of which count
    for nothing, would need the square of its length.
    """
    if block.slots is not None and block.mask is not None:
        yield block, block.slots, block.mask
        return
    for first in range(block.first, block.last, _ROWS):
        last = min(first + _ROWS, block.last)
        slots = torch.arange(block.first, last)
        mask = torch.full((last - first, len(slots)), -torch.inf).triu_(first - block.first + 1)
        yield _AttentionBlock(first=first, last=last, slots=slots, mask=mask), slots, mask


AttentionInterface.register(_NAME, _attend)
