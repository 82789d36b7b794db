"""Labels from a chat server that ignores ``continue_final_message`` and answers from scratch."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from command_line import good, refused
from counting_server import CountingServer, is_probe
from openai_server import Body, OpenAIServer, Reply, chat, serve

from surefoot.io import write_records
from surefoot.records import Problem, Trace

RIGHT = "3 + 4 = 7\n7 + 1 = 8\nThe answer is 8."
WRONG = "3 + 4 = 9\n9 + 1 = 10\nThe answer is 10."


@pytest.fixture
def files(tmp_path: Path) -> tuple[object, ...]:
    problem = Problem(id="p", text="What is 3 + 4 + 1?", answer="8")
    write_records(tmp_path / "p.jsonl", [problem])
    traces = [Trace(problem_id="p", text=text, sample=n) for n, text in enumerate([RIGHT, WRONG])]
    write_records(tmp_path / "t.jsonl", traces)
    good("segment", tmp_path / "t.jsonl", "--segment", "line", "--out", tmp_path / "s.jsonl")
    return tmp_path / "s.jsonl", "--problems", tmp_path / "p.jsonl", "--extract", "phrase", "--equality=exact"


def answer(body: Body) -> Reply:
    """Solves the problem from scratch, whatever beginning the request has."""
    if is_probe(body):
        return CountingServer(beginning="ignore")(body)
    return Reply(payload=chat([RIGHT], prompt_tokens=20))


def label(server: OpenAIServer, files: tuple[object, ...], *words: object) -> tuple[object, ...]:
    server.probe = None
    server.models = [{"id": "m"}]
    policy = ("--policy=m", f"--base-url={server.url}", "--chat", "--template={problem}")
    return ("label", *files, "mc:rollouts=4,own-outcome=never", *policy, *words)


def test_it_is_refused_before_any_label_is_written(files, tmp_path):
    with serve(answer) as server:
        says = refused(*label(server, files, "--out", tmp_path / "l.jsonl"))
        assert all(map(is_probe, server.bodies))
    assert re.search(r"cannot continue the beginning of an answer \(the prompt has 24 tokens without", says)
    assert says.endswith("use judge, or a server that continues")
    assert not list(tmp_path.glob("l.jsonl*"))


def test_the_manifest_says_what_the_server_can_do(files, tmp_path):
    def fails_once(body: Body) -> Reply:
        return CountingServer()(body) if is_probe(body) else Reply(status=422, payload="too long")

    with serve(fails_once) as server:
        refused(*label(server, files, "--out", tmp_path / "l.jsonl"))
    manifest = json.loads((tmp_path / "l.jsonl.work" / "manifest.json").read_text())
    assert manifest["server"]["continuation"]["status"] == "yes"


def test_the_manifest_stays_when_the_labels_are_complete(files, tmp_path):
    def continues(body: Body) -> Reply:
        return CountingServer()(body) if is_probe(body) else Reply(payload=chat([" The answer is 8."]))

    with serve(continues) as server:
        good(*label(server, files, "--out", tmp_path / "l.jsonl"))
    manifest = json.loads((tmp_path / "l.jsonl.manifest.json").read_text())
    assert (manifest["command"], manifest["config"]["method"]) == ("label", "mc")
    assert manifest["server"]["continuation"]["status"] == "yes"
    assert not (tmp_path / "l.jsonl.work").exists()


def test_doctor_shows_it():
    with serve(answer) as server:
        server.models = [{"id": "m"}]
        server.probe = CountingServer(beginning="ignore", extras=False)
        out = good("doctor", server.url).out
    assert "m, /chat/completions" in out
    assert re.search(r"continuation +no ", out)
    assert re.search(r"tool_calls +yes ", out)


def test_doctor_fails_where_nothing_works():
    with serve(lambda _: Reply(status=500, payload="broken")) as server:
        server.models, server.probe = [{"id": "m"}], None
        assert "no request for 'm' was answered" in refused("doctor", server.url)
