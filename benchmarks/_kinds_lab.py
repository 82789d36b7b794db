"""Data of ``benchmarks/kinds.py``: what one seed samples and labels in the lab, kept in its run directory."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from surefoot.answers import Grader
from surefoot.io import Run
from surefoot.lab import ExactLabeller, generate_problems
from surefoot.labelling import Estimate, MonteCarloLabeller, advantage_labels, progress_labels, start_values
from surefoot.policies import PromptFormat, TransformersPolicy, sample_traces
from surefoot.protocols import LabelledTrace, ProblemTrace, SampleRequest, Sampling
from surefoot.records import Problem, Record, Step, StepLabel, StepPair, Trace
from surefoot.segment import Line

R = TypeVar("R", bound=Record)

SAMPLES = 2
"""Traces of a training problem."""
ROLLOUTS = 4
"""From each prefix, for the Monte Carlo values."""
START_DRAWS = 8
"""Plain samples of a problem, for its value before the first step."""
PROVER = 4
"""The advantages are those of a best-of-4 prover."""
SAMPLING = Sampling(max_tokens=96)
RIVAL_SEED, START_SEED, TEST_SEED, DEV_SEED = 1_000_000, 2_000_000, 3_000_000, 4_000_000


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Problems and traces of one seed."""

    traces: tuple[int, ...] = (40, 200, 1000)
    """Labelled traces; every set holds the smaller ones."""
    test_problems: int = 200
    dev_problems: int = 100
    samples: int = 4
    """Traces of a test or development problem; the generative verifier, which is slow, reads the first."""
    epochs: int = 4
    shard: int = 50
    draws: int = 500
    """Of the bootstrap."""

    def __post_init__(self) -> None:
        if not self.traces or any(count < SAMPLES or count % SAMPLES for count in self.traces):
            raise SystemExit(f"--traces: positive multiples of {SAMPLES}, the traces of a problem")

    @property
    def train_problems(self) -> int:
        return max(self.traces) // SAMPLES


QUICK = Sizes(traces=(100,), test_problems=60, dev_problems=30, draws=200)


@dataclass(frozen=True, kw_only=True)
class Split:
    """Held-out traces and their truth."""

    items: list[ProblemTrace]
    truth: list[list[float | None]]
    """A trace's steps: 1 right (a restatement counts as right), -1 wrong, ``None`` after the first error."""

    @cached_property
    def firsts(self) -> list[int]:
        return [row.index(-1.0) if -1.0 in row else -1 for row in self.truth]

    def heads(self) -> list[ProblemTrace]:
        """The first trace of each problem."""
        return list({item.problem.id: item for item in reversed(self.items)}.values())[::-1]


