"""Monte Carlo labels against closed forms, and the accounting of what they cost."""

from __future__ import annotations

import asyncio
from math import sqrt

import pytest
from watched_policy import spent

from benchmarks.worlds.digits.solver import NoisySolver
from benchmarks.worlds.digits.world import Difficulty, generate_problems, parse_problem, worked_solution
from benchmarks.worlds.scripted import ScriptedPolicy
from surefoot.answers import AnswerChecker, Grader
from surefoot.errors import LabelError, PolicyError
from surefoot.labelling.monte_carlo import MonteCarloLabeller, MonteCarloSettings
from surefoot.protocols import Labeller, ProblemTrace
from surefoot.records import Message, Problem, Trace, Usage
from surefoot.segment import Line, segment_trace

GRADER = Grader(checker=AnswerChecker("exact"), styles=("phrase",))
PROBLEM = Problem(text="How many?", answer="3")
SOFT = MonteCarloSettings()
ONE = MonteCarloSettings(estimate="hard", rollouts=1)


def item(text, problem=PROBLEM, **fields):
    trace = Trace(**({"problem_id": problem.id, "text": text, "finish_reason": "stop"} | fields))
    return ProblemTrace(problem=problem, trace=segment_trace(trace, Line()))


def labels(policy, *items, rule=SOFT, **options):
    labeller = MonteCarloLabeller(**({"policy": policy, "grader": GRADER, "settings": rule} | options))
    assert isinstance(labeller, Labeller)
    return asyncio.run(labeller.label(items))


def replies(*answers, **fields):
    return ScriptedPolicy(lambda request, sample: f"Answer: {answers[sample]}", **fields)


@pytest.mark.parametrize(
    ("answers", "hard", "soft"),
    [("331", 1, 2 / 3), ("121", 0, 0), ("333", 1, 1), ("113", 1, 1 / 3), ("3", 1, 1), ("1", 0, 0)],
)
def test_hard_and_soft_estimates(answers, hard, soft):
    for estimate, expected in (("hard", hard), ("soft", soft)):
        n = len(answers)
        rule = (
            MonteCarloSettings(estimate="hard", rollouts=n, first=n)
            if estimate == "hard"
            else MonteCarloSettings(rollouts=n)
        )
        ((first, _),) = labels(replies(*answers), item("Hm.\nAnswer: 3\n"), rule=rule)
        assert first.value == pytest.approx(expected)
        assert (first.evidence.successes, first.evidence.trials) == (answers.count("3"), len(answers))
        assert (first.kind, first.source, first.step) == ("value", f"monte-carlo-{estimate}", 0)
        assert first.evidence.rater == "scripted"


def one_line_items():
    """A hundred prefixes from which one right operation is all that is missing."""
    easy = Difficulty(min_operations=1, max_operations=1, operations="+")
    problems = generate_problems(100, seed=0, difficulty=easy)
    return [
        item(f"Now {parse_problem(problem.text).start}\n", problem, finish_reason="length")
        for problem in problems
    ]


@pytest.mark.parametrize(("n", "expected"), [(4, 0.185), (8, 0.337)])
def test_a_prefix_that_rarely_succeeds_is_often_labelled_good(n, expected):
    policy, items = NoisySolver(error_rate=0.95), one_line_items()
    found = [
        label.value
        for seed in range(10)
        for (label,) in labels(
            policy, *items, rule=MonteCarloSettings(estimate="hard", rollouts=n), seed=seed
        )
    ]
    chance = 1 - 0.95**n
    assert chance == pytest.approx(expected, abs=5e-4)
    assert abs(sum(found) / len(found) - chance) < 4 * sqrt(chance * (1 - chance) / len(found))


