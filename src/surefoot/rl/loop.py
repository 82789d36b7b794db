"""The training loop, read downwards: sample rollouts, judge them, give credit, update, evaluate, in rounds.

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
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic_core import from_json
from torch import nn, optim
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from surefoot.errors import TrainingError
from surefoot.io import atomic_directory, write_json, write_records
from surefoot.models.engine.causal import save_causal
from surefoot.models.lora import add_adapter, has_adapter
from surefoot.policies.transformers import TransformersPolicy
from surefoot.protocols import Policy, Sampling, StepScorer
from surefoot.records import Problem, Usage
from surefoot.rl.advantage import Gae, total_return
from surefoot.rl.channels import heard, require_no_leak
from surefoot.rl.config import RLConfig
from surefoot.rl.credit import CreditRule, with_rewards
from surefoot.rl.learners import Actor, Critic, OnlinePRM, ReferencePolicy, Updater
from surefoot.rl.log import RLLog, SampleRow, UpdateRow, scalars, stop_reason, watch
from surefoot.rl.rollouts import RolloutBatch, Task, audit_policy, roll_out, score_steps, shape_of
from surefoot.rl.sample import FloatArray, RewardStream, Sample
from surefoot.rl.server_weights import ServerWeights
from surefoot.scores import trace_score
from surefoot.segment import visible_part
from surefoot.training.loop import load_state, save_state
from surefoot.training.optimisation import Distributed, open_distributed

Progress = Callable[[int, int, UpdateRow], None]
"""Called with rounds done, rounds in all, and the newest row of the curves."""

T = TypeVar("T")
_EVALUATION_SEED = 1_000_000_007  # differs from the seed of every round
_DONE = "rl.json"
"""Present in the directory of a finished run."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """A server that samples the rollouts, and how it receives new weights."""

    policy: Policy
    publisher: ServerWeights


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
    if os.environ.get("ACCELERATE_USE_DEEPSPEED", "").lower() in ("1", "true"):
        raise TrainingError("DeepSpeed is not supported: launch with DDP or FSDP")
    team = open_distributed(config.report_to, config, directory)
    if config.problems % team.world_size:
        raise TrainingError(
            f"'problems' is {config.problems}: make it a multiple of the {team.world_size} processes"
        )
    run = _Run(model, tokenizer, task, config, directory, team, server)
    run.publish()  # the server may hold weights of later rounds, or of none
    if not run.log.evaluations:
        run.evaluate(0)
    for number in range(len(run.log.updates), config.updates):
        if run.log.stopped:
            break
        row = run.round(number)
        if progress:
            progress(number + 1, config.updates, row)
    run.finish()
    team.close()
    return run.log


class _Run:
    """What the rounds share, and the files of the run. Every process calls the methods; rank 0 writes.

    Policy, reference, online reward model and critic start as copies of ``model``.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        task: Task,
        config: RLConfig,
        directory: Path,
        team: Distributed,
        server: Server | None,
    ) -> None:
        self.tokenizer, self.task, self.config, self.team, self.server = tokenizer, task, config, team, server
        self.directory, self.checkpoint = directory, directory / "checkpoint.safetensors"
        if has_adapter(model):
            raise TrainingError(
                "the policy carries an adapter: merge it into its base (peft: merge_and_unload), save that "
                "and start from it"
            )
        online = critic = None  # copies of the policy, before it gets an adapter
        if "log_ratios" in config.credit.needs:
            online = OnlinePRM.from_policy(model, tokenizer, config, team, prompt=task.prompt)
        if config.advantage.needs_values:
            critic = Critic(model, config, team)
        self.judges = Judges(
            scorer=task.scorer, online_prm=online, critic=critic, grade_reasoning=task.grade_reasoning
        )
        if config.lora:
            add_adapter(model, config.lora, seed=config.seed)
        model.eval()
        self.updater = Updater(model, config, team)  # may move the policy to its process's device
        self.whole: PreTrainedModel = self.updater.whole
        self.reader = Actor(self.whole, temperature=config.temperature, bf16=config.bf16)
        self.reference = None
        if config.objective.kl:
            self.reference = ReferencePolicy(self.whole, temperature=config.temperature, bf16=config.bf16)
        parts = {"policy": self.updater, "online_prm": online, "critic": critic}
        self.learners = {kind: part for kind, part in parts.items() if part is not None}
        local_policy = TransformersPolicy(
            self.whole, tokenizer, name="policy", batch_size=config.batch_size, bf16=config.bf16
        )
        self.policy = server.policy if server else local_policy
        self.sampling = Sampling(temperature=config.temperature, max_tokens=config.max_tokens)
        self.seconds: dict[str, float] = {}
        team.barrier()
        self.log = load_state(self.checkpoint, *self.trained, RLLog)
        for learner in self.learners.values():
            learner.follow()
        self.log.channels = task.reward_channels(config.credit.needs)

    @property
    def trained(self) -> tuple[dict[str, nn.Parameter], list[optim.Optimizer]]:
        """All that a checkpoint holds."""
        parameters = {
            f"{kind}/{name}": value
            for kind, part in self.learners.items()
            for name, value in part.parameters.items()
        }
        return parameters, [part.optimiser for part in self.learners.values()]

    def round(self, number: int) -> UpdateRow:
        """Run round ``number`` (from 0); its row is added to the log."""
        log, done = self.log, number + 1
        self.seconds = {}
        with self._timed("generation"):
            rollouts = self.sample(number)
        if not self.team.all_reduce(float(any(rollouts.groups)), "max"):
            raise TrainingError(f"all rollouts of round {done} failed: {rollouts.error}")
        with self._timed("scoring"):
            groups = within_band(rollouts.groups, self.config.accuracy_band)
            samples = training_samples(self.read(groups), self.judges, self.config)
        with self._timed("update"):
            statistics = self.learn(samples, number)
            self.publish()
        row = self._row(number, rollouts, samples, statistics)
        log.updates.append(row)
        if self.config.keep_samples and not self.team.rank:
            # one of each problem, then a second one
            by_turn = [item for turn in zip_longest(*samples) for item in turn if item is not None]
            rows = [_sample_row(done, item) for item in by_turn[: self.config.keep_samples]]
            (self.directory / "samples").mkdir(parents=True, exist_ok=True)
            write_records(self.directory / "samples" / f"{done:06d}.jsonl", rows)
        if done % self.config.evaluate_every == 0 or done == self.config.updates:
            self.evaluate(done)
        log.alarms = watch(log.evaluations, self.config.guards)
        log.stopped = stop_reason(log.alarms, self.config.guards)
        if self.team.all_reduce(float(log.stopped is not None), "max"):
            log.stopped = log.stopped or "the first process raised an alarm"
        self.team.log(scalars(row), done)
        if done % self.config.checkpoint_every == 0 or log.stopped:
            self.save()
        return row

    def sample(self, number: int) -> RolloutBatch:
        """The rollouts of round ``number``; each process has its share of the problems."""
        problems = _problems_of(self.task.problems, self.config, number)
        return asyncio.run(
            roll_out(
                self.policy,
                problems[self.team.rank :: self.team.world_size],
                self.tokenizer,
                self.task,
                n=self.config.samples,
                seed=self.config.seed * 1_000_003 + number,
                sampling=self.sampling,
                # a server gives them before the temperature
                logprobs=self.server is not None and self.config.temperature == 1,
                by_server=self.server is not None,
            )
        )

    def read(self, groups: Sequence[Sequence[Sample]]) -> list[list[Sample]]:
        """The samples with the log-probabilities that the loss reads, and with a KL penalty as reward."""
        samples, kl = [sample for group in groups for sample in group], self.config.objective.kl
        several = self.config.epochs * self.config.minibatches > 1
        in_reward = kl is not None and kl.where == "reward"
        if several or in_reward:
            mine = zip(samples, self._logprobs(self.reader, samples), strict=True)
            samples = [replace(sample, old_logprobs=logprobs) for sample, logprobs in mine]
        if self.reference:
            base = zip(samples, self._logprobs(self.reference, samples), strict=True)
            samples = [replace(sample, reference_logprobs=logprobs) for sample, logprobs in base]
        if kl is not None and in_reward:
            samples = [replace(sample, rewards=(_penalty(sample, kl.coefficient),)) for sample in samples]
        if not several:  # the loss then takes its own, which are the same
            samples = [replace(sample, old_logprobs=None) for sample in samples]
        return _regroup(samples, groups)

    def _logprobs(self, reader: Actor, samples: Sequence[Sample]) -> list[FloatArray]:
        """log π [T] of every sample's tokens, each turn of an episode after its own context."""
        turns = [sample.turns() for sample in samples]
        flat, most = [turn for of_sample in turns for turn in of_sample], self.config.microbatch_tokens
        logprobs = _regroup(reader.logprobs(flat, microbatch_tokens=most), turns)
        return [np.concatenate(of_sample) for of_sample in logprobs]

    def learn(self, groups: Sequence[Sequence[Sample]], number: int) -> dict[str, Any]:
        """The optimizer steps of round ``number`` (from 0): first the policy, then the judges.

        Judges that are trained with the policy learn after their rewards and values were used.
        """
        samples = [sample for group in groups for sample in group]
        statistics = self.updater.update([turn for sample in samples for turn in sample.turns()], number)
        online, critic, advantage = self.judges.online_prm, self.judges.critic, self.config.advantage
        judged = [sample for sample in samples if sample.outcome is not None]
        if online is not None and self._everyone_has(judged):
            online.learn(judged)
        if critic is not None and isinstance(advantage, Gae):
            targets = [target for group in advantage.targets(groups) for target in group]
            pairs = zip(samples, targets, strict=True)
            fitted = [replace(sample, returns=target) for sample, target in pairs if target is not None]
            if self._everyone_has(fitted):
                critic.learn(fitted, seed=number)
        return statistics

    def _everyone_has(self, some: Sequence[object]) -> bool:
        """Whether every process has some: all of them take part in an optimiser step."""
        return self.team.all_reduce(len(some), "min") > 0

    def _row(
        self,
        number: int,
        rollouts: RolloutBatch,
        samples: Sequence[Sequence[Sample]],
        statistics: dict[str, Any],
    ) -> UpdateRow:
        """Row of round ``number``: counts and means are over all processes, seconds are of this one."""
        gather = self.team.gather
        sampled = gather([rollout.trace for group in rollouts.groups for rollout in group])
        learned = gather([sample for group in samples for sample in group])
        failed = sum(gather([rollouts.failed]))
        advantages = np.concatenate([sample.learned() for sample in learned]) if learned else np.zeros(0)
        usage = sum((item.usage for item in sampled), Usage())
        learning = statistics if self.reference else {**statistics, "kl": None}
        earlier = self.log.updates[-1].samples if self.log.updates else 0
        return UpdateRow(
            update=number + 1,
            samples=earlier + len(sampled) + failed,
            outcome=_mean(trace.outcome for trace in sampled),
            proxy=_mean(trace_score(item.scores, self.task.aggregation) for item in learned),
            reward=_mean(total_return(item) for item in learned),
            advantage_mean=float(advantages.mean()) if len(advantages) else None,
            advantage_std=float(advantages.std()) if len(advantages) else None,
            **learning,
            learning_rate=self.updater.rate(number),
            shape=shape_of(sampled),
            failed=failed,
            dropped=sum(not any(stream.at for stream in item.rewards) for item in learned),
            filtered=len(sampled) - len(learned),
            unscored_steps=sum(item.scores.count(None) for item in learned),
            seconds=self.seconds,
            usage=sum((item.scorer_usage for item in learned), usage),
        )

    def publish(self) -> None:
        """Give the current weights to the server, if there is one."""
        if self.server and self.team.rank == 0:
            self.server.publisher.publish(self.whole, self.tokenizer, self.directory / "published")
        self.team.barrier()

    def evaluate(self, done: int) -> None:
        """Evaluate on the held-out problems after ``done`` rounds, always with the same seed."""
        temperature, log = self.config.evaluation_temperature, self.log
        sampling = self.sampling if temperature is None else replace(self.sampling, temperature=temperature)
        if self.team.rank == 0:
            row, _ = asyncio.run(
                audit_policy(
                    self.policy,
                    self.task,
                    update=done,
                    samples=log.updates[-1].samples if log.updates else 0,
                    n=self.config.evaluation_samples,
                    seed=_EVALUATION_SEED,
                    sampling=sampling,
                )
            )
            log.evaluations.append(row)
            if done and log.best is row:
                self._save_policy("best")  # which an alarm advises to return to
            self.team.log({f"evaluation_{name}": value for name, value in scalars(row).items()}, done)
        self.team.barrier()

    def save(self) -> None:
        """Write checkpoint and curves."""
        first = self.team.rank == 0
        save_state(self.checkpoint, *self.trained, self.log, write=first)
        if first:
            self.log.write_curves(self.directory / "curves.jsonl")
        self.team.barrier()

    def finish(self) -> None:
        """Write the trained models and the whole log; the much larger checkpoint is deleted."""
        self.save()
        if self.team.rank == 0:
            self._save_policy("policy")
            if self.judges.online_prm:
                self.judges.online_prm.save(self.directory / "online_prm")
            settings = self.config.model_dump(mode="json")
            write_json(self.directory / _DONE, {"config": settings, "log": self.log.model_dump(mode="json")})
            self.checkpoint.unlink(missing_ok=True)
        self.team.barrier()

    def _save_policy(self, name: str) -> None:
        with atomic_directory(self.directory / name) as new:
            save_causal(self.whole, self.tokenizer, new)

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[stage] = time.perf_counter() - start