class Lab:
    """One seed: what is sampled, labelled, trained and scored, in its run directory."""

    def __init__(self, run: Run, seed: int, sizes: Sizes, policy: TransformersPolicy, grader: Grader) -> None:
        self.run, self.seed, self.sizes, self.policy, self.grader = run, seed, sizes, policy, grader
        self.began = time.perf_counter()
        test = generate_problems(sizes.test_problems, seed=TEST_SEED + seed)
        dev = generate_problems(sizes.dev_problems, seed=DEV_SEED + seed, exclude=test)
        self.problems = generate_problems(sizes.train_problems, seed=seed, exclude=[*test, *dev])
        self.held = {"dev": self._split("dev", dev), "test": self._split("test", test)}

    def say(self, text: str) -> None:
        print(f"{time.perf_counter() - self.began:6.0f} s  seed {self.seed}: {text}", flush=True)

    def pieces(
        self, stage: str, record: type[R], rows: Sequence[Any], work: Callable[[Any], Iterable[R]]
    ) -> list[R]:
        """Do the pieces of ``rows`` that are missing; all records in order."""
        size = self.sizes.shard
        chunks = [rows[start : start + size] for start in range(0, len(rows), size)]
        journal = self.run.journal(stage, record)
        for number in journal.missing(len(chunks)):
            with self.run.timed(stage):
                journal.write(number, work(chunks[number]))
            self.say(f"{stage} {number + 1}/{len(chunks)}")
        return list(journal.read())

    def sample(self, stage: str, problems: list[Problem], count: int, seed: int) -> list[Trace]:
        def work(some: list[Problem]) -> Iterator[Trace]:
            found = sample_traces(
                self.policy,
                some,
                n=count,
                seed=seed,
                segmenter=Line(),
                grader=self.grader,
                sampling=SAMPLING,
            )
            return itertools.chain.from_iterable(asyncio.run(found))

        return self.pieces(stage, Trace, problems, work)

    def _split(self, name: str, problems: list[Problem]) -> Split:
        items = paired(problems, self.sample(name, problems, self.sizes.samples, self.seed))
        rows = asyncio.run(ExactLabeller().label(items))
        truth = [[1.0 if label.value == 0.0 else label.value for label in row] for row in rows]
        return Split(items=items, truth=truth)

    @cached_property
    def items(self) -> list[ProblemTrace]:
        """Training traces, ``SAMPLES`` of each problem."""
        return paired(self.problems, self.sample("train", self.problems, SAMPLES, self.seed))

    def first(self, count: int) -> tuple[list[Problem], list[ProblemTrace]]:
        """The problems of the first ``count`` training traces, and those that have steps."""
        problems = self.problems[: count // SAMPLES]
        known = {problem.id for problem in problems}
        return problems, [item for item in self.items if item.problem.id in known]

    @cached_property
    def values(self) -> dict[str, list[StepLabel]]:
        """Soft Monte Carlo labels of the training traces, by trace."""
        by_trace: dict[str, list[StepLabel]] = defaultdict(list)
        for label in self.pieces("values", StepLabel, self.items, self._roll):
            by_trace[label.trace_id].append(label)
        return by_trace

    def _roll(self, items: Sequence[ProblemTrace]) -> list[StepLabel]:
        labeller = MonteCarloLabeller(
            policy=self.policy,
            grader=self.grader,
            estimate=Estimate(rollouts=ROLLOUTS),
            sampling=SAMPLING,
            seed=self.seed,
        )
        return [label for row in asyncio.run(labeller.label(items)) for label in row]

    @cached_property
    def pairs(self) -> list[StepPair]:
        """Rival steps after one prefix with unequal values."""
        return self.pieces("pairs", StepPair, self.problems, self._pairs)

    def _pairs(self, problems: list[Problem]) -> list[StepPair]:
        """Of each prefix of value above 0 one more step is drawn, and rolled out if it is a new one."""
        known = {problem.id: problem for problem in problems}
        steps: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
        for item in self.items:
            alive = item.problem.id in known
            for label in self.values[item.trace.id]:
                if alive and label.value is not None:
                    key = (item.problem.id, item.trace.prefix(label.step))
                    steps[key][item.trace.step_text(label.step)] = label.value
                alive = alive and bool(label.value)
        stubs, places = self._rivals(known, steps)
        for stub, label, key in zip(stubs, self._roll(stubs), places, strict=True):
            if label.value is not None:
                steps[key][(stub.trace.text or "")[len(key[1]) :]] = label.value
        return [
            StepPair(
                problem_id=problem,
                prefix=prefix,
                better=better,
                worse=worse,
                better_value=values[better],
                worse_value=values[worse],
                source="rival-steps",
            )
            for (problem, prefix), values in steps.items()
            for better, worse in itertools.permutations(values, 2)
            if values[better] > values[worse]
        ]

    def _rivals(
        self, problems: dict[str, Problem], steps: dict[tuple[str, str], dict[str, float]]
    ) -> tuple[list[ProblemTrace], list[tuple[str, str]]]:
        """New steps after known prefixes, each as an unfinished trace of one long step, with its place."""
        line = Sampling(max_tokens=24, stop=("\n",))
        requests = [
            SampleRequest(
                prompt=PromptFormat().render(problems[problem]),
                prefix=prefix,
                seed=RIVAL_SEED + self.seed,
                sampling=line,
            )
            for problem, prefix in steps
        ]
        stubs, places = [], []
        results = asyncio.run(self.policy.sample(requests))
        for (problem, prefix), result in zip(list(steps), results, strict=True):
            for text in {completion.text for completion in result.completions} - set(steps[problem, prefix]):
                if not text.endswith("\n"):
                    continue
                whole = prefix + text
                stub = Trace(
                    problem_id=problem,
                    text=whole,
                    steps=(Step(start=0, end=len(whole)),),
                    finish_reason="length",
                )
                stubs.append(ProblemTrace(problem=problems[problem], trace=stub))
                places.append((problem, prefix))
        return stubs, places

    @cached_property
    def start(self) -> dict[str, float]:
        """Value of each training problem before the first step, from samples of its own."""
        return start_values(self.sample("start", self.problems, START_DRAWS, START_SEED + self.seed))

    def labelled(self, kind: str, count: int) -> list[LabelledTrace]:
        """The first traces with the labels that ``kind`` trains on."""
        _, items = self.first(count)
        if kind in ("exact", "generative"):
            after = "wrong" if kind == "exact" else "unlabelled"
            rows = asyncio.run(ExactLabeller(after_error=after).label(items))  # type: ignore[arg-type]
        else:
            rows = [self.values[item.trace.id] for item in items]
        made = [
            LabelledTrace(problem=item.problem, trace=item.trace, labels=tuple(row))
            for item, row in zip(items, rows, strict=True)
        ]
        if kind not in ("pav", "progress"):
            return made
        if kind == "pav":
            rows = advantage_labels(made, start=self.start, best_of=PROVER)
        else:
            rows = progress_labels(made, start=self.start)
        return [
            LabelledTrace(problem=item.problem, trace=item.trace, labels=tuple(row))
            for item, row in zip(items, rows, strict=True)
        ]


def paired(problems: list[Problem], traces: list[Trace]) -> list[ProblemTrace]:
    """Traces that have steps, with their problems."""
    known = {problem.id: problem for problem in problems}
    return [ProblemTrace(problem=known[t.problem_id], trace=t) for t in traces if t.steps]
