"""The folder that a checkpoint is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from surefoot.errors import CheckpointError
from surefoot.io import write_json
from surefoot.models.card import CARD, CheckpointCard
from surefoot.models.causal import load_causal
from surefoot.models.implicit.rewards import Read
from surefoot.models.reference import Reference

M = TypeVar("M", bound=BaseModel)

FAMILY = "implicit"
SETTINGS = "implicit.json"
_OWN_COPY = "reference"


class ImplicitSettings(BaseModel):
    """``implicit.json``, beside ``surefoot.json``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    beta: float = Field(default=0.05, gt=0)
    """Reward per nat of log-ratio; 0.05 in the paper."""
    read: Read = "step"
    reference: str | None = None
    """``reference`` (the folder in the checkpoint), a directory or hub name; ``None`` = uniform."""
    reference_fingerprint: str | None = None


@dataclass(frozen=True, kw_only=True)
class Stored:
    """What a checkpoint's folder holds, loaded."""

    directory: Path
    policy: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    card: CheckpointCard
    settings: ImplicitSettings
    reference: PreTrainedModel | None
    reference_from: str | Path | None
    """Where the reference was loaded from."""

    def require_reference(self, fingerprint: str | None) -> None:
        """Raise ``CheckpointError`` unless that is the reference's fingerprint (or none was noted)."""
        if self.settings.reference_fingerprint not in (None, fingerprint):
            raise CheckpointError(
                f"{self.directory / SETTINGS}: the reference {str(self.reference_from)!r} has other weights "
                "than the one that was trained against"
            )


def read_checkpoint(directory: Path, *, reference: str | Path | None, trust_remote_code: bool) -> Stored:
    """Load what :func:`write_checkpoint` wrote; ``reference`` is where the reference is now, if it has moved.

    Raises ``CheckpointError`` naming the missing or bad file.
    """
    card = _read_json(directory / CARD, CheckpointCard)
    if card.family != FAMILY:
        raise CheckpointError(f"{directory / CARD}: family {card.family!r} is not {FAMILY!r}")
    settings = _read_json(directory / SETTINGS, ImplicitSettings)
    policy, tokenizer = load_causal(directory, dtype="auto", trust_remote_code=trust_remote_code)
    own = directory / _OWN_COPY if settings.reference == _OWN_COPY else settings.reference
    if own is None and reference is not None:
        raise CheckpointError(f"{directory} was trained without a reference, so it can be given none")
    other = None
    if own is not None:
        try:
            other, _ = load_causal(reference or own, dtype="auto", trust_remote_code=trust_remote_code)
        except CheckpointError as error:
            raise CheckpointError(
                f"{directory}: the reference that it was trained against is missing or broken: {error}; "
                "say where it is with reference="
            ) from error
    return Stored(
        directory=directory,
        policy=policy,
        tokenizer=tokenizer,
        card=card,
        settings=settings,
        reference=other,
        reference_from=reference or own,
    )


def write_checkpoint(
    directory: Path,
    *,
    policy: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    card: CheckpointCard,
    settings: ImplicitSettings,
    reference: Reference,
    with_reference: bool,
) -> None:
    """Write the folder, the card last; without ``with_reference`` only the reference's name is noted."""
    directory.mkdir(parents=True, exist_ok=True)
    policy.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    changes: dict[str, str | None] = {"reference_fingerprint": reference.fingerprint}
    if with_reference and reference.model is not None:
        reference.model.save_pretrained(directory / _OWN_COPY)
        tokenizer.save_pretrained(directory / _OWN_COPY)
        changes["reference"] = _OWN_COPY
    write_json(directory / SETTINGS, settings.model_copy(update=changes).model_dump())
    write_json(directory / CARD, card.model_dump())


def _read_json(path: Path, kind: type[M]) -> M:
    try:
        return kind.model_validate_json(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path.parent} is no implicit reward model: {path.name} is missing") from error
    except ValidationError as error:
        raise CheckpointError(f"{path}: {error}") from error
