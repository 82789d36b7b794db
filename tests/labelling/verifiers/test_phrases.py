"""Patterns of words give the matches of ``re.IGNORECASE``, on texts of any case and script."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surefoot.labelling.verifiers.equations import claims, context, facts, reading, step
from surefoot.labelling.verifiers.equations.phrases import Phrases

MODULES = (claims, context, facts, reading, step)
NAMED = {
    name: value for module in MODULES for name, value in vars(module).items() if isinstance(value, Phrases)
}
WORDS = re.findall(r"[A-Za-z']+|\\\W|[0-9]", " ".join(phrases.pattern for phrases in NAMED.values()))
TEXTS = st.lists(st.sampled_from([*WORDS, " ", " ", ".", "=", "\\", "İ", "ı", "ſ", "≡"]), max_size=12).map(
    "".join
)


@pytest.mark.parametrize("name", NAMED)
@given(text=TEXTS)
def test_matches_are_those_of_the_pattern_without_case(name, text):
    phrases = NAMED[name]
    for form in (text, text.upper()):
        expected, match = re.search(phrases.pattern, form, re.IGNORECASE), phrases.search(form)
        assert (expected and (expected.span(), expected[0])) == (match and (match.span(), match[0]))
