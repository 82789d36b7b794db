"""Questions of many callers to a pool of workers."""

from __future__ import annotations

import threading
import time

import pytest

from surefoot.errors import LabelError
from surefoot.io.worker_pool import RequestBudget, WorkerPool


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
