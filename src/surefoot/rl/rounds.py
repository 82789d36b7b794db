"""Rounds of collecting data and fine-tuning: what imitation and expert iteration share.

In each round the policy writes solutions, some of the data is chosen to learn from, the policy is fine-tuned
on it, and evaluated on held-out problems, which choose the round whose policy is the result. Everything is
stored in the run directory, problem by problem, and depends on seed and round alone: a run that is killed
resumes and ends with the same weights.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections import Counter
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from surefoot.errors import RunError, TrainingError
from surefoot.io import JSON, Run, atomic_directory, atomic_file
from surefoot.models.engine.causal import load_causal
from surefoot.policies.devices import LOADING, Loading
from surefoot.policies.transformers import TransformersPolicy
from surefoot.protocols import Policy
from surefoot.records import Problem, Record, Trace, Usage
from surefoot.rl.audit import audit_policy
from surefoot.rl.config import RoundsConfig
from surefoot.rl.guards import fallen_rounds
from surefoot.rl.log import EvaluationRow, scalars
from surefoot.rl.rollouts import Task
from surefoot.training.cloning import (
    Demonstration,
    build_cloning_examples,
    clone_steps,
    longest_example,
)

Progress = Callable[[str, int, int], None]
"""Called with the name of the stage, the parts done and the parts in all."""

_SAMPLES_PER_SHARD = 256
"""A kill loses at most this many samples."""
_SEED_STRIDE = 1_000_003
"""Difference between the seeds of two rounds."""


class ProblemData(Record):
    """What a round collected for one problem."""

    problem_id: str
    traces: tuple[Trace, ...]
    """All solutions that were written."""
    demonstrations: tuple[Demonstration, ...]
    """What is learned from."""
    dropped: dict[str, int] = Field(default_factory=dict)
    """What is not, by reason."""
    usage: Usage = Usage()
    """Of the policy; tokens of scorers and experts count as verifier tokens."""


class Collector(Protocol):
    """Lets the policy write solutions, and chooses what to learn from: one record per problem, in order."""

    async def __call__(
        self, policy: Policy, problems: Sequence[Problem], *, number: int, seed: int
    ) -> list[ProblemData]:
        """``number`` counts the rounds that collect data, from 1; ``seed`` is the seed of the round."""


class RoundRow(BaseModel):
    """Result of a round; round 0 is the policy before training."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    round: int
    samples: int = 0
    """Solutions written in all rounds so far."""
    sampled: int = 0
    """Solutions written in this round."""
    learned: int = 0
    """Traces that were learned from, including earlier rounds."""
    decisions: int = 0
    """Steps and ends that were learned."""
    dropped: dict[str, int] = Field(default_factory=dict)
    usage: Usage = Usage()
    updates: int = 0
    tokens: int = 0
    """Read by the updates."""
    loss: float | None = None
    """Mean of the last 50 updates, nats per token."""
    evaluation: EvaluationRow | None = None
    stopped: str | None = None
    """Why the run ends with this round before its time."""


def best_round(rows: Sequence[RoundRow]) -> RoundRow:
    """The round whose policy is kept: the first with the highest held-out accuracy, else the last.

    Round 0, which trained nothing, is chosen only if it is the only one. Its accuracy was the ground of the
    choice, so it is too high on average: report one on other problems.
    """
    trained = rows[1:] or rows
    measured = [row for row in trained if row.evaluation]
    return max(measured, key=lambda row: row.evaluation.accuracy.value) if measured else trained[-1]  # type: ignore[union-attr]


def run_rounds(
    run: Run,
    policy: str | Path,
    task: Task,
    config: RoundsConfig,
    collect: Collector | None,
    progress: Progress,
    *,
    demonstrations: Sequence[Demonstration] = (),
    distinct: bool = False,
    loading: Loading = LOADING,
) -> list[RoundRow]:
    """Run or resume all rounds, from the checkpoint or hub name ``policy``; one row each, round 0 first.

    With ``demonstrations``, a first round learns from those alone; they stay part of the data. Without
    ``collect`` that is the only round. With ``distinct`` a text that several rounds collected is learned
    once.

    ``policy`` in the run directory comes from :func:`best_round`, ``round-N`` the policy after round N,
    ``curves.jsonl`` has the rows, ``pieces/collected-N.journal`` the sampled data. A round whose accuracy
    falls (``config.fall``, ``patience``) is the last one. Raises ``TrainingError`` if a round has nothing to
    learn, saying why.
    """
    rounds = _Rounds(run, policy, task, config, collect, progress, demonstrations, distinct, loading)
    rows = [rounds.start()]
    for number in range(1, bool(demonstrations) + (config.rounds if collect else 0) + 1):
        rows.append(rounds.round(number, rows))
        _write_curves(run.directory / "curves.jsonl", rows)
        if config.keep == "best":
            rounds.remove_all_but({best_round(rows).round, number})
        if rows[-1].stopped:
            break
    rounds.keep_best(rows)
    return rows


