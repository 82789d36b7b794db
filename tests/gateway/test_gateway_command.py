"""``surefoot serve`` as a process: it answers, a signal ends it in order, and a kill loses nothing."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager

import httpx2
import pytest
from annotation_site import Browser, open_room
from command_line import refused
from gateway_server import ask

from surefoot.annotation import open_database
from surefoot.lab.world import generate_problems

QUESTION = {
    "messages": [{"role": "user", "content": generate_problems(1, seed=1)[0].text}],
    "max_tokens": 96,
}


@contextmanager
def serving(*words):
    """A server process and its address; killed at the end of the block, if it still runs."""
    command = [sys.executable, "-m", "surefoot", "serve", "--port", "0", "--policy", "lab", *map(str, words)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            said = []
            for line in process.stderr:
                said.append(line)
                if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                    break
            else:
                pytest.fail(f"the server did not start: {''.join(said)}")
            yield process, found[0]
        finally:
            process.kill()
            process.stderr.read()


def test_settings_that_make_no_sense_are_refused_by_name(tmp_path):
    path = tmp_path / "serve.toml"
    path.write_text("[monitor]\nreference = 1\n")
    here = ("serve", "--port", 0, "--database", tmp_path / "store.db")
    assert "monitor.reference" in refused(*here, "--config", path)
    assert "--extract" in refused(*here, "--extract", "foo")
    assert "--candidates" in refused(*here, "--candidates", "some")
    assert "needs a reward model" in refused(*here, "--strategy", "best-of-4")
    assert "abstain" in refused(*here, "--abstain-below", 0.5)


@pytest.mark.slow
def test_serve_answers_and_ends_at_a_signal(tmp_path):
    store = tmp_path / "store.db"
    with serving("--strategy", "majority-3", "--database", store, "--no-pages") as (process, url):
        body = json.dumps({"model": "surefoot", "seed": 1, **QUESTION}).encode()
        status, answer = ask(f"{url}/v1/chat/completions", body)
        assert status == 200
        assert "=" in answer["choices"][0]["message"]["content"]
        assert ask(f"{url}/v1/chat/completions", body)[1]["choices"] == answer["choices"]
        assert ask(f"{url}/sign-in")[0] == 404
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
        process.wait(30)
    with open_database(store) as db:
        assert [row.strategy for row in db.gateway.find()] == ["majority-3"] * 2


@pytest.mark.slow
def test_a_kill_under_load_loses_no_answer_and_no_label(tmp_path):
    room = open_room(tmp_path)
    room.db.close()
    store = tmp_path / "labels.db"
    answers, labels = [], set()
    enough, json_wanted = threading.Event(), {"Accept": "application/json"}

    def chat(url, number):
        for seed in range(number, 10_000, 10):
            try:
                status, answer = ask(
                    f"{url}/v1/chat/completions",
                    json.dumps({"model": "plain", "seed": seed, **QUESTION}).encode(),
                )
            except (OSError, http.client.HTTPException):  # the kill cuts connections anywhere
                return
            assert status == 200
            answers.append((answer["id"], answer["choices"][0]["message"]["content"]))

    def annotate(url, name):
        try:
            with httpx2.Client(base_url=url, timeout=20) as client:
                browser = Browser(client)
                browser.sign_in(name)
                item = browser.get(f"/projects/{room.project}/annotate").headers["location"]
                while True:
                    for action, fields in (("label", {"value": "1"}), ("undo", {})):
                        form = {**browser.fields(item, f"{item}/{action}"), **fields}
                        sent = client.post(f"{item}/{action}", data=form, headers=json_wanted)
                        assert sent.status_code == 200
                        labels.update(sent.json()["submission"]["label_ids"])
                    if len(labels) >= 20 and len(answers) >= 10:
                        enough.set()
        except httpx2.TransportError:
            return

    with serving("--database", store) as (process, url):
        work = [threading.Thread(target=chat, args=(url, number)) for number in range(6)]
        work += [threading.Thread(target=annotate, args=(url, name)) for name in ("ann", "ben")]
        for one in work:
            one.start()
        came = enough.wait(60)
        process.kill()
        for one in work:
            one.join(30)
        assert came
        assert process.wait(10) == -signal.SIGKILL
    with serving("--database", store) as (_, url), open_database(store) as db:
        assert ask(f"{url}/health") == (200, {"status": "ok"})
        stored = {label.id for label in db.export.stored(room.project)}
        assert labels <= stored
        for name, text in answers:
            [candidate] = db.gateway.get(name).candidates
            assert candidate.trace.text == text
