"""Rounds of gathering and fine-tuning: what imitation and expert iteration share.

A round lets the policy write, has something chosen of it that is worth learning, fine-tunes on that, and
looks at held-out problems. Everything is kept in the run directory, problem by problem, and depends on seed
and round alone: a run that is killed goes on and comes to the same weights.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from surefoot.errors import RunError, TrainingError
from surefoot.io import JSON, Run
from surefoot.models.causal import load_causal
from surefoot.policies.transformers import TransformersPolicy
from surefoot.records import Problem, Usage
from surefoot.rl.audit import audit_policy
from surefoot.rl.exercise import Exercise, RoundsConfig
from surefoot.rl.gathering import Gather, Gathered, Turn
from surefoot.rl.log import EvaluationRow
from surefoot.rl.round_rows import RoundRow, write_curves
from surefoot.training.cloning import (
    Demonstration,
    build_cloning_examples,
    clone_steps,
    longest_example,
)

Progress = Callable[[str, int, int], None]
"""Called with the stage's name, the pieces done and the pieces in all."""

_PIECE = 256
"""Samples of one piece of gathering: what a kill can cost."""
_SEEDS = 1_000_003
"""Distance of the seeds of two rounds."""


def run_rounds(
    run: Run,
    exercise: Exercise,
    config: RoundsConfig,
    gather: Gather | None,
    progress: Progress,
    *,
    given: Sequence[Demonstration] = (),
    distinct: bool = False,
) -> list[RoundRow]:
    """Do or finish all rounds; one row each, the policy as it was first.

    With ``given`` there is a round before the others that learns from that alone; it is part of the data of
    all rounds. Without ``gather`` it is the only one. With ``distinct`` a text that several rounds gathered
    is learned once.

    ``round-N`` in the run directory is the policy after round N, ``curves.jsonl`` has the rows,
    ``shards/gathered-N`` what was written and learned. Raises ``TrainingError`` if a round finds nothing to
    learn, saying why.
    """
    work = _Work(run, exercise, config, gather, progress, given, distinct)
    rows = [work.start()]
    for number in range(1, bool(given) + (config.rounds if gather else 0) + 1):
        rows.append(work.round(number, rows[-1].samples))
        write_curves(run.directory / "curves.jsonl", rows)
        if config.keep == "last" and number > 1:
            shutil.rmtree(run.directory / f"round-{number - 1}", ignore_errors=True)
    return rows


