"""Who may look beyond a project, what is asked for in an address, and where runs lie."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Final

from fastapi import Request
from pydantic import Field

from surefoot.annotation.pages.context import Visitor
from surefoot.errors import ForbiddenError, NotFoundError, StoreError
from surefoot.gateway.settings import Settings

_PART: Final = re.compile(r"[A-Za-z0-9_=+,@][A-Za-z0-9_=+,@.-]{0,199}", re.ASCII)
_MOST_PARTS: Final = 8


class InspectSettings(Settings):
    """What the pages may read beside the database."""

    runs: Path | None = None
    """Directory below which runs and saved trees are shown; ``None`` = none are."""
    max_file_bytes: int = Field(default=64_000_000, ge=1_000)
    """Largest file of a run that a page reads."""
    page: int = Field(default=50, ge=1, le=500)
    """Rows of a list."""


def settings_of(request: Request) -> InspectSettings:
    """The settings of the app that answers ``request``."""
    found: InspectSettings = request.app.state.inspect
    return found


def require_reader(visitor: Visitor) -> None:
    """Raises ``ForbiddenError`` unless the visitor may read what belongs to no project."""
    by_key = visitor.key_role in (None, "admin", "viewer") and visitor.project_id is None
    if not by_key or not visitor.roles & {"admin", "viewer"}:
        raise ForbiddenError("this page is for administrators and viewers of the whole server")


def path_below(root: Path | None, name: str) -> Path:
    """The file or directory called ``name`` below ``root``.

    Raises ``StoreError`` for a name that is no plain relative path, ``NotFoundError`` for what is not there
    or, by a link, lies elsewhere; neither says anything of the world outside.
    """
    parts = name.split("/")
    if len(parts) > _MOST_PARTS or not all(_PART.fullmatch(part) for part in parts):
        raise StoreError("'name' must be names of letters, digits and . _ = + , @ - parted by '/'")
    missing = NotFoundError(f"there is nothing called '{name}'")
    if root is None:
        raise missing
    try:
        base = root.resolve(strict=True)
        found = base.joinpath(*parts).resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise missing from error
    if not found.is_relative_to(base):
        raise missing
    return found


def asked(request: Request, name: str, *, most: int = 500) -> str | None:
    """A text that somebody typed, without the spaces around it; ``None`` if it is empty or absent."""
    return (identity(request, name, most=most) or "").strip() or None


def identity(request: Request, name: str, *, most: int = 500) -> str | None:
    """A text of the address as it is; ``None`` if it is empty or absent. Raises ``StoreError``."""
    value = request.query_params.get(name, "")
    if len(value) > most or "\0" in value:
        raise StoreError(f"'{name}' is longer than {most} characters, or holds one that cannot be kept")
    return value or None


def needed(request: Request, name: str) -> str:
    """A text that the address must hold, as it is. Raises ``NotFoundError``."""
    value = identity(request, name)
    if value is None:
        raise NotFoundError(f"the address lacks '{name}'")
    return value


def number(request: Request, name: str) -> float | None:
    """A finite number of the address. Raises ``StoreError``."""
    text = asked(request, name, most=40)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError as error:
        raise StoreError(f"'{name}' must be a number, not {text!r}") from error
    if not math.isfinite(value):
        raise StoreError(f"'{name}' must be a finite number")
    return value


def whole(request: Request, name: str, *, default: int = 0) -> int:
    """A whole number from 0 on. Raises ``StoreError``."""
    text = asked(request, name, most=9)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit()):
        raise StoreError(f"'{name}' must be a whole number, not {text!r}")
    return int(text)


def choice(request: Request, name: str, options: tuple[str, ...]) -> str | None:
    """One of ``options``, or ``None``. Raises ``StoreError``."""
    value = asked(request, name)
    if value is not None and value not in options:
        raise StoreError(f"'{name}' must be one of {', '.join(options)}")
    return value