def test_the_hard_estimate_is_one_where_the_soft_is_positive_and_grows_with_n():
    policy, items = NoisySolver(error_rate=0.8), one_line_items()
    values = {
        (rule.estimate, rule.rollouts): [label.value for (label,) in labels(policy, *items, rule=rule)]
        for n in (2, 8)
        for rule in (MonteCarloSettings(estimate="hard", rollouts=n), MonteCarloSettings(rollouts=n))
    }
    for n in (2, 8):
        assert values["hard", n] == [float(value > 0) for value in values["soft", n]]
    # the first two of eight rollouts are the two
    assert all(more >= fewer for fewer, more in zip(values["hard", 2], values["hard", 8], strict=True))
    assert sum(values["hard", 8]) > sum(values["hard", 2])


def test_soft_estimates_are_unbiased():
    rollouts, solver = 32, NoisySolver(error_rate={"+": 0.1, "-": 0.2, "*": 0.3})
    items = []
    for problem in generate_problems(12, seed=1, difficulty=Difficulty(min_operations=3, max_operations=6)):
        lines = worked_solution(parse_problem(problem.text)).splitlines(keepends=True)
        wrong = f"{lines[0][:-2]}{(int(lines[0][-2]) + 5) % 10}\n"
        items += [item("".join(lines), problem), item(wrong + "Now 3\n", problem)]
    excess, variance, prefixes = 0.0, 0.0, 0
    rule = MonteCarloSettings(rollouts=rollouts)
    for one, found in zip(items, labels(solver, *items, rule=rule), strict=True):
        for label in found[:-1]:
            value = solver.value(one.problem, one.trace.prefix(label.step + 1))
            assert label.value == pytest.approx(value, abs=5 * sqrt(0.25 / rollouts))
            excess += label.value - value
            variance += value * (1 - value) / rollouts
            prefixes += 1
    assert prefixes > 50
    assert abs(excess) < 4 * sqrt(variance)


def test_shared_prefixes_are_rolled_out_and_paid_for_once():
    asked = []

    def answer(request, sample):
        asked.append((request.prompt, request.prefix))
        return "Answer: 3"

    other = Problem(text="And now?", answer="3")
    items = (
        item("One.\nTwo.\nAnswer: 3\n"),
        item("One.\nTwo!\nAnswer: 1\n"),
        item("One.\nTwo.\nAnswer: 3\n", sample=1),
        item("One.\nAnswer: 3\n", other),
    )
    found = labels(
        ScriptedPolicy(answer), *items, rule=MonteCarloSettings(estimate="hard", rollouts=2, first=2)
    )
    prefixes = [(PROBLEM.text, "One.\n"), (PROBLEM.text, "One.\nTwo.\n"), (PROBLEM.text, "One.\nTwo!\n")]
    prefixes.append((other.text, "One.\n"))
    assert asked == [(f"{text}\n", prefix) for text, prefix in prefixes for _ in range(2)]
    calls = [[label.evidence.usage.calls for label in labelled] for labelled in found]
    assert calls == [[1, 1, 0], [0, 1, 0], [0, 0, 0], [1, 0]]
    assert spent(found) == Usage(
        prompt_tokens=sum(len(f"{text} {prefix}".split()) for text, prefix in prefixes),
        completion_tokens=4 * 2 * 2,
        calls=4,
    )
    assert [label.trace_id for label in found[2]] == [items[2].trace.id] * 3


def test_a_finished_trace_ends_in_its_own_outcome():
    policy = replies("1", "1")
    for outcome, text in ((True, "Hm.\nAnswer: 3\n"), (False, "Hm.\nAnswer: 1\n")):
        for known in (outcome, None):
            ((_, last),) = labels(
                policy, item(text, outcome=known), rule=MonteCarloSettings(estimate="hard", rollouts=2)
            )
            assert (last.value, last.evidence.successes, last.evidence.trials) == (outcome, outcome, 1)
            assert last.evidence.usage == Usage()


def test_an_outcome_that_was_judged_before_is_kept():
    ((_, last),) = labels(replies("1"), item("Hm.\nThree it is.\n", outcome=True), rule=ONE)
    assert last.value == 1.0


