"""Passwords and tokens at rest.

A password is weak, so it goes through scrypt (RFC 7914) with a salt of its own. A token or key is 256 random
bits, which nobody can guess from a plain hash, so it is hashed once with SHA-256: it is checked with every
request, and scrypt would let anybody keep the server busy.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from typing import Final

DEFAULT_COST: Final = 14
"""log2 of scrypt's N; with r = 8 a hash takes 2^(cost + 10) bytes: 16 MB."""

_BLOCK: Final = 8
_PARALLEL: Final = 5
"""N = 2^14, r = 8, p = 5: as dear as N = 2^17, p = 1 in an eighth of the memory (OWASP's list of equals)."""

_LONGEST_PASSWORD: Final = 1024


def password_hash(password: str, cost: int = DEFAULT_COST) -> str:
    """``scrypt$cost$r$p$salt$hash``, so that costs can rise without breaking older hashes."""
    salt = secrets.token_bytes(16)
    made = _scrypt(password, salt, cost, _BLOCK, _PARALLEL)
    return f"scrypt${cost}${_BLOCK}${_PARALLEL}${_text(salt)}${_text(made)}"


def password_matches(password: str, stored: str | None, cost: int = DEFAULT_COST) -> bool:
    """Whether ``password`` gives ``stored``; takes as long where there is none (no such user)."""
    if stored is None or len(password) > _LONGEST_PASSWORD:
        _scrypt("", b"-" * 16, cost, _BLOCK, _PARALLEL)
        return False
    _, kept_cost, block, parallel, salt, expected = stored.split("$")
    made = _scrypt(password, base64.b64decode(salt), int(kept_cost), int(block), int(parallel))
    return hmac.compare_digest(made, base64.b64decode(expected))


def usable_password(password: str) -> bool:
    """Between 8 and 1024 characters; scrypt itself would take any length, and time with it."""
    return 8 <= len(password) <= _LONGEST_PASSWORD


def new_token() -> str:
    """256 random bits, safe in URLs and headers."""
    return secrets.token_urlsafe(32)


def token_hash(token: str) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def same_hash(first: str, second: str) -> bool:
    """Comparison whose time does not tell how much agrees."""
    return hmac.compare_digest(first, second)


def _scrypt(password: str, salt: bytes, cost: int, block: int, parallel: int) -> bytes:
    # twice what it needs: OpenSSL counts its own working space, too
    room = 2 * 128 * block * ((1 << cost) + parallel)
    secret = password.encode("utf-8", "surrogatepass")
    return hashlib.scrypt(secret, salt=salt, n=1 << cost, r=block, p=parallel, maxmem=room, dklen=32)


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")
