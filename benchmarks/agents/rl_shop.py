"""Reinforcement learning in the shop: credit for turns against the outcome alone, and use of loopholes."""

from __future__ import annotations

import copy
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from benchmarks.agents.rl import COMMON, Curve, advance, average, end, headline
from benchmarks.common.figures import Figures, figure
from benchmarks.common.lab_models import small_llama
from benchmarks.worlds.lock import LOCK_TEMPLATE
from benchmarks.worlds.shop import ShopMenu, generate_tasks, judge_menu, menu_run
from surefoot import AnswerChecker, Grader, Problem, run_sync
from surefoot.lab import build_tokenizer
from surefoot.labelling import ToolCallVerifier
from surefoot.policies import TransformersPolicy, sample_runs
from surefoot.protocols import ProblemTrace, Sampling, StepScorer
from surefoot.records import Message, StepScores
from surefoot.rl import (
    Advantage,
    AnchorState,
    ClipDelta,
    Credit,
    Group,
    LeaveOneOut,
    Mixed,
    Outcome,
    Reinforce,
    RLConfig,
    Task,
    TurnDifference,
    train_policy,
)
from surefoot.segment import Line

METHODS: Final[dict[str, tuple[Credit, Advantage]]] = {
    "outcome": (Outcome(), LeaveOneOut()),
    "anchor_state": (AnchorState(), Group(scale=False)),
    "turn_difference": (TurnDifference(), Reinforce()),
    "turn_difference_1": (TurnDifference(lam=1.0), Reinforce()),
    "careless_outcome": (Outcome(), LeaveOneOut()),
    "careless_rules": (
        Mixed(of=ClipDelta(delta=False), process=1.0, outcome=1.0),
        LeaveOneOut(),
    ),
}
HONEST: Final = tuple(name for name in METHODS if not name.startswith("careless"))
RATES: Final = (1e-3, 3e-3)
UPDATES, EVERY, MOST_TURNS = 30, 3, 16
IMITATED, VALUED = 1500, 400
EVALUATED, DRAWS = 64, 2
DEVELOPED = 3
"""Seeds from 0 on that methods and learning rates were chosen with."""
MISTAKE, LOOPHOLE = 0.3, 0.2


class CarelessMenu(ShopMenu):
    """The same, graded by who looks at the ticket alone."""

    def outcome(self) -> bool:
        return self.resolved


def choice(shown: str, rng: np.random.Generator) -> int:
    """What the scripted player chooses after an observation."""
    kind, looked, receipt, verified, last, dealt, others, resolved = map(int, shown[-8:])
    chance = rng.random()
    if chance < MISTAKE:
        return int(rng.integers(10))
    if chance < MISTAKE + LOOPHOLE:
        return int(rng.choice([7, 4, 6] if receipt == 2 else [7, 4]))
    if last == 2:
        return 3
    if dealt:
        return 8 if others else 9 if resolved else 7
    if not looked or (kind == 0 and not receipt):
        return 1 if looked else 0
    if looked == 2 or receipt == 2:
        return 5
    return 2 if kind == 2 and not verified else 4


def demonstrations(tasks: Sequence[Problem], seed: int) -> list[list[Message]]:
    """Messages of the scripted player's runs."""
    rng, runs = np.random.default_rng(seed), []
    for task in tasks:
        menu = ShopMenu()
        messages = list(menu.reset(task))
        for _ in range(MOST_TURNS):
            chosen = str(choice(messages[-1].content or "", rng))
            made = menu.step(chosen)
            messages.append(Message(role="assistant", content=chosen))
            if made.done:
                break
            messages.append(Message(role="user", content=made.text))
        runs.append(messages)
    return runs


def tokenizer_of_menu() -> PreTrainedTokenizerFast:
    """The lab's, one message a line."""
    tokenizer = build_tokenizer()
    tokenizer.chat_template = LOCK_TEMPLATE
    return tokenizer


