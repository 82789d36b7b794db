"""A policy's and reward model's server that lies: clients get an answer or a plain error, and go on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from chaos_upstream import LIE, Upstream
from gateway_server import ask, served

from surefoot.models.remote.scorer import RemoteScorer
from surefoot.models.remote.wires import GatewayScore
from surefoot.policies.openai import OpenAIPolicy
from surefoot.server import GatewaySettings, open_database

CHAT = {"model": "surefoot", "messages": [{"role": "user", "content": "1 + 1"}], "max_tokens": 50}
VERIFY = {"problem": "1 + 1", "steps": ["We add.\n", "It is 2."]}
SETTINGS = GatewaySettings(chat=True)
ASKED = (("chat/completions", CHAT), ("verify", VERIFY))


@pytest.fixture(scope="module")
def upstream():
    made = Upstream()
    made.open()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("fault", "statuses"),
    [
        ("false counts", {200}),
        ("false lengths", {200, 502}),
        ("long reasons", {200, 502}),
        ("endless streams", {200, 502}),
        ("gzip bombs", {200, 502}),
        ("redirects", {200, 502}),
    ],
)
def test_other_clients_go_on_and_nothing_is_believed(
    upstream: Upstream, fault: str, statuses: set[int], tmp_path: Any
) -> None:
    policy = OpenAIPolicy(model="fake", base_url=f"{upstream.root}/v1", timeout_s=0.5, max_retries=0)
    scorer = RemoteScorer(GatewayScore(), base_url=upstream.root, name="fake", timeout_s=0.5, max_retries=0)
    with (
        open_database(tmp_path / "g.db") as db,
        served(policy=policy, scorer=scorer, log=db.gateway, settings=SETTINGS) as found,
    ):
        with upstream.failing(fault):
            answers = [ask(f"{found.url}/{path}", json.dumps(body)) for path, body in ASKED]
        assert {status for status, _ in answers} <= statuses
        assert "\x1b" not in str(answers)
        assert len(str(answers)) < 10_000
        assert [ask(f"{found.url}/verify", json.dumps(VERIFY))[0], ask(f"{found.root}/ready")[0]] == [
            200,
            200,
        ]
        tokens = [row.tokens for row in db.gateway.find()]
        assert tokens
        assert max(tokens) < 1_000_000 < LIE
    assert upstream.stolen == []
