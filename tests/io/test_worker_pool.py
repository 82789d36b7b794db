"""Whose turn it is for the workers of a pool."""

from __future__ import annotations

import threading
import time

import pytest

from surefoot.errors import LabelError
from surefoot.io.worker_pool import (
    MAX_CALLERS,
    SLICE_S,
    FairTurns,
    RequestBudget,
    WorkerPool,
)


def test_a_free_worker_goes_to_the_caller_who_has_used_the_least():
    turns = FairTurns([], ["only"])
    for caller, seconds in (("heavy", 3.0), ("light", 0.1)):
        turns.leave(turns.enter(caller), seconds)
    running = turns.enter("somebody")
    waiting = [turns.enter("heavy") for _ in range(5)] + [turns.enter(name) for name in ("light", "new")]
    served = []
    while running is not None:
        turns.leave(running, 0.001)
        running = next((turn for turn in waiting if turn.worker is not None), None)
        if running is not None:
            served.append(running.caller)
            waiting.remove(running)
    assert served == ["new", "light", *["heavy"] * 5]


def test_callers_who_ask_for_ever_share_the_worker_equally_and_an_idle_one_comes_first():
    turns = FairTurns([], ["only"])
    waiting = [turns.enter(f"hostile {number % 3}") for number in range(30)]
    seconds, delays = dict.fromkeys((f"hostile {number}" for number in range(3)), 0.0), []
    for round_ in range(60):
        [running] = [turn for turn in waiting if turn.worker is not None]
        innocent = turns.enter("innocent") if round_ % 10 == 5 else None
        waiting.remove(running)
        waiting.append(turns.enter(running.caller))  # a new request: no fresh share
        turns.leave(running, 2.0)
        seconds[running.caller] += 2.0
        if innocent is not None:
            delays.append(innocent.worker is not None)
            turns.leave(innocent, 0.01)
    assert delays == [True] * 6  # it waits for the question that runs, and for no other
    assert max(seconds.values()) - min(seconds.values()) <= 2.0


def test_a_caller_whose_slices_overrun_gets_no_quick_worker_until_its_questions_are_short():
    turns = FairTurns(["quick"], ["other"])
    busy = turns.enter("somebody", quick=False)
    for _ in range(5):
        turn = turns.enter("hostile")
        assert turn.on_quick
        turns.leave(turn, SLICE_S)
    refused, innocent = turns.enter("hostile"), turns.enter("innocent")
    assert refused.worker is None
    assert innocent.on_quick
    turns.leave(innocent, 0.001)
    assert refused.worker is None  # although the quick worker is free
    turns.leave(busy, 1.0)
    assert refused.worker == "other"
    turns.leave(refused, 0.001)
    again = turns.enter("hostile")
    assert again.on_quick


def test_many_hostile_callers_never_come_before_a_caller_with_short_questions():
    turns = FairTurns(["quick"], ["other"])
    busy = turns.enter("somebody", quick=False)
    turns.leave(turns.enter("innocent"), 0.005)
    waiting = [turns.enter(f"hostile {number % 8}") for number in range(24)]
    delays = []
    for _ in range(20):
        innocent = turns.enter("innocent")
        delays.append(0)
        while not innocent.on_quick:  # hostile questions hold the worker for a slice each
            [running] = [turn for turn in waiting if turn.on_quick]
            waiting.remove(running)
            turns.leave(running, SLICE_S)
            delays[-1] += 1
        turns.leave(innocent, 0.005)
    assert max(delays) <= 1
    turns.leave(busy, 1.0)


def test_new_callers_do_not_come_before_one_whose_questions_are_short():
    turns = FairTurns(["quick"], ["other"])
    busy = turns.enter("somebody", quick=False)
    for _ in range(50):
        turns.leave(turns.enter("innocent"), 0.005)
    new = [turns.enter(f"new {number}") for number in range(8)]
    innocent = turns.enter("innocent")
    turns.leave(new[0], SLICE_S)
    assert innocent.on_quick
    turns.leave(innocent, 0.005)
    assert new[1].on_quick
    turns.leave(busy, 1.0)


def test_short_questions_never_cost_the_quick_worker_and_use_any_that_is_free():
    turns = FairTurns(["quick"], ["other"])
    for _ in range(200):
        turns.leave(turns.enter("busy"), SLICE_S / 2)
    first, second, third = (turns.enter("busy") for _ in range(3))
    assert (first.on_quick, second.worker, third.worker) == (True, "other", None)
    turns.leave(second, 0.001)
    assert third.worker == "other"


def test_of_one_caller_the_request_that_has_used_the_least_comes_first():
    turns = FairTurns([], ["only"])
    running = turns.enter("nat")
    old, new = turns.enter("nat", used_s=4.0), turns.enter("nat", used_s=0.0)
    turns.leave(running, 1.0)
    assert (old.worker, new.worker) == (None, "only")


def test_a_turn_that_is_given_up_leaves_the_queue_and_the_table_of_callers_is_bounded():
    turns = FairTurns([], ["only"])
    running, left, next_ = (turns.enter(name) for name in "abc")
    assert turns.wait(left, 0.001) is None
    turns.leave(running, 5.0)
    assert next_.worker == "only"
    turns.leave(next_, 0.0)
    for number in range(MAX_CALLERS + 10):
        turns.leave(turns.enter(f"caller {number}"), 1e-6)
    assert len(turns._use) == MAX_CALLERS


def load_sleepy():
    def answer(seconds):
        time.sleep(seconds)
        return seconds

    return answer


@pytest.fixture
def pool():
    made = WorkerPool(load_sleepy, size=2, timeout_s=0.6, memory_mb=512, error=LabelError)
    yield made
    made.close()


def test_a_question_longer_than_a_slice_is_answered_by_another_worker(pool):
    budget = RequestBudget(20, caller="honest")
    assert [pool.ask(seconds, budget).answer for seconds in (0.01, 0.3)] == [0.01, 0.3]
    assert pool.ask(5, budget).failure == "timeout"
    assert pool.ask(5, RequestBudget(0.3)).failure == "budget"


def test_hostile_callers_wait_for_each_other_and_cancelling_ends_the_waiting(pool):
    budgets = [RequestBudget(60, caller=f"hostile {number}") for number in range(6)]
    failures = []
    threads = [
        threading.Thread(target=lambda one=one: failures.append(pool.ask(30, one).failure)) for one in budgets
    ]
    for thread in threads:
        thread.start()
    answers = [pool.ask(0.01, RequestBudget(60, caller="innocent")).answer for _ in range(5)]
    for budget in budgets:
        budget.cancel()
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()
    assert answers == [0.01] * 5
    assert set(failures) <= {"cancelled", "timeout"}
    assert "cancelled" in failures  # at most two had a worker
    assert pool.ask(0.01).answer == 0.01
