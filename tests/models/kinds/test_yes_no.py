"""The odds of yes against no, in process and from a server's log probabilities."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import pytest
import torch
from openai_server import Reply, serve
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.worlds import critic
from surefoot.errors import ScoreError
from surefoot.models.kinds.yes_no import OpenAIYesNo, TransformersYesNo, YesNo
from surefoot.policies import OpenAIPolicy
from surefoot.protocols import SampleRequest
from surefoot.records import Message

CLOSING = f"\n{critic.END}{critic.QUESTION}"
PROMPTS = [
    "Start with 7. Add 3.\n7 + 3 = 0\n",
    "Start with 1.",
    "Start with 2. Add 4.\n2 + 4 = 6\nAnswer: 6\n",
]


@pytest.fixture(scope="module")
def small(lab_base: Path):
    tokenizer = AutoTokenizer.from_pretrained(lab_base)
    tokenizer.add_tokens(list(critic.PIECES))
    model = AutoModelForCausalLM.from_pretrained(lab_base)
    torch.manual_seed(3)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    return model.eval(), tokenizer


def reader(small, **changes) -> TransformersYesNo:
    settings = {"question": CLOSING, "yes": (critic.YES,), "no": (critic.NO,)} | changes
    return TransformersYesNo(*small, **settings)


def requests(*prompts: str) -> list[SampleRequest]:
    return [SampleRequest(prompt=prompt, prefix=CLOSING) for prompt in prompts]


def test_a_gap_of_two_logits_is_0_8808() -> None:
    assert YesNo(log_odds=2.0).score == pytest.approx(0.8808, abs=5e-5)
    assert YesNo(log_odds=-2.0).score == pytest.approx(1 - 0.8808, abs=5e-5)
    assert YesNo(log_odds=0.0).score == 0.5
    assert YesNo(log_odds=5000.0).score == 1.0
    assert YesNo(log_odds=-5000.0).score == 0.0
    assert YesNo(log_odds=None, reason="r").score is None


def test_odds_from_logits(small) -> None:
    read = reader(small)
    logits = torch.tensor([[3.0, 1.0], [1003.0, 1001.0], [-7.0, -9.0]])
    assert read.log_odds(logits).tolist() == pytest.approx([2.0, 2.0, 2.0])


def test_spellings_are_added(small) -> None:
    """Two tokens of yes with the same logit are worth log 2 more than one."""
    read = reader(small, yes=(critic.YES, "7"), no=(critic.NO,))
    assert len(read.yes_ids) == 2
    assert read.log_odds(torch.tensor([[1.0, 1.0, 0.0]])).item() == pytest.approx(1 + math.log(2))


def test_the_rows_give_what_the_whole_head_gives(small) -> None:
    """And so no other token's logit matters: the straight-line computation has all of them."""
    model, tokenizer = small
    read = reader(small, batch_tokens=40)
    assert read._by_rows
    found = asyncio.run(read.read(requests(*PROMPTS)))
    yes, no = tokenizer.convert_tokens_to_ids([critic.YES, critic.NO])
    for prompt, odds in zip(PROMPTS, found, strict=True):
        ids = tokenizer(prompt + CLOSING, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            p = model(ids).logits[0, -1].double().softmax(-1)
        assert odds.score == pytest.approx((p[yes] / (p[yes] + p[no])).item(), abs=1e-5)
        assert odds.usage.verifier_tokens == ids.shape[1]


def test_a_scaled_head_is_read_whole(small) -> None:
    """A model that does not simply multiply with its head is found out by the trial."""
    model, _ = small
    plain = asyncio.run(reader(small).read(requests(*PROMPTS)))
    hook = model.lm_head.register_forward_hook(lambda _module, _inputs, out: 3 * out)
    try:
        read = reader(small)
        assert not read._by_rows
        found = asyncio.run(read.read(requests(*PROMPTS)))
    finally:
        hook.remove()
    assert [odds.log_odds for odds in found] == pytest.approx([3 * odds.log_odds for odds in plain], rel=1e-4)


def test_a_prompt_beyond_the_context_is_unknown(small) -> None:
    long, short = asyncio.run(reader(small).read(requests("7" * 200, PROMPTS[0])))
    assert long.log_odds is None
    assert "context is 128" in long.reason
    assert short.log_odds is not None


def test_spellings_must_be_single_tokens(small) -> None:
    with pytest.raises(ScoreError, match="spellings of yes"):
        reader(small, yes=("7 + 3",))
    with pytest.raises(ScoreError, match="same token"):
        reader(small, no=(critic.YES,))


def completion_logprobs(top: dict[str, float]) -> Reply:
    choice = {"index": 0, "text": "x", "finish_reason": "length", "logprobs": {"top_logprobs": [top]}}
    return Reply(payload={"choices": [choice], "usage": {"prompt_tokens": 5, "completion_tokens": 1}})


def server_reader(url: str, **changes) -> OpenAIYesNo:
    mode = changes.pop("mode", "completions")
    policy = OpenAIPolicy(model="m", base_url=url, mode=mode, max_retries=0)
    return OpenAIYesNo(policy, yes=(" Yes", "Yes"), no=(" No",), **changes)


def test_a_server_is_asked_for_one_token_with_log_probabilities() -> None:
    top = {" Yes": math.log(0.2), "Yes": math.log(0.1), " No": math.log(0.1), "yes?": math.log(0.5)}
    with serve(lambda _body: completion_logprobs(top)) as server:
        (odds,) = asyncio.run(server_reader(server.url).read(requests("p")))
    assert odds.score == pytest.approx(0.75)
    assert odds.usage.verifier_tokens == 6
    ((path, body),) = server.seen
    assert path == "/v1/completions"
    assert body["prompt"] == "p" + CLOSING
    assert (body["max_tokens"], body["logprobs"]) == (1, 20)


def test_other_mass_does_not_matter() -> None:
    tops = [{" Yes": -1.0, " No": -3.0, "a": -2.0}, {" Yes": -6.0, " No": -8.0, "a": -0.01}]
    with serve(lambda body: completion_logprobs(tops[body["prompt"].startswith("b")])) as server:
        first, second = asyncio.run(server_reader(server.url).read(requests("a", "b")))
    assert first.score == pytest.approx(second.score)
    assert first.score == pytest.approx(0.8808, abs=5e-5)


def test_a_missing_answer_is_unknown_and_not_zero() -> None:
    with serve(lambda _body: completion_logprobs({" Yes": -0.01, "a": -5.0})) as server:
        (odds,) = asyncio.run(server_reader(server.url).read(requests("p")))
    assert odds.log_odds is None
    assert odds.reason == "no not among the 2 likeliest tokens"


def test_messages_continue_the_assistants_reply() -> None:
    entries = [{"token": " Yes", "logprob": -1.0}, {"token": " No", "logprob": -1.0}]
    choice = {
        "index": 0,
        "message": {"content": " Yes"},
        "logprobs": {"content": [{**entries[0], "top_logprobs": entries}]},
    }
    payload = {"choices": [choice], "usage": {"prompt_tokens": 5, "completion_tokens": 1}}
    request = SampleRequest(prompt=(Message(role="user", content="hi"),), prefix="so")
    with serve(lambda _body: Reply(payload=payload)) as server:
        (odds,) = asyncio.run(server_reader(server.url, mode="chat").read([request]))
    assert odds.score == 0.5
    ((path, body),) = server.seen
    assert path == "/v1/chat/completions"
    assert body["messages"][-1] == {"role": "assistant", "content": "so"}
    assert body["continue_final_message"] is True
    assert body["top_logprobs"] == 20


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Reply(status=400, payload="no logprobs here"), "server: "),
        (Reply(payload={"choices": []}), "malformed answer: usage"),
        (
            Reply(
                payload={"choices": [{"text": "a"}], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}
            ),
            "lacks log probabilities",
        ),
    ],
)
def test_a_server_that_fails_is_unknown(reply: Reply, reason: str) -> None:
    with serve(lambda _body: reply) as server:
        (odds,) = asyncio.run(server_reader(server.url).read(requests("p")))
    assert odds.score is None
    assert reason in odds.reason