def within_band(groups: Sequence[Sequence[Sample]], band: tuple[float, float] | None) -> list[list[Sample]]:
    """Groups whose share of correct rollouts is in ``band`` or unknown; empty groups are dropped.

    PRIME keeps shares in [0.2, 0.8]: a group that is all correct or all wrong says nothing about outcomes.
    """

    def fits(group: Sequence[Sample]) -> bool:
        outcomes = [rollout.trace.outcome for rollout in group]
        # an unknown outcome counts as wrong if another one is known
        if band is None or set(outcomes) <= {None}:
            return True
        return band[0] <= float(np.mean(list(map(bool, outcomes)))) <= band[1]

    return [list(group) for group in groups if group and fits(group)]


@dataclass(frozen=True, kw_only=True)
class Judges:
    """Models that say what samples are worth; a rule that needs one that is absent is refused."""

    scorer: StepScorer | None = None
    online_prm: OnlinePRM | None = None
    critic: Critic | None = None
    grade_reasoning: bool = False
    """Whether the scorer and ``online_prm`` read hidden reasoning."""


def judge(
    samples: Sequence[Sample], rule: CreditRule, judges: Judges, *, values: bool = False
) -> list[Sample]:
    """The samples with what ``rule`` reads of them: outcomes, step scores, log-ratios; and a critic's
    ``values``.

    Hidden reasoning is removed first, so ``ends`` are the ends of the steps that judges read. Raises
    ``TrainingError`` for a judge that is missing, and where reasoning is in a judge's input all the same.
    """
    read = [sample if judges.grade_reasoning else _without_reasoning(sample) for sample in samples]
    if not judges.grade_reasoning:
        by_environment = "outcome" in rule.needs
        require_no_leak(
            (heard(sample.item) if sample.contexts and by_environment else part.item, sample.canaries)
            for sample, part in zip(samples, read, strict=True)
        )
    judged = [
        replace(
            sample,
            ends=part.ends,
            whole_ends=() if part is sample else sample.ends,
            outcome=None if sample.trace.outcome is None else float(sample.trace.outcome),
        )
        for sample, part in zip(samples, read, strict=True)
    ]
    if "scores" in rule.needs:
        records = score_steps(_require(judges.scorer, "a step scorer"), [part.item for part in read])
        judged = [
            replace(sample, scores=record.scores, scorer_usage=record.usage)
            if record
            else replace(sample, scores=(None,))
            for sample, record in zip(judged, records, strict=True)
        ]
    if "log_ratios" in rule.needs:
        if not judges.grade_reasoning and any(sample.canaries for sample in samples):
            raise TrainingError(
                "an implicit reward model reads every token, hidden reasoning included, and these rollouts "
                "have some: ask for it with 'grade_reasoning', or choose another credit rule"
            )
        prm = _require(judges.online_prm, "an implicit reward model (online_prm)")
        ratios = prm.log_ratios(samples)
        judged = [replace(sample, log_ratios=ratio) for sample, ratio in zip(judged, ratios, strict=True)]
    if values:
        critics = _require(judges.critic, "a critic").values(samples)
        judged = [replace(sample, values=value) for sample, value in zip(judged, critics, strict=True)]
    return judged


