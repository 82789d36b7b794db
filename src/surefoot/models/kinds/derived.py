"""Scorers made of others: calibrated, several combined, or a labeller's.

A calibration is a map fitted on held-out steps, stored in the checkpoint.

Platt scaling (Platt 1999, "Probabilistic outputs for support vector machines") multiplies the log odds of a
score and adds an intercept, which keeps the order of steps. Isotonic regression (Zadrozny and Elkan 2002)
fits any rising function: it can straighten any distortion, ties scores, and needs more steps. Both are fitted
on one split, by name; errors measured on that split say nothing.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from operator import add
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from surefoot.errors import ScoreError
from surefoot.io import write_json
from surefoot.labelling.judge_scores import SOURCE as JUDGE
from surefoot.labelling.judge_scores import RunJudge, StateLabeller
from surefoot.labels import as_target
from surefoot.models.card import CALIBRATION, SERVER, CheckpointCard, read_json
from surefoot.models.scorer import CheckpointScorer
from surefoot.protocols import Labeller, ProblemTrace, StepScorer, TraceChannel
from surefoot.records import FrozenModel, LabelKind, StepLabel, StepScores, Usage, content_id
from surefoot.scores import TraceRule, channels_read, checked_scores, complete_scores
from surefoot.stats.calibration import Binning, MapKind, expected_calibration_error
from surefoot.stats.regression import isotonic_regression, logistic_regression, sigmoid
from surefoot.stats.roc import roc_auc

FloatArray: TypeAlias = NDArray[np.float64]

_EDGE = 1e-7
"""How far scores are kept from 0 and 1 where log odds are fitted: a float32 sigmoid rounds to both."""


class PlattMap(FrozenModel):
    """p → sigmoid(slope · logit(p) + intercept); slope 1 and intercept 0 change nothing."""

    kind: Literal["platt"] = "platt"
    slope: float = Field(gt=0)
    intercept: float

    def apply(self, scores: ArrayLike) -> FloatArray:
        """Mapped scores, same shape; those nearer than 1e-7 to 0 or 1 count as this near, as in the fit."""
        odds = self.slope * _log_odds(np.asarray(scores, dtype=float)) + self.intercept
        return sigmoid(odds)


class IsotonicMap(FrozenModel):
    """Straight lines between the points (``scores``, ``values``), both rising; constant outside."""

    kind: Literal["isotonic"] = "isotonic"
    scores: tuple[float, ...] = Field(min_length=1)
    values: tuple[float, ...] = Field(min_length=1)

    def apply(self, scores: ArrayLike) -> FloatArray:
        """Mapped scores, same shape."""
        return np.asarray(np.interp(np.asarray(scores, dtype=float), self.scores, self.values))


class Calibration(FrozenModel):
    """``calibration.json``: the map, the split it was fitted on, and the errors there."""

    format: Literal[1] = 1
    map: Annotated[PlattMap | IsotonicMap, Field(discriminator="kind")]
    split: str = Field(min_length=1)
    """Name of the fitting split."""
    split_hash: str
    """Of the ids of its traces, in any order."""
    steps: int
    """Steps that were fitted on."""
    dropped: int
    """Steps without score or label."""
    ece_before: float
    """Expected calibration error on the fitting split, over ten bins."""
    ece_after: float
    """The same after the map. It is fitted to these steps: too good, most of all for ``isotonic``."""
    ece_binning: Binning = "equal-mass"
    """How both were binned."""


def fit_calibration(
    kind: MapKind, scores: ArrayLike, good: ArrayLike, *, split: str, trace_ids: Iterable[str]
) -> Calibration:
    """Fit a map of ``scores`` to ``good``, both [steps] in [0, 1]; ``None``/NaN is unknown and dropped.

    ``isotonic`` minimises the squared error, ``platt`` the cross-entropy against Platt's targets: with G good
    and B bad steps, a good one counts as (G + 1) / (G + 2) and a bad one as 1 / (B + 2), so that few steps
    make no extreme map. ``split`` names the held-out traces, ``trace_ids`` identify them.

    Raises ``ScoreError`` for arrays that differ in length or leave [0, 1], for fewer than two known steps or
    steps of one kind only, and where Platt's slope would turn the order round.
    """
    score, fact = np.asarray(scores, dtype=float), np.asarray(good, dtype=float)
    if score.ndim != 1 or score.shape != fact.shape:
        raise ScoreError(
            f"'scores' and 'good' must be flat and equally long, not {score.shape}, {fact.shape}"
        )
    valid = ~(np.isnan(score) | np.isnan(fact))
    score, fact = score[valid], fact[valid]
    for name, values in (("scores", score), ("good", fact)):
        if ((values < 0) | (values > 1)).any():
            raise ScoreError(f"{name!r} must lie in [0, 1]; it has {values.min():g} to {values.max():g}")
    if len(score) < 2 or fact.min() == fact.max():
        raise ScoreError(
            f"split {split!r}: {len(score)} known steps, not some good and some bad: nothing to fit"
        )
    fitted = _FITS[kind](score, fact)
    return Calibration(
        map=fitted,
        split=split,
        split_hash=content_id("split", *sorted(set(trace_ids))),
        steps=len(score),
        dropped=int((~valid).sum()),
        ece_before=expected_calibration_error(score, fact),
        ece_after=expected_calibration_error(fitted.apply(score), fact),
    )


def save_calibration(directory: str | Path, fitted: Calibration) -> None:
    """Write ``calibration.json`` into a checkpoint's directory, in place of any that is there."""
    write_json(Path(directory) / CALIBRATION, fitted.model_dump())


