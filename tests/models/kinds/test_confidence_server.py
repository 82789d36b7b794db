"""Confidence from a server's log-probabilities, against the same model in this process."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch
from openai_server import Reply, completion, serve

from surefoot.errors import CheckpointError
from surefoot.models import ConfidenceScorer, Encoding, ServerConfidence, load_causal, load_prm
from surefoot.protocols import ProblemTrace
from surefoot.records import Message, Step, Trace

TOP = 5


@pytest.fixture(scope="module")
def tiny(lab_base):
    return load_causal(lab_base)


def vllm(tiny, *, broken: str = ""):
    """Answers as vLLM does, from ``tiny``."""
    policy, tokenizer = tiny

    def place(logprobs: torch.Tensor, token: int) -> dict:
        kept = {token, *logprobs.topk(TOP).indices.tolist()}
        return {
            str(one): {"logprob": float(logprobs[one]), "rank": 1, "decoded_token": tokenizer.decode([one])}
            for one in kept
        }

    def answer(body):
        text = body.get("prompt") or "".join(message["content"] for message in body["messages"])
        ids = tokenizer(text)["input_ids"]
        with torch.no_grad():
            logprobs = policy(torch.tensor([ids])).logits[0].log_softmax(-1)
        places = [None, *(place(logprobs[at - 1], ids[at]) for at in range(1, len(ids)))]
        if broken == "text":
            places[-1][str(ids[-1])]["decoded_token"] = "?"
        known = {} if broken == "old" else {"prompt_logprobs": places, "prompt_token_ids": ids}
        payload = completion([""], **({} if "messages" in body else known))
        if "messages" in body:
            payload |= known
            payload["choices"][0] = {
                "index": 0,
                "message": {"role": "assistant", "content": ""},
                "finish_reason": "stop",
            }
        return Reply(payload=payload) if broken != "down" else Reply(payload="no", status=400)

    return answer


@contextmanager
def served(tiny, broken: str = "", **options):
    with serve(vllm(tiny, broken=broken)) as server:
        server.models = [{"id": "tiny", "object": "model", "created": 0, "owned_by": "vllm"}]
        scorer = ServerConfidence(base_url=server.url, model="tiny", top_k=TOP, max_retries=0, **options)
        yield server, scorer


@pytest.mark.parametrize("window", [2048, 2])
@pytest.mark.parametrize("chat", [False, True])
def test_scores_are_those_of_the_model_in_this_process(tiny, lab_items, window, chat):
    local = ConfidenceScorer(*tiny, window=window, top_k=TOP, encoding=Encoding(template="{problem}\n"))
    with served(tiny, window=window, encoding=Encoding(template="{problem}\n", chat=chat)) as (
        server,
        scorer,
    ):
        found = scorer.score_traces(lab_items[:4])
    for one, other in zip(found, local.score_traces(lab_items[:4]), strict=True):
        assert one.scores == pytest.approx(other.scores, abs=1e-4)
        assert (one.unscored_reason, one.usage.calls, one.usage.verifier_tokens > 0) == (None, 1, True)
    assert {(body["prompt_logprobs"], body["max_tokens"]) for body in server.bodies} == {(TOP, 1)}


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ("old", "no 'prompt_logprobs' with token ids"),
        ("text", "do not add up to the solution's text"),
        ("down", "server: "),
    ],
)
def test_what_cannot_be_scored_says_why(tiny, lab_items, broken, reason):
    with served(tiny, broken) as (_, scorer):
        [record] = scorer.score_traces(lab_items[:1])
    assert set(record.scores) == {None}
    assert reason in record.unscored_reason


def test_a_conversation_is_not_scored(tiny, lab_items):
    messages = (Message(role="assistant", content="x"),)
    chat = Trace(problem_id="p", messages=messages, steps=(Step(start=0, end=1, message=0),))
    with served(tiny) as (server, scorer):
        [record] = scorer.score_traces([ProblemTrace(problem=lab_items[0].problem, trace=chat)])
    assert "conversation" in record.unscored_reason
    assert server.bodies == []


def test_it_is_opened_by_its_address(tiny, lab_items):
    with served(tiny) as (server, _):
        scorer = load_prm(f"deepconf:{server.url}")
        [record] = scorer.score_traces(lab_items[:1])
        assert record.scorer == "deepconf:tiny"
        assert None not in record.scores
        with pytest.raises(CheckpointError, match="needs the whole vocabulary"):
            load_prm(f"entropy:{server.url}")
    with pytest.raises(CheckpointError, match="does not list its models"):
        load_prm("deepconf:http://127.0.0.1:9")
