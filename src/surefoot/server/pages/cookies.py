"""Cookies of the pages, and signed values in them."""

from __future__ import annotations

import hashlib
from typing import Any, Final, Literal

from fastapi import Request
from fastapi.responses import Response
from itsdangerous import BadData, URLSafeTimedSerializer

Purpose = Literal["sign-in form", "device"]
"""Purpose of a signed value; it is invalid for any other."""

SESSION: Final = "surefoot_session"
"""The token of a session, which is random, and stored as a hash."""
SIGN_IN: Final = "surefoot_sign_in"
"""Identifies the browser to which a sign-in form was sent, before it has a session."""
DEVICE: Final = "surefoot_device"
"""Signed name of the account that this browser has signed in to before."""


class Cookies:
    """Reads and sets cookies.

    ``secure`` ones travel over HTTPS only, and browsers accept them from this very host alone: a sibling
    domain cannot plant a cookie whose name begins with ``__Host-``.
    """

    def __init__(self, secure: bool) -> None:
        self.secure = secure

    def get(self, request: Request, name: str) -> str:
        """The cookie; empty if there is none."""
        return request.cookies.get(self._full(name), "")

    def set(
        self,
        response: Response,
        name: str,
        value: str,
        *,
        seconds: float,
        samesite: Literal["lax", "strict"] = "lax",
    ) -> None:
        """Set a cookie that scripts cannot read, for so many seconds."""
        response.set_cookie(
            self._full(name),
            value,
            max_age=int(seconds),
            path="/",
            httponly=True,
            samesite=samesite,
            secure=self.secure,
        )

    def delete(self, response: Response, name: str) -> None:
        """Browsers ignore this unless it has the attributes that the cookie was set with."""
        response.delete_cookie(self._full(name), path="/", secure=self.secure, httponly=True)

    def _full(self, name: str) -> str:
        return f"__Host-{name}" if self.secure else name


class Signer:
    """Signs values (HMAC-SHA-256), with the time and a purpose."""

    def __init__(self, key: str) -> None:
        self._key = key

    def sign(self, purpose: Purpose, value: Any) -> str:
        """``value``, which is JSON and not secret, with its signature."""
        return str(self._serializer(purpose).dumps(value))

    def read(self, purpose: Purpose, text: object, *, seconds: float) -> Any:
        """What was signed for this purpose at most so many seconds ago; ``None`` for anything else."""
        try:
            return self._serializer(purpose).loads(
                text if isinstance(text, str) else "", max_age=int(seconds)
            )
        except BadData:
            return None

    def _serializer(self, purpose: Purpose) -> URLSafeTimedSerializer:
        algorithm = {"digest_method": hashlib.sha256, "key_derivation": "hmac"}
        return URLSafeTimedSerializer(self._key, salt=f"surefoot {purpose}", signer_kwargs=algorithm)
