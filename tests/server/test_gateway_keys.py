"""Keys: who may ask, how often, and what is kept of a key."""

from __future__ import annotations

import asyncio
import stat

import openai
import pytest
from command_line import good, refused
from gateway_server import ask, served
from openai import OpenAI
from pydantic import ValidationError

from surefoot.errors import RecordError
from surefoot.server.auth import Door, KeyFile, TokenBucket, add_key, make_key, read_keys, remove_key
from surefoot.server.errors import ApiError
from surefoot.server.settings import ServerSettings, is_loopback

MESSAGES = [{"role": "user", "content": "hello"}]


def status(url, key=None, data=None):
    got, answer = ask(url, data, {"Authorization": f"Bearer {key}"} if key else {})
    assert got == 200 or answer["error"]["message"]
    return got


@pytest.fixture(scope="module")
def locked(tmp_path_factory):
    path = tmp_path_factory.mktemp("keys") / "keys.jsonl"
    keys = {"client": add_key(path, "alice"), "admin": add_key(path, "root", role="admin")}
    keys["slow"] = add_key(path, "slow", rate_per_minute=2)
    with served(keys=path) as found:
        found.keys, found.path = keys, path
        yield found


def test_nothing_answers_without_a_key_or_with_a_wrong_one(locked):
    right = locked.keys["client"]
    wrong = [
        None,
        "x",
        right[:-1],
        right[:-1] + "é",
        right + "x",
        "sf_000000000000_" + "a" * 43,
        right[:16] + "A" * 43,
    ]
    paths = ["/v1/models", "/health", "/ready", "/metrics", "/openapi.json", "/v1/models/scripted"]
    for key in wrong:
        key = key and key.encode("utf-8").decode("latin-1")
        assert {status(locked.root + path, key) for path in paths} == {401}
        for path in (
            "/v1/chat/completions",
            "/v1/completions",
            "/v1/score",
            "/v1/verify",
            "/pooling",
            "/classify",
        ):
            assert status(locked.root + path, key, b"not even json") == 401
    with (
        OpenAI(base_url=locked.url, api_key="wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError) as caught,
    ):
        client.chat.completions.create(model="scripted", messages=MESSAGES)
    assert caught.value.body["code"] == "invalid_api_key"
    assert caught.value.response.headers["www-authenticate"] == "Bearer"


def test_roles(locked):
    assert status(f"{locked.root}/v1/models", locked.keys["client"]) == 200
    assert status(f"{locked.root}/metrics", locked.keys["client"]) == 403
    assert status(f"{locked.root}/metrics", locked.keys["admin"]) == 200
    assert status(f"{locked.root}/v1/models", locked.keys["admin"]) == 200


def test_a_key_has_its_rate(locked):
    with OpenAI(base_url=locked.url, api_key=locked.keys["slow"], max_retries=0) as client:
        for _ in range(2):
            client.chat.completions.create(model="scripted", messages=MESSAGES)
        with pytest.raises(openai.RateLimitError) as caught:
            client.chat.completions.create(model="scripted", messages=MESSAGES)
    assert 1 <= int(caught.value.response.headers["retry-after"]) <= 30
    assert status(f"{locked.root}/v1/models", locked.keys["client"]) == 200


def test_a_key_that_is_taken_back_stops_working_at_once(locked):
    key = add_key(locked.path, "guest")
    assert status(f"{locked.root}/v1/models", key) == 200
    remove_key(locked.path, key.split("_")[1])
    assert status(f"{locked.root}/v1/models", key) == 401


def test_a_file_that_breaks_while_the_server_runs_locks_nobody_out(tmp_path):
    path = tmp_path / "keys.jsonl"
    key = add_key(path, "alice")
    store = KeyFile(path)
    door = Door(store)
    path.write_text("{")
    assert asyncio.run(door.enter(f"Bearer {key}", "client")) == "alice"
    path.unlink()
    with pytest.raises(ApiError):
        asyncio.run(door.enter(f"Bearer {key}", "client"))
    with pytest.raises(OSError, match="keys"):
        KeyFile(path)


def test_what_is_kept_opens_nothing(tmp_path):
    path = tmp_path / "keys.jsonl"
    key = add_key(path, "alice")
    text = path.read_text()
    assert key.split("_", 2)[2] not in text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    digest = read_keys(path)[0].digest
    with pytest.raises(ApiError):
        asyncio.run(Door(KeyFile(path)).enter(f"Bearer {digest}", "client"))
    assert make_key("a")[0] != make_key("a")[0]


def test_beyond_loopback_a_server_needs_keys(tmp_path):
    for host in (
        "0.0.0.0",  # noqa: S104
        "::",
        "192.168.0.7",
        "example.org",
    ):
        with pytest.raises(ValidationError, match="keys"):
            ServerSettings(host=host)
        assert ServerSettings(host=host, keys=tmp_path / "k").host == host
    assert all(is_loopback(host) for host in ("127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost"))
    assert "reachable" in refused("serve", "--host", "0.0.0.0")  # noqa: S104


def test_a_bucket_fills_at_its_rate():
    moment = [0.0]
    bucket = TokenBucket(30, clock=lambda: moment[0])
    assert [bucket.take() for _ in range(30)] == [0.0] * 30
    assert bucket.take() == pytest.approx(2.0)
    moment[0] += 1
    assert bucket.take() == pytest.approx(1.0)
    moment[0] += 1
    assert bucket.take() == 0.0
    moment[0] += 1e6
    assert sum(bucket.take() == 0.0 for _ in range(100)) == 30


def test_keys_from_the_command_line(tmp_path):
    path = tmp_path / "keys.jsonl"
    made = good("serve", "keys", "add", "alice", "--keys", path, "--role", "admin", "--rate", 5)
    key = made.out.strip()
    assert asyncio.run(Door(KeyFile(path)).enter(f"bearer {key}", "admin")) == "alice"
    listed = good("serve", "keys", "list", "--keys", path).out.split("\t")
    assert listed[1:3] == ["admin", "5"]
    assert "client" in refused("serve", "keys", "add", "bob", "--keys", path, "--role", "king")
    good("serve", "keys", "remove", listed[0], "--keys", path)
    assert read_keys(path) == []
    assert "no key" in refused("serve", "keys", "remove", listed[0], "--keys", path)
    path.write_text("{}\n")
    with pytest.raises(RecordError, match="line 1"):
        read_keys(path)
