"""``surefoot deliberate``: the specification is in the prompt of completions alone."""

from __future__ import annotations

import json

import pytest
from command_line import good, refused
from openai_server import Reply, chat, completion, serve

from benchmarks.rules import models
from benchmarks.worlds.rules import RuleVerifier, citation, reasoned_answer
from surefoot.io import read_records, write_json, write_records
from surefoot.labelling import JudgePrompt
from surefoot.protocols import ProblemTrace
from surefoot.records import Problem, StepLabel, Trace
from surefoot.segment import Line, segment_trace

SPLIT = models.split_rules(1)
SPECIFICATION = SPLIT.specification
REQUESTS = SPLIT.training[:8]
BY_TEXT = {request.text: request for request in SPLIT.training}


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rules") / "policy"
    models.train_rule_policy(folder, updates=1)
    return folder


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_json(tmp_path / "s.json", SPECIFICATION.model_dump(mode="json"))
    problems = [request.problem(SPECIFICATION) for request in SPLIT.training]
    write_records(tmp_path / "p.jsonl", problems[:8])
    write_records(tmp_path / "held.jsonl", problems[8:10])
    return tmp_path


def trace(request, text=None):
    problem = request.problem(SPECIFICATION)
    text = reasoned_answer(request, SPECIFICATION) if text is None else text
    whole = Trace(problem_id=problem.id, text=text, answer=problem.answer, outcome=True, finish_reason="stop")
    return segment_trace(whole, Line())


def completions(folder, *traces):
    write_records(folder / "c.jsonl", traces)


def exact_judge(body):
    """What a judge that knows this world replies: its checker's verdict on each step, and the clause."""
    problems = {problem.id: problem for problem in read_records("p.jsonl", Problem)}
    items = [ProblemTrace(problem=problems[t.problem_id], trace=t) for t in read_records("c.jsonl", Trace)]
    prompt = JudgePrompt(specification=SPECIFICATION, structured=True)
    [item] = [item for item in items if prompt.render(item)[0].content == body["messages"][0]["content"]]
    names = {1: "correct", 0: "neutral", -1: "incorrect"}
    rows = [
        {"step": n, "critique": one.reason, "verdict": names[one.value], "clause": one.clause or "none"}
        for n, one in enumerate(RuleVerifier(SPECIFICATION).verify([item])[0])
    ]
    return Reply(payload=chat([json.dumps({"verdicts": rows})]))


def filtered(check=good):
    """The filter with this judge."""
    with serve(exact_judge) as server:
        return check(*FILTER, "--policy", "judge", "--base-url", server.url, ONE_VOTE)


ONE_VOTE = "judge:votes=1,lowest=true"
GENERATE = ("deliberate", "generate", "p.jsonl", "--specification", "s.json", "--policy", "m", "-n", 1)
FILTER = (
    *("deliberate", "filter", "c.jsonl", "--problems", "p.jsonl", "--specification", "s.json"),
    *("--out", "l.jsonl", "--passed", "passed.jsonl"),
)
TRAIN = (
    *("deliberate", "train", "p.jsonl", "--traces", "c.jsonl", "--held-out", "held.jsonl"),
    *("--specification", "s.json", "--updates", 1, "--max-tokens", 8),
    *("--set", "rl.problems=4", "--set", "rl.samples=2"),
)


def test_completions_are_written_under_the_specification_and_do_not_hold_it(folder):
    def answer(body):
        asked = body["prompt"].removeprefix(SPECIFICATION.text).strip()
        return Reply(payload=completion([reasoned_answer(BY_TEXT[asked], SPECIFICATION)]))

    with serve(answer) as server:
        good(*GENERATE, "--base-url", server.url, "--out", "c.jsonl")
    assert all(body["prompt"].startswith(SPECIFICATION.text) for body in server.bodies)
    traces = list(read_records(folder / "c.jsonl", Trace))
    assert len(traces) == 8
    assert all(one.outcome for one in traces)
    assert all(SPECIFICATION.text not in one.model_dump_json() for one in traces)
    filtered()
    assert {one.id for one in read_records(folder / "passed.jsonl", Trace)} == {one.id for one in traces}


def test_in_a_chat_the_specification_is_the_system_message(folder):
    with serve(lambda body: Reply(payload=chat(["Answer: ask"]))) as server:
        words = ("--base-url", server.url, "--chat", "--system", "Be short.", "--out", "c.jsonl")
        good(*GENERATE, *words)
    for body in server.bodies:
        system, user = body["messages"]
        assert system["content"] == f"Be short.\n\n{SPECIFICATION.text}"
        assert SPECIFICATION.clauses[0].line not in user["content"]


