"""How far one batch's policy gradient can be trusted, by credit rule, in the lab.

    python -m benchmarks.rl.credit_noise [--quick] [--prm DIR] [--batches N] [--json FILE]

Batches of 16 problems with 8 rollouts each are drawn from the lab's policy, and every rule gives its
gradient of the same batches. ``snr``: squared length of the mean gradient by the variance around it, for
one batch; the square of the mean comes from products of different batches, which are free of their own
noise. ``cosine``: of one batch's gradient with the true gradient of the outcome, the mean product with the
outcome gradients of *other* batches divided by both lengths; 1 = this batch alone points where endless
batches would. ``ratio`` of ``snr`` is to that of outcome reward: so many times fewer samples give an
equally sure gradient. Intervals: the batches, delete-half jackknife. ``--prm`` is a lab PRM (a quickstart's
``prm``); without it the rules run on the exact checker alone. PAV's prover is a solver that errs in a tenth
of its lines.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.rl.run import Prover
from surefoot import __version__
from surefoot.answers import AnswerChecker, Grader
from surefoot.io import write_json
from surefoot.lab import POLICY, ExactLabeller, NoisySolver, generate_problems
from surefoot.models import LabelScorer, load_prm
from surefoot.policies import TransformersPolicy
from surefoot.protocols import Sampling, StepScorer
from surefoot.rl import (
    Actor,
    Advantage,
    Credit,
    Effective,
    Group,
    Judges,
    LeaveOneOut,
    MinForm,
    Outcome,
    RLConfig,
    Rollout,
    Summed,
    Task,
    microbatches,
    roll_out,
    training_samples,
)
from surefoot.segment import Line

Array = NDArray[np.float64]

PROBLEMS, SAMPLES, TOKENS = 16, 8, 96
BOOTSTRAP = 1_000
OUTCOME = "outcome"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A way of giving credit."""

    credit: Credit
    scorer: StepScorer | None = None
    advantage: Advantage = field(default_factory=LeaveOneOut)


def rules(prm: Path | None) -> dict[str, Rule]:
    """All that are compared."""
    checker = LabelScorer(ExactLabeller(after_error="step"), name="checker")
    prover = Prover(NoisySolver(error_rate=0.1))
    found = {
        OUTCOME: Rule(credit=Outcome()),
        "summed, checker": Rule(credit=Summed(), scorer=checker),
        "process-grpo, checker": Rule(credit=Summed(), scorer=checker, advantage=Group()),
        "min-form, checker": Rule(credit=MinForm(), scorer=checker),
        "strict min-form, checker": Rule(credit=MinForm(form="strict"), scorer=checker),
        "pav, exact prover": Rule(credit=Effective(alpha=5), scorer=prover),
    }
    if prm is not None:
        scorer = load_prm(prm)
        found |= {
            "summed, prm": Rule(credit=Summed(), scorer=scorer),
            "min-form, prm": Rule(credit=MinForm(), scorer=scorer),
            "pav, best-of-4, prm": Rule(credit=Effective(alpha=5, best_of=4), scorer=scorer),
            "pav, itself, prm": Rule(credit=Effective(alpha=5), scorer=scorer),
        }
    return found


def gradients(compared: dict[str, Rule], batches: int) -> dict[str, Array]:
    """One row of gradients a batch, for every rule."""
    policy = TransformersPolicy.from_pretrained(POLICY)
    actor = Actor(policy.model)
    found: dict[str, list[Array]] = {name: [] for name in compared}
    with AnswerChecker("exact") as checker:
        grader = Grader(checker=checker, styles=("phrase",))
        for batch in range(batches):
            problems = generate_problems(PROBLEMS, seed=6_000_000 + batch)
            task = Task(problems=problems, segmenter=Line(), grader=grader)
            sampling = Sampling(max_tokens=TOKENS)
            rolled = asyncio.run(
                roll_out(policy, problems, policy.tokenizer, task, n=SAMPLES, seed=batch, sampling=sampling)
            )
            for name, rule in compared.items():
                config = RLConfig(credit=rule.credit, advantage=rule.advantage)
                groups = training_samples(rolled.groups, Judges(scorer=rule.scorer), config)
                samples = [one for group in groups for one in group]
                found[name].append(
                    gradient(actor, [one.rollout for one in samples], [one.advantages for one in samples])
                )
            print(f"batch {batch + 1} of {batches}", flush=True)
    return {name: np.stack(rows) for name, rows in found.items()}


