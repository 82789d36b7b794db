"""Attention over traces that lie one after another in one row: separately, so the cost is linear in the row.

From positions that begin again transformers makes a mask over the whole row for PyTorch's attention, whose
cost is the row's square. FlashAttention and FlexAttention need none. Here PyTorch's own attention is called
for each trace, causal and without a mask, which its fused kernels take.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

_NAME = "surefoot_packed"


@contextmanager
def attending_to_each(trunk: PreTrainedModel) -> Iterator[None]:
    """Inside, a trunk that runs PyTorch's attention reads packed rows trace by trace, where it can.

    Call it with :func:`packed_inputs`. What reads with a mask has to be outside.
    """
    implementation = trunk.config._attn_implementation
    try:
        if implementation == "sdpa":
            trunk.set_attn_implementation(_NAME)
            if not _reaches_attention(trunk):
                trunk.set_attn_implementation(implementation)
        yield
    finally:
        if implementation == "sdpa":
            trunk.set_attn_implementation(implementation)


def packed_inputs(
    trunk: PreTrainedModel, position_ids_bt: torch.Tensor, lengths: Sequence[int]
) -> dict[str, Any]:
    """Arguments of a trunk's forward pass over traces of ``lengths`` tokens in one row."""
    inputs: dict[str, Any] = {"position_ids": position_ids_bt}
    if trunk.config._attn_implementation == _NAME:
        inputs["packed_lengths"] = tuple(lengths)
    return inputs


@torch.no_grad()
def _reaches_attention(trunk: PreTrainedModel) -> bool:
    """Whether the trunk hands the lengths down to its attention, and sees all of a trace: no window."""
    config = trunk.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"} or getattr(config, "sliding_window", None) is not None:
        return False
    ids = torch.tensor([[1, 2, 1]], device=trunk.device)
    positions = torch.tensor([[0, 1, 0]], device=trunk.device)
    try:
        trunk(input_ids=ids, use_cache=False, **packed_inputs(trunk, positions, (2, 1)))
    except (TypeError, ValueError):
        return False
    return True


def _attend(
    module: torch.nn.Module,  # noqa: ARG001
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    packed_lengths: tuple[int, ...] | None = None,
    **_settings: object,
) -> tuple[torch.Tensor, None]:
    """Attention of one layer, in the form transformers' AttentionInterface asks for."""
    if packed_lengths is None or attention_mask is not None:
        raise ValueError("attention of packed traces takes their lengths, and no mask")
    pieces = [
        scaled_dot_product_attention(
            q, k, v, is_causal=True, dropout_p=dropout, scale=scaling, enable_gqa=q.shape[1] != k.shape[1]
        )
        for q, k, v in zip(*(rows.split(packed_lengths, dim=2) for rows in (query, key, value)), strict=True)
    ]
    return torch.cat(pieces, dim=2).transpose(1, 2).contiguous(), None


AttentionInterface.register(_NAME, _attend)
