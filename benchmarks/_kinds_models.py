"""Models of ``benchmarks/kinds.py``: one of each kind from the lab's trunk, and how each reads a trace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from _kinds_lab import Lab
from transformers import AutoModelForCausalLM, AutoTokenizer

from surefoot.io import read_records, write_records
from surefoot.lab import POLICY, TRUNK, critic
from surefoot.models import (
    CheckpointCard,
    EffectiveReward,
    Encoding,
    ImplicitPRM,
    RewardModel,
    Scorer,
    VerifierFormat,
    implicit_scores,
    load_prm,
    load_verifier,
)
from surefoot.protocols import ProblemTrace, Sampling
from surefoot.records import StepScores, Trace
from surefoot.training import (
    ImplicitConfig,
    LoopConfig,
    OutcomeTargets,
    StepTargets,
    TrainingConfig,
    VerifierConfig,
    build_critique_examples,
    build_examples,
    build_outcome_examples,
    build_pairs,
    train,
    train_implicit,
    train_verifier,
    write_critiques,
)

CONTEXT = 256
ENCODING = Encoding(max_length=CONTEXT)
KINDS = ("orm", "hard", "soft", "pqm", "progress", "pairwise", "pav", "implicit", "generative", "exact")
CLASSIFIERS = ("orm", "hard", "soft", "pqm", "progress", "pairwise", "pav", "exact")
TRAINING_FREE = ("deepconf", "self-certainty", "entropy")
CHANGES = {"orm_change": "orm", "soft_change": "soft"}
Scores = dict[str, tuple[float | None, ...]]
"""By trace id."""
FORMAT = VerifierFormat(
    template=critic.TEMPLATE,
    chat=False,
    step=critic.STEP,
    opening=critic.OPENING,
    correct=critic.CORRECT,
    incorrect=critic.INCORRECT,
    end=critic.END,
    question=critic.QUESTION,
    yes=(critic.YES,),
    no=(critic.NO,),
)


def fit(lab: Lab, kind: str, count: int) -> Path:
    """Train one kind on the first ``count`` traces; its directory."""
    name = f"{kind}-{count}"
    directory = lab.run.directory / name
    if lab.run.done(name):
        return directory
    torch.manual_seed(lab.seed)  # new heads and new tokens' embeddings
    trainer = {"implicit": fit_implicit, "generative": fit_generative}.get(kind, fit_classifier)
    with lab.run.timed(name):
        result = trainer(lab, kind, count, directory)
    lab.run.finish(name, result)
    lab.say(f"trained {name}: {result}")
    return directory


C = TypeVar("C", bound=LoopConfig)


def training(lab: Lab, kind: type[C], **changes: Any) -> C:
    """The quickstart's schedule."""
    return kind(epochs=lab.sizes.epochs, checkpoint_every=100, seed=lab.seed, **changes)


def fit_classifier(lab: Lab, kind: str, count: int, directory: Path) -> dict[str, Any]:
    """A trunk with a head: those of ``CLASSIFIERS``."""
    meanings = {"exact": "correctness", "progress": "correctness", "orm": "outcome", "pav": "advantage"}
    card = CheckpointCard(
        kind="orm" if kind == "orm" else "prm",
        encoding=ENCODING,
        score_means=meanings.get(kind, "value"),  # type: ignore[arg-type]
        label_source=kind,
        base="surefoot-lab-trunk",
    )
    model = RewardModel.initialise(TRUNK, card)
    if kind == "pairwise":
        problems, _ = lab.first(count)
        ids = {problem.id for problem in problems}
        pairs = build_pairs(
            model.tokenizer, ENCODING, problems, [pair for pair in lab.pairs if pair.problem_id in ids]
        )
        log = train(model, pairs.examples, training(lab, TrainingConfig, loss="pairwise"), directory)
        return {"examples": len(pairs.examples), "dropped": dict(pairs.dropped), "tokens": log.tokens}
    targets = OutcomeTargets() if kind == "orm" else StepTargets(hard=kind in ("hard", "pqm"))
    data = build_examples(model.tokenizer, ENCODING, lab.labelled(kind, count), targets)
    config = training(lab, TrainingConfig, loss="pqm" if kind == "pqm" else "bce")
    log = train(model, data.examples, config, directory)
    return {"examples": len(data.examples), "dropped": dict(data.dropped), "tokens": log.tokens}


def fit_implicit(lab: Lab, _kind: str, count: int, directory: Path) -> dict[str, Any]:
    """A language model on outcomes. It has no head that could go first."""
    model = ImplicitPRM.initialise(TRUNK, cache=directory)
    data = build_outcome_examples(model, lab.first(count)[1])
    log = train_implicit(model, data.examples, training(lab, ImplicitConfig), directory)
    return {"examples": len(data.examples), "dropped": dict(data.dropped), "tokens": log.tokens}


