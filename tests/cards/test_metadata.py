"""Metadata of a card, read back by a reader of YAML."""

from __future__ import annotations

import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from surefoot.cards.render import yaml_lines

TRICKY = ("yes", "NO", "null", "~", "1e5", "2020-01-01", "a: b", "a #b", "a:", "- a", "{a}", "'", "x'y", "")
TEXTS = st.text(st.characters(exclude_categories=("Cs",))) | st.sampled_from(TRICKY)
LEAVES = TEXTS | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
KEYS = st.sampled_from(("license", "model-index", "tags"))


def mappings(values: st.SearchStrategy) -> st.SearchStrategy:
    return st.dictionaries(KEYS, values, min_size=1)


@given(mappings(LEAVES | mappings(LEAVES) | st.lists(LEAVES | mappings(LEAVES), min_size=1)))
@example({"tags": [{"license": ["a\n\x7f\u2028"], "tags": 1e-7}]})
def test_metadata_is_yaml(data):
    assert yaml.safe_load("\n".join(yaml_lines(data))) == data
