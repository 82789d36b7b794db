"""The OpenAI client against a scripted server on a real socket: order, limits, faults, costs."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import time
from collections import Counter

import numpy as np
import pytest
from openai_server import Reply, chat, completion, serve

from surefoot.errors import PolicyError
from surefoot.policies.openai import OpenAIPolicy
from surefoot.protocols import STOP_UNKNOWN, Policy, SampleRequest, Sampling
from surefoot.records import Message, ToolCall, Usage


def make(server, **options):
    settings = {"mode": "completions", "max_retries": 0, "timeout_s": 60.0, "api_key": "key"} | options
    return OpenAIPolicy(model="tiny", base_url=server.url, **settings)


def sample(answer, *requests, **options):
    """Run the requests against a server that answers so; gives results and server."""
    with serve(answer) as server:
        return asyncio.run(make(server, **options).sample(requests)), server


def echo(body):
    """Answer every prompt with itself."""
    return Reply(payload=completion([f"<{body['prompt']}>"] * body.get("n", 1), token_ids=[1, 2]))


def one(text="x", **extra):
    return lambda body: Reply(payload=completion([text], **extra))


# What is sent


def test_completions_mode_sends_prompt_prefix_and_sampling():
    sampling = Sampling(temperature=0.5, top_p=0.9, max_tokens=11, stop=("\n\n",))
    request = SampleRequest(prompt="Q: ", prefix="A:", seed=5, sampling=sampling)
    (result,), server = sample(echo, request, extra_body={"top_k": 3})
    seed = server.bodies[0].pop("seed")
    assert 0 <= seed < 2**31
    assert server.seen == [
        (
            "/v1/completions",
            {
                "model": "tiny",
                "prompt": "Q: A:",
                "temperature": 0.5,
                "top_p": 0.9,
                "max_tokens": 11,
                "stop": ["\n\n"],
                "top_k": 3,
            },
        )
    ]
    assert server.keys == {"Bearer key"}
    assert result.completions[0].text == "<Q: A:>"


def test_chat_mode_sends_messages_tool_calls_and_continued_text():
    call = ToolCall(id="c1", name="add", arguments='{"a": 1}')
    prompt = (
        Message(role="user", content="1+1?"),
        Message(role="assistant", tool_calls=(call,)),
        Message(role="tool", content="2", tool_call_id="c1"),
    )
    (result,), server = sample(
        lambda _: Reply(payload=chat(["is 2"])), SampleRequest(prompt=prompt, prefix="It "), mode="chat"
    )
    path, body = server.seen[0]
    assert path == "/v1/chat/completions"
    assert body["messages"] == [
        {"role": "user", "content": "1+1?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
            ],
        },
        {"role": "tool", "content": "2", "tool_call_id": "c1"},
        {"role": "assistant", "content": "It "},
    ]
    assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)
    assert result.completions[0].text == "is 2"


def test_a_text_prompt_in_chat_mode_is_one_user_message():
    _, server = sample(lambda _: Reply(payload=chat(["x"])), SampleRequest(prompt="Hi"), mode="chat")
    assert server.bodies[0]["messages"] == [{"role": "user", "content": "Hi"}]
    assert "continue_final_message" not in server.bodies[0]


def test_tool_calls_of_the_answer_come_back():
    made = [{"id": "c9", "type": "function", "function": {"name": "add", "arguments": "{}"}}]
    payload = chat([None], finish="tool_calls", tool_calls=made)
    (result,), _ = sample(lambda _: Reply(payload=payload), SampleRequest(prompt="Hi"), mode="chat")
    (answer,) = result.completions
    assert (answer.text, answer.finish_reason) == ("", "tool_calls")
    assert answer.tool_calls == (ToolCall(id="c9", name="add"),)


def test_each_sample_has_its_own_seed_and_the_same_one_next_time():
    request = SampleRequest(prompt="Hi", n=8, seed=3)
    _, first = sample(echo, request)
    _, second = sample(echo, request)
    seeds = {body["seed"] for body in first.bodies}
    assert len(seeds) == 8
    assert seeds == {body["seed"] for body in second.bodies}
    assert all("n" not in body for body in first.bodies)


LUCK = Message(role="user", content="Hi")


def seeds_of(server):
    """Seed of every sample: vLLM draws sample i of a call with seed s + i."""
    return [body["seed"] + i for body in server.bodies for i in range(body.get("n", 1))]


@pytest.mark.parametrize("dialect", ["openai", "vllm"])
def test_no_two_prompts_or_prefixes_share_a_seed(dialect):
    prefixes = ("", "a", "ab")
    texts = [SampleRequest(prompt=q, prefix=p, n=4, seed=s) for q in "pq" for p in prefixes for s in (0, 1)]
    _, server = sample(echo, *texts, dialect=dialect)
    assert len(set(seeds_of(server))) == 4 * len(texts)
    assert all(0 <= seed < 2**31 + 4 for seed in seeds_of(server))
    prompts = [(LUCK,), (LUCK, LUCK), (Message(role="system", content="Hi"),)]
    chats = [SampleRequest(prompt=prompt, seed=3) for prompt in prompts]

    def answer(body):
        return Reply(payload=chat(["x"]))

    _, server = sample(answer, *chats, mode="chat")
    assert len(set(seeds_of(server))) == 3


@pytest.mark.parametrize("dialect", ["openai", "vllm"])
def test_an_estimate_over_problems_is_as_precise_as_independent_samples(dialect):
    """A stub server that is right half of the time, as its seed decides; the estimate is the share of right
    answers over 40 problems, four samples each. Independent, its standard deviation is 0.5 / sqrt(160) =
    0.040; with common random numbers it would be that of four samples, 0.25."""

    def answer(body):
        seeds = range(body["seed"], body["seed"] + body.get("n", 1))
        texts = ["right" if random.Random(seed).random() < 0.5 else "wrong" for seed in seeds]
        return Reply(payload=completion(texts, token_ids=[1]))

    estimates = []
    with serve(answer) as server:
        policy = make(server, dialect=dialect)
        for seed in range(6 if dialect == "vllm" else 3):
            requests = [SampleRequest(prompt=f"problem {k}", n=4, seed=seed) for k in range(40)]
            results = asyncio.run(policy.sample(requests))
            estimates.append(np.mean([c.text == "right" for result in results for c in result.completions]))
    assert np.sqrt(np.mean((np.array(estimates) - 0.5) ** 2)) < 0.08


# Order, limits, nothing lost or doubled


def test_order_is_kept_and_no_call_is_lost_or_doubled_under_the_limit():
    waits = itertools.cycle([0.03, 0.0, 0.01, 0.02])
    lock = threading.Lock()

    def answer(body):
        with lock:
            wait = next(waits)
        return Reply(payload=completion([body["prompt"]]), wait_s=wait)

    requests = [SampleRequest(prompt=f"p{number}", n=2) for number in range(40)]
    results, server = sample(answer, *requests, concurrency=6)
    assert [[c.text for c in result.completions] for result in results] == [[f"p{i}"] * 2 for i in range(40)]
    assert Counter(body["prompt"] for body in server.bodies) == {f"p{i}": 2 for i in range(40)}
    assert 2 <= server.most_in_flight <= 6


def test_the_limit_holds_over_several_sample_calls_and_event_loops_may_follow_each_other():
    def answer(body):
        return Reply(payload=completion([body["prompt"]]), wait_s=0.02)

    async def both(policy):
        batches = [[SampleRequest(prompt=f"{name}{i}") for i in range(10)] for name in "ab"]
        return await asyncio.gather(*(policy.sample(batch) for batch in batches))

    with serve(answer) as server:
        policy = make(server, concurrency=3)
        for _ in range(2):
            left, right = asyncio.run(both(policy))
            assert [result.completions[0].text for result in left + right] == [
                f"{name}{i}" for name in "ab" for i in range(10)
            ]
    assert 2 <= server.most_in_flight <= 3
    assert len(server.seen) == 40


def test_two_loops_at_the_same_time_are_refused():
    with serve(lambda _: Reply(payload=completion(["x"]), wait_s=2.0)) as server:
        policy = make(server)
        other = threading.Thread(target=lambda: asyncio.run(policy.sample([SampleRequest(prompt="a")])))
        other.start()
        while not server.seen:
            time.sleep(0.01)
        with pytest.raises(PolicyError, match="one event loop at a time"):
            asyncio.run(policy.sample([SampleRequest(prompt="b")]))
        other.join()


def test_no_requests_no_calls():
    results, server = sample(echo)
    assert (results, server.seen) == ([], [])


# Costs


def test_usage_is_exact_per_sample_and_in_total():
    words = iter(["one", "one two", "one two three"])
    lock = threading.Lock()

    def answer(body):
        with lock:
            return Reply(payload=completion([next(words)], prompt_tokens=9))

    (result,), _ = sample(answer, SampleRequest(prompt="Hi", n=3))
    assert sorted((c.text, c.tokens) for c in result.completions) == [
        ("one", 1),
        ("one two", 2),
        ("one two three", 3),
    ]
    assert result.usage == Usage(prompt_tokens=9, completion_tokens=6, calls=3)


def test_vllm_dialect_takes_one_call_and_counts_the_token_ids_of_each_choice():
    def answer(body):
        payload = completion(["a b", "c d e"])
        payload["choices"][0]["token_ids"] = [4, 5]
        payload["choices"][1]["token_ids"] = [4, 5, 6]
        payload["choices"].reverse()
        return Reply(payload=payload)

    sampling = Sampling(stop=("\n",))
    (result,), server = sample(answer, SampleRequest(prompt="Hi", n=2, sampling=sampling), dialect="vllm")
    assert [(c.text, c.tokens) for c in result.completions] == [("a b", 2), ("c d e", 3)]
    assert result.usage == Usage(prompt_tokens=7, completion_tokens=5, calls=1)
    (body,) = server.bodies
    assert (body["n"], body["include_stop_str_in_output"], body["return_token_ids"]) == (2, True, True)


def test_vllm_dialect_keeps_the_samples_of_neighbouring_seeds_apart():
    requests = [SampleRequest(prompt="Hi", n=4, seed=seed) for seed in range(20)]
    _, server = sample(echo, *requests, dialect="vllm")
    # vLLM draws sample i of a call with seed s + i.
    drawn = [body["seed"] + i for body in server.bodies for i in range(4) if body["n"] == 4]
    assert len(drawn) == len(set(drawn)) == 80


@pytest.mark.parametrize("dialect", ["openai", "vllm"])
def test_samples_asked_for_in_parts_have_the_seeds_of_one_request(dialect):
    whole, parts = SampleRequest(prompt="Hi", n=4, seed=3), []
    for first, n in ((0, 1), (1, 3)):
        parts.append(SampleRequest(prompt="Hi", n=n, first=first, seed=3))

    def seeds(*requests):
        _, server = sample(echo, *requests, dialect=dialect)
        return sorted(body["seed"] + i for body in server.bodies for i in range(body.get("n", 1)))

    assert seeds(*parts) == seeds(whole)


def vllm_answer(body):
    """The shape that vLLM 0.32 answers a call to ``/completions`` with: fields unset are null."""
    if body["n"] > 1 and body["temperature"] == 0:
        message = f"n must be 1 when using greedy sampling, got {body['n']}."
        error = {"message": message, "type": "BadRequestError", "param": None, "code": 400}
        return Reply(payload={"error": error}, status=400)
    choice = {"logprobs": None, "prompt_logprobs": None, "prompt_token_ids": [5, 6], "routed_experts": None}
    choices = [
        {"index": 0, "text": "a\n", "finish_reason": "stop", "stop_reason": "\n", "token_ids": [4, 9]},
        {"index": 1, "text": "b", "finish_reason": "stop", "stop_reason": None, "token_ids": [4, 2]},
        {"index": 2, "text": "c d", "finish_reason": "length", "stop_reason": None, "token_ids": [4, 5, 6]},
    ][: body["n"]]
    written = sum(len(c["token_ids"]) for c in choices)
    usage = {
        "prompt_tokens": 2,
        "total_tokens": 2 + written,
        "completion_tokens": written,
        "prompt_tokens_details": {"cached_tokens": 99, "multimodal_tokens": None},
        "completion_tokens_details": None,
    }
    return Reply(
        payload={
            "id": "cmpl-1",
            "object": "text_completion",
            "choices": [choice | c for c in choices],
            "service_tier": None,
            "usage": usage,
            "kv_transfer_params": None,
        }
    )


def test_vllm_answers_are_read_in_full():
    request = SampleRequest(prompt="Hi", n=3, sampling=Sampling(stop=("\n",)))
    (result,), _ = sample(vllm_answer, request, dialect="vllm")
    assert [(c.text, c.finish_reason, c.tokens) for c in result.completions] == [
        ("a\n", "stop", 2),
        ("b", "stop", 2),
        ("c d", "length", 3),
    ]
    assert [c.token_ids for c in result.completions] == [(4, 9), (4, 2), (4, 5, 6)]
    # a server cannot have cached more than the prompt
    assert result.usage == Usage(prompt_tokens=2, completion_tokens=7, cached_tokens=2, calls=1)
    assert result.error is None


def test_token_ids_of_a_chat_are_those_of_its_choice():
    payload = chat(["a", "b c"])
    payload["prompt_token_ids"] = [5]
    payload["choices"][0]["token_ids"] = [4, 2]
    payload["choices"][1]["token_ids"] = [6, 7, 2]
    request = SampleRequest(prompt="Hi", n=2)
    (result,), server = sample(lambda _: Reply(payload=payload), request, mode="chat", dialect="vllm")
    assert [(c.text, c.token_ids) for c in result.completions] == [("a", (4, 2)), ("b c", (6, 7, 2))]
    assert server.bodies[0]["return_token_ids"] is True


def test_log_probabilities_of_the_drawn_tokens_are_those_of_their_choice():
    payload = completion(["a b", "c"])
    for choice, values in zip(payload["choices"], ([-0.5, -1.0], [-2.0]), strict=True):
        choice |= {"token_ids": list(range(len(values))), "logprobs": {"token_logprobs": values}}
    requests = (SampleRequest(prompt="p", n=2, logprobs=True), SampleRequest(prompt="p", n=2))
    (result, bare), server = sample(lambda _: Reply(payload=payload), *requests, dialect="vllm")
    assert [one.logprobs for one in result.completions] == [(-0.5, -1.0), (-2.0,)]
    assert [one.logprobs for one in bare.completions] == [(), ()]
    assert {body.get("logprobs") for body in server.bodies} == {0, None}


def test_a_server_that_gives_no_token_ids_is_not_asked_for_them_and_leaves_them_empty():
    (result,), server = sample(one("a b"), SampleRequest(prompt="Hi"))
    assert (result.completions[0].tokens, result.completions[0].token_ids) == (2, ())
    assert "return_token_ids" not in server.bodies[0]


def test_vllm_dialect_makes_greedy_samples_one_by_one_as_vllm_refuses_n_for_them():
    request = SampleRequest(prompt="Hi", n=3, sampling=Sampling(temperature=0.0))
    (result,), server = sample(vllm_answer, request, dialect="vllm")
    assert result.error is None
    assert [c.text for c in result.completions] == ["a\n"] * 3
    assert result.usage == Usage(prompt_tokens=2, completion_tokens=6, cached_tokens=2, calls=3)
    assert [body["n"] for body in server.bodies] == [1, 1, 1]


def test_vllm_dialect_keeps_the_models_own_sampling_settings_out():
    requests = [SampleRequest(prompt="Hi")]
    _, server = sample(echo, *requests, dialect="vllm", extra_body={"top_k": 20})
    (body,) = server.bodies
    # Left out, vLLM reads these from the model's generation_config.json.
    assert (body["min_p"], body["repetition_penalty"]) == (0.0, 1.0)
    assert (body["presence_penalty"], body["frequency_penalty"]) == (0.0, 0.0)
    assert body["top_k"] == 20


def test_samples_share_a_call_where_the_probe_found_that_they_can():
    def answer(body):
        return Reply(payload=completion(["a b", "a b c d e f g", "a"][: body.get("n", 1)]))

    for samples, calls in ((True, 1), (False, 3)):
        with serve(answer) as server:
            server.probe.samples = samples
            policy = make(server).with_shared_calls()
            policy.capabilities()
            [result] = asyncio.run(policy.sample([SampleRequest(prompt="q", n=3)]))
            greedy = SampleRequest(prompt="q", n=3, sampling=Sampling(temperature=0.0))
            asyncio.run(policy.sample([greedy]))
        assert len(server.bodies) == calls + 3
        assert result.usage.calls == calls
        assert len(result.completions) == 3
        assert sum(completion.tokens for completion in result.completions) == result.usage.completion_tokens
    with serve(answer) as server:
        asyncio.run(make(server).with_shared_calls().sample([SampleRequest(prompt="q", n=3)]))
    assert len(server.bodies) == 3  # not probed


def test_vllm_dialect_without_token_ids_invents_no_counts():
    (result,), _ = sample(
        lambda _: Reply(payload=completion(["a", "b"])), SampleRequest(prompt="Hi", n=2), dialect="vllm"
    )
    assert result.completions == ()
    assert "dialect='openai'" in result.error


# Stop texts


@pytest.mark.parametrize(
    ("text", "extra", "expected"),
    [
        ("a\n\n", {}, ("a\n\n", "stop")),
        ("a", {"stop_reason": "\n\n"}, ("a\n\n", "stop")),
        ("a", {"stop_reason": None}, ("a", "stop")),
        ("a", {"matched_stop": "\n\n"}, ("a\n\n", "stop")),
        ("a", {"matched_stop": 2}, ("a", "stop")),
        ("a", {}, ("a", STOP_UNKNOWN)),
        ("a", {"finish": "length"}, ("a", "length")),
    ],
)
def test_a_stop_text_is_kept_restored_or_reported_unknown(text, extra, expected):
    request = SampleRequest(prompt="Hi", sampling=Sampling(stop=("\n\n",)))
    (result,), _ = sample(one(text, **extra), request)
    assert (result.completions[0].text, result.completions[0].finish_reason) == expected


def test_without_stop_texts_the_end_is_known():
    (result,), _ = sample(one("a"), SampleRequest(prompt="Hi"))
    assert result.completions[0].finish_reason == "stop"


# Faults: each hits one request of three


def among_good(fault, **options):
    """Results and server when only the prompt ``bad`` meets ``fault``; the others must be answered."""
    (left, result, right), server = sample(
        lambda body: fault if body["prompt"] == "bad" else echo(body),
        *(SampleRequest(prompt=prompt) for prompt in ("a", "bad", "b")),
        **options,
    )
    assert [r.completions[0].text for r in (left, right)] == ["<a>", "<b>"]
    assert left.error is None
    assert right.error is None
    return result, [body for body in server.bodies if body["prompt"] == "bad"]


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Reply(payload="<html>rubbish", headers={"Content-Type": "text/html"}), "malformed answer"),
        (Reply(payload='{"choices": ['), "malformed answer"),
        (Reply(payload={"choices": []}), "malformed answer: usage"),
        (Reply(payload=completion([])), "no choices"),
        (Reply(payload=completion(["x", "y"])), "2 choices came, 1 were asked for"),
        (Reply(payload=chat(["x"])), "no text"),
        (Reply(payload={"error": {"message": "no such field"}}, status=400), "no such field"),
        (Reply(payload="", status=404), "status 404"),
    ],
)
def test_a_wrong_answer_fails_at_once_and_alone(fault, error):
    result, calls = among_good(fault, max_retries=3)
    assert result.completions == ()
    assert result.error.startswith("server: ")
    assert error in result.error
    assert result.usage.calls == 1
    assert len(calls) == 1


def test_tokens_of_an_unusable_answer_were_spent_all_the_same():
    (result,), _ = sample(lambda _: Reply(payload=completion(["x", "y z"])), SampleRequest(prompt="a"))
    assert result.completions == ()
    assert result.usage == Usage(prompt_tokens=7, completion_tokens=3, calls=1)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Reply(payload="{}", status=500), "status 500"),
        (Reply(payload=completion(["long enough to cut"]), drop=True), "connection failed"),
        (Reply(payload=completion(["late"]), wait_s=6.0), "no answer in time"),
    ],
)
def test_a_fault_that_lasts_is_tried_again_then_reported(fault, error):
    result, calls = among_good(fault, max_retries=1, timeout_s=2.0)
    assert result.completions == ()
    assert error in result.error
    assert result.usage == Usage(calls=2)
    assert len(calls) == 2


def failing_first(times, fault):
    left = itertools.count()
    return lambda body: fault if next(left) < times else Reply(payload=completion(["good"]))


def test_a_server_that_recovers_costs_calls_and_no_result():
    (result,), server = sample(
        failing_first(2, Reply(payload="{}", status=500)), SampleRequest(prompt="Hi"), max_retries=2
    )
    assert (result.completions[0].text, result.error) == ("good", None)
    assert result.usage == Usage(prompt_tokens=7, completion_tokens=1, calls=3)
    assert len(server.seen) == 3


def test_retry_after_is_respected():
    busy = Reply(payload="{}", status=429, headers={"Retry-After": "1.2"})
    start = time.monotonic()
    (result,), _ = sample(failing_first(1, busy), SampleRequest(prompt="Hi"), max_retries=1)
    # The client's own first wait is at most half a second.
    assert time.monotonic() - start >= 1.2
    assert result.completions[0].text == "good"
    assert result.usage.calls == 2


def test_no_server_is_an_error_of_each_request():
    with serve(echo) as server:
        policy = make(server)
    results = asyncio.run(policy.sample([SampleRequest(prompt="a"), SampleRequest(prompt="b")]))
    assert all("connection failed" in result.error for result in results)


def test_samples_that_came_are_kept_when_others_fail():
    turns = itertools.count()
    (result,), _ = sample(
        lambda body: Reply(payload="{}", status=400) if next(turns) == 1 else echo(body),
        SampleRequest(prompt="a", n=3),
        concurrency=1,
    )
    assert [c.text for c in result.completions] == ["<a>", "<a>"]
    assert "1 of 3 samples are missing" in result.error
    assert result.usage.calls == 3


def test_fewer_choices_than_asked_for_are_kept_and_said():
    (result,), _ = sample(one(token_ids=[1]), SampleRequest(prompt="a", n=3), dialect="vllm")
    assert len(result.completions) == 1
    assert result.error == "server: 2 of 3 choices are missing"


def test_text_that_is_not_unicode_fails_alone_and_is_not_sent():
    (bad, good), server = sample(echo, SampleRequest(prompt="\ud800"), SampleRequest(prompt="a"))
    assert "not a character" in bad.error
    assert bad.usage == Usage()
    assert good.completions[0].text == "<a>"
    assert len(server.seen) == 1


# Programming errors


def test_messages_in_completions_mode_are_refused_before_anything_is_sent():
    messages = (Message(role="user", content="Hi"),)
    with serve(echo) as server:
        with pytest.raises(PolicyError, match="mode='chat'"):
            asyncio.run(make(server).sample([SampleRequest(prompt="a"), SampleRequest(prompt=messages)]))
        assert server.seen == []


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"mode": "text"}, "mode"),
        ({"dialect": "tgi"}, "dialect"),
        ({"concurrency": 0}, "concurrency"),
        ({"timeout_s": 0}, "timeout_s"),
    ],
)
def test_wrong_settings_name_the_field(options, field):
    with pytest.raises(PolicyError, match=field):
        OpenAIPolicy(model="tiny", base_url="http://127.0.0.1:1/v1", **options)


def test_n_must_be_positive_and_the_policy_fits_the_protocol():
    policy = OpenAIPolicy(model="tiny", base_url="http://127.0.0.1:1/v1")
    assert isinstance(policy, Policy)
    assert policy.name == "tiny"
    with pytest.raises(PolicyError, match="n=0"):
        asyncio.run(policy.sample([SampleRequest(prompt="a", n=0)]))


def test_the_key_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "from-env")
    _, server = sample(echo, SampleRequest(prompt="a"), api_key=None)
    assert server.keys == {"Bearer from-env"}


# Policies that send more, over the same connections


def waiting_chat(body):
    return Reply(payload=completion([f"{body['top_k']}"]), wait_s=0.03)


def test_policies_with_other_fields_share_connections_and_limit():
    """Each client opens connections of its own: that there are but two shows that there is one client."""
    links = set()

    async def main(server):
        parent = make(server, concurrency=2, extra_body={"top_k": 0, "min_p": 0.1})
        made = [parent.with_extra_body({"top_k": number}) for number in range(12)]
        return await asyncio.gather(*(one.sample([SampleRequest(prompt="p")]) for one in [parent, *made]))

    with serve(waiting_chat) as server:
        server.verify_request = lambda _, address: links.add(address) or True
        found = asyncio.run(main(server))
    assert [result.completions[0].text for [result] in found] == [str(n) for n in [0, *range(12)]]
    assert {body["min_p"] for body in server.bodies} == {0.1}
    assert server.most_in_flight == len(links) == 2


def test_a_policy_with_other_fields_leaves_its_parent_as_it_was():
    with serve(echo) as server:
        parent = make(server)
        child = parent.with_extra_body({"top_k": 3}).with_extra_body({"min_p": 0.2})
        asyncio.run(child.sample([SampleRequest(prompt="p")]))
        asyncio.run(parent.sample([SampleRequest(prompt="p")]))
    more, plain = server.bodies
    assert more == {**plain, "top_k": 3, "min_p": 0.2}


def test_connections_are_kept_between_calls_for_the_time_of_a_block():
    links = set()

    async def main(server):
        policy = make(server)
        async with policy.connected():
            for _ in range(3):
                await policy.sample([SampleRequest(prompt="p")])
        kept = len(links)
        for _ in range(2):
            await policy.sample([SampleRequest(prompt="p")])
        return kept

    with serve(echo) as server:
        server.verify_request = lambda _, address: links.add(address) or True
        assert asyncio.run(main(server)) == 1
    assert len(links) == 3
