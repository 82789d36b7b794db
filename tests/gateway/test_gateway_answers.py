"""Hostile final answers: what they may cost, and that other clients do not pay."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from gateway_server import LineScorer, ask, served, wait_until

from surefoot.answers import AnswerChecker, group_equal
from surefoot.errors import LabelError
from surefoot.gateway import GatewaySettings
from surefoot.io.bounded_worker import BoundedWorker
from surefoot.io.worker_pool import Budget, WorkerPool
from surefoot.policies.scripted import ScriptedPolicy

HOSTILE = [rf"\sum_{{k=1}}^{{10^{{100}}}} k^{{k+{number}}}" for number in range(16)]


def write(request, sample):
    """Sixteen answers that no algebra can reduce, or two that are equal."""
    if "hostile" in str(request.prompt):
        return rf"So \boxed{{{HOSTILE[sample]}}}"
    return rf"So \boxed{{{('x+1', '1+x')[sample % 2]}}}"


def load_sleepy():
    def answer(seconds):
        time.sleep(seconds)
        return seconds

    return answer


def test_hostile_answers_of_one_client_do_not_delay_another():
    settings = GatewaySettings(strategy="majority-16", answer_s=3.0)
    with served(ScriptedPolicy(write), scorer=LineScorer(), settings=settings) as found:

        def generate(text):
            begin = time.monotonic()
            body = f'{{"model": "surefoot", "messages": [{{"role": "user", "content": "{text}"}}]}}'
            status, answer = ask(f"{found.url}/chat/completions", body)
            assert status == 200, answer
            return time.monotonic() - begin

        generate("innocent")  # starts the quick worker
        found.gateway.checker.equal([(HOSTILE[0], HOSTILE[1])])  # and the other
        seconds = []
        attackers = [threading.Thread(target=lambda: seconds.append(generate("hostile"))) for _ in range(4)]
        for attacker in attackers:
            attacker.start()
        time.sleep(0.2)
        innocent = [generate(f"innocent {number}") for number in range(5)]
        for attacker in attackers:
            attacker.join()
        assert max(innocent) < 8  # four first turns on a quick worker, on a busy machine; it was a minute
        assert len(seconds) == 4
        assert max(seconds) < 15
        assert found.gateway.checker.failures["budget"] > 0
        metrics = ask(f"{found.url.removesuffix('/v1')}/metrics")[1]
        assert 'surefoot_answer_failures_total{reason="budget"}' in metrics


def test_without_a_budget_answers_are_grouped_as_text():
    with AnswerChecker() as checker:
        spent = checker.limited(0)
        answers = [r"\dfrac{x}{y}", r"\frac{x}{y}", "x/y", "1/2", "0.5", None]
        assert group_equal(answers, spent) == [r"\frac{x}{y}", r"\frac{x}{y}", "x/y", "0.5", "0.5", None]
        assert checker.failures["budget"] == 3
        assert spent.equal([("x/y", "x/y"), ("x/y", "x y^{-1}")]) == [True, None]
        assert checker.equal([("x/y", r"\frac{x}{y}")]) == [True]  # a spent budget is not remembered


def test_cancelling_a_request_ends_its_work():
    async def begin_and_cancel(checker):
        limited = checker.limited(60)
        task = asyncio.ensure_future(limited.run(lambda: limited.equal([(HOSTILE[0], "x+1")])))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with AnswerChecker(timeout_s=60) as checker:
        assert checker.equal([("x+1", "1+x")]) == [True]
        begin = time.monotonic()
        asyncio.run(begin_and_cancel(checker))
        wait_until(lambda: checker.failures["cancelled"] == 1)
        assert checker.equal([("x+2", "2+x")]) == [True]
        assert time.monotonic() - begin < 30


def test_slow_questions_leave_the_quick_worker_to_others():
    pool = WorkerPool(load_sleepy, size=2, timeout_s=1, memory_mb=512, error=LabelError)
    try:
        assert pool.ask(0.01, Budget()).answer == 0.01
        slow = [Budget(4) for _ in range(3)]
        threads = [
            threading.Thread(target=lambda budget=budget: [pool.ask(5, budget) for _ in range(3)])
            for budget in slow
        ]
        for thread in threads:
            thread.start()
        wait_until(lambda: all(budget.quick_left_s <= 0.05 for budget in slow))
        begin = time.monotonic()
        assert [pool.ask(0.01, Budget(10)).answer for _ in range(3)] == [0.01] * 3
        assert time.monotonic() - begin < 1.5
        for thread in threads:
            thread.join()
        assert pool.ask(0.01, slow[0]).failure == "budget"
    finally:
        pool.close()


def test_a_worker_is_there_again_at_once_after_a_time_out():
    worker = BoundedWorker(load_sleepy, timeout_s=0.3, memory_mb=512, error=LabelError)
    try:
        assert worker.ask(0).answer == 0
        begin = time.monotonic()
        for _ in range(3):
            assert worker.ask(5).failure == "timeout"
            assert worker.ask(0).answer == 0
        assert time.monotonic() - begin < 2.5
    finally:
        worker.close()
