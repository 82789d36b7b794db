"""What a client, and the record, hear of a failure behind the gateway: its kind, and nothing of its words."""

from __future__ import annotations

import asyncio
import logging
import threading

import openai
import pytest
from gateway_server import LineScorer, ask, served
from openai import AsyncOpenAI, OpenAI
from openai_server import Reply, chat, serve

from benchmarks.worlds.scripted import ScriptedPolicy
from surefoot.models.kinds.derived import Ensemble
from surefoot.policies.openai import OpenAIPolicy
from surefoot.protocols import ProblemTrace, SampleRequest
from surefoot.records import Problem, Step, StepScores, Trace
from surefoot.server import GatewaySettings, open_database
from surefoot.server.gateway.upstream import Upstream, UpstreamScorer, policy_failure

SECRET = "bad key sk-12345 at engine-7.internal"
MESSAGES = [{"role": "user", "content": "hello"}]
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


def asked_of_policy(error):
    """The error of a policy's result behind the gateway."""
    policy = ScriptedPolicy(lambda *_: "x", fail=lambda _: error)
    upstream = Upstream(policy, None, on_batch=lambda _: None)
    [result] = asyncio.run(upstream.sample([SampleRequest(prompt="p")]))
    return result.error


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (f"server: status 401: {SECRET}\n{SECRET}", "server: status 401"),
        (f"server: status 429: {SECRET}", "server: status 429"),
        (
            f"server: status 503: {SECRET} (2 of 3 samples are missing)",
            "server: status 503 (2 of 3 samples are missing)",
        ),
        (f"server: connection failed: {SECRET}", "server: connection failed"),
        (f"server: the stream broke off: {SECRET}", "server: the stream broke off"),
        (f"server: malformed answer: {SECRET}", "server: malformed answer"),
        (f"server: {SECRET}", "server: it failed"),
        (SECRET, "the server's log has the reason"),
        (f"http: server: status 400: {SECRET}", "the server's log has the reason"),
    ],
)
def test_a_failure_is_told_by_its_kind_and_logged_whole(error, told, caplog):
    with caplog.at_level(logging.WARNING, "surefoot.server"):
        assert asked_of_policy(error) == told
    [line] = [record.getMessage() for record in caplog.records]
    assert repr(error) in line
    assert "\n" not in line


@pytest.mark.parametrize(
    "error",
    [
        "server: status 400: too long",
        "server: status 413: too large",
        "server: status 422: temperature: at most 1 (1 of 2 samples are missing)",
        "server: 2 of 3 choices are missing",
        "server: the answer has no choices",
        "server: the stream ended within choice 0",
        "server: no answer in time",
        "server: not sent: the prompt holds '\\ud800', which is not a character",
        "policy: the prompt has 9 tokens, and the model reads 8",
    ],
)
def test_what_speaks_of_the_request_is_told_as_it_is(error, caplog):
    assert asked_of_policy(error) == error
    assert not caplog.records


def test_what_is_told_is_bounded():
    error = f"server: status 400: {'long ' * 1000}(1 of 2 samples are missing)"
    told = asked_of_policy(error)
    assert len(told) < 600
    assert told.endswith("(1 of 2 samples are missing)")
    assert len(asked_of_policy(f"policy: {'long ' * 1000}")) <= 500
    assert len(policy_failure("long " * 1000).message) < 600


def one_item():
    problem = Problem(text="p")
    return ProblemTrace(
        problem=problem, trace=Trace(problem_id=problem.id, text="a", steps=(Step(start=0, end=1),))
    )


class Failing:
    """Leaves all steps unscored for this reason."""

    def __init__(self, reason, name="failing"):
        self.reason, self.name = reason, name

    def score_traces(self, items):
        return [
            StepScores(trace_id=item.trace.id, scorer=self.name, scores=(None,), unscored_reason=self.reason)
            for item in items
        ]


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (f"server: status 401: {SECRET}", "server: status 401"),
        (f"server: Error code: 401 - {SECRET}", "server: status 401"),
        (f"server: it begins {SECRET}", "server: it failed"),
        (
            f"no valid critique: 2 request failed: server: status 500: {SECRET}",
            "no valid critique: 2 request failed: server: status 500",
        ),
        ("2 steps lie beyond the model's context", "2 steps lie beyond the model's context"),
        ("server: status 400: too long", "server: status 400: too long"),
    ],
)
def test_reasons_of_scorers_tell_nothing_of_their_servers(reason, told, caplog):
    with caplog.at_level(logging.WARNING, "surefoot.server"):
        [record] = UpstreamScorer(Failing(reason)).score_traces([one_item()])
    assert (record.scores, record.unscored_reason) == ((None,), told)
    assert [repr(reason) in line.getMessage() for line in caplog.records] == [True] * (told != reason)


