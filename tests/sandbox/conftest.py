"""One warm box for all tests of the sandbox."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from surefoot.errors import SandboxError
from surefoot.sandbox import BubblewrapSandbox, open_sandbox


@pytest.fixture(scope="session")
def sandbox() -> Iterator[BubblewrapSandbox]:
    try:
        box = open_sandbox("bubblewrap", concurrency=2)
    except SandboxError as missing:
        pytest.skip(str(missing))
    with box:
        yield box
