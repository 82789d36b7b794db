"""Scores and verdicts of solutions: ``/v1/score``, and the client that the package ships."""

from __future__ import annotations

import asyncio
import json

import pytest
import torch
from gateway_server import LineScorer, ask, lines, served

from benchmarks.worlds.digits.solver import NoisySolver
from benchmarks.worlds.digits.world import ExactLabeller, generate_problems
from benchmarks.worlds.scripted import ScriptedPolicy
from surefoot.answers import AnswerChecker, Grader
from surefoot.models.card import CheckpointCard
from surefoot.models.encoding import Encoding
from surefoot.models.kinds.classifier import RewardModel
from surefoot.models.kinds.derived import LabelScorer
from surefoot.models.remote.scorer import RemoteScorer
from surefoot.models.remote.wires import GatewayScore as GatewayWire
from surefoot.models.scorer import Scorer
from surefoot.policies.episodes import sample_traces
from surefoot.protocols import ProblemTrace, Sampling
from surefoot.records import Attachment, Message, Problem, Reasoning, StepScores, ToolCall, Trace
from surefoot.segment import Line, segment_trace


def post(url, body):
    """Status and answer."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return ask(url, data)


def lab_items(count=6):
    problems = generate_problems(count, seed=3)
    with AnswerChecker("math") as checker:
        rows = asyncio.run(
            sample_traces(
                NoisySolver(error_rate=0.3),
                problems,
                n=2,
                seed=1,
                segmenter=Line(),
                grader=Grader(checker=checker),
                sampling=Sampling(max_tokens=200),
            )
        )
    return [
        ProblemTrace(problem=problem, trace=trace)
        for problem, row in zip(problems, rows, strict=True)
        for trace in row
    ]


@pytest.fixture(scope="module")
def scripted():
    with served(ScriptedPolicy(lines), LineScorer()) as found:
        yield found


class ExactScorer(LabelScorer):
    """Exact scores in the digit world; the steps of the check's own problem are right."""

    def score_traces(self, items):
        probe = "3 + 4 - 2"
        known = [item for item in items if item.problem.text != probe]
        scored = iter(super().score_traces(known) if known else ())
        return [
            next(scored)
            if item in known
            else StepScores(trace_id=item.trace.id, scorer=self.name, scores=(1.0,) * len(item.trace.steps))
            for item in items
        ]


def test_the_packages_own_client_gets_the_scores_of_the_scorer():
    exact = ExactScorer(ExactLabeller(), name="exact")
    items = lab_items()
    with served(NoisySolver(), exact) as found:
        remote = RemoteScorer(GatewayWire(), base_url=found.url, name="remote")
        remote.check(exact)
        got = remote.score_traces(items)
    expected = LabelScorer(ExactLabeller(), name="exact").score_traces(items)
    assert [record.scores for record in got] == [record.scores for record in expected]
    assert any(0.0 in record.scores for record in got)


def test_score_cuts_a_solution_and_says_why_a_step_has_none(scripted):
    items = [
        {"problem": "p", "solution": "a\nodd\nbad"},
        {"problem": "p", "solution": "a\n\nb\nc"},
        {"problem": "p", "steps": ["x", " bad"]},
        {"problem": "p", "steps": ["raise"]},
    ]
    status, answer = post(f"{scripted.url}/score", {"items": items, "aggregation": "mean"})
    assert status == 200
    first, second, third, fourth = answer["results"]
    assert first == {
        "steps": ["a\n", "odd\n", "bad"],
        "scores": [0.9, None, 0.1],
        "value": None,
        "unscored_reason": "odd",
        "decision": "reject",
        "first_bad_step": 2,
    }
    assert second["steps"] == ["a\n\n", "b\nc"]
    assert third["value"] == pytest.approx(0.5)
    assert (fourth["scores"], fourth["unscored_reason"]) == ([None], "scorer: ValueError")
    assert answer["usage"]["verifier_tokens"] > 0


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"items": []}, 400, "items"),
        ({"items": [{"problem": "p", "solution": "x"}] * 257}, 400, "at most 256"),
        ({"items": [{"problem": "p"}]}, 400, "one of"),
        ({"items": [{"problem": "p", "steps": [""]}]}, 400, "steps"),
        ({"items": [{"problem": "p", "solution": " "}]}, 400, "solution: has 0 steps"),
        ({"items": [{"problem": "p", "trace": {"problem_id": "p", "text": " "}}]}, 400, "trace: has 0 steps"),
        ({"items": [{"problem": "p", "solution": "x"}], "threshold": 1.5}, 400, "threshold"),
        ({"model": "other", "items": [{"problem": "p", "solution": "x"}]}, 404, "'lines'"),
        (b'{"items": [{"problem": "\\ud800", "solution": "x"}]}', 400, "Invalid JSON"),
        ({"items": [{"problem": "p", "solution": "a", "segment": "line"}]}, 400, "items.0.segment"),
        ({"items": [{"problem": "p", "solution": "a"}], "treshold": 0.9}, 400, "treshold"),
    ],
)
def test_score_refuses_with_the_field(scripted, body, status, said):
    got, answer = post(f"{scripted.url}/score", body)
    assert (got, said in answer["error"]["message"]) == (status, True), answer


