"""The first screen of every report: a sentence, the rivals, what works, is open or is weak, examples.

The sentence and the lines come from verdicts (:mod:`surefoot.evaluation.verdict`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from surefoot.display import ShownImage, shown_images
from surefoot.evaluation.verdict import WORDS, Conclusion
from surefoot.protocols import ProblemTrace
from surefoot.stats.intervals import Interval

Tested = Literal[
    "wrong steps on held-out problems",
    "wrong steps on public benchmarks",
    "choosing among samples",
    "calibration of scores",
    "label noise",
    "judge against people",
    "edits that raise a score",
    "outcome leakage",
    "correct answers with a wrong step",
    "other domains",
    "over-optimisation",
    "reworded agent runs",
    "faithfulness of reasoning",
    "monitoring of runs",
    "accuracy of the trained policy",
]
"""What a result can be a test of. A card lists those that no run made."""

TERMS: Mapping[str, str] = {
    "PRM": "a model that scores every step",
    "ORM": "a model that scores whole answers",
    "AUC": "the chance that a right step gets a higher score than a wrong one; guessing gives 0.5",
    "F1": "the harmonic mean of two shares: first errors found, and correct solutions accepted",
    "best of": "of several sampled answers, the one with the best score is used",
    "majority vote": "the answer that most samples agree on is used",
    "ECE": "how far scores, read as probabilities, are from the shares that are true",
}
"""Terms of the field that cards use, for readers who meet them here first."""


@dataclass(frozen=True, kw_only=True)
class Rival:
    """One row of a report's plot."""

    name: str
    value: Interval
    kind: Literal["ours", "rival", "ceiling"] = "rival"
    """A ceiling is not available in practice, such as the share of problems with a correct sample."""


@dataclass(frozen=True, kw_only=True)
class ExampleStep:
    """One step of a worked example."""

    number: int
    """From 1."""
    text: str
    score: float | None = None
    wrong: bool = False
    """Whether it is the first error by its label."""
    rejected: str = ""
    """For the first step below the threshold, or the first that a judge calls wrong: which of the two."""


@dataclass(frozen=True, kw_only=True)
class WorkedExample:
    """A trace whose first error the scorer found (caught) or not, or that it wrongly rejects."""

    title: str
    caught: bool
    trace_id: str
    problem: str
    steps: Sequence[ExampleStep]
    note: str
    """What happened, in one sentence."""
    images: Sequence[ShownImage] = ()

    @property
    def near(self) -> list[ExampleStep]:
        """The steps that matter with two before and after each; all of a short trace."""
        matter = [step.number for step in self.steps if step.wrong or step.rejected] or [1]
        short = len(self.steps) <= 2 * _NEAR + 2
        return [step for step in self.steps if short or min(abs(step.number - at) for at in matter) <= _NEAR]


_NEAR = 2
_IMAGE: Final = 2 * 2**20
"""Characters of the data URL of one image; a page has each at most twice."""
_IMAGES: Final = 2 * _IMAGE
"""Characters of the data URLs of one example."""


@dataclass(frozen=True, kw_only=True)
class JudgedTrace:
    """A trace with its labelled first error and a scorer's prediction, from which examples are chosen."""

    item: ProblemTrace
    error: int
    """0-based index of the first error by the labels; -1 for none."""
    predicted: int | None
    """0-based index of the first step below the threshold; -1 for none, ``None`` without a verdict."""
    scores: Sequence[float | None] = ()
    """Empty for a judge's labels."""
    threshold: float | None = None


def worked_examples(traces: Iterable[JudgedTrace], images: Path | None = None) -> list[WorkedExample]:
    """A trace whose first error was found, one whose first error was not, and a right one with a rejected
    step: the shortest of each, with the images that it keeps in the folder ``images`` of the records' file.
    If there are none, one without a verdict.

    Traces of one step or with an empty step are passed over if there are others.
    """

    def order(judged: JudgedTrace) -> tuple[bool, int, str]:
        trace = judged.item.trace
        texts = [trace.step_text(step).strip() for step in range(len(trace.steps))]
        return len(texts) < 2 or not all(texts), sum(map(len, texts)), trace.id

    shortest: dict[str, JudgedTrace] = {}
    for judged in traces:
        if judged.predicted == judged.error == _NO_STEP:
            continue
        title = _CAUGHT if judged.predicted == judged.error else _MISSED
        title = _FALSE_ALARM if judged.error == _NO_STEP else title
        title = _SILENT if judged.predicted is None else title
        if title not in shortest or order(judged) < order(shortest[title]):
            shortest[title] = judged
    titles = [title for title in _KINDS if title in shortest] or [*shortest]
    return [_example(shortest[title], title, images) for title in titles]


