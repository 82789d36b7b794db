"""Hidden states of a frozen trunk at the labelled steps: read once, kept on disk while the run lasts."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import torch

from surefoot.models.engine.packing import read_states
from surefoot.models.engine.tensor_shards import TensorShards, content_key, fingerprint
from surefoot.models.kinds.classifier import RewardModel
from surefoot.training.targets import Example

_SHARD_TOKENS = 50_000
"""Tokens read between two files: what a killed run loses at most."""

logger = logging.getLogger(__name__)


class FrozenFeatures:
    """What the head sees of each example; the trunk reads every example once, however many epochs.

    Examples that begin alike share the reading of their common tokens (``models.engine.packing``), which
    makes a PRM800K problem with its thirty rated alternatives some fourteen times cheaper. States are
    written to ``directory/features`` as they come, under a hash of trunk, tokens and positions; a run that
    is killed goes on from there. Progress is logged to ``surefoot.training.features`` at level INFO.
    """

    def __init__(self, model: RewardModel, examples: Sequence[Example], directory: Path) -> None:
        self._model, self._shards = model, TensorShards(directory / "features")
        self._trunk = (fingerprint(model.trunk), str(model.trunk.dtype))
        wanted = {self._key(example): example for example in examples}
        self._known = self._shards.load(wanted)
        self._read({key: example for key, example in wanted.items() if key not in self._known})

    def logits(self, batch: Sequence[Example]) -> torch.Tensor:
        """The head's outputs at each labelled step of the batch, shape [S, C], with gradient to the head."""
        states = torch.cat([self._known[self._key(example)] for example in batch])
        head = self._model.head
        return head(states.to(head.weight.device))

    def remove(self) -> None:
        """Delete the files, when the run is over."""
        self._shards.remove()

    def _key(self, example: Example) -> str:
        return content_key(self._trunk, example.ids, example.positions)

    def _read(self, missing: dict[str, Example]) -> None:
        if not missing:
            return
        keys, examples = list(missing), list(missing.values())
        shard: dict[str, torch.Tensor] = {}
        tokens = done = 0
        for reading in read_states(
            self._model.trunk,
            [example.ids for example in examples],
            [example.positions for example in examples],
        ):
            shard |= {keys[number]: states.float().cpu() for number, states in reading.states.items()}
            tokens += reading.tokens
            done += len(reading.states)
            if tokens >= _SHARD_TOKENS or done == len(missing):
                self._shards.write(shard)
                self._known |= shard
                logger.info("frozen trunk: %d of %d traces read", done, len(missing))
                shard, tokens = {}, 0
