"""Addresses of clients: what counts as one client, and which addresses are proxies."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

PEER: Final = "surefoot.peer"
"""Key of a request's scope: the address of the connection it came by."""


def client_address(host: str) -> str:
    """What counts as one address: an IPv4 address, or the /64 network that one IPv6 client can use freely."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return host


def address_in(host: str, networks: Sequence[str]) -> bool:
    """Whether the address ``host`` is, or lies in, one of ``networks``."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return any((mapped or address) in ipaddress.ip_network(network) for network in networks)


class DirectPeer:
    """ASGI middleware that keeps the connection's address; X-Forwarded-For may replace ``client``."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        scope[PEER] = scope.get("client")
        await self.app(scope, receive, send)
