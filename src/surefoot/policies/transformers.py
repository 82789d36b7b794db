"""Any causal language model of transformers, in this process.

Each distinct prompt goes through the model once, however many samples it has; rows that are
finished leave the batch. The random numbers of a sample depend on its seed, its prompt and its number
only, so the same request gives the same samples whatever it is batched with (up to rounding of logits).

Step by step, a search asks a policy to continue prefixes that this policy wrote a moment ago. A server
keeps their keys and values (vLLM's automatic prefix caching; SGLang's RadixAttention, arXiv 2312.07104);
:class:`PrefixCache` does it here.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    DynamicCache,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.cache_utils import DynamicLayer

from surefoot.errors import CheckpointError, PolicyError
from surefoot.policies.capabilities import IN_PROCESS, Capabilities
from surefoot.policies.devices import LOADING, Loading
from surefoot.policies.pretrained import context_length, load_pretrained
from surefoot.policies.prompts import encode_prompt, render_chat, unknown_tokens
from surefoot.protocols import Completion, SampleRequest, SampleResult, Sampling
from surefoot.records import Usage
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


_TRANSFER_EVERY = {"cpu": 1}
"""Turns between two transfers of tokens to the host, by device. There a row is found to have ended; until
then it continues; this is free because the device would otherwise wait for the host at each token."""
_TRANSFER_ELSEWHERE = 8

_CONTEXT_TOKENS = 4  # decoded along with new tokens, so that leading white space survives


class TransformersPolicy:
    """A :class:`surefoot.protocols.Policy` on a transformers model.

    ``name`` is recorded in traces. ``batch_size`` bounds the rows decoded at once. With ``bf16`` a model
    without frozen weights computes in bfloat16, with a copy of its weights per batch. ``remember`` is for
    searches: keys and values of so many tokens are kept, so that a prefix that was read or written before is
    not read again (and not counted); equal to reading up to rounding, so a sample may then depend, by chance,
    on what came before. Raises ``PolicyError`` for a prompt that fills the model's context.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        *,
        name: str,
        batch_size: int = 256,
        remember: int = 0,
        bf16: bool = False,
    ) -> None:
        self.model, self.tokenizer, self.batch_size = model.eval(), tokenizer, batch_size
        # autocast casts a weight once if it is trained, and a frozen one (under an adapter) for every token
        self.name, self.bf16 = name, bf16 and all(weight.requires_grad for weight in model.parameters())
        self.transfer_every = _TRANSFER_EVERY.get(model.device.type, _TRANSFER_ELSEWHERE)
        self._known = PrefixCache(remember)
        ends = model.generation_config.eos_token_id if model.generation_config else None
        ends = tokenizer.eos_token_id if ends is None else ends
        self._ends = set(torch.tensor([] if ends is None else ends, dtype=torch.long).reshape(-1).tolist())
        self._context = context_length(model)
        self._written = WrittenText(tokenizer)

    @classmethod
    def from_pretrained(
        cls, path: str | Path, *, batch_size: int = 256, loading: Loading = LOADING, remember: int = 0
    ) -> TransformersPolicy:
        """Load model and tokenizer from a directory, a GGUF file or a hub name (``owner/name@revision``).

        Raises ``PolicyError`` if they cannot be loaded.
        """
        try:
            model, tokenizer = load_pretrained(AutoModelForCausalLM, path, loading)
        except CheckpointError as error:
            raise PolicyError(f"policy {error}") from error
        return cls(model, tokenizer, name=Path(path).name, batch_size=batch_size, remember=remember)

    def capabilities(self) -> Capabilities:
        """All."""
        return IN_PROCESS

    async def sample(self, requests: Sequence[SampleRequest]) -> list[SampleResult]:
        """Draw all samples of all requests; runs in a thread, so that the event loop stays free.

        Raises ``PolicyError`` if the tokenizer knows too few tokens of every prompt.

        The thread ends at the next token when the call is cancelled (by Ctrl-C, say).
        """
        cancelled = threading.Event()
        try:
            return await asyncio.to_thread(self._sample, list(requests), cancelled)
        finally:
            cancelled.set()

    def _sample(self, requests: list[SampleRequest], cancelled: threading.Event) -> list[SampleResult]:
        rows: list[DecodingRow] = []
        errors: dict[int, str] = {}
        unreadable: list[str] = []
        for number, request in enumerate(requests):
            ids = encode_prompt(self.tokenizer, request.prompt, request.prefix)
            prompt = request.prompt
            text = prompt if isinstance(prompt, str) else render_chat(self.tokenizer, prompt)
            if unknown := unknown_tokens(self.tokenizer, ids, text):
                unreadable.append(unknown[1])
                errors[number] = f"policy: {unknown[1]}"
                continue
            room = self._context - len(ids)
            if room <= 0:
                errors[number] = (
                    f"policy: the prompt has {len(ids)} tokens, the model's context {self._context}"
                )
                continue
            rows += [
                DecodingRow(number, sample, request, ids, min(request.sampling.max_tokens, room))
                for sample in range(request.first, request.first + request.n)
            ]
        if unreadable and len(unreadable) == len(requests):
            raise PolicyError(unreadable[0])
        rows.sort(key=lambda row: (len(row.ids), row.ids))
        read: dict[int, int] = dict.fromkeys(range(len(requests)), 0)
        for start in range(0, len(rows), self.batch_size):
            batch = rows[start : start + self.batch_size]
            with torch.autocast(self.model.device.type, dtype=torch.bfloat16, enabled=self.bf16):
                for row, tokens in self._decode(batch, cancelled):
                    read[row.request_number] += tokens
        finished: dict[int, list[DecodingRow]] = {number: [] for number in range(len(requests))}
        for row in sorted(rows, key=lambda row: row.sample):
            finished[row.request_number].append(row)
        return [self._result(finished[n], read[n], errors.get(n)) for n in range(len(requests))]

    @torch.no_grad()  # in inference mode autocast would cast every weight again for each token
    def _decode(self, rows: list[DecodingRow], cancelled: threading.Event) -> list[tuple[DecodingRow, int]]:
        """Fill ``rows`` with tokens; returns one row for each prompt and the tokens of it that were read."""
        device = self.model.device
        unique = [next(group) for _, group in groupby(rows, key=lambda row: row.ids)]
        row_of = {row.ids: index for index, row in enumerate(unique)}
        cached = self._known.recall([row.ids for row in unique], self.model.config, device)
        new = [len(row.ids) - length for row, length in zip(unique, cached.lengths, strict=True)]
        ids = torch.zeros((len(unique), max(new)), dtype=torch.long)
        mask = torch.zeros_like(ids)
        for index, (row, count) in enumerate(zip(unique, new, strict=True)):
            ids[index, -count:] = torch.tensor(row.ids[-count:])
            mask[index, -count:] = 1
        cache, mask = cached.cache, torch.cat([cached.mask, mask.to(device)], dim=1)
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        logits = self._forward(ids.to(device), mask, positions, cache)
        spread = torch.tensor([row_of[row.ids] for row in rows], device=device)
        cache.batch_select_indices(spread)
        logits, mask = logits[spread], mask[spread]
        positions = mask.sum(1, keepdim=True)
        most = max(row.limit for row in rows)
        noise = np.stack([row.noise(most) for row in rows])
        sampler = TokenSampler([row.request.sampling for row in rows], noise, device)
        live = list(rows)
        waiting: list[torch.Tensor] = []
        for turn in range(most):
            if cancelled.is_set():
                raise PolicyError("sampling was cancelled")
            tokens = sampler.draw(logits, turn)
            waiting.append(tokens)
            if len(waiting) == self.transfer_every or turn == most - 1:
                keep = self._append(live, torch.stack(waiting, dim=1))
                waiting = []
                if not keep:
                    break
                if len(keep) < 0.75 * len(live):
                    self._remember(live, cache, mask, leaving=set(range(len(live))) - set(keep))
                    live_rows = torch.tensor(keep, device=device)
                    cache.batch_select_indices(live_rows)
                    mask, positions, tokens = mask[live_rows], positions[live_rows], tokens[live_rows]
                    sampler.keep(keep)
                    live = [live[i] for i in keep]
            mask = torch.cat([mask, mask.new_ones((len(live), 1))], dim=1)
            logits = self._forward(tokens[:, None], mask, positions, cache)
            # a finished row may stay for a while; clamped, it does not leave the table of positions
            positions = (positions + 1).clamp(max=self._context - 1)
        self._remember(live, cache, mask, leaving=range(len(live)))
        return list(zip(unique, new, strict=True))

    def _remember(
        self, rows: list[DecodingRow], cache: DynamicCache, mask: torch.Tensor, *, leaving: Iterable[int]
    ) -> None:
        if self._known.max_tokens:
            row_numbers = sorted(leaving)
            self._known.keep(
                cache, mask, row_numbers, [(*rows[at].ids, *rows[at].tokens) for at in row_numbers]
            )

    def _forward(
        self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, cache: DynamicCache
    ) -> torch.Tensor:
        out = self.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: torch.Tensor = out.logits
        return logits[:, -1].float()

    def _append(self, rows: list[DecodingRow], tokens_bt: torch.Tensor) -> list[int]:
        """Give each unfinished row its tokens, up to its end; returns the places of the unfinished ones."""
        keep = []
        for number, (row, tokens) in enumerate(zip(rows, tokens_bt.tolist(), strict=True)):
            for token in tokens:
                if row.finish_reason is not None:
                    break
                row.tokens.append(token)
                if token in self._ends or (row.request.sampling.stop and self._written.hits_stop(row, token)):
                    row.finish_reason = "stop"
                elif len(row.tokens) >= row.limit:
                    row.finish_reason = "length"
            if row.finish_reason is None:
                keep.append(number)
        return keep

    def _result(self, rows: list[DecodingRow], read: int, error: str | None) -> SampleResult:
        completions = tuple(
            Completion(
                text=self._written.of(row)[: row.cut],
                finish_reason=row.finish_reason or "length",
                tokens=len(row.tokens),
                token_ids=tuple(row.tokens),
            )
            for row in rows
        )
        written = sum(len(row.tokens) for row in rows)
        usage = Usage(prompt_tokens=read, completion_tokens=written, calls=0 if error else 1)
        return SampleResult(completions=completions, usage=usage, error=error)