def test_a_verdict_accepts_rejects_and_says_what_it_does_not_know(scripted):
    def judged(item, **more):
        status, answer = post(f"{scripted.url}/score", {"items": [item], **more})
        assert status == 200
        [result] = answer["results"]
        return result["decision"], result["first_bad_step"]

    def verdict(*steps, **more):
        return judged({"problem": "p", "steps": list(steps)}, **more)

    assert verdict("a\n", "b\n") == ("accept", None)
    assert verdict("a\n", "bad\n", "odd\n") == ("reject", 1)
    assert verdict("a\n", "odd\n") == ("unscored", None)
    assert verdict("a\n", "bad\n", threshold=0.05) == ("accept", None)
    assert verdict("a\n", threshold=0.95) == ("reject", 0)
    run = {
        "problem_id": "p",
        "text": "good\nbad\n",
        "steps": [{"start": 0, "end": 5}, {"start": 5, "end": 9}],
    }
    assert judged({"problem": "p", "trace": run}) == ("reject", 1)


def test_a_model_that_computes_nan_is_never_accepted_and_is_counted(lab_base):
    card = CheckpointCard(kind="prm", encoding=Encoding(max_length=64), label_source="test", base="lab")
    broken = RewardModel.initialise(lab_base, card)
    with torch.no_grad():
        broken.head.weight.fill_(float("nan"))
    with served(ScriptedPolicy(lines), Scorer(broken, name="prm")) as found:
        for number in range(3):
            steps = [f"{number} + 4 = 7\n", "Answer: 7\n"]
            item = {"problem": "Start with 3. Add 4.", "steps": steps}
            status, answer = post(f"{found.url}/score", {"items": [item]})
            [result] = answer["results"]
            assert (status, result["decision"], result["scores"]) == (200, "unscored", [None, None])
            assert "2 of 2 scores were not finite" in result["unscored_reason"]
        _, metrics = ask(f"{found.root}/metrics")
    assert 'surefoot_events_total{happened="yes",of="unscored"} 3.0' in metrics
    assert 'surefoot_verdicts_total{decision="unscored"} 3.0' in metrics
    assert 'decision="accept"' not in metrics
    assert "surefoot_unscored_steps_total 6.0" in metrics


def test_scores_of_many_clients_go_out_together():
    scorer = LineScorer(wait_s=0.05)

    async def main(url):
        body = {"items": [{"problem": "p", "solution": "a\nb"}]}
        return await asyncio.gather(*(asyncio.to_thread(post, f"{url}/score", body) for _ in range(12)))

    with served(ScriptedPolicy(lines), scorer) as found:
        answers = asyncio.run(main(found.url))
    assert all(status == 200 and answer["results"][0]["scores"] == [0.9, 0.9] for status, answer in answers)
    assert sum(scorer.batches) == 12
    assert max(scorer.batches) > 1


CHATML = (
    "{% for m in messages %}{{ m.role | length }} = {{ m.content + PADDING + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}9 = {% endif %}"
).replace("PADDING", repr(" + 0" * 12))
"""In words that the lab's tokenizer knows; the padding keeps the share of unknown tokens in calls low."""


def runs():
    """An agent's run with a thought and two calls, the same with another call, and one with an image."""
    problem = Problem(text="Start with 7. Add 3.")
    asked = Message(role="user", content="Start with 7. Add 3.")
    image = Attachment(kind="image", uri="x.png", sha256="0" * 64)

    def run(first, *digits):
        calls = tuple(ToolCall(id=d, name="add", arguments=f'{{"a": {d}}}') for d in digits)
        said = Message(
            role="assistant", content="7 + 3", tool_calls=calls, reasoning=Reasoning(text="7 + 3 = 0\n")
        )
        done = Message(role="tool", content="0", tool_call_id=digits[0])
        messages = (first, said, done, Message(role="assistant", content="Answer: 0"))
        trace = segment_trace(Trace(problem_id=problem.id, messages=messages))
        return ProblemTrace(problem=problem, trace=trace)

    return [
        run(asked, "7", "3"),
        run(asked, "5", "3"),
        run(asked.model_copy(update={"attachments": (image,)}), "7", "3"),
    ]


def test_the_runs_of_agents_go_to_a_server_with_their_calls(lab_base):
    card = CheckpointCard(kind="prm", encoding=Encoding(chat=True), label_source="test", base="lab")
    chat = RewardModel.initialise(lab_base, card)
    chat.tokenizer.chat_template = CHATML
    torch.nn.init.normal_(chat.head.weight, generator=torch.Generator().manual_seed(0))
    local = Scorer(chat, name="prm")
    with served(ScriptedPolicy(lines), local) as found:
        remote = RemoteScorer(GatewayWire(), base_url=found.url, name="r")
        got = remote.score_traces(runs())
    for record, expected in zip(got, local.score_traces(runs()), strict=True):
        assert record.scores == pytest.approx(expected.scores, abs=1e-5)
    assert got[0].scores[2] != got[1].scores[2]
    assert got[2].scores == (None,) * 5
    assert "attachment (image)" in got[2].unscored_reason
