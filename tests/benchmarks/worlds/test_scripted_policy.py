"""The scripted policy: deterministic, in order, with stop texts and token limits of a real one."""

from __future__ import annotations

import asyncio
import time

from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.worlds.scripted import ScriptedPolicy
from surefoot.protocols import Policy, SampleRequest, Sampling
from surefoot.records import Message, Usage


def run(policy, *requests):
    return asyncio.run(policy.sample(requests))


def test_answers_in_order_with_the_sample_index():
    policy = ScriptedPolicy(lambda request, sample: f"{request.prompt} {sample}")
    results = run(policy, SampleRequest(prompt="a", n=2), SampleRequest(prompt="b"))
    assert isinstance(policy, Policy)
    assert [[c.text for c in result.completions] for result in results] == [["a 0", "a 1"], ["b 0"]]
    assert run(policy, SampleRequest(prompt="a", n=2)) == results[:1]


def test_samples_asked_for_in_parts_are_those_of_one_request():
    policy = ScriptedPolicy(lambda request, sample: f"{sample}")
    first, rest = run(policy, SampleRequest(prompt="a", n=1), SampleRequest(prompt="a", n=2, first=1))
    (whole,) = run(policy, SampleRequest(prompt="a", n=3))
    assert first.completions + rest.completions == whole.completions


def test_usage_counts_the_prompt_once_and_every_completion():
    policy = ScriptedPolicy(lambda request, sample: "one two three")
    (text,) = run(policy, SampleRequest(prompt="two words", prefix=" and two", n=3))
    assert text.usage == Usage(prompt_tokens=4, completion_tokens=9, calls=1)
    messages = (Message(role="user", content="two words"), Message(role="assistant"))
    (chat,) = run(policy, SampleRequest(prompt=messages, prefix="one"))
    assert chat.usage == Usage(prompt_tokens=3, completion_tokens=3, calls=1)


def test_the_first_stop_text_to_end_is_kept_and_ends_the_completion():
    policy = ScriptedPolicy(lambda request, sample: "step\n\nmore\n\n", tokens=len)
    sampling = Sampling(stop=("more", "\n\n"))
    (completion,) = run(policy, SampleRequest(prompt="", sampling=sampling))[0].completions
    assert (completion.text, completion.finish_reason, completion.tokens) == ("step\n\n", "stop", 6)


@settings(deadline=None)
@given(st.text(alphabet="ab \n", max_size=30), st.integers(min_value=0, max_value=12))
def test_max_tokens_gives_the_longest_beginning_that_fits(text, limit):
    policy = ScriptedPolicy(lambda request, sample: text)
    (completion,) = run(policy, SampleRequest(prompt="", sampling=Sampling(max_tokens=limit)))[0].completions
    fitting = [text[:end] for end in range(len(text) + 1) if len(text[:end].split()) <= limit]
    assert completion.text == fitting[-1]
    assert completion.finish_reason == ("stop" if completion.text == text else "length")
    assert completion.tokens == len(completion.text.split()) <= limit


def test_a_failed_request_spends_nothing_and_the_others_go_on():
    policy = ScriptedPolicy(lambda *_: "fine", fail=lambda request: "down" if request.prompt == "b" else None)
    good, bad, last = run(policy, *(SampleRequest(prompt=prompt) for prompt in "abc"))
    assert (bad.error, bad.completions, bad.usage) == ("down", (), Usage(calls=1))
    assert good.error is None
    assert last.completions[0].text == "fine"


def test_requests_wait_together():
    policy = ScriptedPolicy(lambda *_: "", latency_s=0.5)
    start = time.monotonic()
    run(policy, *(SampleRequest(prompt="") for _ in range(20)))
    assert 0.5 <= time.monotonic() - start < 20 * 0.5
