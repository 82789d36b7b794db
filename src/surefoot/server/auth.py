"""API keys: kept as hashes, compared in constant time, with a role and a rate."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Protocol

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from surefoot.errors import RecordError
from surefoot.records import now
from surefoot.server.bodies import require_shallow
from surefoot.server.errors import ApiError
from surefoot.server.settings import ServerSettings

Role = Literal["client", "admin"]
"""client: may use the interfaces under ``/v1`` and the like; admin: all, metrics among them."""

_KEY = re.compile(r"sf_([0-9a-f]{12})_([A-Za-z0-9_-]{43})", re.ASCII)
_BUCKETS = 100_000
"""Keys whose rate is watched; more than a server has."""


class ApiKey(BaseModel):
    """A key as it is kept: nothing in it opens a door."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(pattern=r"^[0-9a-f]{12}$")
    name: str = Field(min_length=1, max_length=100)
    """Who has it; written into the log."""
    role: Role = "client"
    digest: str = Field(pattern=r"^[0-9a-f]{64}$")
    """SHA-256 of the whole key. Its secret has 256 random bits, which no slow hash need protect."""
    rate_per_minute: float | None = Field(default=None, gt=0)
    created: datetime = Field(default_factory=now)


class KeyStore(Protocol):
    """Where keys are kept."""

    async def find(self, key_id: str) -> ApiKey | None:
        """The key of this id; ``None`` = there is none, or it was taken back."""


def make_key(name: str, *, role: Role = "client", rate_per_minute: float | None = None) -> tuple[str, ApiKey]:
    """A new key, to be shown once, and what is kept of it."""
    key_id = secrets.token_hex(6)
    key = f"sf_{key_id}_{secrets.token_urlsafe(32)}"
    return key, ApiKey(id=key_id, name=name, role=role, digest=_digest(key), rate_per_minute=rate_per_minute)


class KeyFile:
    """Keys as JSON Lines, read again when the file has changed: a key that is taken out stops working.

    Raises ``RecordError`` for a file that is none; while a server runs, the keys it knew stay until the file
    is whole again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp: tuple[int, int] | None = None
        self._keys: dict[str, ApiKey] = {}
        self._refresh()

    async def find(self, key_id: str) -> ApiKey | None:
        """The key of this id."""
        try:
            self._refresh()
        except (OSError, RecordError):
            if not self.path.exists():
                return None
        return self._keys.get(key_id)

    def keys(self) -> list[ApiKey]:
        """All keys, in the order made."""
        return list(self._keys.values())

    def _refresh(self) -> None:
        found = self.path.stat()
        stamp = (found.st_mtime_ns, found.st_size)
        if stamp != self._stamp:
            self._keys = {key.id: key for key in read_keys(self.path)}
            self._stamp = stamp


def read_keys(path: Path) -> list[ApiKey]:
    """Keys of a file. Raises ``RecordError`` naming the line."""
    keys = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            keys.append(ApiKey.model_validate_json(line))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise RecordError(f"{path}, line {number}: {where}: {first['msg']}") from error
    return keys


def add_key(path: Path, name: str, *, role: Role = "client", rate_per_minute: float | None = None) -> str:
    """Make a key and keep it in a file, which is made for its owner's eyes alone; returns the key itself.

    Raises ``RecordError`` for a file that is none, ``ValidationError`` (pydantic) for an empty name.
    """
    kept = read_keys(path) if path.exists() else []
    key, record = make_key(name, role=role, rate_per_minute=rate_per_minute)
    _write_keys(path, [*kept, record])
    return key


def remove_key(path: Path, key_id: str) -> None:
    """Take a key out of a file. Raises ``RecordError`` if it is not in it."""
    kept = read_keys(path)
    left = [key for key in kept if key.id != key_id]
    if len(left) == len(kept):
        raise RecordError(f"{path} has no key of the id {key_id!r}")
    _write_keys(path, left)


def _write_keys(path: Path, keys: Sequence[ApiKey]) -> None:
    """The file is whole or as it was, whatever happens."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.writelines(key.model_dump_json() + "\n" for key in keys)
            stream.flush()
            os.fsync(stream.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


class Door:
    """Who may pass: the right key, of a role that is allowed, not too often.

    Without a store everybody passes, as ``anonymous``; the settings allow that on loopback only.
    """

    def __init__(self, store: KeyStore | None, *, rate_per_minute: float | None = None) -> None:
        self.store, self.rate_per_minute = store, rate_per_minute
        self._buckets: dict[str, TokenBucket] = {}

    async def enter(self, authorization: str | None, role: Role) -> str:
        """Name of the key's owner. Raises :class:`ApiError` 401, 403 or 429."""
        if self.store is None:
            return "anonymous"
        scheme, _, key = (authorization or "").partition(" ")
        shape = _KEY.fullmatch(key.strip()) if scheme.lower() == "bearer" else None
        found = await self.store.find(shape[1]) if shape else None
        # an unknown id takes as long as a wrong secret
        same = hmac.compare_digest(_digest(key.strip()), found.digest if found else _NOBODY)
        if found is None or not same:
            message = "no valid API key; send it as 'Authorization: Bearer sf_…'"
            raise ApiError(401, message, code="invalid_api_key")
        if role == "admin" and found.role != "admin":
            raise ApiError(403, f"key {found.name!r} is a client's, and this needs an admin's", code="role")
        self._spend(found)
        return found.name

    def _spend(self, key: ApiKey) -> None:
        rate = key.rate_per_minute or self.rate_per_minute
        if rate is None:
            return
        bucket = self._buckets.get(key.id)
        if bucket is None or bucket.rate_per_minute != rate:
            if len(self._buckets) >= _BUCKETS:
                self._buckets.clear()
            bucket = self._buckets[key.id] = TokenBucket(rate)
        wait_s = bucket.take()
        if wait_s > 0:
            message = f"key {key.name!r} may ask {rate:g} times a minute"
            raise ApiError(429, message, code="rate_limit_exceeded", retry_after_s=wait_s)


class TokenBucket:
    """A bucket of one minute's tokens (at least 1), which fills at ``rate_per_minute``."""

    def __init__(self, rate_per_minute: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate_per_minute, self._clock = rate_per_minute, clock
        self._full = max(1.0, rate_per_minute)
        self._left, self._seen = self._full, clock()

    def take(self) -> float:
        """Take a token; seconds until there is one, 0 = it was taken."""
        moment = self._clock()
        gained = (moment - self._seen) * self.rate_per_minute / 60
        self._left, self._seen = min(self._full, self._left + gained), moment
        if self._left >= 1:
            self._left -= 1
            return 0.0
        return (1 - self._left) * 60 / self.rate_per_minute


def guarded(role: Role, *, settings: ServerSettings, door: Door, free: bool = False) -> type[APIRoute]:
    """A route class that lets in who may pass, and bodies that are not nested too deeply, before all else.

    The key's owner is then ``request.state.owner``. ``free`` asks for no key.
    """

    class GuardedRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            inner: Callable[[Request], Awaitable[Response]] = super().get_route_handler()

            async def handle(request: Request) -> Response:
                owner = "anonymous"
                if not free:
                    owner = await door.enter(request.headers.get("authorization"), role)
                request.state.owner = owner
                if request.method == "POST":
                    await require_shallow(request, settings.limits.max_json_depth)
                return await inner(request)

            return handle

    return GuardedRoute


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()


_NOBODY = _digest(secrets.token_hex(32))