_NO_STEP = -1
_KINDS = _CAUGHT, _MISSED, _FALSE_ALARM = "It caught this", "It missed this", "A false alarm"
_SILENT = "It gave no verdict on this"


def _example(judged: JudgedTrace, title: str, images: Path | None) -> WorkedExample:
    trace, predicted, scores, cut = judged.item.trace, judged.predicted, judged.scores, judged.threshold
    rejected = "first called wrong" if cut is None else f"first score below {cut:.2g}"
    first = judged.error + 1
    note = f"Step {first} is the first error" if first else "No step is wrong by its label"
    if title == _CAUGHT:
        note += ", and the first step that it rejects."
    elif predicted is None:
        note += "; it gave no verdict."
    else:
        note += f"; it rejects {'no step' if predicted == _NO_STEP else f'step {predicted + 1} first'}."
    return WorkedExample(
        title=title,
        caught=title == _CAUGHT,
        trace_id=trace.id,
        problem=judged.item.problem.text,
        steps=[
            ExampleStep(
                number=step + 1,
                text=trace.step_text(step).strip(),
                score=scores[step] if scores else None,
                wrong=step == judged.error,
                rejected=rejected if step == predicted else "",
            )
            for step in range(len(trace.steps))
        ],
        note=note,
        images=() if images is None else [*shown_images(trace, images, each=_IMAGE, most=_IMAGES)],
    )


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a report comes from; empty parts are left out."""

    data: str = ""
    model: str = ""
    command: str = ""
    json: str = ""
    """Name of the JSON file in the page's folder."""
    date: str = ""


@dataclass(frozen=True, kw_only=True)
class FirstScreen:
    """What a reader sees first."""

    sentence: str
    verdicts: Sequence[Conclusion] = ()
    """On the scorer that the sentence is about."""
    ranking: Mapping[str, str] = field(default_factory=dict)
    """The sentence on every scorer, best first; shown if there are several."""
    rivals: Sequence[Rival] = ()
    measure: str = ""
    """What the rivals' values are."""
    advice: Sequence[str] = ()
    """At most two things to do, from the data."""
    examples: Sequence[WorkedExample] = ()
    limits: Sequence[str] = ()
    origin: Origin = Origin()

    @property
    def ordered(self) -> list[Conclusion]:
        """The verdicts: the good first, then the open, then the weak."""
        return sorted(self.verdicts, key=lambda one: list(WORDS).index(one.tone))

    @property
    def terms(self) -> dict[str, str]:
        """The entries of :data:`TERMS` that the sentence and the verdicts use."""
        text = " ".join([self.sentence, *(verdict.detail for verdict in self.verdicts)])
        return {term: meaning for term, meaning in TERMS.items() if re.search(rf"\b{term}\b", text)}

    def lines(self) -> list[str]:
        """The first screen in a terminal."""
        rivals = list(self.ranking.values())[1:_OTHERS]
        return [
            self.sentence,
            *(f"- {verdict.line}" for verdict in self.ordered),
            *(f"{number}. {text}" for number, text in enumerate(rivals, 2)),
            *(f"Next: {text}" for text in self.advice),
        ]


_OTHERS = 6
"""Scorers in a terminal; the page has all."""


def value_order(verdicts: Sequence[Conclusion]) -> tuple[int, float]:
    """The better scorer first, by its first verdict: its tone, then how far above its rival."""
    if not verdicts:
        return 3, 0.0
    first = verdicts[0]
    above = first.estimate.value - first.null if first.measured else -math.inf
    return list(WORDS).index(first.tone) if first.measured else 3, -above
