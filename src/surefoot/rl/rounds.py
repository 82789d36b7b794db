"""Rounds of collecting data and fine-tuning: behaviour cloning and expert iteration.

In each round the policy writes solutions, some of the data is chosen to learn from, the policy is fine-tuned
on it, and evaluated on held-out problems, which choose the round whose policy is the result. Everything is
stored in the run directory, problem by problem, and depends on seed and round alone: a run that is killed
resumes and ends with the same weights.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from surefoot.errors import RunError, TrainingError
from surefoot.io import JSON, Run, atomic_directory
from surefoot.models.engine.causal import load_causal
from surefoot.policies.devices import LOADING, Loading
from surefoot.policies.transformers import TransformersPolicy
from surefoot.protocols import RUN_CHANNELS, Policy, ProblemTrace, TraceChannel
from surefoot.records import Problem, Record, Trace, Usage
from surefoot.rl.channels import reward_channels, trace_canaries
from surefoot.rl.config import RoundsConfig
from surefoot.rl.credit import Need, Outcome, Summed
from surefoot.rl.log import EvaluationRow, scalars
from surefoot.rl.loop import Judges, judge
from surefoot.rl.rollouts import Task, audit_policy
from surefoot.rl.sample import Sample
from surefoot.training.config import write_rows
from surefoot.training.sft import (
    Demonstration,
    build_cloning_examples,
    clone_steps,
    demonstrate,
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
    """Of the policy; tokens of scorers count as verifier tokens."""


class RoundRow(BaseModel):
    """Result of a round; round 0 is the policy before training."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    round: int
    samples: int = 0
    """Solutions written in all rounds so far."""
    sampled: int = 0
    """Solutions written in this round."""
    learned: int = 0
    """Traces that were learned from."""
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


def best_round(rows: Sequence[RoundRow]) -> RoundRow:
    """The round whose policy is kept: the first with the highest held-out accuracy, else the last.

    Round 0, which trained nothing, is chosen only if it is the only one. Its accuracy was the ground of the
    choice, so it is too high on average: report one on other problems.
    """
    trained = rows[1:] or rows
    measured = [row for row in trained if row.evaluation]
    return max(measured, key=lambda row: row.evaluation.accuracy.value) if measured else trained[-1]  # type: ignore[union-attr]


def _flat(row: RoundRow) -> dict[str, JSON]:
    flat = row.model_dump(mode="json", exclude={"evaluation"}, exclude_none=True)
    return flat | (scalars(row.evaluation) if row.evaluation else {}) | flat


