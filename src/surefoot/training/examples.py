"""Labelled traces and pairs of rival steps as token ids with targets in [0, 1]."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from surefoot.errors import TrainingError
from surefoot.io.atomic import atomic_path
from surefoot.io.tables import LabelledTraces, OnDisk
from surefoot.labels import as_target
from surefoot.models.encoding import EncodedTrace, Encoding, Window, encode_traces, windows_of
from surefoot.models.engine.tensor_shards import content_key
from surefoot.protocols import LabelledTrace, ProblemTrace, Segmenter
from surefoot.records import LabelKind, Problem, Step, StepPair, Trace
from surefoot.training.config import OutcomeTargets, StepTargets

_ENCODED_TOGETHER = 1024
"""Traces that go through the tokenizer together."""
_NEUTRAL: Mapping[str, float | None] = {"good": 1.0, "bad": 0.0, "drop": None, "class": 0.5}


@dataclass(frozen=True, kw_only=True)
class Example:
    """One trace ready for training: token ids, and read-out positions with their targets.

    A pair has a ``worse`` trace, which parts from this one at its last step; its only target is the chance
    that this one is the better.
    """

    trace_id: str
    ids: tuple[int, ...]
    positions: tuple[int, ...]
    targets: tuple[float, ...]
    """Of the loss's terms."""
    worse: Example | None = None

    @property
    def parts(self) -> tuple[Example, ...]:
        """What the model reads."""
        return (self, self.worse) if self.worse else (self,)

    @property
    def length(self) -> int:
        """Tokens of the longer part."""
        return max(len(part.ids) for part in self.parts)


@dataclass(frozen=True, kw_only=True)
class ExampleSet:
    """Examples, and a count of everything that was left out, by reason."""

    examples: Sequence[Example]
    dropped: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)
    """Id of the first trace (or problem of a pair) of each reason."""


def build_examples(
    tokenizer: PreTrainedTokenizerBase,
    encoding: Encoding,
    items: Iterable[LabelledTrace],
    targets: StepTargets | OutcomeTargets,
) -> ExampleSet:
    """Encode labelled traces. Steps without target are masked; traces without any are dropped and counted.

    Raises ``TrainingError`` if nothing is left, saying why, and where :func:`check_kinds` does.
    """
    drops = DropCounter()
    return drops.example_set(list(encode_examples(tokenizer, encoding, items, targets, drops)))


def encode_examples(
    tokenizer: PreTrainedTokenizerBase,
    encoding: Encoding,
    items: Iterable[LabelledTrace],
    targets: StepTargets | OutcomeTargets,
    drops: DropCounter,
) -> Iterator[Example]:
    """The examples of :func:`build_examples`, made on demand; ``drops`` counts the dropped traces."""
    kinds: set[LabelKind] = set()
    waiting = iter(items)
    while chunk := list(islice(waiting, _ENCODED_TOGETHER)):
        if targets.kind == "step":
            kinds |= {label.kind for item in chunk for label in item.labels}
            check_kinds(kinds, targets)
        yield from _encode(tokenizer, encoding, chunk, targets, drops)


