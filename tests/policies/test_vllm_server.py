"""The OpenAI client against a vLLM server that is already running.

``SUREFOOT_VLLM_URL`` is its address (``http://localhost:8000/v1``). Its model should be an instruct model of
any size, served in float32: in a shorter type, samples drawn in other batches differ by rounding.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import urllib.request
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest

from surefoot.policies.openai import OpenAIPolicy
from surefoot.protocols import SampleRequest, SampleResult, Sampling
from surefoot.records import Message, Usage

URL = os.environ.get("SUREFOOT_VLLM_URL", "").rstrip("/")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not URL, reason="SUREFOOT_VLLM_URL names no running vLLM server"),
]
QUESTION = (Message(role="user", content="Tom has 3 apples and buys 4. How many has he?"),)
GREEDY = Sampling(temperature=0.0, max_tokens=16)
SHORT = Sampling(max_tokens=16)


def ask(path: str, body: dict[str, Any] | None = None) -> Any:
    """The server's answer, in JSON or else as text, without our client."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(  # noqa: S310 - the address of the one who runs the test
        path, data, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310
        text = answer.read().decode()
        return json.loads(text) if "json" in answer.headers["Content-Type"] else text


@cache
def model() -> dict[str, Any]:
    """The first model of the server: its ``id`` and ``max_model_len``."""
    return dict(ask(f"{URL}/models")["data"][0])


def run(*requests: SampleRequest, **options: Any) -> list[SampleResult]:
    settings = {"model": model()["id"], "dialect": "vllm", "mode": "completions", "timeout_s": 600.0}
    policy = OpenAIPolicy(base_url=URL, max_retries=0, **settings | options)
    return asyncio.run(policy.sample(requests))


def texts(result: SampleResult) -> list[str]:
    assert result.error is None
    return [completion.text for completion in result.completions]


def tokenized(**body: Any) -> list[int]:
    return list(ask(f"{URL.removesuffix('/v1')}/tokenize", {"model": model()["id"], **body})["tokens"])


def detokenized(ids: Sequence[int]) -> str:
    body = {"model": model()["id"], "tokens": list(ids)}
    return str(ask(f"{URL.removesuffix('/v1')}/detokenize", body)["prompt"])


# Samples and seeds


@pytest.mark.parametrize(("mode", "prompt"), [("completions", "The best animal is"), ("chat", QUESTION)])
def test_samples_in_parts_are_those_of_one_request_and_differ_from_each_other(mode, prompt):
    def part(first, n, seed=5):
        request = SampleRequest(prompt=prompt, n=n, first=first, seed=seed, sampling=SHORT)
        return texts(run(request, mode=mode)[0])

    whole = part(0, 6)
    assert part(0, 1) + part(1, 2) + part(3, 3) == whole
    assert len(set(whole)) > 1
    assert part(0, 6, seed=6) != whole


def test_neighbouring_seeds_share_no_sample():
    requests = [
        SampleRequest(prompt="Once", n=3, seed=seed, sampling=Sampling(max_tokens=12)) for seed in (1, 2, 3)
    ]
    drawn = [text for result in run(*requests) for text in texts(result)]
    assert len(set(drawn)) == 9


def test_greedy_samples_are_equal_and_one_call_each():
    (result,) = run(SampleRequest(prompt="2 + 3 =", n=3, sampling=GREEDY))
    assert len(set(texts(result))) == 1
    assert len(result.completions) == result.usage.calls == 3


def test_the_samples_of_the_openai_dialect_come_one_by_one_with_the_same_counts():
    (result,) = run(SampleRequest(prompt="Once", n=2, sampling=SHORT), dialect="openai")
    assert len(texts(result)) == result.usage.calls == 2
    assert result.usage.prompt_tokens == len(tokenized(prompt="Once"))


@pytest.mark.parametrize(("mode", "prompt"), [("completions", "The best animal is"), ("chat", QUESTION)])
@pytest.mark.parametrize("stop", [(), ("a", " the")])
def test_a_stream_gives_what_one_piece_gives(mode, prompt, stop):
    request = SampleRequest(prompt=prompt, n=3, seed=5, sampling=Sampling(max_tokens=16, stop=stop))
    [whole] = run(request, mode=mode)
    policy = OpenAIPolicy(base_url=URL, model=model()["id"], dialect="vllm", mode=mode, max_retries=0)
    shown = [""] * 3

    def show(number: int, text: str) -> None:
        shown[number] += text

    assert asyncio.run(policy.stream(request, show)) == whole
    assert shown == texts(whole)


# Counts and ends


def test_tokens_are_those_of_each_choice_and_the_prompt_counts_once():
    (result,) = run(SampleRequest(prompt="Once upon a time", n=4, sampling=SHORT))
    assert len(texts(result)) == 4
    assert result.usage == Usage(
        prompt_tokens=len(tokenized(prompt="Once upon a time")),
        completion_tokens=sum(completion.tokens for completion in result.completions),
        calls=1,
    )
    for completion in result.completions:
        assert completion.tokens == 16 if completion.finish_reason == "length" else completion.tokens <= 16