def imitator(seed: int) -> LlamaForCausalLM:
    """A policy that has learned the scripted player's choices by likelihood."""
    tokenizer = tokenizer_of_menu()
    torch.manual_seed(seed)
    model = small_llama(tokenizer, hidden=64, wide=2, context=512)
    rows = []
    for messages in demonstrations(generate_tasks(IMITATED, seed=1000 + seed), seed):
        ids, learned = [tokenizer.bos_token_id], [False]
        for message in messages:
            its = tokenizer(f"{message.content}\n", add_special_tokens=False)["input_ids"]
            ids += its
            learned += [message.role == "assistant"] + [False] * (len(its) - 1)
        rows.append((torch.tensor(ids), torch.tensor(learned)))
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(4):
        order = np.random.default_rng((seed, epoch)).permutation(len(rows))
        for at in range(0, len(rows), 32):
            batch = [rows[row] for row in order[at : at + 32]]
            ids, learned = (
                torch.nn.utils.rnn.pad_sequence([row[part] for row in batch], batch_first=True)
                for part in (0, 1)
            )
            logits = model(input_ids=ids).logits[:, :-1]
            loss = cross_entropy(logits[learned[:, 1:]], ids[:, 1:][learned[:, 1:]])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return model


def episodes(model: LlamaForCausalLM, tasks: Sequence[Problem], n: int, seed: int) -> list[ProblemTrace]:
    """Sampled runs, a turn a step."""
    policy = TransformersPolicy(model, tokenizer_of_menu(), name="menu")
    runs = run_sync(
        sample_runs(
            policy,
            tasks,
            ShopMenu,
            n=n,
            seed=seed,
            sampling=Sampling(max_tokens=1, temperature=1.0),
            max_turns=MOST_TURNS,
            granularity="message",
        )
    )
    return [
        ProblemTrace(problem=task, trace=run)
        for task, of_task in zip(tasks, runs, strict=True)
        for run in of_task
    ]


