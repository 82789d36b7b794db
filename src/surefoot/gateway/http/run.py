"""Running an application with uvicorn, in this process, so that it stops without losing what it works on."""

from __future__ import annotations

import asyncio
import socket

import uvicorn
from fastapi import FastAPI

from surefoot.gateway.gateway import Gateway
from surefoot.gateway.http.settings import ServerSettings

_HAND_BACK_S = 10
"""Seconds for answering what was not done in time."""


class GracefulServer(uvicorn.Server):
    """Stops in order: at a signal, or once ``should_exit`` is set, no connection is taken any more, what runs
    has the grace of its gateway's limits, and the rest is answered 503. A second interrupt ends it at once.
    """

    def __init__(self, config: uvicorn.Config, gateway: Gateway | None) -> None:
        super().__init__(config)
        self.gateway = gateway

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the doors, and wait for what runs."""
        stopping = asyncio.ensure_future(self.gateway.stop()) if self.gateway is not None else None
        await super().shutdown(sockets)
        if stopping is not None:
            stopping.cancel()
            await asyncio.gather(stopping, return_exceptions=True)


def server_of(app: FastAPI, settings: ServerSettings, *, log_level: str = "warning") -> GracefulServer:
    """A server that is not running yet; ``.run()`` runs it until a signal comes."""
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        log_level=log_level,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=int(settings.limits.grace_s) + _HAND_BACK_S,
    )
    return GracefulServer(config, app.state.gateway)
