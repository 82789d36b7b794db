"""The loop: roll out, score, give credit, update, look, in rounds.

The trainer gets advantages at tokens and knows no algorithm: which rewards count is the credit rule's matter
(``surefoot.rl.credit``), what is taken off is the estimator's (``surefoot.rl.advantage``). Problems, samples
and minibatches depend on the seed and the number of the round alone, and a checkpoint holds weights,
optimisers and log, so a run that is killed goes on along the same curve.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from surefoot.errors import TrainingError
from surefoot.policies.transformers import TransformersPolicy
from surefoot.protocols import Sampling
from surefoot.records import Problem
from surefoot.rl.assess import within_band
from surefoot.rl.audit import audit_policy
from surefoot.rl.config import RLConfig
from surefoot.rl.guards import stop_reason, watch
from surefoot.rl.log import RLLog, Seconds, UpdateRow, scalars
from surefoot.rl.rollouts import Rollouts, roll_out
from surefoot.rl.rows import make_row
from surefoot.rl.run_files import RunFiles, finished_log
from surefoot.rl.run_models import RunModels
from surefoot.rl.task import Server, Task
from surefoot.training.workers import Workers, open_workers

Progress = Callable[[int, int, UpdateRow], None]
"""Called with rounds done, rounds in all, and the newest row of the curves."""

_EVALUATION_SEED = 1_000_000_007  # apart from every round's


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

    Writes ``curves.jsonl`` (a row a round and a row an evaluation), ``samples/`` (rollouts for reading),
    ``best`` (the policy of the best evaluation after the start) and, at the end, ``rl.json`` with the whole
    log, of which :func:`surefoot.rl.report.write_report` makes a page; trackers get the rows too, those of
    evaluations under names with ``evaluation_``. Rollouts come from the model itself, or from ``server``.
    Goes on from ``directory/checkpoint.safetensors`` if there is one; a run that is finished gives its log
    and trains no more.

    Started in several processes (``accelerate launch``), each takes its share of a round's problems; what is
    taken over the batch (whitening, the scale of ``implicit``) is then of its share. A round in which some
    process has nothing to learn from is learned from by none.

    Raises ``TrainingError`` for a judge that the credit rule needs and the task lacks, for problems without a
    reference answer or fewer than a round has, for a policy that carries an adapter or weights in a short
    type, for a directory with a finished run of other settings, and for a loss or gradient that is not
    finite.
    """
    task.check(config)
    if (before := finished_log(directory, config)) is not None:
        return before
    _refuse_sharding()
    team = open_workers(config.report_to, config, directory)
    if config.problems % team.count:
        raise TrainingError(
            f"'problems' is {config.problems}: make it a multiple of the {team.count} processes"
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
                f"{name} is not supported: every process draws samples from a whole model; launch without it"
            )


class _Loop:
    """What the rounds share."""

    def __init__(
        self,
        *,
        task: Task,
        config: RLConfig,
        models: RunModels,
        files: RunFiles,
        team: Workers,
        server: Server | None,
    ) -> None:
        self.task, self.config, self.team, self.server = task, config, team, server
        self.models, self.files = models, files
        own = TransformersPolicy(models.model, models.tokenizer, name="policy", batch_size=config.batch_size)
        self.policy = server.policy if server else own
        self.seconds: dict[str, float] = {}

    def round(self, number: int, log: RLLog) -> UpdateRow:
        """Round ``number`` (from 0): its row goes into ``log``, and with it what is due after it."""
        self.seconds = {}
        with self._timed("generation"):
            rollouts = self._roll_out(number)
        if not self.team.largest(int(any(rollouts.groups))):
            raise TrainingError(f"no rollout of round {number + 1} came: {rollouts.error}")
        groups = within_band(rollouts.groups, self.config.accuracy_band)
        with self._timed("scoring"):
            lessons, assessment = self.models.assess(groups)
        with self._timed("update"):
            statistics = self.models.learn(lessons, assessment, number)
            self.publish()
        row = make_row(
            rollouts,
            assessment,
            statistics,
            update=number + 1,
            samples=(number + 1) * self.config.problems * self.config.samples,
            learning_rate=self.models.rate(number),
            kl=self.models.reference is not None,
            aggregation=self.task.aggregation,
            seconds=Seconds(**self.seconds),
            team=self.team,
        )
        log.updates.append(row)
        done = number + 1
        self.files.keep_samples(assessment, self.config.keep_samples, update=done)
        due = done % self.config.evaluate_every == 0 or done == self.config.updates
        if due:
            self.evaluate(done, log)
        log.alarms = watch(log.updates, log.evaluations, self.config.guards)
        log.stopped = stop_reason(log.alarms, self.config.guards)
        if self.team.largest(int(log.stopped is not None)):
            log.stopped = log.stopped or "the first process raised an alarm"
            if not due:
                self.evaluate(done, log)  # of the policy that is left
                log.alarms = watch(log.updates, log.evaluations, self.config.guards)
        self.team.report(scalars(row), done)
        if done % self.config.checkpoint_every == 0 or log.stopped:
            self.files.save(self.models, log)
        return row

    def _roll_out(self, number: int) -> Rollouts:
        problems = _problems_of(self.task.problems, self.config, number)[self.team.rank :: self.team.count]
        return asyncio.run(
            roll_out(
                self.policy,
                problems,
                self.models.tokenizer,
                n=self.config.samples,
                seed=self.config.seed * 1_000_003 + number,
                segmenter=self.task.segmenter,
                grader=self.task.grader,
                prompt=self.task.prompt,
                sampling=self._sampling,
            )
        )

    @property
    def _sampling(self) -> Sampling:
        return Sampling(temperature=self.config.temperature, max_tokens=self.config.max_tokens)

    def publish(self) -> None:
        """The weights as they are now to the server, if there is one."""
        if self.server and self.team.rank == 0:
            published = self.files.directory / "published"
            self.server.publisher.publish(self.models.model, self.models.tokenizer, published)
        self.team.wait()

    def evaluate(self, done: int, log: RLLog) -> None:
        """The held-out problems, always with the same random numbers, after ``done`` rounds."""
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
                )
            )
            log.evaluations.append(audit.row)
            if done and log.best is audit.row:
                self.files.save_policy(self.models, "best")  # where an alarm says to go back to
            self.team.report(
                {f"evaluation_{name}": value for name, value in scalars(audit.row).items()}, done
            )
        self.team.wait()

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start


def _problems_of(problems: Sequence[Problem], config: RLConfig, number: int) -> list[Problem]:
    """Those of round ``number``: different ones, in a new order every time through.

    What is left of a turn and fills no round is passed over: a problem that comes twice in a round would
    bring the same samples twice.
    """
    size, everything = config.problems, len(problems)
    turn, at = divmod(number, everything // size)
    order = np.random.default_rng([config.seed, turn]).permutation(everything)
    return [problems[int(index)] for index in order[at * size : (at + 1) * size]]
