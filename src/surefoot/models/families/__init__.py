"""Published reward models, by repository name or by what their files say.

One file a family: what it writes, where it is read, what it was built from. Heads are read from the
checkpoint's tensors; code that comes with a checkpoint is not run.
"""

from __future__ import annotations

import re
from pathlib import Path

from surefoot.errors import CheckpointError
from surefoot.models.card import CARD
from surefoot.models.families import (
    eurus,
    math_shepherd,
    pure,
    qwen_prm,
    reasoneval,
    rlhflow,
    skywork,
    trl,
)
from surefoot.models.families._checkpoint import Checkpoint
from surefoot.models.families._published import Family, Fit
from surefoot.models.hub import fetch_checkpoint
from surefoot.models.reward_model import HEAD
from surefoot.models.scorer import Scorer

FAMILIES: tuple[Family, ...] = (
    math_shepherd.FAMILY,
    rlhflow.FAMILY,
    skywork.FAMILY,
    qwen_prm.FAMILY,
    pure.FAMILY,
    reasoneval.FAMILY,
    trl.FAMILY,
    eurus.FAMILY,
)

OWN = "surefoot"
"""Family of the checkpoints trained here."""


def locate(path: str | Path) -> Path:
    """Directory of a checkpoint; a name ``owner/name`` that is no directory is fetched from the hub.

    Raises ``CheckpointError`` if the hub has none of that name or cannot be reached.
    """
    hub_name = re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", str(path))
    return fetch_checkpoint(path) if hub_name and not Path(path).is_dir() else Path(path)


def is_own(directory: Path) -> bool:
    """Whether the directory holds a checkpoint trained here, or nothing that another could have written."""
    return (directory / CARD).is_file() or not (directory / "config.json").is_file()


def load_published(
    directory: Path,
    *,
    name: str,
    family: str | None = None,
    device: str = "cpu",
    dtype: str = "auto",
    trust_remote_code: bool = False,
    reference: str | Path | None = None,
    batch_tokens: int = 16_384,
) -> Scorer:
    """A scorer on a published checkpoint; for the options see :func:`surefoot.models.scorer.load_prm`.

    Raises ``CheckpointError`` if no family, or more than one, fits; if weights are missing or unknown; or if
    the tokenizer is not the family's.
    """
    checkpoint = Checkpoint(directory, dtype=dtype, trust_remote_code=trust_remote_code, reference=reference)
    model = find_family(checkpoint, name=name, family=family).load(checkpoint).to(device)
    if isinstance(model, eurus.ImplicitModel):
        return eurus.ImplicitScorer(model, name=Path(name).name)
    return Scorer(model, name=Path(name).name, batch_tokens=batch_tokens)


def find_family(checkpoint: Checkpoint, *, name: str, family: str | None = None) -> Family:
    """The family that ``family`` names, else that of the repository ``name``, else the one its files show.

    A plain language model shows no family: nothing in its files says that it is a reward model. Raises
    ``CheckpointError`` if none or several come into question, or if name and files disagree.
    """
    if family is not None:
        found = [known for known in FAMILIES if known.name == family]
        if not found:
            raise CheckpointError(f"family={family!r} is not known; choose {_names(FAMILIES)}")
        return found[0]
    fits = {known.name: known.fit(checkpoint) for known in FAMILIES}
    shown = [known for known in FAMILIES if fits[known.name] == Fit.YES]
    named = _by_name(checkpoint.directory, name)
    if named and (named in shown or not shown):
        return named
    if len(shown) == 1 and not named:
        return shown[0]
    if named or shown:
        both = _names([*([named] if named else []), *shown])
        raise CheckpointError(f"{name}: its name and files speak for {both}; say which with family=")
    possible = [known for known in FAMILIES if fits[known.name] == Fit.POSSIBLE]
    if possible:
        raise CheckpointError(
            f"{name} is a plain language model that could be {_names(possible)}, or no reward model at all; "
            "say which with family="
        )
    what = ", ".join(checkpoint.architectures) or "no architecture"
    raise CheckpointError(
        f"{name} ({what}) is of no known family; say which with family=: {_names(FAMILIES)}"
    )


def identifying_files(path: str | Path) -> dict[str, Path]:
    """Files that tell this checkpoint from another and are small enough to read each time."""
    directory = locate(path)
    if is_own(directory):
        return {name: directory / name for name in (CARD, HEAD)}
    names = ("config.json", "tokenizer_config.json", "model.safetensors.index.json")
    return {name: directory / name for name in names if (directory / name).is_file()}


def _by_name(directory: Path, name: str) -> Family | None:
    """By ``owner/name`` (asked for, or of the hub's cache), else by a directory's name if it is unique."""
    cached = [
        part.split("--", 1)[1].replace("--", "/") for part in directory.parts if part.startswith("models--")
    ]
    full = {"/".join(Path(name).parts[-2:]).lower(), *(repository.lower() for repository in cached)}
    last = {Path(name).name.lower(), directory.name.lower()}
    known = [(repository.lower(), family) for family in FAMILIES for repository in family.repositories]
    exact = {family.name: family for repository, family in known if repository in full}
    loose = {family.name: family for repository, family in known if repository.split("/")[1] in last}
    for found in (exact, loose):
        if len(found) == 1:
            return next(iter(found.values()))
    return None


def _names(families: list[Family] | tuple[Family, ...]) -> str:
    return ", ".join(repr(family.name) for family in families)
