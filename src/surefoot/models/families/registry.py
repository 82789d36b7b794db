"""The published families, and which of them a checkpoint belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from surefoot.errors import CheckpointError
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
from surefoot.models.families.checkpoint import Checkpoint
from surefoot.models.families.published import Family, FamilyMatch

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


def find_family(checkpoint: Checkpoint, *, name: str, family: str | None = None) -> Family:
    """The family that ``family`` names, else that of the repository ``name``, else the one its files show.

    A plain language model shows no family: nothing in its files says that it is a reward model. Raises
    ``CheckpointError`` if none or several come into question, or if name and files disagree.
    """
    if family is not None:
        named = next((known for known in FAMILIES if known.name == family), None)
        if named is None:
            raise CheckpointError(f"family={family!r} is not known; choose {family_names(FAMILIES)}")
        return named
    fits = {known.name: known.fit(checkpoint) for known in FAMILIES}
    by_files = [known for known in FAMILIES if fits[known.name] == FamilyMatch.YES]
    named = _by_name(checkpoint.directory, name)
    if named and (named in by_files or not by_files):
        return named
    if len(by_files) == 1 and not named:
        return by_files[0]
    if named or by_files:
        both = family_names([*([named] if named else []), *by_files])
        raise CheckpointError(f"{name}: its name and files speak for {both}; say which with family=")
    possible = [known for known in FAMILIES if fits[known.name] == FamilyMatch.POSSIBLE]
    if possible:
        raise CheckpointError(
            f"{name} is a plain language model that could be {family_names(possible)}, or no reward model "
            "at all; say which with family="
        )
    what = ", ".join(checkpoint.architectures) or "no architecture"
    raise CheckpointError(
        f"{name} ({what}) is of no known family; say which with family=: {family_names(FAMILIES)}"
    )


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
    for families in (exact, loose):
        if len(families) == 1:
            return next(iter(families.values()))
    return None


def family_names(families: Sequence[Family]) -> str:
    """Their names, for an error."""
    return ", ".join(repr(family.name) for family in families)
