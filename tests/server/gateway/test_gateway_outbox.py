"""Alerts by webhook, requests as OpenTelemetry, incidents of alarms, masking before anything is stored."""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from gateway_server import LineScorer, ask, lines, served
from pydantic import ValidationError

from surefoot.policies.scripted import ScriptedPolicy
from surefoot.server import GatewaySettings, Monitor, MonitorSettings, open_database
from surefoot.server.gateway.outbox import otlp_of, redacted
from surefoot.server.gateway.settings import OutboxSettings


@contextmanager
def receiver():
    """A server that keeps what is posted: path, key and body."""
    posts = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            posts.append((self.path, self.headers["Authorization"], json.loads(body)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", posts
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def until(condition):
    for _ in range(200):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("it did not happen within 4 s")


def chat(site, text="x", **more):
    body = {"model": "best-of-2", "messages": [{"role": "user", "content": text}], **more}
    return ask(f"{site.url}/chat/completions", json.dumps(body).encode())


def test_an_alarm_is_posted_once_and_opens_an_incident(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "the policy's own key")
    monitor = Monitor(MonitorSettings(window=20, least=4))
    with receiver() as (url, posts), open_database(tmp_path / "store.db") as db:
        settings = GatewaySettings(gather_s=0.001, outbox=OutboxSettings(webhook=f"{url}/hook"))
        more = {"settings": settings, "monitor": monitor, "incidents": db.incidents, "db": db}
        with served(ScriptedPolicy(lines), LineScorer(), **more) as found:
            for _ in range(6):
                assert chat(found, surefoot={"abstain_below": 1.0})[0] == 200
            until(lambda: posts and db.incidents.find())
            for _ in range(20):
                chat(found)
        [incident] = db.incidents.find()
    assert [(path, key, body["alert"], body["state"]) for path, key, body in posts] == [
        ("/hook", "Bearer none", "abstained", "firing"),
        ("/hook", "Bearer none", "abstained", "resolved"),
    ]
    assert (incident.alert, incident.title, incident.decision) == ("abstained", "alarm abstained", None)
    assert incident.timeline[0].by == "monitor"


def test_requests_are_exported_with_the_scores_of_their_steps(tmp_path):
    with receiver() as (url, posts), open_database(tmp_path / "store.db") as db:
        settings = GatewaySettings(gather_s=0.001, outbox=OutboxSettings(otlp=url, token="secret"))
        with served(ScriptedPolicy(lines), LineScorer(), settings=settings, db=db) as found:
            assert chat(found, "a private question")[0] == 200
            until(lambda: len(posts) == 2)
        [row] = db.gateway.find()
        record = db.gateway.get(row.request_id)
    bodies = {path: body for path, _, body in posts}
    assert {key for _, key, _ in posts} == {"Bearer secret"}
    [span] = bodies["/v1/traces"]["resourceSpans"][0]["scopeSpans"][0]["spans"]
    events = bodies["/v1/logs"]["resourceLogs"][0]["scopeLogs"][0]["logRecords"]
    assert (span, [strip(event) for event in events]) == (
        otlp_of(record)[0],
        [strip(event) for event in otlp_of(record)[1]],
    )
    attributes = {one["key"]: one["value"] for one in events[0]["attributes"]}
    assert attributes["gen_ai.evaluation.name"] == {"stringValue": "lines.step"}
    assert attributes["gen_ai.evaluation.score.value"] == {"doubleValue": 0.9}
    assert attributes["gen_ai.response.id"] == {"stringValue": record.request_id}
    assert attributes["surefoot.step"] == {"intValue": "0"}
    assert {event["eventName"] for event in events} == {"gen_ai.evaluation.result"}
    assert {(event["traceId"], event["spanId"]) for event in events} == {(span["traceId"], span["spanId"])}
    assert len(span["traceId"]), len(span["spanId"]) == (32, 16)
    assert "private question" not in json.dumps(bodies)


def strip(event):
    return {name: value for name, value in event.items() if "Nano" not in name}


def test_a_receiver_that_is_gone_delays_no_answer():
    with receiver() as (url, _):
        pass
    settings = GatewaySettings(gather_s=0.001, outbox=OutboxSettings(otlp=url))
    with served(ScriptedPolicy(lines), LineScorer(), settings=settings) as found:
        begin = time.monotonic()
        assert chat(found)[0] == 200
        assert time.monotonic() - begin < 2
        until(lambda: found.gateway.outbox.lost == 2)


SECRET = "Mail ada@example.org or call 555-123-4567; key sk-abcdefghijklmnop1234, code XY-12."


def test_private_texts_are_masked_before_they_are_stored(tmp_path):
    settings = GatewaySettings(gather_s=0.001, redact=("email", "phone", "key"), redact_patterns=(r"XY-\d+",))
    policy = ScriptedPolicy(lambda *_: f"line of {SECRET}\nThe answer is 7")
    with open_database(tmp_path / "store.db") as db:
        with served(policy, LineScorer(), settings=settings, db=db) as found:
            status, answer = chat(found, SECRET)
        [row] = db.gateway.find()
        record = db.gateway.get(row.request_id)
    assert status == 200
    assert SECRET in answer["choices"][0]["message"]["content"]
    stored = record.model_dump_json()
    for private in ("ada@example.org", "555-123-4567", "sk-abcdefghijklmnop1234", "XY-12"):
        assert private not in stored
    trace = next(one.trace for one in record.candidates if one.chosen)
    assert trace.step_text(1) == "The answer is 7"
    assert len(trace.text) == len(f"line of {SECRET}\nThe answer is 7")
    assert redacted(record, ("email",), ()) == record


@pytest.mark.parametrize(
    "fields", [{"redact_patterns": ("(",)}, {"redact": ("name",)}, {"outbox": {"webhook": "ftp://x"}}]
)
def test_settings_name_what_is_wrong(fields):
    with pytest.raises(ValidationError, match=next(iter(fields))):
        GatewaySettings(**fields)
