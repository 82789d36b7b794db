"""How noisy labels are whose prefix is quoted in the user's message (``label mc --prefix-in user-turn``).

    python benchmarks/user_turn.py [--model SMOLLM2] [--problems N] [--first-seed K] [--json FILE]

The same prefixes are rolled out in two ways: continued by the policy (``continued``), and by the same policy
behind a chat that cannot continue a text and reads the prefix in the user's message. A prefix is right if no
step in it is wrong, which is known here.

- The lab's policy behind a chat whose behaviour is stated: ``restart_S`` solves the problem again in S % of
  its replies, ``correct_S`` goes on from what should have been written so far; the other replies go on from
  the end of the quoted prefix. ``itself``: no such chat, the lab's policy reads the whole message, of which
  its tokenizer knows the problem and the prefix alone. 4 traces a problem, 8 rollouts a prefix, three seeds.
- With ``--model``: SmolLM2-135M-Instruct (``benchmarks/convert_smollm2.py``) itself, on sums in words. Half
  the traces have a wrong result, with which their later steps go on. 4 rollouts a prefix.

For each: ``auc``, how often a right prefix has a higher value than a wrong one, equal values count half;
``right``, ``wrong``, mean values of right and wrong prefixes; ``distance``, mean distance from the value of
64 other continued rollouts (the lab); ``first_error``, traces whose first prefix of value 0 is the first
wrong one; ``uncounted``, rollouts that visibly start the solution again; ``unlabelled``, prefixes without a
value. 95 % intervals resample problems.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from surefoot import AnswerChecker, Grader, Problem, ProblemTrace, Sampling, StepLabel, Trace, segment_trace
from surefoot.lab import (
    LOCK_TEMPLATE,
    POLICY,
    ExactLabeller,
    generate_problems,
    parse_problem,
    worked_solution,
)
from surefoot.labelling import Estimate, MonteCarloLabeller
from surefoot.policies import PromptFormat, TransformersPolicy, sample_traces
from surefoot.protocols import Policy, SampleRequest, SampleResult
from surefoot.records import Message, Usage
from surefoot.segment import Line
from surefoot.stats import auc_by_problem, bootstrap_mean, bootstrap_totals

QUOTED = "\n\nThe solution so far follows."
CHAT = PromptFormat(chat=True, template="{problem}")
REFERENCE = 64
BEHAVIOURS = {"restart_25": (0.25, 0.0), "restart_50": (0.5, 0.0), "restart_100": (1.0, 0.0)}
BEHAVIOURS |= {"correct_25": (0.0, 0.25), "correct_50": (0.0, 0.5), "correct_100": (0.0, 1.0)}
"""Shares of replies that start again, and that correct the prefix."""
METRICS = ("right", "wrong", "distance", "first_error", "uncounted", "unlabelled")


@dataclass(frozen=True, kw_only=True)
class QuotingChat:
    """A chat in front of ``policy`` that never continues: it reads a quoted prefix in the user's message."""

    policy: Policy
    restart: float = 0.0
    correct: float = 0.0

    @property
    def name(self) -> str:
        return self.policy.name

    async def sample(self, requests: Sequence[SampleRequest]) -> list[SampleResult]:
        """Each sample goes on, corrects or starts again, by a random number of its own."""
        single = [
            self._request(request, number)
            for request in requests
            for number in range(request.first, request.first + request.n)
        ]
        answers = iter(await self.policy.sample(single))
        results = []
        for request in requests:
            of_request = [next(answers) for _ in range(request.n)]
            usage = sum((answer.usage for answer in of_request), Usage())
            completions = tuple(made for answer in of_request for made in answer.completions)
            results.append(SampleResult(completions=completions, usage=usage))
        return results

    def _request(self, request: SampleRequest, number: int) -> SampleRequest:
        content = "".join(message.content or "" for message in request.prompt if isinstance(message, Message))
        problem, _, rest = content.partition(QUOTED)
        prefix = rest.partition("\n\n")[2]
        chance = np.random.default_rng((request.seed, number, crc32(content.encode()))).random()
        if chance < self.restart:
            prefix = ""
        elif chance < self.restart + self.correct:
            lines = worked_solution(parse_problem(problem)).splitlines(keepends=True)[:-1]
            prefix = "".join(lines[: len(re.findall(r"^\d+ \S \d+ =", prefix, re.M))])
        return replace(request, prompt=f"{problem}\n", prefix=prefix, n=1, first=number)


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """One way's labels of the open prefixes of one seed's traces."""

    counts: NDArray[np.float64]
    """Numerator and denominator of each of METRICS, [problems, 2 * metrics]."""
    values: list[float]
    right: list[bool]
    problems: list[tuple[int, str]]