def _without_reasoning(sample: Sample) -> Sample:
    """As judges may read it; tokens of reasoning belong to the step after them."""
    part = visible_part(sample.trace, opened=sample.reasoning_opened)
    if part.trace is sample.trace:
        return sample
    ends = (*(sample.ends[step] for step in part.steps[:-1]), sample.ends[-1])
    return replace(sample, item=replace(sample.item, trace=part.trace), ends=ends, states=())


def _require(judge: T | None, what: str) -> T:
    if judge is None:
        raise TrainingError(f"this credit rule or advantage estimator needs {what}, but there is none")
    return judge


def training_samples(
    groups: Sequence[Sequence[Sample]], judges: Judges, config: RLConfig
) -> list[list[Sample]]:
    """Judge the samples, give credit, subtract the baseline; ``groups`` are the samples of one problem each.

    Rewards that samples have already, such as a KL penalty, are added to the rule's. Raises
    ``TrainingError`` for a judge that is missing.
    """
    flat = [sample for group in groups for sample in group]
    judged = judge(flat, config.credit, judges, values=config.advantage.needs_values)
    credited = with_rewards(_regroup(judged, groups), config.credit)
    return [
        [replace(sample, advantages=array) for sample, array in zip(*pair, strict=True)]
        for pair in zip(credited, config.advantage.advantages(credited), strict=True)
    ]


