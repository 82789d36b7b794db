"""Edits of any text: spans fit, other steps stay as they were, the same edit gives the same trace."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_scorers import lab_material

from benchmarks.worlds.digits.audits import digits_right
from surefoot.evaluation.audits import EDITS
from surefoot.evaluation.audits.cases import Case
from surefoot.evaluation.audits.changes import EDIT_CHANGES
from surefoot.evaluation.audits.perturbations import (
    DELETE_PREMISE,
    MERGE,
    PASTED_ANSWER,
    REORDER,
    REPETITION,
    SPLIT,
    SWAP_NUMBER,
    cores,
)
from surefoot.evaluation.audits.process import last_step_only, shuffled_steps
from surefoot.protocols import ProblemTrace
from surefoot.records import Message, Problem, Step, Trace

WORDS = st.text(st.sampled_from("ab 0127 .,=+\n\té→"), max_size=25)
GROWTH = {
    "empty step": 1,
    "filler": 1,
    "repetition": 1,
    "split step": 1,
    "merged steps": -1,
    "deleted premise": -1,
}


@st.composite
def traces(draw, tiling=False):
    """A text with steps, and with something before, between and after them unless they tile it."""
    gap = st.just("") if tiling else st.sampled_from(["", "\n\n", " ", "## "])
    text, steps = draw(gap), []
    for part in draw(st.lists(WORDS, min_size=1, max_size=6)):
        steps.append(Step(start=len(text), end=len(text) + len(part)))
        text += part + draw(gap)
    return Trace(problem_id="p", text=text, steps=tuple(steps))


def texts(trace):
    return [trace.step_text(number) for number in range(len(trace.steps))]


def every(trace):
    return [(edit, place, edit.at(trace, place)) for edit in EDITS for place in edit.places(trace)]


@given(traces())
def test_steps_that_an_edit_does_not_touch_keep_their_text(trace):
    old = texts(trace)
    for edit, _, found in every(trace):
        new = texts(found.trace)
        assert len(found.origin) == len(new)
        assert all(new[at] == old[origin] for at, origin in enumerate(found.origin) if origin is not None)
        kept = [origin for origin in found.origin if origin is not None]
        assert kept == sorted(set(kept)), edit.name
        assert len(new) - len(old) == GROWTH.get(edit.name, 0)
        assert 0 <= found.step < len(new)
        assert 0 <= found.was < len(old)


@given(traces())
def test_an_edit_is_a_function_of_the_trace_and_never_gives_the_trace_back(trace):
    ids = Counter()
    for edit, place, found in every(trace):
        assert edit.at(trace, place) == found
        assert found.trace.id != trace.id
        assert (found.trace.text, found.trace.steps) != (trace.text, trace.steps), edit.name
        assert found.trace.meta == {"edit": edit.name, "of": trace.id}
        assert found.trace.outcome is None
        ids[found.trace.id, edit.name] += 1
    assert max(ids.values(), default=1) == 1 or len(set(texts(trace))) < len(trace.steps)


@given(traces(tiling=True))
def test_steps_that_tile_their_text_tile_it_after_the_edit(trace):
    for _, _, found in every(trace):
        ends = [0, *(step.end for step in found.trace.steps)]
        assert [step.start for step in found.trace.steps] == ends[:-1]
        assert ends[-1] == len(found.trace.text)


@given(traces())
def test_what_stands_before_the_edited_steps_stays(trace):
    for edit, place, found in every(trace):
        if edit is PASTED_ANSWER:
            continue
        before = trace.text[: trace.steps[place].start]
        assert found.trace.text.startswith(before)


@given(traces())
def test_merging_and_splitting_leave_the_text_alone(trace):
    for edit in (MERGE, SPLIT):
        for place in edit.places(trace):
            found = edit.at(trace, place)
            assert found.trace.text == trace.text
            assert found.trace.steps[found.step].end == trace.steps[found.was].end


@given(traces())
def test_splitting_cuts_between_words_and_loses_none(trace):
    for place in SPLIT.places(trace):
        found = SPLIT.at(trace, place)
        first, second = texts(found.trace)[place : place + 2]
        assert first + second == trace.step_text(place)
        assert first.strip()
        assert second.strip()
        assert first[-1].isspace()


@pytest.mark.parametrize(
    ("text", "changed"),
    [("Step 1: Let x be 4.", "4"), ("2. Add 3.5", "3"), ("step 12) done", None), ("3.5 + 1 = 4.5", "4")],
)
def test_the_number_that_only_counts_a_step_is_not_swapped(text, changed):
    trace = Trace(problem_id="p", text=text, steps=(Step(start=0, end=len(text)),))
    places = SWAP_NUMBER.places(trace)
    assert bool(places) == (changed is not None)
    for place in places:
        after = SWAP_NUMBER.at(trace, place).trace.text
        [at] = [k for k, (a, b) in enumerate(zip(text, after, strict=True)) if a != b]
        assert (at, text[at]) == (text.rindex(changed), changed)


@given(traces())
def test_a_swapped_number_is_one_other_digit(trace):
    for place in SWAP_NUMBER.places(trace):
        found = SWAP_NUMBER.at(trace, place)
        pairs = [(a, b) for a, b in zip(trace.text, found.trace.text, strict=True) if a != b]
        assert len(pairs) == 1
        assert all(character.isdigit() for character in pairs[0])


@given(traces())
def test_repetition_is_undone_by_deletion(trace):
    for place in REPETITION.places(trace):
        doubled = REPETITION.at(trace, place).trace
        if place + 1 in DELETE_PREMISE.places(doubled):
            back = DELETE_PREMISE.at(doubled, place + 1).trace
            assert (back.text, back.steps) == (trace.text, trace.steps)


@given(traces())
def test_reordering_twice_gives_the_trace_back(trace):
    for place in REORDER.places(trace):
        once = REORDER.at(trace, place).trace
        assert place in REORDER.places(once)
        twice = REORDER.at(once, place).trace
        assert (twice.text, twice.steps) == (trace.text, trace.steps)


@given(traces(), st.integers(0, 99))
def test_shuffling_keeps_all_steps_and_the_last_in_place(trace, seed):
    found = shuffled_steps(trace, np.random.default_rng(seed))
    old, new = ([cores(text)[1] for text in texts(t)] for t in (trace, found))
    assert Counter(old) == Counter(new)
    assert new[-1] == old[-1]
    assert (new != old) == (len(set(old[:-1])) > 1)
    assert texts(last_step_only(trace)) == texts(trace)[-1:]


def test_numbers_are_found_in_mathematics_and_results_are_what_is_swapped():
    text = "So $12 + 3 = 15$, a1 stays. Hence \\boxed{2.5}"
    trace = Trace(problem_id="p", text=text, steps=(Step(start=0, end=26), Step(start=26, end=len(text))))
    first, second = (SWAP_NUMBER.at(trace, place).trace for place in SWAP_NUMBER.places(trace))
    assert first.text.startswith("So $12 + 3 = 1")
    assert first.text[14] != "5"
    assert second.text.startswith(text[:-4])
    assert second.text[-4] != "2"


def test_edits_do_not_apply_to_chats():
    chat = Trace(
        problem_id="p",
        messages=(Message(role="assistant", content="1 + 1 = 2"),) * 3,
        steps=tuple(Step(start=0, end=9, message=n) for n in range(3)),
    )
    case = Case(item=ProblemTrace(problem=Problem(text="?", id="p"), trace=chat), good=(True,) * 3)
    rng = np.random.default_rng(0)
    assert all(change.make(case, [case], rng) is None for change in EDIT_CHANGES)
    with pytest.raises(ValueError, match="is a chat"):
        MERGE.at(chat, 0)


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.name)
def test_in_the_lab_kinds_mean_what_they_say(edit):
    broken = []
    for case in lab_material(40, wrong=(False,)):
        trace, problem = case.item.trace, case.item.problem
        assert digits_right(problem, trace)
        broken += [not digits_right(problem, edit.at(trace, place).trace) for place in edit.places(trace)]
    assert len(broken) >= 40
    if edit.kind == "style":
        assert not any(broken)
    else:  # two equal lines in a row can change places, and nothing else may survive
        assert np.mean(broken) > 0.95
