"""Hostile final answers: what they may cost, and that other clients do not pay."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from gateway_server import LineScorer, ask, served, wait_until

from surefoot.answers import AnswerChecker, group_equal
from surefoot.errors import LabelError
from surefoot.io.workers import WorkerPool
from surefoot.policies.scripted import ScriptedPolicy
from surefoot.server import GatewaySettings, open_database

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


def test_hostile_answers_of_one_client_do_not_delay_another(tmp_path):
    settings = GatewaySettings(strategy="majority:n=16", answer_s=2.0)
    policy = ScriptedPolicy(write)
    with (
        open_database(tmp_path / "keys.db") as db,
        served(policy, scorer=LineScorer(), settings=settings, db=db, require_key=True) as found,
    ):
        keys = {name: db.keys.create(name, "client")[0] for name in ("innocent", "hostile")}

        def generate(key, text):
            begin = time.monotonic()
            body = f'{{"model": "surefoot", "messages": [{{"role": "user", "content": "{text}"}}]}}'
            status, answer = ask(
                f"{found.url}/chat/completions", body, {"Authorization": f"Bearer {keys[key]}"}
            )
            assert status == 200, answer
            return time.monotonic() - begin

        generate("innocent", "innocent")  # starts the quick worker
        found.gateway.checker.equal([(HOSTILE[0], HOSTILE[1])])  # and the other
        seconds = []
        attackers = [
            threading.Thread(target=lambda: seconds.append(generate("hostile", "hostile"))) for _ in range(8)
        ]
        for attacker in attackers:
            attacker.start()
        time.sleep(0.2)
        innocent = [generate("innocent", f"innocent {number}") for number in range(5)]
        for attacker in attackers:
            attacker.join()
        assert max(innocent) < 2.5  # each waits for some slices, on a busy machine; it was a minute
        assert len(seconds) == 8
        assert max(seconds) < 15
        assert found.gateway.checker.failures["budget"] > 0
        metrics = found.gateway.metrics.text().decode()
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


def test_a_worker_is_there_again_at_once_after_a_time_out():
    worker = WorkerPool(load_sleepy, timeout_s=0.3, memory_mb=512, error=LabelError)
    try:
        assert worker.ask(0).answer == 0
        begin = time.monotonic()
        for _ in range(3):
            assert worker.ask(5).failure == "timeout"
            assert worker.ask(0).answer == 0
        assert time.monotonic() - begin < 2.5
    finally:
        worker.close()
