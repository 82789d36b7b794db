"""A scorer over HTTP, against scripted servers that speak vLLM's interfaces and the gateway's."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from gateway_server import LineScorer, served
from openai_server import Body, Reply, chat, serve

from surefoot.errors import CheckpointError, ScoreError
from surefoot.models.card import CheckpointCard
from surefoot.models.encoding import EncodedTrace, Encoding
from surefoot.models.kinds.classifier import RewardModel
from surefoot.models.loading import load_prm
from surefoot.models.remote.scorer import RemoteScorer
from surefoot.models.remote.wires import GatewayScore, VllmPooling
from surefoot.models.scorer import CheckpointScorer, Scorer
from surefoot.protocols import ProblemTrace, StepScorer
from surefoot.records import Problem, Trace

NEWLINE = 23
"""Id of the lab tokenizer's line end."""


class AtLineEnd:
    """Reads each line at its line end, as families with a step tag do."""

    def __init__(self, model: RewardModel) -> None:
        self.model = model

    def encode(self, items: Sequence[ProblemTrace]) -> list[EncodedTrace]:
        return [
            EncodedTrace(ids=trace.ids, positions=tuple(at + 1 for at in trace.positions if at is not None))
            for trace in self.model.encode(items)
        ]


@pytest.fixture(scope="module")
def encoder(lab_base: Path) -> RewardModel:
    card = CheckpointCard(kind="prm", encoding=Encoding(max_length=64), label_source="test", base="lab")
    model = RewardModel.initialise(lab_base, card)
    assert model.tokenizer.convert_tokens_to_ids("\n") == NEWLINE
    return model


def chance(ids: list[int]) -> float:
    """What the scripted model says after these tokens."""
    return (sum(ids) * 7919 % 1000) / 1000


def by_token(ids: list[int]) -> list[list[float]]:
    return [[1 - (p := chance(ids[: at + 1])), p] for at in range(len(ids))]


def pooling(body: Body, rows: Callable[[list[int]], list[list[float]]] = by_token) -> Reply:
    assert body["task"] == "token_classify"
    assert body["use_activation"] is True
    data = [{"index": i, "object": "pooling", "data": rows(ids)} for i, ids in enumerate(body["input"])]
    return Reply(payload={"id": "pool-1", "object": "list", "model": "m", "data": data, "usage": {}})


def by_step(ids: list[int]) -> list[list[float]]:
    return [row for row, token in zip(by_token(ids), ids, strict=True) if token == NEWLINE]


def gateway(body: Body) -> Reply:
    results = [{"scores": [len(step) / 100 for step in row["steps"]]} for row in body["items"]]
    return Reply(payload={"model": "m", "results": results, "usage": {"verifier_tokens": 11}})


def expected(encoder: Any, items: list[ProblemTrace]) -> list[tuple[float, ...]]:
    return [
        tuple(chance(list(trace.ids[: at + 1])) for at in trace.positions if at is not None)
        for trace in encoder.encode(items)
    ]


def scorer(wire: Any, url: str, **settings: Any) -> RemoteScorer:
    return RemoteScorer(wire, base_url=url, name="remote", **({"max_retries": 0} | settings))


@pytest.mark.parametrize("kind", ["tokens", "steps"])
def test_the_server_gets_the_very_token_ids(encoder, lab_items, kind) -> None:
    encoder = AtLineEnd(encoder) if kind == "steps" else encoder
    wires = {
        "tokens": (VllmPooling(encoder=encoder, model="m"), pooling),
        "steps": (
            VllmPooling(encoder=encoder, model="m", step_tag_id=NEWLINE),
            lambda body: pooling(body, by_step),
        ),
    }
    wire, answer = wires[kind]
    with serve(answer) as server:
        remote = scorer(wire, server.url, batch_size=5)
        assert isinstance(remote, StepScorer)
        records = remote.score_traces(lab_items)
        paths = {path for path, _ in server.seen}
        sent = [prompt for body in server.bodies for prompt in body["input"]]
    assert paths == {"/pooling"}
    ids = [list(trace.ids) for trace in encoder.encode(lab_items)]
    assert all(prompt in sent for prompt in ids)
    for record, scores in zip(records, expected(encoder, lab_items), strict=True):
        assert record.scores == pytest.approx(scores)
    assert sum(record.usage.verifier_tokens for record in records) >= sum(map(len, ids))
    assert sum(record.usage.calls for record in records) == math.ceil(len(lab_items) / 5)
    assert not remote.failures


def test_a_step_that_does_not_end_in_the_tag_is_refused(encoder) -> None:
    wire = VllmPooling(encoder=encoder, model="m", step_tag_id=NEWLINE)
    with serve(pooling) as server, pytest.raises(ScoreError, match="not step_tag_id=23"):
        scorer(wire, server.url)


