"""Scores from a reward model: batches filled by tokens, equal inputs computed once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from surefoot.errors import ScoreError
from surefoot.models.aggregate import aggregate
from surefoot.models.card import CheckpointCard
from surefoot.models.encoding import EncodedTrace
from surefoot.models.reward_model import RewardModel, pad_batch
from surefoot.models.step_model import StepModel
from surefoot.protocols import ProblemTrace, Segmenter
from surefoot.records import Problem, StepScores, Trace, Usage
from surefoot.segment import BlankLine, Line, segment_trace


class Scorer:
    """A :class:`surefoot.protocols.StepScorer` on any :class:`surefoot.models.step_model.StepModel`.

    ``batch_tokens`` bounds the padded tokens of one forward pass. ``progress`` is called with the number
    of traces scored.
    """

    def __init__(
        self,
        model: StepModel,
        *,
        name: str,
        batch_tokens: int = 16_384,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.model, self.name, self.batch_tokens, self.progress = model, name, batch_tokens, progress
        model.trunk.eval()

    @property
    def card(self) -> CheckpointCard:
        """What the checkpoint says of itself."""
        return self.model.card

    def score(
        self, problem: Problem | str, solutions: Sequence[str], *, segmenter: Segmenter | None = None
    ) -> list[StepScores]:
        """Score pasted solutions of one problem; one score in [0, 1] a step.

        Without ``segmenter`` a solution is cut at blank lines, or at line ends if it has no blank line.
        Raises ``ScoreError`` for an empty solution.
        """
        if isinstance(problem, str):
            problem = Problem(text=problem)
        items = [ProblemTrace(problem=problem, trace=cut(problem, text, segmenter)) for text in solutions]
        return self.score_traces(items)

    def score_traces(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        """Score traces that have steps; results in order, one each.

        Steps beyond the model's context get ``None`` and a reason. Raises ``ScoreError`` for a trace
        without steps.
        """
        encoded = self.model.encode(items)
        places: dict[EncodedTrace, list[int]] = {}
        for number, trace in enumerate(encoded):
            places.setdefault(trace, []).append(number)
        results: dict[int, StepScores] = {}
        for batch in self._batches(list(places)):
            for trace, scores in zip(batch, self._forward(batch), strict=True):
                for repeat, number in enumerate(places[trace]):
                    tokens = 0 if repeat else len(trace.ids)
                    results[number] = self._record(items[number].trace, trace, scores, tokens)
                if self.progress:
                    self.progress(len(places[trace]))
        return [results[number] for number in range(len(items))]

    def aggregate(self, scores: StepScores) -> float:
        """One number for a whole trace, by the checkpoint's own rule."""
        return aggregate(scores.scores, self.card.aggregation)

    def _batches(self, traces: list[EncodedTrace]) -> Iterator[list[EncodedTrace]]:
        """Similar lengths together, as many rows as ``batch_tokens`` allows."""
        traces.sort(key=lambda trace: len(trace.ids))
        batch: list[EncodedTrace] = []
        for trace in traces:
            if batch and len(trace.ids) * (len(batch) + 1) > self.batch_tokens:
                yield batch
                batch = []
            batch.append(trace)
        if batch:
            yield batch

    @torch.inference_mode()
    def _forward(self, batch: list[EncodedTrace]) -> list[list[float | None]]:
        trunk = self.model.trunk
        ids, mask = pad_batch([trace.ids for trace in batch])
        reads = [(row, at) for row, trace in enumerate(batch) for at in trace.positions if at is not None]
        scores: Iterator[float] = iter(())
        if reads:
            index = torch.tensor(reads, device=trunk.device)
            hidden = trunk(
                input_ids=ids.to(trunk.device), attention_mask=mask.to(trunk.device), use_cache=False
            ).last_hidden_state
            scores = iter(self.model.read(hidden[index[:, 0], index[:, 1]]).double().tolist())
        return [[None if at is None else next(scores) for at in trace.positions] for trace in batch]

    def _record(
        self, trace: Trace, encoded: EncodedTrace, scores: list[float | None], tokens: int
    ) -> StepScores:
        reason = None
        if encoded.truncated_steps:
            limit = self.card.encoding.max_length
            reason = f"{encoded.truncated_steps} steps lie beyond the model's context of {limit} tokens"
        return StepScores(
            trace_id=trace.id,
            scorer=self.name,
            scores=tuple(scores),
            unscored_reason=reason,
            usage=Usage(verifier_tokens=tokens, calls=1),
        )


def cut(problem: Problem, solution: str, segmenter: Segmenter | None = None) -> Trace:
    """A pasted solution as a trace with steps. Raises ``ScoreError`` if there is no step in it."""
    segmenter = segmenter or (BlankLine() if "\n\n" in solution.strip() else Line())
    trace = segment_trace(Trace(problem_id=problem.id, text=solution), segmenter)
    if not trace.steps:
        raise ScoreError("the solution is empty: nothing to score")
    return trace


def load_prm(path: str | Path, *, device: str = "cpu", batch_tokens: int = 16_384) -> Scorer:
    """Load a reward model by directory; ``load_prm(path).score(problem, solutions)`` scores solutions.

    Raises ``CheckpointError`` if the directory is not a checkpoint of this package.
    """
    model = RewardModel.load(path)
    return Scorer(model.to(device), name=Path(path).name, batch_tokens=batch_tokens)
