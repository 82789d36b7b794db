"""Scores from a reward model: each distinct token through the trunk once, passes filled by tokens."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from surefoot.errors import ScoreError
from surefoot.models.card import CheckpointCard
from surefoot.models.encoding import EncodedTrace, Window, windows_of
from surefoot.protocols import ProblemTrace, Segmenter, TraceChannel
from surefoot.records import Problem, StepScores, Trace, Usage
from surefoot.scores import aggregate
from surefoot.segment import segment_trace

if TYPE_CHECKING:  # the scores of a server need neither
    import torch
    from transformers import PreTrainedModel

    from surefoot.models.engine.packing import TrunkOutput

_LOG = logging.getLogger("surefoot.models")


class StepModel(Protocol):
    """A trunk whose hidden state at one token of each step gives that step's score.

    So one scorer serves them all: it shares prefixes, fills batches and keeps caches, and knows neither how a
    family writes its input nor what its head looks like.
    """

    @property
    def trunk(self) -> PreTrainedModel:
        """Gives ``last_hidden_state``; without a language-model head."""

    @property
    def card(self) -> CheckpointCard: ...

    def encode(self, items: Sequence[ProblemTrace]) -> list[EncodedTrace]:
        """Token ids of each trace, and where each step is read. Raises ``ScoreError``."""

    def read(self, hidden_sh: torch.Tensor) -> torch.Tensor:
        """Scores ``[S]`` of S read-out positions from their last hidden states ``[S, H]``."""


class CheckpointScorer(ABC):
    """A :class:`surefoot.protocols.StepScorer` with a card: what :func:`surefoot.models.load_prm` gives."""

    name: str
    """Name recorded with the scores."""
    card: CheckpointCard
    """What the checkpoint says of itself."""

    @property
    def reads(self) -> frozenset[TraceChannel]:
        """Channels of a trace that it reads."""
        return frozenset(self.card.reads)

    @abstractmethod
    def score_traces(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        """Scores of traces that have steps, one record per trace, in order."""

    def score(
        self, problem: Problem | str, solutions: Sequence[str], *, segmenter: Segmenter | None = None
    ) -> list[StepScores]:
        """Score pasted solutions of one problem.

        Without ``segmenter`` a solution is cut as the data of the model's training were, if the card says
        how; else at blank lines, or at line ends if it has none. Raises ``ScoreError`` for an empty
        solution.
        """
        record = Problem(text=problem) if isinstance(problem, str) else problem
        traces = [cut(record, text, segmenter or self.card.segmenter) for text in solutions]
        return self.score_traces([ProblemTrace(problem=record, trace=trace) for trace in traces])

    def aggregate(self, scores: StepScores) -> float:
        """One number for a whole trace, by the checkpoint's own rule."""
        return aggregate(scores.scores, self.card.aggregation)

    def _record(
        self, trace: Trace, encoded: EncodedTrace, scores: Sequence[float | None], tokens: int
    ) -> StepScores:
        return StepScores.of_model(
            trace_id=trace.id,
            scorer=self.name,
            scores=tuple(scores),
            unscored_reason=encoded.unscored_reason(self.card.encoding.max_length),
            usage=Usage(verifier_tokens=tokens, calls=1),
        )


