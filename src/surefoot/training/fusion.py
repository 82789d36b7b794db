"""Fitting a :class:`surefoot.models.FusedScorer`: boosted trees, judged out of fold by problem."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np
import sklearn
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier

from surefoot.errors import TrainingError
from surefoot.labels import as_target, target_is_good
from surefoot.models.card import FUSED, CheckpointCard
from surefoot.models.kinds.fused import FloatArray, FusedScorer, FusedSettings, Trees, step_features
from surefoot.protocols import LabelledTrace, ProblemTrace, StepScorer
from surefoot.stats.bootstrap import group_folds
from surefoot.stats.roc import roc_auc
from surefoot.training.config import FusionConfig

_BATCH = 256
"""Traces whose features are computed at a time."""


def fit_fused(
    items: Iterable[LabelledTrace],
    config: FusionConfig,
    *,
    models: dict[str, StepScorer],
    verifiers: Sequence[str],
    name: str,
    label_source: str,
) -> FusedScorer:
    """Fit the trees on each distinct labelled step once, by its problem and the text up to its end.

    ``models`` are the members by the name that ``load_prm`` opens them by. The settings of the scorer have
    the step AUC out of fold, with all parts, with one part alone, and without one. Raises ``TrainingError``
    if the labelled steps are all good or all bad, or come from fewer problems than folds.
    """
    settings = FusedSettings(models=tuple(models), verifiers=tuple(verifiers))
    card = CheckpointCard(
        family=FUSED,
        kind="prm",
        score_means="correctness",
        label_source=label_source,
        base="+".join(settings.parts),
    )
    empty = Trees({key: np.zeros((0, 1)) for key in Trees.NAMES})
    scorer = FusedScorer(settings, empty, card, models=tuple(models.values()), name=name)
    features, good, problems = _labelled_steps(items, scorer)
    if (count := len(set(problems))) < config.folds:
        raise TrainingError(f"{count} problems have labelled steps, fewer than 'folds' ({config.folds})")
    if good.all() or not good.any():
        kind = "good" if good.all() else "bad"
        raise TrainingError(f"all {len(good)} labelled steps are {kind}: a scorer needs both kinds")
    gaps = {part: np.isnan(features[:, where.start]) for part, where in settings.parts.items()}
    for part, missing in gaps.items():
        if missing.all():
            raise TrainingError(f"{part!r} says nothing about any labelled step; leave it out")
    # scikit-learn fails on columns without a value: what an earlier step got, where no trace has two
    features[:, np.isnan(features).all(axis=0)] = 0
    fold = group_folds(problems, config.folds, seed=config.seed)
    parts = {part: np.arange(features.shape[1])[where] for part, where in settings.parts.items()}
    columns_of_all = np.arange(features.shape[1])
    choices = {"all": columns_of_all} | {f"{part} alone": columns for part, columns in parts.items()}
    choices |= {f"without {part}": np.setdiff1d(columns_of_all, columns) for part, columns in parts.items()}
    auc = {
        choice: _held_out_auc(features[:, columns], good, fold, config) for choice, columns in choices.items()
    }
    fitted = _boosted(config).fit(features, good)
    bias = float(fitted._baseline_prediction.item())
    complete = tuple(part for part, missing in gaps.items() if not missing.any())
    scorer.settings = settings.model_copy(update={"auc": auc, "bias": bias, "complete": complete})
    scorer.trees = _trees(fitted)
    if not np.allclose(scorer.chances(features[:100]), fitted.predict_proba(features[:100])[:, 1], atol=1e-6):
        raise TrainingError(
            f"scikit-learn {sklearn.__version__} stores trees in another way; use the locked version"
        )
    return scorer


def _labelled_steps(
    items: Iterable[LabelledTrace], scorer: FusedScorer
) -> tuple[FloatArray, NDArray[np.bool_], list[str]]:
    """Features [steps, features] of the distinct labelled steps, whether they are good, their problems."""
    rows: dict[tuple[str, ...], tuple[FloatArray, list[float], str]] = {}
    remaining = iter(items)
    while batch := list(islice(remaining, _BATCH)):
        traces = [ProblemTrace(problem=item.problem, trace=item.trace) for item in batch]
        of_traces, _ = step_features(traces, scorer.models, scorer.verifiers)
        for item, features in zip(batch, of_traces, strict=True):
            texts = [item.trace.step_text(step) for step in range(len(item.trace.steps))]
            for label in item.labels:
                target = as_target(label, neutral=1.0)
                if target is not None:
                    key = (item.problem.id, *texts[: label.step + 1])
                    rows.setdefault(key, (features[label.step], [], item.problem.id))[1].append(target)
    if not rows:
        raise TrainingError("no step has a known label")
    return (
        np.array([row for row, _, _ in rows.values()]),
        np.array([target_is_good(sum(t) / len(t), neutral="good") for _, t, _ in rows.values()]),
        [problem for _, _, problem in rows.values()],
    )


def _boosted(config: FusionConfig) -> HistGradientBoostingClassifier:
    return HistGradientBoostingClassifier(
        max_iter=config.trees,
        learning_rate=config.learning_rate,
        max_leaf_nodes=config.leaves,
        min_samples_leaf=config.steps_per_leaf,
        l2_regularization=5.0,
        early_stopping=False,
        random_state=config.seed,
    )


def _held_out_auc(
    features: FloatArray, good: NDArray[np.bool_], fold: NDArray[np.intp], config: FusionConfig
) -> float:
    """Step AUC, each step scored by trees that were fitted on other problems."""
    chances = np.full(len(good), np.nan)
    for number in np.unique(fold):
        train, test = fold != number, fold == number
        rows = np.where(np.isnan(features[train]).all(axis=0), 0, features)  # as in fit_fused
        chances[test] = _boosted(config).fit(rows[train], good[train]).predict_proba(rows[test])[:, -1]
    return roc_auc(chances, good).value


def _trees(fitted: HistGradientBoostingClassifier) -> Trees:
    """The fitted trees as arrays [trees, nodes], padded with leaves of 0."""
    trees = [predictor.nodes for (predictor,) in fitted._predictors]
    width = max((len(nodes) for nodes in trees), default=1)
    arrays = {
        key: np.zeros((len(trees), width), dtype=kind)
        for key, kind in zip(Trees.NAMES, (np.int64, float, np.int64, np.int64, bool, float), strict=True)
    }
    for number, nodes in enumerate(trees):
        leaf, at = nodes["is_leaf"].astype(bool), np.arange(len(nodes))
        row = {
            "feature": np.where(leaf, 0, nodes["feature_idx"]),
            "threshold": np.where(leaf, 0, nodes["num_threshold"]),
            "left": np.where(leaf, at, nodes["left"]),
            "right": np.where(leaf, at, nodes["right"]),
            "missing_left": nodes["missing_go_to_left"].astype(bool),
            "value": np.where(leaf, nodes["value"], 0),
        }
        for key, values in row.items():
            arrays[key][number, : len(nodes)] = values
    return Trees(arrays)
