"""One score from many: models, verifiers and the text of a step, fused by gradient-boosted trees.

A step classifier knows what wrong steps look like, a verifier knows a few of them for certain, and length and
position are what both have to beat. :mod:`surefoot.training.fusion` fits the trees on labelled steps.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate, chain
from math import nan
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from surefoot.errors import CheckpointError
from surefoot.io import write_json
from surefoot.labelling.verifier import open_verifier
from surefoot.models.card import (
    CARD,
    FUSED,
    FUSED_SETTINGS,
    TREES,
    CheckpointCard,
    read_card,
    read_json,
    verified_card,
    write_card,
)
from surefoot.models.scorer import CheckpointScorer
from surefoot.protocols import ProblemTrace, StepScorer, StepVerifier
from surefoot.records import FrozenModel, StepScores, Usage
from surefoot.scores import checked_scores

FloatArray = NDArray[np.float64]

LAYOUT = ("characters", "position")
TEXT = (
    "repeated",
    "equations",
    "numbers",
    "new_numbers",
    "numbers_of_last_step",
    "words",
    "new_words",
    "words_of_problem",
    "words_of_last_step",
)
"""What is read off a step's text; new = neither in the problem nor in an earlier step."""
MEMBER = ("value", "lowest_before")
"""A member's value of a step, and its lowest value of an earlier one."""

_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_WORD = re.compile(r"[^\W\d_]{3,}")


class FusedSettings(FrozenModel):
    """``fused.json``: the parts and their AUC."""

    format: Literal[1] = 1
    models: tuple[str, ...]
    """Directories or hub names, as :func:`surefoot.models.load_prm` takes them."""
    weights: dict[str, dict[str, str]] = Field(default_factory=dict)
    """Checksums of the weights of each model that was trained here, when the trees were fitted."""
    verifiers: tuple[str, ...]
    """Names of :data:`surefoot.labelling.VERIFIERS`."""
    complete: tuple[str, ...] = ()
    """Parts with a value for every training step; a step to which one of them gives none is not scored."""
    bias: float = 0.0
    """Log odds before the first tree."""
    auc: dict[str, float] = Field(default_factory=dict)
    """Step AUC on problems left out of the fit: of all parts, of each part alone and without each part."""

    @property
    def parts(self) -> dict[str, slice]:
        """Columns of each part."""
        names = {"layout": len(LAYOUT), "text": len(TEXT)}
        names |= dict.fromkeys([*self.models, *self.verifiers], len(MEMBER))
        ends = list(accumulate(names.values()))
        return {name: slice(end - width, end) for (name, width), end in zip(names.items(), ends, strict=True)}


class Trees:
    """Regression trees over the features of a step; their sum is the log odds of a good step.

    Node k of tree t sends a row with ``feature[t, k]`` at most ``threshold[t, k]`` to ``left[t, k]``, others
    to ``right[t, k]``, and a row without that feature to the left if ``missing_left[t, k]``. A leaf points to
    itself, and adds ``value[t, k]``.
    """

    NAMES = ("feature", "threshold", "left", "right", "missing_left", "value")

    def __init__(self, arrays: dict[str, NDArray[Any]]) -> None:
        self.arrays = arrays

    @classmethod
    def checked(cls, arrays: dict[str, NDArray[Any]], features: int) -> Self:
        """Trees from a file. Raises ``ValueError`` for arrays that are none: nothing else may be indexed."""
        shapes = {arrays[name].shape for name in cls.NAMES if name in arrays}
        if set(arrays) != set(cls.NAMES) or [len(size) == 2 and size[1] > 0 for size in shapes] != [True]:
            raise ValueError(f"it needs {', '.join(cls.NAMES)} of one shape [trees, nodes]")
        nodes = arrays["feature"].shape[1]
        for name, end in (("feature", features), ("left", nodes), ("right", nodes)):
            if arrays[name].dtype.kind != "i" or not ((arrays[name] >= 0) & (arrays[name] < end)).all():
                raise ValueError(f"{name!r} must be whole numbers from 0 to {end - 1}")
        if not np.isfinite(arrays["value"]).all() or np.isnan(arrays["threshold"]).any():
            raise ValueError("'value' and 'threshold' must be numbers")
        return cls(arrays)

    def sum(self, features_nf: FloatArray) -> FloatArray:
        """[steps, features] → [steps]; NaN is a missing feature."""
        feature, threshold, lower, upper, missing_left, value = (self.arrays[name] for name in self.NAMES)
        tree = np.arange(len(feature))
        rows = np.arange(len(features_nf))[:, None]
        node = np.zeros((len(features_nf), len(feature)), dtype=np.int64)
        for _ in range(feature.shape[1]):
            x = features_nf[rows, feature[tree, node]]
            goes_left = np.where(np.isnan(x), missing_left[tree, node], x <= threshold[tree, node])
            moved = np.where(goes_left, lower[tree, node], upper[tree, node])
            if (moved == node).all():
                break
            node = moved
        return np.asarray(value[tree, node].sum(axis=1, dtype=float))


