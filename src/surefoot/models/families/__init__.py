"""Reward models by name: checkpoints trained here by their card, published ones by name or files.

One file a published family: what it writes, where it is read, what it was built from. Heads are read from the
checkpoint's tensors; code that comes with a checkpoint is not run.
"""

from __future__ import annotations

import re
from pathlib import Path

from surefoot.errors import CheckpointError
from surefoot.models.card import CALIBRATION
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
from surefoot.models.families._own import IDENTIFYING, OWN, Opening, is_own, open_own
from surefoot.models.families._published import Family, Fit
from surefoot.models.hub import fetch_checkpoint
from surefoot.models.scorer import CheckpointScorer, Scorer

__all__ = [
    "FAMILIES",
    "OWN",
    "Opening",
    "find_family",
    "identifying_files",
    "is_own",
    "locate",
    "open_checkpoint",
]

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


def open_checkpoint(
    path: str | Path, *, family: str | None, opening: Opening
) -> tuple[Path, CheckpointScorer]:
    """The checkpoint's directory, and a scorer on it; see :func:`surefoot.models.scorer.load_prm`."""
    directory = locate(path)
    if family in OWN or (family is None and is_own(directory)):
        return directory, open_own(directory, name=Path(path).name, family=family, opening=opening)
    opening.refuse("base", "chains", of=f"a published checkpoint ({path})")
    return directory, _published(directory, name=str(path), family=family, opening=opening)


def locate(path: str | Path) -> Path:
    """Directory of a checkpoint; a name ``owner/name`` that is no directory is fetched from the hub.

    Raises ``CheckpointError`` if the hub has none of that name or cannot be reached.
    """
    hub_name = re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", str(path))
    return fetch_checkpoint(path) if hub_name and not Path(path).is_dir() else Path(path)


def _published(directory: Path, *, name: str, family: str | None, opening: Opening) -> Scorer:
    """A scorer on a published checkpoint.

    Raises ``CheckpointError`` if no family, or more than one, fits; if weights are missing or unknown; or if
    the tokenizer is not the family's.
    """
    checkpoint = Checkpoint(
        directory,
        dtype=opening.dtype,
        trust_remote_code=opening.trust_remote_code,
        reference=opening.reference,
    )
    found = find_family(checkpoint, name=name, family=family)
    if found is not eurus.FAMILY:
        opening.refuse("reference", of=f"of family {found.name!r}")
    model = found.load(checkpoint).to(opening.device)
    if isinstance(model, eurus.ImplicitModel):
        return eurus.ImplicitScorer(model, name=Path(name).name)
    return Scorer(model, name=Path(name).name, batch_tokens=opening.batch_tokens)


def find_family(checkpoint: Checkpoint, *, name: str, family: str | None = None) -> Family:
    """The family that ``family`` names, else that of the repository ``name``, else the one its files show.

    A plain language model shows no family: nothing in its files says that it is a reward model. Raises
    ``CheckpointError`` if none or several come into question, or if name and files disagree.
    """
    if family is not None:
        found = [known for known in FAMILIES if known.name == family]
        if not found:
            own = ", ".join(map(repr, OWN))
            raise CheckpointError(f"family={family!r} is not known; choose {_names(FAMILIES)}, {own}")
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
    """Files that tell this checkpoint from another.

    Of one trained here small files are enough, for they hold the losses of its training; a published one is
    told by its weights.
    """
    directory = locate(path)
    if is_own(directory):
        names = set(IDENTIFYING)
    else:
        names = {"config.json", "tokenizer_config.json", CALIBRATION}
        names |= {file.name for ending in ("safetensors", "bin") for file in directory.glob(f"*.{ending}")}
    return {name: directory / name for name in sorted(names) if (directory / name).is_file()}


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