@pytest.mark.parametrize("stop", [(), ("\n",), ("3",)])
@pytest.mark.parametrize(("mode", "prompt"), [("completions", "1\n2\n"), ("chat", QUESTION)])
def test_token_ids_are_the_text_and_no_token_after_a_stop_text(mode, prompt, stop):
    sampling = Sampling(max_tokens=24, stop=stop)
    (result,) = run(SampleRequest(prompt=prompt, n=4, sampling=sampling), mode=mode)
    assert len(texts(result)) == 4
    for completion in result.completions:
        assert len(completion.token_ids) == completion.tokens
        assert detokenized(completion.token_ids).lstrip().startswith(completion.text.strip())
        if completion.text.endswith(stop):
            assert stop[0] not in detokenized(completion.token_ids[:-1])


@pytest.mark.parametrize("dialect", ["vllm", "openai"])
def test_a_stop_text_is_kept_in_either_dialect(dialect):
    request = SampleRequest(
        prompt="1\n2\n3\n4\n", n=2, sampling=Sampling(temperature=0.0, max_tokens=16, stop=("\n",))
    )
    (result,) = run(request, dialect=dialect)
    for completion in result.completions:
        assert completion.finish_reason == "stop"
        assert completion.text.count("\n") == 1
        assert completion.text.endswith("\n")


def test_the_end_of_the_sequence_leaves_no_mark_in_the_text():
    sampling = Sampling(temperature=0.0, max_tokens=200, stop=("no such text",))
    (result,) = run(SampleRequest(prompt=QUESTION, sampling=sampling), mode="chat")
    (completion,) = result.completions
    assert completion.finish_reason == "stop"
    assert not re.search(r"<\||</s>|no such text", completion.text)


# Prefixes


@pytest.mark.parametrize("prefix", ["Tom has 3 + 4 =", "He starts with 3 apples.\n", "Step 1: "])
def test_a_prefix_in_chat_is_continued_as_the_templates_text_is_in_completions(prefix):
    messages = [{"role": "user", "content": QUESTION[0].content}]
    opened = tokenized(messages=messages, add_generation_prompt=True)
    body = {"model": model()["id"], "tokens": opened}
    prompt = ask(f"{URL.removesuffix('/v1')}/detokenize", body)["prompt"]
    (chat,) = run(SampleRequest(prompt=QUESTION, prefix=prefix, sampling=GREEDY), mode="chat")
    plain_request = SampleRequest(prompt=prompt, prefix=prefix, sampling=GREEDY)
    (plain,) = run(plain_request, extra_body={"add_special_tokens": False})
    assert texts(chat) == texts(plain)
    assert chat.usage.prompt_tokens == plain.usage.prompt_tokens > len(opened)


def test_a_prompt_that_is_read_again_comes_from_the_prefix_cache_and_counts_in_full():
    prompt = "The numbers from one on: " + " ".join(map(str, range(300)))
    request = SampleRequest(prompt=prompt, sampling=Sampling(max_tokens=1))

    def hits():
        metrics = ask(f"{URL.removesuffix('/v1')}/metrics")
        found = re.findall(r"^vllm:prefix_cache_hits_total\S* (\S+)", metrics, re.MULTILINE)
        return sum(map(float, found))

    if "prefix_cache_hits_total" not in ask(f"{URL.removesuffix('/v1')}/metrics"):
        pytest.skip("the server reports no prefix cache")
    (first,) = run(request)
    before = hits()
    (second,) = run(request)
    assert hits() - before >= second.usage.prompt_tokens / 2
    assert first.usage.prompt_tokens == second.usage.prompt_tokens == len(tokenized(prompt=prompt))


# Limits and faults


def test_a_prompt_beyond_the_context_is_the_error_of_its_request_alone():
    long = "word " * (model()["max_model_len"] + 10)
    left, result, right = run(*(SampleRequest(prompt=p, n=2, sampling=SHORT) for p in ("a", long, "b")))
    assert result.completions == ()
    assert "status 400" in result.error
    assert "maximum context length" in result.error
    assert result.usage == Usage(calls=1)
    assert len(texts(left)) == len(texts(right)) == 2


def test_max_tokens_beyond_the_context_is_an_error_that_names_it():
    sampling = Sampling(max_tokens=model()["max_model_len"] + 1)
    (result,) = run(SampleRequest(prompt="a", sampling=sampling))
    assert "status 400" in result.error
    assert "max_tokens" in result.error


def test_an_unknown_model_is_an_error_that_names_it():
    (result,) = run(SampleRequest(prompt="a"), model="no-such-model")
    assert "status 404" in result.error
    assert "no-such-model" in result.error


def test_an_answer_can_be_bound_to_a_schema():
    schema = {
        "type": "object",
        "properties": {"verdict": {"enum": ["right", "wrong"]}, "step": {"type": "integer"}},
        "required": ["verdict", "step"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "verdict", "schema": schema, "strict": True}}
    request = SampleRequest(prompt=QUESTION, n=2, seed=1, sampling=Sampling(max_tokens=100))
    (result,) = run(request, mode="chat", extra_body={"response_format": form})
    for completion in result.completions:
        if completion.finish_reason == "stop":  # a model may fill the space with blanks up to max_tokens
            answer = json.loads(completion.text)
            assert answer["verdict"] in {"right", "wrong"}
            assert isinstance(answer["step"], int)
    assert any(completion.finish_reason == "stop" for completion in result.completions)
