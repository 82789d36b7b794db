"""Base class of the published families: a step model with a head read from disk, and clean text for it.

A family says how a question and its steps become token ids, where each step is read, and how the head's
logits become a score. Positions come from what the family wrote, never from a search for a marker in what
a policy wrote: a step cannot add a score, or move one, by writing the marker itself.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar, Literal, Self, TypeAlias

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from surefoot.errors import CheckpointError, ScoreError
from surefoot.models.card import CheckpointCard
from surefoot.models.encoding import EncodedTrace, too_long
from surefoot.models.families.checkpoint import Checkpoint
from surefoot.models.scorer import Scorer
from surefoot.policies.pretrained import context_length
from surefoot.policies.prompts import ControlTokens, control_tokens, render_chat, unknown_tokens
from surefoot.protocols import ProblemTrace
from surefoot.records import Message
from surefoot.segment.spans import Span, own_lines

Turn: TypeAlias = tuple[Literal["system", "user", "assistant"], str]
"""Role and text of a message."""


class PublishedModel(nn.Module, ABC):
    """A :class:`surefoot.models.scorer.StepModel` with the trunk and head of a published checkpoint.

    The head works in float32, whatever the trunk's type.
    """

    CARD: ClassVar[CheckpointCard]
    markers: ClassVar[tuple[str, ...]] = ()
    """What the family writes between steps, and a step may not hold."""
    separators: ClassVar[tuple[str, ...]] = ()
    """What ends a step in a solution that is written in the family's own form."""
    tag: ClassVar[str | None] = None
    """Entry of the vocabulary at which each step is read, if it is one that appears nowhere else."""
    good: ClassVar[int]
    """The head's class whose probability is the score; unused where a family overrides :meth:`scores`."""

    def __init__(self, trunk: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, head: nn.Module) -> None:
        super().__init__()
        self.trunk, self.tokenizer, self.head = trunk, tokenizer, head.to(trunk.device)
        self.card = within_context(self.CARD, trunk)
        self._reserved = control_tokens(tokenizer, self.markers)
        expected, width = trunk.config.get_text_config().hidden_size, _width(head)
        if width != expected:
            raise CheckpointError(
                f"the head reads {width} numbers, but the trunk's hidden size is {expected}"
            )
        self.eval()

    @classmethod
    @abstractmethod
    def read_head(cls, checkpoint: Checkpoint) -> nn.Module:
        """The head from the checkpoint's tensors. Raises ``CheckpointError``, also for a wrong tokenizer."""

    @classmethod
    def load(cls, checkpoint: Checkpoint) -> Self:
        """Raises ``CheckpointError``."""
        head = cls.read_head(checkpoint)
        model = cls(checkpoint.trunk(), checkpoint.tokenizer, head)
        checkpoint.require_all_read()
        return model

    @abstractmethod
    def write(self, question: str, text: str, spans: Sequence[Span]) -> EncodedTrace:
        """Token ids and read-out positions, before any cut, of a solution ``text`` with steps at ``spans``.

        Question and text hold no special token. :func:`step_texts` gives the steps of a family that reads
        them one by one.
        """

    def scores(self, logits_sc: torch.Tensor) -> torch.Tensor:
        """Scores ``[S]`` from the head's logits ``[S, C]``."""
        return logits_sc.softmax(dim=-1)[:, self.good]

    @classmethod
    def encoder(cls, tokenizer: PreTrainedTokenizerBase, *, max_length: int) -> Self:
        """The family without its weights, for a model behind a server: it encodes, and reads probabilities.

        ``max_length`` is the server's context in tokens.
        """
        self = cls.__new__(cls)
        nn.Module.__init__(self)
        self.tokenizer = tokenizer
        encoding = cls.CARD.encoding.model_copy(update={"max_length": max_length})
        self.card = cls.CARD.model_copy(update={"encoding": encoding})
        self._reserved = control_tokens(tokenizer, cls.markers)
        return self

    @classmethod
    def answer_ids(cls, tokenizer: PreTrainedTokenizerBase) -> tuple[int, int] | None:  # noqa: ARG003
        """Tokens for good and bad, of a family that reads a language model's head; ``None`` for others.

        Raises ``CheckpointError`` for a tokenizer of another family.
        """
        return None

    @classmethod
    def step_tag_id(cls, tokenizer: PreTrainedTokenizerBase) -> int | None:
        """Id of :attr:`tag`."""
        return None if cls.tag is None else tokenizer.get_vocab().get(cls.tag)

    def score_of(self, probabilities: Sequence[float]) -> float:
        """Score of one step from the probabilities of the head's classes, as a server gives them.

        A single probability means "good" against "bad". A softmax of the logarithms gives the
        probabilities back, so that :meth:`scores` stays the one rule.
        """
        clipped = [min(max(float(p), 1e-30), 1 - 1e-15) for p in probabilities]
        if len(clipped) == 1:
            logits = [math.log(clipped[0]) - math.log1p(-clipped[0]), 0.0]
        else:
            logits = [math.log(p) for p in clipped]
        return float(self.scores(torch.tensor([logits], dtype=torch.float64))[0])

    def scorer(self, *, name: str, batch_tokens: int) -> Scorer:
        """What scores with this model."""
        return Scorer(self, name=name, batch_tokens=batch_tokens)

    def encode(self, items: Sequence[ProblemTrace]) -> list[EncodedTrace]:
        """Tokens as the family writes them, cut at the trunk's context; messages are refused.

        Raises ``ScoreError`` for a trace without steps.
        """
        limit = self.card.encoding.max_length
        return encode_texts(
            self.write, self.tokenizer, items, self._reserved, limit=limit, separators=self.separators
        )

    def read(self, hidden_sh: torch.Tensor) -> torch.Tensor:
        """Scores ``[S]`` from the hidden states ``[S, H]`` at the read-out positions."""
        return self.scores(self.head(hidden_sh.float()))


