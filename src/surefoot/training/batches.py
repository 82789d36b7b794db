"""Which traces are in a batch, how it is cut into microbatches, and how a microbatch becomes tensors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby, pairwise
from typing import Any, TypeVar

import numpy as np
import torch
from transformers import PreTrainedModel

from surefoot.errors import TrainingError
from surefoot.models.engine.causal import has_plain_head, token_statistics
from surefoot.models.engine.packing import pad_batch, tree_limit
from surefoot.models.engine.tree_attention import (
    Slots,
    TokenBranch,
    attending_to_trees,
    branch_tokens,
    tree_pass,
)
from surefoot.training.config import Layout, LoopConfig
from surefoot.training.examples import Example, ExampleFile
from surefoot.tree import TokenIndex, shared_length

_TREE_TOKENS, _ROW_TOKENS = 4096, 2048
"""Most tokens of a tree and of another microbatch, unless the settings say; activations of a 135M model need
some 6 GB at 4,096."""
_TREE_ITEMS = 4096
"""Most items of a tree that are sorted together; the token ids of so many are in memory."""

T = TypeVar("T")
C = TypeVar("C", bound=LoopConfig)


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """S read-out positions in B rows of T tokens."""

    ids_bt: torch.Tensor
    mask_bt: torch.Tensor | None
    rows_s: torch.Tensor
    at_s: torch.Tensor
    before_s: torch.Tensor
    """Where the token before that lies."""
    read_s: torch.Tensor
    """Ids of the tokens at the positions."""
    shared_rows: dict[str, Any] = field(default_factory=dict)
    """Arguments of the trunk that keep traces in one row apart."""

    def predicting(self) -> Inputs:
        """The positions at which the tokens at the positions are predicted: those before them."""
        return replace(self, at_s=self.before_s)


def batch_order(items: Sequence[Example], config: LoopConfig) -> list[list[int]]:
    """Item numbers of every batch: each epoch sees each item once, in a new order.

    Within a window of 16 batches similar lengths are put together, which saves padding, and the batches
    are then shuffled again. In the layout ``tree``, neighbours in the data that begin alike stay together
    instead, those that share most next to each other.
    """
    rng = np.random.default_rng(config.seed)
    batches: list[list[int]] = []
    lengths = items.lengths.tolist() if isinstance(items, ExampleFile) else [item.length for item in items]
    size = config.batch_size
    tree_places = _places_in_trees(items) if config.layout == "tree" else []
    for _ in range(config.epochs):
        order = rng.permutation(len(items)).tolist()
        epoch = []
        if tree_places:
            order = _trees_together(order, tree_places, size, rng)
            batches += [order[at : at + size] for at in range(0, len(order), size)]
            continue
        for start in range(0, len(order), 16 * size):
            window = sorted(order[start : start + 16 * size], key=lengths.__getitem__)
            epoch += [window[at : at + size] for at in range(0, len(window), size)]
        batches += [epoch[index] for index in rng.permutation(len(epoch))]
    return batches


def _places_in_trees(items: Iterable[Example]) -> list[tuple[int, int]]:
    """The tree of each item, and the item's place in it, depth first."""
    tree_places: list[tuple[int, int]] = []
    for number, tree in enumerate(_trees(items)):
        depth_first = sorted(range(len(tree)), key=tree.__getitem__)
        tree_places += [(number, rank) for rank in np.argsort(depth_first).tolist()]
    return tree_places


def _trees(items: Iterable[Example]) -> Iterator[list[tuple[int, ...]]]:
    """Token ids of neighbours that each share a quarter of the shorter one's tokens, or more.

    Where all prompts begin with the same instructions, that could be the whole data, so a tree is cut.
    """
    tree: list[tuple[int, ...]] = []
    for item in items:
        if tree and (
            len(tree) == _TREE_ITEMS
            or 4 * shared_length(tree[-1], item.ids) < min(len(tree[-1]), len(item.ids))
        ):
            yield tree
            tree = []
        tree.append(item.ids)
    if tree:
        yield tree


def _trees_together(
    order: Sequence[int], tree_places: Sequence[tuple[int, int]], size: int, rng: np.random.Generator
) -> list[int]:
    """Trees in a new order; of one with more than ``size`` items, that many neighbours at a time."""
    runs = []
    for _, group in groupby(
        sorted(order, key=tree_places.__getitem__), key=lambda number: tree_places[number][0]
    ):
        members = list(group)
        runs += [members[at : at + size] for at in range(0, len(members), size)]
    return [number for run in rng.permutation(len(runs)) for number in runs[run]]


