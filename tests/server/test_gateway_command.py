"""``surefoot serve`` as a process: it answers, and a signal ends it in order."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys

import pytest
from gateway_server import ask

from surefoot.lab.world import generate_problems
from surefoot.store.database import open_database


@pytest.mark.slow
def test_serve_answers_and_ends_at_a_signal(tmp_path):
    store = tmp_path / "store.db"
    words = ["serve", "--port", "0", "--policy", "lab", "--strategy", "majority-3", "--database", str(store)]
    command = [sys.executable, "-m", "surefoot", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            url = None
            for line in process.stderr:
                if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                    url = found[0]
                    break
            assert url, "the server did not start"
            body = {
                "model": "surefoot",
                "messages": [{"role": "user", "content": generate_problems(1, seed=1)[0].text}],
                "max_tokens": 96,
                "seed": 1,
            }
            status, answer = ask(f"{url}/v1/chat/completions", json.dumps(body).encode())
            assert status == 200
            assert "=" in answer["choices"][0]["message"]["content"]
            assert (
                ask(f"{url}/v1/chat/completions", json.dumps(body).encode())[1]["choices"]
                == answer["choices"]
            )
            process.send_signal(signal.SIGTERM)
            process.stderr.read()
            process.wait(30)
        finally:
            process.kill()
    with open_database(store) as db:
        assert [row.strategy for row in db.gateway.find()] == ["majority-3"] * 2
