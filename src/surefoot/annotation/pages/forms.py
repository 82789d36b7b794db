"""Forms: limits on what they may hold, the secret that each must send back, and typed fields."""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import Depends, Request
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException

from surefoot.annotation.pages.context import pages_of
from surefoot.annotation.pages.visitors import SignedIn
from surefoot.errors import StoreError

MAX_FIELDS = 400
"""Fields of one form; an item with more alternatives than that is not labelled by hand."""
_MILLISECONDS = 24 * 3600 * 1000
_WHOLE = re.compile(r"[+-]?[0-9]{1,15}")


@dataclass(frozen=True, kw_only=True)
class Form:
    """A form whose secret was right. Readers raise ``StoreError`` naming the field."""

    data: FormData

    def text(self, name: str, *, default: str | None = None, most: int = 20_000) -> str:
        """A text field, without the spaces around it."""
        value = self.data.get(name, default)
        if not isinstance(value, str):
            raise StoreError(f"the form lacks the field '{name}'")
        value = value.replace("\r\n", "\n").strip()
        if len(value) > most:
            raise StoreError(f"'{name}' has {len(value)} characters; at most {most} fit")
        if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
            raise StoreError(f"'{name}' holds a character that cannot be kept (NUL or half a surrogate pair)")
        return value

    def optional(self, name: str, *, most: int = 20_000) -> str | None:
        """A text field; ``None`` if it is empty or absent."""
        return self.text(name, default="", most=most) or None

    def whole(self, name: str, *, default: int | None = None) -> int:
        """A whole number of at most 15 digits, which a column and a script can hold."""
        text = self.text(name, default=None if default is None else str(default), most=20)
        if not _WHOLE.fullmatch(text):
            raise StoreError(f"'{name}' must be a whole number of at most 15 digits, not {text!r}")
        return int(text)

    def share(self, name: str, *, default: float) -> float:
        """A number as people type it; the range is checked by who takes it."""
        text = self.text(name, default=str(default), most=30)
        try:
            return float(text)
        except ValueError as error:
            raise StoreError(f"'{name}' must be a number, not {text!r}") from error

    def value(self, name: str) -> Literal[-1, 0, 1]:
        """A label: -1, 0 or 1."""
        number = self.whole(name)
        if number == -1:
            return -1
        if number == 0:
            return 0
        if number == 1:
            return 1
        raise StoreError(f"'{name}' must be -1, 0 or 1, not {number}")

    def milliseconds(self, name: str = "milliseconds") -> int | None:
        """A time that the page measured; ``None`` without a script, and for what cannot be one."""
        text = self.optional(name, most=20)
        if text is None or not text.isascii() or not text.isdigit():
            return None
        return int(text) if int(text) < _MILLISECONDS else None

    def ticked(self, name: str) -> bool:
        """A checkbox."""
        return name in self.data

    def files(self, name: str) -> Iterator[UploadFile]:
        """Files that were chosen for a field."""
        for value in self.data.getlist(name):
            if isinstance(value, UploadFile) and value.filename:
                yield value


async def checked_form(request: Request, visitor: SignedIn) -> Form:
    """The form of a signed-in visitor. Raises 403 unless it carries the session's secret."""
    form = await read_form(request)
    if visitor.csrf is not None:
        try:
            require_secret(form.data.get("csrf"), visitor.csrf)
        except HTTPException:
            await form.data.close()
            raise
    return form


async def _closing_form(request: Request, visitor: SignedIn) -> AsyncIterator[Form]:
    """The form, whose files are closed once the page is made."""
    form = await checked_form(request, visitor)
    try:
        yield form
    finally:
        await form.data.close()


async def read_form(request: Request) -> Form:
    """Parse the body within the limits; 413, 411 or 400 otherwise."""
    settings = pages_of(request).settings
    uploading = request.headers.get("content-type", "").startswith("multipart/form-data")
    most = settings.max_upload_bytes if uploading else settings.max_form_bytes
    length = request.headers.get("content-length", "")
    if not (length.isascii() and length.isdigit()):
        raise HTTPException(411, "send the form's Content-Length")
    if int(length) > most:
        raise HTTPException(413, f"the form has {length} bytes; at most {most} are taken")
    try:
        data = await request.form(max_files=16, max_fields=MAX_FIELDS, max_part_size=settings.max_form_bytes)
    except (MultiPartException, HTTPException, UnicodeDecodeError, ValueError) as error:
        raise HTTPException(400, "the form could not be read: too many fields, or not a form") from error
    return Form(data=data)


def require_secret(sent: object, secret: str) -> None:
    """Raises 403 unless ``sent`` is the secret."""
    given = sent if isinstance(sent, str) else ""
    if not hmac.compare_digest(given.encode("utf-8", "replace"), secret.encode()):
        raise HTTPException(403, "the form has expired or came from another page; load the page again")


def new_key() -> str:
    """Key of one submission: the same form sent twice makes one label."""
    return secrets.token_urlsafe(18)


CheckedForm = Annotated[Form, Depends(_closing_form)]