def _write_curves(path: Path, rows: Sequence[RoundRow]) -> None:
    """One flat JSON object per round; evaluation fields are named as in reinforcement learning."""
    with atomic_file(path) as stream:
        for row in rows:
            flat = row.model_dump(mode="json", exclude={"evaluation"}, exclude_none=True)
            if row.evaluation:
                flat |= {name: value for name, value in scalars(row.evaluation).items() if name not in flat}
            stream.write(json.dumps(flat).encode() + b"\n")


@dataclass(frozen=True)
class _Rounds:
    run: Run
    policy: str | Path
    task: Task
    config: RoundsConfig
    collect: Collector | None
    progress: Progress
    demonstrations: Sequence[Demonstration]
    distinct: bool
    loading: Loading

    def start(self) -> RoundRow:
        """Row 0: the policy before training."""
        if not self.run.done("round-0"):
            row = RoundRow(round=0, evaluation=self._evaluate(0, 0))
            self.run.finish("round-0", row.model_dump(mode="json"))
        return self._row(0)

    def round(self, number: int, before: Sequence[RoundRow]) -> RoundRow:
        """One round, from where it was interrupted; ``before`` are the rows of those before it."""
        if self.run.done(f"round-{number}"):
            return self._row(number)
        samples = before[-1].samples
        with self.run.timed("collect"):
            data = self._collect(number)
        if not self.run.done(f"train-{number}"):
            with self.run.timed("train"):
                self._train(number)
        sampled = sum(len(rollouts.traces) for rollouts in data)
        with self.run.timed("evaluate"):
            evaluation = self._evaluate(number, samples + sampled)
        training = self.run.result(f"train-{number}")
        dropped = Counter(training.pop("dropped"))
        for item in data:
            dropped.update(item.dropped)
        evaluations = [row.evaluation for row in before if row.evaluation]
        row = RoundRow(
            round=number,
            samples=samples + sampled,
            sampled=sampled,
            dropped=dict(dropped),
            usage=sum((item.usage for item in data), Usage()),
            evaluation=evaluation,
            stopped=fallen_rounds(
                [*evaluations, evaluation] if evaluation else [],
                fall=self.config.fall,
                patience=self.config.patience,
            ),
            **training,
        )
        self.run.finish(f"round-{number}", row.model_dump(mode="json"))
        return row

    def keep_best(self, rows: Sequence[RoundRow]) -> None:
        """``policy``: the weights of the best round, once all rounds are done."""
        best = best_round(rows)
        if not best.round or self.run.done("policy"):
            return
        with atomic_directory(self.run.directory / "policy") as new:
            shutil.copytree(self._checkpoint(best.round), new, dirs_exist_ok=True)
        self.run.finish("policy", {"round": best.round})
        if self.config.keep == "best":
            self.remove_all_but(set())

    def remove_all_but(self, numbers: Set[int]) -> None:
        """Delete the weights of all other rounds."""
        for number in range(1, self.config.rounds + 2):
            if number not in numbers:
                shutil.rmtree(self.run.directory / f"round-{number}", ignore_errors=True)

    def _collect(self, number: int) -> list[ProblemData]:
        """The round's data, including what an interrupted run collected; none in a round of
        demonstrations."""
        turn = number - bool(self.demonstrations)
        if self.collect is None or not turn:
            return []
        problems = self._problems(turn)
        size = max(1, _SAMPLES_PER_SHARD // self.config.samples)
        parts = [problems[start : start + size] for start in range(0, len(problems), size)]
        journal = self.run.journal(f"collected-{number}", ProblemData)
        missing = journal.missing(len(parts))
        stage = f"round {number}: sample"
        self.progress(stage, len(parts) - len(missing), len(parts))
        if not missing:
            return list(journal.read())
        policy, seed = self._policy(number - 1), self.config.seed + number * _SEED_STRIDE
        for part in missing:
            journal.write(part, asyncio.run(self.collect(policy, parts[part], number=turn, seed=seed)))
            self.progress(stage, part + 1, len(parts))
        return list(journal.read())

    def _problems(self, turn: int) -> list[Problem]:
        """All, or the turn's part of an order that the seed determines; it starts over at its end."""
        problems, count = list(self.task.problems), self.config.problems
        if count is None or count >= len(problems):
            return problems
        order = np.random.default_rng(self.config.seed).permutation(len(problems))
        first = (turn - 1) * count
        return [problems[order[at % len(problems)]] for at in range(first, first + count)]

    def _train(self, number: int) -> None:
        """Fine-tune, and record the result."""
        rounds = range(1, number + 1) if self.config.data == "all" else (number,)
        data = [record for n in rounds for record in self.run.journal(f"collected-{n}", ProblemData).read()]
        learned = [
            *(self.demonstrations if 1 in rounds else ()),
            *(demonstration for record in data for demonstration in record.demonstrations),
        ]
        learned = _distinct(learned) if self.distinct else learned
        if not learned:
            counts = sum((Counter(record.dropped) for record in data), Counter[str]())
            reasons = (
                ", ".join(f"{count} {reason}" for reason, count in counts.items()) or "nothing was written"
            )
            raise TrainingError(f"round {number} has nothing to learn: {reasons}")
        start = self._checkpoint(number - 1 if self.config.start == "last" else 0)
        model, tokenizer = load_causal(start, self.loading.in_float32())
        examples = build_cloning_examples(
            tokenizer,
            self.task.prompt,
            {problem.id: problem for problem in self.task.problems},
            learned,
            max_length=longest_example(model, self.config.max_length),
        )
        stage = f"round {number}: train"
        log = clone_steps(
            model,
            tokenizer,
            examples.examples,
            self.config.training.model_copy(update={"seed": self.config.seed}),
            self.run.directory / f"round-{number}",
            progress=lambda done, total, _loss: self.progress(stage, done, total),
        )
        tail = log.losses[-50:]
        result: dict[str, JSON] = {
            "learned": len(examples.examples),
            "decisions": sum(sample.decisions for sample in learned),
            "updates": len(log.losses),
            "tokens": log.tokens,
            "loss": sum(tail) / len(tail),
            "dropped": dict(examples.dropped),
        }
        self.run.finish(f"train-{number}", result)

    def _evaluate(self, number: int, samples: int) -> EvaluationRow | None:
        """The policy after ``number`` rounds on the held-out problems, with the same seed in every round."""
        task = self.task
        if not task.held_out:
            return None
        self.progress(f"round {number}: evaluate", 0, 1)
        audit = asyncio.run(
            audit_policy(
                self._policy(number),
                replace(task, scorer=None),
                update=number,
                samples=samples,
                n=self.config.evaluation_samples,
                seed=self.config.seed,
                sampling=self.config.sampling,
            )
        )
        self.progress(f"round {number}: evaluate", 1, 1)
        return audit.row

    def _policy(self, number: int) -> TransformersPolicy:
        return TransformersPolicy.from_pretrained(
            self._checkpoint(number), batch_size=self.config.batch_size, loading=self.loading
        )

    def _checkpoint(self, number: int) -> str | Path:
        return self.run.directory / f"round-{number}" if number else self.policy

    def _row(self, number: int) -> RoundRow:
        try:
            return RoundRow.model_validate(self.run.result(f"round-{number}"))
        except ValueError as error:
            raise RunError(f"{self.run.directory}: round {number} cannot be read: {error}") from error


def _distinct(demonstrations: Sequence[Demonstration]) -> list[Demonstration]:
    """Each text once, ignoring white space at its ends."""
    unique: dict[tuple[object, ...], Demonstration] = {}
    for demonstration in demonstrations:
        text = (demonstration.trace.text or "").strip()
        unique.setdefault(
            (demonstration.trace.problem_id, text, demonstration.steps, demonstration.end), demonstration
        )
    return list(unique.values())