def label(
    policy: Policy,
    grader: Grader,
    items: Sequence[ProblemTrace],
    *,
    prompt: PromptFormat,
    quoted: bool,
    rollouts: int,
    sampling: Sampling,
    seed: int,
) -> list[list[StepLabel]]:
    labeller = MonteCarloLabeller(
        policy=policy,
        grader=grader,
        prompt=prompt,
        estimate=Estimate(rollouts=rollouts),
        prefix_in="user-turn" if quoted else "answer",
        sampling=sampling,
        seed=seed,
    )
    return asyncio.run(labeller.label(items))


def measured(
    items: Sequence[ProblemTrace],
    rows: Sequence[Sequence[StepLabel]],
    errors: Sequence[int],
    rollouts: int,
    seed: int,
    reference: Sequence[Sequence[StepLabel]] | None = None,
) -> Labelled:
    """``errors`` has each trace's first wrong step, or the number of its steps."""
    names = list(dict.fromkeys(item.problem.id for item in items))
    counts = np.zeros((len(names), len(METRICS), 2))
    values: list[float] = []
    right: list[bool] = []
    problems: list[tuple[int, str]] = []
    for number, (item, row, error) in enumerate(zip(items, rows, errors, strict=True)):
        count = counts[names.index(item.problem.id)]
        called = len(row)
        for step, made in enumerate(row[:-1]):
            count[4] += (rollouts - (made.evidence.trials or 0), rollouts)
            count[5] += (made.value is None, 1)
            if made.value is None:
                continue
            count[0 if step < error else 1] += (made.value, 1)
            if made.value == 0:
                called = min(called, step)
            truth = None if reference is None else reference[number][step].value
            if truth is not None:
                count[2] += (abs(made.value - truth), 1)
            values.append(made.value)
            right.append(step < error)
            problems.append((seed, item.problem.id))
        if error < len(row) - 1 or called < len(row):
            count[3] += (called == error, 1)
    return Labelled(counts=counts.reshape(len(names), -1), values=values, right=right, problems=problems)


def figures(name: str, seeds: Sequence[Labelled]) -> list[dict[str, object]]:
    """All metrics over the problems of all seeds."""
    rng = np.random.default_rng(0)
    values = [value for labelled in seeds for value in labelled.values]
    right = [good for labelled in seeds for good in labelled.right]
    problems = [problem for labelled in seeds for problem in labelled.problems]
    found = {"auc": bootstrap_mean(auc_by_problem(values, right, problems), rng=rng)}

    def ratios(totals: NDArray[np.float64]) -> NDArray[np.float64]:
        summed = totals.sum(axis=1)
        with np.errstate(invalid="ignore"):
            return np.asarray(summed[:, ::2] / summed[:, 1::2])

    intervals = bootstrap_totals([labelled.counts for labelled in seeds], ratios, rng=rng)
    found |= dict(zip(METRICS, intervals, strict=True))
    print(name, *(f"{metric} {interval:.3f}" for metric, interval in found.items()), sep="\n  ", flush=True)
    return [
        {"name": f"{metric}_{name}", "value": each.value, "low": each.low, "high": each.high}
        for metric, each in found.items()
        if not np.isnan(each.value)
    ]


