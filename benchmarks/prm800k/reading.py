"""The reading gate on PRM800K: a ridge head on a cached middle layer of SmolLM2."""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from transformers import AutoConfig, AutoModel, AutoTokenizer

from benchmarks.common.figures import Figures, figure
from surefoot.evaluation.audits import EDITS
from surefoot.models import CheckpointCard, Encoding, LinearProbe
from surefoot.policies import Loading
from surefoot.protocols import LabelledTrace
from surefoot.records import StepLabel
from surefoot.stats import Reading, StepFacts, reading_gate, rival_scores, roc_auc, step_facts
from surefoot.training import read_step_states

PREFIXES = 4
"""Sampled prefixes of one problem, at any depth."""
SEEDS = (0, 1, 2)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One rated step."""

    item: LabelledTrace
    step: int
    good: bool
    fact: StepFacts


def rows_of(items: Sequence[LabelledTrace]) -> list[Row]:
    """One for each rating; 0 counts as good."""
    rows = []
    for item in items:
        facts = step_facts(item.problem, item.trace)
        rows += [
            Row(item=item, step=label.step, good=label.value >= 0, fact=facts[label.step])
            for label in item.labels
            if label.value is not None
        ]
    return rows


def sampled(rows: Sequence[Row], problems: int, seed: int) -> list[Row]:
    """Rows of random prefixes of random problems, with all continuations of a sampled prefix."""
    rng = np.random.default_rng(seed)
    by_problem: dict[str, dict[str, list[Row]]] = {}
    for row in rows:
        by_problem.setdefault(row.item.problem.id, {}).setdefault(row.fact.prefix, []).append(row)
    chosen: list[Row] = []
    for name in rng.permutation(sorted(by_problem))[:problems].tolist():
        groups = list(by_problem[name].values())
        for number in rng.permutation(len(groups))[:PREFIXES]:
            chosen += groups[number]
    return chosen


def states_of(probe: LinearProbe, rows: Sequence[Row], layer: int) -> NDArray[np.float32]:
    """The layer's state at the last token of each row's step, ``[N, H]``."""
    items = [
        LabelledTrace(
            problem=row.item.problem,
            trace=row.item.trace,
            labels=(
                StepLabel(
                    trace_id=row.item.trace.id,
                    step=row.step,
                    kind="correctness",
                    value=1.0 if row.good else -1.0,
                    source="rater",
                ),
            ),
        )
        for row in rows
    ]
    found, tokens = read_step_states(probe, items, [layer], ["last"])
    if len(found.states) != len(rows):
        raise SystemExit(f"{len(rows) - len(found.states)} rows lie beyond the context")
    logging.info("%d rows, %d tokens read", len(rows), tokens)
    return found.states[:, 0, 0]


def swapped(rows: Sequence[Row], seed: int = 0) -> tuple[list[Row], list[Row]]:
    """One good row of each problem whose step has a number, and the same with another number."""
    [swap] = [edit for edit in EDITS if edit.name == "swapped number"]
    before, after = [], []
    for row in np.random.default_rng(seed).permutation(np.array(rows, dtype=object)).tolist():
        taken = {one.item.problem.id for one in before}
        if not row.good or row.item.problem.id in taken or row.step not in swap.places(row.item.trace):
            continue
        edited = swap.at(row.item.trace, row.step)
        item = replace(row.item, trace=edited.trace, labels=())
        before.append(row)
        after.append(Row(**{**vars(row), "item": item, "step": edited.step}))
    return before, after


def gate_of(scores: NDArray[np.float64], rivals: NDArray[np.float64], rows: Sequence[Row]) -> Reading:
    """The reading gate of ``scores`` of ``rows``, ``[N]``."""
    return reading_gate(
        scores,
        rivals,
        [row.good for row in rows],
        problems=[row.item.problem.id for row in rows],
        prefixes=[row.fact.prefix for row in rows],
        characters=[row.fact.characters for row in rows],
    )


def shallow(folder: Path, model: Path, layer: int, dtype: str) -> LinearProbe:
    """The model's blocks up to the one after ``layer``: the last one's output is behind the final norm."""
    config = AutoConfig.from_pretrained(model)
    config.num_hidden_layers = layer + 1
    AutoModel.from_pretrained(model, config=config, dtype=torch.float32).save_pretrained(folder)
    AutoTokenizer.from_pretrained(model).save_pretrained(folder)
    encoding = Encoding(max_length=4096)
    card = CheckpointCard(kind="prm", label_source="human", base=model.name, encoding=encoding)
    return LinearProbe.initialise(folder, card, loading=Loading(dtype=dtype))


def measure(
    train_items: Sequence[LabelledTrace], test_items: Sequence[LabelledTrace], options: argparse.Namespace
) -> tuple[Figures, dict[str, object]]:
    """Figures of three seeds, each with two thirds of the sampled training problems."""
    everything = rows_of(train_items)
    problems, test_problems = options.problems[:2] if options.problems else (150, 98)
    pool, held_out = sampled(everything, problems, 0), sampled(rows_of(test_items), test_problems, 0)
    swap_from, swap_to = swapped(held_out)
    with tempfile.TemporaryDirectory() as folder:
        probe = shallow(Path(folder), options.model, options.layer, options.dtype)
        states, *others = np.split(
            states_of(probe, [*pool, *held_out, *swap_from, *swap_to], options.layer),
            np.cumsum([len(pool), len(held_out), len(swap_from)]),
        )
    training = ([row.fact for row in everything], [row.good for row in everything])
    good = [row.good for row in held_out]
    names = [row.item.problem.id for row in held_out]
    rivals = rival_scores([row.fact for row in held_out], names, good, training)
    gates: list[Reading] = []
    aucs, noticed = [], []
    for seed in SEEDS:
        every = sorted({row.item.problem.id for row in pool})
        kept = set(np.random.default_rng(seed).permutation(every)[: 2 * len(every) // 3].tolist())
        at = [number for number, row in enumerate(pool) if row.item.problem.id in kept]
        head = make_pipeline(StandardScaler(), RidgeCV(np.logspace(1, 6, 11)))
        head.fit(states[at], [1.0 if pool[number].good else -1.0 for number in at])
        scores, was, now = (head.predict(part) for part in others)
        aucs.append(roc_auc(scores, good))
        noticed.append(float(np.mean((now < was) + 0.5 * (now == was))))
        gates.append(gate_of(scores, rivals, held_out))
        logging.info(
            "seed %d: AUC %.3f, swapped number noticed %.3f; %s", seed, aucs[-1], noticed[-1], gates[-1]
        )
    figures = [
        figure(
            f"auc_{field}_minus_baseline",
            mean(getattr(gate, field)[0] for gate in gates),
            "AUC",
            low=min(getattr(gate, field)[1] for gate in gates),
            high=max(getattr(gate, field)[2] for gate in gates),
            seeds=[getattr(gate, field) for gate in gates],
        )
        for field in ("within_prefix", "similar_length", "within_problem")
    ]
    figures.append(figure("swapped_number_noticed", mean(noticed), "share", seeds=noticed))
    setting = {
        "layer": options.layer,
        "auc": aucs,
        "rival_aucs": [roc_auc(row, good) for row in rivals],
        "rival_rows": len(everything),
        "reads": [gate.reads for gate in gates],
        "swapped_numbers": len(swap_from),
        "rows": {
            name: statistics(rows)
            for name, rows in (("file", everything), ("train", pool), ("test", held_out))
        },
    }
    return figures, setting


def statistics(rows: Sequence[Row]) -> dict[str, float]:
    """What a sample has to share with its file."""
    return {
        "rows": len(rows),
        "problems": len({row.item.problem.id for row in rows}),
        "bad": mean(not row.good for row in rows),
        "mean_step": mean(row.step for row in rows),
        "mean_characters": mean(row.fact.characters for row in rows),
    }
