"""The noisy solver: its value against enumeration and against its own samples, and its manners."""

from __future__ import annotations

import asyncio
from itertools import product
from math import sqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.worlds.digits.checkpoints import build_tokenizer
from benchmarks.worlds.digits.solver import NoisySolver
from benchmarks.worlds.digits.world import (
    BASE,
    ArithmeticChain,
    apply,
    check_steps,
    generate_problems,
    parse_problem,
)
from surefoot.protocols import Policy, SampleRequest, Sampling
from surefoot.records import Message, Problem, Trace, Usage
from surefoot.segment import Line, segment_trace

CHAIN = ArithmeticChain(start=7, operations=(("+", 3), ("*", 4), ("-", 9)))
PROBLEM = Problem(text=CHAIN.text, answer="1")
PROMPT = CHAIN.text + "\n"
RIGHT = "7 + 3 = 0\n0 * 4 = 0\n0 - 9 = 1\nAnswer: 1\n"
SHORT_CHAINS = st.builds(
    ArithmeticChain,
    start=st.integers(0, 9),
    operations=st.lists(st.tuples(st.sampled_from("+-*"), st.integers(0, 9)), min_size=1, max_size=3).map(
        tuple
    ),
)
RATES = st.fixed_dictionaries({symbol: st.floats(0, 1) for symbol in "+-*"})


def sample(solver, *requests):
    return asyncio.run(solver.sample(requests))


def texts(solver, *requests):
    return [[completion.text for completion in result.completions] for result in sample(solver, *requests)]


def enumerate_value(chain: ArithmeticChain, value: int, done: int, rates) -> float:
    """Sum over every way to write the remaining digits of the chance to write them, if the last is right."""
    rest, total = chain.operations[done:], 0.0
    for written in product(range(BASE), repeat=len(rest)):
        chance, at = 1.0, value
        for (symbol, digit), result in zip(rest, written, strict=True):
            rate = rates[symbol]
            chance *= 1 - rate if result == apply(at, symbol, digit) else rate / 9
            at = result
        total += chance * (at == chain.answer)
    return total


@settings(deadline=None)
@given(SHORT_CHAINS, RATES, st.integers(0, 9), st.integers(0, 2))
def test_value_equals_the_sum_over_every_completion(chain, rates, wrong, done):
    solver, problem = NoisySolver(error_rate=rates), Problem(text=chain.text)
    assert solver.value(problem) == pytest.approx(enumerate_value(chain, chain.start, 0, rates))
    assert solver.value(problem, f"Now {wrong}\n") == pytest.approx(enumerate_value(chain, wrong, 0, rates))
    done = min(done, len(chain.operations))
    prefix, value = "", chain.start
    for symbol, digit in chain.operations[:done]:
        prefix += f"{value} {symbol} {digit} = {wrong}\n"
        value = wrong
    assert solver.value(problem, prefix) == pytest.approx(enumerate_value(chain, value, done, rates))


@pytest.mark.parametrize(
    ("chain", "rate", "expected"),
    [
        (ArithmeticChain(start=1, operations=(("+", 1),)), 0.2, 0.8),
        (
            ArithmeticChain(start=1, operations=(("+", 1),) * 2),
            0.3,
            0.7**2 + 0.3**2 / 9,
        ),  # the second error may undo
        (ArithmeticChain(start=1, operations=(("+", 1), ("*", 0))), 1.0, 0.0),
        (ArithmeticChain(start=1, operations=(("*", 1), ("*", 0))), 0.0, 1.0),
    ],
)
def test_value_in_closed_form(chain, rate, expected):
    assert NoisySolver(error_rate=rate).value(Problem(text=chain.text)) == pytest.approx(expected)


def test_multiplying_forgets_errors():
    solver = NoisySolver(error_rate={"+": 0.0, "-": 0.0, "*": 0.0})
    # 7 + 3 = 5 is wrong, but 5 * 4 and 0 * 4 end in the same digit
    assert [solver.value(PROBLEM, f"7 + 3 = {wrong}\n") for wrong in (0, 5, 6)] == [1.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("prefix", "value"),
    [
        (RIGHT, 1.0),
        ("Answer: 1\n", 1.0),
        ("Answer: 1", 1.0),
        ("Answer: 2\n", 0.0),
        (RIGHT + "Answer: 2\n", 0.0),
        ("7 + 3 =", 0.0),
        ("7 + 3 = 0", 0.0),
        ("Hm.\n", 0.0),
    ],
)
def test_it_stops_after_an_answer_and_after_a_broken_line(prefix, value):
    solver = NoisySolver(error_rate=0.5)
    assert texts(solver, SampleRequest(prompt=PROMPT, prefix=prefix, n=2)) == [["", ""]]
    assert solver.value(PROBLEM, prefix) == value


def test_a_broken_line_further_up_is_passed_over():
    solver = NoisySolver(error_rate=0.0)
    request = SampleRequest(prompt=PROMPT, prefix="Hm.\n7 + 3 = 0\n")
    assert texts(solver, request) == [["0 * 4 = 0\n0 - 9 = 1\nAnswer: 1\n"]]


