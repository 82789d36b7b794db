"""A server that finishes running requests before it stops."""

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

_M_ARENA_MAX, _ARENAS = -8, 2
"""Option of glibc: heaps of the C library."""
_SWITCH_S = 0.001
"""Seconds for which a thread that computes keeps the interpreter while the event loop waits for it."""
_CANCEL_S = 10
"""Seconds for answering requests that were not done in time."""
_OBJECTS_PER_COLLECTION = 50_000
"""Of new objects; a request makes some hundred."""


class GracefulServer(uvicorn.Server):
    """Stops in order: at a signal, or once ``should_exit`` is set, it accepts no more connections, running
    requests have ``grace_s`` seconds, and the rest is answered 503. A second interrupt ends it at once."""

    def __init__(self, config: uvicorn.Config, gateway: Gateway | None) -> None:
        super().__init__(config)
        self.gateway = gateway
        sys.setswitchinterval(min(_SWITCH_S, sys.getswitchinterval()))
        if sys.platform == "linux":  # else the C library makes a heap for each thread, and keeps them
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _ARENAS)

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """See the base class. Objects that exist before the start are not searched for garbage."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(_OBJECTS_PER_COLLECTION)
        super().run(sockets)

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