@dataclass
class DecodingRow:
    """One sample being written."""

    request_number: int
    sample: int
    request: SampleRequest
    ids: tuple[int, ...]
    limit: int
    tokens: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    cut: int | None = None

    def __post_init__(self) -> None:
        if self.limit <= 0:
            self.finish_reason = "length"

    def noise(self, count: int) -> np.ndarray:
        """Numbers in [0, 1), a stream of this sample's own (Philox keyed by seed, prompt and number)."""
        digest = hashlib.blake2b(
            np.asarray([self.request.seed, self.sample, *self.ids], dtype=np.int64).tobytes(), digest_size=16
        )
        return np.random.Generator(np.random.Philox(key=int.from_bytes(digest.digest(), "little"))).random(
            count
        )


class WrittenText:
    """What rows have written, as ``tokenizer`` decodes it."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        self._stop_tokens: dict[tuple[str, ...], torch.Tensor] = {}

    def of(self, row: DecodingRow) -> str:
        """Text of the row's sampled tokens, without the prompt."""
        context = list(row.ids[-_CONTEXT_TOKENS:])
        prefix = self.tokenizer.decode(context, skip_special_tokens=True)
        text: str = self.tokenizer.decode(context + row.tokens, skip_special_tokens=True)
        return text[len(prefix) :]

    def hits_stop(self, row: DecodingRow, token: int) -> bool:
        """Whether the row, whose last token is ``token``, now holds a stop text; notes where to cut it."""
        stop = row.request.sampling.stop
        may_end = self._may_end(stop)
        if token >= len(may_end) or not may_end[token]:  # models may have more ids than their tokenizer
            return False
        text = self.of(row)
        ends = [at + len(word) for word in stop if (at := text.find(word)) >= 0]
        row.cut = min(ends, default=None)
        return row.cut is not None

    def _may_end(self, stop: tuple[str, ...]) -> torch.Tensor:
        """Which tokens hold the last character of a stop text: only after these is the text looked at."""
        if stop not in self._stop_tokens:
            last = {word[-1] for word in stop}
            texts = self.tokenizer.batch_decode([[token] for token in range(len(self.tokenizer))])
            odd = "�"  # part of a character: cannot be ruled out
            # a lone token may lose its leading space: one that decodes to nothing cannot be ruled out
            maybe = [not text or odd in text or bool(last & set(text)) for text in texts]
            self._stop_tokens[stop] = torch.tensor(maybe)
        return self._stop_tokens[stop]


