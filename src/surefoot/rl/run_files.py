"""What a run of reinforcement learning keeps in its directory, each part whole or as before after a kill."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from surefoot.errors import TrainingError
from surefoot.io import write_json
from surefoot.models.engine.causal import save_causal
from surefoot.rl.assess import Assessment
from surefoot.rl.config import RLConfig
from surefoot.rl.log import RLLog
from surefoot.rl.run_models import RunModels
from surefoot.rl.samples import write_samples
from surefoot.training.checkpoint import load_state, save_state
from surefoot.training.workers import Workers

_DONE = "rl.json"
"""File that a finished run has."""


class RunFiles:
    """Keeps a run's models and its log. The first process writes; all of them have to ask."""

    def __init__(self, directory: Path, team: Workers) -> None:
        self.directory, self.team = directory, team

    def resume(self, models: RunModels) -> RLLog:
        """The log so far, with weights and optimisers as they were then; an empty one at the beginning."""
        parameters, optimisers = models.trained
        self.team.wait()
        return load_state(self._checkpoint, parameters, optimisers, RLLog)

    def save(self, models: RunModels, log: RLLog) -> None:
        """Checkpoint and curves."""
        parameters, optimisers = models.trained
        first = self.team.rank == 0
        save_state(self._checkpoint, parameters, optimisers, log, write=first)
        if first:
            log.write_curves(self.directory / "curves.jsonl")
        self.team.wait()

    def finish(self, models: RunModels, config: RLConfig, log: RLLog) -> None:
        """The trained models and the whole log; the checkpoint, which is some times larger, goes."""
        self.save(models, log)
        if self.team.rank == 0:
            self.save_policy(models, "policy")
            if models.judges.online_prm:
                models.judges.online_prm.save(self.directory / "online_prm")
            settings = config.model_dump(mode="json")
            write_json(self.directory / _DONE, {"config": settings, "log": log.model_dump(mode="json")})
            self._checkpoint.unlink(missing_ok=True)
        self.team.wait()

    def keep_samples(self, assessment: Assessment, count: int, *, update: int) -> None:
        """``count`` rollouts of round ``update`` (from 1), for reading."""
        if count and self.team.rank == 0:
            write_samples(
                self.directory / "samples" / f"{update:06d}.jsonl", update, assessment.groups, count
            )

    def save_policy(self, models: RunModels, name: str) -> None:
        """The policy as it is now, under ``name``; of one process."""
        target = self.directory / name
        new = target.with_name(f"{name}.new")
        shutil.rmtree(new, ignore_errors=True)
        save_causal(models.model, models.tokenizer, new)
        shutil.rmtree(target, ignore_errors=True)
        new.rename(target)

    @property
    def _checkpoint(self) -> Path:
        return self.directory / "checkpoint.safetensors"


def finished_log(directory: Path, config: RLConfig) -> RLLog | None:
    """The log of a run that came to its end there, if one did.

    Raises ``TrainingError`` if that run had other settings.
    """
    path = directory / _DONE
    if not path.exists():
        return None
    found = json.loads(path.read_text("utf-8"))
    before, wanted = RLConfig.model_validate(found["config"]).decisive, config.decisive
    if changed := [name for name, value in wanted.items() if before[name] != value]:
        raise TrainingError(
            f"{directory} holds a finished run of other settings ({', '.join(changed)}): give another "
            "directory, and its 'policy' to train on from there"
        )
    return RLLog.model_validate(found["log"])
