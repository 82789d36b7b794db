"""Checkpoints trained here: one entry a kind, by the ``family`` of the card."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from surefoot.errors import CheckpointError
from surefoot.models.card import CALIBRATION, CARD, read_card
from surefoot.models.generative import load_verifier
from surefoot.models.implicit import FAMILY as IMPLICIT
from surefoot.models.implicit import SETTINGS, ImplicitPRM
from surefoot.models.lora import base_of
from surefoot.models.reward_model import FAMILY as CLASSIFIER
from surefoot.models.reward_model import HEAD, RewardModel
from surefoot.models.scorer import CheckpointScorer, Scorer
from surefoot.models.verifier_checkpoint import FAMILY as GENERATIVE
from surefoot.models.verifier_checkpoint import FORMAT

IDENTIFYING = (CARD, HEAD, SETTINGS, FORMAT, "training.json", CALIBRATION)
"""Files of any kind that tell one checkpoint from another."""

_FOR = {"reference": "implicit rewards", "base": "adapters", "chains": "generative verifiers"}
"""What has the options that not every kind has."""


@dataclass(frozen=True, kw_only=True)
class Opening:
    """How a checkpoint is to be opened; for the fields see :func:`surefoot.models.scorer.load_prm`."""

    device: str
    dtype: str
    trust_remote_code: bool
    reference: str | Path | None
    base: str | Path | None
    chains: int
    batch_tokens: int

    def refuse(self, *names: str, of: str) -> None:
        """Raise ``CheckpointError`` if an option is given that a checkpoint ``of`` a kind does not have."""
        for name in names:
            if (given := getattr(self, name)) not in (None, 1):
                raise CheckpointError(f"{name}={given!r} is for {_FOR[name]}; this is {of}")

    def cast(self, *modules: nn.Module) -> None:
        """Put weights into ``dtype``, unless it is ``auto``. Raises ``CheckpointError`` for no such type."""
        if self.dtype == "auto":
            return
        found = getattr(torch, self.dtype, None)
        if not isinstance(found, torch.dtype) or not found.is_floating_point:
            raise CheckpointError(f"dtype={self.dtype!r} holds no weights; try bfloat16, float16 or float32")
        for module in modules:
            module.to(dtype=found)


def is_own(directory: Path) -> bool:
    """Whether the directory holds a checkpoint trained here, or nothing that another could have written."""
    return (directory / CARD).is_file() or not (directory / "config.json").is_file()


def open_own(directory: Path, *, name: str, family: str | None, opening: Opening) -> CheckpointScorer:
    """A scorer on a checkpoint trained here.

    Raises ``CheckpointError`` naming what is missing, or if the card says another family than ``family``.
    """
    card = read_card(directory)
    if card.family not in _KINDS:
        kinds = ", ".join(map(repr, _KINDS))
        raise CheckpointError(
            f"{directory / CARD}: family {card.family!r} is none that is trained here: {kinds}"
        )
    if family not in (None, card.family):
        raise CheckpointError(f"{directory / CARD}: family {card.family!r} is not {family!r}")
    if base_of(directory) is None:
        opening.refuse("base", of=f"whole ({directory})")
    return _KINDS[card.family](directory, name, opening)


def _classifier(directory: Path, name: str, opening: Opening) -> CheckpointScorer:
    opening.refuse("reference", "chains", of="a step classifier")
    model = RewardModel.load(directory, base=opening.base, trust_remote_code=opening.trust_remote_code)
    opening.cast(model.trunk)  # not the head: it is small
    return Scorer(model.to(opening.device), name=name, batch_tokens=opening.batch_tokens)


def _implicit(directory: Path, name: str, opening: Opening) -> CheckpointScorer:
    opening.refuse("chains", of="an implicit reward model")
    model = ImplicitPRM.load(
        directory, reference=opening.reference, trust_remote_code=opening.trust_remote_code
    )
    model.name = name
    reference = model.reference.model
    opening.cast(model.policy, *([] if reference is None else [reference]))
    return model.to(opening.device)


def _generative(directory: Path, _name: str, opening: Opening) -> CheckpointScorer:
    opening.refuse("reference", of="a generative verifier")
    return load_verifier(
        directory,
        base=opening.base,
        device=opening.device,
        dtype=opening.dtype,
        trust_remote_code=opening.trust_remote_code,
        chains=opening.chains,
    )


_KINDS: dict[str, Callable[[Path, str, Opening], CheckpointScorer]] = {
    CLASSIFIER: _classifier,
    IMPLICIT: _implicit,
    GENERATIVE: _generative,
}

OWN = tuple(_KINDS)
"""Families of the checkpoints trained here."""