def load_calibration(directory: str | Path) -> Calibration:
    """Read a checkpoint's ``calibration.json``. Raises ``CheckpointError`` if it is absent or broken."""
    missing = f"{directory} has no {CALIBRATION}: fit one (fit_calibration)"
    return read_json(Path(directory) / CALIBRATION, Calibration, missing)


class CalibratedScorer(CheckpointScorer):
    """A :class:`surefoot.protocols.StepScorer` that maps another's scores; unscored steps stay unscored.

    ``load_prm(path, calibrated=True)`` gives one. Of a checkpoint's scorer it has the card and the rule of
    aggregation; the rule reduces the calibrated scores.
    """

    def __init__(self, scorer: StepScorer, calibration: Calibration) -> None:
        self.scorer, self.calibration = scorer, calibration
        if isinstance(scorer, CheckpointScorer):
            self.card, self.name = scorer.card, f"{scorer.name}+{calibration.map.kind}"

    def score_traces(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        """Calibrated scores, one record a trace. Raises ``ScoreError`` for a score outside [0, 1]."""
        return [self._mapped(record) for record in self.scorer.score_traces(items)]

    def _mapped(self, record: StepScores) -> StepScores:
        scores = np.array([math.nan if score is None else score for score in record.scores])
        if ((scores < 0) | (scores > 1)).any():
            raise ScoreError(f"{record.scorer} gave trace {record.trace_id} a score outside [0, 1]")
        mapped = self.calibration.map.apply(scores).tolist()
        calibrated = tuple(
            None if old is None else new for old, new in zip(record.scores, mapped, strict=True)
        )
        name = f"{record.scorer}+{self.calibration.map.kind}"
        return record.model_copy(update={"scores": calibrated, "scorer": name})


def _log_odds(score: FloatArray) -> FloatArray:
    score = np.clip(score, _EDGE, 1 - _EDGE)
    return np.asarray(np.log(score) - np.log1p(-score))


def _fit_platt(score: FloatArray, fact: FloatArray) -> PlattMap:
    """Logistic regression on the log odds."""
    if score.min() == score.max():
        raise ScoreError(f"all scores are {score[0]:g}: a slope cannot be fitted")
    good, bad = fact.sum(), (1 - fact).sum()
    target = fact * (good + 1) / (good + 2) + (1 - fact) / (bad + 2)
    intercept, slope = logistic_regression(_log_odds(score)[:, None], target).tolist()
    if slope <= 0:
        raise ScoreError(
            f"Platt's slope is {slope:.3g} (AUC {roc_auc(score, fact > 0.5):.3f}): calibrated, the steps "
            "would change their order; check what the scores and labels mean"
        )
    return PlattMap(slope=slope, intercept=intercept)


def _fit_isotonic(score: FloatArray, fact: FloatArray) -> IsotonicMap:
    scores, values = isotonic_regression(score, fact)
    return IsotonicMap(scores=tuple(scores.tolist()), values=tuple(values.tolist()))


_FITS: Mapping[MapKind, Callable[[FloatArray, FloatArray], PlattMap | IsotonicMap]] = {
    "platt": _fit_platt,
    "isotonic": _fit_isotonic,
}


Combine = Literal["mean", "min"]


class Ensemble(CheckpointScorer):
    """A :class:`surefoot.protocols.StepScorer` that combines others step by step.

    The minimum over members is harder to exploit than any member (Coste et al., arXiv 2310.02743, for outcome
    reward models). Agreement proves nothing: models of one base share its blind spots.

    A step that any member has not scored is unscored, with the members' reasons: a mean over the others would
    not be comparable. Raises ``ValueError`` for no members, or members whose cards say that their scores mean
    different things (the mean of a value and a correctness is meaningless).
    """

    def __init__(self, scorers: Sequence[StepScorer], how: Combine = "mean") -> None:
        if not scorers:
            raise ValueError("'scorers' is empty: an ensemble needs a member")
        cards = [card for scorer in scorers if (card := getattr(scorer, "card", None))]
        # what a server's scores mean is not known here
        meanings = {card.score_means for card in cards if card.family != SERVER}
        if len(meanings) > 1:
            raise ValueError(f"the members' scores mean different things: {', '.join(sorted(meanings))}")
        if how not in ("mean", "min"):
            raise ValueError(f"'how' is 'mean' or 'min', not {how!r}")
        self.scorers, self.how = tuple(scorers), how
        names = [getattr(scorer, "name", type(scorer).__name__) for scorer in scorers]
        self.name = "+".join(names)
        rules = {card.aggregation for card in cards}
        self.card = CheckpointCard(
            family="ensemble",
            kind="prm",
            aggregation=rules.pop() if len(rules) == 1 else "min",
            score_means=meanings.pop() if meanings else "value",
            label_source=", ".join(sorted({card.label_source for card in cards})) or "unknown",
            reads=tuple(sorted(frozenset().union(*map(channels_read, scorers)))),
            base=", ".join(names),
        )

    def score_traces(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        """Combined scores, one record per trace, in order; usage sums all members.

        Raises ``ScoreError`` if a member's scores do not fit the traces.
        """
        by_member = [checked_scores(scorer, items) for scorer in self.scorers]
        return [self._combine(members) for members in zip(*by_member, strict=True)]

    def _combine(self, members: tuple[StepScores, ...]) -> StepScores:
        scores: list[float | None] = []
        for step in zip(*(member.scores for member in members), strict=True):
            values = complete_scores(step)
            mean = None if values is None else math.fsum(values) / len(values)
            scores.append(min(values) if values and self.how == "min" else mean)
        reasons = [f"{m.scorer}: {m.unscored_reason}" for m in members if m.unscored_reason]
        return StepScores.of_model(
            trace_id=members[0].trace_id,
            scorer=self.name,
            scores=tuple(scores),
            unscored_reason="; ".join(reasons) or None,
            usage=reduce(add, (member.usage for member in members)),
        )


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
        return [self._of_labels(item, row) for item, row in zip(items, labels, strict=True)]

    def _of_labels(self, item: ProblemTrace, labels: Sequence[StepLabel]) -> StepScores:
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
            usage=usage.by_verifier,
        )


class JudgedStates(LabelScorer, CheckpointScorer):
    """A :class:`surefoot.protocols.StepScorer` by a judge's probabilities, for runs that go on: each step's
    score is the expected answer of ``judge`` for the state after it, by a call that sees nothing later.

    A state is asked about once. Equal to what ``label … judge-score:ask=states`` says of the same run.
    """

    def __init__(self, judge: RunJudge) -> None:
        super().__init__(
            StateLabeller(judge), name=f"{judge.policy.name}#{judge.rubric.version}", kind="value"
        )
        self.aggregation = "last"
        self.card = CheckpointCard(
            family=JUDGE, kind="prm", aggregation="last", label_source=JUDGE, base=judge.policy.name
        )
