"""The implicit process reward model: a language model trained on outcomes whose log-ratios are step rewards.

Yuan et al., "Free process rewards without process labels", arXiv 2412.01981. If a response's reward is
r(y) = beta log π(y) / π_ref(y), the sum of the log-ratios up to a step is the reward to be expected from
there, an implied Q (a soft mean; the paper's proposition); a step's own reward is the difference of two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from pydantic import Field
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from surefoot.errors import CheckpointError, ScoreError
from surefoot.io import write_json
from surefoot.io.sources import pinned
from surefoot.models.card import (
    IMPLICIT,
    IMPLICIT_SETTINGS,
    CheckpointCard,
    read_json,
    verified_card,
    write_card,
)
from surefoot.models.encoding import EncodedTrace, Encoding, encode_traces
from surefoot.models.engine.causal import load_causal, read_logprobs, require_plain_head, save_causal
from surefoot.models.engine.tensor_shards import fingerprint
from surefoot.models.scorer import CheckpointScorer
from surefoot.policies.devices import FLOAT32, LOADING, Loading
from surefoot.policies.pretrained import context_length
from surefoot.protocols import ProblemTrace
from surefoot.records import FrozenModel, StepScores

_OWN_COPY = "reference"


class ImplicitSettings(FrozenModel):
    """``implicit.json``, in the same directory as ``surefoot.json``."""

    format: Literal[1] = 1
    beta: float = Field(default=0.05, gt=0)
    """Reward per nat of log-ratio; 0.05 in the paper."""
    reference: str
    """``reference`` (the folder in the checkpoint), a directory or hub name."""
    reference_fingerprint: str | None = None


@dataclass(frozen=True, kw_only=True)
class ImplicitRewards:
    """Rewards of one trace, in units of log odds (beta times nats); their sum is the response's reward."""

    steps: tuple[float | None, ...]
    """Of each step; ``None`` where there is none."""
    tokens: int
    """Tokens read for them, by model and reference."""


