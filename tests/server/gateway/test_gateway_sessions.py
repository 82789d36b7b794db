"""Sessions: turns belong together by a name, are found again, and become traces and episodes."""

from __future__ import annotations

import json
import math
import threading
from contextlib import contextmanager

import pytest
from command_line import good, refused
from gateway_server import LineScorer, ask, served
from openai import BadRequestError, OpenAI
from openai_server import Reply, chat, pieces, serve
from openai_streams import words

from surefoot.io import read_records
from surefoot.labelling import PolicyRule, ToolCallVerifier, ToolPolicy
from surefoot.policies.openai import OpenAIPolicy
from surefoot.protocols import Completion, SampleResult
from surefoot.records import Problem, StepScores, Trace, Usage
from surefoot.rl.engines import RecordedTurn, verifiers_trace, verl_rows
from surefoot.rl.engines.turns import TOKEN_REWARDS
from surefoot.server import GatewaySettings, SampledTokens, ToolGuard, open_database, session_conversations

TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("look", "pay")
]
QUESTION = {"role": "user", "content": "Where is W1?"}
POLICY = ToolPolicy(
    rules=(PolicyRule(tools=("pay",), require="latest('look') != null", reason="look first"),)
)


def said(content, *calls, prompt=(), ids=()):
    """An answer of vLLM's, with its tokens."""
    made = [
        {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": "{}"}}
        for n, name in enumerate(calls)
    ]
    answer = chat(
        [content], finish="tool_calls" if calls else "stop", **({"tool_calls": made} if made else {})
    )
    if ids:
        answer["choices"][0]["token_ids"] = list(ids)
        answer["choices"][0]["logprobs"] = {"content": [{"logprob": -i / 10} for i in ids]}
        answer["prompt_token_ids"] = list(prompt)
    return answer


@contextmanager
def gateway(tmp_path, *answers, dialect="vllm", scorer=None, keys=False, **settings):
    """A gateway before a server that gives these answers in turn, its database and a client."""
    left, lock = list(answers), threading.Lock()

    def answer(body):
        with lock:
            whole = left.pop(0)
        return Reply(events=pieces(whole, words)) if body.get("stream") else Reply(payload=whole)

    with serve(answer) as upstream, open_database(tmp_path / "s.db") as db:
        policy = OpenAIPolicy(
            model="tiny", base_url=upstream.url, dialect=dialect, mode="chat", max_retries=0, concurrency=1
        )
        more = {"verifiers": [ToolCallVerifier(policy=POLICY)]} if "guard" in settings else {}
        with (
            served(
                policy,
                scorer,
                settings=GatewaySettings(chat=True, **settings),
                log=db.gateway,
                **more,
            ) as found,
            OpenAI(base_url=found.url, api_key="none", max_retries=0, timeout=30) as client,
        ):
            yield db, client, upstream, found


def tell(client, messages, session="s1", **more):
    """One turn; the conversation with it."""
    extra = {"X-Session-Id": session} if session else {}
    answer = client.chat.completions.create(model="tiny", messages=messages, extra_headers=extra, **more)
    message = answer.choices[0].message.model_dump(
        include={"role", "content", "tool_calls"}, exclude_none=True
    )
    return [*messages, message]


def result(text):
    return {"role": "tool", "tool_call_id": "c0", "content": text}


AGENT = (
    said(None, "pay", prompt=[1, 2], ids=[3]),
    said(None, "look", prompt=[1, 2], ids=[4, 5]),
    said("It is on its way.", prompt=[1, 2, 4, 5, 9], ids=[6, 7]),
)


@pytest.fixture
def recorded(tmp_path):
    """A run of two turns, of which the guard had the first drawn again; its database."""
    guard = ToolGuard(enabled=True, on_rule="resample", resamples=2)
    with gateway(tmp_path, *AGENT, guard=guard, record_logprobs=True) as (db, client, upstream, _):
        run = tell(client, [QUESTION], tools=TOOLS)
        tell(client, [*run, result("shipped")], tools=TOOLS)
        assert all(body["logprobs"] and body["return_token_ids"] for body in upstream.bodies)
        yield db


def test_turns_are_recorded_with_their_tokens(recorded):
    first, second = recorded.gateway.session("s1", key_id=None)
    assert [one.session.turn for one in (first, second)] == [0, 1]
    assert [row.turn for row in recorded.gateway.find(session="s1")] == [1, 0]
    rejected, chosen = first.candidates
    assert (rejected.tokens.ids, chosen.tokens.ids) == ((3,), (4, 5))
    assert chosen.tokens.prompt_ids == (1, 2)
    assert chosen.tokens.logprobs == (-0.4, -0.5)
    assert [len(one.session.messages) for one in (first, second)] == [1, 3]
    assert [tool.name for tool in second.session.tools] == ["look", "pay"]


def test_infinite_log_probabilities_are_none():
    drawn = Completion(text="a", finish_reason="stop", tokens=1, token_ids=(3,), logprobs=(-math.inf,))
    result = SampleResult(completions=(drawn,), usage=Usage(), prompt_token_ids=(1,))
    assert SampledTokens.of(drawn, result) == SampledTokens(prompt_ids=(1,), ids=(3,))


def test_a_run_becomes_one_trace_with_a_turn_for_each_answer(recorded):
    [line] = session_conversations(recorded.gateway.session("s1", key_id=None))
    assert [message.role for message in line.trace.messages] == ["user", "assistant", "tool", "assistant"]
    assert [len(turn.context) for turn in line.turns] == [1, 3]
    assert line.problem.text == QUESTION["content"]
    assert [turn.guard for turn in line.turns] == [0.0, None]
    assert [turn.score for turn in line.turns] == [None, None]


def test_the_command_writes_traces_and_episodes(recorded, tmp_path):
    out, base = tmp_path / "out", ("serve", "sessions", f"--database={tmp_path / 's.db'}")
    assert "1 session, 1 trace, 2 turns, 0 of them scored" in good(*base, f"--out={out}").err
    [trace] = read_records(out / "traces.jsonl", Trace)
    [problem] = read_records(out / "problems.jsonl", Problem)
    assert (trace.problem_id, len(trace.steps)) == (problem.id, 2)
    [episode] = map(json.loads, (out / "episodes.jsonl").read_text().splitlines())
    assert episode["guard"] == [0.0, None]
    assert [turn["reward"] for turn in episode["turns"]] == [None, None]
    rewards = [1 if guard is None else guard for guard in episode["guard"]]
    turns = [{**turn, "reward": reward} for turn, reward in zip(episode["turns"], rewards, strict=True)]
    [sample] = verl_rows([RecordedTurn(**turn) for turn in turns])
    assert (sample["prompt_ids"], sample["response_ids"]) == ([1, 2], [4, 5, 9, 6, 7])
    assert sample["response_mask"] == [1, 1, 0, 1, 1]
    assert sample["response_logprobs"] == [-0.4, -0.5, 0, -0.6, -0.7]
    assert json.loads(sample["extra_fields"]["reward_extra_info"][TOKEN_REWARDS]) == [0, 0, 0, 0, 1]
    assert "session 'other' is not in the database" in refused(
        *base, "--session=other", f"--out={tmp_path / 'none'}"
    )
    assert not (tmp_path / "none").exists()
    nowhere = tmp_path / "nowhere.db"
    assert "database not found" in refused(
        "serve", "sessions", f"--database={nowhere}", f"--out={tmp_path}/x"
    )
    assert not nowhere.exists()


def test_scores_of_turns_stand_at_their_steps(tmp_path):
    answers = [said(text) for text in ("fine\n", "bad\n", "fine too\n", "odd\n")]
    with gateway(tmp_path, *answers, dialect="openai", scorer=LineScorer()) as (db, client, _, _):
        run = tell(client, [QUESTION], extra_body={"surefoot": {"strategy": "best-of-n:n=2"}})
        tell(client, [*run, QUESTION], extra_body={"surefoot": {"strategy": "best-of-n:n=2"}})
        [line] = session_conversations(db.gateway.session("s1", key_id=None))
    assert [turn.score for turn in line.turns] == [0.9, 0.9]
    [scores] = line.scores()
    assert scores.scores == (0.9, 0.9)
    assert scores.trace_id == line.trace.id
    out = tmp_path / "out"
    good("serve", "sessions", f"--database={tmp_path / 's.db'}", f"--out={out}")
    assert [one.scores for one in read_records(out / "scores.jsonl", StepScores)] == [(0.9, 0.9)]
    [episode] = map(json.loads, (out / "episodes.jsonl").read_text().splitlines())
    turns = [RecordedTurn(**turn) for turn in episode["turns"]]
    trace = verifiers_trace(turns, name=episode["trace_id"], task=episode["problem_id"])
    assert trace["info"] == {"turn_rewards": [0.9, 0.9]}
    sampled = [node.get("sampled", False) for node in trace["nodes"]]
    assert sampled == [node["message"]["role"] == "assistant" for node in trace["nodes"]]
    assert [node["parent"] for node in trace["nodes"]] == [None, 0, 1, 2]


def test_scores_of_hidden_reasoning_are_no_reward(tmp_path):
    with gateway(
        tmp_path, said("<think>\nbad\n</think>\n\nfine\n"), dialect="openai", scorer=LineScorer()
    ) as (_, client, _, _):
        tell(client, [QUESTION], extra_body={"surefoot": {"strategy": "best-of-n:n=1"}})
    good("serve", "sessions", f"--database={tmp_path / 's.db'}", f"--out={tmp_path / 'out'}")
    [episode] = map(json.loads, (tmp_path / "out" / "episodes.jsonl").read_text().splitlines())
    assert [turn["reward"] for turn in episode["turns"]] == [None]


def test_a_lone_answer_is_cut_as_the_gateway_cut_it(tmp_path):
    answer = said("one\nbad\nthree\n")
    with gateway(tmp_path, answer, dialect="openai", scorer=LineScorer()) as (db, client, _, _):
        tell(client, [QUESTION], extra_body={"surefoot": {"strategy": "best-of-n:n=1"}})
        [line] = session_conversations(db.gateway.session("s1", key_id=None))
    [scores] = line.scores()
    assert scores.scores == (0.9, 0.1, 0.9)


def test_an_answer_that_is_continued_twice_is_in_one_line_only(tmp_path):
    answers = [said(text) for text in ("one", "two", "three", "four")]
    with gateway(tmp_path, *answers, dialect="openai") as (db, client, _, _):
        run = tell(client, [QUESTION])
        longer = tell(client, [*run, QUESTION])
        tell(client, [*longer, QUESTION])
        tell(client, [*run, {"role": "user", "content": "And W2?"}])
        lines = session_conversations(db.gateway.session("s1", key_id=None))
    assert [[turn.reply.content for turn in line.turns] for line in lines] == [
        ["one", "two", "three"],
        ["four"],
    ]
    assert [len(line.trace.messages) for line in lines] == [6, 4]
    assert len({line.problem.id for line in lines}) == 1


def test_names_by_header_or_metadata_in_every_form(tmp_path):
    with gateway(tmp_path, *[said("fine")] * 6, dialect="openai") as (db, client, _, found):
        tell(client, [QUESTION], session=None)
        tell(client, [QUESTION], session=None, metadata={"session_id": "in the body", "other": "x"})
        tell(client, [QUESTION], session="both", metadata={"session_id": "not the header's"})
        client.responses.create(model="tiny", input="Hello?", metadata={"session_id": "responses"})
        status, _ = ask(
            f"{found.root}/v1/messages",
            json.dumps({"model": "tiny", "max_tokens": 9, "messages": [QUESTION]}),
            {"X-Session-Id": "messages"},
        )
        assert status == 200
        with client.chat.completions.create(
            model="tiny", messages=[QUESTION], stream=True, extra_headers={"X-Session-Id": "streamed"}
        ) as stream:
            list(stream)
        names = [name for name, _ in db.gateway.sessions()]
        assert names == ["in the body", "both", "responses", "messages", "streamed"]
        for header, metadata, reason in (
            ("x" * 201, None, "at most 200 characters"),
            (None, {"session_id": 7}, "must be printable text"),
            (None, {"session_id": "a\nb"}, "must be printable text"),
        ):
            with pytest.raises(BadRequestError, match=reason):
                tell(client, [QUESTION], session=header, metadata=metadata)


def test_sessions_without_an_answer_leave_no_files(tmp_path):
    withhold = {"surefoot": {"strategy": "best-of-n:n=1", "abstain_below": 0.95}}
    with gateway(tmp_path, said("fine"), dialect="openai", scorer=LineScorer()) as (_, client, _, _):
        assert "content" not in tell(client, [QUESTION], extra_body=withhold)[-1]
    out = tmp_path / "out"
    assert "none has an answer" in refused(
        "serve", "sessions", f"--database={tmp_path / 's.db'}", f"--out={out}"
    )
    assert list(out.iterdir()) == []


def test_keys_have_sessions_of_their_own(tmp_path):
    """The same name under two keys is two sessions."""
    with gateway(tmp_path, said("fine"), dialect="openai") as (db, client, _, _):
        tell(client, [QUESTION])
        [record] = db.gateway.session("s1", key_id=None)
        others = record.model_copy(update={"request_id": "other", "key_id": 7})
        db.gateway.write_all([others])
        assert [one.request_id for one in db.gateway.session("s1", key_id=7)] == ["other"]
        assert db.gateway.session("s1", key_id=None) == [record]
        assert db.gateway.sessions() == [("s1", None), ("s1", 7)]
