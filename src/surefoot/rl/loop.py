"""The training loop: sample rollouts, score them, compute advantages, update, evaluate, in rounds.

The update reads advantages at tokens, whatever the algorithm: which rewards count is decided by the credit
rule (``surefoot.rl.credit``), which baseline is subtracted by the estimator (``surefoot.rl.advantage``).
Problems, samples and minibatches depend on the seed and the number of the round alone, and a checkpoint holds
weights, optimizers and log, so a run that is killed resumes along the same curve.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

import numpy as np
from pydantic_core import from_json
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from surefoot.errors import TrainingError
from surefoot.io import atomic_directory, atomic_file, write_json
from surefoot.models.engine.causal import save_causal
from surefoot.policies.transformers import TransformersPolicy
from surefoot.protocols import Sampling
from surefoot.records import Problem, Usage
from surefoot.rl.advantage import total_return
from surefoot.rl.audit import audit_policy, shape_of
from surefoot.rl.config import RLConfig
from surefoot.rl.credit import FloatArray
from surefoot.rl.guards import stop_reason, watch
from surefoot.rl.log import RLLog, SampleRow, Seconds, Shape, UpdateRow, scalars
from surefoot.rl.rollouts import (
    Rollout,
    RolloutBatch,
    TrainingSample,
    draw_groups,
    roll_out,
    roll_out_episodes,
)
from surefoot.rl.run_models import RunModels, within_band
from surefoot.rl.task import Server, Task
from surefoot.rl.update import UpdateStatistics
from surefoot.scores import trace_score
from surefoot.training.checkpoint import load_state, save_state
from surefoot.training.distributed import Distributed, open_distributed

Progress = Callable[[int, int, UpdateRow], None]
"""Called with rounds done, rounds in all, and the newest row of the curves."""

_EVALUATION_SEED = 1_000_000_007  # differs from the seed of every round


def train_policy(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    task: Task,
    config: RLConfig,
    directory: Path,
    *,
    server: Server | None = None,
    progress: Progress | None = None,
) -> RLLog:
    """Train ``model`` (a causal language model) and save it to ``directory/policy``; returns the log.

    Writes ``curves.jsonl`` (one row per round and one per evaluation), ``samples/`` (rollouts for reading),
    ``best`` (the policy of the best evaluation after the start) and, at the end, ``rl.json`` with the whole
    log, which :func:`surefoot.rl.report.write_report` turns into a page; trackers receive the rows too, those
    of evaluations with the prefix ``evaluation_``. Rollouts come from the model itself, or from ``server``.
    Resumes from ``directory/checkpoint.safetensors`` if there is one; for a finished run, returns its log.

    Started in several processes (``accelerate launch``), each takes its share of a round's problems;
    statistics of the batch (whitening, the scale of ``implicit``) are then computed on each share. If one
    process has nothing to learn from in a round, none learns from it.

    Raises ``TrainingError`` for a judge that the credit rule needs and the task lacks, for problems without a
    reference answer or fewer than a round needs, for a policy with an adapter or with 16-bit weights, for a
    directory with a finished run of other settings, and for a loss or gradient that is not finite.
    """
    task.check(config)
    if (finished := finished_log(directory, config)) is not None:
        return finished
    _refuse_sharding()
    team = open_distributed(config.report_to, config, directory)
    if config.problems % team.world_size:
        raise TrainingError(
            f"'problems' is {config.problems}: make it a multiple of the {team.world_size} processes"
        )
    if config.objective.sampler_cap is not None and server is None:
        raise TrainingError(
            "'objective.sampler_cap' corrects for a server that samples, but there is none: leave it out"
        )
    models = RunModels(model, tokenizer, task, config, team)
    files = RunFiles(directory, team)
    loop = _Loop(task=task, config=config, models=models, files=files, team=team, server=server)
    log = files.resume(models)
    loop.publish()  # the server may hold weights of later rounds, or of none
    if not log.evaluations:
        loop.evaluate(0, log)
    for number in range(len(log.updates), config.updates):
        if log.stopped:
            break
        row = loop.round(number, log)
        if progress:
            progress(number + 1, config.updates, row)
    files.finish(models, config, log)
    team.close()
    return log


def _refuse_sharding() -> None:
    for name in ("FSDP", "DEEPSPEED"):
        if os.environ.get(f"ACCELERATE_USE_{name}", "").lower() in ("1", "true"):
            raise TrainingError(
                f"{name} is not supported: every process samples from the whole model; launch without it"
            )


class _Loop:
    """State that the rounds share."""

    def __init__(
        self,
        *,
        task: Task,
        config: RLConfig,
        models: RunModels,
        files: RunFiles,
        team: Distributed,
        server: Server | None,
    ) -> None:
        self.task, self.config, self.team, self.server = task, config, team, server
        self.models, self.files = models, files
        local_policy = TransformersPolicy(
            models.model, models.tokenizer, name="policy", batch_size=config.batch_size
        )
        self.policy = server.policy if server else local_policy
        self.seconds: dict[str, float] = {}

    def round(self, number: int, log: RLLog) -> UpdateRow:
        """Run round ``number`` (from 0); its row is added to ``log``."""
        self.seconds = {}
        with self._timed("generation"):
            rollouts, groups = self._roll_out(number)
        if not self.team.all_reduce(float(any(rollouts.groups)), "max"):
            raise TrainingError(f"all rollouts of round {number + 1} failed: {rollouts.error}")
        with self._timed("scoring"):
            samples = self.models.training_samples(groups)
        with self._timed("update"):
            statistics = self.models.learn(samples, number)
            self.publish()
        row = self._row(number, log, rollouts, samples, statistics)
        log.updates.append(row)
        done = number + 1
        self.files.keep_samples(samples, self.config.keep_samples, update=done)
        due = done % self.config.evaluate_every == 0 or done == self.config.updates
        if due:
            self.evaluate(done, log)
        self._check_guards(done, log, evaluated=due)
        self.team.log(scalars(row), done)
        if done % self.config.checkpoint_every == 0 or log.stopped:
            self.files.save(self.models, log)
        return row

    def _check_guards(self, done: int, log: RLLog, *, evaluated: bool) -> None:
        log.alarms = watch(log.updates, log.evaluations, self.config.guards)
        log.stopped = stop_reason(log.alarms, self.config.guards)
        if self.team.all_reduce(float(log.stopped is not None), "max"):
            log.stopped = log.stopped or "the first process raised an alarm"
            if not evaluated:
                self.evaluate(done, log)  # a run that ends early still ends with an evaluation
                log.alarms = watch(log.updates, log.evaluations, self.config.guards)

    def _row(
        self,
        number: int,
        log: RLLog,
        rollouts: RolloutBatch,
        samples: Sequence[Sequence[TrainingSample]],
        statistics: UpdateStatistics,
    ) -> UpdateRow:
        """Row of round ``number``. All processes must call this together: counts and means are over all of
        them, seconds are of this one."""
        team = self.team
        sampled = [rollout for group in rollouts.groups for rollout in group]
        learned = [rollout for group in samples for rollout in group]
        outcomes = [float(item.trace.outcome) for item in sampled if item.trace.outcome is not None]
        proxies = [trace_score(sample.scored.scores, self.task.aggregation) for sample in learned]
        returns = [total_return(sample.scored) for sample in learned]
        advantages = np.concatenate([sample.advantages for sample in learned]) if learned else np.zeros(0)
        mean = _mean(advantages, team)
        variance = _mean((advantages - (mean or 0.0)) ** 2, team)
        unrewarded = sum(not any(stream.at for stream in sample.scored.rewards) for sample in learned)
        unscored = sum(sample.scored.scores.count(None) for sample in learned)
        scorer_usage = sum((sample.scorer_usage for sample in learned), Usage())
        usage = sum((rollout.trace.usage for rollout in sampled), scorer_usage)
        stepped = bool(statistics.steps)
        return UpdateRow(
            update=number + 1,
            samples=(log.updates[-1].samples if log.updates else 0) + _count(rollouts.requested, team),
            outcome=_mean(np.array(outcomes), team),
            proxy=_mean(np.array([proxy for proxy in proxies if proxy is not None]), team),
            reward=_mean(np.array([item for item in returns if item is not None]), team),
            advantage_mean=mean,
            advantage_std=None if variance is None else float(np.sqrt(variance)),
            loss=statistics.loss if stepped else None,
            kl=statistics.kl if stepped and self.models.reference is not None else None,
            clipped=statistics.clipped if stepped else None,
            entropy=statistics.entropy if stepped else None,
            gradient_norm=statistics.gradient_norm if stepped else None,
            learning_rate=self.models.rate(number),
            shape=_shape(shape_of([rollout.trace for rollout in sampled]), team),
            failed=_count(rollouts.failed, team),
            dropped=_count(unrewarded, team),
            filtered=_count(len(sampled) - len(learned), team),
            unscored_steps=_count(unscored, team),
            seconds=Seconds(**self.seconds),
            usage=Usage(**{name: _count(spent, team) for name, spent in usage.model_dump().items()}),
        )

    def _roll_out(self, number: int) -> tuple[RolloutBatch, list[list[Rollout]]]:
        """All rollouts of a round, and the groups that are learned from."""
        config, rank, world_size = self.config, self.team.rank, self.team.world_size
        problems = _problems_of(self.task.problems, config, number)
        return draw_groups(
            lambda some: self._sample(some, number),
            problems[rank::world_size],
            _others(self.task.problems, problems, config, number)[rank::world_size],
            useful=lambda groups: within_band(
                groups, config.accuracy_band, mixed=config.dynamic_sampling > 0
            ),
            again=config.dynamic_sampling,
        )

    def _sample(self, problems: Sequence[Problem], number: int) -> RolloutBatch:
        task, logprobs = self.task, self.config.objective.sampler_cap is not None
        seed = self.config.seed * 1_000_003 + number
        if task.environment is not None:
            return asyncio.run(
                roll_out_episodes(
                    self.policy,
                    problems,
                    self.models.tokenizer,
                    task.environment,
                    n=self.config.samples,
                    seed=seed,
                    sampling=self._sampling,
                    max_turns=task.max_turns,
                    logprobs=logprobs,
                    by_server=self.server is not None,
                )
            )
        return asyncio.run(
            roll_out(
                self.policy,
                problems,
                self.models.tokenizer,
                n=self.config.samples,
                seed=seed,
                segmenter=task.segmenter,
                grader=task.grader,
                prompt=task.prompt,
                sampling=self._sampling,
                logprobs=logprobs,
            )
        )

    @property
    def _sampling(self) -> Sampling:
        return Sampling(temperature=self.config.temperature, max_tokens=self.config.max_tokens)

    def publish(self) -> None:
        """Give the current weights to the server, if there is one."""
        if self.server and self.team.rank == 0:
            published = self.files.directory / "published"
            self.server.publisher.publish(self.models.model, self.models.tokenizer, published)
        self.team.barrier()

    def evaluate(self, done: int, log: RLLog) -> None:
        """Evaluate on the held-out problems after ``done`` rounds, always with the same seed."""
        temperature = self.config.evaluation_temperature
        temperature = self.config.temperature if temperature is None else temperature
        if self.team.rank == 0:
            audit = asyncio.run(
                audit_policy(
                    self.policy,
                    self.task.held_out,
                    update=done,
                    samples=log.updates[-1].samples if log.updates else 0,
                    n=self.config.evaluation_samples,
                    seed=_EVALUATION_SEED,
                    segmenter=self.task.segmenter,
                    grader=self.task.grader,
                    prompt=self.task.prompt,
                    sampling=replace(self._sampling, temperature=temperature),
                    proxy=self.task.scorer,
                    gold=self.task.gold,
                    aggregation=self.task.aggregation,
                    environment=self.task.environment,
                    max_turns=self.task.max_turns,
                )
            )
            log.evaluations.append(audit.row)
            if done and log.best is audit.row:
                self.files.save_policy(self.models, "best")  # which an alarm advises to return to
            self.team.log({f"evaluation_{name}": value for name, value in scalars(audit.row).items()}, done)
        self.team.barrier()

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start


def _problems_of(problems: Sequence[Problem], config: RLConfig, number: int) -> list[Problem]:
    """Problems of round ``number``: all different, in a new order each epoch.

    The remainder of an epoch that does not fill a round is skipped: a problem that occurred twice in a round
    would have the same samples twice.
    """
    size, count = config.problems, len(problems)
    epoch, at = divmod(number, count // size)
    order = np.random.default_rng([config.seed, epoch]).permutation(count)
    return [problems[int(index)] for index in order[at * size : (at + 1) * size]]


def _others(
    problems: Sequence[Problem], used: Sequence[Problem], config: RLConfig, number: int
) -> list[Problem]:
    """The problems that are not in round ``number``, in an order that depends on seed and round alone."""
    if not config.dynamic_sampling:
        return []
    excluded = {problem.id for problem in used}
    order = np.random.default_rng([config.seed, number, 1]).permutation(len(problems))
    return [problems[int(index)] for index in order if problems[int(index)].id not in excluded]


def _mean(values: FloatArray, team: Distributed) -> float | None:
    """Mean over the values of all processes; ``None`` if there are none."""
    count, sum_ = team.all_reduce(float(len(values))), team.all_reduce(float(np.sum(values)))
    return sum_ / count if count else None


def _count(value: int, team: Distributed) -> int:
    """Sum over all processes."""
    return round(team.all_reduce(float(value)))


def _shape(shape: Shape, team: Distributed) -> Shape:
    """Shape of the traces of all processes."""
    if team.world_size == 1:
        return shape
    steps = (shape.steps or 0.0) * shape.traces
    weights = {
        "tokens": shape.traces,
        "steps": shape.traces,
        "finished": shape.traces,
        "empty": steps,
        "repeated": steps,
    }
    means: dict[str, float | None] = {}
    for name, weight in weights.items():
        count = team.all_reduce(float(weight))
        sum_ = team.all_reduce(weight * (getattr(shape, name) or 0.0))
        # rounding must not push a share above 1
        means[name] = min(sum_ / count, 1.0 if name not in ("tokens", "steps") else np.inf) if count else None
    return Shape(traces=_count(shape.traces, team), **means)


_DONE = "rl.json"
"""Present in the directory of a finished run."""


class RunFiles:
    """Stores the models and the log of a run. Rank 0 writes; all processes must call the methods."""

    def __init__(self, directory: Path, team: Distributed) -> None:
        self.directory, self.team = directory, team

    def resume(self, models: RunModels) -> RLLog:
        """Restore weights and optimizers, and return the log so far; at the start an empty one."""
        parameters, optimisers = models.trained
        self.team.barrier()
        return load_state(self._checkpoint, parameters, optimisers, RLLog)

    def save(self, models: RunModels, log: RLLog) -> None:
        """Write checkpoint and curves."""
        parameters, optimisers = models.trained
        first = self.team.rank == 0
        save_state(self._checkpoint, parameters, optimisers, log, write=first)
        if first:
            log.write_curves(self.directory / "curves.jsonl")
        self.team.barrier()

    def finish(self, models: RunModels, config: RLConfig, log: RLLog) -> None:
        """Write the trained models and the whole log; the much larger checkpoint is deleted."""
        self.save(models, log)
        if self.team.rank == 0:
            self.save_policy(models, "policy")
            if models.judges.online_prm:
                models.judges.online_prm.save(self.directory / "online_prm")
            settings = config.model_dump(mode="json")
            write_json(self.directory / _DONE, {"config": settings, "log": log.model_dump(mode="json")})
            self._checkpoint.unlink(missing_ok=True)
        self.team.barrier()

    def keep_samples(self, groups: Sequence[Sequence[TrainingSample]], count: int, *, update: int) -> None:
        """Write at most ``count`` rollouts of round ``update`` (from 1): one of each problem, then a second
        one."""
        if not count or self.team.rank:
            return
        by_turn = [item for turn in zip_longest(*groups) for item in turn if item is not None]
        path = self.directory / "samples" / f"{update:06d}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as stream:
            for entry in by_turn[:count]:
                stream.write(_sample_row(update, entry).model_dump_json().encode() + b"\n")

    def save_policy(self, models: RunModels, name: str) -> None:
        """Save the current policy as ``name``; called by one process."""
        with atomic_directory(self.directory / name) as new:
            save_causal(models.model, models.tokenizer, new)

    @property
    def _checkpoint(self) -> Path:
        return self.directory / "checkpoint.safetensors"


def finished_log(directory: Path, config: RLConfig) -> RLLog | None:
    """Log of the finished run in ``directory``, if there is one.

    Raises ``TrainingError`` if that run had other settings.
    """
    path = directory / _DONE
    if not path.exists():
        return None
    try:
        finished = from_json(path.read_bytes())
        decisive = RLConfig.model_validate(finished["config"]).decisive
        log = RLLog.model_validate(finished["log"])
    except (ValueError, LookupError, TypeError) as error:
        raise TrainingError(f"{path} is damaged ({error!r:.200}): give another directory") from error
    if changed := [name for name, value in config.decisive.items() if decisive[name] != value]:
        raise TrainingError(
            f"{directory} holds a finished run with other settings ({', '.join(changed)}): give another "
            "directory; to train further, start from its 'policy'"
        )
    return log


def _sample_row(update: int, sample: TrainingSample) -> SampleRow:
    rollout = sample.rollout
    begins = (0, *(end + 1 for end in rollout.ends[:-1]))
    return SampleRow(
        update=update,
        problem=rollout.problem,
        trace=rollout.trace,
        scores=sample.scored.scores if rollout.trace.steps else (),
        advantages=tuple(
            # one token can be the last of two steps; the second step then has no other token
            float(np.mean(sample.advantages[min(begin, end) : end + 1]))
            for begin, end in zip(begins, rollout.ends, strict=True)
            if rollout.trace.steps
        ),
    )
