"""Choices among the runs of a task, compared with counting by hand."""

from __future__ import annotations

import itertools
import random

import pytest
from command_line import good, refused

from surefoot.evaluation.run_choice import FREE_RULES, TaskRuns, choice_verdict, compare_choices
from surefoot.io import read_records, write_records
from surefoot.records import Message, Step, StepLabel, StepScores, ToolCall, Trace


def run(task: str, number: int, *, calls: str, outcome: bool | None, text: str = "done") -> Trace:
    """A run with a call for each letter of ``calls``: ``f`` fails, ``s`` succeeds."""
    messages = [Message(role="user", content=task)]
    for at, letter in enumerate(calls):
        call = ToolCall(id=str(at), name="bash", arguments='{"command":"ls"}')
        messages += [
            Message(role="assistant", tool_calls=(call,)),
            Message(role="tool", content="x", tool_call_id=str(at), error=letter == "f"),
        ]
    messages.append(Message(role="assistant", content=text))
    steps = (Step(start=0, end=len(text), message=len(messages) - 1),)
    return Trace(
        problem_id=task, sample=number, messages=tuple(messages), steps=steps, outcome=outcome, policy="p"
    )


def test_free_rules_count_what_they_say() -> None:
    costs = {name: rule(run("t", 0, calls="sfs", outcome=True)) for name, rule in FREE_RULES.items()}
    assert costs == {"shortest": 3 * 17 + 4, "fewest_steps": 4, "fewest_failures": 1, "last_call": 0}
    assert FREE_RULES["last_call"](run("t", 0, calls="sf", outcome=True)) == 1
    assert FREE_RULES["last_call"](run("t", 0, calls="", outcome=True)) == 1  # unknown is not a success


def test_shares_are_the_mean_over_every_way_to_break_ties() -> None:
    rng = random.Random(0)
    tasks = [
        TaskRuns(
            costs={name: [rng.randint(0, 2) for _ in range(4)] for name in ("mine", *FREE_RULES)},
            correct=[rng.random() < 0.5 for _ in range(4)],
        )
        for _ in range(12)
    ]
    found = {choice.name: choice.solved.value for choice in compare_choices(tasks, draws=50).choices}
    for name in ("mine", *FREE_RULES):
        shares = []
        for task in tasks:
            orders = itertools.permutations(range(4))
            chosen = [min(order, key=task.costs[name].__getitem__) for order in orders]  # the first of equals
            shares.append(sum(task.correct[at] for at in chosen) / len(chosen))
        assert found[name] == pytest.approx(sum(shares) / len(shares))
    assert found["random"] == pytest.approx(sum(sum(task.correct) for task in tasks) / 48)
    assert found["oracle"] == pytest.approx(sum(any(task.correct) for task in tasks) / 12)


@pytest.mark.parametrize(("gain", "tasks", "better"), [(1.0, 12, True), (1.0, 9, False), (0.0, 12, False)])
def test_only_a_lower_bound_above_the_best_free_choice_is_better(
    gain: float, tasks: int, better: bool
) -> None:
    group = [run("t", 0, calls="ss", outcome=True), run("t", 1, calls="s", outcome=False)]
    costs = {"judge": [-gain, float("inf")]} | {name: list(map(r, group)) for name, r in FREE_RULES.items()}
    runs = TaskRuns(costs=costs, correct=[trace.outcome is True for trace in group])
    result = compare_choices([runs] * tasks, draws=50)
    judge = result.choices[0]
    assert (result.best_free, judge.name) == ("random", "judge")  # no free choice solves more than half
    expected = "better than random" if better else "whether this is better than random is not decided"
    if gain:
        assert choice_verdict(result, "judge").short == expected
    else:  # scored before unscored
        assert judge.solved.value == 1.0


def write_runs(folder, outcome: bool | None = True) -> list[Trace]:
    runs = [
        run(f"t{task}", number, calls="s" * (number + 1), outcome=outcome and number == 1)
        for task in range(12)
        for number in range(3)
    ]
    write_records(folder / "runs.jsonl", runs)
    return runs


def test_select_shows_a_choice_among_runs_beside_the_free_ones(tmp_path) -> None:
    runs = write_runs(tmp_path)
    words = ("select", tmp_path / "runs.jsonl", "--out", tmp_path / "chosen.jsonl")
    said = " ".join(good(*words).err.split())
    assert "shortest lowers accuracy from 33% (random) to 0%: worse than random." in said
    chosen = list(read_records(tmp_path / "chosen.jsonl", Trace))
    assert [trace.sample for trace in chosen] == [0] * 12
    scores = [StepScores(trace_id=trace.id, scorer="s", scores=(float(trace.sample == 1),)) for trace in runs]
    write_records(tmp_path / "scores.jsonl", scores)
    said = good(*words, "--scores", tmp_path / "scores.jsonl", "--force").err
    assert "best_of_n by s raises accuracy from 33% (random) to 100%: better than random." in said
    assert all(name in said for name in (*FREE_RULES, "random", "oracle"))
    said = good(*words, "--rule", "shortest", "--among", tmp_path / "scores.jsonl", "--force").err
    assert "shortest, among the best raises accuracy from 33% (random) to 100%: better than random." in said


