"""Rival steps after one prefix, ready for pairwise training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from transformers import PreTrainedTokenizerBase

from surefoot.errors import TrainingError
from surefoot.models.encoding import Encoding, encode_traces
from surefoot.protocols import ProblemTrace, Segmenter
from surefoot.records import Problem, Step, StepPair, Trace
from surefoot.training.targets import Example, LeftOut


@dataclass(frozen=True, kw_only=True)
class PairExample:
    """Two traces that part at their last step, and the chance that ``better`` is the better one."""

    trace_id: str
    better: Example
    worse: Example
    preference: float

    @property
    def parts(self) -> tuple[Example, ...]:
        """What the model reads."""
        return (self.better, self.worse)

    @property
    def terms(self) -> tuple[float, ...]:
        """The target of the pair's one term."""
        return (self.preference,)

    @property
    def length(self) -> int:
        """Tokens of the longer part."""
        return max(len(self.better.ids), len(self.worse.ids))


@dataclass(frozen=True, kw_only=True)
class PairSet:
    """Pairs, and a count of everything that was left out, by reason."""

    examples: list[PairExample]
    dropped: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)
    """Problem of the first pair of each reason."""


def build_pairs(
    tokenizer: PreTrainedTokenizerBase,
    encoding: Encoding,
    problems: Sequence[Problem],
    pairs: Sequence[StepPair],
    *,
    segmenter: Segmenter | None = None,
    hard: bool = False,
) -> PairSet:
    """Encode pairs; the target is the pair's soft preference ½ (1 + p - q), or 1 with ``hard``.

    ``segmenter`` cuts the prefixes into steps, which an encoding with a marker needs to know. Pairs without
    problem or beyond the context are dropped and counted. Raises ``TrainingError`` if nothing is left.
    """
    if encoding.marker and segmenter is None:
        raise TrainingError(
            "a marker stands after every step of the prefix too: give a 'segmenter' to cut it"
        )
    known = {problem.id: problem for problem in problems}
    left = LeftOut()
    usable = []
    for pair in pairs:
        if pair.problem_id in known:
            usable.append(pair)
        else:
            left.add("pairs without problem", pair.problem_id)
    items = [
        ProblemTrace(problem=known[pair.problem_id], trace=_trace(pair, ending, segmenter))
        for pair in usable
        for ending in (pair.better, pair.worse)
    ]
    encoded = encode_traces(tokenizer, encoding, items) if items else []
    examples = []
    for number, pair in enumerate(usable):
        better, worse = encoded[2 * number : 2 * number + 2]
        if better.positions[-1] is None or worse.positions[-1] is None:
            left.add("pairs beyond the context", pair.problem_id)
            continue
        sides = [
            Example(trace_id=item.trace.id, ids=one.ids, positions=one.positions[-1:], targets=())  # type: ignore[arg-type]
            for item, one in zip(items[2 * number :], (better, worse), strict=False)
        ]
        preference = 1.0 if hard else pair.preference
        examples.append(
            PairExample(trace_id=sides[0].trace_id, better=sides[0], worse=sides[1], preference=preference)
        )
    if not examples:
        raise TrainingError(f"nothing to train on: {left}")
    return PairSet(examples=examples, dropped=left.counts, first=left.first)


def _trace(pair: StepPair, ending: str, segmenter: Segmenter | None) -> Trace:
    cuts = segmenter.segment(pair.prefix) if segmenter and pair.prefix else []
    text = pair.prefix + ending
    steps = [Step(start=start, end=end) for start, end in cuts]
    return Trace(
        problem_id=pair.problem_id, text=text, steps=(*steps, Step(start=len(pair.prefix), end=len(text)))
    )
