"""Causal language models with their heads: loading, log-probabilities of given tokens, scores in a search.

A vocabulary of 150,000 makes the float32 logits of one trace of 2,000 tokens 1.2 GB. Here the head is applied
to a few hundred positions at a time, and only where a token is wanted; with gradients, each piece is computed
again in the backward pass. In a search, results for a prefix are cached, and only new tokens go through the
trunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from surefoot.errors import CheckpointError
from surefoot.models.encoding import EncodedTrace
from surefoot.models.engine.packing import TrunkOutput, read_states, read_trees
from surefoot.models.engine.tree_attention import Slots, TokenPool
from surefoot.models.lora import has_adapter, save_adapter
from surefoot.models.scorer import Scorer, StepModel, readable
from surefoot.policies.devices import LOADING, Loading
from surefoot.policies.pretrained import load_pretrained
from surefoot.policies.transformers import bytes_per_token
from surefoot.tree import TokenIndex, Tokens

_LOGITS = 16_777_216
"""Logits (positions times vocabulary) held at a time: 64 MB in float32."""


def load_causal(
    path: str | Path, loading: Loading = LOADING
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model with its head, and tokenizer. Raises ``CheckpointError`` naming the missing or unreadable
    part."""
    return load_pretrained(AutoModelForCausalLM, path, loading)


def save_causal(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    directory: Path,
    *,
    state: Mapping[str, torch.Tensor] | None = None,
) -> None:
    """Write weights and tokenizer as transformers does; of an adapter its own weights, as peft does.

    ``state`` are the model's weights where it holds shards of them.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if has_adapter(model):
        save_adapter(model, directory, state or model.state_dict())
    else:
        model.save_pretrained(directory, state_dict=dict(state) if state else None)
    tokenizer.save_pretrained(directory)


def token_statistics(
    policy: PreTrainedModel,
    states_nh: torch.Tensor,
    targets_n: torch.Tensor,
    *,
    temperature: float = 1.0,
    entropy: bool = False,
    limit: int = _LOGITS,
) -> torch.Tensor:
    """Log-probabilities of ``targets_n`` and, if wanted, entropies (no gradient): ``[1, N]`` or ``[2, N]``.

    Both in nats, of the distribution that ``policy`` has at ``temperature`` after hidden states ``[N, H]``;
    computed for ``limit`` logits at a time.
    """
    head = policy.get_output_embeddings()
    device, dtype = head.weight.device, head.weight.dtype
    states, targets = states_nh.to(device, dtype), targets_n.to(device)

    def piece(part_nh: torch.Tensor, targets_n: torch.Tensor) -> torch.Tensor:
        logits = head(part_nh).float()
        if temperature != 1:
            logits = logits / temperature
        total = logits.logsumexp(1)
        statistics = [logits.gather(1, targets_n[:, None])[:, 0] - total]
        if entropy:
            with torch.no_grad():
                statistics.append(total - ((logits - total[:, None]).exp() * logits).sum(1))
        return torch.stack(statistics)

    rows = max(1, limit // head.weight.shape[0])
    pieces = []
    for start in range(0, len(targets), rows):
        part = (states[start : start + rows], targets[start : start + rows])
        # one piece fits into memory as it is; more are recomputed in the backward pass
        if torch.is_grad_enabled() and len(targets) > rows:
            pieces.append(checkpoint(piece, *part, use_reentrant=False))
        else:
            pieces.append(piece(*part))
    return torch.cat(pieces, dim=1) if pieces else states.new_zeros((1 + entropy, 0), dtype=torch.float32)


@torch.no_grad()
def read_logprobs(
    policy: PreTrainedModel,
    sequences: Sequence[tuple[int, ...]],
    first: Sequence[int],
    *,
    temperature: float = 1.0,
    batch_tokens: int = 16_384,
) -> tuple[list[torch.Tensor], list[int]]:
    """Log-probability of every token from ``first[k]`` (at least 1) on in ``sequences[k]``, on the CPU.

    Common beginnings are read once, ``batch_tokens`` at a time (:func:`read_states`). Also gives the tokens
    that each sequence cost: the sum is what went through the trunk.
    """
    positions = [range(start - 1, len(ids) - 1) for ids, start in zip(sequences, first, strict=True)]
    logprobs: dict[int, torch.Tensor] = {}
    cost = [0] * len(sequences)
    for reading in read_states(policy.base_model, sequences, positions, batch_tokens=batch_tokens):
        for number, states in reading.states.items():
            targets = torch.tensor(sequences[number][first[number] :], dtype=torch.long)
            logprobs[number] = token_statistics(policy, states, targets, temperature=temperature)[0].cpu()
            cost[number] = reading.new[number]
    return [logprobs[number] for number in range(len(sequences))], cost


@torch.no_grad()
def has_plain_head(model: PreTrainedModel) -> bool:
    """Whether the model's logits are its output embedding of its last state, by a trial.

    Some architectures scale or cap them in between (Gemma 2, Cohere), which is missed where the head alone is
    multiplied.
    """
    head, trunk = model.get_output_embeddings(), model.base_model
    if getattr(head, "weight", None) is None or trunk is model:
        return False
    ids = torch.arange(2, 8, device=model.device)[None] % head.weight.shape[0]
    training = model.training
    model.eval()
    try:
        expected = model(input_ids=ids, use_cache=False).logits
        states = getattr(trunk(input_ids=ids, use_cache=False), "last_hidden_state", None)
    finally:
        model.train(training)
    if states is None:  # a wrapper (an adapter's, say) whose base is a whole language model
        return False
    product = linear(states, head.weight, getattr(head, "bias", None))
    return torch.allclose(product.float(), expected.float(), atol=1e-3, rtol=1e-3)


def require_plain_head(policy: PreTrainedModel) -> None:
    """Raise ``CheckpointError`` unless the model's logits are its output embedding of its last state."""
    if policy.get_output_embeddings() is None:
        raise CheckpointError(f"{type(policy).__name__} lacks a language-model head; use a causal model")
    if not has_plain_head(policy):
        raise CheckpointError(
            f"{type(policy).__name__} changes its logits after the output embedding (a cap or a scale), "
            "which scores from its states do not reckon with; use another architecture"
        )