@dataclass(frozen=True)
class _Work:
    run: Run
    exercise: Exercise
    config: RoundsConfig
    gather: Gather | None
    progress: Progress
    given: Sequence[Demonstration]
    distinct: bool

    def start(self) -> RoundRow:
        """Row 0: the policy as it was."""
        if not self.run.done("round-0"):
            row = RoundRow(round=0, evaluation=self._evaluate(0, 0))
            self.run.finish("round-0", row.model_dump(mode="json"))
        return self._row(0)

    def round(self, number: int, samples: int) -> RoundRow:
        """One round, from where it was left; ``samples`` were drawn before it."""
        if self.run.done(f"round-{number}"):
            return self._row(number)
        with self.run.timed("gather"):
            found = self._gather(number)
        if not self.run.done(f"train-{number}"):
            with self.run.timed("train"):
                self._train(number)
        drawn = sum(len(one.drawn) for one in found)
        with self.run.timed("evaluate"):
            evaluation = self._evaluate(number, samples + drawn)
        trained = self.run.result(f"train-{number}")
        dropped = Counter(trained.pop("dropped"))
        for one in found:
            dropped.update(one.dropped)
        row = RoundRow(
            round=number,
            samples=samples + drawn,
            drawn=drawn,
            dropped=dict(dropped),
            usage=sum((one.usage for one in found), Usage()),
            evaluation=evaluation,
            **trained,
        )
        self.run.finish(f"round-{number}", row.model_dump(mode="json"))
        return row

    def _gather(self, number: int) -> list[Gathered]:
        """The round's solutions, those of an earlier start among them; none in a round of what was given."""
        turn = number - bool(self.given)
        if self.gather is None or not turn:
            return []
        problems = self._problems(turn)
        size = max(1, _PIECE // self.config.samples)
        pieces = [problems[start : start + size] for start in range(0, len(problems), size)]
        shards = self.run.shards(f"gathered-{number}", Gathered)
        missing = shards.missing(len(pieces))
        stage = f"round {number}: write"
        self.progress(stage, len(pieces) - len(missing), len(pieces))
        if not missing:
            return list(shards.read())
        policy, seed = self._policy(number - 1), self.config.seed + number * _SEEDS
        for piece in missing:
            part = Turn(policy=policy, problems=pieces[piece], number=turn, seed=seed)
            shards.write(piece, asyncio.run(self.gather(part)))
            self.progress(stage, piece + 1, len(pieces))
        return list(shards.read())

    def _problems(self, turn: int) -> list[Problem]:
        """All, or the turn's part of an order that the seed gives; it begins anew at its end."""
        problems, count = list(self.exercise.problems), self.config.problems
        if count is None or count >= len(problems):
            return problems
        order = np.random.default_rng(self.config.seed).permutation(len(problems))
        first = (turn - 1) * count
        return [problems[order[at % len(problems)]] for at in range(first, first + count)]

    def _train(self, number: int) -> None:
        """Fine-tune, and note what was learned."""
        rounds = range(1, number + 1) if self.config.data == "all" else (number,)
        gathered = [one for n in rounds for one in self.run.shards(f"gathered-{n}", Gathered).read()]
        given = self.given if 1 in rounds else ()
        shown = [*given, *(one for record in gathered for one in record.shown)]
        shown = _distinct(shown) if self.distinct else shown
        if not shown:
            counts = sum((Counter(record.dropped) for record in gathered), Counter[str]())
            reasons = (
                ", ".join(f"{count} {reason}" for reason, count in counts.items()) or "nothing was written"
            )
            raise TrainingError(f"round {number} found nothing to learn: {reasons}")
        before = self._checkpoint(number - 1 if self.config.start == "last" else 0)
        model, tokenizer = load_causal(before, dtype="float32", trust_remote_code=False)
        data = build_cloning_examples(
            tokenizer,
            self.exercise.prompt,
            {problem.id: problem for problem in self.exercise.problems},
            shown,
            max_length=longest_example(model, self.config.max_length),
        )
        stage = f"round {number}: learn"
        log = clone_steps(
            model.to(self.exercise.device),
            tokenizer,
            data.examples,
            self.config.training.model_copy(update={"seed": self.config.seed}),
            self.run.directory / f"round-{number}",
            progress=lambda done, total, _loss: self.progress(stage, done, total),
        )
        tail = log.losses[-50:]
        found: dict[str, JSON] = {
            "learned": len(data.examples),
            "decisions": sum(one.decisions for one in shown),
            "updates": len(log.losses),
            "tokens": log.tokens,
            "loss": sum(tail) / len(tail),
            "dropped": dict(data.dropped),
        }
        self.run.finish(f"train-{number}", found)

    def _evaluate(self, number: int, samples: int) -> EvaluationRow | None:
        """The policy after ``number`` rounds on the held-out problems: the same draws for every round."""
        exercise = self.exercise
        if not exercise.held_out:
            return None
        self.progress(f"round {number}: look", 0, 1)
        audit = asyncio.run(
            audit_policy(
                self._policy(number),
                exercise.held_out,
                update=number,
                samples=samples,
                n=self.config.evaluation_samples,
                seed=self.config.seed,
                segmenter=exercise.segmenter,
                grader=exercise.grader,
                prompt=exercise.prompt,
                sampling=self.config.sampling,
                gold=exercise.gold,
            )
        )
        self.progress(f"round {number}: look", 1, 1)
        return audit.row

    def _policy(self, number: int) -> TransformersPolicy:
        exercise = self.exercise
        return TransformersPolicy.from_pretrained(
            self._checkpoint(number), batch_size=exercise.batch_size, device=exercise.device
        )

    def _checkpoint(self, number: int) -> str | Path:
        return self.run.directory / f"round-{number}" if number else self.exercise.policy

    def _row(self, number: int) -> RoundRow:
        try:
            return RoundRow.model_validate(self.run.result(f"round-{number}"))
        except ValueError as error:
            raise RunError(f"{self.run.directory}: round {number} cannot be read: {error}") from error


def _distinct(shown: Sequence[Demonstration]) -> list[Demonstration]:
    """Each text once, white space at its ends aside."""
    found: dict[tuple[object, ...], Demonstration] = {}
    for one in shown:
        text = (one.trace.text or "").strip()
        found.setdefault((one.trace.problem_id, text, one.steps, one.end), one)
    return list(found.values())
