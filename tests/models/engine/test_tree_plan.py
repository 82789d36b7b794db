"""Intervals of a pass against the ancestors of each token, by brute force."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.models.engine.tree_attention import TokenBranch, key_intervals, row_blocks


def branches_of(sequences: list[tuple[int, ...]], known: int) -> list[TokenBranch]:
    """The branches of sorted sequences in one pass; the first ``known`` tokens of each were read before."""
    slots: dict[tuple[int, ...], int] = {}
    branches, before = [], ()
    for ids in sorted(set(sequences)):
        prefixes = [ids[: end + 1] for end in range(len(ids))]
        start = next((at for at, prefix in enumerate(prefixes) if prefix not in slots), len(ids))
        start = max(start, min(known, len(ids)))
        path = np.array([slots.setdefault(prefix, len(slots)) for prefix in prefixes])
        if start < len(ids):
            jump = ids[:start] != before[:start]
            branches.append(TokenBranch(ids=ids, path=path, start=start, stop=len(ids), jump=jump))
            before = ids
    return branches


@settings(deadline=None, max_examples=100)
@given(
    sequences=st.lists(
        st.lists(st.integers(0, 2), min_size=1, max_size=9).map(tuple), min_size=1, max_size=9
    ),
    known=st.integers(0, 4),
    size=st.integers(1, 5),
    free=st.sampled_from([0.0, 10.0, 1e9]),
)
def test_a_row_sees_its_ancestors_and_itself(sequences, known, size, free):
    branches = branches_of(sequences, known)
    if not branches:
        return
    keys = key_intervals(branches)
    ancestors = [
        set(branch.path[: at + 1].tolist()) for branch in branches for at in range(branch.start, branch.stop)
    ]
    assert keys.rows == len(ancestors)
    rows = np.arange(keys.rows)[:, None]
    seen = (keys.begin <= rows) & (rows < keys.end)
    for row, expected in enumerate(ancestors):
        found = keys.slots[seen[row]].tolist()
        assert sorted(found) == sorted(expected)
    blocks = list(row_blocks(branches, size=size, free=free))
    assert [row for first, last, _ in blocks for row in range(first, last)] == list(range(keys.rows))
    for first, last, alone in blocks:
        some = keys.of_rows(first, last)
        assert set(some) == set(np.flatnonzero(seen[first:last].any(0)))
        if alone:
            assert set(keys.slots[some]) == set(keys.slots[keys.begin >= first][: last - first])
