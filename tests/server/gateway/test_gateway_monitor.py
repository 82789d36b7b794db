"""The monitor's figures against their definitions, and the metrics as Prometheus reads them."""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from gateway_server import LineScorer, ask, lines, served
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.worlds.scripted import ScriptedPolicy
from surefoot.records import Problem, StepScores, Trace, Usage
from surefoot.segment import Line, segment_trace
from surefoot.server import (
    GatewayCandidate,
    GatewayRecord,
    GoldResult,
    MonitorSettings,
    open_database,
    resume_chart,
)
from surefoot.server.gateway.changes import ChangeChart, p_value
from surefoot.server.gateway.people import GoldStream


def record_of(number, *, text="a b\nc d\nAnswer: 3\n", answer="3", score=0.8, prompt="what is it", **fields):
    """A served request with some noise by its number."""
    noise = number % 7
    problem = Problem(text=f"{prompt}{' now' * noise}?")
    text = "so " * (number % 5) + text
    trace = segment_trace(Trace(problem_id=problem.id, text=text, answer=answer), Line())
    score = score - 0.01 * noise
    scores = StepScores(trace_id=trace.id, scorer="s", scores=(score,) * len(trace.steps))
    candidate = GatewayCandidate(trace=trace, chosen=True, score=score, scores=scores)
    return GatewayRecord(
        request_id=f"r{number}",
        created=datetime.now(UTC),
        endpoint="/v1/chat/completions",
        model="m",
        strategy="best-of-n:n=2",
        policy="p",
        status=fields.pop("status", 200),
        latency_ms=1,
        usage=fields.pop("usage", Usage(completion_tokens=len(text) // 2)),
        problem=problem,
        candidates=fields.pop("candidates", (candidate,)),
    )


def fed(chart, start, count, *, wrong=0.2, **fields):
    """Requests, of which people read every third; the number until the alarm."""
    rng = np.random.default_rng(start)
    for number in range(start, start + count):
        one = record_of(int(rng.integers(10_000)), **fields)
        chart.add(one)
        if number % 3 == 0 and one.candidates:
            chart.add_gold(one.candidates[0].score, bool(rng.random() > wrong))
        if chart.alarm:
            return number - start
    return None


CHANGES = {
    "failing": ({"status": 502, "candidates": ()}, {"without answer"}),
    "broken parser": ({"answer": None}, {"without answer"}),
    "gamed scorer": (
        {"text": "trust me\nAnswer: 3\n", "score": 0.9, "wrong": 0.95},
        {"score", "proxy minus gold"},
    ),
    "new policy": ({"text": "hmm\nAnswer: 3\n", "score": 0.3, "wrong": 0.8}, {"score"}),
}
"""What changes, and which signals show it."""


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen_and_its_signals_are_named(name):
    chart = ChangeChart(MonitorSettings(reference=600))
    fields, signals = CHANGES[name]
    assert fed(chart, 0, 1500) is None
    assert chart.change.signals == {}
    delay = fed(chart, 5000, 300, **fields)
    assert delay is not None
    assert delay < 200
    for start in range(6000, 6200):
        fed(chart, 3 * start, 1, **fields)
    assert chart.change.alarm
    assert set(chart.change.signals) >= signals
    assert chart.change.requests < 400


@pytest.mark.parametrize("turns", [1, 5, 15])
def test_sessions_whose_answers_resemble_each_other_are_no_change(turns):
    """30 charts of 1,000 requests after the reference may alarm three times, at one alarm in 10,000."""
    alarms = 0
    for seed in range(30):
        rng, chart = np.random.default_rng(seed), ChangeChart(MonitorSettings(reference=1000))
        number = 0
        while number < 2000:
            level, length = rng.normal(), rng.integers(1, 200)
            for _ in range(int(rng.integers(1, 2 * turns)) if turns > 1 else 1):
                score = float(np.clip(0.6 + 0.2 * level + 0.1 * rng.normal(), 0, 1))
                text = "so " * int(length + rng.integers(0, 20))
                chart.add(record_of(0, text=text, score=score, answer=None if level < -2 else "3"))
                number += 1
        alarms += chart.alarm
    assert alarms <= 4


@pytest.mark.parametrize("degrees", [9, 16, 19])
@pytest.mark.parametrize("errors", [0.0, -1.3, 2.1, 5.6, 9.0])
def test_the_tails_of_students_t_are_the_integral_of_its_density(degrees, errors):
    points = np.linspace(abs(errors), 2000, 4_000_001)
    density = (1 + points**2 / degrees) ** (-(degrees + 1) / 2)
    area = np.trapezoid(density, points)
    whole = math.sqrt(degrees * math.pi) * math.gamma(degrees / 2) / math.gamma((degrees + 1) / 2)
    assert p_value(errors, degrees) == pytest.approx(2 * area / whole, rel=1e-3)


def test_requests_that_clients_got_wrong_are_passed_over():
    chart = ChangeChart(MonitorSettings(reference=40))
    for number in range(60):
        chart.add(record_of(number, status=422, candidates=()))
    assert not chart.fitted
    with pytest.raises(ValueError, match="a proxy score must lie in"):
        chart.add_gold(1.5, True)


def test_metrics_tell_what_happened():
    monitor = ChangeChart(MonitorSettings())
    with served(ScriptedPolicy(lines), LineScorer(), monitor=monitor) as found:

        def chat(strategy, **more):
            body = {"model": strategy, "messages": [{"role": "user", "content": "x"}], **more}
            return ask(f"{found.url}/chat/completions", json_of(body))

        for kind in ("prompt", "completion", "verifier"):  # there before its first use
            assert f'surefoot_tokens_total{{kind="{kind}"}} 0.0' in ask(f"{found.root}/metrics")[1]
        used = [chat(strategy)[1]["usage"] for strategy in ("scripted", "best-of-n:n=2", "accept-reject")]
        chat("best-of-n:n=2", surefoot={"abstain_below": 1.0})
        assert chat("nothing")[0] == 404
        ask(f"{found.url}/score", json_of({"items": [{"problem": "p", "solution": "bad"}]}))
        status, text = ask(f"{found.root}/metrics")
    assert status == 200
    got = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert got["surefoot_requests_total", "/v1/chat/completions", "200"] == 4
    assert got["surefoot_requests_total", "/v1/chat/completions", "404"] == 1
    assert got["surefoot_request_seconds_count", "/v1/score"] == 1
    assert got["surefoot_choices_total", "best-of-n"] == 2
    assert got["surefoot_verdicts_total", "reject"] == 1
    assert got["surefoot_tokens_total", "completion"] == sum(one["completion_tokens"] for one in used) + 26
    assert got["surefoot_running",] == 0
    events = {key[1:]: count for key, count in got.items() if key[0] == "surefoot_events_total"}
    assert (events["abstained", "yes"], events["abstained", "no"]) == (1, 2)
    assert (events.get(("unparsed", "yes"), 0), events["no", "unparsed"]) == (0, 3)
    assert (events["accepted", "yes"], events["accepted", "no"]) == (4, 1)  # of five draws
    assert got["surefoot_change_alarm",] == 0
    assert got["surefoot_policy_batch_samples_count",] > 0


def test_a_restart_continues_where_the_log_ends(tmp_path):
    settings = MonitorSettings(reference=100)
    with open_database(tmp_path / "store.db") as db:
        monitor = ChangeChart(settings)
        records = [record_of(number) for number in range(150)]
        records += [record_of(number, score=0.3) for number in range(150, 230)]
        for number, one in enumerate(records):
            stored = one.model_copy(update={"created": one.created + timedelta(seconds=number)})
            db.gateway.write_all([stored])
            monitor.add(stored)
        assert "score" in monitor.change.signals
        again = resume_chart(settings, db.gateway, policy="p")
        assert again.change == monitor.change
        assert not resume_chart(settings, db.gateway, policy="other").fitted
        later = settings.model_copy(update={"since": records[160].created + timedelta(seconds=160)})
        assert not resume_chart(later, db.gateway, policy="p").alarm


def json_of(body):
    return json.dumps(body).encode()


class People:
    """A gold store whose people call every second answer wrong, at once."""

    def __init__(self):
        self.queue = []

    def add(self, project_id, record, chance):
        self.queue.append((project_id, record.request_id, chance, record.candidates[0].score))
        return True

    def results(self, project_id):
        return [
            GoldResult(
                sample=number,
                request_id=name,
                proxy=score,
                right=bool(number % 2),
                weight=1 / chance,
                labelled=datetime.now(UTC),
            )
            for number, (_, name, chance, score) in enumerate(self.queue)
        ]


def test_random_answers_go_to_people_and_their_labels_to_the_chart():
    people = People()
    monitor = ChangeChart(MonitorSettings(gold_share=0.5, gold_project=3, gold_poll_s=0.05))
    with served(ScriptedPolicy(lines), LineScorer(), monitor=monitor, gold=people) as found:
        for number in range(40):
            body = {"model": "best-of-n:n=2", "messages": [{"role": "user", "content": f"x{number}"}]}
            assert ask(f"{found.url}/chat/completions", json_of(body))[0] == 200
        for _ in range(100):
            text = ask(f"{found.root}/metrics")[1]
            arrived = f"surefoot_gold_queued_total {len(people.queue)}.0" in text
            if arrived and "surefoot_gold_age_seconds" in text and "surefoot_record_queue 0.0" in text:
                break
            time.sleep(0.05)
    assert 8 < len(people.queue) < 32
    assert {(project, chance) for project, _, chance, _ in people.queue} == {(3, 0.5)}
    assert f"surefoot_gold_queued_total {len(people.queue)}.0" in text
    assert "surefoot_gold_age_seconds" in text
    assert "surefoot_record_queue 0.0" in text


def test_answers_queued_at_the_same_time_are_all_counted():
    people, together = People(), threading.Barrier(4, timeout=10)

    class Slow(People):
        def add(self, project_id, record, chance):
            together.wait()
            return people.add(project_id, record, chance)

    async def offered():
        settings = MonitorSettings(gold_share=1, gold_project=3, gold_poll_s=60)
        stream = GoldStream(Slow(), ChangeChart(settings))
        for number in range(4):
            stream.offer(record_of(number))
        await stream.close()
        return stream.queued

    assert asyncio.run(offered()) == len(people.queue) == 4


def test_a_share_for_people_needs_their_project():
    with pytest.raises(ValueError, match="'gold_share' and 'gold_project' must be given together"):
        MonitorSettings(gold_share=0.1)


def test_labels_that_come_late_are_charted_against_the_first_ones(tmp_path):
    """No label arrives before the reference is complete; the first fifty become theirs."""
    chart = ChangeChart(MonitorSettings(reference=200))
    for number in range(400):
        chart.add(record_of(number % 35))
    for number in range(60):
        chart.add_result(result_of(number, right=number % 5 > 0))
        chart.add(record_of(number % 35))
    assert not chart.alarm
    for number in range(60, 160):
        chart.add_result(result_of(number, right=number % 5 == 0))
        chart.add(record_of(number % 35))
    assert chart.change.signals["proxy minus gold"] > 0
    assert not chart.add_result(result_of(3, right=True))


def result_of(number, *, right):
    return GoldResult(
        sample=number,
        request_id=f"r{number}",
        proxy=0.8,
        right=right,
        weight=4.0,
        labelled=datetime.now(UTC),
    )
