"""A search without a candidate says so; the example of the documentation has one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from gateway_server import LineScorer, served
from openai import OpenAI

from benchmarks.worlds.scripted import ScriptedPolicy
from surefoot import load_prm
from surefoot.lab import POLICY
from surefoot.policies import TransformersPolicy
from surefoot.server import GatewaySettings, open_database

SERVE = Path(__file__).parents[3] / "docs/how-to/serve.md"
ASKED = {"messages": [{"role": "user", "content": "hello"}], "seed": 1}


def silent(request, sample):
    """A policy that ends at once, as the lab's does with problems that it has not learned."""
    return "" if not request.prefix else "The answer is 7"


@pytest.fixture(scope="module")
def client():
    with (
        served(ScriptedPolicy(silent), LineScorer()) as found,
        OpenAI(base_url=found.url, api_key="none", max_retries=0) as client,
    ):
        yield client


@pytest.mark.parametrize(
    "strategy",
    ["best-of-n:n=4", "majority:n=4", "beam:width=2,expand=2", "dvts:n=4,expand=2", "accept-reject"],
)
def test_no_candidate_is_a_refusal_with_a_reason(client, strategy):
    answer = client.chat.completions.create(model=strategy, n=2, **ASKED)
    for choice, search in zip(answer.choices, answer.surefoot["searches"], strict=True):
        assert search["candidates"] == []
        assert choice.message.content is None
        assert choice.finish_reason == "content_filter"
        assert choice.message.refusal.startswith("no solution: the policy returned none")
        assert search["error"] == choice.message.refusal
        assert search["abstained"] is True


def test_a_stream_without_a_candidate_is_a_refusal(client):
    content = refusal = ""
    for piece in client.chat.completions.create(model="best-of-n:n=4", stream=True, **ASKED):
        for choice in piece.choices:
            content += choice.delta.content or ""
            refusal += choice.delta.refusal or ""
    assert content == ""
    assert refusal.startswith("no solution: ")


def test_front_ends_that_show_no_refusal_get_it_as_text_and_the_record_has_the_reason(tmp_path):
    settings = GatewaySettings(refusal_as_text=True)
    with (
        open_database(tmp_path / "store.db") as db,
        served(ScriptedPolicy(silent), LineScorer(), settings=settings, db=db) as found,
        OpenAI(base_url=found.url, api_key="none", max_retries=0) as client,
    ):
        answer = client.chat.completions.create(model="best-of-n:n=4", **ASKED)
        assert answer.choices[0].message.content.startswith("no solution: ")
        record = db.gateway.get(answer.id)
        assert (record.status, record.error) == (200, answer.choices[0].message.content)


def test_the_example_of_the_documentation_is_solved_by_the_lab(capsys):
    example, *_ = re.findall(r"```python\n(.*?)```", SERVE.read_text(encoding="utf-8"), re.DOTALL)
    policy = TransformersPolicy.from_pretrained(POLICY)
    with served(policy, load_prm("lab")) as found:
        example = example.replace("http://127.0.0.1:8000/v1", found.url).replace("sf-…", "none")
        names: dict[str, object] = {}
        exec(compile(example, str(SERVE), "exec"), names)  # noqa: S102 - our own page
        names["client"].close()
    answer = names["answer"]
    assert answer.choices[0].message.content.endswith("Answer: 17.\n")
    assert answer.choices[0].message.refusal is None
    assert "47 + 38 = 85" in capsys.readouterr().out
