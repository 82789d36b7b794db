"""What each step is trained towards: a number in [0, 1], or nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Protocol

from surefoot.errors import TrainingError
from surefoot.labels import as_target
from surefoot.models.encoding import EncodedTrace, Encoding, encode_traces
from surefoot.protocols import LabelledTrace, ProblemTrace
from surefoot.records import LabelKind
from surefoot.training.config import OutcomeTargets, StepTargets

from transformers import PreTrainedTokenizerBase  # isort: skip

_NEUTRAL: Mapping[str, float | None] = {"good": 1.0, "bad": 0.0, "drop": None, "class": 0.5}


@dataclass(frozen=True, kw_only=True)
class Example:
    """One trace ready for training: token ids, and read-out positions with their targets."""

    trace_id: str
    ids: tuple[int, ...]
    positions: tuple[int, ...]
    targets: tuple[float, ...]

    @property
    def parts(self) -> tuple[Example, ...]:
        """What the model reads."""
        return (self,)

    @property
    def terms(self) -> tuple[float, ...]:
        """Targets of the loss's terms."""
        return self.targets

    @property
    def length(self) -> int:
        """Tokens of the longest part."""
        return len(self.ids)


class TrainingItem(Protocol):
    """What an update draws: an :class:`Example`, or a pair (``surefoot.training.pairs``)."""

    @property
    def trace_id(self) -> str: ...

    @property
    def parts(self) -> tuple[Example, ...]: ...

    @property
    def terms(self) -> tuple[float, ...]: ...

    @property
    def length(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class ExampleSet:
    """Examples, and a count of everything that was left out, by reason."""

    examples: list[Example]
    dropped: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)
    """Id of the first trace of each reason."""


def build_examples(
    tokenizer: PreTrainedTokenizerBase,
    encoding: Encoding,
    items: Sequence[LabelledTrace],
    targets: StepTargets | OutcomeTargets,
) -> ExampleSet:
    """Encode labelled traces. Steps without target are masked; traces without any are dropped and counted.

    Raises ``TrainingError`` if nothing is left, saying why, and where :func:`check_kinds` does.
    """
    if targets.kind == "step":
        check_kinds({label.kind for item in items for label in item.labels}, targets)
    left = LeftOut()
    usable = []
    for item in items:
        if not item.trace.steps:
            left.add("traces without steps", item.trace.id)
            continue
        usable.append(item)
        beyond = sum(label.step >= len(item.trace.steps) for label in item.labels)
        left.add("labels of steps that the trace does not have", item.trace.id, beyond)
    pairs = [ProblemTrace(problem=item.problem, trace=item.trace) for item in usable]
    examples = []
    for item, encoded in zip(usable, encode_traces(tokenizer, encoding, pairs), strict=True):
        if targets.kind == "step":
            values = _step_values(item, targets, left)
        else:
            values = _outcome_values(item, targets)
        example = _example(item.trace.id, encoded, values, left)
        if example:
            examples.append(example)
    if not examples:
        raise TrainingError(f"nothing to train on: {left}")
    return ExampleSet(examples=examples, dropped=left.counts, first=left.first)


def check_kinds(kinds: Set[LabelKind], targets: StepTargets) -> None:
    """Raise ``TrainingError`` if advantages are mixed with other labels, or treated as if they were others.

    A target of ½ says "changes nothing" as an advantage and "half of the rollouts succeed" as a value: no
    score could mean both.
    """
    if "advantage" not in kinds:
        return
    if others := sorted(kinds - {"advantage"}):
        raise TrainingError(
            f"advantage labels are mixed with {' and '.join(others)} labels; train on one kind "
            "(put the others into a file of their own)"
        )
    for name, meant in (("hard", "value"), ("up_to_first_error", "correctness or value")):
        if getattr(targets, name):
            raise TrainingError(f"{name!r} is for {meant} labels; advantages are trained on as they are")
    if targets.neutral == "class":
        raise TrainingError("three classes are for correctness labels; train advantages with bce or mse")


class LeftOut:
    """Counts what is left out, by reason, and remembers the first record of each."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.first: dict[str, str] = {}

    def add(self, reason: str, name: str, count: int = 1) -> None:
        """Count ``count`` more, found in the record ``name``."""
        if count:
            self.counts[reason] += count
            self.first.setdefault(reason, name)

    def __str__(self) -> str:
        rows = [f"{count} {reason} (first: {self.first[reason]})" for reason, count in self.counts.items()]
        return ", ".join(rows) or "no traces given"


def _example(
    trace_id: str, encoded: EncodedTrace, values: list[float | None], left: LeftOut
) -> Example | None:
    kept = [(at, value) for at, value in zip(encoded.positions, values, strict=True) if value is not None]
    left.add("labelled steps beyond the context", trace_id, sum(at is None for at, _ in kept))
    read = [(at, value) for at, value in kept if at is not None]
    if not read:
        left.add("traces without a usable label", trace_id)
        return None
    return Example(
        trace_id=trace_id,
        ids=encoded.ids,
        positions=tuple(at for at, _ in read),
        targets=tuple(value for _, value in read),
    )


def _step_values(item: LabelledTrace, targets: StepTargets, left: LeftOut) -> list[float | None]:
    """Target per step; several labels of one step are averaged, but classes have to agree."""
    values: list[float | None] = []
    for step in range(len(item.trace.steps)):
        found = [
            as_target(label, neutral=_NEUTRAL[targets.neutral], hard=targets.hard)
            for label in item.labels
            if label.step == step
        ]
        known = [value for value in found if value is not None]
        if targets.neutral == "class" and len(set(known)) > 1:
            left.add("steps whose ratings disagree", item.trace.id)
            known = []
        values.append(sum(known) / len(known) if known else None)
        if targets.up_to_first_error and known and values[-1] == 0.0:
            return values + [None] * (len(item.trace.steps) - len(values))
    return values


def _outcome_values(item: LabelledTrace, targets: OutcomeTargets) -> list[float | None]:
    count = len(item.trace.steps)
    if item.trace.outcome is None:
        return [None] * count
    outcome = float(item.trace.outcome)
    return [outcome] * count if targets.at == "every" else [None] * (count - 1) + [outcome]