def test_a_dry_run_counts_the_specification(folder):
    with_it = good(*GENERATE, "--dry-run", "--out", "c.jsonl")
    without = good("sample", "p.jsonl", "--policy", "m", "-n", 1, "--dry-run", "--out", "c.jsonl")
    assert "8 traces of 8 problems" in with_it.out + with_it.err
    assert with_it.out + with_it.err != without.out + without.err
    assert not (folder / "c.jsonl").exists()


def test_the_filter_keeps_what_holds_in_every_step(folder):
    good_one, wrong_clause, lucky, uncited = REQUESTS[:4]
    other = next(c for c in SPECIFICATION.clauses if c not in wrong_clause.applicable(SPECIFICATION))
    right = reasoned_answer(lucky, SPECIFICATION)
    first = lucky.applicable(SPECIFICATION)[0]
    completions(
        folder,
        trace(good_one),
        trace(wrong_clause, f"<think>\n{citation(other)}no exception\n</think>\nAnswer: {other.decision}\n"),
        trace(lucky, right.replace(f"clause {first.id},", "clause 99,")),
        trace(uncited, f"Answer: {uncited.deciding(SPECIFICATION).decision}\n"),
    )
    ended = filtered()
    assert "3 left out: a wrong step" in ended.err
    assert "1 of 4 completions pass" in ended.err
    (passed,) = read_records(folder / "passed.jsonl", Trace)
    assert passed == trace(good_one)
    labels = list(read_records(folder / "l.jsonl", StepLabel))
    assert {label.evidence.clause for label in labels} >= {"99", other.id}


def test_nothing_that_passes_is_an_error(folder):
    completions(folder, trace(REQUESTS[0], "Answer: maybe\n"))
    says = filtered(refused)
    assert "none of the 1 completions passes" in says
    assert not (folder / "passed.jsonl").exists()


def test_a_model_judges_with_the_lowest_of_its_votes(folder):
    completions(folder, *map(trace, REQUESTS[:2]))
    votes = iter(["correct", "correct", "correct", "correct", "incorrect", "correct"])

    def answer(body):
        verdict = next(votes)
        rows = [
            {"step": step, "critique": "seen", "verdict": verdict, "clause": "none" if step else "1"}
            for step in range(3)
        ]
        return Reply(payload=chat([json.dumps({"verdicts": rows})]))

    ids = {clause.id for clause in SPECIFICATION.clauses}
    assert "1" in ids
    with serve(answer) as server:
        words = ("--policy", "judge", "--base-url", server.url, "--concurrency", 1)
        ended = good(*FILTER, *words)
    assert "1 of 2 completions pass" in ended.err
    assert len(server.bodies) == 6
    assert all(SPECIFICATION.text.strip() in str(body["messages"][0]["content"]) for body in server.bodies)
    assert "clause" in json.dumps(server.bodies[0]["response_format"])


def test_training_fine_tunes_then_rewards_without_the_specification(folder, policy):
    completions(folder, *map(trace, REQUESTS))
    words = ("--policy", policy, "--out", "run", "--set", "sft.epochs=1")
    ended = good(*TRAIN, *words)
    assert "hidden reasoning: not graded" in ended.err
    assert (folder / "run" / "sft" / "policy" / "model.safetensors").exists()
    assert (folder / "run" / "policy" / "model.safetensors").exists()
    for manifest in (folder / "run").rglob("manifest.json"):
        assert SPECIFICATION.clauses[0].line.strip() not in manifest.read_text()
    again = good(*TRAIN, *words)
    assert "is finished already" in again.err


def test_a_problem_or_a_template_with_a_clause_is_refused(folder, policy):
    completions(folder, *map(trace, REQUESTS))
    words = ("--policy", policy, "--out", "run")
    template = SPECIFICATION.clauses[2].line.strip() + " {problem}"
    says = refused(*TRAIN, *words, "--set", f"prompt.template={template}")
    assert f"training prompt 0 holds clause {SPECIFICATION.clauses[2].id}" in says
    held = Problem(text=SPECIFICATION.text, answer="ask")
    write_records(folder / "p.jsonl", [request.problem(SPECIFICATION) for request in REQUESTS] + [held])
    assert "training prompt 8 holds clause" in refused(*TRAIN, *words)
    assert not (folder / "run").exists()


def test_what_would_leak_is_refused(folder, policy):
    completions(folder, trace(REQUESTS[0]))
    words = ("--policy", policy, "--out", "run")
    assert "must stay free" in refused(*TRAIN, *words, "--set", "grade_reasoning=true")
    without = [word for word in TRAIN if word not in ("--held-out", "held.jsonl")]
    assert "give --held-out" in refused(*without, *words)
