"""benchmarks/code.py: its rules on samples made by hand, and the inputs that it makes."""

from __future__ import annotations

import random
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

# by its path: the standard library has a module of this name
spec = spec_from_file_location("code_benchmark", Path(__file__).parents[1] / "benchmarks" / "code.py")
bench = sys.modules["code_benchmark"] = module_from_spec(spec)
spec.loader.exec_module(bench)

HASH = "0" * 63


def sample(behaviour: str, examples: int = 0, *, right: bool = False, length: int = 10):
    return bench.Sample(
        length=length, right=right, examples=examples, behaviour=(behaviour,), oracle=(behaviour,)
    )


A, B, ERROR = HASH + "a", HASH + "b", "ValueError: no"
SAMPLES = [
    *(sample(ERROR, length=5) for _ in range(4)),
    *(sample(A, 1) for _ in range(3)),
    *(sample(B, 2, right=True, length=20) for _ in range(2)),
]


@pytest.mark.parametrize(
    ("rule", "share"),
    [
        ("random", 2 / 9),
        ("shortest", 0.0),
        ("examples", 1.0),
        ("majority", 0.0),
        ("clean_majority", 0.0),
        ("agreement", 1.0),  # sqrt(2) * 2 against sqrt(3) * 1
        ("examples_majority", 1.0),
        ("any", 1.0),
    ],
)
def test_rules_choose_as_they_say(rule, share):
    found = bench.accuracy(SAMPLES, bench.RULES[rule], len(SAMPLES), random.Random(0))
    assert found == pytest.approx(share)


def test_a_long_message_of_an_exception_is_no_returned_value():
    message = "ypeError: '<' not supported between instances of 'int' and 'str'"
    assert len(message) == len(A)
    assert sample(A).clean
    assert not sample(message).clean


def test_all_rules_are_equal_for_one_sample():
    found = {name: bench.accuracy(SAMPLES, rule, 1, random.Random(0)) for name, rule in bench.RULES.items()}
    assert len(set(found.values())) == 1


def test_calls_are_read_from_tests_and_varied_in_their_type():
    texts = [
        "assert candidate([1, 2], 'ab') == 3",
        "assert f(x) == 1",
        "not python (",
        "f(True); f([1, 2], 'ab')",
    ]
    assert bench.calls_of(texts, "f") == [[[1, 2], "ab"], [True]]
    rng = random.Random(0)
    for value in (True, 3, 1.5, "abc", [1, "a"], (1, 2), None):
        assert {type(bench.varied(value, rng)) for _ in range(20)} == {type(value)}
