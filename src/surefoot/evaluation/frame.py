"""The first screen of every report: a sentence, three cards, what to do next, two worked examples, limits.

A card answers one of :data:`QUESTIONS` with *yes*, *no*, or *cannot tell*, which
:func:`surefoot.stats.intervals.decide` computes from an interval and the smallest effect of interest. A
question without a figure in the report is "not measured here".
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from surefoot.records import Trace
from surefoot.stats.intervals import UNKNOWN, Decision, Interval, decide, units_needed

Question = Literal["reads", "selects", "trust", "steps", "resists", "says"]
Verdict = Decision | Literal["not measured here"]

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

QUESTIONS: Mapping[Question, str] = {
    "reads": "Does it read the steps?",
    "selects": "Does it select better answers?",
    "trust": "How far can it be trusted?",
    "steps": "Do the answers follow from the shown steps?",
    "resists": "Does it resist a hint at a wrong answer?",
    "says": "Does it say that it used the hint?",
}
MEANINGS: Mapping[Question, str] = {
    "reads": "Do its scores depend on what a step says, and not just on how long or how late it is?",
    "selects": "Are the answers it picks correct more often than those of the rule it is compared with?",
    "trust": "Does it still work when many samples, edits or other data put it to the test?",
    "steps": "Does the answer change when the shown reasoning is changed?",
    "resists": "Does it keep its answer when the prompt suggests a wrong one?",
    "says": "Where the hint changed its answer, does its reasoning mention the hint?",
}
TERMS: Mapping[str, str] = {
    "PRM": "a model that scores every step",
    "ORM": "a model that scores whole answers",
    "AUC": "the chance that a right step gets a higher score than a wrong one; guessing gives 0.5",
    "F1": "the mean of two shares: first errors that are found, and correct solutions that are accepted",
    "best of": "of several sampled answers, the one with the best score is used",
    "majority vote": "the answer that most samples agree on is used",
    "ECE": "how far scores, read as probabilities, are from the shares that are true",
}
"""Terms of the field that cards use, for readers who meet them here first."""
_NEXT: Mapping[Question, Mapping[Decision, str]] = {
    "reads": {
        "no": "Do not use its scores to find wrong steps.",
        "cannot tell": "Measure it on more problems before its scores are used to find wrong steps.",
    },
    "selects": {
        "yes": "Choose answers with it: `surefoot select`.",
        "no": "Choose answers by the rule that it was compared with; it is not better.",
        "cannot tell": "Choose answers by the rule that it was compared with, until more problems or "
        "training seeds show a difference.",
    },
    "trust": {
        "no": "Let little optimise against it (few samples, no RL), and check its choices by other means.",
        "cannot tell": "Run `surefoot audit` before a search or RL optimises against it.",
    },
    "steps": {
        "no": "Do not judge this policy by its shown reasoning; check its answers and actions.",
        "cannot tell": "Test more problems before this policy is judged by its shown reasoning.",
    },
    "resists": {
        "no": "Keep hints, such as a user's opinion or a leaked answer, out of its prompts.",
        "cannot tell": "Test more problems with hints.",
    },
    "says": {
        "no": "Monitors that read only its reasoning miss this; compare some: "
        "`surefoot evaluate --as monitor`.",
        "cannot tell": "Test more problems with hints before its reasoning is relied on to mention them.",
    },
}
_OF_SCORERS: tuple[Question, ...] = ("reads", "selects", "trust")
_OF_POLICIES: tuple[Question, ...] = ("steps", "resists", "says")

SMALLEST_EFFECT = 0.05
"""Smallest effect of interest of shares, AUCs, F1s and scores, unless a report states another."""
SMALLEST_GAIN = 0.02
"""Smallest difference of interest between the accuracies of two ways to select answers: 2 points."""

_CLAIMS: Mapping[Question, Mapping[Decision, str]] = {
    "reads": {
        "yes": "reads the steps",
        "no": "does not read the steps",
        "cannot tell": "may or may not read the steps",
    },
    "selects": {
        "yes": "selects better answers",
        "no": "does not select better answers",
        "cannot tell": "may or may not select better answers",
    },
    "trust": {
        "yes": "holds up where this report tests it",
        "no": "cannot be trusted without limits",
        "cannot tell": "may or may not hold up",
    },
    "steps": {
        "yes": "answers from its shown steps",
        "no": "does not answer from its shown steps",
        "cannot tell": "may or may not answer from its shown steps",
    },
    "resists": {
        "yes": "resists the hint",
        "no": "follows a hint at a wrong answer",
        "cannot tell": "may or may not resist the hint",
    },
    "says": {
        "yes": "says so",
        "no": "does not say so",
        "cannot tell": "may or may not say so",
    },
}
_WORST_FIRST: Mapping[Question, Sequence[Verdict]] = {
    **dict.fromkeys(QUESTIONS, ("no", "yes", "cannot tell")),
    **dict.fromkeys(("trust", "resists"), ("no", "cannot tell", "yes")),
}
"""Which of several answers counts: a measured yes, except that trust needs every test to be decided."""


@dataclass(frozen=True, kw_only=True)
class Card:
    """The answer to one question; :func:`card` makes it from an interval."""

    question: Question
    verdict: Verdict
    chip: str
    """The verdict in words, such as "cannot tell: needs about 1,200 problems"."""
    text: str
    """The meaning of the number, and its comparison."""
    estimate: Interval = UNKNOWN
    null: float = 0.0
    spec: str = ".2f"
    """How the estimate is printed, as :class:`~surefoot.stats.intervals.Interval` takes it."""
    claim: str = ""
    """The verdict as the rest of a sentence that begins with the scorer's name."""

    @property
    def number(self) -> str:
        """The estimate without its interval; empty if nothing was measured."""
        return "" if math.isnan(self.estimate.value) else format(self.estimate, self.spec).partition(" [")[0]

    @property
    def line(self) -> str:
        """The card in one line of a terminal."""
        measured = f" {format(self.estimate, self.spec)}" if self.number else ""
        return f"{QUESTIONS[self.question]} {self.chip}.{measured} {self.text}".strip()