def test_the_own_ending_counts_even_where_another_trace_goes_on():
    done, longer = item("Hm.\nAnswer: 3\n", outcome=True), item("Hm.\nAnswer: 3\nOr not.\n", outcome=True)
    (ending, open_prefix) = labels(replies("1"), done, longer, rule=ONE)
    assert [label.value for label in ending] == [0, 1]
    assert [label.value for label in open_prefix] == [0, 0, 1]
    assert [label.evidence.usage.calls for label in ending + open_prefix] == [1, 0, 0, 1, 0]


def test_a_trace_cut_off_by_its_length_is_rolled_out_to_its_end():
    ((first, last),) = labels(
        replies("3", "1"),
        item("Hm.\nWell", finish_reason="length", outcome=False),
        rule=MonteCarloSettings(rollouts=2),
    )
    assert (first.value, last.value, last.evidence.trials) == (0.5, 0.5, 2)


def test_failed_rollouts_leave_the_label_unknown():
    policy = replies("3", "3", fail=lambda request: "server: down" if "Two" in request.prefix else None)
    ((first, second, last),) = labels(
        policy, item("One.\nTwo.\nAnswer: 3\n"), rule=MonteCarloSettings(estimate="hard", rollouts=2)
    )
    assert (first.value, last.value) == (1, 1)
    assert (second.value, second.reason) == (None, "rollouts failed: server: down")
    assert second.evidence.usage == Usage(calls=1)  # a failed call is a call


class Undecided(AnswerChecker):
    """Cannot compare an answer that is a question mark."""

    def equal(self, pairs):
        return [None if "?" in pair[0] else pair[0] == pair[1] for pair in pairs]


def test_answers_that_cannot_be_compared_are_no_better_than_wrong_ones():
    grader = Grader(checker=Undecided("exact"), styles=("phrase",))
    policy, rule = replies("3", "?", "1", "?"), MonteCarloSettings(rollouts=4)
    ((first, last),) = labels(policy, item("Hm.\nAnswer: ?\n"), rule=rule, grader=grader)
    assert (first.value, first.evidence.successes, first.evidence.trials) == (0.25, 1, 4)
    assert (last.value, last.reason) == (None, "the trace's own answer could not be compared")
    ((first, _),) = labels(replies("?"), item("Hm.\nAnswer: 3\n"), rule=ONE, grader=grader)
    assert (first.value, first.reason) == (None, "no rollout's answer could be compared")
    assert first.evidence.usage.calls == 1


def test_a_rollout_without_an_answer_fails():
    policy = ScriptedPolicy(lambda request, sample: ["No idea.", "Answer: 3"][sample])
    ((first, _),) = labels(policy, item("Hm.\nAnswer: 3\n"), rule=MonteCarloSettings(rollouts=2))
    assert first.value == 0.5


def test_an_answer_already_in_the_prefix_counts():
    policy = ScriptedPolicy(lambda request, sample: "")
    ((_, second, _),) = labels(policy, item("Hm.\nAnswer: 3\nDone.\n"), rule=ONE)
    assert second.value == 1


def test_a_trace_without_steps_has_no_labels():
    assert labels(replies("3"), item("", error="server: down")) == [[]]
    assert labels(replies("3")) == []


def test_a_policy_that_may_begin_anew_is_refused():
    """Its rollouts would call a wrong first step as good as the problem."""

    class Vendor:
        name = "vendor"

        async def sample(self, requests):
            raise AssertionError(requests)

    with pytest.raises(PolicyError, match="'vendor' does not say whether it can continue"):
        labels(Vendor(), item("2 * 3 = 7.\nThe answer is 7."))


def test_what_cannot_be_labelled_is_an_error():
    with pytest.raises(LabelError, match="has no 'answer'"):
        labels(replies("3"), item("Hm.\n", Problem(text="How many?")))
    chat = Trace(problem_id=PROBLEM.id, messages=(Message(role="assistant", content="3"),))
    with pytest.raises(LabelError, match="has messages"):
        labels(replies("3"), ProblemTrace(problem=PROBLEM, trace=chat))
