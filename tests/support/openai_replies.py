"""Requests and replies of the scripted OpenAI-compatible server."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

Body = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What to send. ``wait_s`` before the answer; ``drop`` cuts the connection half way through it.

    With ``events`` a stream: each is sent as soon as it comes, a body as the data of an event, bytes as they
    are; then ``[DONE]``, or with ``drop`` nothing more. It is closed if the client leaves.
    """

    payload: Body | str = ""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    wait_s: float = 0.0
    drop: bool = False
    events: Iterable[Body | bytes] | None = None
