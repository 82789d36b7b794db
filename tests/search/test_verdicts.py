"""Verdicts choose: a refuted step loses, an open one changes nothing, more confirmed ones win."""

from __future__ import annotations

import asyncio

import pytest
from command_line import good
from gateway_server import served
from hypothesis import given
from hypothesis import strategies as st
from openai import OpenAI
from toy_search import GRADER, STEPS, chance, problems, random_solver

from benchmarks.worlds.scripted import ScriptedPolicy
from surefoot.io import read_records, write_records
from surefoot.labelling import VerifierLabeller, open_verifier
from surefoot.models.kinds.derived import LabelScorer
from surefoot.protocols import Candidate
from surefoot.records import Problem, StepScores, Trace
from surefoot.scores import trace_score
from surefoot.search import SEARCHES, SELECTORS, run_search
from surefoot.segment import Line, segment_trace

VERDICTS = st.lists(st.sampled_from([0.0, None, 1.0]), min_size=1, max_size=4)
POOL = st.lists(st.tuples(VERDICTS, st.sampled_from(["3", "4", None])), min_size=1, max_size=6)


def record(trace: Trace, scores) -> StepScores:
    return StepScores(
        trace_id=trace.id,
        scorer="checks",
        scores=tuple(scores),
        unscored_reason="no check applies" if None in scores else None,
        reasons=tuple("open" if score is None else f"checked: {score}" for score in scores),
    )


def rank(verdicts, answer) -> tuple[bool, bool, int]:
    """What the documented rule of best-of-N prefers, without arithmetic."""
    return 0.0 not in verdicts, answer is not None, verdicts.count(1.0) if 0.0 not in verdicts else 0


@given(POOL)
def test_best_of_n_chooses_the_first_of_the_highest_rank(pool):
    candidates = [
        Candidate(answer=answer, score=trace_score(verdicts, "verdicts"), refuted=0.0 in verdicts)
        for verdicts, answer in pool
    ]
    ranks = [rank(*entry) for entry in pool]
    assert SELECTORS["best_of_n"].select(candidates) == ranks.index(max(ranks))
    voted = SELECTORS["weighted_vote"].select(candidates)
    assert ranks[voted][0] == max(ranks)[0]


class Checks:
    """Verdicts that follow from the text of each step."""

    name, aggregation = "checks", "verdicts"

    def score_traces(self, items):
        return [
            record(item.trace, [self.verdict(item.trace.step_text(k)) for k in range(len(item.trace.steps))])
            for item in items
        ]

    @staticmethod
    def verdict(text: str) -> float | None:
        draw = chance("verdict", text)
        return 0.0 if draw < 0.25 else None if draw < 0.65 else 1.0


@pytest.mark.parametrize("name", sorted(set(SEARCHES) - {"majority"}))
@pytest.mark.parametrize("rule", ["best_of_n", "weighted_vote"])
def test_no_search_chooses_a_refuted_solution_if_it_has_another(name, rule):
    policy, search = ScriptedPolicy(random_solver()), SEARCHES[name](rule=rule)
    run = run_search(search, problems(12), policy, Checks(), steps=STEPS, grader=GRADER)
    results = asyncio.run(run)
    mixed = 0
    for result in results:
        refuted = [0.0 in scores.scores for scores in result.scores]
        mixed += any(refuted) and not all(refuted)
        assert not refuted[result.chosen] or all(refuted)
        if rule == "best_of_n":
            ranks = [
                rank(list(scores.scores), trace.answer)
                for scores, trace in zip(result.scores, result.candidates, strict=True)
            ]
            assert ranks[result.chosen] == max(ranks)
    assert mixed or name not in ("best_of_n", "dvts", "mcts", "particle"), "some problems had both"


def scorer() -> LabelScorer:
    labeller = VerifierLabeller(verifiers=(open_verifier("equations"),))
    return LabelScorer(labeller, name="equations")


WRONG = "2 + 3 = 6\nThe answer is 6"
OPEN = "Two and three.\nThe answer is 5"
CHECKED = "2 + 3 = 5\nThe answer is 5"


@pytest.mark.parametrize(
    "strategy",
    [
        "best-of-n:n=4",
        "best-of-n:rule=weighted_vote,n=4",
        "beam:width=4,expand=1",
        "dvts:n=8,expand=2",
        "mcts:paths=4",
    ],
)
def test_the_gateway_returns_no_refuted_candidate(strategy):
    def answer(request, sample):
        texts = [WRONG, OPEN, WRONG, WRONG]
        text = texts[(sample + request.seed) % 4]
        if not text.startswith(request.prefix):
            text = OPEN if OPEN.startswith(request.prefix) else WRONG
        return text.removeprefix(request.prefix)

    with (
        served(ScriptedPolicy(answer), scorer()) as site,
        OpenAI(base_url=site.url, api_key="none", max_retries=0) as client,
    ):
        for seed in range(4):
            message = [{"role": "user", "content": "What is 2 + 3?"}]
            reply = client.chat.completions.create(model=strategy, seed=seed, messages=message)
            assert reply.choices[0].message.content == OPEN
            assert reply.surefoot["searches"][0]["finish"] == "chosen"


