"""What may go into a column: text that both databases keep as it is, and names of a sensible length."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError

from surefoot.errors import StoreError

LONGEST_NAME = 200


def checked_text(field: str, value: str) -> str:
    """``value``, if both databases can keep it.

    Raises ``StoreError`` for a zero character, which PostgreSQL refuses, and for half a surrogate pair.
    """
    if "\x00" in value:
        raise StoreError(f"'{field}' holds a zero character (U+0000); remove it")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise StoreError(f"'{field}' is not valid text at character {error.start}: {error.reason}") from error
    return value


def storable(value: str) -> bool:
    """Whether ``checked_text`` would take ``value``."""
    return "\x00" not in value and not any("\ud800" <= character <= "\udfff" for character in value)


def checked_name(field: str, value: str) -> str:
    """``value``, if it is a name: not blank, at most 200 characters (an index cannot hold much more)."""
    if not value.strip():
        raise StoreError(f"'{field}' is empty; give it a name")
    if len(value) > LONGEST_NAME:
        raise StoreError(f"'{field}' has {len(value)} characters; at most {LONGEST_NAME} are kept")
    return checked_text(field, value)


def payload_of(record: BaseModel) -> str:
    """JSON of ``record`` for a payload column; zero characters are escaped in it, so they are kept."""
    try:
        return record.model_dump_json()
    except (PydanticSerializationError, UnicodeEncodeError) as error:
        raise StoreError(f"a {type(record).__name__} cannot be written as JSON: {error}") from error


def json_text(value: Any) -> str:
    """Compact JSON, keys sorted; ASCII, so that anything is kept. Raises ``StoreError`` for other objects."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise StoreError(f"not JSON: {error}") from error


def digest_of(*parts: Any) -> str:
    """32 hexadecimal characters that stand for ``parts``: equal ones are the same thing sent again."""
    return hashlib.blake2b(json_text(parts).encode(), digest_size=16).hexdigest()


def like(text: str) -> str:
    """Pattern that finds ``text`` as it is anywhere in a column; to be used with ``escape="\\\\"``."""
    escaped = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"%{escaped}%"
