"""What a server serves: its address, key and models, checked before work starts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from openai_server import Body, OpenAIServer, Reply, chat, completion, serve

from surefoot.errors import PolicyError
from surefoot.policies.loading import load_policy
from surefoot.policies.probe import list_models


def served(name: str) -> Body:
    return {"id": name, "object": "model", "created": 0, "owned_by": "vllm", "root": f"org/{name}"}


def answer(body: Body) -> Reply:
    if body["model"] not in ("writer", "alias"):
        return Reply(status=404, payload={"error": {"message": f"no {body['model']} here"}})
    return Reply(payload=chat(["1"]) if "messages" in body else completion(["1"]))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenAIServer]:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with serve(answer) as running:
        running.models = [served("writer")]
        yield running


def refused(name: str, url: str, **settings: Any) -> str:
    with pytest.raises(PolicyError) as caught:
        load_policy(name, base_url=url, **settings)
    sentence = str(caught.value)
    assert url in sentence
    assert "\n" not in sentence
    return sentence


def test_what_a_server_says_of_its_models(server):
    [model] = list_models(server.url)
    assert (model.id, model.root, model.max_model_len) == ("writer", "org/writer", None)


def test_a_listed_model_costs_no_request(server):
    assert load_policy("writer", base_url=server.url).name == "writer"
    assert server.seen == []


@pytest.mark.parametrize("chat", [True, False])
def test_a_model_that_is_not_listed_is_tried_with_one_token(server, chat):
    assert load_policy("alias", base_url=server.url, chat=chat).name == "alias"
    [(path, body)] = server.seen
    assert path == ("/v1/chat/completions" if chat else "/v1/completions")
    assert body["max_tokens"] == 1


def test_an_empty_list_says_nothing(server):
    server.models = []
    load_policy("anything", base_url=server.url)
    assert server.seen == []


def test_a_wrong_model_is_named_with_those_there_are(server):
    said = refused("reader", server.url)
    assert "serves writer and not the model 'reader' (status 404: " in said
    assert "no reader here" in said


def test_nobody_there(server):
    said = refused("writer", "http://127.0.0.1:9/v1")
    assert "no server answers" in said
    assert "Connection refused" in said


@pytest.mark.parametrize(
    ("url", "hint"),
    [("localhost:8000/v1", "write http://localhost:8000/v1"), ("ftp://host/v1", "write http://host/v1")],
)
def test_an_address_without_a_scheme(url, hint):
    assert hint in refused("writer", url)


def test_an_address_without_v1(server):
    root = server.url.removesuffix("/v1")
    assert refused("writer", root).endswith(f"write {root}/v1")


def test_another_path(server):
    url = server.url.replace("/v1", "/v2")
    assert "neither lists models nor answers for the model 'reader'" in refused("reader", url)
    with pytest.raises(PolicyError, match="does not list models at"):
        list_models(url)


def test_a_web_page_is_not_a_server(server):
    server.models = "<html>"
    assert "does not list models" in refused("writer", server.url)


def test_keys(server, monkeypatch):
    server.key = "right"
    assert "needs a key; set OPENAI_API_KEY (status 401" in refused("writer", server.url)
    monkeypatch.setenv("OPENAI_API_KEY", "wrong")
    assert "refuses the key in OPENAI_API_KEY (status 401" in refused("writer", server.url)
    monkeypatch.setenv("OPENAI_API_KEY", "right")
    load_policy("writer", base_url=server.url)