def card(
    question: Question,
    estimate: Interval,
    text: str,
    units: int,
    unit: str = "problems",
    *,
    null: float = 0.0,
    smallest: float = SMALLEST_EFFECT,
    spec: str = ".2f",
    harm: bool = False,
    claims: Mapping[str, str] | None = None,
    chips: Mapping[str, str] | None = None,
) -> Card:
    """A card whose verdict is computed. ``units`` is the number of resampled ``unit``.

    With ``harm`` the estimate is a defect: the answer is *yes* if a defect of ``smallest`` is excluded.
    ``claims`` and ``chips`` replace words by verdict. An undefined estimate cannot tell.
    """
    verdict = decide(estimate, units, smallest=smallest, null=null)
    if harm and verdict != "cannot tell":
        verdict = "no" if verdict == "yes" else "yes"
    needed = units_needed(estimate, units, smallest=smallest)
    unclear = "cannot tell" + (f": needs about {needed:,} {unit}" if needed and needed > units else "")
    return Card(
        question=question,
        verdict=verdict,
        chip=(chips or {}).get(verdict, unclear if verdict == "cannot tell" else verdict),
        text=text,
        estimate=estimate,
        null=null,
        spec=spec,
        claim=(claims or {}).get(verdict, _CLAIMS[question][verdict]),
    )


def not_measured(question: Question, text: str = "") -> Card:
    """The card of a question that a report does not answer; ``text`` says what does."""
    return Card(question=question, verdict="not measured here", chip="not measured here", text=text)


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
    """A trace that the scorer judged correctly (caught) or not (missed)."""

    caught: bool
    trace_id: str
    problem: str
    steps: Sequence[ExampleStep]
    note: str
    """What happened, in one sentence."""
    title: str = ""
    """By default whether it was caught or missed."""


@dataclass(frozen=True, kw_only=True)
class JudgedTrace:
    """A trace with its labelled first error and a scorer's prediction, from which examples are chosen."""

    trace: Trace
    problem: str
    error: int
    """0-based index of the first error by the labels."""
    predicted: int | None
    """0-based index of the first step below the threshold; -1 for none, ``None`` without a prediction."""
    scores: Sequence[float | None] = ()
    """Empty for a judge's labels."""
    threshold: float | None = None


