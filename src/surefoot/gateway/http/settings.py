"""What a server may be asked for, and where it listens."""

from __future__ import annotations

import ipaddress

from pydantic import BaseModel, ConfigDict, Field


class Settings(BaseModel):
    """Base of the settings classes: frozen, no unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Limits(Settings):
    """What one request, and all of them together, may take."""

    max_body_bytes: int = Field(default=2_000_000, ge=1)
    max_json_depth: int = Field(default=32, ge=1, le=200)
    max_tokens: int = Field(default=8192, ge=1)
    """Longest solution that a client may ask for."""
    default_tokens: int = Field(default=2048, ge=1)
    """Longest solution of a client that does not say."""
    max_n: int = Field(default=16, ge=1)
    """Choices of one request."""
    max_candidates: int = Field(default=128, ge=1)
    """Solutions, or next steps of a round, that one request draws at once, over all its choices."""
    max_items: int = Field(default=256, ge=1)
    """Solutions of one scoring request."""
    running: int = Field(default=256, ge=1)
    """Requests worked on at the same time."""
    waiting: int = Field(default=256, ge=0)
    """Requests that wait for a place; the next is answered 429."""
    timeout_s: float = Field(default=300.0, gt=0)
    """Seconds from arrival to answer."""
    grace_s: float = Field(default=30.0, ge=0)
    """Seconds that running requests have after the signal to stop."""
    rate_per_minute: float | None = Field(default=None, gt=0)
    """Requests a minute of a key that names no rate of its own; ``None`` = no limit."""
    keep_alive_s: float = Field(default=15.0, gt=0)
    """Seconds of silence in a stream after which a comment is sent."""


class ServerSettings(Settings):
    """Where a server listens, and who may ask it."""

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    """0 = any that is free."""
    require_key: bool = False
    """Ask for a key on loopback, too. Beyond loopback one is always asked for."""
    open_health: bool = False
    """Answer ``/health`` and ``/ready`` without a key, for probes that have none."""
    limits: Limits = Limits()

    @property
    def asks_for_keys(self) -> bool:
        """Whether nothing is answered without a key."""
        return self.require_key or not is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches ``host``. A name other than ``localhost`` is taken for reachable."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
