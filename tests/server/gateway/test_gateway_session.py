"""One request's session: length, stop texts, and what of a plain answer is certain while it is written."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import product
from os.path import commonprefix

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.worlds.scripted import ScriptedPolicy
from surefoot.answers import AnswerChecker, Grader
from surefoot.batching import Batcher
from surefoot.errors import PolicyError
from surefoot.policies import IN_PROCESS
from surefoot.protocols import SampleRequest, Sampling, StreamsText
from surefoot.records import Problem, Usage
from surefoot.segment import ChannelReader
from surefoot.server.gateway.choice import CertainText, plain_choices
from surefoot.server.gateway.plan import PLAIN, Plan
from surefoot.server.gateway.search import StepSession
from surefoot.server.gateway.upstream import Upstream


@dataclass
class Writing:
    """Shows ``text``, which it always writes, in ``parts``."""

    parts: list[str]
    name: str = "writing"
    overlaps: bool = True
    fault: Exception | None = None
    asked: list[SampleRequest] = field(default_factory=list)

    def capabilities(self):
        return IN_PROCESS

    async def sample(self, requests):
        whole = ScriptedPolicy(lambda request, sample: "".join(self.parts))
        return await whole.sample([SampleRequest(prompt=one.prompt, n=one.n) for one in requests])

    async def stream(self, request, show):
        self.asked.append(request)
        for part in self.parts:
            show(0, part)
        if self.fault:
            raise self.fault
        [result] = await self.sample([request])
        return result


def upstream_of(policy):
    return Upstream(policy, None, on_batch=lambda _: None)


def answered(policy, stop=(), on_text=None):
    """The choice of a plain request."""
    sampling = Sampling(max_tokens=99, stop=tuple(stop))
    plan = Plan(problem=Problem(text="hi"), strategy=PLAIN, prompt="hi", sampling=sampling)
    show = (lambda number, reasoning, text: on_text(text)) if on_text else None
    with AnswerChecker() as checker:
        work = plain_choices(plan, upstream_of(policy), Grader(checker=checker), show, guarded=False)
        [choice] = asyncio.run(work)
    return choice, plan.usage


def plainly(text, stops):
    """A text up to the stop text that is the first to end, the longest of these."""
    ends = [(end, -len(mark)) for end in range(len(text) + 1) for mark in stops if text[:end].endswith(mark)]
    end, longest = min(ends, default=(len(text), 0))
    return text[: end + longest]


@settings(max_examples=150, deadline=None)
@given(
    parts=st.lists(st.text("ab🙂", max_size=3), max_size=6),
    stops=st.lists(st.text("ab🙂", min_size=1, max_size=3), max_size=3),
)
def test_all_that_is_certain_is_shown_and_nothing_else(parts, stops):
    shown = []
    assert answered(Writing(parts), stops, shown.append) == answered(Writing(parts), stops)
    assert answered(Writing(parts), stops)[0].text == plainly("".join(parts), stops)
    for count in range(1, len(shown) + 1):
        so_far = "".join(parts[:count])
        may_follow = ("".join(more) for size in range(3) for more in product("ab🙂.", repeat=size))
        certain = commonprefix([plainly(so_far + more, stops) for more in may_follow])  # noqa: RUF071
        assert "".join(shown[:count]) == certain


def test_the_state_of_a_stream_does_not_grow_with_its_text():
    text, reader = CertainText(("xyz", "<end>")), ChannelReader(inside=False)
    for number in range(2_000):
        reader.add(text.add(f"word {number} <thi "))
        kept = [
            value for held in (text, reader) for value in vars(held).values() if isinstance(value, str | list)
        ]
        assert sum(len("".join(value)) for value in kept) < 30


def test_the_bound_and_the_stop_texts_are_asked_for():
    policy = Writing(["a b"])
    _, usage = answered(policy, ("x",), lambda _: None)
    [asked] = policy.asked
    assert (asked.sampling.stop, asked.sampling.max_tokens) == (("x",), 99)
    assert usage == Usage(prompt_tokens=1, completion_tokens=2, calls=1)


def test_a_policy_that_is_asked_in_batches_writes_in_one_piece():
    batcher, shown = Batcher(Writing(["a", "b"], overlaps=False)), []
    result = asyncio.run(batcher.stream(SampleRequest(prompt="hi"), lambda *new: shown.append(new)))
    assert (result.completions[0].text, shown) == ("ab", [])
    assert isinstance(batcher, StreamsText)


def test_what_a_streaming_policy_raises_is_a_policys_error():
    batcher = upstream_of(Writing(["a"], fault=ValueError("odd")))
    with pytest.raises(PolicyError, match="it raised ValueError"):
        asyncio.run(batcher.stream(SampleRequest(prompt="hi"), lambda *_: None))


def test_a_policy_that_shows_nothing_is_asked_as_ever():
    policy = ScriptedPolicy(lambda request, sample: "a b")
    assert answered(policy, on_text=lambda _: pytest.fail("shown"))[0].text == "a b"


def test_a_session_bounds_all_steps_together_and_ends_at_stop_texts_over_their_bounds():
    policy = ScriptedPolicy(lambda asked, sample: "one two\n\nthree\n"[len(asked.prefix) :])

    def step(session, prefix):
        sampling = Sampling(max_tokens=50, stop=("\n",))
        [result] = asyncio.run(session.sample([SampleRequest(prompt="p", prefix=prefix, sampling=sampling)]))
        return result.completions[0].text, result.completions[0].finish_reason

    session = StepSession(Batcher(policy, overlap=True), separator="\n", max_tokens=3)
    assert step(session, "") == ("one two\n", "stop")
    assert step(session, "one two\n") == ("\n", "stop")
    assert step(session, "one two\n\n")[0] == "three\n"
    assert step(session, "one two\n\nthree\n") == ("", "length")
    session = StepSession(Batcher(policy, overlap=True), separator="\n", max_tokens=99, stop=("\n\n",))
    assert step(session, "") == ("one two\n", "stop")
    assert session.visible("one two\n", finished=False) == "one two"
    assert step(session, "one two\n") == ("", "stop")
    assert step(session, "one two\n") == ("", "stop")
    assert session.visible("one two\n") == "one two"
