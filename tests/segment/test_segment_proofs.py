"""Sentences of Rocq and tactics of Lean tile their text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.segment import segmenter


def pieces(name: str, text: str) -> list[str]:
    return [text[start:end] for start, end in segmenter(name).segment(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("intros n. simpl.\n", ["intros n. ", "simpl.\n"]),
        ("- apply Nat.add_comm.\n- auto...\n", ["- apply Nat.add_comm.\n", "- auto...\n"]),
        ("(* a. (* b. *) c. *) auto. Qed.", ["(* a. (* b. *) c. *) auto. ", "Qed."]),
        ('idtac "a. ""b. ". auto.', ['idtac "a. ""b. ". ', "auto."]),
        ("{ left. exact p. }\n{ auto. } Qed.", ["{ left. ", "exact p. }\n", "{ auto. } ", "Qed."]),
        ("exists 1..2. auto", ["exists 1..2. ", "auto"]),
    ],
)
def test_sentences_end_with_a_period_before_white_space(text, expected):
    assert pieces("rocq", text) == expected


def test_a_tactic_of_lean_has_the_deeper_lines_after_it():
    text = "  intro n\n  have h : n = n := by\n    rfl\n\n  -- done\n  omega\n"
    assert pieces("lean", text) == [
        "  intro n\n",
        "  have h : n = n := by\n    rfl\n\n  -- done\n",
        "  omega\n",
    ]


@given(st.text(alphabet='ab .\n"(*){}-/', max_size=60), st.sampled_from(["rocq", "lean"]))
def test_spans_tile_the_text(text, name):
    found = pieces(name, text)
    assert "".join(found) == text or not text.strip()
    assert all(piece.strip() for piece in found)