def test_the_gateway_gets_the_exact_steps(lab_items) -> None:
    with serve(gateway) as server:
        remote = scorer(GatewayScore(model="m"), server.url)
        records = remote.score_traces(lab_items)
        path, body = server.seen[-1]
    assert path == "/v1/score"
    assert "".join(body["items"][0]["steps"]) == lab_items[0].trace.text
    for one, record in zip(lab_items, records, strict=True):
        steps = range(len(one.trace.steps))
        assert record.scores == tuple(len(one.trace.step_text(step)) / 100 for step in steps)


def test_steps_beyond_the_context_are_unknown(encoder) -> None:
    problem = Problem(text="Start with 7. Add 3.")
    text = "7 + 3 = 0\n" * 20
    trace = Trace(
        problem_id=problem.id,
        text=text,
        steps=tuple({"start": at, "end": at + 10} for at in range(0, 200, 10)),
    )
    wire = VllmPooling(encoder=encoder, model="m")
    with serve(pooling) as server:
        remote = scorer(wire, server.url)
        (record,) = remote.score_traces([ProblemTrace(problem=problem, trace=trace)])
    assert record.scores[0] is not None
    assert record.scores[-1] is None
    assert "beyond the model's context" in record.unscored_reason


def logits(ids: list[int]) -> list[list[float]]:
    return [[3.5, -2.0] for _ in ids]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda body: pooling(body, by_step), "is the server's pooling type ALL"),
        (lambda body: pooling(body, logits), "not probabilities"),
        (lambda body: pooling(body, lambda ids: [[4.2] for _ in ids]), r"outside \[0, 1\]"),
        (lambda body: pooling(body, lambda ids: [[math.nan] for _ in ids]), r"outside \[0, 1\]"),
        (lambda _body: Reply(payload={"data": [{"index": 0, "probs": [0.5]}]}), "data.0.data"),
        (lambda _body: Reply(payload={"data": []}), "came for 2 prompts"),
        (lambda _body: Reply(payload="<html>"), "Invalid JSON"),
        (lambda _body: Reply(status=404, payload="Not Found"), "status 404: Not Found"),
        (lambda _body: Reply(status=503, payload="busy"), "status 503: busy"),
    ],
)
def test_the_check_refuses_a_server_that_answers_otherwise(encoder, answer, message) -> None:
    with serve(answer) as server, pytest.raises(ScoreError, match=message):
        scorer(VllmPooling(encoder=encoder, model="m"), server.url)


def test_the_check_refuses_the_wrong_number_of_gateway_scores() -> None:
    reply = Reply(payload={"results": [{"scores": [0.5]}, {"scores": [0.5]}]})
    with serve(lambda _body: reply) as server, pytest.raises(ScoreError, match="1 scores came for 3 steps"):
        scorer(GatewayScore(), server.url)


@pytest.mark.parametrize("score", ["true", '"0.9"', "NaN", "1e999", "7", "[0.5]"])
def test_only_a_number_is_a_score(lab_items, score: str) -> None:
    answered = iter([True])

    def answer(body: Body) -> Reply:
        rows = [{"scores": [0.5] * len(item["steps"])} for item in body["items"]]
        text = json.dumps({"results": rows})
        return Reply(payload=text if next(answered, False) else text.replace("0.5", score, 1))

    with serve(answer) as server:
        remote = scorer(GatewayScore(), server.url)
        (record,) = remote.score_traces(lab_items[:1])
    assert set(record.scores) == {None}
    assert record.unscored_reason.startswith("server: ")


def test_the_check_refuses_nobody_there(encoder) -> None:
    with serve(pooling) as server:
        url = server.url
    with pytest.raises(ScoreError, match="connection failed"):
        scorer(VllmPooling(encoder=encoder, model="m"), url)


def test_the_check_compares_with_a_reference(encoder) -> None:
    reference = Scorer(encoder, name="here")  # a zero head: one half everywhere
    wire = VllmPooling(encoder=encoder, model="m")
    with serve(lambda body: pooling(body, lambda ids: [[0.5, 0.5] for _ in ids])) as server:
        scorer(wire, server.url).check(reference)
    with serve(pooling) as server, pytest.raises(ScoreError, match="differ"):
        scorer(wire, server.url).check(reference)


def test_a_refused_batch_is_sent_item_by_item(encoder, lab_items) -> None:
    bad = list(encoder.encode(lab_items)[3].ids)

    def answer(body: Body) -> Reply:
        return Reply(status=400, payload="too long") if bad in body["input"] else pooling(body)

    with serve(answer) as server:
        remote = scorer(VllmPooling(encoder=encoder, model="m"), server.url)
        records = remote.score_traces(lab_items)
    assert records[3].scores == (None,) * len(lab_items[3].trace.steps)
    assert records[3].unscored_reason == "server: status 400: too long"
    assert all(None not in record.scores for number, record in enumerate(records) if number != 3)
    assert remote.failures == {"status 400": 1}