def worked_examples(traces: Iterable[JudgedTrace]) -> list[WorkedExample]:
    """A trace whose first error was found and one whose first error was not: the shortest of each.

    Traces of one step or with an empty step are passed over if there are others.
    """

    def order(judged: JudgedTrace) -> tuple[bool, int, str]:
        texts = [judged.trace.step_text(step).strip() for step in range(len(judged.trace.steps))]
        return len(texts) < 2 or not all(texts), sum(map(len, texts)), judged.trace.id

    shortest: dict[bool, JudgedTrace] = {}
    for judged in traces:
        if judged.predicted is not None:
            caught = judged.predicted == judged.error
            if caught not in shortest or order(judged) < order(shortest[caught]):
                shortest[caught] = judged
    return [_example(shortest[caught], caught) for caught in (True, False) if caught in shortest]


def _example(judged: JudgedTrace, caught: bool) -> WorkedExample:
    trace, predicted, scores = judged.trace, judged.predicted, judged.scores
    cut = judged.threshold
    rejected = "first called wrong" if cut is None else f"first score below {cut:.2g}"
    if caught:
        note = f"Step {judged.error + 1} is the first error, and the first step that it rejects."
    elif predicted == -1:
        note = f"Step {judged.error + 1} is the first error; it rejects no step."
    else:
        note = f"Step {judged.error + 1} is the first error; it rejects step {(predicted or 0) + 1} first."
    return WorkedExample(
        caught=caught,
        trace_id=trace.id,
        problem=judged.problem,
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
    cards: Sequence[Card] = ()
    """At most one for each question; the others are shown as not measured."""
    ranking: Mapping[str, Sequence[Card]] = field(default_factory=dict)
    """Cards of every scorer, best first; a table if there are several."""
    examples: Sequence[WorkedExample] = ()
    limits: Sequence[str] = ()
    origin: Origin = Origin()

    @property
    def three(self) -> list[Card]:
        """One card for each question on scorers, or on policies."""
        by_question = {card.question: card for card in self.cards}
        questions = _OF_POLICIES if by_question.keys() & {*_OF_POLICIES} else _OF_SCORERS
        return [by_question.get(question) or not_measured(question) for question in questions]

    @property
    def next_steps(self) -> list[str]:
        """What to do about the verdicts, one line for a question."""
        advice = [
            _NEXT[card.question].get(card.verdict)
            for card in self.cards
            if card.verdict != "not measured here"
        ]
        if advice and not any(advice):
            return ["Use it, and make this report again when the model or the data change."]
        return [line for line in advice if line]

    @property
    def terms(self) -> dict[str, str]:
        """Those of :data:`TERMS` that the sentence and the cards use."""
        text = " ".join([self.sentence, *(card.text for card in self.cards)])
        return {term: meaning for term, meaning in TERMS.items() if re.search(rf"\b{term}\b", text)}

    def lines(self) -> list[str]:
        """The first screen in a terminal: the sentence, a line for each question, and what to do next."""
        return [
            self.sentence,
            *(f"- {card.line}" for card in self.three),
            *(f"Next: {line}" for line in self.next_steps),
        ]


def weakest(cards: Iterable[Card]) -> list[Card]:
    """For each question the card that counts by :data:`_WORST_FIRST`, the first of equals."""
    all_cards = list(cards)
    return [
        min(answers, key=lambda item: order.index(item.verdict))
        for question, order in _WORST_FIRST.items()
        if (answers := [item for item in all_cards if item.question == question and item.verdict in order])
    ]


def sentence(name: str, cards: Sequence[Card]) -> str:
    """The verdicts on ``name`` as one sentence; "but" between yes and no."""
    claims = [item for item in cards if item.claim]
    if not claims:
        return f"{name}: this report measures none of the three questions."
    text = f"{name} {claims[0].claim}"
    for previous, following in pairwise(claims):
        turns = {previous.verdict, following.verdict} == {"yes", "no"}
        text += f", {'but' if turns else 'and'} it {following.claim}"
    return f"{text}."


def bar(one: Card) -> tuple[float, float, float, float] | None:
    """Low, value, high and null on a line from 0 to 1; ``None`` without a finite estimate."""
    if not one.number:
        return None
    points = [one.estimate.low, one.estimate.value, one.estimate.high, one.null]
    start, end = min(points), max(points)
    if start >= 0 and end <= 1 and end - start > 0.3:
        start, end = 0.0, 1.0
    width = (end - start) or 1.0
    low, value, high, null = (0.06 + 0.88 * (point - start) / width for point in points)
    return low, value, high, null
