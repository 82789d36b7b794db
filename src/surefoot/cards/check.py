"""Check a card: build it again and compare, compare it with a published anchor, compare two cards."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from surefoot.cards.build import build_card
from surefoot.cards.record import ReleaseCard, read_release
from surefoot.cards.render import RECORD, render_all
from surefoot.errors import CheckpointError, RunError, SurefootError

NAMESPACE = "surefoot-card"
"""Namespace of signatures by ``ssh-keygen -Y sign``."""


def check_card(path: Path) -> list[str]:
    """Reasons why ``card.json`` does not hold, or a file rendered from it differs; empty if it is true.

    Every figure, role and list is computed again from the runs in the working directory.
    """
    stored = read_release(path)
    runs = [_run_path(Path(run.path)) for run in stored.runs]
    reasons = []
    try:
        built = build_card(list(dict.fromkeys(runs)), stored.about, Path(stored.scope))
        reasons = [f"{change} (card, now)" for change in diff_cards(stored, built)]
    except SurefootError as error:
        reasons = [str(error)]
    for name, content in render_all(stored).items():
        rendered = path.with_name(name)
        if rendered.is_file() and rendered.read_text("utf-8") != content:
            reasons.append(f"{rendered} is not what {path.name} says; build the card again")
    return reasons


def _run_path(record: Path) -> Path:
    """What to give to :func:`build_card` for a record."""
    return (
        record.parent
        if record.name == "manifest.json"
        else record.with_name(record.name.removesuffix(".manifest.json"))
    )


def diff_cards(first: ReleaseCard, second: ReleaseCard) -> list[str]:
    """Every fact that differs: ``claims[ID].value: 0.7, 0.8``. Entries of lists are matched by name."""
    old, new = (dict(leaves(card.model_dump(mode="json"), "")) for card in (first, second))
    return [
        f"{key}: {old.get(key, 'absent')}, {new.get(key, 'absent')}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    ]


def leaves(value: Any, name: str) -> Iterator[tuple[str, str]]:
    """Name and JSON text of every value below ``value``; entries of lists go by their id, name or path."""
    if isinstance(value, Mapping) and value:
        for key, part in value.items():
            yield from leaves(part, f"{name}.{key}".lstrip("."))
    elif isinstance(value, list) and value:
        for number, part in enumerate(value):
            named = (
                part.get("id") or part.get("name") or part.get("path") if isinstance(part, Mapping) else part
            )
            yield from leaves(part, f"{name}[{named if named is not None else number}]")
    else:
        yield name, json.dumps(value, ensure_ascii=False)


def digest_of_card(path: Path) -> str:
    """SHA-256 of ``card.json``: publish it where others cannot change it."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def sign(path: Path, key: Path) -> Path:
    """Sign ``card.json`` with an SSH key (``ssh-keygen -Y sign``); returns the signature's path."""
    _tool("ssh-keygen", "-Y", "sign", "-n", NAMESPACE, "-f", str(key), str(path))
    return path.with_name(f"{path.name}.sig")


def check_anchor(path: Path, anchor: str) -> str | None:
    """Why ``card.json`` is not the card that was anchored; ``None`` if it is.

    ``anchor``: ``sha256:HEX``, as ``card build`` printed it; ``git:REVISION``, the commit or tag that holds
    the card; ``hub:OWNER/NAME@COMMIT``; ``ssh:ALLOWED_SIGNERS``, for the signature ``card.json.sig``.
    Raises ``RunError`` for another form, and if the anchor cannot be read.
    """
    kind, _, where = anchor.partition(":")
    if kind == "sha256" and where:
        expected = where.lower()
    elif kind == "git" and where and not where.startswith("-"):
        content = _tool("git", "-C", str(path.resolve().parent), "show", f"{where}:./{path.name}")
        expected = hashlib.sha256(content).hexdigest()
    elif kind == "hub" and "@" in where:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

        repository, _, revision = where.partition("@")
        try:
            file = hf_hub_download(repository, RECORD, revision=revision)
        except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
            raise CheckpointError(f"--anchor {anchor}: {error}; name a repository and commit") from error
        expected = digest_of_card(Path(file))
    elif kind == "ssh" and where:
        signature = path.with_name(f"{path.name}.sig")
        signer = (
            _tool("ssh-keygen", "-Y", "find-principals", "-s", str(signature), "-f", where)
            .decode()
            .split("\n")[0]
        )
        words = ("-Y", "verify", "-f", where, "-I", signer, "-n", NAMESPACE, "-s", str(signature))
        try:
            _tool("ssh-keygen", *words, stdin=path.read_bytes())
        except RunError as error:
            return f"{path} is not the card that was signed: {error}"
        return None
    else:
        raise RunError(
            f"--anchor {anchor}: write sha256:HEX, git:REVISION, hub:OWNER/NAME@COMMIT or ssh:FILE"
        )
    if digest_of_card(path) != expected:
        return f"{path} is not the anchored card ({anchor}): it was built again, from other data or runs"
    return None


def _tool(*words: str, stdin: bytes = b"") -> bytes:
    try:
        ended = subprocess.run(words, input=stdin, capture_output=True, check=False, timeout=60)  # noqa: S603
    except OSError as error:
        raise RunError(f"{words[0]} cannot be run: {error}; install it") from error
    if ended.returncode:
        raise RunError(f"{words[0]}: {ended.stderr.decode(errors='replace').strip()}")
    return ended.stdout
