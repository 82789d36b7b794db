"""Fair turns in front of what clients share: texts, the reward model, the policy, slots."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from gateway_server import LineScorer, ask, served, wait_until

from benchmarks.worlds.scripted import ScriptedPolicy
from surefoot.concurrency import CALLER, FairQueue
from surefoot.protocols import ProblemTrace
from surefoot.records import Problem, Step, StepScores, Trace
from surefoot.server import open_database
from surefoot.server.gateway.admission import Admission
from surefoot.server.gateway.errors import ApiError
from surefoot.server.gateway.upstream import Upstream, UpstreamScorer


def test_a_large_request_delays_neither_small_ones_nor_the_event_loop():
    async def main():
        queue, end = FairQueue(2, quick=1), threading.Event()
        with ThreadPoolExecutor(2) as threads:

            def run(key, work, quick=False):
                return asyncio.ensure_future(queue.run(threads, work, key=key, quick=quick))

            large = run("hostile", lambda: end.wait(20))
            more = [run("hostile", lambda: None) for _ in range(3)]
            small = run("innocent", lambda: threading.current_thread() is not threading.main_thread(), True)
            assert await small
            other, order = run("innocent", lambda: "second"), []
            for name, task in (("hostile", more[0]), ("innocent", other)):
                task.add_done_callback(lambda _, name=name: order.append(name))
            await asyncio.sleep(0.05)  # what the large one has cost
            end.set()
            assert await large
            assert await other == "second"
            await asyncio.gather(*more)
            assert order == ["innocent", "hostile"]

    asyncio.run(main())


class Scorer:
    """Waits for ``gate``, and notes the callers of each batch."""

    name = "s"

    def __init__(self, *, overlaps=False):
        self.overlaps, self.gate, self.batches, self.running = overlaps, threading.Event(), [], 0

    def score_traces(self, items):
        self.batches.append([item.problem.text for item in items])
        if self.batches[-1][0] == "hostile":
            assert self.gate.wait(20)
        return [StepScores(trace_id=item.trace.id, scorer="s", scores=(0.5,)) for item in items]


def item(caller, characters):
    problem = Problem(text=caller)
    trace = Trace(problem_id=problem.id, text="a" * characters, steps=(Step(start=0, end=characters),))
    return ProblemTrace(problem=problem, trace=trace)


def batcher(scorer):
    policy = ScriptedPolicy(lambda *_: "x")
    return Upstream(policy, UpstreamScorer(scorer), on_batch=lambda _: None)


def as_caller(key, work):
    token = CALLER.set(key)
    task = asyncio.ensure_future(work)
    CALLER.reset(token)
    return task


def test_a_flood_of_long_solutions_delays_a_short_one_by_one_batch():
    async def main():
        scorer = Scorer()
        made = batcher(scorer)
        flood = [as_caller("a", made.score([item("hostile", 9_000)] * 20)) for _ in range(12)]
        await asyncio.sleep(0.02)
        short = as_caller("b", made.score([item("innocent", 100)]))
        await asyncio.sleep(0.02)
        scorer.gate.set()
        [record] = await short
        seen = len(scorer.batches)
        await asyncio.gather(*flood)
        made.close()
        assert record.scores == (0.5,)
        assert "innocent" in scorer.batches[1]
        assert seen <= 3
        assert len(scorer.batches[0]) <= 4

    asyncio.run(main())


def test_a_key_that_floods_the_reward_model_delays_another_by_some_batches(tmp_path):
    scorer = Scorer()
    with (
        open_database(tmp_path / "store.db") as db,
        served(scorer=scorer, db=db, require_key=True) as found,
        ThreadPoolExecutor(13) as threads,
    ):
        keys = {name: db.keys.create(name, "client") for name in ("hostile", "innocent")}

        def score(name, count, characters):
            items = [{"problem": name, "steps": ["a" * characters]}] * count
            headers = {"Authorization": f"Bearer {keys[name][0]}"}
            return ask(f"{found.url}/score", json.dumps({"items": items}), headers)[0]

        flood = [threads.submit(score, "hostile", 20, 9_000) for _ in range(12)]
        wait_until(lambda: scorer.batches and found.gateway.admission.running == 12)
        small, caller = threads.submit(score, "innocent", 1, 100), f"key {keys['innocent'][1].id}"
        wait_until(lambda: caller in [key for key, _ in list(found.gateway.upstream._scoring._waiting)])
        scorer.gate.set()
        assert small.result(20) == 200
        assert any("innocent" in batch for batch in scorer.batches[:4])
        assert {task.result(60) for task in flood} == {200}
        assert sum(map(len, scorer.batches)) == 241


def test_slow_programs_of_one_client_leave_a_turn_for_another():
    async def main():
        scorer = Scorer(overlaps=True)
        made = batcher(scorer)
        flood = [as_caller("a", made.score([item("hostile", 10)])) for _ in range(30)]
        await asyncio.sleep(0.02)
        [record] = await asyncio.wait_for(as_caller("b", made.score([item("innocent", 10)])), 5)
        assert record.scores == (0.5,)
        scorer.gate.set()
        await asyncio.gather(*flood)
        made.close()

    asyncio.run(main())


def test_requests_take_turns_by_what_they_may_cost():
    async def main():
        order, admission = [], Admission(running=1, waiting=99)
        gate = admission.reserve()

        async def run(key, cost):
            CALLER.set(key)
            async with admission.reserve(cost=cost):
                order.append(key)

        async with gate:
            work = [asyncio.ensure_future(run(*one)) for one in [("a", 900)] * 4 + [("b", 300)] * 4]
            await asyncio.sleep(0.02)
        await asyncio.gather(*work)
        assert order == ["a", "b", "b", "b", "a", "b", "a", "a"]

    asyncio.run(main())


def test_a_full_server_still_admits_a_client_with_less_than_its_share():
    admission = Admission(running=2, waiting=2)
    CALLER.set("hostile")
    held = [admission.reserve() for _ in range(4)]
    with pytest.raises(ApiError):
        admission.reserve()
    CALLER.set("innocent")
    held += [admission.reserve(), admission.reserve()]
    with pytest.raises(ApiError):
        admission.reserve()
    for slot in held:
        slot.close()
    assert not admission.shares.by_owner
    CALLER.set("")


@pytest.mark.parametrize("field", ["solution", "trace"])
def test_a_solution_has_a_bounded_number_of_steps(field):
    text = "a\n" * 2001
    body = {"problem": "p", "solution": text}
    if field == "trace":
        body = {"problem": "p", "trace": {"problem_id": "p", "text": text}}
    with served(scorer=LineScorer()) as found:
        status, answer = ask(f"{found.url}/score", json.dumps({"items": [body]}))
        assert (status, answer["error"]["param"]) == (400, field)
        assert "2001 steps, from 1 to 2000" in answer["error"]["message"]