def within_context(card: CheckpointCard, *models: PreTrainedModel) -> CheckpointCard:
    """The card with ``max_length`` set to the smallest context of ``models``."""
    length = context_length(*models, default=card.encoding.max_length)
    return card.model_copy(update={"encoding": card.encoding.model_copy(update={"max_length": length})})


def encode_texts(
    write: Callable[[str, str, Sequence[Span]], EncodedTrace],
    tokenizer: PreTrainedTokenizerBase,
    items: Sequence[ProblemTrace],
    reserved: ControlTokens,
    *,
    limit: int,
    separators: Sequence[str] = (),
) -> list[EncodedTrace]:
    """What ``write`` makes of each question and solution, cut at ``limit`` tokens.

    Messages are refused, and texts of which too many tokens are unknown.
    """
    encoded = []
    for item in items:
        reason = too_long(item, limit)
        if item.trace.text is None:
            reason = "the model reads solutions that are text, not messages of an agent's run"
        if reason is not None:
            encoded.append(EncodedTrace.unreadable(item, reason))
            continue
        written = write(*plain_solution(item, reserved, separators))
        if unknown := unknown_tokens(tokenizer, written.ids):
            encoded.append(EncodedTrace.unreadable(item, unknown[1]))
            continue
        reads = tuple(at if at is not None and at < limit else None for at in written.positions)
        encoded.append(replace(written, ids=written.ids[:limit], positions=reads))
    return encoded


def plain_solution(
    item: ProblemTrace, reserved: ControlTokens, separators: Sequence[str] = ()
) -> tuple[str, str, list[Span]]:
    """Question, solution and the spans of its steps, reserved text broken by a space.

    One of ``separators`` at a step's end is left out with the white space before it: what stands between
    steps is the family's. ``<extra_0>`` inside a step becomes ``< extra_0>``: read as the text it is, not as
    the end of a step. Raises ``ScoreError`` for a trace without text or steps.
    """
    trace = item.trace
    if trace.text is None or not trace.steps:
        raise ScoreError(f"trace {trace.id} lacks steps; segment it first (surefoot.segment.segment_trace)")
    text, spans, reached = "", [], 0
    for step in trace.steps:
        text += trace.text[reached : step.start]
        start, reached = len(text), step.end
        text += _without_end(trace.text[step.start : step.end], separators)
        spans.append((start, len(text)))
    text, spans = reserved.broken_with_spans(text + trace.text[reached:], spans)
    return reserved.broken(item.problem.text), text, spans


def step_texts(text: str, spans: Sequence[Span]) -> list[str]:
    """Each step's own lines, with their indentation, as they are where the authors split a solution at line
    ends or blank lines (:func:`surefoot.segment.spans.own_lines`)."""
    return [own_lines(text, span) for span in spans]


def chat_text(tokenizer: PreTrainedTokenizerBase, *turns: Turn) -> str:
    """The tokenizer's chat template on ``turns``, without generation prompt."""
    messages = [Message(role=role, content=text) for role, text in turns]
    return render_chat(tokenizer, messages, generation=False)


def plain_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Ids of ``text`` alone: the tokenizer adds no special token."""
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def one_token(tokenizer: PreTrainedTokenizerBase, text: str) -> int:
    """Id of the token that ``text`` is. Raises ``CheckpointError`` if it is not one token."""
    ids = plain_ids(tokenizer, text)
    if len(ids) != 1:
        raise CheckpointError(f"{tokenizer.name_or_path}: {text!r} is {len(ids)} tokens here, not one: {ids}")
    return ids[0]


def marked(ids: Sequence[int], marker: int, steps: int) -> list[int]:
    """Where ``marker`` stands. Raises ``ScoreError`` unless it stands once a step."""
    positions = [position for position, token in enumerate(ids) if token == marker]
    if len(positions) != steps:
        raise ScoreError(f"{len(positions)} step markers (token {marker}) were written for {steps} steps")
    return positions


def _without_end(step: str, separators: Sequence[str]) -> str:
    """``step`` without one of ``separators`` as its last word; the line breaks after it stay."""
    bare = step.rstrip()
    for separator in separators:
        text = bare.removesuffix(separator)
        part_of_word = separator[0].isalpha() and text[-1:].isalpha()
        if text != bare and not part_of_word:
            return text.rstrip() + re.sub(r"^[^\r\n]*", "", step[len(bare) :])
    return step


def _width(head: nn.Module) -> int:
    return next(layer.in_features for layer in head.modules() if isinstance(layer, nn.Linear))
