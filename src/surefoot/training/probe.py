"""Training of a linear probe: layer, token and steps by nested cross-validation, then one direction.

Logistic regression on standardised states. Everything is chosen on the training problems; what the choice is
worth has to be measured on others (:func:`surefoot.search.trust_of`), next to length and position,
because the highest of many choices is high by chance too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from surefoot.errors import TrainingError
from surefoot.io.atomic import write_json
from surefoot.labels import as_target, target_is_good
from surefoot.models.encoding import encode_traces
from surefoot.models.engine.packing import read_states
from surefoot.models.kinds.classifier import (
    LinearProbe,
    Position,
    ProbeSettings,
    StepChoice,
    chosen_steps,
    reading_layers,
    step_token,
)
from surefoot.protocols import LabelledTrace, ProblemTrace
from surefoot.records import StepLabel
from surefoot.stats.bootstrap import group_folds
from surefoot.stats.roc import roc_auc
from surefoot.training.config import ProbeConfig, TrainingLog

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class StepStates:
    """Hidden states of labelled steps."""

    states: NDArray[np.float32]
    """Shape [steps, positions, layers, hidden]."""
    good: NDArray[np.bool_]
    problems: list[str]
    numbers: list[tuple[int, int]]
    """Number of each step, and how many its trace has."""

    def of(self, which: StepChoice) -> NDArray[np.intp]:
        """The rows of these steps."""
        return np.flatnonzero([step in chosen_steps(count, which) for step, count in self.numbers])


def outcome_at_each_step(item: LabelledTrace) -> LabelledTrace:
    """The trace with its outcome as the label of each of its steps; without labels if it has none."""
    trace, outcome = item.trace, item.trace.outcome
    labels = tuple(
        StepLabel(trace_id=trace.id, step=step, kind="value", value=float(outcome), source="outcome")
        for step in range(len(trace.steps))
        if outcome is not None
    )
    return LabelledTrace(problem=item.problem, trace=trace, labels=labels)


def train_probe(
    probe: LinearProbe, items: Sequence[LabelledTrace], config: ProbeConfig, directory: Path
) -> TrainingLog:
    """Fit ``probe`` (:func:`fit_probe`) and save it to ``directory`` with its log."""
    loss, tokens = fit_probe(probe, items, config)
    probe.save(directory)
    log = TrainingLog(losses=[loss], norms=[0.0], tokens=tokens)
    write_json(directory / "training.json", log.model_dump())
    return log


def fit_probe(probe: LinearProbe, items: Iterable[LabelledTrace], config: ProbeConfig) -> tuple[float, int]:
    """Choose where ``probe`` reads and fit its head, in place; log loss on the training data, tokens read.

    Raises ``TrainingError`` for a layer that the model lacks, and if the labelled steps are all good or all
    bad, or come from fewer problems than folds.
    """
    layers = list(config.layers) or sorted({round(at) for at in np.linspace(0, probe.layers, 5)})
    if wrong := [layer for layer in layers if not 0 <= layer <= probe.layers]:
        raise TrainingError(f"'layers' has {wrong[0]}; the model has layers 0 to {probe.layers}")
    data, tokens = read_step_states(probe, items, layers, config.positions)
    if (problems := len(set(data.problems))) < config.folds:
        raise TrainingError(f"{problems} problems have labelled steps, fewer than 'folds' ({config.folds})")
    if data.good.all() or not data.good.any():
        kind = "good" if data.good.all() else "bad"
        raise TrainingError(f"all {len(data.good)} labelled steps are {kind}: a probe needs both kinds")
    settings = _choose(data, layers, config)
    rows = data.of(settings.steps)
    states = data.states[rows, config.positions.index(settings.position), layers.index(settings.layer)]
    weights, bias = _direction(states, data.good[rows], config)
    with torch.no_grad():
        probe.head.weight.copy_(torch.from_numpy(weights)[None])
        probe.head.bias.fill_(bias)
    probe.place(settings)
    margins = np.where(data.good[rows], 1.0, -1.0) * (states @ weights + bias)
    return float(np.logaddexp(0, -margins).mean()), tokens


def read_step_states(
    probe: LinearProbe, items: Iterable[LabelledTrace], layers: Sequence[int], positions: Sequence[Position]
) -> tuple[StepStates, int]:
    """States of every labelled step within the context, and the tokens read for them."""
    usable = [item for item in items if item.trace.steps and item.labels]
    encoded = encode_traces(
        probe.tokenizer,
        probe.card.encoding,
        [ProblemTrace(problem=item.problem, trace=item.trace) for item in usable],
    )
    rows = [
        [
            (step, good, at)
            for step, good in _labelled(item)
            if None not in (at := [step_token(trace, step, position) for position in positions])
        ]
        for item, trace in zip(usable, encoded, strict=True)
    ]
    read = [number for number, steps in enumerate(rows) if steps]
    tokens, by_trace = 0, dict[int, NDArray[np.float32]]()
    shape = (-1, len(positions), len(layers), probe.head.in_features)
    with reading_layers(probe.trunk.eval(), layers):
        for output in read_states(
            probe.trunk,
            [encoded[number].ids for number in read],
            [[token for *_, at in rows[number] for token in at if token is not None] for number in read],
        ):
            tokens += output.tokens
            for number, read_nh in output.states.items():
                by_trace[read[number]] = read_nh.float().cpu().numpy().reshape(shape)
    states = [by_trace[number] for number in read]
    return StepStates(
        states=np.concatenate(states) if states else np.zeros((0, *shape[1:]), dtype=np.float32),
        good=np.array([good for number in read for _, good, _ in rows[number]], dtype=bool),
        problems=[usable[number].problem.id for number in read for _ in rows[number]],
        numbers=[(step, len(usable[number].trace.steps)) for number in read for step, *_ in rows[number]],
    ), tokens


def _labelled(item: LabelledTrace) -> Iterator[tuple[int, bool]]:
    """Steps with a known label, and whether they are good: the mean of a step's labels is at least ½."""
    for step in range(len(item.trace.steps)):
        targets = [as_target(label, neutral=None) for label in item.labels if label.step == step]
        values = [target for target in targets if target is not None]
        if values:
            yield step, target_is_good(sum(values) / len(values))


