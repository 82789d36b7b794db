"""Examples on disk: those of the list, made once, whole or absent."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from benchmarks.worlds.digits.checkpoints import build_tokenizer
from surefoot.errors import TrainingError
from surefoot.io import write_records
from surefoot.io.tables import LabelledTraces, join_traces, open_table
from surefoot.models.encoding import Encoding
from surefoot.records import Problem, Step, StepLabel, Trace
from surefoot.segment import cut_trace
from surefoot.training import examples as example_file
from surefoot.training.batches import batch_order
from surefoot.training.config import LoopConfig, StepTargets
from surefoot.training.examples import (
    DropCounter,
    Example,
    ExampleFile,
    build_examples,
    stored_examples,
    write_examples,
)

TARGETS = StepTargets()
ENCODING = Encoding(max_length=40)


def labelled(folder: Path, count: int, value: float | None = None) -> LabelledTraces:
    """Solutions of one to six steps, some without labels, some beyond the context; labels of random values,
    or all of ``value``."""
    rng = random.Random(0)
    problems = [Problem(text=f"Start with {n % 10}. Add {n // 10 % 10}.\n" * (n + 1)) for n in range(3)]
    traces, labels = [], []
    for number in range(count):
        steps = rng.randint(1, 6)
        line = f"{number % 10} + 1 = {number // 10 % 10}\n"
        trace = Trace(
            problem_id=problems[number % 3].id,
            text=line * steps,
            sample=number,
            steps=tuple(Step(start=at * len(line), end=(at + 1) * len(line)) for at in range(steps)),
        )
        traces.append(trace)
        labels += [
            StepLabel(
                trace_id=trace.id,
                step=step,
                value=max(0.0, rng.random() - 0.2) if value is None else value,
                kind="value",
                source="test",
            )
            for step in range(steps + (number == 5))
            if number % 7
        ]
    write_records(folder / "p.jsonl", problems)
    write_records(folder / "t.jsonl", traces)
    write_records(folder / "l.jsonl", labels)
    joined, _ = join_traces(
        open_table(folder / "p.jsonl", Problem), open_table(folder / "t.jsonl", Trace), cut_trace
    )
    return joined.labelled(open_table(folder / "l.jsonl", StepLabel))


def test_equal_targets_are_refused_when_they_are_read_again_too(tmp_path: Path) -> None:
    items, tokenizer = labelled(tmp_path, 50, value=1.0), build_tokenizer()
    for _ in range(2):
        with pytest.raises(TrainingError, match=r"targets are 1$"):
            stored_examples(tmp_path / "examples", tokenizer, ENCODING, items, TARGETS)


def test_a_file_holds_what_the_list_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(example_file, "_ROWS", 8)
    items, tokenizer = labelled(tmp_path, 50), build_tokenizer()
    expected = build_examples(tokenizer, ENCODING, list(items), TARGETS)
    stored = stored_examples(tmp_path / "examples", tokenizer, ENCODING, items, TARGETS)
    assert list(stored.examples) == list(expected.examples)
    assert stored.examples[3:20] == list(expected.examples)[3:20]
    assert [stored.examples[at] for at in (0, 7, 8, -1)] == [expected.examples[at] for at in (0, 7, 8, -1)]
    assert (stored.dropped, stored.first) == (expected.dropped, expected.first)
    assert set(stored.dropped) == {
        "traces without a usable label",
        "labelled steps beyond the context",
        "labels of steps that the trace does not have",
    }
    config = LoopConfig(epochs=2, batch_size=3)
    assert batch_order(stored.examples, config) == batch_order(expected.examples, config)


def test_a_second_start_reads_the_file_and_other_settings_make_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    items, tokenizer = labelled(tmp_path, 21), build_tokenizer()
    folder, ids = tmp_path / "examples", sorted(set(items.problem_ids()))

    def examples(items: LabelledTraces = items, targets: StepTargets = TARGETS) -> list[Example]:
        return list(stored_examples(folder, tokenizer, ENCODING, items, targets).examples)

    first = examples()
    hard = examples(targets=StepTargets(hard=True))
    assert len(list(folder.iterdir())) == 2
    monkeypatch.setattr(example_file, "encode_examples", None)  # nothing is encoded any more
    assert examples() == first != hard
    assert examples(targets=StepTargets(hard=True)) == hard
    halves = [items.of_problems(problems.__contains__) for problems in ({ids[0]}, {ids[1]})]
    assert len(halves[0]) == len(halves[1])
    for half in halves:
        with pytest.raises(TypeError):
            examples(half)


def test_a_write_that_ends_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    def fail():
        yield Example(trace_id="a", ids=(1, 2), positions=(1,), targets=(0.5,))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_examples(tmp_path / "x.arrow", fail(), DropCounter())
    assert list(tmp_path.iterdir()) == []


def test_nothing_to_train_on_is_said_at_every_start(tmp_path: Path) -> None:
    items = labelled(tmp_path, 1)
    for _ in range(2):
        with pytest.raises(TrainingError, match="nothing to train on: 1 traces without a usable label"):
            stored_examples(tmp_path / "examples", build_tokenizer(), ENCODING, items, TARGETS)


def test_numbers_come_back_as_they_were(tmp_path: Path) -> None:
    rng = random.Random(1)
    made = [
        Example(
            trace_id="τ" * number,
            ids=tuple(rng.randrange(2**31) for _ in range(rng.randint(1, 9))),
            positions=tuple(range(number + 1)),
            targets=tuple(rng.random() for _ in range(number + 1)),
        )
        for number in range(12)
    ]
    write_examples(tmp_path / "x.arrow", made, DropCounter())
    read = ExampleFile(tmp_path / "x.arrow")
    assert list(read) == made
    assert read.lengths.tolist() == [one.length for one in made]
