"""The step tree against plain sets of prefixes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.tree import StepTree, TokenIndex, shared_length

SOLUTIONS = st.lists(st.lists(st.sampled_from(["a\n", "b\n", "ab\n", "\n"]), max_size=5), max_size=12)


@given(SOLUTIONS)
def test_equal_steps_after_equal_steps_are_one_node(solutions):
    tree = StepTree(list)
    ends = [tree.insert(steps) for steps in solutions]
    paths = {tuple(steps[:length]) for steps in solutions for length in range(len(steps) + 1)} | {()}
    nodes = list(tree)
    assert {tuple(step.text for step in node.path()) for node in nodes} == paths
    assert len(nodes) == len(paths)
    for steps, inserted in zip(solutions, ends, strict=True):
        assert [node.text for node in inserted] == steps
        if steps:
            assert inserted[-1].path() == inserted
            assert inserted[-1].prefix == "".join(steps)
        assert tree.insert(steps) == inserted
    assert list(tree) == nodes


@given(SOLUTIONS)
def test_parents_come_before_children_and_these_in_the_order_of_their_making(solutions):
    tree = StepTree(list)
    for steps in solutions:
        tree.insert(steps)
    seen = set()
    for node in tree:
        assert node.parent is None or node.parent in seen
        if node.parent is not None:
            assert (node.depth, node.prefix) == (node.parent.depth + 1, node.parent.prefix + node.text)
            assert node.parent.children[node.text] is node
        seen.add(node)
    for node in seen:
        order = {child: place for place, child in enumerate(tree) if child in node.children.values()}
        assert sorted(order, key=order.__getitem__) == list(node.children.values())


def test_below_a_node():
    tree = StepTree(dict)
    one, two = tree.insert(["One. ", "Two. "])
    (three,) = tree.insert(["Three. "], at=one)
    assert (three.prefix, three.depth, three.path()) == ("One. Three. ", 2, [one, three])
    assert tree.insert([], at=one) == []
    assert tree.root.path() == []
    assert [node.text for node in tree] == ["", "One. ", "Two. ", "Three. "]
    one.data["seen"] = True
    assert two.data == {}


def test_a_step_has_text():
    tree = StepTree(list)
    with pytest.raises(ValueError, match="is empty"):
        tree.insert(["One. ", ""])


@given(*[st.lists(st.integers(0, 1), max_size=9).map(tuple)] * 2)
def test_shared_length(first: tuple[int, ...], second: tuple[int, ...]) -> None:
    size = shared_length(first, second)
    assert first[:size] == second[:size]
    assert size == min(len(first), len(second)) or first[size] != second[size]


SEQUENCES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6).map(tuple), max_size=12)


@given(SEQUENCES, st.lists(st.integers(0, 2), max_size=6).map(tuple))
def test_the_index_finds_the_longest_beginning_and_keeps_no_beginning_of_another(sequences, asked):
    index, kept = TokenIndex(), {}
    for number, ids in enumerate(sequences):
        covered = any(other[: len(ids)] == ids for other in kept)
        assert index.covers(ids) == covered
        if not covered:
            beginnings = [other for other in kept if ids[: len(other)] == other]
            assert index.add(ids, number) == (kept.pop(beginnings[0]) if beginnings else None)
            kept[ids] = number
    assert len(index) == len(kept)
    nearest, common = index.nearest(asked)
    assert common == max((shared_length(other, asked) for other in kept), default=0)
    assert shared_length(nearest, asked) == common
    if common:
        assert index.use(nearest) == kept[nearest]
    for _ in range(len(kept)):
        assert index.drop(index.oldest()) in kept.values()
    assert len(index) == 0
