"""A cache of the keys and values of what a policy has read and written, so that a search reads nothing twice.

Step by step, a search asks a policy to continue prefixes that this policy wrote a moment ago. A server
keeps their keys and values (vLLM's automatic prefix caching; SGLang's RadixAttention, arXiv 2312.07104);
this does it for a model in this process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import DynamicCache, PreTrainedConfig
from transformers.cache_utils import DynamicLayer

from surefoot.tree import TokenIndex, Tokens

Pair = tuple[torch.Tensor, torch.Tensor]


def bytes_per_token(config: PreTrainedConfig, dtype: torch.dtype) -> int | None:
    """Memory for the keys and values of one token: layers × key-value heads × (key + value width) × size.

    Llama 2 7B in 16 bits takes 524,288 bytes, Qwen2.5 7B, whose 28 heads share 4 of keys and values, 57,344.
    ``None`` for a model without attention heads, which lacks keys and values. Where layers differ,
    the largest counts for all; where a cache keeps something smaller that keys and values are made of (latent
    attention, DeepSeek), the number is an upper bound.
    """
    text = config.get_text_config()
    heads = _largest(text, "num_attention_heads")
    if heads is None:
        return None
    # what a configuration leaves out or sets to None has these meanings in transformers
    shared = _largest(text, "num_key_value_heads") or heads
    width = _largest(text, "head_dim") or int(text.hidden_size) // heads
    keys, values = (_largest(text, name) or width for name in ("qk_head_dim", "v_head_dim"))
    return int(text.num_hidden_layers) * shared * (keys + values) * dtype.itemsize


def _largest(config: PreTrainedConfig, name: str) -> int | None:
    """A number of the configuration, or the largest where it has one a layer."""
    value = getattr(config, name, None)
    if isinstance(value, list | tuple):
        value = max(value, default=None)
    return None if value is None else int(value)


@dataclass(frozen=True, kw_only=True)
class Recalled:
    """What is known of some prompts: the cache to continue from, padded on the left."""

    cache: DynamicCache
    mask: torch.Tensor
    """Shape [prompts, columns], 1 = a token of the prompt."""
    lengths: list[int]
    """Tokens of each prompt that are in the cache; at least one of each is left to read."""


@dataclass(eq=False, kw_only=True)
class _CachedBatch:
    """Keys and values [rows, heads, columns, D] of each layer, as a batch left them."""

    layers: list[Pair]
    sequences: int = 0
    """How many sequences still point here."""

    @property
    def tokens(self) -> int:
        """Places for tokens, used or not."""
        keys = self.layers[0][0]
        return keys.shape[0] * keys.shape[2]


@dataclass(frozen=True, kw_only=True)
class _CachedSequence:
    block: _CachedBatch
    row: int
    columns: torch.Tensor
    """Column of each token, on the CPU."""


class PrefixCache:
    """At most ``max_tokens`` places for tokens; the least recently used sequences go first.

    A batch is kept as it was, without a copy, when it ends; rows that leave it before are copied. A sequence
    is a row of it and some columns.
    """

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self._index: TokenIndex[_CachedSequence] = TokenIndex()
        self._held = 0

    @property
    def held(self) -> int:
        """Places for tokens in the batches that are kept."""
        return self._held

    def recall(self, prompts: Sequence[Tokens], config: PreTrainedConfig, device: torch.device) -> Recalled:
        """The longest known beginning of each prompt, short of its last token, whose logits are wanted."""
        cache = DynamicCache(config=config)
        prefixes: list[tuple[_CachedSequence | None, int]] = []
        for ids in prompts:
            nearest, common = self._index.nearest(ids)
            common = min(common, len(ids) - 1)
            prefixes.append((self._index.use(nearest), common) if common > 0 else (None, 0))
        lengths = [common for _, common in prefixes]
        width = max(lengths, default=0)
        mask = torch.zeros((len(prompts), width), dtype=torch.long)
        for row, length in enumerate(lengths):
            mask[row, width - length :] = 1
        if width:
            for layer, (keys, values) in enumerate(self._gather(prefixes, width)):
                cache.update(keys, values, layer)
        return Recalled(cache=cache, mask=mask.to(device), lengths=lengths)

    def keep(
        self, cache: DynamicCache, mask: torch.Tensor, rows: Sequence[int], sequences: Sequence[Tokens]
    ) -> None:
        """Remember ``sequences[k]``, which is row ``rows[k]`` of ``cache``.

        ``mask`` [rows, columns] has a 1 for each token read; tokens of a sequence beyond them are left out.
        Caches of another form than keys and values of all tokens (sliding windows, states) are not kept.
        """
        if not all(type(layer) is DynamicLayer for layer in cache.layers):
            return
        layers = [(layer.keys, layer.values) for layer in cache.layers]
        if len(rows) < len(mask):  # what stays in the batch will come with it, later
            chosen = torch.tensor(list(rows), device=mask.device)
            layers = [(keys[chosen], values[chosen]) for keys, values in layers]
            mask = mask[chosen]
        block = _CachedBatch(layers=layers)
        if block.tokens > self.max_tokens:  # it would only evict what fits
            return
        marks = mask.cpu()
        for row, sequence in enumerate(sequences):
            columns = marks[row].nonzero()[:, 0][: len(sequence)]
            ids = sequence[: len(columns)]
            if not ids or self._index.covers(ids):
                continue
            continued = self._index.add(ids, _CachedSequence(block=block, row=row, columns=columns))
            block.sequences += 1
            if continued is not None:
                self._release(continued)
        if block.sequences:
            self._held += block.tokens
        while self._held > self.max_tokens and len(self._index):
            self._release(self._index.drop(self._index.oldest()))

    def _release(self, place: _CachedSequence) -> None:
        place.block.sequences -= 1
        if not place.block.sequences:
            self._held -= place.block.tokens

    def _gather(self, prefixes: Sequence[tuple[_CachedSequence | None, int]], width: int) -> list[Pair]:
        """Keys and values [prompts, heads, width, D] of each layer; what the mask hides is arbitrary."""
        members: dict[_CachedBatch, list[int]] = {}
        for number, (row, _) in enumerate(prefixes):
            if row is not None:
                members.setdefault(row.block, []).append(number)
        parts = []
        for block, numbers in members.items():
            rows = torch.tensor([prefixes[number][0].row for number in numbers])  # type: ignore[union-attr]
            columns = torch.zeros((len(numbers), width), dtype=torch.long)
            for line, number in enumerate(numbers):
                row, length = prefixes[number]
                columns[line, width - length :] = row.columns[:length]  # type: ignore[union-attr]
            parts.append((block, numbers, rows[:, None], columns))
        first = next(iter(members))
        gathered = []
        for layer, pair in enumerate(first.layers):
            layer_pair = []
            for which, like in enumerate(pair):
                out = like.new_zeros((len(prefixes), like.shape[1], width, like.shape[3]))
                for block, numbers, rows, columns in parts:
                    out[numbers] = block.layers[layer][which][rows, :, columns].transpose(1, 2)
                layer_pair.append(out)
            gathered.append((layer_pair[0], layer_pair[1]))
        return gathered