class FusedScorer(CheckpointScorer):
    """A :class:`surefoot.protocols.StepScorer`: the chance that a step is good, given all parts.

    A step that a member does not score has a score only if the trees were fitted to such gaps.
    """

    def __init__(
        self,
        settings: FusedSettings,
        trees: Trees,
        card: CheckpointCard,
        *,
        models: Sequence[StepScorer],
        name: str,
    ) -> None:
        self.settings, self.trees, self.card, self.name = settings, trees, card, name
        self.models = tuple(models)
        self.verifiers = tuple(open_verifier(verifier) for verifier in settings.verifiers)

    @classmethod
    def load(cls, directory: Path, *, models: Sequence[StepScorer], name: str) -> Self:
        """Load what :meth:`save` wrote. Raises ``CheckpointError`` naming the missing or bad file."""
        card = verified_card(directory, family=FUSED)
        settings = read_json(directory / FUSED_SETTINGS, FusedSettings)
        if settings.weights not in ({}, _weights(settings)):
            raise CheckpointError(f"{directory}: a model has other weights than when the trees were fitted")
        features = max(part.stop for part in settings.parts.values())
        try:
            trees = Trees.checked(load_file(directory / TREES), features)
        except (SafetensorError, ValueError, OSError) as error:
            raise CheckpointError(f"{directory / TREES} does not hold this model's trees: {error}") from error
        return cls(settings, trees, card, models=models, name=name)

    def save(self, directory: Path) -> None:
        """Write ``trees.safetensors``, ``fused.json`` and ``surefoot.json``."""
        directory.mkdir(parents=True, exist_ok=True)
        arrays = {name: np.ascontiguousarray(array) for name, array in self.trees.arrays.items()}
        save_file(arrays, directory / TREES)
        settings = self.settings.model_copy(update={"weights": _weights(self.settings)})
        write_json(directory / FUSED_SETTINGS, settings.model_dump())
        write_card(directory, self.card)

    def score_traces(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        """One record a trace, a score in [0, 1] for each step."""
        features, usage = step_features(items, self.models, self.verifiers)
        complete, records = self.settings.complete, []
        for item, rows, used in zip(items, features, usage, strict=True):
            gaps = np.isnan(rows[:, [self.settings.parts[part].start for part in complete]])
            why = "; ".join(f"no value of {part}" for part in np.array(complete)[gaps.any(axis=0)]) or None
            scores = np.where(gaps.any(axis=1), None, self.chances(rows)).tolist()  # type: ignore[call-overload]
            records.append(
                StepScores.of_model(
                    trace_id=item.trace.id, scorer=self.name, scores=scores, unscored_reason=why, usage=used
                )
            )
        return records

    def chances(self, features_nf: FloatArray) -> FloatArray:
        """[steps, features] → [steps]: the chance that each is good."""
        odds = self.settings.bias + self.trees.sum(features_nf)
        return np.asarray((1 + np.tanh(odds / 2)) / 2)


def _weights(settings: FusedSettings) -> dict[str, dict[str, str]]:
    return {name: read_card(Path(name)).weights for name in settings.models if (Path(name) / CARD).is_file()}


def step_features(
    items: Sequence[ProblemTrace], models: Sequence[StepScorer], verifiers: Sequence[StepVerifier]
) -> tuple[list[FloatArray], list[Usage]]:
    """Features [steps, features] of each trace, NaN where a member lacks a value, and the tokens spent."""
    columns = [[*zip(*_text_features(item), strict=True)] or [()] * len(LAYOUT + TEXT) for item in items]
    usage = [Usage()] * len(items)
    for model in models:
        for number, record in enumerate(checked_scores(model, items)):
            columns[number] += _with_lowest(record.scores)
            usage[number] += record.usage
    for verifier in verifiers:
        for number, verdicts in enumerate(verifier.verify(items)):
            columns[number] += _with_lowest([verdict.value for verdict in verdicts])
    return [np.array(of_trace, dtype=float).T for of_trace in columns], usage


def _with_lowest(values: Sequence[float | None]) -> list[tuple[float, ...]]:
    """A member's value of each step, and its lowest value before."""
    numbers = [nan if value is None else float(value) for value in values]
    lowest = accumulate(chain([nan], numbers), lambda low, value: float(np.fmin(low, value)))
    return [tuple(numbers), tuple(lowest)[: len(numbers)]]


def _text_features(item: ProblemTrace) -> list[tuple[float, ...]]:
    """``LAYOUT`` and ``TEXT`` of each step, from its text and the steps before."""
    rows: list[tuple[float, ...]] = []
    problem = _words(item.problem.text)
    known_numbers, known_words = set(_NUMBER.findall(item.problem.text)), set(problem)
    last_numbers, last_words, texts = set[str](), set[str](), set[str]()
    for step in range(len(item.trace.steps)):
        text = item.trace.step_text(step).strip()
        numbers, words = _NUMBER.findall(text), _words(text)
        rows.append(
            (
                len(text),
                step,
                text in texts,
                text.count("="),
                len(numbers),
                sum(number not in known_numbers for number in numbers),
                sum(number in last_numbers for number in numbers),
                len(words),
                len(words - known_words),
                len(words & problem),
                len(words & last_words),
            )
        )
        texts.add(text)
        last_numbers, last_words = set(numbers), words
        known_numbers |= last_numbers
        known_words |= words
    return rows


def _words(text: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(text)}
