"""The sandbox of a name: ``bubblewrap``."""

from __future__ import annotations

from surefoot.errors import SandboxError
from surefoot.sandbox.bubblewrap import BubblewrapSandbox


def open_sandbox(name: str = "bubblewrap", *, concurrency: int | None = None) -> BubblewrapSandbox:
    """The sandbox ``name``, with ``concurrency`` programs at once (default: one for each core).

    Raises:
        SandboxError: there is no such sandbox, or it cannot isolate programs here; the message says what to
        install.
    """
    if name == "bubblewrap":
        return BubblewrapSandbox(concurrency=concurrency)
    raise SandboxError(f"there is no sandbox {name!r}; use 'bubblewrap'")