class Scorer(CheckpointScorer):
    """A :class:`surefoot.protocols.StepScorer` on any :class:`surefoot.models.scorer.StepModel`.

    What traces have in common from their beginning on (the prompt, a shared prefix, all of it) goes through
    the trunk once a call; see ``engine.packing`` for how, and for trunks that do not allow it.
    ``batch_tokens`` bounds the tokens of one forward pass. With ``windows`` a trace that is longer than the
    context is read in several (:mod:`surefoot.models.encoding`), by default as the checkpoint was trained.
    """

    def __init__(
        self, model: StepModel, *, name: str, batch_tokens: int = 16_384, windows: bool | None = None
    ) -> None:
        self.model, self.name, self.batch_tokens = model, name, batch_tokens
        self.card = model.card
        self.windows = model.card.encoding.windows if windows is None else windows
        self._warned: set[str] = set()
        model.trunk.eval()

    def score_traces(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        """Score traces that have steps; results in order, one each.

        ``usage.verifier_tokens`` counts a trace's tokens through the trunk. A prefix shared with another
        trace of the call is counted for one of them only, so that the sum is the computed total. Padding,
        where the trunk needs it, is not counted. Steps beyond the model's context get ``None`` and a reason;
        with ``windows`` they are scored, and ``reasons`` says how much before them was not read. Raises
        ``ScoreError`` for a trace without steps."""
        self._warn_untested(items)
        encoded = self.model.encode(items)
        if not self.windows:
            return self._score(items, encoded)
        limit = self.card.encoding.max_length
        windows = [
            windows_of(self.model.encode, item, trace, limit)
            for item, trace in zip(items, encoded, strict=True)
        ]
        flat = [window for of_item in windows for window in of_item]
        records = iter(self._score([window.item for window in flat], [window.encoded for window in flat]))
        return [joined([(window, next(records)) for window in of_item], limit) for of_item in windows]

    def _warn_untested(self, items: Sequence[ProblemTrace]) -> None:
        """Log each way in which a text differs from what the model was tested on, once per model."""
        for item in items if self.card.tested else ():
            for difference in self.card.tested.differences(item) if self.card.tested else ():
                kind = difference.partition(":")[0]
                if kind not in self._warned:
                    self._warned.add(kind)
                    _LOG.warning("%s was not tested on this: %s", self.name, difference)

    def _score(self, items: Sequence[ProblemTrace], encoded: Sequence[EncodedTrace]) -> list[StepScores]:
        duplicates: dict[EncodedTrace, list[int]] = {}
        for number, trace in enumerate(encoded):
            duplicates.setdefault(trace, []).append(number)
        distinct = list(duplicates)
        results: dict[int, StepScores] = {}
        for output in self._read(distinct):
            scores = self._scores(output)
            for index, tokens in output.new.items():
                trace = distinct[index]
                read = iter(scores[index])
                row = [None if at is None else next(read) for at in trace.positions]
                for repeat, number in enumerate(duplicates[trace]):
                    results[number] = self._record(items[number].trace, trace, row, 0 if repeat else tokens)
        return [results[number] for number in range(len(items))]

    @cached_property
    def _limit(self) -> int:
        """Longest trace that the trunk reads in trees."""
        from surefoot.models.engine.packing import tree_limit

        return tree_limit(self.model.trunk)

    def _read(self, traces: Sequence[EncodedTrace]) -> Iterator[TrunkOutput]:
        """States at the steps of each trace, by its number."""
        from surefoot.models.engine.packing import read_states

        sequences, positions = readable(traces, self._limit)
        return read_states(
            self.model.trunk, sequences, positions, batch_tokens=self.batch_tokens, limit=self._limit
        )

    def _scores(self, output: TrunkOutput) -> dict[int, list[float]]:
        """The model's scores of what one pass gave."""
        states = list(output.states.values())
        if not sum(map(len, states)):
            return {number: [] for number in output.states}
        import torch

        with torch.no_grad():
            scores = iter(self.model.read(torch.cat(states)).double().tolist())
        return {number: [next(scores) for _ in at] for number, at in output.states.items()}


def joined(read: Sequence[tuple[Window, StepScores]], limit: int) -> StepScores:
    """One record of a trace's windows."""
    if len(read) == 1:
        return read[0][1]
    scores: list[float | None] = []
    reasons: list[str | None] = []
    for window, record in read:
        scores += [record.scores[step - window.start] for step in window.read]
        left_out = f"read without {window.left_out} earlier messages" if window.left_out else None
        reasons += [left_out] * len(window.read)
    records = [record for _, record in read]
    missing = scores.count(None)
    why = f"{missing} steps are empty, or longer than the model's context of {limit} tokens"
    return StepScores(
        trace_id=records[0].trace_id,
        scorer=records[0].scorer,
        scores=tuple(scores),
        unscored_reason=why if missing else None,
        reasons=tuple(reasons),
        usage=sum((record.usage for record in records), Usage()),
    )


def readable(
    traces: Sequence[EncodedTrace], limit: int
) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Tokens to read of each trace and the positions to read them at.

    Where all are read in trees (none is longer than ``limit``), nothing after the last step's position
    matters, so it is left out.
    """
    positions = [tuple(at for at in trace.positions if at is not None) for trace in traces]
    if max((len(trace.ids) for trace in traces), default=0) > limit:
        return [trace.ids for trace in traces], positions
    ends = [max(at, default=-1) + 1 for at in positions]
    return [trace.ids[:end] for trace, end in zip(traces, ends, strict=True)], positions


def cut(problem: Problem, solution: str, segmenter: Segmenter | None = None) -> Trace:
    """A pasted solution as a trace with steps. Raises ``ScoreError`` if it does not contain a step."""
    trace = segment_trace(Trace(problem_id=problem.id, text=solution), segmenter)
    if not trace.steps:
        raise ScoreError("the solution is empty: nothing to score")
    return trace
