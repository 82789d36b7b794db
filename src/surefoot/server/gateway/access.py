"""A route as one line, and the checks before it runs: the API key with its role and rate, the
client's address, and the body's size, nesting and encoding."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, get_type_hints
from urllib.parse import urlsplit

import numpy as np
from pydantic import BaseModel, ValidationError
from starlette.convertors import IntegerConvertor, register_url_convertor
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from surefoot.concurrency import CALLER
from surefoot.errors import ExpiredKeyError, ForbiddenError, StoreError
from surefoot.server.gateway.errors import ApiError, ClientDisconnectedError, invalid
from surefoot.server.gateway.settings import ServerLimits, ServerSettings, is_loopback
from surefoot.server.permissions import Action, Principal, allowed

if TYPE_CHECKING:
    from surefoot.server.gateway.gateway import Gateway
    from surefoot.server.store.accounts import ApiKey, Keys

MOST_BUCKETS: Final = 100_000
"""Most owners whose rate is tracked."""
KEY_PREFIX = "sf-"
"""Prefix of every key."""
READERS = 4
_LOOKUP_TIMEOUT_S = 10.0
"""Seconds for the lookup of a key."""
_PROXIES = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "via")
_LOG = logging.getLogger("surefoot.server")


class KeyAuth:
    """Checks the key of a request: its validity, role and rate.

    If no key is ``required``, every request from this machine is allowed, and a valid key only identifies the
    client. ``store`` is called in its own threads, so that no other slow call delays a check.
    """

    def __init__(
        self, store: Keys | None, *, required: bool = True, rate_per_minute: float | None = None
    ) -> None:
        self.store, self.required, self.rate_per_minute = store, required, rate_per_minute
        self._rates = Buckets()
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="surefoot-keys")

    async def check(self, headers: Mapping[str, str], action: Action = "connect") -> ApiKey | None:
        """The key of a request, or ``None`` without one. Raises :class:`ApiError` 401, 403, 429 or 503."""
        scheme, _, sent = headers.get("authorization", "").partition(" ")
        if not scheme and "x-api-key" in headers:  # as Anthropic's clients send it
            scheme, sent = "bearer", headers["x-api-key"]
        sent = sent.strip()
        key = await self._look_up(sent) if scheme.lower() == "bearer" and sent else None
        # on loopback, a client whose library needs some key may send any other text
        if key is None and (self.required or (self.store is not None and sent.startswith(KEY_PREFIX))):
            message = "no valid API key; send it as 'Authorization: Bearer sf-…' or 'x-api-key: sf-…'"
            raise ApiError(401, message, code="invalid_api_key")
        if key is None:
            require_local(headers)
            return None
        try:
            allowed(Principal(name=key.name, role=key.role, only_project=key.project_id), action)
        except ForbiddenError as error:
            raise ApiError(403, str(error), code="role") from error
        rate = key.rate_limit or self.rate_per_minute
        if rate is not None and (wait_s := self._rates.take(str(key.id), rate)) > 0:
            message = f"key {key.name!r} is allowed {rate:g} requests per minute"
            raise ApiError(429, message, code="rate_limit_exceeded", retry_after_s=wait_s)
        return key

    def close(self) -> None:
        """Stop the threads."""
        self._readers.shutdown(wait=False, cancel_futures=True)

    async def _look_up(self, key: str) -> ApiKey | None:
        if self.store is None:
            return None
        if (recalled := self.store.recall(key)) is not None:
            return recalled
        work = asyncio.get_running_loop().run_in_executor
        try:
            async with asyncio.timeout(_LOOKUP_TIMEOUT_S):
                return await work(self._readers, self.store.authenticate, key)
        except ExpiredKeyError as error:
            raise ApiError(401, str(error), code="expired_api_key") from error
        except (StoreError, TimeoutError) as error:
            raise ApiError(
                503, "the keys cannot be read now", code="store_failed", retry_after_s=5
            ) from error


class Buckets:
    """A bucket of one minute's tokens (at least 1) for each owner, which fills at ``rate_per_minute``; the
    owner idle for longest loses theirs."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float, float]] = OrderedDict()
        """Rate, tokens left, and the time of the last update."""

    def take(self, owner: str, rate_per_minute: float) -> float:
        """Take a token of an owner; seconds until there is one, 0 = taken."""
        now, full = self._clock(), max(1.0, rate_per_minute)
        rate, tokens, counted_at = self._buckets.pop(owner, (rate_per_minute, full, now))
        if rate != rate_per_minute:
            tokens, counted_at = full, now
        tokens = min(full, tokens + (now - counted_at) * rate_per_minute / 60)
        is_taken = tokens >= 1
        self._buckets[owner] = rate_per_minute, tokens - is_taken, now  # the most recently used is last
        if len(self._buckets) > MOST_BUCKETS:
            self._buckets.popitem(last=False)
        return 0.0 if is_taken else (1 - tokens) * 60 / rate_per_minute


class NumberConvertor(IntegerConvertor):
    """A number in an address: at most 15 digits, which a column can hold; anything longer is not found."""

    regex = "[0-9]{1,15}"


register_url_convertor("number", NumberConvertor())


@dataclass(frozen=True)
class Route:
    """What a method of a path calls, and who may call it."""

    method: str
    """``*`` = every method. Other methods of a gateway's path are answered 405."""
    path: str
    function: Callable[..., Any]
    """Of the gateway: ``async (gateway, request, …)``; of a page: ``(page, …)``."""
    action: Action | None
    """``None`` = open to everybody; the function makes its own checks."""
    twin: bool = False
    """Also served as JSON, at ``path.json``."""
    files: int = 0
    """Most files of a form."""
    changes: bool = False
    """Whether a GET changes something: no other site may link to it."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The path, and the path of the JSON twin."""
        return (self.path, f"{self.path}.json") if self.twin else (self.path,)

    @property
    def body(self) -> type[BaseModel] | None:
        """Type of the JSON body."""
        kind: type[BaseModel] | None = get_type_hints(self.function).get("body")
        return kind