class ImplicitPRM(CheckpointScorer):
    """A :class:`surefoot.protocols.StepScorer` from a causal language model and a reference.

    The tokens of a step are those after the last visible token of the step before it, up to its own; messages
    of tools and users between the steps of an agent's run do not count. Rewards are log odds; a score is the
    sigmoid of the step's reward, which keeps every order and every minimum. 1/2 = the step changes nothing:
    it means an *advantage*, and a trace's score is the minimum, as in the paper.
    """

    def __init__(
        self,
        policy: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        card: CheckpointCard,
        settings: ImplicitSettings,
        *,
        reference: PreTrainedModel,
        name: str = IMPLICIT,
    ) -> None:
        if card.encoding.marker is not None:
            raise CheckpointError("'marker' is set: implicit rewards are of the tokens as they were written")
        require_plain_head(policy)
        require_plain_head(reference)
        reference.eval().requires_grad_(False)
        self.policy, self.tokenizer, self.card, self.settings = policy, tokenizer, card, settings
        self.name, self.reference, self._fingerprint = name, reference, fingerprint(reference)

    @classmethod
    def initialise(
        cls,
        base: str | Path,
        *,
        reference: str | Path = "base",
        beta: float = 0.05,
        encoding: Encoding | None = None,
        loading: Loading = FLOAT32,
    ) -> ImplicitPRM:
        """A new model that starts as ``base``; every reward is 0 if that is the ``reference`` too.

        Raises ``CheckpointError`` for a checkpoint that cannot be loaded or does not fit.
        """
        policy, tokenizer = load_causal(base, loading)
        named = base if reference == "base" else reference
        other, _ = load_causal(named, loading)
        settings = ImplicitSettings(beta=beta, reference=pinned(named))
        return cls.assemble(
            policy, tokenizer, settings, reference=other, base=pinned(base), encoding=encoding
        )

    @classmethod
    def assemble(
        cls,
        policy: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        settings: ImplicitSettings,
        *,
        reference: PreTrainedModel,
        base: str,
        encoding: Encoding | None = None,
    ) -> ImplicitPRM:
        """:meth:`initialise` from models that are loaded; the names are noted in the checkpoint."""
        card = CheckpointCard(
            family=IMPLICIT,
            kind="prm",
            encoding=(encoding or Encoding()).within(context_length(policy)),
            aggregation="min",
            score_means="advantage",
            label_source="outcome",
            base=base,
        )
        return cls(policy, tokenizer, card, settings, reference=reference)

    @classmethod
    def load(
        cls,
        directory: str | Path,
        *,
        reference: str | Path | None = None,
        loading: Loading = LOADING,
    ) -> ImplicitPRM:
        """Load what :meth:`save` wrote; ``reference`` is where the reference is now, if it has moved.

        Raises ``CheckpointError`` naming the missing or bad file, or if the reference has other weights than
        the one that the checkpoint was trained against.
        """
        directory = Path(directory)
        card = verified_card(directory, family=IMPLICIT)
        missing = f"{directory} is not an implicit reward model: {IMPLICIT_SETTINGS} is missing"
        settings = read_json(directory / IMPLICIT_SETTINGS, ImplicitSettings, missing)
        as_saved = loading.as_saved()  # the reference is known by its weights as they were
        policy, tokenizer = load_causal(directory, as_saved)
        reference_path = directory / _OWN_COPY if settings.reference == _OWN_COPY else settings.reference
        try:
            other, _ = load_causal(reference or reference_path, as_saved)
        except CheckpointError as error:
            raise CheckpointError(
                f"{directory}: the reference that it was trained against is missing or broken: {error}; say "
                "where it is with reference="
            ) from error
        model = cls(policy.eval(), tokenizer, card, settings, reference=other, name=directory.name)
        if settings.reference_fingerprint not in (None, model._fingerprint):
            raise CheckpointError(
                f"{directory / IMPLICIT_SETTINGS}: the reference {str(reference or reference_path)!r} has "
                "other weights than the one that was trained against"
            )
        loading.cast(policy, other)
        return model

    def save(
        self, directory: Path, *, with_reference: bool = True, state: Mapping[str, torch.Tensor] | None = None
    ) -> None:
        """Write model, tokenizer, ``implicit.json`` and, last, ``surefoot.json``.

        ``state`` are the model's weights where it holds shards of them.
        The reference goes into ``reference/``, or with ``with_reference=False`` only its name is noted.
        """
        save_causal(self.policy, self.tokenizer, directory, state=state)
        changes: dict[str, str | None] = {"reference_fingerprint": self._fingerprint}
        if with_reference:
            save_causal(self.reference, self.tokenizer, directory / _OWN_COPY)
            changes["reference"] = _OWN_COPY
        write_json(directory / IMPLICIT_SETTINGS, self.settings.model_copy(update=changes).model_dump())
        write_card(directory, self.card)

    def encode(self, items: Sequence[ProblemTrace]) -> list[EncodedTrace]:
        """Tokens as the checkpoint's card describes them. Raises ``ScoreError``."""
        return encode_traces(self.tokenizer, self.card.encoding, items)

    def rewards(self, items: Sequence[ProblemTrace]) -> list[ImplicitRewards]:
        """Step rewards, one record a trace, in order; common beginnings are read once.

        Raises ``ScoreError`` for a trace without steps.
        """
        return self._rewards(self.encode(items))

    def _rewards(self, encoded: Sequence[EncodedTrace]) -> list[ImplicitRewards]:
        self.policy.eval()
        rewards = []
        for trace, read in zip(encoded, log_ratios(self.policy, self.reference, encoded), strict=True):
            of_tokens = self.settings.beta * read.ratios
            steps = tuple(
                None if at is None else float(of_tokens[tokens.start - read.first :][: len(tokens)].sum())
                for tokens, at in zip(counted_tokens(trace), trace.positions, strict=True)
            )
            rewards.append(ImplicitRewards(steps=steps, tokens=read.tokens))
        return rewards

    def score_traces(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        """Scores in [0, 1], one record per trace, in order; the class explains them.

        Steps beyond the context get ``None`` and a reason. Raises ``ScoreError`` for a trace without steps.
        """
        encoded = self.encode(items)
        return [
            self._record(item.trace, trace, implicit_scores(rewards.steps), rewards.tokens)
            for item, trace, rewards in zip(items, encoded, self._rewards(encoded), strict=True)
        ]


def implicit_scores(rewards: Sequence[float | None]) -> tuple[float | None, ...]:
    """Rewards (log odds) → scores in [0, 1] (:class:`ImplicitPRM`); ``None`` stays ``None``."""
    # the sigmoid, without overflow
    return tuple(None if reward is None else (1 + math.tanh(reward / 2)) / 2 for reward in rewards)


class LogRatios(NamedTuple):
    """log π - log π_ref of the tokens of one response, in nats."""

    ratios: torch.Tensor
    """[T], float64."""
    first: int
    """Index of the first of these tokens in the trace; 0 if no step lies within the context."""
    tokens: int
    """Tokens read by both models."""


def log_ratios(
    policy: PreTrainedModel, reference: PreTrainedModel, encoded: Sequence[EncodedTrace]
) -> list[LogRatios]:
    """Of each trace's response; common beginnings are read once."""
    responses = [response_of(trace) for trace in encoded]
    read = [response for response in responses if response is not None]
    sequences, firsts = [ids for ids, _ in read], [first for _, first in read]
    ours, cost = read_logprobs(policy, sequences, firsts)
    theirs, more = read_logprobs(reference, sequences, firsts)
    rows = iter(
        LogRatios(policy_row.double() - reference_row.double(), first, tokens + more_tokens)
        for policy_row, reference_row, (_, first), tokens, more_tokens in zip(
            ours, theirs, read, cost, more, strict=True
        )
    )
    return [LogRatios(torch.zeros(0), 0, 0) if response is None else next(rows) for response in responses]


def response_of(trace: EncodedTrace) -> tuple[tuple[int, ...], int] | None:
    """Tokens up to the last visible token of the last step read, and where the response begins.

    ``None`` if no step lies within the context. Raises ``ScoreError`` where the family does not say at which
    token steps begin.
    """
    last = max((position for position in trace.positions if position is not None), default=None)
    if last is None:
        return None
    if not trace.starts:
        raise ScoreError("'starts' is empty: implicit rewards need to know where each step begins")
    return trace.ids[: last + 1], max(1, trace.starts[0])  # nothing comes before a first token to predict it


def counted_tokens(trace: EncodedTrace) -> list[range]:
    """Token indices that count to each step; empty for a step that is cut off."""
    return [
        range(0) if at is None else range(max(1, start), at + 1)
        for start, at in zip(trace.starts, trace.positions, strict=True)
    ]
