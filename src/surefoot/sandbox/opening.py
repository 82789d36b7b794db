"""The sandbox of a name or an address."""

from __future__ import annotations

from surefoot.errors import SandboxError
from surefoot.sandbox.bubblewrap import BubblewrapSandbox
from surefoot.sandbox.remote import RemoteSandbox


def open_sandbox(
    name: str = "bubblewrap", *, concurrency: int | None = None
) -> BubblewrapSandbox | RemoteSandbox:
    """The sandbox ``name``: ``bubblewrap``, or the URL of a server (``surefoot serve sandbox``).

    ``concurrency`` is the number of programs at once (default: one for each core); a server has its own.

    Raises:
        SandboxError: there is no such sandbox, or it cannot isolate programs here; the message says what to
            install.
    """
    if name == "bubblewrap":
        return BubblewrapSandbox(concurrency=concurrency)
    if name.startswith(("http://", "https://")):
        return RemoteSandbox(name)
    raise SandboxError(f"there is no sandbox {name!r}; use 'bubblewrap' or the URL of a server")
