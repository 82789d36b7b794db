"""``surefoot advise``: coordinates of traces, and their place on the map."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from command_line import good, refused

from surefoot.evaluation import advise
from surefoot.formats import ImportedTrace
from surefoot.io import write_records
from surefoot.records import Evidence, Step, StepLabel, Trace


def made(
    count: int = 40, *, steps: int = 7, lucky: float = 0.1, raters: Sequence[str] = ("a", "b")
) -> list[ImportedTrace]:
    """Half of the traces have a wrong first step, after which a share is right; raters differ once in ten."""
    items = []
    for number in range(count):
        wrong = number % 2 == 0
        outcome = not wrong or number < lucky * count
        trace = Trace(
            id=f"t{number}",
            problem_id=f"p{number // 4}",
            text="x" * steps,
            steps=tuple(Step(start=at, end=at + 1) for at in range(steps)),
            outcome=outcome,
        )
        labels = tuple(
            StepLabel(
                trace_id=trace.id,
                step=step,
                kind="correctness",
                value=-1.0
                if (wrong and step == 0) != (rater == "b" and step == 6 and number % 3 == 0)
                else 1.0,
                source="people",
                evidence=Evidence(rater=rater),
            )
            for step in range(steps)
            for rater in raters
        )
        items.append(ImportedTrace(problem=None, trace=trace, labels=labels))
    return items


def test_coordinates() -> None:
    found = advise(made(), samples=16, draws=100)
    at = found.coordinates
    assert at["steps per trace"].value.value == 7
    assert at["wrong traces with a right answer"].value.value == pytest.approx(0.1)
    assert 0.02 < at["wrong labels"].value.value < 0.05
    assert at["samples per problem"].value.value == 16
    assert at["accuracy"].value.value == pytest.approx(0.55)
    assert found.cells >= 1
    assert {answer.split(":")[0] for answer in found.answers.values()} <= {"yes", "no", "cannot tell"}


def test_a_missing_field_is_named_and_widens_the_search() -> None:
    one = advise(made(raters=("a",)), samples=16, draws=100)
    assert "another 'rater'" in one.coordinates["wrong labels"].note
    none = advise([ImportedTrace(problem=None, trace=item.trace) for item in made()], samples=16, draws=100)
    assert "'labels'" in none.coordinates["wrong traces with a right answer"].note
    assert none.cells > one.cells > advise(made(), samples=16, draws=100).cells


def test_outside_the_map_it_cannot_tell() -> None:
    found = advise(made(steps=60), draws=100)
    assert "outside the map" in found.coordinates["steps per trace"].note
    assert all("steps per trace lies outside the map" in answer for answer in found.answers.values())


def test_monte_carlo_labels_have_their_own_cells() -> None:
    items = [
        ImportedTrace(
            problem=None,
            trace=item.trace,
            labels=tuple(
                label.model_copy(update={"kind": "value", "value": max(label.value or 0.0, 0.0)})
                for label in item.labels
            ),
        )
        for item in made()
    ]
    assert "Monte Carlo" in advise(items, draws=100).coordinates["wrong labels"].note


def test_command(tmp_path) -> None:
    items = made()
    write_records(tmp_path / "traces.jsonl", [item.trace for item in items])
    write_records(tmp_path / "labels.jsonl", [label for item in items for label in item.labels])
    files = (tmp_path / "traces.jsonl", tmp_path / "labels.jsonl")
    ended = good("advise", *files, "--samples", "16")
    assert "Do step labels pay?" in ended.out
    assert "against an ORM at equal cost:" in ended.out
    found = json.loads(good("advise", *files, "--json").out)
    assert found["coordinates"]["samples per problem"]["value"]["value"] == 4
    assert "'steps'" in refused("advise", tmp_path / "labels.jsonl")
