"""Runs coroutines from synchronous code."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

R = TypeVar("R")


def run_sync(coroutine: Coroutine[Any, Any, R]) -> R:
    """Wait for ``coroutine`` and return its result, in a script, a REPL or a notebook alike.

    ``asyncio.run`` fails if an event loop is already running, as in a notebook's cells. In that case the
    coroutine runs in a new loop in another thread while this one waits. Its exceptions are raised here.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(contextvars.copy_context().run, asyncio.run, coroutine).result()
