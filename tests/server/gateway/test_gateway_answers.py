"""Hostile final answers: what they may cost, and that other clients do not pay."""

from __future__ import annotations

import threading
import time

from gateway_server import LineScorer, ask, served

from benchmarks.worlds.scripted import ScriptedPolicy
from surefoot.server import GatewaySettings, open_database

HOSTILE = [rf"\sum_{{k=1}}^{{900}}\sum_{{j=1}}^{{900}} \sin(k j + {number})" for number in range(16)]


def write(request, sample):
    """Sixteen answers that cost all the work that is allowed, or two that are equal."""
    if "hostile" in str(request.prompt):
        return rf"So \boxed{{{HOSTILE[sample]}}}"
    return rf"So \boxed{{{('x+1', '1+x')[sample % 2]}}}"


def test_hostile_answers_of_one_client_do_not_delay_another(tmp_path):
    settings = GatewaySettings(strategy="majority:n=16")
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

        generate("innocent", "innocent")
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
        assert max(innocent) < 2.5  # on a busy machine
        assert len(seconds) == 8
        assert max(seconds) < 15
        assert found.gateway.checker.failures["too_large"] > 0
        metrics = found.gateway.metrics.text().decode()
        assert 'surefoot_answer_failures_total{reason="too_large"}' in metrics
