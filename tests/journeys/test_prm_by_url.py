"""A PRM behind a URL, alone and with the policy behind another; servers that are not as they should be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import good, refused
from openai_server import Body, OpenAIServer, Reply, completion, serve
from published_checkpoints import SPECIAL, save_qwen_prm
from scoring_server import ScoringEngine, address, served
from vllm_server import VLLM, WIDE, running

from surefoot import load_prm
from surefoot.io import read_records
from surefoot.models.remote.opening import check_server, find_tokenizer, server_command
from surefoot.records import StepScores, Trace
from surefoot.search.method import SearchResult

PROBLEMS = [{"text": "What is 1 + 1?", "answer": "2"}, {"text": "What is 3 + 4?", "answer": "7"}]
QWEN = "Qwen2.5-Math-PRM-7B"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    Path("problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in PROBLEMS))
    return tmp_path


def write(body: Body) -> Reply:
    """Two ways of writing, by the seed; half of the answers are wrong."""
    wrong = body["seed"] % 2
    answer = eval_sum(body["prompt"]) + wrong
    return Reply(payload=completion([f"We add  the numbers.\n\nThe answer is {answer}"]))


def eval_sum(prompt: str) -> int:
    words = prompt.split()
    return int(words[words.index("+") - 1]) + int(words[words.index("+") + 1].rstrip("?"))


def sampled(url: str) -> list[str]:
    return ["sample", "problems.jsonl", "--n", "4", "--policy", "writer", "--base-url", url]


@pytest.mark.slow
@pytest.mark.skipif(not VLLM, reason="SUREFOOT_VLLM names no vLLM program")
def test_a_prm_behind_vllm(folder):
    save_qwen_prm(folder / QWEN, **WIDE)
    with serve(write) as policy:
        policy.models = [{"id": "writer"}]
        good(*sampled(policy.url), "--segment", "blank-line", "--out", "traces.jsonl")
    model = find_tokenizer(QWEN)
    command = server_command(model, QWEN)
    assert command[:3] == ["vllm", "serve", QWEN]
    files = ("--problems", "problems.jsonl", "traces.jsonl", "--out")
    with running(folder / QWEN, *command[5:]) as url:
        check_server(url, model, reference=load_prm(QWEN))
        good("score", "-m", url, *files, "served.jsonl")
    good("score", "-m", QWEN, *files, "here.jsonl")
    pairs = zip(read_records("served.jsonl", StepScores), read_records("here.jsonl", StepScores), strict=True)
    for remote, local in pairs:
        assert remote.trace_id == local.trace_id
        assert remote.scores == pytest.approx(local.scores, abs=1e-4)


def test_best_of_n_with_both_behind_urls(folder):
    save_qwen_prm(folder / QWEN)
    engine = ScoringEngine(folder / QWEN, "/pooling", tag=SPECIAL + 3)
    with serve(write) as policy, served(engine, folder / QWEN) as prm:
        policy.models = [{"id": "writer"}]
        url = address(prm)
        good(*sampled(policy.url), "--segment", "blank-line", "--out", "traces.jsonl")
        good(
            *("score", "-m", url, "--problems", "problems.jsonl"),
            *("traces.jsonl", "--out", "s.jsonl"),
        )
        good("select", "traces.jsonl", "--scores", "s.jsonl", "--out", "chosen.jsonl")
        search = ["search", "problems.jsonl", "best-of-n:n=4", "--prm", url, "--policy", "writer"]
        good(*search, "--base-url", policy.url, "--out", "r.jsonl")
    assert [trace.problem_id for trace in read_records("chosen.jsonl", Trace)]
    scores = list(read_records("s.jsonl", StepScores))
    assert [len(record.scores) for record in scores] == [2] * 8
    assert None not in {score for record in scores for score in record.scores}
    results = list(read_records("r.jsonl", SearchResult))
    assert all(result.candidates for result in results)
    # steps end where the family's training data cut them: at blank lines
    assert {len(record.scores) for result in results for record in result.scores} == {2}


@pytest.fixture
def policy(folder: Path):
    with serve(write) as server:
        server.models = [{"id": "writer", "owned_by": "vllm", "root": "writer"}]
        yield server


def test_a_wrong_url_key_or_model_is_one_sentence(folder, policy: OpenAIServer, monkeypatch):
    url, out = policy.url, ("--out", "t.jsonl")
    root = url.removesuffix("/v1")

    def said(policy_url: str, name: str = "writer") -> str:
        return refused("sample", "problems.jsonl", "--policy", name, "--base-url", policy_url, "--n", 1, *out)

    assert said("http://127.0.0.1:9/v1").startswith("http://127.0.0.1:9/v1: no server answers")
    assert said(url.removeprefix("http://")).endswith(f"write {url}")
    assert said(root).endswith(f"write {url}")
    policy.answer = lambda _: Reply(status=404, payload="no such model")
    assert said(url, "reader").startswith(f"{url} serves writer and not the model 'reader'")
    score = ("score", "--problem", "1?", "--solution", "2", "-m")
    assert refused(*score, "http://127.0.0.1:9").startswith("http://127.0.0.1:9/v1: no server answers")
    assert "write http://localhost:9" in refused(*score, "localhost:9")
    assert "whose name does not show its family" in refused(*score, root)
    assert "and not the model 'other'" in refused(*score, f"{root}?model=other")
    policy.key = "right"
    assert said(url).startswith(f"{url} needs a key; set OPENAI_API_KEY (status 401")
    monkeypatch.setenv("OPENAI_API_KEY", "wrong")
    assert said(url).startswith(f"{url} refuses the key in OPENAI_API_KEY (status 401")
    assert refused(*score, root).startswith(f"{url} refuses the key in OPENAI_API_KEY (status 401")
    assert not (folder / "t.jsonl").exists()
    assert not (folder / "t.jsonl.work").exists()