def _choose(data: StepStates, layers: Sequence[int], config: ProbeConfig) -> ProbeSettings:
    """The layer, token and steps with the highest cross-validated AUC; of equal ones the first."""
    best: ProbeSettings | None = None
    for which in config.steps or ("every",):
        rows = data.of(which)
        good, problems = data.good[rows], [data.problems[row] for row in rows]
        folds = group_folds(problems, config.folds, seed=config.seed)
        for column, layer in enumerate(layers):
            for index, position in enumerate(config.positions):
                auc = _held_out_auc(data.states[rows, index, column], good, folds, config)
                if not math.isnan(auc) and (best is None or auc > best.training_auc):
                    best = ProbeSettings(layer=layer, position=position, steps=which, training_auc=auc)
    if best is None:
        raise TrainingError("no choice of 'steps' has good and bad steps in every fold: give more problems")
    return best


def _held_out_auc(
    states: NDArray[np.float32], good: NDArray[np.bool_], folds: NDArray[np.intp], config: ProbeConfig
) -> float:
    """AUC over steps, each scored by a direction of the other folds; NaN if a fold cannot be fitted."""
    scores = np.full(len(good), np.nan)
    for fold in np.unique(folds):
        train, test = folds != fold, folds == fold
        if good[train].all() or not good[train].any():
            return math.nan
        weights, bias = _direction(states[train], good[train], config)
        scores[test] = states[test] @ weights + bias
    return math.nan if good.all() or not good.any() else roc_auc(scores, good)


def _direction(
    states: NDArray[np.float32], good: NDArray[np.bool_], config: ProbeConfig
) -> tuple[FloatArray, float]:
    """Weights [H] and bias of the log odds of "good" for states [N, H]."""
    from sklearn.linear_model import LogisticRegression

    mean, scale = states.mean(axis=0, dtype=float), states.std(axis=0, dtype=float)
    scale[scale < 1e-6] = math.inf  # a constant says nothing
    model = LogisticRegression(C=config.strength, class_weight="balanced", max_iter=2000)
    model.fit((states - mean) / scale, good)
    weights = model.coef_[0] / scale
    return weights, float(model.intercept_[0] - weights @ mean)
