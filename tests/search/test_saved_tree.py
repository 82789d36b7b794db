"""Trees of searches: saved, read back unchanged, and printed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parquet_files import write_as
from pydantic import ValidationError
from rich.cells import cell_len

from benchmarks.worlds.digits.solver import NoisySolver
from benchmarks.worlds.digits.world import Difficulty, generate_problems, is_line
from benchmarks.worlds.scripted import ScriptedPolicy
from surefoot.answers import AnswerChecker, Grader
from surefoot.io import read_records
from surefoot.records import Problem, StepScores
from surefoot.search.beam import BeamSearch
from surefoot.search.method import SearchResult, run_search
from surefoot.search.saved_tree import SavedNode, SavedTree, draw_text, save_tree, shorten
from surefoot.search.space import Space


@dataclass(frozen=True)
class Lengths:
    """Scores a step by where it ends."""

    name: str = "lengths"

    def score_traces(self, items):
        return [
            StepScores(
                trace_id=item.trace.id,
                scorer=self.name,
                scores=tuple(1 / (1 + step.end % 7) for step in item.trace.steps),
            )
            for item in items
        ]


def searched(search, problems, policy, scorer=None) -> list[tuple[Space, SearchResult, SavedTree]]:
    found = []
    with AnswerChecker("exact") as checker:
        asyncio.run(
            run_search(
                search,
                problems,
                policy,
                scorer,
                grader=Grader(checker=checker, styles=("phrase",)),
                watch=lambda space, result: found.append((space, result, save_tree(space, result))),
            )
        )
    return found


@pytest.fixture(scope="module")
def beams():
    problems = generate_problems(4, seed=3, difficulty=Difficulty(min_operations=2, max_operations=5))
    return searched(BeamSearch(width=2, expand=3), problems, NoisySolver(error_rate=0.3), Lengths())


def test_a_tree_says_what_the_space_knows(beams):
    for space, result, tree in beams:
        prefixes = list(space.tree)
        assert len(tree.nodes) == len(prefixes)
        assert tree.size == result.counts.nodes
        assert sum(node.seen for node in tree.nodes if node.text) <= result.counts.sampled
        for node, prefix in zip(tree.nodes, prefixes, strict=True):
            text, place = "", node.id
            while place:
                text, place = tree.nodes[place].text + text, tree.nodes[place].parent
            assert text == prefix.prefix
            assert (node.seen, node.tokens, node.finish) == (
                prefix.data.count,
                prefix.data.tokens,
                prefix.data.finish,
            )
            value = space.value(prefix)
            assert node.value == (value if value > -float("inf") else None)


def test_the_chosen_path_is_the_chosen_solution(beams):
    for _, result, tree in beams:
        solution = result.candidates[result.chosen]
        assert "".join(tree.nodes[place].text for place in tree.chosen) == solution.text
        assert tree.nodes[tree.chosen[-1]].finish == solution.finish_reason
        assert tree.nodes[tree.chosen[-1]].value == result.values[result.chosen]
        assert (tree.answer, tree.outcome) == (solution.answer, solution.outcome)


def test_a_solution_that_ends_where_another_goes_on_is_told_from_it():
    def answer(request, sample):
        if not request.prefix:
            return "one\n"
        return "" if request.prefix == "one\n" and sample % 2 == 0 else "the answer is 2"

    [(_, result, tree)] = searched(
        BeamSearch(width=4, expand=2, rule="best_of_n"),
        [Problem(text="?")],
        ScriptedPolicy(answer),
        Lengths(),
    )
    ends = [node.id for node in tree.nodes if node.finish]
    assert sorted(tree.nodes[place].text for place in ends) == ["", "the answer is 2"]
    assert tree.chosen[-1] in ends
    assert "".join(tree.nodes[k].text for k in tree.chosen) == result.candidates[result.chosen].text


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".parquet"])
def test_trees_come_back_from_a_file_as_they_were(beams, tmp_path, ending):
    trees = [tree for *_, tree in beams]
    write_as(tmp_path / f"trees{ending}", trees)
    back = list(read_records(tmp_path / f"trees{ending}", SavedTree))
    assert back == trees
    assert [draw_text(tree) for tree in back] == [draw_text(tree) for tree in trees]


def test_without_solution_nothing_is_chosen():
    policy = ScriptedPolicy(lambda request, sample: "x\n", fail=lambda request: "server: gone")
    [(_, _, tree)] = searched(BeamSearch(), [Problem(text="<hard> & long")], policy, Lengths())
    assert (tree.chosen, tree.outcome, len(tree.nodes)) == ((), None, 1)
    assert "no solution" in draw_text(tree)
    assert "▶ " not in draw_text(tree).split("chosen\n")[1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"nodes": []}, "at least 1 item"),
        ({"chosen": [2]}, "node 2 is not a child of node 0"),
        ({"chosen": [7]}, "node 7 is not a child"),
        (
            {"nodes": [{"id": 0, "parent": 0, "depth": 0, "text": ""}]},
            "only the first node has none",
        ),
        ({"nodes": [{"id": 3, "parent": None, "depth": 0, "text": ""}]}, "ids count from 0"),
    ],
)
def test_a_broken_tree_is_refused(change, said):
    whole = tree_of([0, 1]).model_dump() | {"chosen": [1]}
    SavedTree.model_validate(whole)
    with pytest.raises(ValidationError, match=said):
        SavedTree.model_validate(whole | change)


def test_parents_come_first():
    rows = [
        {"id": 0, "parent": None, "depth": 0, "text": ""},
        {"id": 1, "parent": 1, "depth": 1, "text": "a"},
    ]
    with pytest.raises(ValidationError, match="parents come before their children"):
        SavedTree.model_validate(tree_of([0]).model_dump() | {"nodes": rows, "chosen": []})


def tree_of(parents, texts=None, values=None, chosen=()) -> SavedTree:
    """Node k + 1 hangs on ``parents[k]``."""
    texts = texts or [f"step {k}" for k in range(len(parents))]
    values = values or [0.5] * len(parents)
    nodes = [SavedNode(id=0, parent=None, depth=0, text="")]
    for k, parent in enumerate(parents):
        node = SavedNode(
            id=k + 1,
            parent=parent,
            depth=nodes[parent].depth + 1,
            text=texts[k],
            value=values[k],
            score=values[k],
            seen=1,
        )
        nodes.append(node)
    return SavedTree(
        problem_id="p",
        problem="a problem",
        method="beam",
        seed=0,
        answer="1",
        outcome=True,
        nodes=tuple(nodes),
        chosen=chosen,
    )


shapes = st.lists(st.integers(0, 10_000), max_size=40).map(
    lambda draws: [d % (k + 1) for k, d in enumerate(draws)]
)


@given(shapes)
def test_the_text_has_a_line_for_each_step_in_order(parents):
    tree = tree_of(parents)
    lines = draw_text(tree).splitlines()[3:]
    shown = [int(line.rsplit(" ", 1)[1]) for line in lines]
    assert sorted(shown) == list(range(len(parents)))
    branches = [max(line.find("├"), line.find("└")) for line in lines]
    assert branches == [2 * tree.nodes[k + 1].depth for k in shown]
    above = {}
    for k in shown:  # a step comes below its parent, before the next step of its parent's depth
        depth = tree.nodes[k + 1].depth
        assert tree.nodes[k + 1].parent == (above[depth - 1] if depth > 1 else 0)
        above[depth] = k + 1


@given(st.lists(st.text(min_size=1), min_size=1, max_size=8), st.text(min_size=1))
def test_any_text_is_printable_on_one_line_per_step(texts, problem):
    tree = tree_of([0] * len(texts), texts=texts).model_copy(update={"problem": problem})
    assert len(draw_text(tree).split("\n")) == 3 + len(texts) + 1
    assert all(line.isprintable() for line in draw_text(tree).split("\n"))


def test_control_characters_in_a_step_are_replaced():
    text = draw_text(tree_of([0], texts=["alert\x1b[31m"]))
    assert "\x1b" not in text
    assert "alert\ufffd[31m" in text


def test_the_chosen_path_is_marked():
    tree = tree_of([0, 1, 1], values=[0.0, 1.0, None], chosen=(1, 2))
    assert draw_text(tree).splitlines()[3:] == [
        "▶ └ 0.000  step 0",
        "▶   ├ 1.000  step 1",
        "    └ n/a  step 2",
    ]


def test_an_unscored_tree_has_no_numbers():
    tree = tree_of([0, 0], values=[None, None])
    assert draw_text(tree).splitlines()[2:] == ["×sampled, ▶ chosen", "  ├ step 0", "  └ step 1"]


@given(st.text(), st.integers(1, 60))
def test_shortened_text_fits_and_keeps_what_fits(text, columns):
    short = shorten(text, columns)
    assert cell_len(short) <= columns
    plain = " ".join(text.split())
    if plain.isascii() and plain.isprintable():
        assert len(short) == min(len(plain), columns)
        assert short == plain or (
            "…" in short and plain.startswith(short.split("…")[0]) and plain.endswith(short.split("…")[1])
        )


def test_wide_characters_take_two_columns():
    assert shorten("数学题目很长", 7) == "数学…长"
    assert shorten("数学", 4) == "数学"
    assert shorten("a \n\t b", 10) == "a b"


def test_a_long_chain_is_printed():
    tree = tree_of(list(range(2000)), chosen=tuple(range(1, 2001)))
    assert draw_text(tree).count("▶") == 2001


def test_lines_of_the_lab_are_steps(beams):
    for *_, tree in beams:
        assert all(not node.text or is_line(node.text) for node in tree.nodes)