def test_without_errors_it_writes_the_worked_solution():
    lines = RIGHT.splitlines(keepends=True)
    for cut in range(len(lines)):
        request = SampleRequest(prompt=PROMPT, prefix="".join(lines[:cut]))
        assert texts(NoisySolver(error_rate=0.0), request) == [["".join(lines[cut:])]]


def test_with_errors_only_results_are_wrong():
    (written,) = texts(NoisySolver(error_rate=1.0), SampleRequest(prompt=PROMPT, n=50))
    for text in written:
        trace = segment_trace(Trace(problem_id=PROBLEM.id, text=text), Line())
        assert [verdict.value for verdict in check_steps(PROBLEM, trace)] == [-1, -1, -1, 1]


@pytest.mark.parametrize("prefix", ["", "7 + 3 = 5\n", "7 + 3 = 6\n", "Now 3\n"])
def test_samples_succeed_as_often_as_the_value_says(prefix):
    solver, n = NoisySolver(error_rate={"+": 0.3, "-": 0.1, "*": 0.6}), 2000
    (written,) = texts(solver, SampleRequest(prompt=PROMPT, prefix=prefix, n=n, seed=11))
    value = solver.value(PROBLEM, prefix)
    right = sum(text.endswith("Answer: 1\n") for text in written) / n
    assert abs(right - value) < 4 * sqrt(value * (1 - value) / n)


def test_wrong_digits_are_equally_likely():
    chain, n = ArithmeticChain(start=7, operations=(("+", 3),)), 3000
    (written,) = texts(NoisySolver(error_rate=1.0), SampleRequest(prompt=chain.text, n=n))
    counts = [sum(text.endswith(f"Answer: {digit}\n") for text in written) for digit in range(BASE)]
    assert counts[0] == 0
    sd = sqrt(n * (1 / 9) * (8 / 9))
    assert all(abs(count - n / 9) < 4 * sd for count in counts[1:])


def test_a_sample_depends_on_its_own_request_alone():
    solver = NoisySolver(error_rate=0.5)
    problems = [parse_problem(problem.text) for problem in generate_problems(5, seed=0)]
    requests = [SampleRequest(prompt=chain.text, n=4, seed=seed) for chain in problems for seed in (0, 1)]
    together = sample(solver, *requests)
    assert together == [sample(solver, request)[0] for request in requests]
    assert together == sample(solver, *requests[::-1])[::-1]
    fewer = texts(solver, SampleRequest(prompt=problems[0].text, n=2, seed=0))
    assert fewer[0] == [completion.text for completion in together[0].completions[:2]]
    assert len({completion.text for completion in together[0].completions}) > 1
    assert together[0].completions != together[1].completions


def test_requests_it_cannot_read_fail_alone():
    solver = NoisySolver(error_rate=0.0)
    chat = (Message(role="system", content="Be brief."), Message(role="user", content=PROMPT))
    good, bad, empty = sample(
        solver,
        SampleRequest(prompt=chat),
        SampleRequest(prompt="What is love?"),
        SampleRequest(prompt=(Message(role="system", content=PROMPT),)),
    )
    assert [completion.text for completion in good.completions] == [RIGHT]
    for result in (bad, empty):
        assert (result.completions, result.usage) == ((), Usage())
        assert result.error.startswith("policy: not a problem of the digit world")


def test_stop_texts_and_token_limits():
    solver = NoisySolver(error_rate=0.0)

    def one(**fields):
        (result,) = sample(solver, SampleRequest(prompt=PROMPT, sampling=Sampling(**fields)))
        (completion,) = result.completions
        return completion.text, completion.finish_reason, completion.tokens

    assert one(stop=("Answer", "\n")) == ("7 + 3 = 0\n", "stop", 6)
    assert one(max_tokens=21) == (RIGHT, "stop", 21)
    assert one(max_tokens=20) == (RIGHT[:-1], "length", 20)
    assert one(max_tokens=2) == ("7 + ", "length", 2)
    assert one(max_tokens=0) == ("", "length", 0)
    assert one(stop=("\n",), max_tokens=6) == ("7 + 3 = 0\n", "stop", 6)


def test_tokens_are_counted_as_the_tokenizer_does():
    tokenizer = build_tokenizer()
    request = SampleRequest(prompt=PROMPT, prefix="Well, 7!\n7 + 3 = 0\n", n=3)
    (result,) = sample(NoisySolver(error_rate=0.5), request)

    def count(text):
        return len(tokenizer(text, add_special_tokens=False)["input_ids"])

    assert [c.tokens for c in result.completions] == [count(c.text) for c in result.completions]
    assert result.usage == Usage(
        prompt_tokens=count(PROMPT + request.prefix),
        completion_tokens=sum(c.tokens for c in result.completions),
        calls=1,
    )


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan"), {"+": 0.1}, {"+": 0, "-": 0, "*": 2}])
def test_rates_are_chances(rate):
    with pytest.raises(ValueError, match="error_rate"):
        NoisySolver(error_rate=rate)


def test_it_is_a_policy():
    assert isinstance(NoisySolver(), Policy)
    assert NoisySolver(name="mine").name == "mine"