def lab_figures(problems: int, first_seed: int) -> list[dict[str, object]]:
    """The lab's policy, continued and behind chats of every behaviour."""
    policy, sampling = TransformersPolicy.from_pretrained(POLICY), Sampling(max_tokens=96)
    policy.tokenizer.chat_template = LOCK_TEMPLATE
    ways: dict[str, list[Labelled]] = {}
    found: list[dict[str, object]] = []
    with AnswerChecker("exact") as checker:
        grader = Grader(checker=checker, styles=("phrase",))
        for seed in range(first_seed, first_seed + 3):
            made = generate_problems(problems, seed=500 + seed)
            sampled = asyncio.run(
                sample_traces(
                    policy, made, n=4, seed=seed, segmenter=Line(), grader=grader, sampling=sampling
                )
            )
            items = [
                ProblemTrace(problem=problem, trace=trace)
                for problem, traces in zip(made, sampled, strict=True)
                for trace in traces
                if len(trace.steps) > 1 and not trace.cut_off
            ]
            truth = asyncio.run(ExactLabeller(after_error="wrong").label(items))
            errors = [
                next((made.step for made in row if made.value is not None and made.value < 0), len(row))
                for row in truth
            ]

            def labels(
                policy: Policy,
                prompt: PromptFormat,
                rollouts: int,
                seed: int,
                items: list[ProblemTrace] = items,
            ) -> list[list[StepLabel]]:
                return label(
                    policy,
                    grader,
                    items,
                    prompt=prompt,
                    quoted=prompt.chat,
                    rollouts=rollouts,
                    sampling=sampling,
                    seed=seed,
                )

            reference = labels(policy, PromptFormat(), REFERENCE, seed + 200)
            rows = {
                "continued": labels(policy, PromptFormat(), 8, seed + 100),
                "itself": labels(policy, CHAT, 8, seed + 100),
            }
            for name, (restart, correct) in BEHAVIOURS.items():
                chat = QuotingChat(policy=policy, restart=restart, correct=correct)
                rows[name] = labels(chat, CHAT, 8, seed + 100)
            for name, of_way in rows.items():
                ways.setdefault(name, []).append(measured(items, of_way, errors, 8, seed, reference))
            print(f"seed {seed} done: all so far", flush=True)
            found = [each for name, seeds in ways.items() for each in figures(name, seeds)]
    return found


ASKED = """\
Bob has 2 apples. He gets 3 more. He gets 4 more. How many does he have?

2 + 3 = 5
5 + 4 = 9
The answer is 9.

{problem}"""


def sums(count: int, seed: int) -> tuple[list[ProblemTrace], list[int]]:
    """Sums in words, with a solution of which every second has a wrong result; first wrong steps."""
    items, errors = [], []
    for number in range(count):
        rng = np.random.default_rng((seed, number))
        first, *others = (int(digit) for digit in rng.integers(2, 10, size=3))
        text = f"Ann has {first} apples. " + " ".join(f"She gets {more} more." for more in others)
        problem = Problem(
            id=f"sum-{number}", text=f"{text} How many does she have?", answer=str(first + sum(others))
        )
        wrong = int(rng.integers(0, 2)) if number % 2 else len(others)
        lines, value = [], first
        for step, more in enumerate(others):
            result = value + more + (int(rng.integers(1, 4)) if step == wrong else 0)
            lines.append(f"{value} + {more} = {result}")
            value = result
        lines.append(f"The answer is {value}.")
        trace = segment_trace(Trace(problem_id=problem.id, text="\n".join(lines)), Line())
        items.append(ProblemTrace(problem=problem, trace=trace))
        errors.append(wrong if number % 2 else len(lines))
    return items, errors


def model_figures(model: Path, problems: int, seed: int) -> list[dict[str, object]]:
    """A small chat model itself."""
    policy = TransformersPolicy.from_pretrained(model, batch_size=64)
    items, errors = sums(problems, seed)
    found: list[dict[str, object]] = []
    with AnswerChecker("exact") as checker:
        grader = Grader(checker=checker, styles=("phrase",))
        for name, quoted in (("smollm2_continued", False), ("smollm2_quoted", True)):
            start = time.perf_counter()
            rows = label(
                policy,
                grader,
                items,
                prompt=PromptFormat(chat=True, template=ASKED),
                quoted=quoted,
                rollouts=4,
                sampling=Sampling(max_tokens=24, temperature=0.7),
                seed=seed,
            )
            print(f"{name}: {time.perf_counter() - start:.0f} s")
            found += figures(name, [measured(items, rows, errors, 4, seed)])
    return found


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="SmolLM2-135M-Instruct, measured instead of the lab")
    parser.add_argument("--problems", type=int, default=40, help="per seed; 40")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    if options.model:
        found = model_figures(options.model, options.problems, options.first_seed)
    else:
        found = lab_figures(options.problems, options.first_seed)
    if options.json:
        options.json.write_text(json.dumps({"figures": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