def fit_generative(lab: Lab, kind: str, count: int, directory: Path) -> dict[str, Any]:
    """A language model on critiques that agree with the exact labels, written by a critic that errs."""
    tokenizer = AutoTokenizer.from_pretrained(TRUNK)
    tokenizer.add_tokens(list(critic.PIECES))
    model = AutoModelForCausalLM.from_pretrained(TRUNK)
    model.resize_token_embeddings(len(tokenizer))
    items = lab.labelled(kind, count)
    scripted = critic.NoisyCritic(error_rate=0.05)
    critiques = asyncio.run(write_critiques(scripted, items, FORMAT, chains=2, seed=lab.seed))
    data = build_critique_examples(tokenizer, items, critiques, FORMAT, seed=lab.seed)
    short = [example for example in data.examples if len(example.ids) <= CONTEXT]
    config = training(lab, VerifierConfig, batch_size=16, learning_rate=1e-3)
    log = train_verifier(
        model,
        tokenizer,
        short,
        FORMAT,
        config,
        directory,
        base="surefoot-lab-trunk",
        label_source="lab-checker",
    )
    dropped = dict(data.dropped) | {"longer than the context": len(data.examples) - len(short)}
    return {"examples": len(short), "dropped": dropped, "tokens": log.tokens}


def read(lab: Lab, count: int, split: str) -> dict[str, Scores]:
    """Scores by reading and trace id, of the models trained on the first ``count`` traces."""
    scored: dict[str, list[StepScores]] = {}
    items = lab.held[split].items

    def scorer(kind: str) -> Scorer:
        return Scorer(RewardModel.load(fit(lab, kind, count)), name=kind)

    def kept(name: str, make: Callable[[], list[StepScores]]) -> None:
        path = lab.run.directory / f"scores-{name}-{count}-{split}.jsonl"
        if not path.exists():
            found = make()
            with lab.run.timed(f"scores-{name}"):
                write_records(path, found, record=StepScores)
            lab.say(f"scored {split} traces, {name} of {count}")
        scored[name] = list(read_records(path, StepScores))

    for kind in CLASSIFIERS:
        kept(kind, lambda kind=kind: scorer(kind).score_traces(items))  # type: ignore[misc]
    for measure in TRAINING_FREE:
        kept(measure, lambda measure=measure: load_prm(f"{measure}:{POLICY}").score_traces(items))  # type: ignore[misc]
    kept("effective", lambda: EffectiveReward(scorer("soft"), advantage=scorer("pav")).score_traces(items))
    kept("implicit_step", lambda: implicit(lab, count, items))
    if split == "test":  # a verdict needs no threshold of a development set
        kept("generative", lambda: generative(lab, count, lab.held[split].heads()))
    rows = {name: {record.trace_id: record.scores for record in found} for name, found in scored.items()}
    rows["implicit_prefix"] = {name: summed(row) for name, row in rows["implicit_step"].items()}
    outcomes = [item.trace.outcome for item in lab.first(count)[1] if item.trace.outcome is not None]
    for name, source in CHANGES.items():
        rows[name] = {trace: changes(row, float(np.mean(outcomes))) for trace, row in rows[source].items()}
    floors: dict[str, Callable[[Trace, int], float]] = {
        "constant": lambda _trace, _step: 0.5,
        "position": lambda _trace, step: 1 / (1 + step),
        "length": lambda trace, step: 1 / (1 + len(trace.step_text(step))),
    }
    for name, floor in floors.items():
        rows[name] = {
            item.trace.id: tuple(floor(item.trace, step) for step in range(len(item.trace.steps)))
            for item in items
        }
    return rows


def implicit(lab: Lab, count: int, items: list[ProblemTrace]) -> list[StepScores]:
    """Each step's own reward as a score."""
    return ImplicitPRM.load(fit(lab, "implicit", count)).score_traces(items)


def generative(lab: Lab, count: int, items: list[ProblemTrace]) -> list[StepScores]:
    """One greedy critique of each trace."""
    verifier = load_verifier(
        fit(lab, "generative", count), sampling=Sampling(temperature=0.0, max_tokens=160)
    )
    found = verifier.score_traces(items)
    lab.say(f"generative of {count}: {len(items)} critiques, unreadable: {dict(verifier.invalid)}")
    return found


def summed(row: tuple[float | None, ...]) -> tuple[float | None, ...]:
    """Scores by step reward → scores by the sum of the rewards so far."""
    clipped = [None if s is None else min(max(s, 1e-12), 1 - 1e-12) for s in row]
    rewards = [None if s is None else float(np.log(s) - np.log1p(-s)) for s in clipped]
    return implicit_scores(rewards, "prefix")


def changes(row: tuple[float | None, ...], start: float) -> tuple[float | None, ...]:
    """Each score less the one before; before the first step stands the training traces' success rate."""
    return tuple(
        None if after is None or before is None else after - before
        for before, after in pairwise((start, *row))
    )
