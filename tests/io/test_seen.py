"""Ids that came before."""

from collections import Counter
from contextlib import closing

from hypothesis import given
from hypothesis import strategies as st

from surefoot.io.seen import Seen


@given(st.lists(st.text(max_size=3).filter(lambda text: text.isprintable())))
def test_it_counts_as_a_counter_does(ids):
    before: Counter[str] = Counter()
    with closing(Seen()) as seen:
        for one in ids:
            assert seen.times(one) == before[one]
            before[one] += 1
