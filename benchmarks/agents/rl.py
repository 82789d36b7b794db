"""Turn-level credit against outcome only: reinforcement learning of a random policy on the lab's lock."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from transformers import LlamaForCausalLM

from benchmarks.common.figures import Figure, Figures, figure
from benchmarks.common.lab_models import small_llama
from benchmarks.worlds.lock import LOCK_TEMPLATE, Lock, LockProgress, lock_problems
from surefoot import AnswerChecker, Grader
from surefoot.lab import build_tokenizer
from surefoot.rl import (
    Advantage,
    AnchorState,
    Credit,
    Group,
    Guards,
    LeaveOneOut,
    Outcome,
    Reinforce,
    RLConfig,
    Task,
    TurnDifference,
    curve_samples_to,
    train_policy,
)
from surefoot.segment import Line

METHODS: Final[Mapping[str, tuple[Credit, Advantage]]] = {
    "outcome": (Outcome(), LeaveOneOut()),
    "anchor-state": (AnchorState(), Group(scale=False)),
    "turn-difference": (TurnDifference(start=0.0), Reinforce()),
}
RATES: Final = (3e-3, 1e-2, 3e-2)
UPDATES, EVERY = 30, 3
COMMON: Final[Mapping[str, Any]] = {
    **{"problems": 8, "samples": 8, "max_tokens": 1, "warmup": 0, "keep_samples": 0},
    "guards": Guards(stop_on=()),
}

Curve = dict[int, float]


def policy(seed: int) -> LlamaForCausalLM:
    """A random one; its first choices are near to even."""
    tokenizer = build_tokenizer()
    torch.manual_seed(seed)
    return small_llama(tokenizer, hidden=32, wide=2, context=128)


def curve(method: str, seed: int, rate: float, directory: Path) -> Curve:
    """Success by episodes sampled."""
    tokenizer = build_tokenizer()
    tokenizer.chat_template = LOCK_TEMPLATE
    credit, advantage = METHODS[method]
    config = RLConfig(
        **COMMON,
        **{"credit": credit, "advantage": advantage, "updates": UPDATES, "learning_rate": rate},
        **{"seed": seed, "evaluate_every": EVERY, "evaluation_samples": 8, "checkpoint_every": UPDATES},
    )
    with AnswerChecker() as checker:
        task = Task(
            problems=lock_problems(64),
            held_out=lock_problems(8, first=64),
            environment=Lock,
            max_turns=6,
            segmenter=Line(),
            grader=Grader(checker=checker),
            scorer=LockProgress(),
        )
        log = train_policy(policy(seed), tokenizer, task, config, directory)
    return {row.samples: row.accuracy.value for row in log.evaluations}


def average(curves: Sequence[Curve]) -> Curve:
    """Mean of curves with the same abscissae."""
    return {at: float(np.mean([curve[at] for curve in curves])) for at in curves[0]}


def end(of: Curve) -> float:
    """Mean of the last three evaluations."""
    return float(np.mean(list(of.values())[-3:]))


def advance(outcome: Curve, turn: Curve) -> float | None:
    """Episodes of outcome-only to its final success over the other method's; ``None`` if not reached."""
    target = end(outcome)
    slow, fast = curve_samples_to(outcome, target), curve_samples_to(turn, target)
    return None if slow is None or fast is None else slow / max(fast, 1.0)


def rl_figures(quick: bool) -> Figures:
    """All of the above."""
    torch.set_num_threads(1)
    seeds = range(1 if quick else 3)
    chosen: dict[str, tuple[float, list[Curve]]] = {}
    for method in METHODS:
        by_rate = {}
        for rate in RATES:
            with tempfile.TemporaryDirectory() as runs:
                by_rate[rate] = [curve(method, seed, rate, Path(runs) / str(seed)) for seed in seeds]
            print(method, rate, [round(end(item), 2) for item in by_rate[rate]], flush=True)
        rate = max(by_rate, key=lambda one: float(np.mean(list(average(by_rate[one]).values()))))
        chosen[method] = (rate, by_rate[rate])
    outcome = chosen["outcome"][1]
    ratios = {
        method: advance(average(outcome), average(curves))
        for method, (_, curves) in chosen.items()
        if method != "outcome"
    }
    best = max(ratios, key=lambda method: ratios[method] or 0.0)
    figures = [headline("turn_credit_samples_to_outcome_end", ratios, outcome, chosen[best][1])]
    for method, (_, curves) in chosen.items():
        ends = [100 * end(curve) for curve in curves]
        figures.append(figure(f"final_success_{method}", float(np.mean(ends)), low=min(ends), high=max(ends)))
    for method, (rate, curves) in chosen.items():
        unit = f"x samples, at learning rate {rate}"
        figures.append(figure(f"curve_{method}", ratios.get(method, 1.0), unit, note=average(curves)))
    return figures


def headline(
    name: str, ratios: dict[str, float | None], outcome: Sequence[Curve], turn: Sequence[Curve]
) -> Figure:
    """The ratio of the best method, whose curves are ``turn``, with the least and the most of a seed."""
    best = max(ratios, key=lambda method: ratios[method] or 0.0)
    single = [advance(*pair) for pair in zip(outcome, turn, strict=True)]
    reached = [item for item in single if item is not None]
    low = min(reached) if len(reached) == len(single) else None
    return figure(name, ratios[best], f"x ({best})", ratios[best], low=low, high=max(reached, default=None))