def test_an_answer_of_another_shape_is_no_score(encoder, lab_items) -> None:
    turns = iter([pooling])

    def answer(body: Body) -> Reply:
        return next(turns, lambda body: pooling(body, by_step))(body)

    wire = VllmPooling(encoder=encoder, model="m")
    with serve(answer) as server:
        remote = scorer(wire, server.url)
        records = remote.score_traces(lab_items)
    assert all(set(record.scores) == {None} for record in records)
    assert remote.failures == {"malformed response": len(lab_items)}


def test_a_busy_server_is_asked_again(encoder, lab_items) -> None:
    turns = iter([0, 503, 429])

    def answer(body: Body) -> Reply:
        status = next(turns, 0)
        return Reply(status=status, headers={"Retry-After-Ms": "1"}) if status else pooling(body)

    wire = VllmPooling(encoder=encoder, model="m")
    with serve(answer) as server:
        remote = scorer(wire, server.url, max_retries=3)
        records = remote.score_traces(lab_items)
    assert all(None not in record.scores for record in records)


def test_a_slow_server_is_unknown(encoder, lab_items) -> None:
    turns = iter([0.0])

    def answer(body: Body) -> Reply:
        reply = pooling(body)
        return Reply(payload=reply.payload, wait_s=next(turns, 3.0))

    wire = VllmPooling(encoder=encoder, model="m")
    with serve(answer) as server:
        remote = scorer(wire, server.url, timeout_s=1.5)
        (record,) = remote.score_traces(lab_items[:1])
    assert record.scores[0] is None
    assert "no answer in time" in record.unscored_reason


def test_requests_are_made_at_the_same_time_but_not_too_many(encoder, lab_items) -> None:
    def answer(body: Body) -> Reply:
        return Reply(payload=pooling(body).payload, wait_s=0.2)

    wire = VllmPooling(encoder=encoder, model="m")
    with serve(answer) as server:
        remote = scorer(wire, server.url, batch_size=1, concurrency=3)
        remote.score_traces(lab_items)
    assert server.most_in_flight == 3


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ScoreError, match="batch_size"):
        scorer(GatewayScore(), "http://127.0.0.1:1", batch_size=0)


def test_a_rule_for_more_classes_than_come_is_refused(encoder) -> None:
    wire = VllmPooling(encoder=encoder, model="m", rule=lambda chances: chances[7])
    with serve(pooling) as server, pytest.raises(ScoreError, match="fewer than the rule reads"):
        scorer(wire, server.url)


def test_load_prm_opens_a_gateway_by_its_address(lab_items) -> None:
    with served(scorer=LineScorer()) as gateway:
        remote = load_prm(gateway.root)
        assert isinstance(remote, RemoteScorer)
        assert isinstance(remote, CheckpointScorer)
        [record] = remote.score("Start with 7.", ["7 + 3 = 0\nbad\n"])
        assert gateway.root.endswith(remote.name)
    assert record.scores == (0.9, 0.1)
    assert remote.aggregate(record) == 0.1


def verifier_answer(body: Body) -> Reply:
    """A model that calls every step correct and then says yes with odds of 3 to 1."""
    if "logprobs" not in body:
        return Reply(payload=chat([r" one \boxed{correct} two \boxed{correct}"]))
    top = [{"token": " Yes", "logprob": math.log(0.75)}, {"token": " No", "logprob": math.log(0.25)}]
    choice = {"message": {"content": " Yes"}, "logprobs": {"content": [{**top[0], "top_logprobs": top}]}}
    return Reply(payload={"choices": [choice], "usage": {"prompt_tokens": 5, "completion_tokens": 1}})


def test_load_prm_makes_a_generative_verifier_of_another_server() -> None:
    with serve(verifier_answer) as server:
        server.models = [{"id": "thinker", "object": "model", "created": 0, "owned_by": "someone"}]
        verifier = load_prm(server.url, family="generative")
        [record] = verifier.score("2 + 2?", ["2 + 2\n= 4\n"])
        with pytest.raises(
            CheckpointError,
            match=r"serves thinker, whose name does not show its family; name it with.*'generative'",
        ):
            load_prm(server.url)
    assert (verifier.name, verifier.card.family) == ("thinker", "generative")
    assert record.scores == (1.0, pytest.approx(0.75))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "127.0.0.1:9/v1: no server answers"),
        ({"family": "sky"}, "family='sky' is not known; a server has one of 'generative', 'math-shepherd'"),
        ({"calibrated": True}, "cannot be calibrated here"),
        ({"base": "x"}, "base='x' is for adapters"),
    ],
)
def test_what_a_server_cannot_do_is_said(options, message) -> None:
    with pytest.raises(CheckpointError, match=message):
        load_prm("http://127.0.0.1:9", **options)