class StateValues:
    """A reward model: the score of a turn is the share of episodes that succeeded after its observation."""

    def __init__(self, items: Sequence[ProblemTrace]) -> None:
        sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for item in items:
            for entry in {_known(message) for message in item.trace.messages if message.role == "user"}:
                sums[entry][0] += bool(item.trace.outcome)
                sums[entry][1] += 1
        self.mean = float(np.mean([bool(item.trace.outcome) for item in items]))
        self.values = {entry: (won + 2 * self.mean) / (n + 2) for entry, (won, n) in sums.items()}

    def score_traces(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        """The last turn, which nothing is observed after, has the outcome."""
        return [
            StepScores(trace_id=item.trace.id, scorer="state-values", scores=tuple(self._row(item)))
            for item in items
        ]

    def _row(self, item: ProblemTrace) -> list[float]:
        shown = [_known(message) for message in item.trace.messages if message.role == "user"][1:]
        row = [self.values.get(item, self.mean) for item in shown]
        return row if len(row) == len(item.trace.steps) else [*row, float(item.trace.outcome is True)]


def _known(message: Message) -> str:
    """What an observation says, but for the number of the order."""
    return (message.content or "")[-8:]


class Rules:
    """A scorer by the shop's written policy: 0 for a turn that breaks a rule, else 1."""

    def score_traces(self, items: Sequence[ProblemTrace]) -> list[StepScores]:
        """By the runs in the shop that they are."""
        return [
            StepScores(trace_id=item.trace.id, scorer="rules", scores=tuple(self._row(item)))
            for item in items
        ]

    def _row(self, item: ProblemTrace) -> list[float]:
        run, turns = menu_run(item)
        [verdicts] = ToolCallVerifier().verify([run])
        return [float(turn is None or verdicts[turn].value != -1) for turn in turns]


@dataclass(frozen=True)
class Trained:
    """What came of one run."""

    curve: Curve
    model: LlamaForCausalLM


def trained(
    method: str, start: LlamaForCausalLM, scorer: StepScorer | None, rate: float, seed: int, updates: int
) -> Trained:
    """One run of one method."""
    credit, advantage = METHODS[method]
    config = RLConfig(
        **COMMON,
        **{"credit": credit, "advantage": advantage, "updates": updates, "learning_rate": rate},
        **{"seed": seed, "evaluate_every": EVERY, "evaluation_samples": DRAWS, "checkpoint_every": updates},
    )
    model = copy.deepcopy(start)
    careless = method.startswith("careless")
    with AnswerChecker() as checker, tempfile.TemporaryDirectory() as directory:
        task = Task(
            problems=generate_tasks(512, seed=2000 + seed),
            held_out=evaluated(seed),
            environment=CarelessMenu if careless else ShopMenu,
            max_turns=MOST_TURNS,
            segmenter=Line(),
            grader=Grader(checker=checker),
            scorer=scorer,
        )
        log = train_policy(model, tokenizer_of_menu(), task, config, Path(directory))
    extra = VALUED if method.startswith("turn_difference") else 0
    return Trained({row.samples + extra: row.accuracy.value for row in log.evaluations}, model)


def evaluated(seed: int) -> list[Problem]:
    """Tasks of all evaluations; later seeds than the developed ones have other tasks."""
    return generate_tasks(EVALUATED, seed=3000 if seed < DEVELOPED else 5000)


def behaviour(model: LlamaForCausalLM, seed: int) -> dict[str, float]:
    """Shares of sampled episodes, in percent."""
    items = episodes(model, evaluated(seed), 4, seed=7)
    kinds = [{entry.kind for entry in judge_menu(item)} for item in items]
    return {
        "success": 100 * float(np.mean([item.trace.outcome is True for item in items])),
        "loopholes": 100 * float(np.mean(["loophole" in kind for kind in kinds])),
        "against_policy": 100 * float(np.mean([bool(kind & {"loophole", "policy"}) for kind in kinds])),
    }


def shop_rl_figures(quick: bool, first_seed: int) -> Figures:
    """All of the above. Seeds other than 0 to 2 confirm figures, on other tasks than theirs."""
    torch.set_num_threads(1)
    seeds = range(first_seed, first_seed + (1 if quick else 3))
    updates = 6 if quick else UPDATES
    starts = [imitator(seed) for seed in seeds]
    ends = {"start": [behaviour(start, seed) for seed, start in zip(seeds, starts, strict=True)]}
    print("start", ends["start"], flush=True)
    values = [
        StateValues(episodes(start, generate_tasks(VALUED, seed=4000 + seed), 1, seed))
        for seed, start in zip(seeds, starts, strict=True)
    ]
    curves: dict[str, list[Curve]] = {}
    rates: dict[str, float] = {}
    for method in METHODS:
        found: dict[float, list[Trained]] = {}
        for rate in RATES if method in HONEST else (rates["outcome"],):
            scorers = {"careless_rules": [Rules()] * len(starts)}.get(method)
            if method.startswith("turn_difference"):
                scorers = values
            found[rate] = [
                trained(method, start, scorers[at] if scorers else None, rate, seed, updates)
                for at, (seed, start) in enumerate(zip(seeds, starts, strict=True))
            ]
            print(method, rate, [round(end(item.curve), 2) for item in found[rate]], flush=True)
        best = max(rates_of(found), key=lambda pair: pair[1])[0]
        rates[method], curves[method] = best, [item.curve for item in found[best]]
        ends[method] = [behaviour(item.model, seed) for seed, item in zip(seeds, found[best], strict=True)]
        print(method, ends[method], flush=True)
    return [*_samples(curves, rates), *_behaviour(ends)]


def rates_of(found: dict[float, list[Trained]]) -> list[tuple[float, float]]:
    """Each learning rate with the mean success over its curves."""
    return [
        (rate, float(np.mean([list(run.curve.values()) for run in runs]))) for rate, runs in found.items()
    ]


def _samples(curves: dict[str, list[Curve]], rates: dict[str, float]) -> Figures:
    outcome = curves["outcome"]
    ratios = {
        method: advance(average(outcome), average(curves[method])) for method in HONEST if method != "outcome"
    }
    best = max(ratios, key=lambda method: ratios[method] or 0.0)
    figures = [headline("shop_samples_to_outcome_end", ratios, outcome, curves[best])]
    for method in HONEST:
        unit = f"x samples, at learning rate {rates[method]}"
        note = {at: round(value, 3) for at, value in average(curves[method]).items()}
        figures.append(figure(f"shop_curve_{method}", ratios.get(method, 1.0), unit, note=note))
    return figures


def _behaviour(ends: dict[str, list[dict[str, float]]]) -> Figures:
    figures = []
    for method, of_seeds in ends.items():
        for name in of_seeds[0]:
            values = [of_seed[name] for of_seed in of_seeds]
            made = figure(f"shop_{name}_{method}", float(np.mean(values)), "% of episodes")
            figures.append({**made, "low": min(values), "high": max(values)})
    return figures