def bytes_per_scored_token(trunk: PreTrainedModel) -> int | None:
    """Memory that an :class:`IncrementalScorer` keeps for one token: keys and values of every layer, and the
    last hidden state. ``None`` for a trunk without attention heads, of which nothing is kept."""
    config = trunk.config
    cached = bytes_per_token(config, trunk.dtype)
    if cached is None:
        return None
    return cached + int(config.get_text_config().hidden_size) * trunk.dtype.itemsize


class TokenCache:
    """Slots of the tokens of sequences read before, found by their tokens (as in SGLang's RadixAttention,
    arXiv 2312.07104); at most ``max_tokens`` distinct tokens, the least recently used sequences go first.

    Sequences that begin alike share the slots of their common prefix. A sequence that another one
    continues is not kept apart from it.
    """

    def __init__(self, pool: TokenPool, max_tokens: int) -> None:
        self.pool, self.max_tokens = pool, max_tokens
        self._index: TokenIndex[Slots] = TokenIndex()

    def find(self, ids: Tokens) -> Slots:
        """Slots of the longest beginning of ``ids`` that is kept."""
        nearest, common = self._index.nearest(ids)
        if not common:
            return self.pool.allocate(0)
        if common == len(ids):  # otherwise ids will hold the shared prefix once it was read
            self._index.use(nearest)
        return self._index[nearest][:common]

    def add(self, ids: Tokens, slots: Slots) -> None:
        """Keep a sequence that was just read; ``slots[k]`` is where token k lies."""
        if not ids or self._index.covers(ids):
            return
        self.pool.hold(slots)
        continued = self._index.add(ids, slots)
        if continued is not None:
            self.pool.drop(continued)

    def trim(self) -> None:
        """Let go of sequences, the least recently used first, until the limit is kept."""
        while len(self._index) and self.pool.held > self.max_tokens:
            self.pool.drop(self._index.drop(self._index.oldest()))


class IncrementalScorer(Scorer):
    """A :class:`surefoot.models.scorer.Scorer` that remembers: made for beams and trees.

    Call :meth:`score_traces` with the candidates of each round, whole as they are: the longest prefix whose
    tokens are cached (from any earlier trace, which covers forks and merges) is not read again, and
    ``usage.verifier_tokens`` counts new tokens alone. Since tokens are compared, not text, a step whose
    first characters join the prefix's last token is read from there. Scores equal a
    :class:`Scorer`'s up to rounding.

    ``max_tokens`` bounds the cache between calls (:attr:`cached_tokens`); one token takes keys and values
    of every layer, and the last hidden state (:func:`bytes_per_scored_token`). A trunk that cannot read trees
    is scored as by ``Scorer``, and nothing is kept. Keep one scorer for one set of weights: after a change of
    the trunk call :meth:`clear`.
    """

    def __init__(
        self, model: StepModel, *, name: str, batch_tokens: int = 16_384, max_tokens: int = 65_536
    ) -> None:
        super().__init__(model, name=name, batch_tokens=batch_tokens)
        self._cache = TokenCache(TokenPool(max_tokens), max_tokens)

    @property
    def cached_tokens(self) -> int:
        """Distinct tokens that are kept."""
        return self._cache.pool.used

    def clear(self) -> None:
        """Forget all."""
        self._cache = TokenCache(TokenPool(self._cache.max_tokens), self._cache.max_tokens)

    def _read(self, traces: Sequence[EncodedTrace]) -> Iterator[TrunkOutput]:
        if max((len(trace.ids) for trace in traces), default=0) > self._limit:
            yield from super()._read(traces)
            return
        cache, pool = self._cache, self._cache.pool
        sequences, positions = readable(traces, self._limit)
        cached = {number: cache.find(ids) for number, ids in enumerate(sequences)}
        for slots in cached.values():
            pool.hold(slots)  # until the call ends, whatever is dropped meanwhile
        try:
            for output in read_trees(
                self.model.trunk, pool, sequences, positions, cached, batch_tokens=self.batch_tokens
            ):
                for number, slots in output.paths.items():
                    cache.add(sequences[number], slots)
                cache.trim()
                yield output
        finally:
            for slots in cached.values():
                pool.drop(slots)
            cache.trim()
            pool.release()
