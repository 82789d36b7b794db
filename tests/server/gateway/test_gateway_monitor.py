"""The monitor's figures against their definitions, and the metrics as Prometheus reads them."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime

import numpy as np
import pytest
from gateway_server import LineScorer, ask, lines, served
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from surefoot.policies.scripted import ScriptedPolicy
from surefoot.server import Monitor, MonitorSettings, open_database, resume_monitor
from surefoot.server.gateway.monitor import Observations, kolmogorov_smirnov, stability_index

VALUES = st.lists(st.floats(0, 1).map(lambda value: round(value, 2)), min_size=1, max_size=40)


@given(VALUES, VALUES)
def test_ks_is_the_largest_gap_between_the_shares_below_any_point(first, second):
    points = np.linspace(0, 1, 101)[:, None] + 1e-6  # the values are hundredths
    gaps = (np.array(first) <= points).mean(1) - (np.array(second) <= points).mean(1)
    assert kolmogorov_smirnov(first, second) == pytest.approx(np.abs(gaps).max())


@given(VALUES, VALUES, st.integers(2, 12))
def test_the_index_is_no_less_than_zero_and_zero_for_equal_windows(first, second, bins):
    assert stability_index(first, second, bins) >= 0
    assert stability_index(first, first, bins) == pytest.approx(0)


def test_the_index_of_two_bins_by_hand():
    reference, recent = [0.0, 0.0, 1.0, 1.0], [0.0, 1.0, 1.0, 1.0]
    p, q = [2.5 / 5, 2.5 / 5], [1.5 / 5, 3.5 / 5]
    expected = sum((b - a) * math.log(b / a) for a, b in zip(p, q, strict=True))
    assert stability_index(reference, recent, 2) == pytest.approx(expected)


def scored(monitor, values):
    seen = Observations()
    seen.score(values)
    monitor.add(seen)


def counted(monitor, *event):
    seen = Observations()
    seen.count(*event)
    monitor.add(seen)


def test_drift_is_an_alarm_and_chance_is_none():
    generator = np.random.default_rng(0)
    alarms = 0
    for _ in range(50):
        monitor = Monitor(MonitorSettings(reference=500, window=300))
        scored(monitor, list(generator.beta(5, 2, 900)))
        alarms += monitor.drift().alarm
    assert alarms == 0
    scored(monitor, list(generator.beta(2, 5, 300)))
    drift = monitor.drift()
    assert drift.alarm
    assert drift.psi > 1
    assert drift.ks > drift.ks_critical


def test_nothing_is_said_of_too_little():
    monitor = Monitor(MonitorSettings(reference=20, window=20, least=10))
    scored(monitor, [0.5] * 20 + [0.1] * 9 + [None, math.nan])
    assert monitor.drift().psi is None
    assert not monitor.drift().alarm
    scored(monitor, [0.1])
    assert monitor.drift().alarm
    assert monitor.share("unparsed") is None
    counted(monitor, "unparsed", True, 9)
    assert (monitor.share("unparsed"), monitor.alarm("unparsed")) == (1.0, False)
    counted(monitor, "unparsed", True)
    assert monitor.alarm("unparsed")
    counted(monitor, "accepted", True, 10)
    assert not monitor.alarm("accepted")
    counted(monitor, "accepted", False, 100)
    assert (monitor.share("accepted"), monitor.alarm("accepted")) == (0.0, True)


def test_a_reference_may_be_given():
    monitor = Monitor(MonitorSettings(least=5), reference=[0.9] * 20)
    scored(monitor, [0.1] * 20)
    assert monitor.drift().alarm


def test_metrics_tell_what_happened():
    monitor = Monitor(MonitorSettings(reference=20, window=40, least=4))
    with served(ScriptedPolicy(lines), LineScorer(), monitor=monitor) as found:

        def chat(strategy, **more):
            body = {"model": strategy, "messages": [{"role": "user", "content": "x"}], **more}
            return ask(f"{found.url}/chat/completions", json_of(body))

        used = [chat(strategy)[1]["usage"] for strategy in ("scripted", "best-of-2", "accept-reject")]
        chat("best-of-2", surefoot={"abstain_below": 1.0})
        assert chat("nothing")[0] == 404
        ask(f"{found.url}/verify", json_of({"problem": "p", "solution": "bad"}))
        status, text = ask(f"{found.root}/metrics")
    assert status == 200
    got = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert got["surefoot_requests_total", "/v1/chat/completions", "200"] == 4
    assert got["surefoot_requests_total", "/v1/chat/completions", "404"] == 1
    assert got["surefoot_request_seconds_count", "/v1/verify"] == 1
    assert got["surefoot_choices_total", "best-of"] == 2
    assert got["surefoot_verdicts_total", "reject"] == 1
    assert got["surefoot_tokens_total", "completion"] == sum(one["completion_tokens"] for one in used) + 26
    assert got["surefoot_running",] == 0
    assert got["surefoot_share", "abstained"] == pytest.approx(1 / 3)
    assert got["surefoot_share", "unparsed"] == 0
    assert got["surefoot_share", "accepted"] == pytest.approx(4 / 6)  # five draws, and a verdict
    assert got["surefoot_alarm", "accepted"] == 0
    assert got["surefoot_alarm", "drift"] == 0
    assert got["surefoot_policy_batch_samples_count",] > 0


def test_a_restart_goes_on_where_the_log_ends(tmp_path):
    """First scores of 0.9, later of 0.1: whoever starts then still sees the drift."""
    settings = MonitorSettings(reference=30, window=40, least=20)
    texts = ["good\n" * 6] * 5 + ["bad\n" * 5] * 7
    with open_database(tmp_path / "store.db") as db:
        with served(ScriptedPolicy(lines), LineScorer(), db=db, monitor=Monitor(settings)) as found:
            for text in texts:
                ask(f"{found.url}/verify", json_of({"problem": "p", "solution": text}))
            before = found.gateway.monitor.drift()
        log, name = db.gateway, LineScorer.name
        assert before.alarm
        assert resume_monitor(settings, log, policy="scripted", scorer=name).drift() == before
        assert resume_monitor(settings, log, policy="scripted", scorer="another").drift().psi is None
        later = settings.model_copy(update={"since": datetime.now(UTC)})
        assert resume_monitor(later, log, policy="scripted", scorer=name).drift().psi is None
        few = settings.model_copy(update={"reference": 20, "window": 25})
        assert resume_monitor(few, log, policy="scripted", scorer=name).drift().alarm


def test_withheld_answers_are_no_scores_before_or_after_a_restart(tmp_path):
    settings = MonitorSettings(reference=20, window=20, least=5)
    with open_database(tmp_path / "store.db") as db:
        with served(ScriptedPolicy(lines), LineScorer(), db=db, monitor=Monitor(settings)) as found:
            for bound in (0.5, 1.0) * 4:
                more = {"surefoot": {"abstain_below": bound}}
                body = {"model": "best-of-2", "messages": [{"role": "user", "content": "x"}], **more}
                assert ask(f"{found.url}/chat/completions", json_of(body))[0] == 200
            monitor = found.gateway.monitor
        again = resume_monitor(settings, db.gateway, policy="scripted", scorer=LineScorer.name)
    assert monitor.share("abstained") == 0.5
    assert vars(again)["_reference"] == vars(monitor)["_reference"] == [0.9] * 16


def json_of(body):
    return json.dumps(body).encode()
