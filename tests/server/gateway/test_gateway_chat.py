"""The gateway by the official client and by curl: answers, seeds, accounts, tools, errors."""

from __future__ import annotations

import asyncio
import json
import subprocess

import openai
import pytest
from gateway_server import LineScorer, ask, lines, served
from openai import AsyncOpenAI, OpenAI
from watched_policy import Watched

from benchmarks.worlds.digits.solver import NoisySolver
from benchmarks.worlds.digits.world import ExactLabeller, generate_problems
from benchmarks.worlds.scripted import ScriptedPolicy
from surefoot.answers import AnswerChecker, Grader
from surefoot.labelling import VerifierLabeller, open_verifier
from surefoot.models.kinds.derived import LabelScorer
from surefoot.policies import IN_PROCESS
from surefoot.protocols import Completion, SampleResult, Sampling
from surefoot.records import Problem, Reasoning, ToolCall, Usage
from surefoot.search import BeamSearch, BestOfNSearch, Steps, run_search
from surefoot.server import GatewaySettings, open_database

PROBLEM = generate_problems(1, seed=5)[0]


def asked(text="hello", **more):
    return {"messages": [{"role": "user", "content": text}], **more}


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A gateway to the noisy solver and the exact checker, with a record."""
    policy = Watched(NoisySolver(error_rate=0.3))
    with (
        open_database(tmp_path_factory.mktemp("record") / "store.db") as db,
        served(policy, LabelScorer(ExactLabeller(), name="exact"), db=db) as found,
    ):
        found.db, found.policy = db, policy
        with OpenAI(base_url=found.url, api_key="none", max_retries=0) as client:
            found.client = client
            yield found


@pytest.fixture(scope="module")
def scripted():
    with (
        served(ScriptedPolicy(lines), LineScorer()) as found,
        OpenAI(base_url=found.url, api_key="none", max_retries=0) as client,
    ):
        found.client = client
        yield found


@pytest.mark.parametrize(
    "strategy",
    [
        "best-of-n:n=4",
        "majority:n=4",
        "best-of-n:rule=weighted_vote,n=4",
        "beam:width=2,expand=2",
        "dvts:n=4,expand=2",
    ],
)
def test_equal_seeds_give_equal_answers_and_other_seeds_others(lab, strategy):
    def draw(seed):
        answer = lab.client.chat.completions.create(model=strategy, seed=seed, **asked(PROBLEM.text))
        return answer.choices[0].message.content, answer.surefoot["searches"], answer.usage

    first = draw(3)
    assert draw(3) == first
    assert first[0].startswith(PROBLEM.text.split()[2].rstrip("."))
    assert len({json.dumps(draw(seed)[1][0]["candidates"]) for seed in range(4)}) > 1


@pytest.mark.parametrize(
    ("name", "search"),
    [
        ("best-of-n:n=4", BestOfNSearch(n=4, rule="best_of_n")),
        ("beam:width=2,expand=3", BeamSearch(width=2, expand=3)),
    ],
)
def test_answer_and_usage_are_those_of_the_search(lab, name, search):
    answer = lab.client.chat.completions.create(
        model=name, seed=7, max_tokens=500, temperature=1.0, **asked(PROBLEM.text)
    )
    with AnswerChecker("math") as checker:
        [expected] = asyncio.run(
            run_search(
                search,
                [Problem(text=PROBLEM.text)],
                NoisySolver(error_rate=0.3),
                LabelScorer(ExactLabeller(), name="exact"),
                steps=Steps(sampling=Sampling(temperature=1.0, max_tokens=500)),
                grader=Grader(checker=checker),
                seed=7,
            )
        )
    assert answer.choices[0].message.content == expected.candidates[expected.chosen].text
    told = answer.surefoot["searches"][0]
    assert [one["text"] for one in told["candidates"]] == [trace.text for trace in expected.candidates]
    assert [one["value"] for one in told["candidates"]] == list(expected.values)
    assert [[step["score"] for step in one["steps"]] for one in told["candidates"]] == [
        list(record.scores) for record in expected.scores
    ]
    usage = answer.usage
    assert usage.prompt_tokens == expected.usage.prompt_tokens
    assert usage.completion_tokens == expected.usage.completion_tokens
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.verifier_tokens == expected.usage.verifier_tokens
    assert usage.calls == expected.usage.calls


def test_what_was_answered_is_in_the_record_with_all_candidates(lab):
    answer = lab.client.chat.completions.create(
        model="best-of-n:rule=weighted_vote,n=3",
        n=2,
        seed=1,
        extra_body={"surefoot": {"candidates": "none"}},
        **asked(PROBLEM.text),
    )
    assert [search["candidates"] for search in answer.surefoot["searches"]] == [[], []]
    record = lab.db.gateway.get(answer.id)
    assert (record.endpoint, record.model, record.strategy) == (
        "/v1/chat/completions",
        "best-of-n:rule=weighted_vote,n=3",
        "best-of-n:rule=weighted_vote,n=3",
    )
    assert (record.status, record.key_id, record.scorer) == (200, None, "exact")
    assert record.problem.text == PROBLEM.text
    assert record.request["n"] == 2
    assert "messages" not in record.request
    assert [one.trace.text for one in record.candidates if one.chosen] == [
        choice.message.content for choice in answer.choices
    ]
    for choice in (0, 1):
        found = [one for one in record.candidates if one.choice == choice]
        assert sum(one.weight for one in found) == 3
        assert all(len(one.scores.scores) == len(one.trace.steps) for one in found)
        assert all((one.reason is None) == one.chosen for one in found)
    assert record.usage.completion_tokens == answer.usage.completion_tokens


TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


@pytest.mark.parametrize("strategy", ["scripted", "best-of-n:n=2"])
def test_tools_that_nobody_minds_are_refused_or_passed_over(strategy):
    body = asked(model=strategy, tools=TOOLS)
    with served(ScriptedPolicy(lines), LineScorer()) as found:
        for more in ({}, {"stream": True}):
            status, answer = ask(f"{found.url}/chat/completions", json.dumps({**body, **more}).encode())
            assert status == 400
            assert "--ignore-tools" in answer["error"]["message"]
        none = json.dumps({**body, "tool_choice": "none"}).encode()
        assert ask(f"{found.url}/chat/completions", none)[0] == 200
    settings = GatewaySettings(ignore_tools=True, candidates="none")
    with served(ScriptedPolicy(lines), LineScorer(), settings=settings) as found:
        status, answer = ask(f"{found.url}/chat/completions", json.dumps(body).encode())
        assert status == 200
        assert answer["surefoot"]["searches"][0]["candidates"] == []


def test_a_refusal_may_be_the_text():
    settings = GatewaySettings(strategy="best-of-n:n=2", refusal_as_text=True, abstain_below=1.0)
    with (
        served(ScriptedPolicy(lines), LineScorer(), settings=settings) as found,
        OpenAI(base_url=found.url, api_key="n", max_retries=0) as client,
    ):
        [choice] = client.chat.completions.create(model="best-of-n:n=2", **asked()).choices
        pieces = client.chat.completions.create(model="best-of-n:n=2", stream=True, **asked())
        last = [piece.choices[0] for piece in pieces]
    assert "1 is required" in choice.message.content
    assert (choice.finish_reason, choice.message.refusal) == ("content_filter", None)
    assert "".join(piece.delta.content or "" for piece in last) == choice.message.content
    assert last[-1].finish_reason == "content_filter"


def test_what_is_not_here_is_told_as_openai_tells_it():
    with (
        served() as found,
        OpenAI(base_url=found.url, api_key="n", max_retries=0) as client,
        pytest.raises(openai.NotFoundError, match="embeddings"),
    ):
        client.embeddings.create(model="m", input="x")


def test_what_failed_or_was_withheld_is_in_the_record(tmp_path):
    def broken(request, sample):
        if "break" in str(request.prompt):
            raise RuntimeError("a secret of the policy")
        return lines(request, sample)

    with (
        open_database(tmp_path / "store.db") as db,
        served(ScriptedPolicy(broken), LineScorer(), db=db) as found,
        OpenAI(base_url=found.url, api_key="none", max_retries=0) as client,
    ):
        create = client.chat.completions.create
        withheld = create(model="best-of-n:n=2", extra_body={"surefoot": {"abstain_below": 1.0}}, **asked())
        for stream in (False, True):
            with pytest.raises(openai.APIError):
                list(create(model="best-of-n:n=2", stream=stream, **asked("break it")))
    with open_database(tmp_path / "store.db") as db:
        failed = db.gateway.find(failed=True)
        assert [row.status for row in failed] == [502, 502]
        assert "secret" not in db.gateway.get(failed[0].request_id).error
        assert all(row.candidates == 0 for row in failed)
        record = db.gateway.get(withheld.id)
        assert not any(one.chosen for one in record.candidates)
        assert [one.reason for one in record.candidates if "not chosen" not in one.reason] == [
            withheld.choices[0].message.refusal
        ]


def test_best_of_n_takes_the_good_one_and_plain_the_first(scripted):
    client = scripted.client
    plain = client.chat.completions.create(model="scripted", **asked())
    assert "bad" in plain.choices[0].message.content
    best = client.chat.completions.create(model="best-of-n:n=2", **asked())
    assert "bad" not in best.choices[0].message.content
    by_body = client.chat.completions.create(
        model="scripted", extra_body={"surefoot": {"strategy": "best-of-n:n=2"}}, **asked()
    )
    assert by_body.choices[0].message.content == best.choices[0].message.content
    assert (
        client.chat.completions.create(model="scripted/best-of-n:n=2", **asked()).surefoot["strategy"]
        == "best-of-n:n=2"
    )


def test_accept_reject_draws_a_bad_step_again(scripted):
    answer = scripted.client.chat.completions.create(model="accept-reject", **asked())
    assert answer.choices[0].message.content == "line 0 good\nline 1 good\nline 2 good\nThe answer is 7"
    [search] = answer.surefoot["searches"]
    assert search["counts"]["sampled"] == 5
    assert search["dropped"] == [{"step": 1, "text": "line 1 bad\n", "score": 0.1}]


def test_revise_writes_a_solution_again_told_why():
    told = []

    def answer(request, sample):
        told.append(request.prompt)
        total = 5 if "is wrong" in request.prompt else 6
        return f"2 + 3 = {total}\nThe answer is {total}"

    labeller = VerifierLabeller(verifiers=(open_verifier("equations"),))
    with (
        served(ScriptedPolicy(answer), LabelScorer(labeller, name="equations")) as found,
        OpenAI(base_url=found.url, api_key="none", max_retries=0) as client,
    ):
        revised = client.chat.completions.create(model="revise:rounds=2", **asked())
        assert revised.choices[0].message.content == "2 + 3 = 5\nThe answer is 5"
        assert len(told) == 2
        assert "2 + 3 = 6" in told[1]
        assert "5" in told[1].split("is wrong")[1], "the verifier's reason"
        [search] = revised.surefoot["searches"]
        assert len(search["candidates"]) == 2


def test_steps_that_were_given_up_are_in_the_answer(lab):
    beam = lab.client.chat.completions.create(model="beam:width=2,expand=2", seed=1, **asked(PROBLEM.text))
    [search] = beam.surefoot["searches"]
    kept = {one["text"][: step["end"]] for one in search["candidates"] for step in one["steps"]}
    assert len(search["dropped"]) + len(kept) == search["counts"]["nodes"]
    assert {step["text"][-1] for step in search["dropped"]} == {"\n"}
    best = lab.client.chat.completions.create(model="best-of-n:n=3", seed=1, **asked(PROBLEM.text))
    assert best.surefoot["searches"][0]["dropped"] == []


def test_n_choices_of_the_plain_strategy_are_the_samples_of_one_request(lab):
    before = len(lab.policy.requests)
    three = lab.client.chat.completions.create(model=lab.policy.name, n=3, seed=4, **asked(PROBLEM.text))
    assert len(lab.policy.requests) == before + 1
    one = lab.client.chat.completions.create(model=lab.policy.name, seed=4, **asked(PROBLEM.text))
    assert three.choices[0].message.content == one.choices[0].message.content
    assert three.usage.prompt_tokens == one.usage.prompt_tokens
    assert [choice.index for choice in three.choices] == [0, 1, 2]


def test_a_seed_that_was_drawn_is_told_and_gives_the_answer_again(lab):
    first = lab.client.chat.completions.create(model="majority:n=2", **asked(PROBLEM.text))
    again = lab.client.chat.completions.create(
        model="majority:n=2", seed=first.surefoot["seed"], **asked(PROBLEM.text)
    )
    assert again.surefoot == first.surefoot


def test_length_and_stop_hold_for_the_whole_solution(scripted):
    client = scripted.client
    for strategy in ("scripted", "accept-reject", "beam:width=2,expand=2", "best-of-n:n=2"):
        short = client.chat.completions.create(model=strategy, max_tokens=5, **asked())
        assert short.choices[0].finish_reason == "length"
        assert short.choices[0].message.content.split() == ["line", "0", "good", "line", "1"]
        stopped = client.chat.completions.create(model=strategy, stop=["ood\nline 2"], **asked())
        assert stopped.choices[0].finish_reason == "stop"
        assert stopped.choices[0].message.content in (
            "line 0 good\nline 1 g",
            "line 0 good\nline 1 bad\nline 2 good\nThe answer is 7",
        )
    stopped = client.chat.completions.create(model="accept-reject", stop=["ood\nline 2"], **asked())
    assert stopped.choices[0].message.content == "line 0 good\nline 1 g"
    one = client.chat.completions.create(model="best-of-n:n=2", stop="0", **asked())
    assert one.choices[0].message.content == "line "


def test_an_answer_that_scores_too_little_is_withheld(scripted):
    answer = scripted.client.chat.completions.create(
        model="best-of-n:n=2", extra_body={"surefoot": {"abstain_below": 0.95}}, **asked()
    )
    message = answer.choices[0].message
    assert message.content is None
    assert "0.900" in message.refusal
    assert answer.surefoot["searches"][0]["abstained"]


def test_the_asynchronous_client_and_clients_in_common_batches():
    policy = Watched(ScriptedPolicy(lambda request, sample: f"so {request.prompt.strip()}", latency_s=0.05))

    async def main(url):
        async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            work = [
                client.chat.completions.create(model="scripted", **asked(f"number {k}")) for k in range(24)
            ]
            return await asyncio.gather(*work)

    with served(policy) as found:
        answers = asyncio.run(main(found.url))
    assert [answer.choices[0].message.content for answer in answers] == [f"so number {k}" for k in range(24)]
    assert max(len(batch) for batch in policy.rounds) > 1
    assert len(policy.rounds) < 24


class ToolPolicy:
    """Calls the first tool that it is offered; without tools it repeats the last message."""

    name = "tools"

    def __init__(self, extra=None):
        self.extra, self.asked = extra or {}, []

    def with_extra_body(self, extra_body):
        made = ToolPolicy(extra_body)
        made.asked = self.asked
        return made

    def capabilities(self):
        return IN_PROCESS

    async def sample(self, requests):
        self.asked += requests
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        tools = self.extra.get("tools")
        if tools:
            name = tools[0]["function"]["name"]
            call = ToolCall(id="call_1", name=name, arguments='{"city": "Zürich"}')
            drawn = Completion(text="", finish_reason="tool_calls", tokens=3, tool_calls=(call,))
        else:
            drawn = Completion(text=f"it is {request.prompt[-1].content}", finish_reason="stop", tokens=2)
        return SampleResult(
            completions=(drawn,), usage=Usage(prompt_tokens=9, completion_tokens=drawn.tokens)
        )


def test_tool_calls_pass_through_both_ways():
    policy = ToolPolicy()
    with (
        served(policy, LineScorer(), settings=GatewaySettings(chat=True)) as found,
        OpenAI(base_url=found.url, api_key="none", max_retries=0) as client,
    ):
        answer = client.chat.completions.create(model="tools", tools=TOOLS, tool_choice="auto", **asked())
        [choice] = answer.choices
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content is None
        [call] = choice.message.tool_calls
        assert (call.id, call.function.name) == ("call_1", "weather")
        assert json.loads(call.function.arguments) == {"city": "Zürich"}
        pieces = list(client.chat.completions.create(model="tools", tools=TOOLS, stream=True, **asked()))
        calls = [piece.choices[0].delta.tool_calls for piece in pieces if piece.choices[0].delta.tool_calls]
        assert calls[0][0].function.name == "weather"
        assert pieces[-1].choices[0].finish_reason == "tool_calls"
        messages = [
            {"role": "user", "content": "weather?"},
            choice.message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
        ]
        last = client.chat.completions.create(model="tools", messages=messages)
        assert last.choices[0].message.content == "it is rain"
        sent = policy.asked[-1].prompt
        assert [message.role for message in sent] == ["user", "assistant", "tool"]
        assert sent[1].tool_calls == (call_of(call),)
        with pytest.raises(openai.BadRequestError, match="step by step"):
            client.chat.completions.create(model="beam:width=2,expand=2", tools=TOOLS, **asked())


class EmptyFirst(ToolPolicy):
    """Its first message is empty."""

    def with_extra_body(self, extra_body):
        made = EmptyFirst(extra_body)
        made.asked = self.asked
        return made

    def _answer(self, request):
        if len(self.asked) > 1:
            return super()._answer(request)
        return SampleResult(completions=(Completion(text="", finish_reason="stop", tokens=1),), usage=Usage())


def test_an_empty_message_reaches_no_threshold():
    with (
        served(EmptyFirst(), LineScorer(), settings=GatewaySettings(chat=True)) as found,
        OpenAI(base_url=found.url, api_key="none", max_retries=0) as client,
    ):
        model = "tools/resample:threshold=0.5"
        answer = client.chat.completions.create(model=model, tools=TOOLS, **asked())
        assert answer.choices[0].finish_reason == "tool_calls"


class ThinkingPolicy(ToolPolicy):
    def _answer(self, request):
        drawn = Completion(
            text="It is 4.", finish_reason="stop", tokens=9, reasoning=Reasoning(text="2 + 2.", tokens=6)
        )
        return SampleResult(completions=(drawn,), usage=Usage(prompt_tokens=9, completion_tokens=9))


def test_reasoning_passes_through_both_ways():
    policy = ThinkingPolicy()
    with (
        served(policy, LineScorer(), settings=GatewaySettings(chat=True)) as found,
        OpenAI(base_url=found.url, api_key="none", max_retries=0) as client,
    ):
        answer = client.chat.completions.create(model="tools/plain", **asked())
        message = answer.choices[0].message
        assert (message.content, message.reasoning_content) == ("It is 4.", "2 + 2.")
        pieces = list(client.chat.completions.create(model="tools/plain", stream=True, **asked()))
        deltas = [piece.choices[0].delta for piece in pieces]
        assert [r for d in deltas if (r := getattr(d, "reasoning_content", None))] == ["2 + 2."]
        again = [
            *asked()["messages"],
            message.model_dump(exclude_none=True),
            {"role": "user", "content": "?"},
        ]
        client.chat.completions.create(model="tools/plain", messages=again)
        assert policy.asked[-1].prompt[-2].reasoning == Reasoning(text="2 + 2.")
        best = client.chat.completions.create(model="tools/best-of-n:n=2", **asked())
        best = best.choices[0].message
        assert (best.content, best.reasoning_content) == ("It is 4.", "2 + 2.")


def call_of(call):
    return ToolCall(id=call.id, name=call.function.name, arguments=call.function.arguments)


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (asked(model="gpt-9"), 404, "model 'gpt-9' does not exist"),
        (asked(model="best-of-n:n=0"), 400, "greater than or equal to 1"),
        (asked(model="best-of-n:n=999"), 400, "at most 128"),
        (asked(model="scripted", n=99), 400, "at most 16"),
        (asked(model="scripted", n=0), 400, "n:"),
        (asked(model="scripted", max_tokens=10**6), 400, "at most 8192"),
        (asked(model="scripted", temperature=9), 400, "temperature"),
        (asked(model="scripted", seed="one"), 400, "seed"),
        (asked(model="scripted", logprobs=True), 400, "not supported"),
        (asked(model="scripted", top_k=5), 400, "top_k"),
        (
            asked([{"type": "image_url", "image_url": {"url": "x"}}], model="scripted"),
            400,
            "messages.0.content.0: an address is not opened",
        ),
        (asked(model="scripted", surefoot={"width": 3}), 400, "surefoot.width"),
        (
            asked(model="scripted", surefoot={"strategy": "magic"}),
            400,
            "unknown strategy 'magic'; choose from best-of-16",
        ),
        ({"model": "scripted", "messages": []}, 400, "messages"),
        ({"model": "scripted", "messages": [{"role": "system", "content": "x"}]}, 400, "user"),
        (asked("  ", model="scripted"), 400, "user"),
        (
            {"model": "scripted", "messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            400,
            "messages.0.content.0: an address is not opened",
        ),
    ],
)
def test_errors_have_the_openai_form(scripted, body, status, said):
    with pytest.raises(openai.APIStatusError) as caught:
        scripted.client.post("/chat/completions", body=body, cast_to=object)
    error = caught.value
    assert error.status_code == status
    assert said in error.body["message"]
    assert error.body["type"] in ("invalid_request_error", "not_found_error")
    assert error.response.headers["x-request-id"]


def test_no_reward_model_no_search():
    with (
        served(ScriptedPolicy(lines)) as found,
        OpenAI(base_url=found.url, api_key="n", max_retries=0) as client,
    ):
        assert "best-of-16" not in [model.id for model in client.models.list()]
        assert client.chat.completions.create(model="majority:n=2", **asked()).surefoot["scorer"] is None
        with pytest.raises(openai.BadRequestError, match="has none"):
            client.chat.completions.create(model="best-of-n:n=2", **asked())


def test_a_policy_that_fails_is_502_and_spoils_no_other_request():
    def answer(request, sample):
        if "boom" in request.prompt:
            raise RuntimeError("out of memory")
        return "fine"

    def fail(request):
        return "server: status 500: down" if "down" in request.prompt else None

    async def main(url):
        async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            texts = ["one", "boom", "two", "down", "three"]
            work = [client.chat.completions.create(model="scripted", **asked(text)) for text in texts]
            return await asyncio.gather(*work, return_exceptions=True)

    with served(ScriptedPolicy(answer, latency_s=0.02, fail=fail)) as found:
        one, boom, two, down, three = asyncio.run(main(found.url))
    assert [got.choices[0].message.content for got in (one, two, three)] == ["fine"] * 3
    assert (boom.status_code, down.status_code) == (502, 502)
    assert down.body["message"].endswith("server: status 500")
    assert "memory" not in boom.body["message"]


def curl(*words):
    done = subprocess.run(["curl", "-sS", "-m", "20", *words], capture_output=True, text=True, check=True)
    return done.stdout


def test_curl(scripted):
    body = json.dumps({"model": "best-of-n:n=2", **asked()})
    answer = json.loads(curl(f"{scripted.url}/chat/completions", "--json", body))
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"]["role"] == "assistant"
    streamed = curl(
        "-N",
        f"{scripted.url}/chat/completions",
        "--json",
        json.dumps({"model": "accept-reject", "stream": True, **asked()}),
    )
    events = [line.removeprefix("data: ") for line in streamed.splitlines() if line]
    assert events[-1] == "[DONE]"
    pieces = [json.loads(event) for event in events[:-1]]
    texts = [piece["choices"][0]["delta"].get("content", "") for piece in pieces]
    assert "".join(texts).endswith("The answer is 7")
    assert "surefoot" in pieces[-1]
    refused = curl("-o", "/dev/null", "-w", "%{http_code}", f"{scripted.url}/chat/completions", "--json", "{")
    assert refused == "400"
    assert curl("-o", "/dev/null", "-w", "%{http_code}", f"{scripted.root}/nowhere") == "404"
    assert curl("-o", "/dev/null", "-w", "%{http_code}", f"{scripted.url}/chat/completions") == "405"
