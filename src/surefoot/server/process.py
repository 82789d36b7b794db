"""A server that finishes running requests before it stops, and returns memory that it does not need."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import socket
import sys

import uvicorn
from starlette.applications import Starlette
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from surefoot.server.gateway.access import DirectPeer
from surefoot.server.gateway.gateway import Gateway
from surefoot.server.gateway.settings import ServerSettings

_SWITCH_S = 0.001
"""Seconds for which a thread that computes keeps the interpreter while the event loop waits for it."""
_CANCEL_S = 10
"""Seconds for answering requests that were not done in time."""
_ARENAS = 2
"""Heaps of the C library, which would otherwise make one for each of some hundred threads and keep them."""
_M_ARENA_MAX = -8
_OBJECTS_PER_COLLECTION = 10_000
"""Of new objects; a request makes some hundred."""
_TICKS_PER_TRIM = 100
"""Between two looks whether the server is idle; uvicorn ticks ten times a second."""


class GracefulServer(uvicorn.Server):
    """Stops in order: at a signal, or once ``should_exit`` is set, it accepts no more connections, running
    requests have ``grace_s`` seconds, and the rest is answered 503. A second interrupt ends it at once.

    With glibc, threads share ``_ARENAS`` heaps, and free memory is returned to the system when no request
    runs.
    """

    def __init__(self, config: uvicorn.Config, gateway: Gateway | None) -> None:
        super().__init__(config)
        self.gateway = gateway
        sys.setswitchinterval(min(_SWITCH_S, sys.getswitchinterval()))
        libc = ctypes.CDLL(None) if sys.platform == "linux" else None
        self._trim = getattr(libc, "malloc_trim", None)
        self._trimmed = 0
        if self._trim is not None:
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _ARENAS)

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """See the base class. Objects that exist before the start are not searched for garbage."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(_OBJECTS_PER_COLLECTION)
        super().run(sockets)

    async def on_tick(self, counter: int) -> bool:
        """See the base class; returns free memory to the system after requests."""
        served = self.server_state.total_requests
        is_idle = self.gateway is None or not self.gateway.admission.admitted
        if self._trim is not None and not counter % _TICKS_PER_TRIM and is_idle and served > self._trimmed:
            self._trimmed = served
            await asyncio.to_thread(self._trim, 0)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more connections, and wait for running requests."""
        stopping = asyncio.ensure_future(self.gateway.stop()) if self.gateway is not None else None
        await super().shutdown(sockets)
        if stopping is not None:
            stopping.cancel()
            await asyncio.gather(stopping, return_exceptions=True)


def make_server(app: Starlette, settings: ServerSettings, *, log_level: str = "warning") -> GracefulServer:
    """A server that is not running yet; ``.run()`` runs it until a signal comes."""
    gateway: Gateway | None = app.state.gateway
    served = ProxyHeadersMiddleware(app, list(settings.proxies)) if settings.proxies else app  # type: ignore[arg-type]
    config = uvicorn.Config(
        DirectPeer(served),  # type: ignore[arg-type]
        http="httptools",
        limit_concurrency=settings.limits.connections,
        proxy_headers=False,
        host=settings.host,
        port=settings.port,
        log_level=log_level,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=int(settings.limits.grace_s) + _CANCEL_S,
    )
    return GracefulServer(config, gateway)
