"""A policy's and reward model's server that lies: clients get an answer or a plain error, and go on."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import pytest
from chaos_upstream import FAULTS, LIE, Upstream
from gateway_server import ask, served

from surefoot.models.remote.scorer import RemoteScorer
from surefoot.models.remote.wires import GatewayScore
from surefoot.policies.openai import OpenAIPolicy
from surefoot.server import GatewaySettings, open_database
from surefoot.server.app import GATEWAY

CHAT = {"model": "surefoot", "messages": [{"role": "user", "content": "1 + 1"}], "max_tokens": 50}
SCORE = {"items": [{"problem": "1 + 1", "steps": ["We add.\n", "It is 2."]}]}
SETTINGS = GatewaySettings(chat=True)
ASKED = (("chat/completions", CHAT), ("score", SCORE))


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
        assert ask(f"{found.url}/score", json.dumps(SCORE))[0] == ask(f"{found.root}/ready")[0] == 200
        tokens = [row.tokens for row in db.gateway.find()]
        assert tokens
        assert max(tokens) < 1_000_000 < LIE
    assert upstream.stolen == []


def streams(text: str) -> list[tuple[str, dict[str, Any]]]:
    """A streamed request to each streaming route, and with each kind of strategy."""
    chat = {**CHAT, "stream": True, "messages": [{"role": "user", "content": text}]}
    names = ("best-of-n:n=2", "majority:n=2", "beam:width=2,expand=2", "accept-reject")
    return [
        ("chat/completions", chat),
        ("messages", chat),
        ("responses", {"model": "surefoot", "stream": True, "input": text, "max_output_tokens": 50}),
        *(("chat/completions", {**chat, "model": name}) for name in names),
    ]


def test_every_streaming_route_is_among_those_that_meet_faults() -> None:
    of_streams = set()
    for route in GATEWAY:
        field = route.body.model_fields.get("stream") if route.body is not None else None
        if field is not None and field.annotation != Literal[False]:
            of_streams.add(route.path.removeprefix("/v1/"))
    assert of_streams == {path for path, _ in streams("")}


@pytest.mark.parametrize("fault", sorted(set(FAULTS) - {"dead"}))
def test_a_stream_with_any_fault_ends_and_leaves_others_their_answers(upstream: Upstream, fault: str) -> None:
    policy = OpenAIPolicy(model="fake", base_url=f"{upstream.root}/v1", timeout_s=1, max_retries=0)
    scorer = RemoteScorer(GatewayScore(), base_url=upstream.root, name="fake", timeout_s=1, max_retries=0)
    with (
        served(policy=policy, scorer=scorer, settings=SETTINGS) as found,
        upstream.failing(fault, only="attack"),
        ThreadPoolExecutor(8) as threads,
    ):
        attacks = [
            threads.submit(ask, f"{found.url}/{path}", json.dumps(body)) for path, body in streams("attack")
        ]
        beside = [ask(f"{found.url}/chat/completions", json.dumps(CHAT))]
        while not all(attack.done() for attack in attacks):
            beside.append(ask(f"{found.url}/chat/completions", json.dumps(CHAT)))
        assert {status for status, _ in beside} == {200}
        ends = [attack.result() for attack in attacks]
        assert {status for status, _ in ends} == {200}
        assert all("data: [DONE]" in text or "event: " in text or '"error"' in text for _, text in ends)
        # bytes are bounded by what was asked for, beyond what sockets hold
        assert upstream.most_sent < 12_000_000
        assert max(len(text) for _, text in ends) < 300_000
        assert found.gateway.admission.shares.total == 0
