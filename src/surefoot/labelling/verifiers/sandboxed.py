"""What verifiers that run something share: their sandbox, and verdicts on what stops at a first error."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Self

from surefoot.labels import AFTER_FIRST_ERROR
from surefoot.protocols import Verdict
from surefoot.sandbox import Limits, Sandbox, open_sandbox


class SandboxedVerifier:
    """A verifier that runs programs. Use as a context manager, or call ``close``."""

    usual: Limits = Limits(wall_s=5, cpu_s=5, output_bytes=8 << 20)
    """Limits of one run, unless others are given."""

    def __init__(self, sandbox: Sandbox | str = "bubblewrap", *, limits: Limits | None = None) -> None:
        """``sandbox``: one that is open, or a name, which is opened when needed and closed at the end."""
        self._given, self.limits = sandbox, limits or self.usual
        self._own: Sandbox | None = None
        self._closing = ExitStack()

    @property
    def sandbox(self) -> Sandbox:
        """Raises ``SandboxError`` where programs cannot be isolated."""
        if not isinstance(self._given, str):
            return self._given
        if self._own is None:
            opened = open_sandbox(self._given)
            self._closing.callback(opened.close)
            self._own = opened
        return self._own

    def close(self) -> None:
        """End the sandbox if it is this verifier's own."""
        self._closing.close()
        self._own = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def unknown(count: int, reason: str) -> list[Verdict]:
    """Nothing is known of any of ``count`` steps."""
    return [Verdict(value=None, reason=reason)] * count


def first_error(count: int, wrong: int, reason: str, before: str) -> list[Verdict]:
    """Step ``wrong`` of ``count`` is -1, those before it +1, and those after it unknown."""
    return [
        Verdict(value=1, reason=before)
        if step < wrong
        else Verdict(value=-1, reason=reason)
        if step == wrong
        else Verdict(value=None, reason=AFTER_FIRST_ERROR)
        for step in range(count)
    ]
