"""Ids and texts that were seen before."""

from collections import Counter
from contextlib import closing

from hypothesis import given
from hypothesis import strategies as st

from surefoot.io.tables import Seen


@given(st.lists(st.text(max_size=3).filter(lambda text: text.isprintable())))
def test_it_counts_as_a_counter_does(ids):
    before: Counter[str] = Counter()
    with closing(Seen()) as seen:
        for id_ in ids:
            assert seen.times(id_) == before[id_]
            before[id_] += 1


def test_more_ids_than_are_counted_in_memory():
    ids = [*map(str, range(40_000)), "x" * 1000, "x" * 1001]
    with closing(Seen()) as seen:
        for before in range(3):
            assert {seen.times(id_) for id_ in ids} == {before}