_LIKELIEST = (1024, 16_384)
"""Tokens among which a nucleus is looked for, before it is in the whole vocabulary: sorting 150,000 takes
thirty times as long as finding the likeliest thousand."""


class TokenSampler:
    """Samples a token for each of B rows, turn by turn, on the device, so that only token ids leave it.

    The random numbers are made on the CPU, per row (Philox, keyed by seed, prompt and sample number). The
    device inverts the cumulative probabilities, so it samples the same tokens as the CPU, up to rounding.

    ``noise`` ``[B, T]`` are numbers in [0, 1), one for each row and turn.
    """

    def __init__(self, settings: Sequence[Sampling], noise: np.ndarray, device: torch.device) -> None:
        # MPS lacks float64
        self._exact = torch.float32 if device.type == "mps" else torch.float64
        self._noise_bt = torch.from_numpy(noise).to(device, self._exact)
        self._temperature_b1 = torch.tensor([sampling.temperature for sampling in settings], device=device)[
            :, None
        ]
        self._top_p_b1 = torch.tensor([sampling.top_p for sampling in settings], device=device)[:, None]
        self._greedy = [sampling.temperature == 0 for sampling in settings]
        cut = [number for number, sampling in enumerate(settings) if sampling.top_p < 1]
        self._cut = torch.tensor(cut, dtype=torch.long, device=device)

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with some of the rows, in this order."""
        at = torch.tensor(rows, device=self._noise_bt.device)
        self._noise_bt, self._temperature_b1 = self._noise_bt[at], self._temperature_b1[at]
        self._top_p_b1 = self._top_p_b1[at]
        self._greedy = [self._greedy[row] for row in rows]
        self._cut = (self._top_p_b1[:, 0] < 1).nonzero()[:, 0]

    def draw(self, logits_bv: torch.Tensor, turn: int) -> torch.Tensor:
        """One token a row, ``[B]``, on the device of ``logits_bv`` (float32).

        The first whose cumulated probability exceeds the row's number; the likeliest at temperature 0.
        """
        if all(self._greedy):
            return logits_bv.argmax(-1)
        temperature = self._temperature_b1.masked_fill(self._temperature_b1 == 0, 1.0)
        chances_bv = torch.softmax(logits_bv / temperature, dim=-1)
        if len(self._cut):
            chances_bv[self._cut] = nucleus(chances_bv[self._cut], self._top_p_b1[self._cut])
        cumulated_bv = chances_bv.cumsum(-1, dtype=self._exact)
        threshold_b1 = self._noise_bt[:, turn, None] * cumulated_bv[:, -1:]
        tokens = torch.searchsorted(cumulated_bv, threshold_b1, right=True)[:, 0]
        tokens = tokens.clamp(max=logits_bv.shape[1] - 1)
        return torch.where(self._temperature_b1[:, 0] == 0, logits_bv.argmax(-1), tokens)


def nucleus(chances_bv: torch.Tensor, top_p_b1: torch.Tensor) -> torch.Tensor:
    """Each row's smallest set of tokens whose mass reaches ``top_p`` (Holtzman et al. 2020), all others 0."""
    kept_bv = torch.zeros_like(chances_bv)
    unfinished = torch.arange(len(chances_bv), device=chances_bv.device)
    vocabulary = chances_bv.shape[1]
    for size in sorted({min(size, vocabulary) for size in (*_LIKELIEST, vocabulary)}):
        ordered_bk, order_bk = chances_bv[unfinished].topk(size, dim=-1)
        mass_bk = ordered_bk.cumsum(-1)
        inside_bk = mass_bk - ordered_bk < top_p_b1[unfinished]
        kept_bv[unfinished] = kept_bv[unfinished].scatter_(-1, order_bk, ordered_bk * inside_bk)
        unfinished = unfinished[mass_bk[:, -1] < top_p_b1[unfinished, 0]]
        if not len(unfinished):
            break
    return kept_bv
