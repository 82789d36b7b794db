"""Scores in a search: results for a prefix are cached, and only new tokens go through the trunk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from transformers import PreTrainedModel

from surefoot.models.encoding import EncodedTrace
from surefoot.models.engine.packing import TrunkOutput, read_trees
from surefoot.models.engine.tree_attention import Slots, TokenPool
from surefoot.models.scorer import Scorer, StepModel, readable
from surefoot.policies.prefix_cache import bytes_per_token
from surefoot.tree import TokenIndex, Tokens


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