def _regroup(flat: Sequence[T], groups: Sequence[Sequence[object]]) -> list[list[T]]:
    """``flat`` divided like ``groups``."""
    rollouts = iter(flat)
    return [[next(rollouts) for _ in group] for group in groups]


def _penalty(sample: Sample, coefficient: float) -> RewardStream:
    """The KL penalty as a reward of every token."""
    costs = -coefficient * (np.array(sample.old_logprobs) - np.array(sample.reference_logprobs))
    return RewardStream(at=tuple(range(sample.tokens)), values=tuple(costs.tolist()))


def _problems_of(problems: Sequence[Problem], config: RLConfig, number: int) -> list[Problem]:
    """Problems of round ``number``: all different, in a new order each epoch.

    The remainder of an epoch that does not fill a round is skipped: a problem that occurred twice in a round
    would have the same samples twice.
    """
    size = config.problems
    epoch, at = divmod(number, len(problems) // size)
    order = np.random.default_rng([config.seed, epoch]).permutation(len(problems))
    return [problems[int(index)] for index in order[at * size : (at + 1) * size]]


def _mean(values: Iterator[float | None]) -> float | None:
    """Mean of the known values; ``None`` if there are none."""
    present = [value for value in values if value is not None]
    return float(np.mean(present)) if present else None


def _sample_row(update: int, sample: Sample) -> SampleRow:
    ends, scores, count = sample.step_ends, sample.scores, len(sample.trace.steps)
    begins = (0, *(end + 1 for end in ends[:-1]))
    if 0 < len(scores) < count:  # steps of reasoning were not graded
        visible = visible_part(sample.trace, opened=sample.reasoning_opened).steps
        by_step = dict(zip(visible, scores, strict=False))
        scores = tuple(by_step.get(step) for step in range(count))
    return SampleRow(
        update=update,
        problem=sample.problem,
        trace=sample.trace,
        scores=scores if count else (),
        advantages=tuple(
            # one token can be the last of two steps; the second step has only that token
            float(np.mean(sample.learned()[min(begin, end) : end + 1]))
            for begin, end in zip(begins, ends, strict=True)
            if count
        ),
    )


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
