"""Which traces meet in an update, in which forward pass, and how a pass is laid out as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, islice, pairwise

import numpy as np
import torch
from transformers import PreTrainedModel

from surefoot.errors import TrainingError
from surefoot.models.engine.packing import pad_batch
from surefoot.training.config import LoopConfig
from surefoot.training.targets import Example, TrainingItem


@dataclass(frozen=True, kw_only=True)
class Pass:
    """What goes through the model together."""

    items: list[TrainingItem]
    weight: float = 1.0
    """0 for a pass that only keeps processes in step."""

    @property
    def parts(self) -> list[Example]:
        """The traces, both of a pair one after the other."""
        return [part for item in self.items for part in item.parts]

    @property
    def targets(self) -> list[float]:
        """One a term of the loss."""
        return [target for item in self.items for target in item.terms]


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Arguments of ``RewardModel.forward``."""

    ids_bt: torch.Tensor
    mask_bt: torch.Tensor | None
    rows_s: torch.Tensor
    at_s: torch.Tensor
    depths_bt: torch.Tensor | None


def batch_order(
    items: Sequence[TrainingItem], config: LoopConfig, *, balance: float | None = None
) -> list[list[int]]:
    """Item numbers of every update: each epoch sees each item once, in a new order.

    Within a window of 16 batches similar lengths are put together, which saves padding, and the batches
    are then shuffled again. With ``balance`` an epoch draws as many items below the threshold as others.
    """
    rng = np.random.default_rng(config.seed)
    batches: list[list[int]] = []
    size = config.batch_size
    buckets = None if balance is None else _buckets(items, balance)
    for _ in range(config.epochs):
        order = _balanced(buckets, rng) if buckets else rng.permutation(len(items)).tolist()
        epoch = []
        for start in range(0, len(order), 16 * size):
            window = sorted(order[start : start + 16 * size], key=lambda index: items[index].length)
            epoch += [window[at : at + size] for at in range(0, len(window), size)]
        batches += [epoch[index] for index in rng.permutation(len(epoch))]
    return batches


def _buckets(items: Sequence[TrainingItem], threshold: float) -> tuple[list[int], list[int]]:
    """Items with a target below ``threshold``, and the others."""
    low = [number for number, item in enumerate(items) if min(item.terms) < threshold]
    high = [number for number, item in enumerate(items) if min(item.terms) >= threshold]
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


def cut_passes(
    batch: list[TrainingItem], config: LoopConfig, *, layout: str = "padded", workers: int = 1
) -> list[Pass]:
    """An update's forward passes, all workers' together: a multiple of ``workers``, similar lengths together.

    Pass number p belongs to worker p mod ``workers``; there are ``gradient_accumulation_steps`` of them
    for each, more where ``microbatch_tokens`` is too little, fewer where the batch has too few items. What is
    missing to the multiple is repeated with weight 0.
    """
    count = config.gradient_accumulation_steps * workers
    if count == 1 and config.microbatch_tokens is None:
        return [Pass(items=batch)]
    ordered = sorted(batch, key=lambda item: item.length, reverse=True)  # too little memory shows at once
    shares = _even(ordered, min(count, len(ordered)))
    if config.microbatch_tokens is not None:
        shares = [piece for share in shares for piece in _fill(share, config.microbatch_tokens, layout)]
    passes = [Pass(items=share) for share in shares]
    return passes + [Pass(items=shares[-1][:1], weight=0.0)] * (-len(passes) % workers)


def _even(ordered: list[TrainingItem], count: int) -> list[list[TrainingItem]]:
    """``count`` pieces, none empty, of about as many tokens each."""
    totals = list(accumulate(item.length for item in ordered))
    cuts = [0]
    for number in range(1, count):
        wanted = int(np.searchsorted(totals, totals[-1] * number / count))
        cuts.append(min(max(wanted, cuts[-1] + 1), len(ordered) - count + number))
    cuts.append(len(ordered))
    return [ordered[start:end] for start, end in pairwise(cuts)]


def _fill(ordered: list[TrainingItem], most: int, layout: str) -> list[list[TrainingItem]]:
    """Pieces of at most ``most`` tokens; an item that is larger alone has a pass of its own."""
    pieces: list[list[TrainingItem]] = []
    for item in ordered:
        if pieces and _cost([*pieces[-1], item], layout) <= most:
            pieces[-1].append(item)
        else:
            pieces.append([item])
    return pieces


def _cost(items: list[TrainingItem], layout: str) -> int:
    lengths = [len(part.ids) for item in items for part in item.parts]
    return sum(lengths) if layout == "packed" else len(lengths) * max(lengths)


def lay_out(parts: Sequence[Example], layout: str, device: torch.device) -> Inputs:
    """The tensors of one pass; outputs come in the order of the parts and of their positions."""
    at = [position for part in parts for position in part.positions]
    rows = [row for row, part in enumerate(parts) for _ in part.positions]
    if layout == "packed":
        starts = list(accumulate((len(part.ids) for part in parts), initial=0))
        at = [starts[row] + position for row, position in zip(rows, at, strict=True)]
        ids = torch.tensor([[token for part in parts for token in part.ids]])
        depths = torch.tensor([[depth for part in parts for depth in range(len(part.ids))]])
        mask, rows = None, [0] * len(at)
    else:
        ids, mask = pad_batch([part.ids for part in parts])
        depths = None
    return Inputs(
        ids_bt=ids.to(device),
        mask_bt=None if mask is None else mask.to(device),
        rows_s=torch.tensor(rows, device=device),
        at_s=torch.tensor(at, device=device),
        depths_bt=None if depths is None else depths.to(device),
    )


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
    together = trunk(input_ids=inputs.ids_bt, position_ids=inputs.depths_bt, use_cache=False)
    alone = trunk(input_ids=inputs.ids_bt.view(len(parts), -1), use_cache=False)
    trunk.train(was_training)
    expected = alone.last_hidden_state.flatten(0, 1).float()
    difference = (together.last_hidden_state[0].float() - expected).norm() / expected.norm()
    return bool(difference < (1e-4 if trunk.dtype == torch.float32 else 0.05))
