"""Forms with size limits, and typed fields of forms and queries."""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from pydantic import ValidationError
from starlette.datastructures import FormData, QueryParams, UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import Request

from surefoot.errors import NotFoundError, StoreError
from surefoot.server.store.accounts import Protocol
from surefoot.server.store.schema import checked_text

S = TypeVar("S", bound=str)

MAX_FIELDS = 400
"""Fields of one form."""
_MILLISECONDS = 24 * 3600 * 1000
LABEL_VALUES: tuple[Literal[-1, 0, 1], ...] = (-1, 0, 1)
_WHOLE = re.compile(r"[+-]?[0-9]{1,15}")


@dataclass(frozen=True, kw_only=True)
class Form:
    """A form or a query. Its methods raise ``StoreError`` naming the field."""

    data: FormData | QueryParams

    async def aclose(self) -> None:
        """Close uploaded files."""
        if isinstance(self.data, FormData):
            await self.data.close()

    def text(self, name: str, *, default: str | None = None, most: int = 20_000) -> str:
        """A text field, without the spaces around it."""
        value = self.data.get(name, default)
        if not isinstance(value, str):
            raise StoreError(f"the field '{name}' is missing")
        value = value.replace("\r\n", "\n").strip()
        if len(value) > most:
            raise StoreError(f"'{name}' has {len(value)} characters; the limit is {most}")
        return checked_text(name, value)

    def sent(self, name: str) -> bytes:
        """A field as bytes, to be compared with a secret; empty if it is absent or a file."""
        value = self.data.get(name)
        return value.encode("utf-8", "replace") if isinstance(value, str) else b""

    def optional(self, name: str, *, most: int = 20_000) -> str | None:
        """A text field; ``None`` if it is empty or absent."""
        return self.text(name, default="", most=most) or None

    def id(self, name: str) -> str | None:
        """An id, unchanged, with any surrounding spaces; ``None`` if it is empty or absent."""
        value = self.data.get(name, "")
        if not isinstance(value, str) or len(value) > 500 or "\0" in value:
            raise StoreError(f"'{name}' is longer than 500 characters or contains NUL")
        return value or None

    def ids(self, name: str, *, exactly: int | None = None) -> list[str]:
        """Ids that are sent one by one. Raises ``StoreError`` if there are none, or not ``exactly`` many."""
        values = [value for value in self.data.getlist(name) if isinstance(value, str) and "\0" not in value]
        if not values:
            raise StoreError("nothing is selected; tick at least one row")
        if exactly not in (None, len(values)):
            raise StoreError(f"choose {exactly} rows, not {len(values)}")
        return values

    def required_id(self, name: str) -> str:
        """A required id. Raises ``NotFoundError`` if it is empty or absent."""
        value = self.id(name)
        if value is None:
            raise NotFoundError(f"the address lacks '{name}'")
        return value

    def whole(self, name: str) -> int:
        """A whole number of at most 15 digits, which a column and a script can hold."""
        text = self.text(name, most=20)
        if not _WHOLE.fullmatch(text):
            raise StoreError(f"'{name}' must be a whole number of at most 15 digits, not {text!r}")
        return int(text)

    def natural(self, name: str, *, default: int = 0) -> int:
        """A whole number of at most 9 digits, not negative; ``default`` if the field is empty."""
        number = default if self.optional(name, most=9) is None else self.whole(name)
        if number < 0:
            raise StoreError(f"'{name}' must be a whole number, not {number}")
        return number

    def number(self, name: str) -> float | None:
        """A finite number as people type it; ``None`` if the field is empty. The caller checks its range."""
        text = self.optional(name, most=40)
        if text is None:
            return None
        try:
            value = float(text)
        except ValueError as error:
            raise StoreError(f"'{name}' must be a number, not {text!r}") from error
        if not math.isfinite(value):
            raise StoreError(f"'{name}' must be a finite number")
        return value

    def value(self, name: str) -> Literal[-1, 0, 1]:
        """A label: -1, 0 or 1."""
        number = self.whole(name)
        for value in LABEL_VALUES:
            if value == number:
                return value
        raise StoreError(f"'{name}' must be -1, 0 or 1, not {number}")

    def choice(self, name: str, options: Iterable[S], *, default: str | None = None) -> S:
        """One of ``options``; ``default`` if the field is empty."""
        options, text = list(options), self.text(name, default=default) or default
        for option in options:
            if option == text:
                return option
        raise StoreError(f"'{name}' must be one of {', '.join(options)}")

    def milliseconds(self, name: str = "milliseconds") -> int | None:
        """A time measured by the page; ``None`` without scripts, and for anything that is not a time."""
        text = self.optional(name, most=20)
        if text is None or not text.isascii() or not text.isdigit():
            return None
        return int(text) if int(text) < _MILLISECONDS else None

    def ticked(self, name: str) -> bool:
        """A checkbox."""
        return name in self.data

    def files(self) -> list[UploadFile]:
        """The uploads of all fields."""
        values = (value for _, value in self.data.multi_items())
        return [value for value in values if isinstance(value, UploadFile) and value.filename]


async def read_form(request: Request, most: int, *, part: int, files: int) -> Form:
    """Parse a body of at most ``most`` bytes, with fields of at most ``part``, and so many ``files``.

    Raises ``HTTPException`` 413, 411 or 400. Call it with more than a little only for those who may send it.
    """
    length = request.headers.get("content-length", "")
    if not (length.isascii() and length.isdigit()):
        raise HTTPException(411, "send the form's Content-Length")
    if int(length) > most:
        raise HTTPException(413, f"the form has {length} bytes; the limit is {most}")
    try:
        data = await request.form(max_files=files, max_fields=MAX_FIELDS, max_part_size=part)
    except (MultiPartException, HTTPException, UnicodeDecodeError, ValueError) as error:
        raise HTTPException(400, "the form cannot be read: too many fields, or not a form") from error
    return Form(data=data)


def new_key() -> str:
    """Key of one submission: the same form sent twice adds one label."""
    return secrets.token_urlsafe(18)


def protocol_with(before: Protocol, **changes: Any) -> Protocol:
    """``before`` with checked changes. Raises ``StoreError`` naming the field."""
    try:
        return Protocol.model_validate({**before.model_dump(), **changes})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise StoreError(f"'{where}': {first['msg']}") from error