def _encode(
    tokenizer: PreTrainedTokenizerBase,
    encoding: Encoding,
    items: Sequence[LabelledTrace],
    targets: StepTargets | OutcomeTargets,
    drops: DropCounter,
) -> Iterator[Example]:
    usable = []
    for item in items:
        if not item.trace.steps:
            drops.add("traces without steps", item.trace.id)
            continue
        usable.append(item)
        beyond = sum(label.step >= len(item.trace.steps) for label in item.labels)
        drops.add("labels of steps that the trace does not have", item.trace.id, beyond)
    pairs = [ProblemTrace(problem=item.problem, trace=item.trace) for item in usable]
    encode = partial(encode_traces, tokenizer, encoding)
    for item, pair, encoded in zip(usable, pairs, encode(pairs), strict=True):
        if targets.kind == "step":
            values = _step_values(item, targets, drops)
        elif item.trace.outcome is None:
            reason = "traces without an 'outcome', which sample and import find where problems have an answer"
            drops.add(reason, item.trace.id)
            continue
        else:
            values = _outcome_values(len(item.trace.steps), float(item.trace.outcome), targets)
        windows = [(encoded, values)]
        if encoding.windows:
            cut_windows = windows_of(encode, pair, encoded, encoding.max_length)
            windows = [(item.encoded, _of_window(item, values)) for item in cut_windows]
        examples = [_example(item.trace.id, read, of_window, drops) for read, of_window in windows]
        if not any(examples):
            drops.add("traces without a usable label", item.trace.id)
        if len(drops.targets) < 2:
            drops.targets.update(target for example in filter(None, examples) for target in example.targets)
        yield from filter(None, examples)


def build_pairs(
    tokenizer: PreTrainedTokenizerBase,
    encoding: Encoding,
    problems: Sequence[Problem],
    pairs: Sequence[StepPair],
    *,
    segmenter: Segmenter | None = None,
    hard: bool = False,
) -> ExampleSet:
    """Encode pairs; the target is the pair's soft preference ½ (1 + p - q), or 1 with ``hard``.

    ``segmenter`` cuts the prefixes into steps, which an encoding with a marker needs to know. Pairs without
    problem or beyond the context are dropped and counted. Raises ``TrainingError`` if nothing is left.
    """
    if encoding.marker and segmenter is None:
        raise TrainingError(
            "a marker stands after every step of the prefix too: give a 'segmenter' to cut it"
        )
    by_id = {problem.id: problem for problem in problems}
    drops = DropCounter()
    usable = []
    for pair in pairs:
        if pair.problem_id in by_id:
            usable.append(pair)
        else:
            drops.add("pairs without problem", pair.problem_id)
    items = [
        ProblemTrace(problem=by_id[pair.problem_id], trace=_pair_trace(pair, ending, segmenter))
        for pair in usable
        for ending in (pair.better, pair.worse)
    ]
    encoded = encode_traces(tokenizer, encoding, items) if items else []
    examples = []
    for number, pair in enumerate(usable):
        better, worse = encoded[2 * number : 2 * number + 2]
        if better.positions[-1] is None or worse.positions[-1] is None:
            drops.add("pairs beyond the context", pair.problem_id)
            continue
        side, rival = (
            Example(trace_id=item.trace.id, ids=entry.ids, positions=entry.positions[-1:], targets=())  # type: ignore[arg-type]
            for item, entry in zip(items[2 * number : 2 * number + 2], (better, worse), strict=True)
        )
        examples.append(replace(side, targets=(1.0 if hard else pair.preference,), worse=rival))
    return drops.example_set(examples)


def check_kinds(kinds: Set[LabelKind], targets: StepTargets) -> None:
    """Raise ``TrainingError`` if advantages are mixed with other labels, or treated as if they were others.

    A target of ½ says "changes nothing" as an advantage and "half of the rollouts succeed" as a value: no
    score could mean both.
    """
    if "advantage" not in kinds:
        return
    if unsupported := sorted(kinds - {"advantage"}):
        raise TrainingError(
            f"advantage labels are mixed with {' and '.join(unsupported)} labels; train on one kind "
            "(put the others into a file of their own)"
        )
    for name, meant in (("hard", "value"), ("up_to_first_error", "correctness or value")):
        if getattr(targets, name):
            raise TrainingError(f"{name!r} is for {meant} labels; advantages are trained on as they are")
    if targets.neutral == "class":
        raise TrainingError("three classes are for correctness labels; train advantages with bce or mse")


_FEW = 20
"""Targets from which on equal ones are refused."""


