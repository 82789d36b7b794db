"""Computations on texts of clients: in threads, and in fair turns."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest
from gateway_server import LineScorer, ask, served

from surefoot.server.gateway.admission import SMALL_BYTES, Computation

LARGE = SMALL_BYTES + 1


def test_a_large_request_delays_neither_small_ones_nor_the_event_loop():
    async def main():
        computation, end = Computation(), threading.Event()
        large = asyncio.ensure_future(computation.run("hostile", LARGE, lambda: end.wait(20)))
        more = [asyncio.ensure_future(computation.run("hostile", LARGE, lambda: None)) for _ in range(3)]
        assert await computation.run("innocent", 10, lambda: threading.current_thread().name != "MainThread")
        other = asyncio.ensure_future(computation.run("innocent", LARGE, lambda: "second"))
        order = []
        for name, one in (("hostile", more[0]), ("innocent", other)):
            one.add_done_callback(lambda _, name=name: order.append(name))
        await asyncio.sleep(0.1)  # what the large one has cost
        end.set()
        assert await large
        assert await other == "second"
        await asyncio.gather(*more)
        assert order == ["innocent", "hostile"]
        computation.close()

    asyncio.run(main())


def test_cancelling_ends_the_waiting_and_errors_are_raised():
    async def main():
        computation, end = Computation(), threading.Event()
        running = asyncio.ensure_future(computation.run("a", LARGE, lambda: end.wait(20)))
        waiting = asyncio.ensure_future(computation.run("a", LARGE, lambda: pytest.fail("it was cancelled")))
        await asyncio.sleep(0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        end.set()
        assert await running
        with pytest.raises(ZeroDivisionError):
            await computation.run("a", LARGE, lambda: 1 / 0)
        computation.close()

    asyncio.run(main())


@pytest.mark.parametrize("field", ["solution", "trace"])
def test_a_solution_has_a_bounded_number_of_steps(field):
    text = "a\n" * 2001
    item = {"problem": "p", "solution": text}
    if field == "trace":
        item = {"problem": "p", "trace": {"problem_id": "p", "text": text}}
    with served(scorer=LineScorer()) as found:
        status, answer = ask(f"{found.url}/score", json.dumps({"items": [item]}))
        assert (status, answer["error"]["param"]) == (400, field)
        assert "2001 steps, at most 2000" in answer["error"]["message"]
