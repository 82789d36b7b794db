"""The published families, and which of them a checkpoint belongs to."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from surefoot.errors import CheckpointError
from surefoot.models.families.checkpoint import Checkpoint
from surefoot.models.families.eurus import ImplicitModel
from surefoot.models.families.genprm import GenPRM
from surefoot.models.families.math_shepherd import MathShepherd
from surefoot.models.families.published import FamilyMatch, PublishedModel, WritingModel
from surefoot.models.families.pure import Pure
from surefoot.models.families.qwen_prm import QwenPRM
from surefoot.models.families.reasoneval import ReasonEval
from surefoot.models.families.rlhflow import RLHFlow
from surefoot.models.families.skywork import Skywork
from surefoot.models.families.thinkprm import ThinkPRM
from surefoot.models.families.trl import TokenClassifier

Family = type[PublishedModel] | type[ImplicitModel] | type[WritingModel]

FAMILIES: dict[str, Family] = {
    family.CARD.family: family
    for family in (
        *(MathShepherd, RLHFlow, Skywork, QwenPRM),
        *(Pure, ReasonEval, TokenClassifier, ImplicitModel),
        *(ThinkPRM, GenPRM),
    )
}
"""The classes by their families' names."""


def find_family(checkpoint: Checkpoint, *, name: str) -> Family:
    """The family of the repository ``name``, else the one that the checkpoint's files show.

    A plain language model shows no family: nothing in its files says that it is a reward model. Raises
    ``CheckpointError`` if none or several come into question, or if name and files disagree.
    """
    matches = {family: kind.match(checkpoint) for family, kind in FAMILIES.items()}
    by_files = [family for family, match in matches.items() if match == FamilyMatch.YES]
    named = _by_name(checkpoint.directory, name)
    if named and (named in by_files or not by_files):
        return FAMILIES[named]
    if len(by_files) == 1 and not named:
        return FAMILIES[by_files[0]]
    if named or by_files:
        both = quoted([*([named] if named else []), *by_files])
        raise CheckpointError(f"{name}: its name and files speak for {both}; say which with family=")
    possible = [family for family, match in matches.items() if match == FamilyMatch.POSSIBLE]
    if possible:
        raise CheckpointError(
            f"{name} is a plain language model that could be {quoted(possible)}, or no reward model "
            "at all; say which with family="
        )
    what = ", ".join(checkpoint.architectures) or "no architecture"
    raise CheckpointError(
        f"{name} ({what}) is of no known family; say which with family=: {quoted(FAMILIES)}"
    )


def family_named(name: str) -> str | None:
    """The family of a published repository's name, ``owner/name`` or its last part."""
    return _by_name(Path(name), name)


def quoted(names: Iterable[str]) -> str:
    """A list of families, for an error."""
    return ", ".join(map(repr, names))


def _by_name(directory: Path, name: str) -> str | None:
    """By ``owner/name`` (asked for, or of the hub's cache), else by a directory's name if it is unique."""
    cached = [
        part.split("--", 1)[1].replace("--", "/") for part in directory.parts if part.startswith("models--")
    ]
    full = {"/".join(Path(name).parts[-2:]).lower(), *(repository.lower() for repository in cached)}
    last = {Path(name).name.lower(), directory.name.lower()}
    repositories = [(at.lower(), family) for family, kind in FAMILIES.items() for at in kind.repositories]
    exact = {family for repository, family in repositories if repository in full}
    loose = {family for repository, family in repositories if repository.split("/")[1] in last}
    return next((families.pop() for families in (exact, loose) if len(families) == 1), None)
