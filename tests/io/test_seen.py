"""Ids that came before."""

from collections import Counter
from contextlib import closing

from hypothesis import given
from hypothesis import strategies as st

from surefoot.io.seen import Seen, SeenByKey


@given(st.lists(st.text(max_size=3).filter(lambda text: text.isprintable())))
def test_it_counts_as_a_counter_does(ids):
    before: Counter[str] = Counter()
    with closing(Seen()) as seen:
        for one in ids:
            assert seen.times(one) == before[one]
            before[one] += 1


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["", "x", "é", "y" * 100]))))
def test_texts_are_known_by_their_key(pairs):
    before = set()
    with closing(SeenByKey()) as seen:
        for pair in pairs:
            assert seen.again(*pair) == (pair in before)
            before.add(pair)
