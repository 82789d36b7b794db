"""Control tokens inside material: broken, whatever the tokenizer, and other text left as it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from published_checkpoints import byte_tokenizer, piece_tokenizer

from surefoot.policies.prompts import ControlTokens, break_control_tokens, special_tokens

SPECIAL = ["<|im_start|>", "<|im_end|>", "<extra_0>", "⟦stop⟧", " <sep>", "<<x"]
TOKENIZER = byte_tokenizer(SPECIAL)


def test_the_special_tokens_of_a_tokenizer_are_found() -> None:
    assert special_tokens(TOKENIZER) == set(SPECIAL)
    assert special_tokens(piece_tokenizer(pad="<pad>")) == {"<unk>", "<s>", "</s>", "<pad>"}
    assert special_tokens(None) == frozenset()


@given(st.lists(st.sampled_from([*SPECIAL, "<", "|", "a", " ", ">", "extra_0>", "é"]), max_size=12))
def test_no_text_is_read_as_a_special_token(pieces: list[str]) -> None:
    text = "".join(pieces)
    broken = break_control_tokens(text, special_tokens(TOKENIZER))
    ids = TOKENIZER(broken, add_special_tokens=False)["input_ids"]
    assert not set(ids) & set(TOKENIZER.all_special_ids)
    assert TOKENIZER.decode(ids) == broken
    assert broken.replace(" ", "") == text.replace(" ", "")


@pytest.mark.parametrize("text", ["x < y and a<b", "[1, 2]", "<div>", "<extra_0>", "f[INST0]", "1 <3 |x|"])
def test_text_that_is_no_control_token_stays(text: str) -> None:
    assert break_control_tokens(text) == text


def test_a_token_of_one_character_stays() -> None:
    assert break_control_tokens("a#b", {"#"}) == "a#b"


def test_spans_of_a_broken_text_by_brute_force() -> None:
    control = ControlTokens({"<s>", "s><", "\n", "  x"}, ["ки", "<m>", "\n"])
    text = "<s><s><s>a ки, ошибки<m>\nки  xб"
    broken = "< s >< s >< s>a к и, ошибки< m>\nк и  xб"
    for start in range(len(text) + 1):
        spans = [(0, start), (start, len(text))]
        shown, [first, second] = control.broken_with_spans(text, spans)
        assert (shown, first[0], first[1], second[1]) == (broken, 0, second[0], len(broken))
        # what is left without the spaces that were put in is what the span held
        assert broken[: first[1]].replace(" ", "") == text[:start].replace(" ", "")
    assert control.broken(broken) == broken