def cut_microbatches(
    batch: Sequence[Example], config: LoopConfig, *, world_size: int = 1
) -> list[list[Example]]:
    """A batch as microbatches, none empty, for all processes together; similar lengths (or trees) together.

    There are ``gradient_accumulation_steps`` for each process, more where one would have too many tokens,
    fewer where the batch has too few items. Microbatch number n belongs to process n mod ``world_size``.
    """
    count = config.gradient_accumulation_steps * world_size
    if config.layout == "tree":
        together = sorted(batch, key=lambda item: item.ids)
        limit = config.microbatch_tokens or _TREE_TOKENS
        return [
            tree for share in _even(together, min(count, len(batch))) for tree in _cut_trees(share, limit)
        ]
    # longest first: if memory does not suffice, that shows in the first microbatch
    ordered = sorted(batch, key=lambda item: item.length, reverse=True)
    shares = _even(ordered, min(count, len(ordered)))
    limit = config.microbatch_tokens or _ROW_TOKENS
    return [
        piece
        for share in shares
        for piece in cut_by_tokens(
            share, lambda item: [len(part.ids) for part in item.parts], limit, config.layout
        )
    ]


def _cut_trees(ordered: Sequence[Example], most: int) -> list[list[Example]]:
    """Pieces that are trees of at most ``most`` tokens; both sides of a cut have the path to it."""
    pieces: list[list[Example]] = []
    size, tree = 0, TokenIndex[None]()
    for item in ordered:
        size += _grow(tree, item.parts)
        if not pieces or size > most:
            tree = TokenIndex()
            size = _grow(tree, item.parts)
            pieces.append([])
        pieces[-1].append(item)
    return pieces


def _grow(tree: TokenIndex[None], parts: Iterable[Example]) -> int:
    """Add ``parts`` to ``tree``; the number of tokens that are new in it."""
    new = 0
    for part in parts:
        new += len(part.ids) - tree.nearest(part.ids)[1]
        if not tree.covers(part.ids):
            tree.add(part.ids, None)
    return new


def tokens_read(items: Iterable[Example], layout: Layout | None) -> int:
    """Tokens of a microbatch without padding; where traces share a row each distinct one counts once."""
    if layout in ("packed", "tree"):
        return _grow(TokenIndex(), (part for item in items for part in item.parts))
    return sum(len(part.ids) for item in items for part in item.parts)


def cut_by_tokens(
    ordered: Sequence[T], lengths: Callable[[T], Sequence[int]], most: int, layout: str | None = "padded"
) -> list[list[T]]:
    """Pieces of at most ``most`` tokens, padding included; an item that is longer has a piece to itself.

    ``lengths`` holds the lengths of an item's rows.
    """
    pieces: list[list[T]] = []
    rows: list[int] = []
    for item in ordered:
        rows += lengths(item)
        size = sum(rows) if layout == "packed" else len(rows) * max(rows)
        if pieces and size <= most:
            pieces[-1].append(item)
        else:
            pieces.append([item])
            rows = list(lengths(item))
    return pieces


def _even(ordered: list[Example], count: int) -> list[list[Example]]:
    """``count`` pieces, none empty, of about as many tokens each."""
    totals = list(accumulate(item.length for item in ordered))
    cuts = [0]
    for number in range(1, count):
        target = int(np.searchsorted(totals, totals[-1] * number / count))
        cuts.append(min(max(target, cuts[-1] + 1), len(ordered) - count + number))
    cuts.append(len(ordered))
    return [ordered[start:end] for start, end in pairwise(cuts)]


