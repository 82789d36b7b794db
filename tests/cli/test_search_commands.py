"""``surefoot search`` on files, with a tiny random policy and reward model, in this process."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path

import pytest
import torch
from command_line import good, incomplete, refused
from openai_server import Body, Reply, completion, serve

from surefoot.cli.options import PolicySettings
from surefoot.cli.search import RunSearch, StepSettings
from surefoot.errors import RunError
from surefoot.io import read_records, write_records
from surefoot.models.card import CheckpointCard
from surefoot.models.encoding import Encoding
from surefoot.models.engine.causal import IncrementalScorer
from surefoot.models.kinds.classifier import RewardModel
from surefoot.models.kinds.derived import CalibratedScorer, IsotonicMap, fit_calibration, save_calibration
from surefoot.models.loading import load_prm
from surefoot.policies.devices import Loading
from surefoot.protocols import SampleRequest, Sampling
from surefoot.records import Problem
from surefoot.search import SEARCHES, BeamSearch, Rebase, SearchResult, search_of
from surefoot.search.caches import remembering_policy, remembering_scorer
from surefoot.search.saved_tree import SavedTree, draw_text
from surefoot.search.trust import STEPS, HeldOutStep

SHORT = ("--max-tokens=12", "--step-tokens=6", "--max-steps=2", "--extract=last_number", "--equality=exact")
MEMORY = 1_000_000
METHODS = [
    "best-of-n:rule=weighted_vote,n=3,batch=2",
    "majority:n=3",
    "beam:width=2,expand=2",
    "dvts:n=4,expand=2",
    "rebase:n=4,temperature=0.5",
    "particle:n=3,sweeps=2",
    "mcts:paths=3,expand=2",
    "resample:n=2,threshold=0.6,retries=2,budget=5",
    "revise:n=2,rounds=1,threshold=0.6,keep=true",
]


@pytest.fixture(scope="module")
def files(tmp_path_factory, lab_base, lab_items) -> Path:
    """Problems, and a reward model that was not trained."""
    folder = tmp_path_factory.mktemp("search")
    write_records(folder / "p.jsonl", [item.problem for item in lab_items])
    card = CheckpointCard(
        kind="prm",
        aggregation="min",
        score_means="correctness",
        label_source="test",
        base="tiny",
        encoding=Encoding(template="{problem}\n", max_length=128),
    )
    model = RewardModel.initialise(lab_base, card)
    torch.manual_seed(1)
    torch.nn.init.normal_(model.head.weight)
    model.save(folder / "prm")
    return folder


@pytest.fixture
def search(files, lab_base):
    """The words of a search; only majority has no reward model."""

    def words(method: str, *given: object) -> list[object]:
        prm = [] if method.startswith("majority") else ["--prm", files / "prm"]
        return ["search", files / "p.jsonl", method, "--policy", lab_base, *prm, *SHORT, *given]

    return words


def results(path: Path) -> list[SearchResult]:
    return list(read_records(path, SearchResult))


@pytest.mark.parametrize("method", METHODS)
def test_a_file_of_problems_is_searched_and_its_trees_are_kept(method, search, files, tmp_path):
    out, trees = tmp_path / "r.jsonl", tmp_path / "t.jsonl"
    ended = good(*search(method, "--out", out, "--trees", trees, "--in-flight=2"))
    problems = list(read_records(files / "p.jsonl", Problem))
    found, saved = results(out), list(read_records(trees, SavedTree))
    assert [result.problem_id for result in found] == [problem.id for problem in problems]
    assert [tree.problem_id for tree in saved] == [problem.id for problem in problems]
    assert {result.method for result in found} == {method}
    majority = method.startswith("majority")
    for result, tree in zip(found, saved, strict=True):
        assert tree.size == result.counts.nodes
        path = "".join(tree.nodes[place].text for place in tree.chosen)
        assert path == ("" if result.chosen is None else result.candidates[result.chosen].text)
        assert bool(result.scores) == (not majority and bool(result.candidates))
    assert sum(result.usage.verifier_tokens for result in found) > 0 or majority
    assert "12 trees written" in ended.err
    assert not list(tmp_path.glob("*.work"))


def table_rows(printed):
    """Rows of the printed table: a name, two spaces or more, a value."""
    return dict(re.findall(r"^ *(\S.*?)  +(\S.*?)$", printed, re.M))


def test_the_table_says_what_the_results_say(search, tmp_path):
    ended = good(*search("beam", "--out", tmp_path / "r.jsonl"))
    found = results(tmp_path / "r.jsonl")
    rows = table_rows(ended.err)
    right = sum(bool(result.outcome) for result in found) / len(found)
    assert rows["chosen answer is correct"].startswith(f"{100 * right:.1f}% [")
    any_right = sum(any(trace.outcome for trace in result.candidates) for result in found) / len(found)
    assert rows["a candidate is correct (pass@"].startswith(f"{100 * any_right:.1f}% [")
    for row, name in {
        "tokens per problem": "tokens",
        "read by the policy": "prompt_tokens",
        "written by the policy": "completion_tokens",
        "read or written by the verifier": "verifier_tokens",
    }.items():
        assert rows[row] == f"{sum(getattr(result.usage, name) for result in found) / len(found):.0f}"
    for row, name in {
        "steps sampled": "sampled",
        "merged with equal steps": "merged",
        "capped": "capped",
    }.items():
        assert rows[row] == str(sum(getattr(result.counts, name) for result in found))
    assert rows["problems without a solution"] == str(sum(result.chosen is None for result in found))


def test_an_answer_that_is_not_known_is_no_wrong_answer(search, files, lab_items, tmp_path):
    problems = [Problem(text=item.problem.text) for item in lab_items[:2]]
    write_records(tmp_path / "p.jsonl", problems)
    words = search("beam", "--out", tmp_path / "r.jsonl")
    words[words.index(files / "p.jsonl")] = tmp_path / "p.jsonl"
    rows = table_rows(good(*words).err)
    unknown = sum(result.outcome is None for result in results(tmp_path / "r.jsonl"))
    assert unknown
    assert rows["problems of unknown outcome"] == str(unknown)


def test_a_search_that_was_stopped_goes_on_to_the_same_bytes(search, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    for folder, budget in ((whole, []), (parts, ["--token-budget=1"])):
        out = ("--out", folder / "r.jsonl", "--trees", folder / "t.jsonl", "--in-flight=1")
        ended = (incomplete if budget else good)(*search("beam", *out, *budget))
    assert "stopped by the budget after 1 of 3 pieces" in ended.err
    assert len(results(parts / "r.jsonl")) == 4
    assert len(list(read_records(parts / "t.jsonl", SavedTree))) == 4
    assert sorted(path.name for path in parts.glob("*.work")) == ["r.jsonl.work", "t.jsonl.work"]
    assert "holds another run" in refused(*search("beam:width=3", *out))
    good(*search("beam", *out))
    assert sorted(path.name for path in parts.iterdir()) == ["r.jsonl", "r.jsonl.manifest.json", "t.jsonl"]
    for name in ("r.jsonl", "t.jsonl"):
        assert (parts / name).read_bytes() == (whole / name).read_bytes()


def test_equal_seeds_give_equal_results_whatever_is_in_flight(search, tmp_path):
    for name, flight, seed in (("a", 12, 0), ("b", 12, 0), ("c", 3, 0), ("d", 12, 1)):
        good(
            *search("rebase", "--out", tmp_path / name / "r.jsonl", f"--in-flight={flight}", f"--seed={seed}")
        )
    a, b, c, d = ((tmp_path / name / "r.jsonl").read_bytes() for name in "abcd")
    assert a == b
    assert a != d
    texts = [[t.text for r in results(tmp_path / n / "r.jsonl") for t in r.candidates] for n in "ac"]
    assert texts[0] == texts[1]
    assert c


def test_results_go_through_a_pipe(search):
    ended = good(*search("majority:n=1"))
    lines = ended.out.splitlines()
    assert [SearchResult.model_validate_json(line).method for line in lines] == ["majority:n=1"] * 12
    assert "search majority:n=1: 12 problems" in ended.err


def test_a_problem_given_twice_is_searched_once(search, files, tmp_path):
    problems = list(read_records(files / "p.jsonl", Problem))
    write_records(tmp_path / "p.jsonl", [*problems[:2], problems[0]])
    words = search("majority:n=1", "--out", tmp_path / "r.jsonl")
    words[words.index(files / "p.jsonl")] = tmp_path / "p.jsonl"
    assert "1 problem comes again: left out" in good(*words).err
    assert [r.problem_id for r in results(tmp_path / "r.jsonl")] == [p.id for p in problems[:2]]


def test_a_server_writes_the_steps(files, lab_items, tmp_path):
    def answer(body: Body) -> Reply:
        begun = body["prompt"].count("\n")
        text = "so\n" if begun < 3 else f"the answer is {begun}"
        return Reply(payload=completion([text] * body.get("n", 1), **says), wait_s=0.05)

    says: dict[str, None] = {}
    with serve(answer) as server:
        words = [
            "search",
            files / "p.jsonl",
            "beam:width=1,expand=2",
            "--prm",
            files / "prm",
            "--policy",
            "m",
        ]
        words += ["--base-url", server.url, "--separator", r"\n", *SHORT[:1]]
        said = refused(*words, "--out", tmp_path / "vague.jsonl")
        assert "does not say whether a step or the solution ended" in said
        says["stop_reason"] = None  # as vLLM says that the sequence ended
        trees = tmp_path / "t.jsonl"
        ended = ("--extract=phrase,last_number", "--equality=exact", "--trees", trees)
        good(*words, "--out", tmp_path / "r.jsonl", *ended)
    assert server.most_in_flight > 1, "problems are searched concurrently"
    assert len(list(read_records(trees, SavedTree))) == len(results(tmp_path / "r.jsonl")) > 1
    assert all(body["stop"] == ["\n"] for body in server.bodies)
    found = results(tmp_path / "r.jsonl")
    assert {result.answer for result in found} == {"3"}
    assert all(result.candidates[0].text == "so\nso\nthe answer is 3" for result in found)


def test_a_server_that_is_gone_ends_the_search_and_keeps_nothing_wrong(files, tmp_path):
    with serve(lambda body: Reply(status=400, payload={"error": {"message": "no such model"}})) as server:
        words = ["search", files / "p.jsonl", "majority:n=1", "--policy", "m"]
        said = refused(*words, "--base-url", server.url, "--out", tmp_path / "r.jsonl")
    assert "no problem of this piece has a solution" in said
    assert "start the same command again" in said
    assert not (tmp_path / "r.jsonl").exists()


@pytest.mark.parametrize(
    ("method", "given", "said"),
    [
        ("beam", ["--trees=t.txt"], "--trees t.txt: unknown ending"),
        ("beam", ["--trees=r.jsonl", "--out=r.jsonl"], "--trees and --out are both r.jsonl"),
        ("beam", ["--out=r.txt"], "--out r.txt: unknown ending"),
        (
            "beam",
            ["--aggregate=worst"],
            "--aggregate is 'worst'; choose min, product, last, mean, sum or verdicts",
        ),
        ("dvts:n=5", [], "dvts:n=5': 'n' must be a multiple of 'expand', not 5 and 4"),
        ("mcts:paths=down", [], "paths"),
        ("beam", ["--prm=nowhere"], "nowhere"),
        ("beam", ["--calibrated"], "calibration.json"),
        ("beam", ["--separator="], "--separator"),
        ("beam", ["--dialect=vllm"], "--dialect vllm is for a server"),
        ("beam", ["--template=x"], "{problem}"),
        ("beam", ["--remember=2XB"], "--remember: could not interpret byte unit: XB"),
        ("majority", ["--remember=-1"], "--remember: could not parse value and unit"),
    ],
)
def test_what_makes_no_search_is_refused(method, given, said, search, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert said in refused(*search(method, *given))
    assert not list(tmp_path.iterdir())


def test_only_majority_needs_no_reward_model(files):
    assert "give --prm or --verifier" in refused(
        "search", files / "p.jsonl", "beam:rule=majority", "--policy=lab"
    )


def test_models_in_this_process_remember_what_they_read(files, lab_base, lab_items):
    policy = PolicySettings(name=str(lab_base)).open(chat=False, loading=Loading())
    request = SampleRequest(prompt="Start with 5.\n", sampling=Sampling(max_tokens=4))
    for one, tokens in ((policy, 1), (remembering_policy(policy, MEMORY), 0)):
        asyncio.run(one.sample([request]))
        [again] = asyncio.run(one.sample([request]))
        assert (again.usage.prompt_tokens > 1) == bool(tokens)
        assert one.name == lab_base.name
    scorer = remembering_scorer(load_prm(files / "prm"), MEMORY)
    assert isinstance(scorer, IncrementalScorer)
    first = scorer.score_traces(lab_items)
    again = scorer.score_traces(lab_items)
    assert sum(record.usage.verifier_tokens for record in first) > 0
    assert sum(record.usage.verifier_tokens for record in again) == 0


def test_a_calibrated_model_remembers_too(files, lab_items, tmp_path):
    shutil.copytree(files / "prm", tmp_path / "prm")
    fitted = fit_calibration("isotonic", [0.2, 0.4, 0.6, 0.8], [0, 1, 0, 1], split="test", trace_ids=["a"])
    save_calibration(tmp_path / "prm", fitted)
    scorer = remembering_scorer(load_prm(tmp_path / "prm", calibrated=True), MEMORY)
    assert isinstance(scorer, CalibratedScorer)
    assert isinstance(scorer.scorer, IncrementalScorer)
    plain = load_prm(tmp_path / "prm", calibrated=True).score_traces(lab_items)
    for record, expected in zip(scorer.score_traces(lab_items), plain, strict=True):
        assert record.scores == pytest.approx(expected.scores, abs=1e-5)


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("512", 512), ("2GB", 2 * 10**9), ("1.5GiB", 3 * 2**29), ("500 mb", 500 * 10**6)],
)
def test_sizes_are_bytes(text, size):
    assert (
        RunSearch(problems="p", method="beam", policy=PolicySettings(name="lab"), remember=text).remember
        == size
    )


def test_memory_is_bounded_in_bytes(files, lab_base, lab_items):
    policy = remembering_policy(
        PolicySettings(name=str(lab_base)).open(chat=False, loading=Loading()), 100_000
    )
    # 2 layers x 2 heads of keys and values x (8 + 8) wide x 4 bytes = 256 a token
    assert policy._known.max_tokens == 100_000 // 256
    plain = load_prm(files / "prm")
    scorer = remembering_scorer(plain, 12_000)
    scorer.score_traces(lab_items)
    pool = scorer._cache.pool
    each = sum(rows.nbytes for rows in pool._rows.values()) / pool.capacity
    assert each == 256 + 32 * 4  # and the last hidden state
    assert 0 < scorer.cached_tokens * each <= 12_000
    assert remembering_scorer(plain, 0) is plain
    assert remembering_scorer(plain, 100) is plain  # no room for one token


def test_without_memory_the_same_is_found_for_more_tokens(search, tmp_path):
    good(*search("beam", "--out", tmp_path / "kept.jsonl"))
    good(*search("beam", "--remember=0", "--out", tmp_path / "plain.jsonl"))
    kept, plain = results(tmp_path / "kept.jsonl"), results(tmp_path / "plain.jsonl")
    assert [r.answer for r in kept] == [r.answer for r in plain]
    for part in ("prompt_tokens", "verifier_tokens"):
        assert sum(getattr(r.usage, part) for r in kept) < sum(getattr(r.usage, part) for r in plain)


def test_steps_are_written_as_asked():
    cut = StepSettings(separator=r"\n\n", segment="sentence", max_steps=7)
    base = RunSearch(problems="p", method="beam", policy=PolicySettings(name="lab"))
    steps = base.model_copy(update={"steps": cut, "sampling": Sampling(temperature=0.5)}).how(None)
    assert steps.separator == "\n\n"
    assert (steps.sampling.temperature, steps.max_steps) == (0.5, 7)
    assert steps.cut("One. Two.") == [(0, 5), (5, 9)]
    assert base.how(None).cut("a\nb") == [(0, 2), (2, 3)]


def test_trees_are_drawn(search, tmp_path):
    trees = tmp_path / "t.jsonl"
    good(*search("beam:width=2,expand=2", "--out", tmp_path / "r.jsonl", "--trees", trees))
    saved = list(read_records(trees, SavedTree))
    drawn = good("inspect", trees).out
    assert drawn == "".join(f"{draw_text(tree)}\n" for tree in saved[:3])
    both = good("inspect", trees, search("majority")[1]).out
    assert both.startswith(drawn)
    assert "12  problems" in both


def test_words_make_a_search():
    assert search_of("beam") == BeamSearch()
    assert search_of("beam:width=8,retire_finished=false") == BeamSearch(width=8, retire_finished=False)
    assert search_of("rebase:temperature=0.5") == Rebase(temperature=0.5)
    assert search_of("best-of-n:batch=4").batch == 4
    assert set(SEARCHES) == {text.partition(":")[0] for text in METHODS}


def test_another_spelling_of_a_search_is_the_same_run(search, tmp_path):
    out = ("--out", tmp_path / "r.jsonl", "--in-flight=1")
    incomplete(*search("beam:width=2,expand=2", *out, "--token-budget=1"))
    good(*search("beam:expand=2,retire_finished=no,width=02", *out))
    assert {result.method for result in results(tmp_path / "r.jsonl")} == {"beam:width=2,expand=2"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("bean", "unknown search 'bean'; did you mean 'beam'?"),
        ("optimal", "unknown search 'optimal'; choose from best-of-n, majority, beam"),
        ("beam:depth=3", "unknown setting of beam 'depth'; did you mean 'width'?"),
        ("beam:width=much", "width"),
        ("beam:width=0", "width: Input should be greater than or equal to 1"),
        ("beam:name=x", "unknown setting of beam 'name'; choose from rule, width"),
    ],
)
def test_words_that_make_no_search_are_refused(words, said):
    with pytest.raises(RunError, match=re.escape(said)):
        search_of(words)


def test_a_verifier_revises_and_one_that_knows_hidden_tests_is_refused(files, lab_base, tmp_path):
    words = ["search", files / "p.jsonl", "revise", "--policy", lab_base, *SHORT]
    good(*words, "--verifier", "equations", "--out", tmp_path / "r.jsonl")
    assert len(results(tmp_path / "r.jsonl")) == 12
    assert "reveal hidden tests; use visible-tests" in refused(*words, "--verifier", "python-tests")
    assert "give --prm or --verifier" in refused(*words)


def test_a_verifier_guides_a_search(files, lab_base, tmp_path):
    words = ["search", files / "p.jsonl", "beam:width=2,expand=2", "--policy", lab_base, *SHORT]
    good(*words, "--verifier", "equations", "--out", tmp_path / "r.jsonl")
    assert {record.scorer for result in results(tmp_path / "r.jsonl") for record in result.scores} == {
        "equations"
    }


def test_a_threshold_that_stops_the_draws_says_how_often_a_wrong_solution_reaches_it(
    search, files, lab_base, tmp_path
):
    words = ["search", files / "p.jsonl", "best-of-n:n=3,batch=1,stop_at=0.4", "--policy", lab_base, *SHORT]

    def said(*more: object) -> str:
        ended = good(*words, "--prm", tmp_path / "prm", *more)
        return re.search(r"wrong held-out solutions that reach stop_at: (.+)$", ended.err, re.M)[1]

    shutil.copytree(files / "prm", tmp_path / "prm")
    assert said() == "unknown, the reward model lacks held-out scores"
    steps = [("a", 0.9, True), ("a", 0.2, False), ("b", 0.5, False), ("c", 0.8, True), ("d", 0.6, False)]
    write_records(
        tmp_path / "prm" / STEPS,
        [
            HeldOutStep(problem_id=trace, trace_id=trace, step=k, score=score, good=good_, characters=3)
            for k, (trace, score, good_) in enumerate(steps)
        ],
    )
    assert said().startswith("66.7% [")  # b and d of a, b and d
    fitted = fit_calibration("platt", [0.2, 0.4, 0.6, 0.8], [0, 1, 0, 1], split="t", trace_ids=["a"])
    below = fitted.model_copy(update={"map": IsotonicMap(scores=(0.55, 0.6), values=(0.1, 0.5))})
    save_calibration(tmp_path / "prm", below)
    assert said("--calibrated").startswith("33.3% [")  # of the three only d reaches it once calibrated
    right = HeldOutStep(problem_id="a", trace_id="a", step=0, score=0.9, good=True, characters=3)
    write_records(tmp_path / "prm" / STEPS, [right])
    assert said() == "unknown, none is wrong"
    assert "stop_at" not in good(*search("best-of-n:n=2", "--out", "-")).err
