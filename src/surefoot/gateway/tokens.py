"""Scores at any tokens of a prompt, for clients that write prompts for the reward model themselves."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from surefoot.gateway.http.errors import ApiError
from surefoot.gateway.upstream import UpstreamScorer

if TYPE_CHECKING:
    from surefoot.models.scorer import Scorer


@dataclass(frozen=True, kw_only=True)
class TokenScores:
    """Scores of one prompt."""

    scores: list[float]
    """In [0, 1], in the order of the positions asked for."""
    tokens: int
    """Tokens of the prompt."""
    read: int
    """Of these, tokens that went through the trunk; what prompts share is read once."""


class TokenScorer:
    """Asks a classifier of steps for scores at tokens. Made by :func:`token_scorer`."""

    def __init__(self, shared: UpstreamScorer, scorer: Scorer) -> None:
        self._shared, self._scorer = shared, scorer

    def encode(self, text: str) -> list[int]:
        """Tokens of a text, as it stands."""
        ids: list[int] = self._scorer.model.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def score(self, prompts: Sequence[Sequence[int]], *, last: bool) -> list[TokenScores]:
        """Scores at the last token of each prompt, or at all. Runs the model; call it from a thread."""
        import torch

        from surefoot.models.engine.packing import read_states

        model = self._scorer.model
        sequences = [tuple(ids) for ids in prompts]
        positions = [(len(ids) - 1,) if last else tuple(range(len(ids))) for ids in sequences]
        found: dict[int, list[float]] = {}
        read: dict[int, int] = dict.fromkeys(range(len(prompts)), 0)
        with self._shared.lock, torch.no_grad():
            budget = self._scorer.batch_tokens
            for reading in read_states(model.trunk, sequences, positions, batch_tokens=budget):
                read |= reading.new
                for number, states in reading.states.items():
                    found[number] = model.read(states).double().tolist()
        return [
            TokenScores(scores=found[number], tokens=len(ids), read=read[number])
            for number, ids in enumerate(sequences)
        ]

    def require_readable(self, prompts: Sequence[Sequence[int]]) -> None:
        """Raises :class:`ApiError` for an id that is no token, or a prompt beyond the model's context."""
        model = self._scorer.model
        size = model.trunk.get_input_embeddings().num_embeddings
        longest = model.card.encoding.max_length
        for number, ids in enumerate(prompts):
            if not ids or not all(0 <= token < size for token in ids):
                raise ApiError(400, f"input[{number}]: token ids lie in [0, {size})", param="input")
            if len(ids) > longest:
                message = f"input[{number}]: {len(ids)} tokens, and the model reads {longest}"
                raise ApiError(400, message, param="input", code="context_length_exceeded")


def token_scorer(shared: UpstreamScorer | None) -> TokenScorer | None:
    """A scorer at tokens; ``None`` where the reward model is no classifier that reads them."""
    if shared is None:
        return None
    # whoever made such a scorer has imported its module: torch need not be imported to find that nobody has
    module = sys.modules.get("surefoot.models.scorer")
    if module is None or type(shared.scorer) is not module.Scorer:
        return None
    return TokenScorer(shared, cast("Scorer", shared.scorer))