def test_the_gateway_says_that_no_candidate_has_a_score():
    def answer(request, sample):
        return "Two and three.\nThe answer is 5"

    with (
        served(ScriptedPolicy(answer), scorer()) as site,
        OpenAI(base_url=site.url, api_key="none", max_retries=0) as client,
    ):
        message = [{"role": "user", "content": "What is two and three?"}]
        reply = client.chat.completions.create(model="best-of-n:n=4", messages=message)
        [search] = reply.surefoot["searches"]
        assert search["finish"] == "unscored"
        assert "no candidate has a score" in search["warnings"][0]
        metrics = site.gateway.metrics.text().decode()
        assert 'surefoot_unscored_choices_total{method="best-of-n"} 1.0' in metrics


def traces(*texts: str) -> list[Trace]:
    problem = Problem(text="What is 2 + 3?", answer="5")
    return [
        segment_trace(
            Trace(
                problem_id=problem.id, text=text, sample=k, answer=text.split()[-1], outcome=text[-1] == "5"
            ),
            Line(),
        )
        for k, text in enumerate(texts)
    ]


def select(tmp_path, pool, verdicts, *words) -> tuple[str, str]:
    write_records(tmp_path / "traces.jsonl", pool)
    rows = [record(trace, scores) for trace, scores in zip(pool, verdicts, strict=True)]
    write_records(tmp_path / "scores.jsonl", rows)
    options = ("--scores", tmp_path / "scores.jsonl", "--out", tmp_path / "out.jsonl", *words)
    said = good("select", tmp_path / "traces.jsonl", *options).err
    [chosen] = read_records(tmp_path / "out.jsonl", Trace)
    return chosen.text, said


@pytest.mark.parametrize("rule", ["best_of_n", "weighted_vote"])
def test_the_command_chooses_by_verdicts(tmp_path, rule):
    pool = traces(WRONG, OPEN, CHECKED)
    chosen, _ = select(tmp_path, pool, [(0.0, None), (None, None), (1.0, None)], f"--rule={rule}")
    assert chosen == CHECKED
    (tmp_path / "2").mkdir()
    chosen, said = select(tmp_path / "2", pool[:2], [(0.0, None), (None, None)], f"--rule={rule}")
    assert chosen == OPEN
    assert "1 unscored trace: counted as open" in said


def test_the_command_says_where_nothing_is_scored(tmp_path):
    pool = [*traces(OPEN), Trace(problem_id="other", text="2 + 2 = 4\n", answer="4")]
    pool[1] = segment_trace(pool[1], Line())
    write_records(tmp_path / "traces.jsonl", pool)
    write_records(tmp_path / "scores.jsonl", [record(pool[0], (None, None)), record(pool[1], (1.0,))])
    words = ("--scores", tmp_path / "scores.jsonl", "--out", tmp_path / "out.jsonl")
    assert "1 problem of 2 without a scored trace" in good("select", tmp_path / "traces.jsonl", *words).err


def test_the_search_command_says_where_nothing_is_scored():
    policy = ScriptedPolicy(lambda request, sample: "so\nThe answer is 5")
    search = SEARCHES["best-of-n"](n=3)
    [result] = asyncio.run(run_search(search, problems(1), policy, scorer(), steps=STEPS, grader=GRADER))
    assert result.finish == "unscored"
    assert set(result.values) == {0.5}


def test_the_command_says_where_majority_voting_is_better(tmp_path):
    pool = [
        segment_trace(
            Trace(problem_id=f"p{p}", text=f"{p}: {answer}", sample=k, answer=answer, outcome=answer == "5"),
            Line(),
        )
        for p in range(40)
        for k, answer in enumerate(["6", "5", "5", "5"])
    ]
    rows = [
        StepScores(trace_id=trace.id, scorer="s", scores=(0.9 if trace.answer == "6" else 0.1,))
        for trace in pool
    ]
    write_records(tmp_path / "traces.jsonl", pool)
    write_records(tmp_path / "scores.jsonl", rows)
    files = [tmp_path / name for name in ("traces.jsonl", "scores.jsonl", "out.jsonl")]
    said = " ".join(good("select", files[0], "--scores", files[1], "--out", files[2]).err.split())
    assert "best_of_n by s lowers accuracy from 75% (random) to 0%: worse than majority (100%)." in said
