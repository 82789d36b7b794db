"""The loop: roll out, score, give credit, update, look, in rounds.

The trainer gets advantages at tokens and knows no algorithm: which rewards count is the credit rule's matter
(``surefoot.rl.credit``), what is taken off is the estimator's (``surefoot.rl.advantage``). Problems, samples
and minibatches depend on the seed and the number of the round alone, and a checkpoint holds weights,
optimisers and log, so a run that is killed goes on along the same curve.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from surefoot.errors import TrainingError
from surefoot.models.causal import save_causal
from surefoot.models.lora import add_adapter, has_adapter
from surefoot.policies.transformers import TransformersPolicy
from surefoot.protocols import Sampling
from surefoot.records import Problem
from surefoot.rl.actor import Reference
from surefoot.rl.advantage import Gae
from surefoot.rl.assess import Assessment, Judges, assess, within_band
from surefoot.rl.audit import audit_policy
from surefoot.rl.config import RLConfig
from surefoot.rl.credit.rule import FloatArray
from surefoot.rl.critic import Critic
from surefoot.rl.guards import stop_reason, watch
from surefoot.rl.log import RLLog, Seconds, UpdateRow, scalars
from surefoot.rl.online_prm import OnlinePRM
from surefoot.rl.rollouts import Rollout, Rollouts, roll_out
from surefoot.rl.rows import make_row
from surefoot.rl.samples import write_samples
from surefoot.rl.task import Server, Task
from surefoot.rl.update import Lesson, Updater
from surefoot.store import write_json
from surefoot.training.checkpoint import load_state, save_state
from surefoot.training.updates import recompute_activations
from surefoot.training.workers import Workers, open_workers

Progress = Callable[[int, int, UpdateRow], None]
"""Called with rounds done, rounds in all, and the newest row of the curves."""

DONE = "rl.json"
"""File that a finished run has."""

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
    if (directory / DONE).exists():
        return _finished(directory / DONE, config)
    _refuse_sharding()
    team = open_workers(config.report_to, config, directory)
    if config.problems % team.count:
        raise TrainingError(
            f"'problems' is {config.problems}: make it a multiple of the {team.count} processes"
        )
    loop = _Loop(model=model, tokenizer=tokenizer, task=task, config=config, directory=directory, team=team,
                 server=server)  # fmt: skip
    log = loop.resume()
    if not log.evaluations:
        loop.evaluate(0, log)
    for number in range(len(log.updates), config.updates):
        if log.stopped:
            break
        row = loop.round(number, log)
        if progress:
            progress(number + 1, config.updates, row)
    loop.finish(log)
    return log


def _refuse_sharding() -> None:
    for name in ("FSDP", "DEEPSPEED"):
        if os.environ.get(f"ACCELERATE_USE_{name}", "").lower() in ("1", "true"):
            raise TrainingError(
                f"{name} is not supported: every process draws samples from a whole model; launch without it"
            )


def _finished(path: Path, config: RLConfig) -> RLLog:
    """The log of a run that came to its end. Raises ``TrainingError`` if that was another one."""
    found = json.loads(path.read_text("utf-8"))
    before, wanted = RLConfig.model_validate(found["config"]).decisive, config.decisive
    if changed := [name for name, value in wanted.items() if before[name] != value]:
        raise TrainingError(
            f"{path.parent} holds a finished run of other settings ({', '.join(changed)}): give another "
            "directory, and its 'policy' to train on from there"
        )
    return RLLog.model_validate(found["log"])


class _Loop:
    """What the rounds share: models, optimisers, judges."""

    def __init__(
        self,
        *,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        task: Task,
        config: RLConfig,
        directory: Path,
        team: Workers,
        server: Server | None,
    ) -> None:
        self.task, self.config, self.directory, self.team, self.server = task, config, directory, team, server
        self.model, self.tokenizer = model, tokenizer
        shared: dict[str, Any] = {
            "tokens_per_pass": config.tokens_per_pass,
            "bf16": config.bf16,
            "gradient_checkpointing": config.gradient_checkpointing,
            "team": team,
        }
        if has_adapter(model):
            raise TrainingError(
                "the policy carries an adapter: merge it into its base (peft: merge_and_unload), save that "
                "and start from it"
            )
        online = critic = None
        if "log_ratios" in config.credit.needs:
            online = OnlinePRM.from_policy(
                model, tokenizer, config.online_prm, prompt=task.prompt, name=model.name_or_path, **shared
            )
        if config.advantage.needs_values:
            critic = Critic(model, config.critic, **shared)
        self.judges = Judges(scorer=task.scorer, online_prm=online, critic=critic)
        if config.lora:
            add_adapter(model, config.lora, seed=config.seed)
            for parameter in model.parameters():
                if parameter.requires_grad:  # small, and steps of 1e-6 vanish in a shorter type
                    parameter.data = parameter.data.float()
        if config.gradient_checkpointing:
            recompute_activations(model)
        model.eval()
        self.reference = None
        if config.objective.kl:
            self.reference = Reference(model, temperature=config.temperature, bf16=config.bf16)
        self.updater = Updater(model, config, team)  # which may move the policy to its process's device
        if self.reference:
            self.reference.to(model.device)
        self.policy = server.policy if server else TransformersPolicy(model, tokenizer, name="policy")
        self.seconds: dict[str, float] = {}

    # --- one round

    def round(self, number: int, log: RLLog) -> UpdateRow:
        """Round ``number`` (from 0): its row goes into ``log``, and with it what is due after it."""
        self.seconds = {}
        with self._timed("generation"):
            rollouts = self._roll_out(number)
        if not self.team.largest(int(any(rollouts.groups))):
            raise TrainingError(f"no rollout of round {number + 1} came: {rollouts.error}")
        groups = within_band(rollouts.groups, self.config.accuracy_band)
        with self._timed("scoring"):
            lessons, assessment = self._assess(groups)
        with self._timed("update"):
            statistics = self.updater.update(lessons, number)
            self._teach_judges(number, assessment)
            self._publish()
        row = make_row(
            rollouts,
            assessment,
            statistics,
            update=number + 1,
            samples=(number + 1) * self.config.problems * self.config.samples,
            learning_rate=self.updater.rate(number),
            kl=self.reference is not None,
            aggregation=self.task.aggregation,
            seconds=Seconds(**self.seconds),
            team=self.team,
        )
        log.updates.append(row)
        self._keep(number, assessment)
        done = number + 1
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
            self.save(log)
        return row

    def _roll_out(self, number: int) -> Rollouts:
        problems = self._problems(number)[self.team.rank :: self.team.count]
        return asyncio.run(
            roll_out(
                self.policy,
                problems,
                self.tokenizer,
                n=self.config.samples,
                seed=self.config.seed * 1_000_003 + number,
                segmenter=self.task.segmenter,
                grader=self.task.grader,
                prompt=self.task.prompt,
                sampling=self._sampling,
            )
        )

    def _problems(self, number: int) -> list[Problem]:
        """Those of round ``number``: different ones, in a new order every time through.

        What is left of a turn and fills no round is passed over: a problem that comes twice in a round would
        bring the same samples twice.
        """
        size, everything = self.config.problems, len(self.task.problems)
        turn, at = divmod(number, everything // size)
        order = np.random.default_rng([self.config.seed, turn]).permutation(everything)
        return [self.task.problems[int(index)] for index in order[at * size : (at + 1) * size]]

    def _assess(self, groups: list[list[Rollout]]) -> tuple[list[Lesson], Assessment]:
        flat, most = [rollout for group in groups for rollout in group], self.config.tokens_per_pass
        several = self.config.epochs * self.config.minibatches > 1
        kl = self.config.objective.kl
        old: Sequence[FloatArray | None] = [None] * len(flat)
        if several or (kl and kl.where == "reward"):
            old = self.updater.actor.logprobs(flat, tokens_per_pass=most)
        reference: Sequence[FloatArray | None] = [None] * len(flat)
        if self.reference:
            reference = self.reference.logprobs(flat, tokens_per_pass=most)
        penalty = None
        if kl and kl.where == "reward":
            penalty = [
                -kl.coefficient * (mine - theirs)
                for mine, theirs in zip(old, reference, strict=True)
                if mine is not None and theirs is not None
            ]
        assessment = assess(groups, self.judges, self.config, token_rewards=penalty)
        lessons = [
            Lesson(
                rollout=one.rollout,
                advantages=one.advantages,
                old_logprobs=mine if several else None,
                reference_logprobs=theirs,
            )
            for one, mine, theirs in zip(assessment.flat, old, reference, strict=True)
        ]
        return lessons, assessment

    def _teach_judges(self, number: int, assessment: Assessment) -> None:
        """Judges that learn beside the policy do so after their word was used."""
        if self.judges.online_prm:
            judged = [one for one in assessment.flat if one.rollout.trace.outcome is not None]
            if self._everyone_has(judged):
                self.judges.online_prm.learn(
                    [one.rollout for one in judged], [float(one.rollout.trace.outcome or 0) for one in judged]
                )
        advantage = self.config.advantage
        if self.judges.critic and isinstance(advantage, Gae):
            credited = [[one.credited for one in group] for group in assessment.groups]
            targets = [target for group in advantage.targets(credited) for target in group]
            taught = [
                (one.rollout, target, one.credited.values)
                for one, target in zip(assessment.flat, targets, strict=True)
                if target is not None and one.credited.values is not None
            ]
            if self._everyone_has(taught):
                self.judges.critic.learn(*map(list, zip(*taught, strict=True)), seed=number)

    def _everyone_has(self, some: Sequence[object]) -> bool:
        """Whether no process is without: a step of an optimiser takes all of them."""
        return -self.team.largest(-len(some)) > 0

    def _keep(self, number: int, assessment: Assessment) -> None:
        if self.config.keep_samples and self.team.rank == 0:
            path = self.directory / "samples" / f"{number + 1:06d}.jsonl"
            write_samples(path, number + 1, assessment.groups, self.config.keep_samples)

    # --- beside the rounds

    @property
    def _sampling(self) -> Sampling:
        return Sampling(temperature=self.config.temperature, max_tokens=self.config.max_tokens)

    @property
    def _trained(self) -> tuple[dict[str, nn.Parameter], list[torch.optim.Optimizer]]:
        """All that a checkpoint holds."""
        parameters = {f"policy/{name}": one for name, one in self.updater.parameters.items()}
        optimisers = [self.updater.optimiser]
        for kind, judge in (("online_prm", self.judges.online_prm), ("critic", self.judges.critic)):
            if judge is not None:
                parameters |= {f"{kind}/{name}": one for name, one in judge.parameters.items()}
                optimisers.append(judge.optimiser)
        return parameters, optimisers

    @property
    def _checkpoint(self) -> Path:
        return self.directory / "checkpoint.safetensors"

    def resume(self) -> RLLog:
        """The log so far, with weights and optimisers as they were then; an empty one at the beginning."""
        parameters, optimisers = self._trained
        self.team.wait()
        log = load_state(self._checkpoint, parameters, optimisers, RLLog)
        self._publish()  # the server may hold weights of later rounds, or of none
        return log

    def _publish(self) -> None:
        """The weights as they are now to the server, if there is one."""
        if self.server and self.team.rank == 0:
            self.server.publisher.publish(self.model, self.tokenizer, self.directory / "published")
        self.team.wait()

    def save(self, log: RLLog) -> None:
        """Checkpoint and curves."""
        parameters, optimisers = self._trained
        first = self.team.rank == 0
        save_state(self._checkpoint, parameters, optimisers, log, write=first)
        if first:
            log.write_curves(self.directory / "curves.jsonl")
        self.team.wait()

    def finish(self, log: RLLog) -> None:
        """The trained policy; the checkpoint, which is some times larger, goes."""
        self.save(log)
        if self.team.rank == 0:
            self._save_policy("policy")
            if self.judges.online_prm:
                self.judges.online_prm.save(self.directory / "online_prm")
            settings = self.config.model_dump(mode="json")
            write_json(self.directory / DONE, {"config": settings, "log": log.model_dump(mode="json")})
            self._checkpoint.unlink(missing_ok=True)
        self.team.wait()
        self.team.close()

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
                self._save_policy("best")  # where an alarm says to go back to
            self.team.report(
                {f"evaluation_{name}": value for name, value in scalars(audit.row).items()}, done
            )
        self.team.wait()

    def _save_policy(self, name: str) -> None:
        """Whole or as before, whenever the process is killed."""
        target = self.directory / name
        new = target.with_name(f"{name}.new")
        shutil.rmtree(new, ignore_errors=True)
        save_causal(self.model, self.tokenizer, new)
        shutil.rmtree(target, ignore_errors=True)
        new.rename(target)

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start