@dataclass(frozen=True)
class Rounds:
    """Rounds from the checkpoint or hub name ``policy``, in the run directory.

    They learn from the ``demonstrations``, or without any from the policy's own good solutions.
    """

    run: Run
    policy: str | Path
    task: Task
    config: RoundsConfig
    progress: Progress
    demonstrations: Sequence[Demonstration] = ()
    loading: Loading = LOADING
    judges: Mapping[str, Collection[TraceChannel]] = field(default_factory=dict)
    """What chooses the data, and the channels that each says it reads."""

    def run_all(self) -> list[RoundRow]:
        """Run or resume all rounds; one row each, round 0 first.

        ``policy`` in the run directory comes from :func:`best_round`, ``round-N`` is the policy after round
        N, ``curves.jsonl`` has the rows, ``pieces/collected-N.journal`` the sampled data, and ``channels`` in
        the run's record what chose it (:class:`surefoot.rl.channels.RewardChannels`). Raises
        ``TrainingError`` if a round has nothing to learn, saying why.
        """
        if not self.run.done("round-0"):
            before = RoundRow(round=0, evaluation=self._evaluate(0, 0))
            self.run.finish("round-0", before.model_dump(mode="json"))
        rows = [self._row(0)]
        for number in range(1, self.config.rounds + 1):
            rows.append(self.round(number, rows))
            write_rows(self.run.directory / "curves.jsonl", map(_flat, rows))
        best = best_round(rows).round
        if best and not self.run.done("policy"):
            with atomic_directory(self.run.directory / "policy") as new:
                shutil.copytree(self._checkpoint(best), new, dirs_exist_ok=True)
            self.run.finish("policy", {"round": best})
        if not self.run.done("channels"):
            channels = reward_channels(self.judges, grade_reasoning=self.task.grade_reasoning)
            self.run.finish("channels", channels.model_dump(mode="json"))
        return rows

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
        row = RoundRow(
            round=number,
            samples=samples + sampled,
            sampled=sampled,
            dropped=dict(dropped),
            usage=sum((item.usage for item in data), Usage()),
            evaluation=evaluation,
            **training,
        )
        self.run.finish(f"round-{number}", row.model_dump(mode="json"))
        return row

    async def collect(self, policy: Policy, problems: Sequence[Problem], seed: int) -> list[ProblemData]:
        """The policy's own solutions, and what to learn from: one record per problem, in order."""
        task, config = self.task, self.config
        groups = await task.sample(policy, problems, n=config.samples, seed=seed, sampling=config.sampling)
        pairs = zip(problems, groups, strict=True)
        samples = [_sample(problem, trace) for problem, traces in pairs for trace in traces]
        # the steps of solutions with wrong answers do not matter
        right = [sample for sample in samples if _answer_fault(sample.trace) is None]
        rule = Summed() if task.scorer else Outcome()
        judges = Judges(scorer=task.scorer, grade_reasoning=task.grade_reasoning)
        judged = {sample.trace.id: sample for sample in await asyncio.to_thread(judge, right, rule, judges)}
        collected = []
        for problem, traces in zip(problems, groups, strict=True):
            of_problem = [judged.get(trace.id) or _sample(problem, trace) for trace in traces]
            chosen, dropped = select_solutions(
                of_problem, most=config.keep_solutions, threshold=config.threshold if task.scorer else None
            )
            usage = [use for sample in of_problem for use in (sample.trace.usage, sample.scorer_usage)]
            collected.append(
                ProblemData(
                    problem_id=problem.id,
                    traces=tuple(traces),
                    demonstrations=tuple(map(demonstrate, chosen)),
                    dropped=dict(dropped),
                    usage=sum(usage, Usage()),
                )
            )
        return collected

    def _collect(self, number: int) -> list[ProblemData]:
        """The round's data, including what an interrupted run collected; none of demonstrations."""
        if self.demonstrations:
            return []
        problems = self._problems(number)
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
            journal.write(part, asyncio.run(self.collect(policy, parts[part], seed)))
            self.progress(stage, part + 1, len(parts))
        return list(journal.read())

    def _problems(self, number: int) -> list[Problem]:
        """All, or the round's part of an order that the seed determines; it starts over at its end."""
        problems, count = list(self.task.problems), self.config.problems
        if count is None or count >= len(problems):
            return problems
        order = np.random.default_rng(self.config.seed).permutation(len(problems))
        first = (number - 1) * count
        return [problems[order[at % len(problems)]] for at in range(first, first + count)]

    def _train(self, number: int) -> None:
        data = list(self.run.journal(f"collected-{number}", ProblemData).read())
        learned = [*self.demonstrations, *(example for record in data for example in record.demonstrations)]
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
        row, _ = asyncio.run(
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
        return row

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


def clone(
    run: Run,
    policy: str | Path,
    task: Task,
    config: RoundsConfig,
    progress: Progress,
    demonstrations: Sequence[Demonstration],
    *,
    labelled: bool = False,
    loading: Loading = LOADING,
) -> list[RoundRow]:
    """Fine-tune on the ``demonstrations`` in one round: behaviour cloning (:class:`Rounds`).

    ``labelled``: labels chose the steps of the demonstrations. Raises ``TrainingError`` if there are none.
    """
    if not demonstrations:
        raise TrainingError("nothing to imitate: the traces hold no step to learn")
    once = config.model_copy(update={"rounds": 1})
    judges: dict[str, Collection[TraceChannel]] = {"labels": RUN_CHANNELS} if labelled else {}
    return Rounds(run, policy, task, once, progress, demonstrations, loading=loading, judges=judges).run_all()


def iterate(
    run: Run,
    policy: str | Path,
    task: Task,
    config: RoundsConfig,
    progress: Progress,
    *,
    loading: Loading = LOADING,
) -> list[RoundRow]:
    """Run or resume expert iteration in the run directory (:class:`Rounds`).

    Also known as rejection-sampling fine-tuning: STaR (Zelikman et al., arXiv 2203.14465), ReST-EM (Singh et
    al., arXiv 2312.06585), and the reinforcement learning of Uesato et al. (arXiv 2211.14275).

    Raises ``TrainingError`` for a threshold without a ``scorer`` in the task or the other way round, for
    problems without an answer, several samples at temperature 0, and a round in which no solution is kept.
    """
    if config.temperature == 0 and config.samples > 1:
        raise TrainingError(
            "'samples' is more than 1 at 'temperature' 0, where all samples are equal: raise the temperature"
        )
    if (task.scorer is None) != (config.threshold is None):
        raise TrainingError("'threshold' and a scorer of steps go together: one needs the other")
    if unanswered := [problem.id for problem in task.problems if problem.answer is None]:
        raise TrainingError(
            f"{len(unanswered)} problems have no 'answer', first {unanswered[0]}: no solution could be kept"
        )
    needs = frozenset[Need]({"outcome"} if task.scorer is None else {"outcome", "scores"})
    judges = task.reward_channels(needs).reads
    return Rounds(run, policy, task, config, progress, loading=loading, judges=judges).run_all()


def select_solutions(
    samples: Sequence[Sample], *, most: int, threshold: float | None = None
) -> tuple[list[Trace], Counter[str]]:
    """At most ``most`` different complete solutions with a correct answer, of one problem's ``samples``; and
    how many of the others were dropped, by reason.

    With a ``threshold`` every step that judges read must have at least that score; a step without a score
    fails. Two solutions with equal texts, ignoring white space at the ends, are one.
    """
    dropped: Counter[str] = Counter()
    good: list[tuple[float, Trace]] = []
    texts: set[str] = set()
    for sample in samples:
        worst = min((score for score in sample.scores if score is not None), default=0.0)
        reason, text = _answer_fault(sample.trace), (sample.trace.text or "").strip()
        if reason is None and threshold is not None:
            if worst < threshold and sample.scores.count(None) < len(sample.scores):
                reason = "correct answers with a step below the threshold"
            elif not sample.scores or None in sample.scores:
                reason = "correct answers with an unscored step"
        if reason is None and text in texts:
            reason = "duplicate solutions"
        if reason is None:
            texts.add(text)
            good.append((worst, sample.trace))
        else:
            dropped[reason] += 1
    good.sort(key=lambda pair: -pair[0])  # stable: ties stay in sampling order
    dropped["good solutions beyond the limit"] = max(0, len(good) - most)
    return [trace for _, trace in good[:most]], +dropped


def _sample(problem: Problem, trace: Trace) -> Sample:
    """A solution whose tokens are not known: each step counts as one."""
    ends = tuple(range(max(1, len(trace.steps))))
    item, pieces = ProblemTrace(problem=problem, trace=trace), trace_canaries(trace, problem.text)
    return Sample(item=item, tokens=len(ends), ends=ends, canaries=pieces)


def _answer_fault(trace: Trace) -> str | None:
    """Why the answer alone keeps a solution out."""
    if not trace.text:
        return "failed samples" if trace.error else "empty samples"
    if not trace.steps:
        return "solutions without a step"
    if trace.cut_off:
        return "solutions truncated at max_tokens" if trace.ending == "truncated" else "filtered solutions"
    if trace.outcome is None:
        return "solutions whose answer could not be judged"
    return None if trace.outcome else "wrong answers"