def test_select_says_how_many_outcomes_are_unknown(tmp_path) -> None:
    runs = write_runs(tmp_path)
    unknown = [run.model_copy(update={"outcome": None}) if run.sample == 0 else run for run in runs]
    write_records(tmp_path / "runs.jsonl", [*unknown[:-3], *(run for run in runs[-3:])])
    said = good("select", tmp_path / "runs.jsonl", "--out", tmp_path / "chosen.jsonl").err
    assert "11 traces without an outcome, unlike others of the problem: counted as wrong" in " ".join(
        said.split()
    )


def test_labels_choose_like_scores_and_unknown_ones_never_win(tmp_path) -> None:
    runs = write_runs(tmp_path)
    values = {0: None, 1: 1.0, 2: -1.0}
    labels = [
        StepLabel(
            trace_id=trace.id,
            step=0,
            kind="correctness",
            value=values[trace.sample],
            reason="not judged",
            source="judge",
        )
        for trace in runs
    ]
    write_records(tmp_path / "labels.jsonl", labels)
    words = ("--scores", tmp_path / "labels.jsonl", "--out", tmp_path / "chosen.jsonl")
    good("select", tmp_path / "runs.jsonl", *words)
    chosen = list(read_records(tmp_path / "chosen.jsonl", Trace))
    assert [trace.sample for trace in chosen] == [1] * 12
    write_records(tmp_path / "labels.jsonl", [label for label in labels if label.value is None])
    assert "no label has a value of these traces" in refused(
        "select", tmp_path / "runs.jsonl", *words, "--force"
    )


def test_rules_for_runs_refuse_solutions(tmp_path) -> None:
    write_records(tmp_path / "texts.jsonl", [Trace(problem_id="p", text="1", steps=(Step(start=0, end=1),))])
    words = ("select", tmp_path / "texts.jsonl", "--out", tmp_path / "chosen.jsonl")
    assert "is for runs of an agent" in refused(*words, "--rule", "shortest")
    assert "needs --scores" in refused(*words)


def test_a_check_before_the_choice_drops_refuted_solutions_alone_and_majority_gets_it_too(tmp_path) -> None:
    """Per problem: two right answers of a confirmed step, three wrong ones that are refuted, and a wrong one
    with two confirmed steps, which is longer and no better for it."""
    answers = {0: "1", 1: "1", 2: "2", 3: "2", 4: "2", 5: "3"}
    verdicts = {0: (1,), 1: (1,), 2: (-1,), 3: (-1,), 4: (1, -1), 5: (1, 1)}
    solutions = [
        Trace(
            problem_id=f"p{problem}",
            sample=sample,
            text="ab",
            steps=(Step(start=0, end=1), Step(start=1, end=2))[: len(verdicts[sample])],
            answer=answer,
            outcome=answer == "1",
        )
        for problem in range(12)
        for sample, answer in answers.items()
    ]
    labels = [
        StepLabel(trace_id=trace.id, step=step, kind="correctness", value=value, source="equations")
        for trace in solutions
        for step, value in enumerate(verdicts[trace.sample])
    ]
    write_records(tmp_path / "traces.jsonl", solutions)
    write_records(tmp_path / "labels.jsonl", labels)
    words = ("select", tmp_path / "traces.jsonl", "--out", tmp_path / "chosen.jsonl")
    checked = (*words, "--among", tmp_path / "labels.jsonl")
    good(*words, "--rule", "majority")
    assert all(trace.answer == "2" for trace in read_records(tmp_path / "chosen.jsonl", Trace))
    said = " ".join(good(*checked, "--rule", "majority", "--force").err.split())
    assert "majority, among the best raises accuracy from 33% (random) to 100%" in said
    assert all(trace.answer == "1" for trace in read_records(tmp_path / "chosen.jsonl", Trace))
    scores = [StepScores(trace_id=t.id, scorer="s", scores=(0.5,) * len(t.steps)) for t in solutions]
    write_records(tmp_path / "scores.jsonl", scores)
    said = " ".join(good(*checked, "--scores", tmp_path / "scores.jsonl", "--force").err.split())
    assert "majority, among the best" in said
    assert "not better than majority, among the best" in said or "not decided" in said
