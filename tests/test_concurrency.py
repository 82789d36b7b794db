"""Asynchronous calls from a script and from inside a running loop."""

from __future__ import annotations

import asyncio
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.concurrency import FairQueue, FairTurn, run_sync


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


def granted(turns: list[FairTurn]) -> FairTurn:
    [running] = [turn for turn in turns if turn.granted.done()]
    return running


def test_a_free_slot_goes_to_the_key_that_has_used_the_least() -> None:
    queue = FairQueue(1)
    for key, seconds in (("heavy", 3.0), ("light", 0.1)):
        queue.leave(queue.enter(key), seconds)
    running = queue.enter("somebody")
    waiting = [queue.enter("heavy") for _ in range(5)] + [queue.enter(name) for name in ("light", "new")]
    queue.leave(running, 0.001)
    served = []
    while waiting:
        running = granted(waiting)
        served.append(running.key)
        waiting.remove(running)
        queue.leave(running, 0.001)
    assert served == ["new", "light", *["heavy"] * 5]


@given(
    costs=st.lists(st.lists(st.floats(0.01, 50), min_size=1, max_size=5), min_size=2, max_size=4),
    known=st.booleans(),
    slots=st.integers(1, 3),
)
def test_keys_that_always_wait_get_equal_shares_whatever_their_turns_cost(
    costs: list[list[float]], known: bool, slots: int
) -> None:
    """Of the service of two keys that always wait, at most some turns of each are the difference."""
    queue = FairQueue(slots)
    cost_of = [itertools.cycle(row) for row in costs]
    used = [0.0] * len(costs)
    waiting: list[tuple[FairTurn, float]] = []

    def ask(key: int) -> None:
        cost = next(cost_of[key])
        waiting.append((queue.enter(str(key), cost=cost if known else None), cost))

    for key in range(len(costs)):
        for _ in range(slots + 1):
            ask(key)
    for _ in range(200):
        turn, cost = next(pair for pair in waiting if pair[0].granted.done())
        waiting.remove((turn, cost))
        key = int(turn.key)
        used[key] += cost
        ask(key)
        queue.leave(turn, None if known else cost)
    most = max(max(row) for row in costs)
    assert max(used) - min(used) <= 2 * (slots + 1) * most


def test_a_key_that_was_idle_waits_for_one_turn_of_a_flood() -> None:
    queue = FairQueue(1)
    flood = [queue.enter("hostile", cost=10) for _ in range(50)]
    for _ in range(5):
        innocent = queue.enter("innocent", cost=1)
        running = granted(flood)
        flood.remove(running)
        queue.leave(running)
        assert innocent.granted.done()
        queue.leave(innocent)


def test_a_quick_slot_is_for_keys_whose_turns_are_short() -> None:
    queue = FairQueue(2, quick=1, quick_cost=1.0)
    first, second = queue.enter("hostile"), queue.enter("hostile")
    assert (first.granted.done(), first.quick) == (True, False)
    assert not second.granted.done()  # nothing is known of the key, and it has a slot
    innocent = queue.enter("innocent")
    assert (innocent.granted.done(), innocent.quick) == (True, True)
    queue.leave(innocent, 0.1)
    queue.leave(first, 30.0)
    third = queue.enter("hostile")
    assert (second.quick, third.granted.done()) == (False, False)  # the free slot is quick
    queue.leave(second, 30.0)
    assert third.granted.done()
    queue.leave(third, 0.01)
    for _ in range(8):
        turn = queue.enter("hostile")
        queue.leave(turn, 0.01)
    assert turn.quick


def test_many_hostile_keys_never_come_before_a_key_with_short_turns() -> None:
    queue = FairQueue(2, quick=1, quick_cost=0.1)
    busy = queue.enter("somebody", quick=False)
    queue.leave(queue.enter("innocent"), 0.005)
    waiting = [queue.enter(f"hostile {number % 8}") for number in range(24)]
    for _ in range(20):
        innocent, delay = queue.enter("innocent"), 0
        while not innocent.granted.done():
            running = granted(waiting)
            waiting.remove(running)
            queue.leave(running, 0.1)
            delay += 1
        assert delay <= 1
        queue.leave(innocent, 0.005)
    queue.leave(busy, 1.0)


def test_of_one_key_the_oldest_comes_first() -> None:
    queue = FairQueue(1)
    running = queue.enter("nat")
    old, new = queue.enter("nat"), queue.enter("nat")
    queue.leave(running, 1.0)
    assert old.granted.done()
    assert not new.granted.done()


def test_a_turn_that_is_given_up_leaves_the_queue_and_the_table_of_keys_is_bounded() -> None:
    queue = FairQueue(1)
    running, left, last = (queue.enter(name) for name in "abc")
    left.granted.cancel()
    queue.leave(left)
    queue.leave(running, 5.0)
    assert last.granted.done()
    queue.leave(last, 0.0)
    for number in range(10_010):
        queue.leave(queue.enter(f"key {number}"), 1e-6)
    assert len(queue._shares) == 10_000


def test_a_turn_in_a_thread_ends_with_the_work_although_the_caller_is_cancelled() -> None:
    async def main() -> None:
        queue, end = FairQueue(1), threading.Event()
        with ThreadPoolExecutor(2) as threads:
            running = asyncio.ensure_future(queue.run(threads, lambda: end.wait(20), key="a"))
            waiting = asyncio.ensure_future(queue.run(threads, pytest.fail, key="a"))
            await asyncio.sleep(0.01)
            for task in (running, waiting):
                task.cancel()
            await asyncio.gather(running, waiting, return_exceptions=True)
            late = asyncio.ensure_future(queue.run(threads, lambda: "late", key="b"))
            await asyncio.sleep(0.01)
            assert not late.done()
            end.set()
            assert await late == "late"
            async with queue.async_turn("c"):
                pass

    asyncio.run(main())