def gradient(actor: Actor, rollouts: Sequence[Rollout], advantages: Sequence[Array]) -> Array:
    """Of the mean over tokens of advantage times log-probability."""
    parameters = list(actor.model.parameters())
    for parameter in parameters:
        parameter.grad = None
    tokens = sum(len(rollout.ids) for rollout in rollouts)
    for part in microbatches(rollouts, 4096):
        read = actor.read([rollouts[index] for index in part]).logprobs
        weights = torch.from_numpy(np.concatenate([advantages[index] for index in part])).to(read)
        ((read * weights).sum() / tokens).backward()
    flat = [parameter.grad.flatten() for parameter in parameters if parameter.grad is not None]
    return torch.cat(flat).double().numpy()


def snr(products: Array) -> float:
    """Signal by noise, in power, from the products of a rule's gradients of B batches [B, B]."""
    count = len(products)
    own = float(np.trace(products)) / count
    signal = (float(products.sum()) - own * count) / (count * (count - 1))
    return signal / (own - signal)


def cosine(mixed: Array, own: Array, outcome: Array) -> float:
    """Of one batch's gradient with the outcome's true one; all [B, B], products between batches.

    NaN where the batches do not tell the length of the true one: its square comes out at 0 or below.
    """
    count = len(mixed)

    def apart(products: Array) -> float:
        return (float(products.sum()) - float(np.trace(products))) / (count * (count - 1))

    true = apart(outcome)
    if true <= 0:
        return float("nan")
    return apart(mixed) / np.sqrt(true * float(np.trace(own)) / count)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prm", type=Path, help="a lab PRM: the directory prm of a quickstart's run")
    parser.add_argument("--batches", type=int, help="24; with --quick 8")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="8 batches, on one thread")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    batches = options.batches or (8 if options.quick else 24)
    found = gradients(rules(options.prm), batches)
    figures = measured(found)
    for one in figures:
        print(json.dumps(one))
    if options.json:
        setting = {
            "version": __version__,
            "torch": torch.__version__,
            "machine": platform.machine(),
            "batches": batches,
            "rollouts a batch": PROBLEMS * SAMPLES,
            "quick": options.quick,
        }
        write_json(options.json, {"figures": figures, "setting": setting})


def measured(found: dict[str, Array]) -> list[dict[str, object]]:
    """Three figures a rule."""
    outcome = found[OUTCOME]
    products = {name: rows @ rows.T for name, rows in found.items()}
    mixed = {name: rows @ outcome.T for name, rows in found.items()}
    rng = np.random.default_rng(0)
    count = len(outcome)
    # a batch drawn twice would be its own neighbour; halves without repeats spread as the bootstrap does
    draws = [rng.permutation(count)[: max(2, count // 2)] for _ in range(BOOTSTRAP)]
    figures: list[dict[str, object]] = []
    for name in found:

        def both(chosen: NDArray[np.int64], name: str = name) -> tuple[float, float]:
            at = np.ix_(chosen, chosen)
            return snr(products[name][at]), cosine(mixed[name][at], products[name][at], products[OUTCOME][at])

        everything = both(np.arange(count))
        spread = np.array([both(draw) for draw in draws])
        ratio = everything[0] / snr(products[OUTCOME])
        for which, label in enumerate(("snr", "cosine")):
            low, high = (float(end) for end in np.quantile(spread[:, which], (0.025, 0.975)))
            figures.append(
                {
                    "name": f"{label}, {name}",
                    "value": _known(everything[which]),
                    "unit": "of one batch",
                    "ratio": ratio if label == "snr" else None,
                    "low": _known(low),
                    "high": _known(high),
                }
            )
    return figures


def _known(value: float) -> float | None:
    return value if np.isfinite(value) else None


if __name__ == "__main__":
    main()
