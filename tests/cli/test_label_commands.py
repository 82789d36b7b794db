"""``surefoot label`` by ``mc`` and ``tree``: a server that works, fails, and dies; budgets and dry runs."""

from __future__ import annotations

import asyncio
import re
import threading
from collections import Counter
from pathlib import Path

import pytest
from command_line import good, incomplete, refused
from openai_server import Body, Reply, completion, serve

from benchmarks.worlds.digits import POLICY
from benchmarks.worlds.digits.solver import NoisySolver
from benchmarks.worlds.digits.world import Difficulty, generate_problems
from surefoot.answers import AnswerChecker, Grader
from surefoot.io import read_records, write_records
from surefoot.labelling.monte_carlo import MonteCarloLabeller, MonteCarloSettings
from surefoot.policies.episodes import sample_traces
from surefoot.policies.openai import OpenAIPolicy
from surefoot.protocols import ProblemTrace, SampleRequest, Sampling
from surefoot.records import Problem, StepLabel, StepPair, Trace, Usage
from surefoot.segment import Line

GRADING = ["--extract=phrase", "--equality=exact", "--max-tokens=60"]
SOLVER = NoisySolver(error_rate=0.25)
QUICKLY = {"retry-after-ms": "1"}


def answer(body: Body) -> Reply:
    """What the noisy solver would write: the prompt is the problem's line and the prefix after it."""
    problem, _, prefix = body["prompt"].partition("\n")
    sampling = Sampling(max_tokens=body["max_tokens"])
    request = SampleRequest(prompt=problem, prefix=prefix, seed=body["seed"], sampling=sampling)
    (result,) = asyncio.run(SOLVER.sample([request]))
    return Reply(payload=completion([result.completions[0].text]))


