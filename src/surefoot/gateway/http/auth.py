"""API keys at the gateway's door: whose they are, what they open, and how often."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal
from urllib.parse import urlsplit

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.types import Receive, Scope, Send

from surefoot.annotation.database import ApiKey, Database
from surefoot.errors import StoreError
from surefoot.gateway.http.bodies import BodyLimit, require_shallow
from surefoot.gateway.http.errors import ApiError
from surefoot.gateway.http.settings import ServerSettings, is_loopback

Need = Literal["client", "admin"]
"""client: the interfaces under ``/v1`` and the like, for keys of that role and of administrators; admin: what
tells of the whole server, such as metrics, for keys of administrators that are bound to no project."""

_BUCKETS = 100_000
"""Keys whose rate is watched; more than a server has."""
_READERS = 4
_PATIENCE_S = 10.0
"""Seconds that the database has to say whose a key is."""
_PROXIES = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "via")
_LOG = logging.getLogger("surefoot.gateway")


class Door:
    """Who may pass: the right key, of a role that is allowed, not too often.

    Where no key is ``required``, everybody on this machine passes, and a known key says only whose the
    request is. ``db`` keeps the keys; it is asked by threads of the door's own, so that nothing else that is
    slow keeps anybody waiting here.
    """

    def __init__(
        self, db: Database | None, *, required: bool = True, rate_per_minute: float | None = None
    ) -> None:
        self.db, self.required, self.rate_per_minute = db, required, rate_per_minute
        self._buckets: dict[int, TokenBucket] = {}
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="surefoot-keys")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="surefoot-key-use")

    async def enter(self, headers: Mapping[str, str], need: Need) -> ApiKey | None:
        """The key of a request; ``None`` = nobody's. Raises :class:`ApiError` 401, 403, 429 or 503."""
        key = await self._known(headers.get("authorization"))
        if key is None and self.required:
            message = "no valid API key; send it as 'Authorization: Bearer sf-…'"
            raise ApiError(401, message, code="invalid_api_key")
        if key is None:
            require_local(headers)
            return None
        if key.role not in {"admin", need} or (need == "admin" and key.project_id is not None):
            raise ApiError(
                403, f"key {key.name!r} has the role {key.role}, which this is not for", code="role"
            )
        self._spend(key)
        return key

    def close(self) -> None:
        """End the threads."""
        self._readers.shutdown(wait=False, cancel_futures=True)
        self._writer.shutdown(wait=False, cancel_futures=True)

    async def _known(self, authorization: str | None) -> ApiKey | None:
        scheme, _, key = (authorization or "").partition(" ")
        if self.db is None or scheme.lower() != "bearer" or not key.strip():
            return None
        work = asyncio.get_running_loop().run_in_executor
        try:
            async with asyncio.timeout(_PATIENCE_S):
                found = await work(self._readers, self.db.keys.authenticate, key.strip())
        except (StoreError, TimeoutError) as error:
            raise ApiError(
                503, "the keys cannot be read now", code="store_failed", retry_after_s=5
            ) from error
        if found is not None:
            work(self._writer, self._note, found)  # nobody waits for it
        return found

    def _note(self, key: ApiKey) -> None:
        try:
            if self.db is not None:
                self.db.keys.note_use(key)
        except StoreError as error:
            _LOG.warning("the use of key %d could not be written down: %s", key.id, error)

    def _spend(self, key: ApiKey) -> None:
        rate = key.rate_limit or self.rate_per_minute
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


def guarded(need: Need, *, settings: ServerSettings, door: Door, free: bool = False) -> type[APIRoute]:
    """A route class that lets in who may pass, and bodies neither too large nor nested too deeply, before all
    else.

    The key is then ``request.state.key``. ``free`` asks for none.
    """

    class GuardedRoute(APIRoute):
        async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
            # starlette's own limit answers in plain text, and breaks connections of clients that still write
            bounded = BodyLimit(super().handle, max_bytes=settings.limits.max_body_bytes)
            await bounded(scope, receive, send)

        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            inner: Callable[[Request], Awaitable[Response]] = super().get_route_handler()

            async def handle(request: Request) -> Response:
                key = None
                if not free:
                    key = await door.enter(request.headers, need)
                request.state.key = key
                if request.method == "POST":
                    await require_shallow(request, settings.limits.max_json_depth)
                return await inner(request)

            return handle

    return GuardedRoute


def require_local(headers: Mapping[str, str]) -> None:
    """Where no key is asked for, a request comes from this machine, to a name of this machine.

    A page of elsewhere that a browser was tricked into reading from this address (DNS rebinding), or that
    posts to it, names itself in ``Host`` or ``Origin``; a proxy that opens the address to the world says so,
    unless it was told not to. Raises :class:`ApiError` 403.
    """
    proxied = next((name for name in _PROXIES if name in headers), None)
    why = f"a proxy passed this on ({proxied})" if proxied else None
    named = {"host": headers.get("host", "")}
    if "origin" in headers:
        named["origin"] = headers["origin"]
    for name, value in named.items():
        if not _is_local(value):
            why = f"{name} is {value[:100]!r}"
    if headers.get("sec-fetch-site") == "cross-site":
        why = "another site's page asked for it"
    if why is not None:
        message = f"no key is asked for here, so only this machine is answered, and {why}"
        raise ApiError(403, f"{message}; start the server with --require-key", code="not_local")


def _is_local(address: str) -> bool:
    """Whether ``NAME``, ``NAME:PORT`` or ``http://NAME:PORT`` is this machine."""
    try:
        name = urlsplit(address if "://" in address else f"//{address}").hostname
    except ValueError:
        return False
    return name is not None and is_loopback(name.removesuffix("."))
