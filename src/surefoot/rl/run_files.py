"""The files of a run: models, log, and rollouts for reading. Each is written atomically."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

import numpy as np
from pydantic_core import from_json

from surefoot.errors import TrainingError
from surefoot.io import atomic_directory, atomic_file, write_json
from surefoot.models.engine.causal import save_causal
from surefoot.rl.config import RLConfig
from surefoot.rl.log import RLLog, SampleRow
from surefoot.rl.rollouts import TrainingSample
from surefoot.rl.run_models import RunModels
from surefoot.training.checkpoint import load_state, save_state
from surefoot.training.distributed import Distributed

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
