"""Checks of step scores against their trace, and their aggregation to one number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, cast, get_args

from surefoot.errors import ScoreError
from surefoot.protocols import ALL_CHANNELS, ProblemTrace, StepScorer, TraceChannel
from surefoot.records import StepScores, Trace

Aggregator = Literal["min", "product", "last", "mean", "sum"]
"""Papers use product (Lightman et al. 2023; OmegaPRM), min (Math-Shepherd), last (Snell et al. 2024), mean
(RLHFlow's evaluation), or sum (of rewards per step, such as an implicit model's; PURE, arXiv 2504.15275,
calls it the canonical credit assignment of process rewards)."""

AGGREGATORS: tuple[Aggregator, ...] = get_args(Aggregator)

TraceRule = Literal[Aggregator, "verdicts"]
"""How a trace's step scores become one number; "verdicts" for verifiers, see :func:`verdict_value`."""


def checked_scores(scorer: StepScorer, items: Sequence[ProblemTrace]) -> list[StepScores]:
    """The scores of ``items``: one record per trace, in order, with one score per step.

    The scorer is not called without items. Raises ``ScoreError`` if the records do not fit the traces.
    """
    records = scorer.score_traces(items) if items else []
    if len(records) != len(items):
        name = getattr(scorer, "name", type(scorer).__name__)
        raise ScoreError(f"{name} gave {len(records)} records for {len(items)} traces")
    for item, record in zip(items, records, strict=True):
        require_fit(record, item.trace)
    return records


def require_fit(record: StepScores, trace: Trace) -> None:
    """Raise ``ScoreError`` unless ``record`` belongs to ``trace`` and has one score per step."""
    require_scores(record, trace.id, len(trace.steps))


def require_scores(record: StepScores, trace_id: str, steps: int) -> None:
    """Raise ``ScoreError`` unless ``record`` belongs to this trace and has ``steps`` scores."""
    if record.trace_id != trace_id or len(record.scores) != steps:
        raise ScoreError(
            f"{record.scorer}: {len(record.scores)} scores of trace {record.trace_id} do not fit the "
            f"{steps} steps of trace {trace_id}; give one score per step, null for an unscored one"
        )


def trace_rule(scorer: object) -> TraceRule:
    """How a scorer's step scores become one number: as it or its checkpoint says, else "min"."""
    for source in (scorer, getattr(scorer, "card", None)):
        if rule := getattr(source, "aggregation", None):
            return cast("TraceRule", rule)
    return "min"


def channels_read(judge: object) -> frozenset[TraceChannel]:
    """The channels that a scorer, verifier, labeller or grader says it ``reads``; all if it says nothing."""
    return cast("frozenset[TraceChannel]", getattr(judge, "reads", ALL_CHANNELS))


def verdict_value(scores: Sequence[float | None]) -> float:
    """Value of a trace's verdicts: 0 if a step is refuted, else 1 - 1 / (2 c + 2) with c confirmed steps.

    A score of 0 refutes a step, 1 confirms it, and a missing or other one leaves it open. So a trace with a
    refuted step is worth less than any without, an open step changes nothing, more confirmed steps are worth
    more, and the odds of a trace without a refuted step are 2 c + 1.
    """
    values = [score for score in scores if score is not None]
    if any(value <= 0 for value in values):
        return 0.0
    return 1 - 1 / (2 * sum(value >= 1 for value in values) + 2)


def step_score(score: float | None, how: TraceRule) -> float | None:
    """The score of a single step; an open verdict lies between refuted and confirmed."""
    if score is not None and math.isfinite(score):
        return score
    return 0.5 if how == "verdicts" else None


def is_scored(scores: Sequence[float | None], how: TraceRule) -> bool:
    """Whether all steps that the rule reads have a score, and for verdicts whether one has."""
    if how == "verdicts":
        return any(score is not None for score in scores)
    return bool(complete_scores(scores[-1:] if how == "last" else scores))


def best_of_k(value: float, k: int) -> float:
    """Value of a prover that takes the best of ``k`` samples: 1 - (1 - value)^k, in [0, 1].

    It is concave in ``value``, so an estimate from few rollouts is too low on average. Raises ``ValueError``
    for fewer than one sample.
    """
    if k < 1:
        raise ValueError(f"'best_of' must be at least 1, not {k}")
    return 1 - (1 - value) ** k


def trace_score(scores: Sequence[float | None], how: TraceRule) -> float | None:
    """:func:`aggregate`, or ``None`` for a trace without steps, or with an unscored step that the rule reads.

    ``last`` reads the last step alone, and verdicts may be missing. Unscored is not zero, and a minimum over
    the other steps would be too high. Raises ``ScoreError`` if ``product`` gets a negative score.
    """
    finite = scores if how == "verdicts" else complete_scores(scores[-1:] if how == "last" else scores)
    return aggregate(finite, how) if finite else None


def complete_scores(scores: Sequence[float | None]) -> list[float] | None:
    """The scores, or ``None`` if one is missing or not finite."""
    finite = [score for score in scores if score is not None and math.isfinite(score)]
    return finite if len(finite) == len(scores) else None


def aggregate(scores: Sequence[float | None], how: TraceRule) -> float:
    """Reduce the step scores of a trace to one number.

    For scores in [0, 1], product <= min <= mean, and all rules agree on a single step. An additional step
    with score 1 changes ``last``, ``mean`` and ``sum``, but not ``product`` and ``min``. A ``sum`` of
    positive scores grows with every step and is not a probability. ``verdicts`` is :func:`verdict_value`.

    Raises ``ScoreError`` for an empty list, an unscored step (``None`` or NaN: unscored is not zero, and a
    minimum over the other steps would be too high; only ``verdicts`` takes it), an unknown rule, and a
    negative score (a logit or a margin) for ``product``.
    """
    if how == "verdicts" and scores:
        return verdict_value(scores)
    values = _complete(scores)
    if how == "min":
        return min(values)
    if how == "last":
        return values[-1]
    if how == "mean":
        return math.fsum(values) / len(values)
    if how == "sum":
        return math.fsum(values)
    if how == "product":
        return _product(values)
    raise ScoreError(f"unknown aggregator {how!r}; use one of {', '.join(AGGREGATORS)}")


def _complete(scores: Sequence[float | None]) -> list[float]:
    if not len(scores):
        raise ScoreError("'scores' is empty: a trace without steps cannot be scored; drop it and count it")
    values = []
    for step, score in enumerate(scores):
        if score is None or math.isnan(score):
            raise ScoreError(
                f"scores[{step}] is unscored, and unscored is not zero; drop the trace and count it"
            )
        values.append(float(score))
    return values


def _product(scores: list[float]) -> float:
    """Product in log space, so that it does not underflow before a later large factor.

    The result is clipped to the minimum if no score exceeds 1, since ``exp`` rounds.
    """
    least = min(scores)
    if least < 0:
        raise ScoreError(
            f"aggregator 'product' needs scores >= 0, got {least}; map logits to probabilities first"
        )
    if least == 0 or len(scores) == 1:
        return least
    product = math.exp(math.fsum(math.log(score) for score in scores))
    return min(product, least) if max(scores) <= 1 else product
