"""The sandbox of a name or an address."""

from __future__ import annotations

from surefoot.errors import SandboxError
from surefoot.sandbox.bubblewrap import BubblewrapSandbox
from surefoot.sandbox.containers import IMAGE, ContainerSandbox
from surefoot.sandbox.remote import RemoteSandbox

_URL = ("http://", "https://")
_ENGINES = ("docker", "podman")


def open_sandbox(
    name: str = "bubblewrap", *, concurrency: int | None = None
) -> BubblewrapSandbox | ContainerSandbox | RemoteSandbox:
    """The sandbox ``name``: ``bubblewrap``, ``docker``, ``podman`` (``docker:IMAGE`` names the image), or the
    URL of a server (``surefoot serve sandbox``).

    ``concurrency`` is the number of programs at once (default: one for each core); a server has its own.

    Raises:
        SandboxError: there is no such sandbox, or it cannot isolate programs here; the message says what to
            install.
    """
    check_sandbox_name(name)
    if name == "bubblewrap":
        return BubblewrapSandbox(concurrency=concurrency)
    if name.startswith(_URL):
        return RemoteSandbox(name)
    engine, _, image = name.partition(":")
    return ContainerSandbox(engine, image=image or IMAGE, concurrency=concurrency)


def check_sandbox_name(name: str) -> None:
    """Raises ``SandboxError`` for what ``open_sandbox`` does not know. Nothing is opened."""
    if name != "bubblewrap" and not name.startswith(_URL) and name.partition(":")[0] not in _ENGINES:
        raise SandboxError(
            f"there is no sandbox {name!r}; use 'bubblewrap', 'docker', 'podman' or a server's URL"
        )