def lay_out(
    parts: Sequence[Example],
    layout: Layout | None,
    device: torch.device,
    *,
    trunk: PreTrainedModel | None = None,
) -> Inputs:
    """The tensors of one microbatch; outputs come in the order of the parts and of their positions.

    ``trunk`` reads them inside :func:`sharing_rows`; only the layout ``padded`` does without.
    """
    mask: torch.Tensor | None = None
    branches: list[TokenBranch] = []
    shared_rows: dict[str, Any] = {}
    if layout in (None, "padded") or trunk is None:
        ids, mask = pad_batch([part.ids for part in parts])
        paths: list[Slots] = [np.arange(len(part.ids)) for part in parts]
        rows = [row for row, part in enumerate(parts) for _ in part.positions]
    else:
        branches, paths = tree_branches(parts)
        ids, position_ids = branch_tokens(branches, device)
        shared_rows = {"position_ids": position_ids, "tree": tree_pass(trunk, branches)}
    reading = [(path, part.ids, at) for path, part in zip(paths, parts, strict=True) for at in part.positions]
    return Inputs(
        ids_bt=ids.to(device),
        mask_bt=None if mask is None else mask.to(device),
        rows_s=torch.tensor(rows if mask is not None else [0] * len(reading), device=device),
        at_s=torch.tensor([int(path[at]) for path, _, at in reading], device=device),
        before_s=torch.tensor([int(path[at - 1]) for path, _, at in reading], device=device),
        read_s=torch.tensor([ids[at] for _, ids, at in reading], device=device),
        shared_rows=shared_rows,
    )


def tree_branches(parts: Sequence[Example]) -> tuple[list[TokenBranch], list[Slots]]:
    """The tree of ``parts``, depth first, and the row of every token of each part."""
    branches: list[TokenBranch] = []
    paths: list[Slots] = [np.zeros(0, dtype=np.int64)] * len(parts)
    rows, path = 0, paths[0]
    ids: tuple[int, ...] = ()
    for number in sorted(range(len(parts)), key=lambda number: parts[number].ids):
        previous, ids = ids, parts[number].ids
        start, stop = shared_length(previous, ids), len(ids)
        path = paths[number] = np.concatenate([path[:start], np.arange(rows, rows + stop - start)])
        if stop > start:
            branches.append(TokenBranch(ids=ids, path=path, start=start, stop=stop, jump=False))
        rows += stop - start
    return branches, paths


class TokenReader(torch.nn.Module):
    """What training reads of a causal language model, as one forward pass that a wrapper (DDP) can see.

    The head is applied where a token is predicted, and nowhere else.
    """

    def __init__(self, model: PreTrainedModel, *, temperature: float = 1.0) -> None:
        super().__init__()
        self.model, self.temperature = model, temperature
        self.plain = has_plain_head(model)  # else ask the model itself for all logits

    def forward(self, batch: Inputs, entropy: bool = False) -> torch.Tensor:
        """Log-probabilities of the tokens after ``at_s`` and, if wanted, entropies: [1, S] or [2, S]."""
        targets_s = batch.read_s
        output = (self.model.base_model if self.plain else self.model)(
            input_ids=batch.ids_bt, attention_mask=batch.mask_bt, use_cache=False, **batch.shared_rows
        )
        if self.plain:
            states_sh = output.last_hidden_state[batch.rows_s, batch.at_s]
            return token_statistics(
                self.model, states_sh, targets_s, temperature=self.temperature, entropy=entropy
            )
        logits_sv = output.logits[batch.rows_s, batch.at_s].float() / self.temperature
        logprobs_sv = logits_sv.log_softmax(-1)
        statistics = [logprobs_sv.gather(1, targets_s[:, None])[:, 0]]
        if entropy:
            with torch.no_grad():
                statistics.append(-(logprobs_sv.exp() * logprobs_sv).sum(-1))
        return torch.stack(statistics)


def with_layout(config: C, trunk: PreTrainedModel) -> C:
    """``config`` with a layout that ``trunk`` can read, where none is asked for.

    Raises ``TrainingError`` for one in which traces that share a row would see each other.
    """
    # on a GPU, where accelerate may move the trunk later, FlexAttention compiles and refuses dropout
    if config.layout is None and torch.cuda.is_available():
        config = config.model_copy(update={"layout": "padded"})
    if config.layout == "padded":
        return config
    was_training = trunk.training
    trunk.eval()
    try:
        fits = tree_limit(trunk) == sys.maxsize
    finally:
        trunk.train(was_training)
    if config.layout is None:
        return config.model_copy(update={"layout": "packed" if fits else "padded"})
    if not fits:
        raise TrainingError(
            f"traces that share a row (layout '{config.layout}') would see each other in this trunk, or it "
            "has a sliding window; use the layout 'padded'"
        )
    return config


def sharing_rows(trunk: PreTrainedModel, layout: Layout | None) -> AbstractContextManager[None]:
    """Inside, ``trunk`` reads what :func:`lay_out` makes; what reads with a mask has to be outside."""
    return nullcontext() if layout in (None, "padded") else attending_to_trees(trunk)
