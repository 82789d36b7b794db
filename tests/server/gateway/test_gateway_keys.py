"""Keys: who may ask, how often, and what is kept of a key."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta

import openai
import pytest
from command_line import good, refused
from gateway_server import ask, served
from openai import OpenAI

from surefoot.server import create_app, open_database
from surefoot.server.gateway.access import Buckets, KeyAuth
from surefoot.server.gateway.errors import ApiError
from surefoot.server.gateway.settings import ServerSettings, is_loopback

MESSAGES = [{"role": "user", "content": "hello"}]


def status(url, key=None, data=None):
    got, answer = ask(url, data, {"Authorization": f"Bearer {key}"} if key else {})
    assert got == 200 or answer["error"]["message"]
    return got


@pytest.fixture
def db(tmp_path):
    with open_database(tmp_path / "store.db") as found:
        yield found


@pytest.fixture(scope="module")
def locked(tmp_path_factory):
    with open_database(tmp_path_factory.mktemp("keys") / "store.db") as db:
        keys = {role: db.keys.create(role, role)[0] for role in ("client", "admin", "viewer")}
        keys["slow"], _ = db.keys.create("slow", "client", rate_limit=2)
        project = db.projects.create("p").id
        keys["narrow"], _ = db.keys.create("narrow", "admin", project_id=project)
        with served(db=db, require_key=True) as found:
            found.keys, found.db, found.project = keys, db, project
            yield found


def check(db, key, action="connect", headers=None, required=True):
    auth = KeyAuth(db.keys if db else None, required=required)
    sent = {"host": "127.0.0.1:8000", **(headers or {})}
    if key:
        sent["authorization"] = f"Bearer {key}"
    try:
        return asyncio.run(
            auth.check({name: value for name, value in sent.items() if value is not None}, action)
        )
    finally:
        auth.close()


def test_nothing_answers_without_a_key_or_with_a_wrong_one(locked):
    right = locked.keys["client"]
    wrong = [
        None,
        "x",
        right[:-1],
        right[:-1] + "é",
        right + "x",
        "sf-00000000-" + "a" * 43,
        right[:12] + "A" * 43,
        "sf--",
        "sf-%-x",
    ]
    paths = ["/v1/models", "/health", "/ready", "/metrics", "/v1/models/scripted"]
    for key in wrong:
        key = key and key.encode("utf-8").decode("latin-1")
        assert {status(locked.root + path, key) for path in paths} == {401}
        for path in (
            "/v1/chat/completions",
            "/v1/score",
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
    for key, models, metrics in (
        ("client", 200, 403),
        ("admin", 200, 200),
        ("narrow", 200, 403),  # an administrator of one project is none of the server
        ("viewer", 403, 200),
    ):
        assert status(f"{locked.root}/v1/models", locked.keys[key]) == models
        assert status(f"{locked.root}/metrics", locked.keys[key]) == metrics


def test_whose_key_it_was_is_in_the_record(locked):
    with OpenAI(base_url=locked.url, api_key=locked.keys["narrow"], max_retries=0) as client:
        answer = client.chat.completions.create(model="scripted", messages=MESSAGES)
    record = locked.db.gateway.get(answer.id)
    assert record.key_id in [key.id for key in locked.db.keys.list() if key.name == "narrow"]
    assert record.project_id == locked.project


def test_a_key_has_its_rate(locked):
    with OpenAI(base_url=locked.url, api_key=locked.keys["slow"], max_retries=0) as client:
        for _ in range(2):
            client.chat.completions.create(model="scripted", messages=MESSAGES)
        with pytest.raises(openai.RateLimitError) as caught:
            client.chat.completions.create(model="scripted", messages=MESSAGES)
    assert 1 <= int(caught.value.response.headers["retry-after"]) <= 30
    assert status(f"{locked.root}/v1/models", locked.keys["client"]) == 200


def test_a_key_that_is_taken_back_stops_working_at_once(locked):
    key, row = locked.db.keys.create("guest", "client")
    assert status(f"{locked.root}/v1/models", key) == 200
    locked.db.keys.revoke(row.id)
    assert status(f"{locked.root}/v1/models", key) == 401


def test_a_key_that_has_expired_is_refused_with_the_reason(db):
    now = datetime.now(UTC)
    key, _ = db.keys.create("guest", "client", expires=now + timedelta(hours=1))
    assert check(db, key).name == "guest"
    db.keys._connections.clock = lambda: now + timedelta(hours=1)
    for required in (True, False):  # not treated as if no key had been sent
        with pytest.raises(ApiError) as caught:
            check(db, key, required=required)
        assert (caught.value.status, caught.value.code) == (401, "expired_api_key")
        assert "'guest' expired at" in caught.value.message


def test_a_database_that_is_gone_opens_nothing_and_says_so(tmp_path):
    key = "sf-00000000-" + "a" * 43
    with open_database(tmp_path / "store.db") as db:
        with closing(sqlite3.connect(tmp_path / "store.db")) as behind_its_back:
            behind_its_back.execute("DROP TABLE api_keys")
        with pytest.raises(ApiError) as caught:
            check(db, key)
    assert caught.value.status == 503


def test_on_loopback_a_known_key_only_says_whose_the_request_is(db):
    key, row = db.keys.create("alice", "client")
    assert check(db, key, required=False).id == row.id
    assert check(db, "anything", required=False) is None
    db.keys.revoke(row.id)
    for wrong in (key, f"{key}x", "sf-nobody-secret"):
        with pytest.raises(ApiError) as caught:  # not treated as if no key had been sent
            check(db, wrong, required=False)
        assert caught.value.status == 401
    assert check(None, None, required=False) is None
    with pytest.raises(ApiError) as caught:
        check(db, None)
    assert caught.value.status == 401
    with pytest.raises(ValueError, match="keys"):
        create_app(ServerSettings(host="::"))


def test_without_keys_only_this_machine_is_answered(db):
    here = ("127.0.0.1", "localhost:8000", "LOCALHOST", "localhost.", "[::1]:8000", "[::1]", "127.0.0.9:1")
    for host in here:
        assert check(None, None, headers={"host": host}, required=False) is None
    assert check(None, None, headers={"origin": "http://localhost:3000"}, required=False) is None
    key, _ = db.keys.create("alice", "client")
    names = (
        "evil.example",
        "evil.example:8000",
        "localhost.evil.example",
        "192.168.0.7",
        "",
        None,
        "[::2]:1",
        "[",
    )
    elsewhere = [{"host": name} for name in names]
    elsewhere += [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"x-forwarded-for": "203.0.113.9"},
        {"forwarded": "for=203.0.113.9"},
        {"via": "1.1 proxy"},
    ]
    for headers in elsewhere:
        with pytest.raises(ApiError) as caught:
            check(db, None, headers=headers, required=False)
        assert (caught.value.status, caught.value.code) == (403, "not_local")
        assert check(db, key, headers=headers, required=False).name == "alice"
    with served() as found:
        assert ask(f"{found.root}/v1/models", headers={"Host": "evil.example"})[0] == 403
        assert ask(f"{found.root}/v1/models")[0] == 200


def test_beyond_loopback_keys_are_asked_for():
    for host in (
        "0.0.0.0",  # noqa: S104
        "::",
        "192.168.0.7",
        "example.org",
    ):
        assert ServerSettings(host=host).needs_key
    assert not ServerSettings().needs_key
    assert ServerSettings(require_key=True).needs_key
    assert all(is_loopback(host) for host in ("127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost"))


def test_a_bucket_fills_at_its_rate():
    moment = [0.0]
    buckets = Buckets(clock=lambda: moment[0])
    assert [buckets.take("a", 30) for _ in range(30)] == [0.0] * 30
    assert buckets.take("a", 30) == pytest.approx(2.0)
    moment[0] += 1
    assert buckets.take("a", 30) == pytest.approx(1.0)
    moment[0] += 1
    assert buckets.take("a", 30) == 0.0
    moment[0] += 1e6
    assert sum(buckets.take("a", 30) == 0.0 for _ in range(100)) == 30


def test_keys_from_the_command_line(tmp_path):
    path = tmp_path / "store.db"
    here = ("--database", path)
    key = good("serve", "keys", "add", "alice", "--role", "admin", "--rate", 5, *here).out.strip()

    def listed():
        return [line.split("\t") for line in good("serve", "keys", "list", *here).out.splitlines()]

    [[number, role, rate, *_, revoked, name]] = listed()
    assert (role, rate, revoked, name) == ("admin", "5", "-", "alice")
    good("serve", "keys", "add", "guest", "--expires", "0.5", *here)
    *_, created, expires, _, name = listed()[1]
    assert name == "guest"
    lifetime = datetime.fromisoformat(expires) - datetime.fromisoformat(created)
    assert abs(lifetime - timedelta(hours=12)) <= timedelta(minutes=1)
    good("serve", "keys", "add", "bounded", "--rate", 7, *here)
    _, second, third = listed()
    assert (third[2], third[-2:]) == ("7", ["-", "bounded"])
    assert second[2] == "-"
    for wrong in ("soon", "0", "-1", "1e9", "nan"):
        assert "expires" in refused("serve", "keys", "add", "bob", "--expires", wrong, *here)
    with open_database(path) as db:
        assert check(db, key, "operate").name == "alice"
    assert "client" in refused("serve", "keys", "add", "bob", "--role", "king", *here)
    assert "project" in refused("serve", "keys", "add", "bob", "--project", 7, *here)
    assert "client" in refused("serve", "keys", "add", "bob", "--role", "annotator", *here)
    good("serve", "keys", "revoke", number, *here)
    with open_database(path) as db, pytest.raises(ApiError):
        check(db, key, "operate")
    assert "key 77 does not exist" in refused("serve", "keys", "revoke", 77, *here)


def test_old_answers_are_deleted_from_the_command_line(tmp_path):
    path = tmp_path / "store.db"
    with open_database(path) as db, served(db=db) as found:
        ask(f"{found.url}/chat/completions", json.dumps({"model": "scripted", "messages": MESSAGES}).encode())
    assert "0 requests" in good("serve", "prune", "--older-than", 1, "--database", path).err
    assert "1 request " in good("serve", "prune", "--older-than", 0, "--database", path).err
    with open_database(path) as db:
        assert db.gateway.find() == []
