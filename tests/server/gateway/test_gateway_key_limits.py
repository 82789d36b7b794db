"""A key that is revoked during a stream."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from gateway_server import LineScorer, ask, lines, served, wait_until

from benchmarks.worlds.scripted import ScriptedPolicy
from surefoot.policies import IN_PROCESS
from surefoot.server import open_database

MESSAGES = [{"role": "user", "content": "hello"}]


class Client:
    """Sends requests with a new key."""

    def __init__(self, found, db, name):
        self.found, self.db = found, db
        self.key, self.row = db.keys.create(name, "client")

    def post(self, path, body):
        return ask(self.found.root + path, json.dumps(body).encode(), {"Authorization": f"Bearer {self.key}"})

    def chat(self, **more):
        return self.post(
            "/v1/chat/completions", {"model": "scripted", "messages": MESSAGES, "max_tokens": 10, **more}
        )


class Gated:
    """Answers once its gate is open."""

    name, overlaps = "scripted", True

    def __init__(self):
        self.policy, self.gate = ScriptedPolicy(lines), threading.Event()

    def capabilities(self):
        return IN_PROCESS

    async def sample(self, requests):
        assert await asyncio.to_thread(self.gate.wait, 20)
        return await self.policy.sample(requests)


@pytest.fixture
def db(tmp_path):
    with open_database(tmp_path / "store.db") as opened:
        yield opened


def test_a_key_revoked_amid_a_stream_ends_with_it(db):
    policy = Gated()
    with served(policy, LineScorer(), db=db) as found:
        client = Client(found, db, "alice")
        with ThreadPoolExecutor(1) as threads:
            stream = threads.submit(client.chat, stream=True)
            wait_until(lambda: found.gateway.admission.running == 1)
            db.keys.revoke(client.row.id)
            assert client.chat()[0] == 401
            policy.gate.set()
            status, text = stream.result()
        assert (status, text.strip().splitlines()[-1]) == (200, "data: [DONE]")
        [row] = db.gateway.find()
        assert (row.key_id, row.failed) == (client.row.id, False)
        assert row.tokens > 0
