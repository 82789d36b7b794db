"""Step scores of a trace: whether they fit its steps, and how they become one number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

from surefoot.errors import ScoreError
from surefoot.protocols import ProblemTrace, StepScorer
from surefoot.records import StepScores, Trace

Aggregator = Literal["min", "product", "last", "mean", "sum"]
"""Papers differ: product (Lightman et al. 2023; OmegaPRM), min (Math-Shepherd), last (Snell et al. 2024),
mean (RLHFlow's evaluation), sum (of rewards per step, as those of implicit models; PURE names it the usual
credit of process rewards, arXiv 2504.15275)."""

AGGREGATORS: tuple[Aggregator, ...] = get_args(Aggregator)


def checked_scores(scorer: StepScorer, items: Sequence[ProblemTrace]) -> list[StepScores]:
    """What ``scorer`` says of ``items``: one record per trace, in order, with one score per step.

    Nothing is asked if there are no items. Raises ``ScoreError`` if the records do not fit.
    """
    records = scorer.score_traces(items) if items else []
    if len(records) != len(items):
        name = getattr(scorer, "name", type(scorer).__name__)
        raise ScoreError(f"{name} gave {len(records)} records for {len(items)} traces")
    for item, record in zip(items, records, strict=True):
        require_fit(record, item.trace)
    return records


def require_fit(record: StepScores, trace: Trace) -> None:
    """Raise ``ScoreError`` unless ``record`` is of ``trace`` and has one score per step."""
    require_scores(record, trace.id, len(trace.steps))


def require_scores(record: StepScores, trace_id: str, steps: int) -> None:
    """Raise ``ScoreError`` unless ``record`` is of the trace of this id and has ``steps`` scores."""
    if record.trace_id != trace_id or len(record.scores) != steps:
        raise ScoreError(
            f"{record.scorer}: {len(record.scores)} scores of trace {record.trace_id} do not fit the "
            f"{steps} steps of trace {trace_id}; give one score per step, null for an unscored one"
        )


def trace_score(scores: Sequence[float | None], how: Aggregator) -> float | None:
    """:func:`aggregate`, or ``None`` for a trace without steps or with a step that has no finite score.

    Unscored is not zero, and a minimum over the other steps would look better than it is. Raises
    ``ScoreError`` if ``product`` meets a negative score.
    """
    known = complete_scores(scores)
    return aggregate(known, how) if known else None


def complete_scores(scores: Sequence[float | None]) -> list[float] | None:
    """The scores, or ``None`` if one is missing or not finite."""
    known = [score for score in scores if score is not None and math.isfinite(score)]
    return known if len(known) == len(scores) else None


def aggregate(scores: Sequence[float | None], how: Aggregator) -> float:
    """One number for one trace from its step scores, in the order of the steps.

    For scores in [0, 1], product <= min <= mean, and all rules agree on a single step. ``product`` and
    ``min`` are unchanged by a further step scored 1; ``last``, ``mean`` and ``sum`` are not. A ``sum`` of
    scores above 0 grows with every step, and is no probability.

    Raises ``ScoreError`` if there is no step, if a step is unscored (``None`` or NaN: unscored is not zero,
    and a minimum over the scored ones would look better than it is), if ``product`` meets a negative score
    (a logit or a margin, whose product means nothing), or if ``how`` is no known rule.
    """
    known = _known(scores)
    if how == "min":
        return min(known)
    if how == "last":
        return known[-1]
    if how == "mean":
        return math.fsum(known) / len(known)
    if how == "sum":
        return math.fsum(known)
    if how == "product":
        return _product(known)
    raise ScoreError(f"unknown aggregator {how!r}; use one of {', '.join(AGGREGATORS)}")


def _known(scores: Sequence[float | None]) -> list[float]:
    if not len(scores):
        raise ScoreError("'scores' is empty: a trace without steps has no score; drop it and count it")
    known = []
    for step, score in enumerate(scores):
        if score is None or math.isnan(score):
            raise ScoreError(
                f"scores[{step}] is unscored, and unscored is not zero; drop the trace and count it"
            )
        known.append(float(score))
    return known


def _product(scores: list[float]) -> float:
    """Product in log space, so that a large factor late in the list cannot meet an early underflow.

    Rounding of ``exp`` is kept from breaking product <= min, which holds when no score exceeds 1.
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