class GuardedRoute:
    """ASGI app of a route: the key and its permissions come first, then the size and form of the body.

    ``request.state`` has the ``key`` or ``None``, and the ``body``; ``CALLER`` identifies the client.
    """

    def __init__(
        self, route: Route, *, gateway: Gateway | None, settings: ServerSettings, auth: KeyAuth
    ) -> None:
        self.route, self.gateway, self.limits, self.auth = route, gateway, settings.limits, auth
        self._body = route.body
        self._action = None if route.action == "probe" and settings.open_health else route.action

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        scope["route"] = self.route
        request = Request(scope, receive, send)
        try:
            key = None if self._action is None else await self.auth.check(request.headers, self._action)
        except ApiError as error:
            if self.gateway is not None:
                self.gateway.metrics.key_refusals.labels(error.code).inc()
            raise
        request.state.key = key
        client = request.client.host if request.client else "local"
        CALLER.set(client if key is None else f"key {key.id}")
        if self.route.method not in ("*", scope["method"]):
            message = f"{scope['path'][:100]} allows {self.route.method}"
            raise ApiError(405, message, code="method_not_allowed", allow=self.route.method)
        inputs = scope.get("path_params", {})
        if self._body is not None:
            request.state.body = body = await read_body(request, self.limits.max_body_bytes)
            inputs = {"body": parsed_body(body, request.headers, self._body, self.limits)}
        response = await self.route.function(self.gateway, request, **inputs)
        await response(scope, receive, send)


def address_in(host: str, networks: Sequence[str]) -> bool:
    """Whether the address ``host`` is, or lies in, one of ``networks``."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    address = getattr(address, "ipv4_mapped", None) or address
    return any(address in ipaddress.ip_network(network) for network in networks)


def require_local(headers: Mapping[str, str]) -> None:
    """Without keys, require that a request comes from this machine and names it.

    A foreign page that a browser was tricked into loading from this address (DNS rebinding), or that posts
    to it, shows in ``Host`` or ``Origin``; a proxy that exposes the address shows in its headers, unless they
    are turned off. Raises :class:`ApiError` 403.
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
        why = "it comes from another site's page"
    if why is not None:
        message = f"this server requires no key, so it answers only this machine, and {why}"
        raise ApiError(403, f"{message}; start the server with --require-key", code="not_local")


def _is_local(address: str) -> bool:
    try:
        name = urlsplit(address if "://" in address else f"//{address}").hostname
    except ValueError:
        return False
    return name is not None and is_loopback(name.removesuffix("."))


_MAX_DRAINED = 16
"""A refused body is still read up to so many times the bound: a client that writes before it reads would
otherwise see a broken connection, not the answer."""


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The body. Raises :class:`ApiError` 413 for one of more bytes, before or while it is read."""
    declared = request.headers.get("content-length", "")
    declared_bytes = int(declared) if declared.isdigit() else 0
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnectedError
        part = message.get("body", b"")
        size, more = size + len(part), message.get("more_body", False)
        if declared_bytes > max_bytes:
            more = more and size < _MAX_DRAINED * max_bytes
        elif size > max_bytes:
            more = False
        else:
            parts.append(part)
    if max(size, declared_bytes) > max_bytes:
        reason = f"the body is larger than {max_bytes} bytes, which limits.max_body_bytes allows here"
        raise ApiError(413, reason, code="body_too_large")
    return b"".join(parts)


def parsed_body(
    body: bytes, headers: Mapping[str, str], kind: type[BaseModel], limits: ServerLimits
) -> BaseModel:
    """The body as this kind of JSON object. Raises :class:`ApiError` 400 for anything else, for one nested
    too deeply or of too many parts, and for text that UTF-8 cannot hold."""
    max_depth = limits.max_json_depth
    if body.count(b"{") + body.count(b"[") > min(max_depth, limits.max_json_parts):
        depth, parts = json_shape(body, stop=max_depth)
        if depth > max_depth:
            raise ApiError(400, f"the JSON has more than {max_depth} levels", code="nested_too_deeply")
        if parts > limits.max_json_parts:
            message = f"the JSON has {parts} objects and lists; the limit is {limits.max_json_parts}"
            raise ApiError(400, f"{message}; send less at once", code="too_many_parts")
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":  # a browser sends other types to any address, without asking
        raise ApiError(400, "send a JSON object, with the Content-Type application/json")
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise invalid(error.errors()) from error


_QUOTE = ord('"')
_UNMARKED = bytes(set(range(256)) - set(b'"[]{}'))
_SIGNS = np.zeros(256, np.int8)
_SIGNS[list(b"[{")], _SIGNS[list(b"]}")] = 1, -1


def json_shape(body: bytes, *, stop: int) -> tuple[int, int]:
    """How deeply arrays and objects are nested, counted up to ``stop`` + 1, and how many there are; for valid
    JSON in UTF-8.

    In a body that is not valid, everything before the first error is counted as a parser would, or higher.
    """
    plain = body.replace(rb"\\", b"").replace(rb"\"", b"")  # the remaining quotes begin and end strings
    marks = np.frombuffer(plain.translate(None, _UNMARKED), np.uint8)
    quotes = np.cumsum(marks == _QUOTE, dtype=np.uint8)  # may wrap round: odd stays odd
    steps = _SIGNS[marks] * (quotes % 2 == 0)
    deepest = int(np.cumsum(steps, dtype=np.int32).max(initial=0))
    return min(deepest, stop + 1), int((steps > 0).sum())
