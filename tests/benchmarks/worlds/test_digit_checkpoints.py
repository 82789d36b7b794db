"""The digit world's tokenizer: nothing lost, nothing unknown, ids that stay."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.worlds.digits.checkpoints import PIECES, SPECIAL, build_tokenizer
from benchmarks.worlds.digits.world import Difficulty, draw_chain, worked_solution

TOKENIZER = build_tokenizer()


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_texts_of_the_world_round_trip(seed):
    rng = np.random.default_rng(seed)
    chain = draw_chain(rng, Difficulty(min_operations=1))
    text = chain.text + "\n" + worked_solution(chain, rng=rng, restate=0.3, slip=0.3)
    ids = TOKENIZER(text)["input_ids"]
    assert ids[0] == TOKENIZER.bos_token_id
    assert TOKENIZER.unk_token_id not in ids
    assert TOKENIZER.decode(ids, skip_special_tokens=True) == text


@settings(deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=20))
def test_any_run_of_pieces_round_trips(pieces):
    ids = TOKENIZER("".join(pieces), add_special_tokens=False)["input_ids"]
    assert TOKENIZER.unk_token_id not in ids
    assert TOKENIZER.decode(ids) == "".join(pieces)


def test_ids_stay_as_they_are():
    # the shipped checkpoints were trained on these
    assert TOKENIZER("7 + 3 = 0\n")["input_ids"] == [1, 11, 19, 7, 22, 4, 23]
    assert TOKENIZER("Start with 1. Add 2. Subtract 3. Multiply by 4.\n")["input_ids"] == [
        *(1, 14, 5, 15, 6, 16, 7, 17, 8, 18)
    ]
    assert TOKENIZER("9 - 1, no, Now 5 * Answer: 8\n", add_special_tokens=False)["input_ids"] == [
        *(13, 20, 5, 26, 24, 9, 21, 25, 12, 23)
    ]
    assert len(TOKENIZER) == len(SPECIAL) + len(PIECES) == 27


@pytest.mark.parametrize(("name", "number"), [("pad", 0), ("bos", 1), ("eos", 2), ("unk", 3)])
def test_special_tokens(name, number):
    assert getattr(TOKENIZER, f"{name}_token_id") == number


def test_what_is_not_of_the_world_is_unknown():
    assert TOKENIZER("7 ÷ 3", add_special_tokens=False)["input_ids"] == [11, 3, 7]
