"""Check a card: build it again and compare, and compare two cards."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from surefoot.cards.build import build_card
from surefoot.cards.record import ReleaseCard, read_release
from surefoot.cards.render import render_all
from surefoot.errors import SurefootError


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
