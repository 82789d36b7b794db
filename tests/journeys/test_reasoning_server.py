"""A reasoning model behind a server: what it thinks is sampled, cut, graded, shown and scored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import good
from openai_server import Body, Reply, chat, serve

from surefoot.io import read_records
from surefoot.models import CheckpointCard, RewardModel
from surefoot.records import StepScores, Trace

THOUGHT = "7 + 3 = 0\n\nWait, is it modulo 10? Yes.\n\nSo 0."


def served(body: Body) -> Reply:
    """Shows its reasoning to one problem, and only bills it for the other."""
    hidden = "Multiply" in body["messages"][-1]["content"]
    reply = chat(["Answer: 0"], **({} if hidden else {"reasoning_content": THOUGHT}))
    reply["usage"]["completion_tokens"] += 40
    reply["usage"]["completion_tokens_details"] = {"reasoning_tokens": 40}
    return Reply(payload=reply)


def test_a_reasoning_model_behind_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpt2_base: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"text": "Start with 7. Add 3.", "answer": 0}, {"text": "Multiply 5 by 2.", "answer": "0"}]
    Path("problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with serve(served) as server:
        server.models = [{"id": "thinker"}]
        good(
            *(
                "sample",
                "problems.jsonl",
                "--n",
                1,
                "--policy",
                "thinker",
                "--base-url",
                server.url,
                "--chat",
            ),
            *("--template", "{problem}", "--extract", "phrase", "--segment", "thoughts", "--out", "t.jsonl"),
        )
    shown, hidden = sorted(read_records("t.jsonl", Trace), key=lambda trace: -len(trace.steps))
    assert [step.kind for step in shown.steps] == ["reasoning"] * 3 + ["final_answer"]
    assert THOUGHT in shown.text
    assert (shown.outcome, hidden.outcome) == (True, True)
    assert (hidden.reasoning.visibility, hidden.reasoning.tokens, hidden.text) == (
        "withheld",
        40,
        "Answer: 0",
    )
    assert {trace.usage.completion_tokens for trace in (shown, hidden)} == {42}
    card = CheckpointCard(kind="prm", label_source="none", base="tiny")
    RewardModel.initialise(gpt2_base, card).save(Path("prm"))
    good("score", "-m", "prm", "--problems", "problems.jsonl", "t.jsonl", "--out", "s.jsonl")
    scores = {one.trace_id: one.scores for one in read_records("s.jsonl", StepScores)}
    assert len(scores[shown.id]) == 4
    assert None not in scores[shown.id]