def test_of_several_scorers_each_has_its_kind_told():
    several = Ensemble(
        [Failing("server: status 400: too long", "a"), Failing(f"server: status 401: {SECRET}", "b")]
    )
    [record] = UpstreamScorer(several).score_traces([one_item()])
    assert SECRET not in record.unscored_reason
    assert "too long" in record.unscored_reason
    assert record.unscored_reason.endswith("status 401")


def test_neither_answer_nor_record_has_the_upstreams_words(tmp_path):
    """Whole, streamed and with tools, by a search, and of a scorer that raises."""
    with (
        serve(lambda _: Reply(status=401, payload=SECRET)) as upstream,
        open_database(tmp_path / "store.db") as db,
    ):
        policy = OpenAIPolicy(model="tiny", base_url=upstream.url, max_retries=0)
        settings = GatewaySettings(chat=True)
        with (
            served(policy, LineScorer(), settings=settings, db=db) as found,
            OpenAI(base_url=found.url, api_key="none", max_retries=0) as client,
        ):
            for more in ({}, {"tools": TOOLS}, {"stream": True}, {"stream": True, "tools": TOOLS}):
                with pytest.raises(openai.APIError) as caught:
                    list(client.chat.completions.create(model="tiny", messages=MESSAGES, **more))
                assert caught.value.body["message"] == "the policy failed: server: status 401"
            with pytest.raises(openai.APIError, match="the policy failed: server: status 401") as caught:
                client.chat.completions.create(model="best-of-n:n=2", messages=MESSAGES)
            assert "sk-" not in str(caught.value)
            body = b'{"items": [{"problem": "p", "steps": ["raise"]}]}'
            status, answer = ask(f"{found.url}/score", body)
            assert (status, answer["results"][0]["unscored_reason"]) == (200, "scorer: ValueError")
    raw = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"server: status 401" in raw
    assert b"sk-12345" not in raw


def test_an_upstreams_word_on_the_request_is_passed_on():
    with serve(lambda _: Reply(status=400, payload="the prompt has 9 tokens too many")) as upstream:
        policy = OpenAIPolicy(model="tiny", base_url=upstream.url, max_retries=0)
        settings = GatewaySettings(chat=True)
        with (
            served(policy, settings=settings) as found,
            OpenAI(base_url=found.url, api_key="none", max_retries=0) as client,
            pytest.raises(openai.BadRequestError, match="9 tokens too many"),
        ):
            client.chat.completions.create(model="tiny", messages=MESSAGES)


def test_some_samples_that_failed_are_told_of_by_the_kind_in_the_answer_of_a_search():
    lock, count = threading.Lock(), iter(range(100))

    def answer(_):
        with lock:
            number = next(count)
        return Reply(status=403, payload=SECRET) if number == 0 else Reply(payload=chat(["The answer is 7"]))

    with serve(answer) as upstream:
        policy = OpenAIPolicy(model="tiny", base_url=upstream.url, max_retries=0)
        settings = GatewaySettings(chat=True)
        with (
            served(policy, LineScorer(), settings=settings) as found,
            OpenAI(base_url=found.url, api_key="none", max_retries=0) as client,
        ):
            told = client.chat.completions.create(model="majority:n=4", messages=MESSAGES).surefoot
    assert told["searches"][0]["error"].startswith("server: status 403")
    assert "sk-" not in str(told)


@pytest.mark.parametrize("stream", [False, True])
def test_requests_with_tools_keep_to_the_limit_of_the_policy_and_share_its_client(stream):
    """A client opens connections of its own: no more of these than the limit, no more clients than one."""
    links = set()

    async def main(url):
        async def ask_one(client):
            got = await client.chat.completions.create(
                model="tiny", messages=MESSAGES, tools=TOOLS, stream=stream
            )
            if stream:
                return "".join([piece.choices[0].delta.content or "" async for piece in got])
            return got.choices[0].message.content

        async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(ask_one(client) for _ in range(12)))

    with serve(lambda _: Reply(payload=chat(["sunny"]), wait_s=0.1)) as upstream:
        upstream.verify_request = lambda _, address: links.add(address) or True
        policy = OpenAIPolicy(model="tiny", base_url=upstream.url, max_retries=0, concurrency=2)
        with served(policy, settings=GatewaySettings(chat=True)) as found:
            assert asyncio.run(main(found.url)) == ["sunny"] * 12
    assert len(upstream.bodies) == 12
    assert upstream.most_in_flight == len(links) == 2


def test_a_trace_that_the_scorer_cannot_read_spoils_no_other():
    problem = Problem(text="p")
    items = [
        ProblemTrace(
            problem=problem,
            trace=Trace(problem_id=problem.id, text=text, steps=(Step(start=0, end=len(text)),)),
        )
        for text in ("fine", "raise", "bad")
    ]
    failed = []
    records = UpstreamScorer(LineScorer(), on_failure=lambda: failed.append(1)).score_traces(items)
    assert [record.scores for record in records] == [(0.9,), (None,), (0.1,)]
    assert records[1].unscored_reason == "scorer: ValueError"
    assert failed == [1]