@dataclass
class DropCounter:
    """Counts dropped records by reason, with the first record of each."""

    counts: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)
    targets: Counter[float] = field(default_factory=Counter)
    """Targets that are used, by value, until a trace shows a second one."""

    def add(self, reason: str, name: str, count: int = 1) -> None:
        """Count ``count`` more, found in the record ``name``."""
        if count:
            self.counts[reason] += count
            self.first.setdefault(reason, name)

    def example_set(self, examples: Sequence[Example]) -> ExampleSet:
        """What was not left out. Raises ``TrainingError`` if that is nothing, saying why, or if there is
        nothing to learn from many equal targets."""
        if not examples:
            raise TrainingError(f"nothing to train on: {self}")
        if len(self.targets) == 1 and self.targets.total() >= _FEW:
            [value] = self.targets
            raise TrainingError(f"nothing to learn: all {self.targets.total()} targets are {value:g}")
        return ExampleSet(examples=examples, dropped=self.counts, first=self.first)

    def __str__(self) -> str:
        rows = [f"{count} {reason} (first: {self.first[reason]})" for reason, count in self.counts.items()]
        return ", ".join(rows) or "no traces given"


def _example(
    trace_id: str, encoded: EncodedTrace, values: list[float | None], drops: DropCounter
) -> Example | None:
    pairs = [(at, value) for at, value in zip(encoded.positions, values, strict=True) if value is not None]
    cut = not encoded.refused and encoded.truncated_steps > encoded.dropped
    reason = "beyond the context" if cut else "that the model cannot be shown"
    name = ": ".join(filter(None, (trace_id, encoded.refused or encoded.unknown)))
    drops.add(f"labelled steps {reason}", name, sum(at is None for at, _ in pairs))
    read = [(at, value) for at, value in pairs if at is not None]
    if not read:
        return None
    return Example(
        trace_id=trace_id,
        ids=encoded.ids,
        positions=tuple(at for at, _ in read),
        targets=tuple(value for _, value in read),
    )


def _of_window(window: Window, values: Sequence[float | None]) -> list[float | None]:
    """Targets of the steps of a window, each in the one that reads it."""
    steps = range(window.start, window.start + len(window.encoded.positions))
    return [values[step] if step in window.read else None for step in steps]


def _step_values(item: LabelledTrace, targets: StepTargets, drops: DropCounter) -> list[float | None]:
    """Target per step; several labels of one step are averaged, but classes have to agree."""
    values: list[float | None] = []
    for step in range(len(item.trace.steps)):
        means = [
            as_target(label, neutral=_NEUTRAL[targets.neutral], hard=targets.hard)
            for label in item.labels
            if label.step == step
        ]
        present = [value for value in means if value is not None]
        if targets.neutral == "class" and len(set(present)) > 1:
            drops.add("steps whose ratings disagree", item.trace.id)
            present = []
        values.append(sum(present) / len(present) if present else None)
        if targets.up_to_first_error and present and values[-1] == 0.0:
            return values + [None] * (len(item.trace.steps) - len(values))
    return values


def _outcome_values(count: int, outcome: float, targets: OutcomeTargets) -> list[float | None]:
    return [outcome] * count if targets.at == "every" else [None] * (count - 1) + [outcome]


def _pair_trace(pair: StepPair, ending: str, segmenter: Segmenter | None) -> Trace:
    cuts = segmenter.segment(pair.prefix) if segmenter and pair.prefix else []
    text = pair.prefix + ending
    steps = [Step(start=start, end=end) for start, end in cuts]
    return Trace(
        problem_id=pair.problem_id, text=text, steps=(*steps, Step(start=len(pair.prefix), end=len(text)))
    )


_ROWS = 1024
"""Examples of one batch of the file."""
_LEFT_OUT = b"left_out"


