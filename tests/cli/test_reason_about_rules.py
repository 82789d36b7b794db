"""``--specification``: the specification is in the prompt of completions alone, which it filters."""

from __future__ import annotations

import json

import pytest
from command_line import good, refused
from openai_server import Reply, chat, completion, serve

from benchmarks.rules import models
from benchmarks.worlds.rules import RuleVerifier, citation, reasoned_answer
from surefoot.io import read_records, write_json, write_records
from surefoot.labelling import JudgePrompt, rejection
from surefoot.protocols import LabelledTrace, ProblemTrace
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


def items(folder):
    """The completions with their labels."""
    problems = {problem.id: problem for problem in read_records(folder / "p.jsonl", Problem)}
    labels = list(read_records(folder / "l.jsonl", StepLabel))
    return [
        LabelledTrace(
            problem=problems[one.problem_id],
            trace=one,
            labels=tuple(label for label in labels if label.trace_id == one.id),
        )
        for one in read_records(folder / "c.jsonl", Trace)
    ]


def completions(folder, *traces):
    write_records(folder / "c.jsonl", traces)


def exact_judge(body):
    """What a judge that knows this world replies: its checker's verdict on each step, and the clause."""
    problems = {problem.id: problem for problem in read_records("p.jsonl", Problem)}
    items = [ProblemTrace(problem=problems[t.problem_id], trace=t) for t in read_records("c.jsonl", Trace)]
    prompt = JudgePrompt(specification=SPECIFICATION)
    [item] = [item for item in items if prompt.render(item)[0].content == body["messages"][0]["content"]]
    names = {1: "correct", 0: "neutral", -1: "incorrect"}
    rows = [
        {"step": n, "critique": one.reason, "verdict": names[one.value], "clause": one.clause or "none"}
        for n, one in enumerate(RuleVerifier(SPECIFICATION).verify([item])[0])
    ]
    return Reply(payload=chat([json.dumps({"verdicts": rows})]))


def labelled(votes=1):
    """The completions with labels of this judge."""
    with serve(exact_judge) as server:
        words = ("--policy", "judge", "--base-url", server.url)
        good(*LABEL, f"judge:votes={votes},lowest=true", *words, "--allow-uninformative")


GENERATE = ("sample", "p.jsonl", "--specification", "s.json", "--policy", "m", "-n", 1)
LABEL = (
    *("label", "c.jsonl", "--problems", "p.jsonl", "--specification", "s.json", "--out", "l.jsonl"),
    "--force",
)
IMITATE = (
    *("imitate", "p.jsonl", "--traces", "c.jsonl", "--labels", "l.jsonl", "--specification", "s.json"),
    *("--out", "sft", "--set", "imitation.training.epochs=1", "--max-tokens", 8),
)
TRAIN = (
    *("rl", "p.jsonl", "--held-out", "held.jsonl", "--specification", "s.json", "--updates", 1),
    *("--max-tokens", 8, "--set", "rl.problems=4", "--set", "rl.samples=2", "--out", "run"),
)


def cloned(policy, check=good):
    """The fine-tuning of the completions that pass."""
    return check(*IMITATE, "--policy", policy)


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
    labelled()
    assert all(rejection(item) is None for item in items(folder))


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


def test_only_what_holds_in_every_step_is_learned(folder, policy):
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
    labelled()
    ended = cloned(policy)
    assert "3 traces left out: a wrong step" in ended.err
    assert "1 of 4 completions pass" in ended.err
    (passed,) = [item.trace for item in items(folder) if rejection(item) is None]
    assert passed == trace(good_one)
    labels = list(read_records(folder / "l.jsonl", StepLabel))
    assert {label.evidence.clause for label in labels} >= {"99", other.id}


def test_nothing_that_passes_is_an_error(folder, policy):
    completions(folder, trace(REQUESTS[0], "Answer: maybe\n"))
    labelled()
    assert "none of the 1 completions passes" in cloned(policy, refused)
    assert not (folder / "sft" / "policy").exists()


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
        good(*LABEL, "judge:votes=3,lowest=true", *words)
    assert [rejection(item) for item in items(folder)].count(None) == 1
    assert len(server.bodies) == 6
    assert all(SPECIFICATION.text.strip() in str(body["messages"][0]["content"]) for body in server.bodies)
    assert "clause" in json.dumps(server.bodies[0]["response_format"])


def test_training_fine_tunes_then_rewards_without_the_specification(folder, policy):
    completions(folder, *map(trace, REQUESTS))
    labelled()
    cloned(policy)
    ended = good(*TRAIN, "--policy", folder / "sft" / "policy")
    assert "hidden reasoning: not graded" in ended.err
    assert (folder / "run" / "policy" / "model.safetensors").exists()
    for manifest in (*folder.rglob("manifest.json"), folder / "c.jsonl"):
        assert SPECIFICATION.clauses[0].line.strip() not in manifest.read_text()


@pytest.mark.parametrize("command", [IMITATE, TRAIN], ids=["imitate", "rl"])
def test_a_problem_or_a_template_with_a_clause_is_refused(folder, policy, command):
    completions(folder, *map(trace, REQUESTS))
    labelled()
    template = SPECIFICATION.clauses[2].line.strip() + " {problem}"
    says = refused(*command, "--policy", policy, "--set", f"prompt.template={template}")
    assert f"training prompt 0 holds clause {SPECIFICATION.clauses[2].id}" in says
    held = Problem(text=SPECIFICATION.text, answer="ask")
    write_records(folder / "p.jsonl", [request.problem(SPECIFICATION) for request in REQUESTS] + [held])
    assert "training prompt 8 holds clause" in refused(*command, "--policy", policy)
    assert not (folder / "run").exists()


def test_what_would_leak_or_could_not_be_filtered_is_refused(folder, policy):
    completions(folder, trace(REQUESTS[0]))
    says = refused(*TRAIN, "--policy", policy, "--set", "grade_reasoning=true")
    assert "must stay free" in says
    without = [word for word in IMITATE if word not in ("--labels", "l.jsonl")]
    assert "--specification needs --labels" in refused(*without, "--policy", policy)
    says = refused(*GENERATE, "--environment", "benchmarks.worlds.shop:Shop")
    assert "an --environment writes itself" in says
