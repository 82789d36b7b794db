"""Which traces are in a batch, how it is cut into microbatches, and how a microbatch becomes tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, islice, pairwise
from typing import TypeVar

import numpy as np
import torch
from transformers import PreTrainedModel

from surefoot.errors import CheckpointError, TrainingError
from surefoot.models.engine.causal import Entropy, require_plain_head, token_statistics
from surefoot.models.engine.packed_attention import attending_to_each, packed_inputs
from surefoot.models.engine.packing import pad_batch
from surefoot.training.config import LoopConfig
from surefoot.training.examples import Example, ExampleFile

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """S read-out positions in B rows of T tokens."""

    ids_bt: torch.Tensor
    mask_bt: torch.Tensor | None
    rows_s: torch.Tensor
    at_s: torch.Tensor
    position_ids_bt: torch.Tensor | None
    lengths: tuple[int, ...]
    """Tokens of each trace."""

    def predicting(self) -> Inputs:
        """The positions at which the tokens at the positions are predicted: those before them."""
        return replace(self, at_s=self.at_s - 1)


def batch_order(
    items: Sequence[Example], config: LoopConfig, *, balance: float | None = None
) -> list[list[int]]:
    """Item numbers of every batch: each epoch sees each item once, in a new order.

    Within a window of 16 batches similar lengths are put together, which saves padding, and the batches
    are then shuffled again. With ``balance`` an epoch draws as many items with a target below that as
    others.
    """
    rng = np.random.default_rng(config.seed)
    batches: list[list[int]] = []
    lengths = items.lengths.tolist() if isinstance(items, ExampleFile) else [item.length for item in items]
    size = config.batch_size
    buckets = None if balance is None else _buckets(items, balance)
    for _ in range(config.epochs):
        order = _balanced(buckets, rng) if buckets else rng.permutation(len(items)).tolist()
        epoch = []
        for start in range(0, len(order), 16 * size):
            window = sorted(order[start : start + 16 * size], key=lengths.__getitem__)
            epoch += [window[at : at + size] for at in range(0, len(window), size)]
        batches += [epoch[index] for index in rng.permutation(len(epoch))]
    return batches


def _buckets(items: Sequence[Example], threshold: float) -> tuple[list[int], list[int]]:
    """Items with a target below ``threshold``, and the others."""
    lowest = items.lowest if isinstance(items, ExampleFile) else [min(item.targets) for item in items]
    below = np.asarray(lowest) < threshold
    low, high = np.flatnonzero(below).tolist(), np.flatnonzero(~below).tolist()
    if not low or not high:
        raise TrainingError(
            f"'balance' finds no trace {'with' if not low else 'without'} a target below {threshold:g}: "
            "nothing to balance"
        )
    return low, high


def _balanced(buckets: tuple[list[int], list[int]], rng: np.random.Generator) -> list[int]:
    """One from each bucket in turn; the smaller is gone through again, in a new order, as often as needed."""
    most = max(map(len, buckets))
    draws = []
    for bucket in buckets:
        rounds = (rng.permutation(bucket).tolist() for _ in range(-(-most // len(bucket))))
        draws.append(list(islice(chain.from_iterable(rounds), most)))
    return [number for both in zip(*draws, strict=True) for number in both]


def cut_microbatches(
    batch: Sequence[Example], config: LoopConfig, *, layout: str = "padded", world_size: int = 1
) -> list[list[Example]]:
    """A batch as microbatches, none empty, for all processes together; similar lengths together.

    There are ``gradient_accumulation_steps`` for each process, more where ``microbatch_tokens`` asks for it,
    fewer where the batch has too few items. Microbatch number n belongs to process n mod ``world_size``.
    """
    count = config.gradient_accumulation_steps * world_size
    if count == 1 and config.microbatch_tokens is None:
        return [list(batch)]
    # longest first: if memory does not suffice, that shows in the first microbatch
    ordered = sorted(batch, key=lambda item: item.length, reverse=True)
    shares = _even(ordered, min(count, len(ordered)))
    if config.microbatch_tokens is None:
        return shares
    most = config.microbatch_tokens
    return [
        piece
        for share in shares
        for piece in cut_by_tokens(share, lambda item: [len(part.ids) for part in item.parts], most, layout)
    ]


def cut_by_tokens(
    ordered: Sequence[T], lengths: Callable[[T], Sequence[int]], most: int, layout: str = "padded"
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


def lay_out(parts: Sequence[Example], layout: str, device: torch.device) -> Inputs:
    """The tensors of one microbatch; outputs come in the order of the parts and of their positions."""
    at = [position for part in parts for position in part.positions]
    rows = [row for row, part in enumerate(parts) for _ in part.positions]
    if layout == "packed":
        starts = list(accumulate((len(part.ids) for part in parts), initial=0))
        at = [starts[row] + position for row, position in zip(rows, at, strict=True)]
        ids = torch.tensor([[token for part in parts for token in part.ids]])
        position_ids = torch.tensor([[offset for part in parts for offset in range(len(part.ids))]])
        mask, rows = None, [0] * len(at)
    else:
        ids, mask = pad_batch([part.ids for part in parts])
        position_ids = None
    return Inputs(
        ids_bt=ids.to(device),
        mask_bt=None if mask is None else mask.to(device),
        rows_s=torch.tensor(rows, device=device),
        at_s=torch.tensor(at, device=device),
        position_ids_bt=None if position_ids is None else position_ids.to(device),
        lengths=tuple(len(part.ids) for part in parts),
    )


class TokenReader(torch.nn.Module):
    """What training reads of a causal language model, as one forward pass that a wrapper (DDP) can see.

    The head is applied where a token is predicted, and nowhere else.
    """

    def __init__(self, model: PreTrainedModel, *, temperature: float = 1.0) -> None:
        super().__init__()
        self.model, self.temperature = model, temperature
        try:
            require_plain_head(model)
            self.plain = True
        except CheckpointError:
            self.plain = False  # scaled or capped: ask the model itself for all logits

    def forward(self, batch: Inputs, entropy: Entropy = "none") -> torch.Tensor:
        """Log-probabilities of the tokens after ``at_s`` and, if wanted, entropies: [1, S] or [2, S]."""
        targets_s = batch.ids_bt[batch.rows_s, batch.at_s + 1]
        output = (self.model.base_model if self.plain else self.model)(
            input_ids=batch.ids_bt,
            attention_mask=batch.mask_bt,
            use_cache=False,
            **packed_inputs(self.model, batch.position_ids_bt, batch.lengths),
        )
        if self.plain:
            states_sh = output.last_hidden_state[batch.rows_s, batch.at_s]
            return token_statistics(
                self.model, states_sh, targets_s, temperature=self.temperature, entropy=entropy
            )
        logits_sv = output.logits[batch.rows_s, batch.at_s].float() / self.temperature
        logprobs_sv = logits_sv.log_softmax(-1)
        statistics = [logprobs_sv.gather(1, targets_s[:, None])[:, 0]]
        if entropy != "none":
            with torch.set_grad_enabled(entropy == "gradient" and torch.is_grad_enabled()):
                statistics.append(-(logprobs_sv.exp() * logprobs_sv).sum(-1))
        return torch.stack(statistics)


@torch.no_grad()
def can_pack(trunk: PreTrainedModel) -> bool:
    """Whether traces packed into one row are read as if each were alone, tried on three short ones."""
    size = int(trunk.config.get_text_config().vocab_size)
    parts = [
        Example(
            trace_id="", ids=tuple(number * step % size for number in range(1, 6)), positions=(), targets=()
        )
        for step in (1, 3, 7)
    ]
    inputs = lay_out(parts, "packed", trunk.device)
    was_training = trunk.training
    trunk.eval()
    with attending_to_each(trunk):
        packed = packed_inputs(trunk, inputs.position_ids_bt, inputs.lengths)
        together = trunk(input_ids=inputs.ids_bt, use_cache=False, **packed)
    alone = trunk(input_ids=inputs.ids_bt.view(len(parts), -1), use_cache=False)
    trunk.train(was_training)
    expected = alone.last_hidden_state.flatten(0, 1).float()
    difference = (together.last_hidden_state[0].float() - expected).norm() / expected.norm()
    return bool(difference < (1e-4 if trunk.dtype == torch.float32 else 0.05))