class Server:
    """Answers as ``now`` says; ``now`` can be changed while the server runs."""

    def __init__(self) -> None:
        self.now = answer
        self.lock = threading.Lock()

    def __call__(self, body: Body) -> Reply:
        return self.now(body)

    def fail_after(self, count: int) -> None:
        left = iter(range(count))

        def some(body: Body) -> Reply:
            with self.lock:
                alive = next(left, None) is not None
            return answer(body) if alive else Reply(status=403, payload="gone")

        self.now = some


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Sixty problems with two traces each, three pieces of work."""
    folder = tmp_path_factory.mktemp("labels")
    difficulty = Difficulty(min_operations=2, max_operations=3)
    problems = generate_problems(60, seed=4, difficulty=difficulty)
    with AnswerChecker("exact") as checker:
        grader = Grader(checker=checker, styles=("phrase",))
        sampled = asyncio.run(sample_traces(SOLVER, problems, n=2, seed=1, segmenter=Line(), grader=grader))
    write_records(folder / "p.jsonl", problems)
    write_records(folder / "t.jsonl", [trace for traces in sampled for trace in traces])
    return folder


@pytest.fixture(autouse=True)
def same_times(monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")


def words(
    data: Path, url: str, out: Path, *more: str, method: str = "mc:estimate=hard,rollouts=4"
) -> list[object]:
    command = ["label", data / "t.jsonl", method, "--problems", data / "p.jsonl", "--policy", "solver"]
    return [*command, "--base-url", url, "--out", out, *GRADING, *more]


def read(path: Path) -> list[StepLabel]:
    return list(read_records(path, StepLabel))


def test_a_policy_that_never_succeeds_teaches_nothing_and_the_command_says_so(data, tmp_path):
    server = Server()
    server.now = lambda _: Reply(payload=completion(["The answer is 99."]))
    with serve(server) as running:
        ended = refused(*words(data, running.url, tmp_path / "l.jsonl"))
        server.now = answer
        ended_well = good(*words(data, running.url, tmp_path / "w.jsonl", method="mc:rollouts=4")).err
        accepted = words(data, running.url, tmp_path / "a.jsonl", "--allow-uninformative")
        server.now = lambda _: Reply(payload=completion(["The answer is 99."]))
        said = good(*accepted).err
    assert re.search(r"all \d+ inner steps have the value 0: .* --allow-uninformative", ended)
    assert "a rollout succeeds from 0 of" in said
    labels = read(tmp_path / "l.jsonl")
    traces = list(read_records(data / "t.jsonl", Trace))
    assert len(labels) == sum(len(trace.steps) for trace in traces), "the labels are written"
    found = re.search(r"values differ within (\d+) of (\d+) traces", ended_well)
    values: dict[str, set[float]] = {}
    for label in read(tmp_path / "w.jsonl"):
        values.setdefault(label.trace_id, set()).add(label.value)
    assert found, ended_well
    assert (int(found[1]), int(found[2])) == (sum(len(v) > 1 for v in values.values()), len(values))


def test_a_server_that_fails_now_and_then_changes_no_label(data, tmp_path):
    server, failed = Server(), set()
    with serve(server) as running:
        good(*words(data, running.url, tmp_path / "calm.jsonl"))

        def moody(body: Body) -> Reply:
            key = (body["prompt"], body["seed"])
            with server.lock:
                first, number = key not in failed, len(failed)
                failed.add(key)
            if first and number % 3 < 2:
                return Reply(status=(503, 429)[number % 3], headers=QUICKLY)
            return answer(body)

        server.now = moody
        ended = good(*words(data, running.url, tmp_path / "moody.jsonl"))
    assert " 0 of them without a value" in ended.err
    calm, moody_labels = read(tmp_path / "calm.jsonl"), read(tmp_path / "moody.jsonl")
    assert [(x.trace_id, x.step, x.value, x.evidence.successes, x.evidence.trials) for x in moody_labels] == [
        (x.trace_id, x.step, x.value, x.evidence.successes, x.evidence.trials) for x in calm
    ]
    # one label a step, and failed calls are calls
    steps = sum(len(trace.steps) for trace in read_records(data / "t.jsonl", Trace))
    assert len(calm) == len({(x.trace_id, x.step) for x in calm}) == steps
    calls = [sum((x.evidence.usage for x in rows), Usage()).calls for rows in (calm, moody_labels)]
    assert calls[1] > calls[0]


def test_rubbish_costs_its_own_labels_alone_and_is_counted(data, tmp_path):
    server = Server()
    with serve(server) as running:
        good(*words(data, running.url, tmp_path / "calm.jsonl"))
        prefixes = Counter(body["prompt"] for body in running.bodies)
        spoilt = {prompt for number, prompt in enumerate(sorted(prefixes)) if number % 10 == 0}
        server.now = lambda body: Reply(payload="<html>") if body["prompt"] in spoilt else answer(body)
        ended = incomplete(*words(data, running.url, tmp_path / "rubbish.jsonl"))
    calm, rubbish = read(tmp_path / "calm.jsonl"), read(tmp_path / "rubbish.jsonl")
    unknown = [label for label in rubbish if label.value is None]
    assert unknown
    assert all((label.reason or "").startswith("rollouts failed: server: ") for label in unknown)
    assert f"{len(rubbish)} labels written, {len(unknown)} of them without a value" in ended.err
    assert "without a value: rollouts failed: server: malformed answer" in ended.err
    for before, after in zip(calm, rubbish, strict=True):
        assert (before.trace_id, before.step) == (after.trace_id, after.step)
        assert after.value in (None, before.value)


def test_a_server_that_dies_loses_and_doubles_nothing(data, tmp_path):
    server = Server()
    with serve(server) as running:
        good(*words(data, running.url, tmp_path / "calm.jsonl"))
        needed = Counter(body["prompt"] for body in running.bodies)
        running.seen.clear()
        server.fail_after(int(0.6 * needed.total()))
        # of the pieces under way some requests fail; all of those after them do
        message = refused(*words(data, running.url, tmp_path / "l.jsonl"))
        assert "no request succeeded" in message
        assert "server: status 403: gone" in message
        finished = (tmp_path / "l.jsonl.work/pieces/pieces.journal").read_bytes().count(b'{"piece":')
        assert 30 <= finished < 60
        running.seen.clear()
        server.now = answer
        ended = incomplete(*words(data, running.url, tmp_path / "l.jsonl"))
        labels, calm = read(tmp_path / "l.jsonl"), read(tmp_path / "calm.jsonl")
        assert [(x.trace_id, x.step) for x in labels] == [(x.trace_id, x.step) for x in calm]
        assert all(x.value in (None, y.value) for x, y in zip(labels, calm, strict=True))
        assert f"{len(calm)} labels written" in ended.err, "those of the first start are counted too"
        good(*words(data, running.url, tmp_path / "l.jsonl", "--retry-failed"))
        again = Counter(body["prompt"] for body in running.bodies)
    assert again.total() < needed.total()
    for label, expected in zip(read(tmp_path / "l.jsonl"), calm, strict=True):
        assert label.value == expected.value
        if label.evidence.trials < expected.evidence.trials:
            assert label.value == 1  # one rollout had succeeded, so that the failed ones change nothing
        else:
            assert label.evidence == expected.evidence


def test_a_server_that_stalls_is_given_up(data):
    problems = {problem.id: problem for problem in read_records(data / "p.jsonl", Problem)}
    trace = next(iter(read_records(data / "t.jsonl", Trace)))
    with serve(lambda body: Reply(wait_s=1.0)) as running, AnswerChecker("exact") as checker:
        labeller = MonteCarloLabeller(
            policy=OpenAIPolicy(
                model="m", base_url=running.url, mode="completions", timeout_s=0.05, max_retries=0
            ),
            grader=Grader(checker=checker, styles=("phrase",)),
            settings=MonteCarloSettings(rollouts=1),
        )
        item = ProblemTrace(problem=problems[trace.problem_id], trace=trace)
        (labels,) = asyncio.run(labeller.label([item]))
    assert {label.value for label in labels[:-1]} == {None}
    assert all("no answer in time" in (label.reason or "") for label in labels[:-1])


def test_a_token_budget_stops_cleanly_and_a_larger_one_goes_on(data, tmp_path):
    with serve(answer) as running:
        good(*words(data, running.url, tmp_path / "all.jsonl"))
        whole = read(tmp_path / "all.jsonl")
        spent = sum((label.evidence.usage for label in whole), Usage()).tokens
        budget = int(0.75 * spent)
        out = tmp_path / "l.jsonl"
        ended = incomplete(*words(data, running.url, out, f"--token-budget={budget}"))
        assert "stopped by the budget after " in ended.err
        assert "raise the budget" in ended.err
        part = read(out)
        assert 0 < len(part) < len(whole)
        assert sum((label.evidence.usage for label in part), Usage()).tokens <= budget
        assert (
            "stopped by the budget"
            in incomplete(*words(data, running.url, out, f"--token-budget={budget}")).err
        )
        assert read(out) == part
        good(*words(data, running.url, out, f"--token-budget={2 * spent}"))
    assert read(out) == whole
    assert not (tmp_path / "l.jsonl.work").exists()


def test_a_small_budget_stops_after_the_first_piece(data, tmp_path):
    with serve(answer) as running:
        ended = incomplete(*words(data, running.url, tmp_path / "l.jsonl", "--token-budget=1"))
    assert "stopped by the budget after 1 of 60 pieces" in ended.err


def test_a_dry_run_asks_nobody(data, tmp_path):
    with serve(answer) as running:
        ended = good(*words(data, running.url, tmp_path / "l.jsonl", "--dry-run"))
        assert running.seen == []
        assert ended.out.startswith("at most ")
        assert not (tmp_path / "l.jsonl").exists()


@pytest.mark.parametrize(
    ("method", "option", "message"),
    [
        ("mc:order=odd", "--seed=1", "order is 'odd'; choose every, until-error or bisect"),
        ("mc:estimate=odd", "--seed=1", "estimate is 'odd'; choose soft or hard"),
        ("mc:after-error=odd", "--seed=1", "after-error is 'odd'; choose unlabelled or wrong"),
        ("mc:own-outcome=odd", "--seed=1", "own-outcome is 'odd'"),
        ("mc", "--dialect=odd", "--dialect is 'odd'; choose openai or vllm"),
    ],
)
def test_wrong_options_are_named(data, tmp_path, method, option, message):
    asked = words(data, "http://127.0.0.1:9/v1", tmp_path / "l.jsonl", option, method=method)
    assert message in refused(*asked)


@pytest.mark.parametrize("order", ["until-error", "bisect"])
def test_every_way_labels_every_step_or_says_why(data, tmp_path, order):
    with serve(answer) as running:
        method = f"mc:estimate=hard,order={order},after-error=wrong,rollouts=4"
        good(*words(data, running.url, tmp_path / "l.jsonl", method=method))
    labels = read(tmp_path / "l.jsonl")
    assert {label.source for label in labels} == {"monte-carlo-hard"}
    assert {label.value for label in labels} == {0.0, 1.0}


def test_trees_are_grown_resumed_and_taken_apart(data, tmp_path):
    out = tmp_path / "trees"
    problems = tmp_path / "p.jsonl"
    write_records(problems, list(read_records(data / "p.jsonl", Problem))[:30])
    with serve(answer) as running:
        method = "tree:rollouts=4,search-limit=3,estimate=hard"
        command = ["label", problems, method, "--policy", "solver", "--base-url", running.url, *GRADING]
        stopped = incomplete(*command, "--out", out, "--token-budget=1")
        assert "stopped by the budget after 1 of 30 pieces" in stopped.err
        asked = len(running.seen)
        ended = good(*command, "--out", out)
        resumed = len(running.seen) - asked
        good(*command, "--out", tmp_path / "once")
        assert len(running.seen) - asked - resumed == asked + resumed
    names = ("traces", "labels", "pairs", "trees")
    for name in names:
        assert (out / f"{name}.jsonl").read_bytes() == (tmp_path / "once" / f"{name}.jsonl").read_bytes()
    traces = {trace.id: trace for trace in read_records(out / "traces.jsonl", Trace)}
    labels = read(out / "labels.jsonl")
    assert {label.trace_id for label in labels} == set(traces)
    assert all(label.step < len(traces[label.trace_id].steps) for label in labels)
    assert f"30 trees, {len(labels)} labels, " in ended.err
    assert "pairs" not in ended.err
    assert "problems not searched: " in ended.err
    pairs = list(read_records(out / "pairs.jsonl", StepPair))
    assert pairs
    assert all(pair.better_value > pair.worse_value for pair in pairs)


def test_a_dry_run_of_trees_takes_lengths_from_traces(data, tmp_path):
    command = [
        "label",
        data / "p.jsonl",
        "tree:search-limit=2",
        f"--policy={POLICY}",
        "--out",
        tmp_path / "x",
    ]
    command += ["--dry-run", *GRADING]
    bound = "at most 540 prefixes of 8 rollouts each"  # 60 problems, 2 searches of at most 4 probes, the root
    without = good(*command)
    assert without.out.startswith(bound)
    assert "at most 129,600 written, in 540 requests" in without.out
    ended = good(*command, "--traces", data / "t.jsonl")
    assert ended.out.startswith(bound)
    assert ended.out != without.out
