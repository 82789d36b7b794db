"""Open a sandbox by name."""

from __future__ import annotations

from surefoot.errors import SandboxError
from surefoot.sandbox.bubblewrap import BubblewrapSandbox
from surefoot.sandbox.containers import IMAGE, ContainerSandbox

_ENGINES = ("docker", "podman")


def open_sandbox(
    name: str = "bubblewrap", *, concurrency: int | None = None
) -> BubblewrapSandbox | ContainerSandbox:
    """Open the sandbox ``name``: ``bubblewrap``, ``docker`` or ``podman`` (``docker:IMAGE`` sets the image).

    ``concurrency`` is the number of programs that run at once (default: one per core).

    Raises:
        SandboxError: unknown name, or programs cannot be isolated here; the message says what to install.
    """
    check_sandbox_name(name)
    if name == "bubblewrap":
        return BubblewrapSandbox(concurrency=concurrency)
    engine, _, image = name.partition(":")
    return ContainerSandbox(engine, image=image or IMAGE, concurrency=concurrency)


def check_sandbox_name(name: str) -> None:
    """Raise ``SandboxError`` if ``open_sandbox`` does not support ``name``. Opens nothing."""
    if name != "bubblewrap" and name.partition(":")[0] not in _ENGINES:
        raise SandboxError(f"unknown sandbox {name!r}; use 'bubblewrap', 'docker' or 'podman'")
