"""Asynchronous calls from a script and from inside a running loop."""

from __future__ import annotations

import asyncio

import pytest

from surefoot.concurrency import run_sync


async def double(value: int) -> int:
    await asyncio.sleep(0)
    if value < 0:
        raise ValueError("negative")
    return 2 * value


def test_a_script_waits_for_the_result() -> None:
    assert run_sync(double(2)) == 4


def test_a_cell_of_a_notebook_does_too() -> None:
    async def cell() -> int:
        return run_sync(double(3))

    assert asyncio.run(cell()) == 6


def test_exceptions_reach_the_caller_either_way() -> None:
    async def cell() -> int:
        return run_sync(double(-1))

    with pytest.raises(ValueError, match="negative"):
        run_sync(double(-1))
    with pytest.raises(ValueError, match="negative"):
        asyncio.run(cell())
