"""A labeller as a scorer: exact checkers, rules, rollouts or judges where step scores are wanted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from surefoot.errors import ScoreError
from surefoot.labels import as_target
from surefoot.protocols import Labeller, ProblemTrace, TraceChannel
from surefoot.records import LabelKind, StepLabel, StepScores, Usage
from surefoot.scores import TraceRule, channels_read


class LabelScorer:
    """A :class:`surefoot.protocols.StepScorer` that says what ``labeller`` says.

    Labels of ``kind`` count, others are passed over; several of one step are averaged. A value is the score,
    a correctness of +1, 0, -1 is 1, ``neutral``, 0, and an advantage A is (1 + A) / 2. A step without a label
    that is known has the score ``unknown``, by default none, with the label's reason. What a label's evidence
    says is the score's reason. ``usage`` counts what the labels cost: the tokens of policy, judge or model
    that the labeller used are the scorer's verifier tokens.

    ``score_traces`` runs the labeller in a new event loop: call it from a thread without one, as searches do.
    A labeller that calls a server needs a separate policy, which the search does not use. Raises
    ``ScoreError`` for a ``neutral`` outside [0, 1]."""

    @property
    def reads(self) -> frozenset[TraceChannel]:
        return channels_read(self.labeller)

    def __init__(
        self,
        labeller: Labeller,
        *,
        name: str,
        kind: LabelKind = "correctness",
        neutral: float = 1.0,
        unknown: float | None = None,
    ) -> None:
        if not 0 <= neutral <= 1:
            raise ScoreError(f"'neutral' is {neutral}; scores lie in [0, 1]")
        self.labeller, self.name, self.kind = labeller, name, kind
        self.neutral, self.unknown = neutral, unknown
        self.aggregation: TraceRule = "verdicts" if kind == "correctness" and unknown is None else "min"
        """How the scores of a trace become one number, where nothing else is asked for."""
        self.overlaps = bool(getattr(labeller, "overlaps", False))
        """Whether several threads may call it at once."""

    def score_traces(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        """One record an item, one score a step."""
        labels = asyncio.run(self.labeller.label(items))
        return [self._record(item, row) for item, row in zip(items, labels, strict=True)]

    def _record(self, item: ProblemTrace, labels: Sequence[StepLabel]) -> StepScores:
        of_kind = [label for label in labels if label.kind == self.kind]
        scores: list[float | None] = []
        reasons: list[str | None] = []
        for step in range(len(item.trace.steps)):
            targets = [as_target(label, neutral=self.neutral) for label in of_kind if label.step == step]
            scores_of_step = [score for score in targets if score is not None]
            scores.append(sum(scores_of_step) / len(scores_of_step) if scores_of_step else self.unknown)
            messages = [
                label.evidence.message for label in of_kind if label.step == step and label.evidence.message
            ]
            reasons.append("; ".join(messages) or None)
        reason = None
        if None in scores:
            unknown = [label.reason for label in of_kind if label.value is None and label.reason]
            reason = unknown[0] if unknown else f"the labeller gave no label of kind '{self.kind}'"
        usage = sum((label.evidence.usage for label in labels), Usage())
        return StepScores.of_model(
            trace_id=item.trace.id,
            scorer=self.name,
            scores=tuple(scores),
            unscored_reason=reason,
            reasons=reasons if any(reasons) else (),
            usage=Usage(verifier_tokens=usage.tokens, calls=usage.calls),
        )