class ExampleFile(OnDisk[Example]):
    """Examples of an Arrow file that is mapped into memory; made by :func:`write_examples`.

    What is held of an example is its length, four bytes.
    """

    def __init__(self, path: Path) -> None:
        import pyarrow as pa  # slow to load

        self.path = path
        self._reader = pa.ipc.open_file(pa.memory_map(str(path)))
        batches = [self._reader.get_batch(number) for number in range(self._reader.num_record_batches - 1)]
        none: list[NDArray[Any]] = [np.zeros(0)]
        self.lengths: NDArray[np.int32] = np.concatenate(
            [np.diff(_offsets(batch["ids"])).astype(np.int32) for batch in batches] or none
        )
        """Tokens of each."""
        last = self._reader.get_batch_with_custom_metadata(len(batches))
        left_out = json.loads(last.custom_metadata[_LEFT_OUT])
        targets = Counter({float(value): count for value, count in left_out["targets"].items()})
        self.left_out = DropCounter(Counter(left_out["counts"]), left_out["first"], targets)
        """What is not among the examples, by reason."""

    @property
    def digest(self) -> str:
        """The name of the file, which identifies its inputs."""
        return self.path.stem

    def __len__(self) -> int:
        return len(self.lengths)

    def between(self, start: int, stop: int) -> Iterator[Example]:
        """Examples ``start … stop - 1``, read as they are asked for."""
        while start < stop:
            number, row = divmod(start, _ROWS)
            batch = self._reader.get_batch(number)
            end = min(_ROWS, row + stop - start)
            for item in batch.slice(row, end - row).to_pylist():
                yield Example(
                    trace_id=item["trace_id"],
                    ids=tuple(item["ids"]),
                    positions=tuple(item["positions"]),
                    targets=tuple(item["targets"]),
                )
            start += end - row


def write_examples(path: Path, examples: Iterable[Example], left_out: DropCounter) -> None:
    """Write ``examples`` as they come, then what ``left_out`` has counted. The file is whole or absent."""
    import pyarrow as pa

    numbers = pa.list_(pa.int32())
    schema = pa.schema(
        {"trace_id": pa.string(), "ids": numbers, "positions": numbers, "targets": pa.list_(pa.float64())}
    )
    with (
        atomic_path(path) as temporary,
        pa.OSFile(str(temporary), "wb") as sink,
        pa.ipc.new_file(sink, schema) as writer,
    ):
        waiting = iter(examples)
        while chunk := list(islice(waiting, _ROWS)):
            writer.write_batch(pa.RecordBatch.from_pylist(list(map(vars, chunk)), schema=schema))
        nothing = pa.RecordBatch.from_pylist([], schema=schema)
        writer.write_batch(nothing, custom_metadata={_LEFT_OUT: json.dumps(vars(left_out)).encode()})


def stored_examples(
    directory: Path,
    tokenizer: PreTrainedTokenizerBase,
    encoding: Encoding,
    items: LabelledTraces,
    targets: StepTargets | OutcomeTargets,
) -> ExampleSet:
    """:func:`surefoot.training.examples.build_examples`, into a file of ``directory`` that is made once.

    The file's name is a hash of the data's files, tokenizer, encoding and targets. Of several processes the
    first of each machine writes it, and the others wait.
    """
    name = content_key(
        items.digest, tokenizer.backend_tokenizer.to_str(), tokenizer.chat_template, encoding, targets
    )
    path = directory / f"{name}.arrow"
    if not path.exists():
        if int(os.environ.get("LOCAL_RANK", "0")):
            _wait_for(path)
        else:
            directory.mkdir(parents=True, exist_ok=True)
            left_out = DropCounter()
            write_examples(path, encode_examples(tokenizer, encoding, items, targets, left_out), left_out)
    examples = ExampleFile(path)
    return examples.left_out.example_set(examples)


def _wait_for(path: Path) -> None:
    """If the process that writes fails, the launcher ends this one too."""
    while not path.exists():
        time.sleep(0.2)


def _offsets(column: Any) -> NDArray[np.int32]:
    return np.asarray(column.offsets.to_numpy())
