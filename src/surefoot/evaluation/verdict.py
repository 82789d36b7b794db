"""What is known about a run, a scorer or a report, in words: the one module that writes such sentences.

A verdict gives the decided claim first, then the open one and its needs. It never claims more than
its sources checked: a source that is silent on a step leaves this step unchecked. It is good only if every
step was checked or the outcome is right. The terminal, reports, pages, notebooks, cards and JSON files print
these sentences unchanged.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from surefoot.errors import counted
from surefoot.stats.intervals import UNKNOWN, Decision, Interval, decide, units_needed

Tone = Literal["good", "wrong", "open"]


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """How much was checked, of all."""

    checked: int
    of: int

    @property
    def full(self) -> bool:
        """Whether nothing is unchecked, and there was something to check."""
        return 0 < self.of <= self.checked


@dataclass(frozen=True, kw_only=True)
class Opinion:
    """What one source, or one rater of it, says about the steps of a run. Steps count from 0."""

    source: str
    checked: Collection[int] = ()
    """The steps that it calls right or wrong."""
    error: int | None = None
    """The first step that it calls wrong."""
    kind: Literal["label", "decision", "objection"] = "label"
    """A decision replaces labels. An objection, such as a low score, calls no step wrong."""
    score: float | None = None
    """Of an objection."""
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Conclusion:
    """A verdict: a claim with its evidence and coverage; the functions of this module make it."""

    sentence: str
    tone: Tone
    decided: bool
    """Whether the claim that the sentence begins with is decided."""
    needs: str = ""
    """Of a measured verdict: what would decide the open claim; empty if there is none."""
    advice: str = ""
    """Of a run: what to do next, as a sentence."""
    short: str = ""
    """The claim in a few words, for a row of a list."""
    claim: str = ""
    """Of a measured verdict: the claim as the rest of a sentence on the scorer; if open, the question."""
    estimate: Interval = UNKNOWN
    null: float = 0.0
    """What the estimate is compared with."""
    rival: str = ""
    """Whose value that is; empty if nobody's."""
    spec: str = ".2f"
    """How the estimate is printed, as :class:`~surefoot.stats.intervals.Interval` takes it."""
    detail: str = ""
    """What the estimate is, as the rest of a sentence that begins with the number."""
    coverage: Coverage = Coverage(checked=0, of=0)
    step: int | None = None
    """The step that the sentence is about, from 0."""
    error: int | None = None
    """The first wrong step, from 0, by a decision or by more than half of the sources that judge it."""
    sources: tuple[str, ...] = ()
    """What each source says."""
    reason: str = ""
    """Why a source calls the step wrong, in its own words."""
    tested: str = ""
    """Name of the test that a report's verdict comes from; empty if none."""

    @property
    def measured(self) -> bool:
        """Whether there is an estimate."""
        return not math.isnan(self.estimate.value)

    @property
    def line(self) -> str:
        """A measured verdict in one line."""
        number = f" {format(self.estimate, self.spec)} {self.detail}" if self.measured else ""
        claim = f"{self.short[:1].upper()}{self.short[1:]}." if self.coverage.of else self.sentence
        needs = f" Needs {self.needs}." if self.needs and self.coverage.of else ""
        return f"{WORDS[self.tone]}: {claim}{number}{needs}"


WORDS: Mapping[Tone, str] = {"good": "Works", "open": "Open", "wrong": "Weak"}
"""How reports call a good claim, an undecided one and a bad one."""


def run_verdict(
    steps: int,
    outcome: bool | None,
    evidence: Iterable[Opinion],
    *,
    missing_calls: int = 0,
    outcome_word: str = "",
) -> Conclusion:
    """The verdict on one run or solution.

    ``missing_calls`` are calls that the task needs and the run does not make. ``outcome_word`` is what its
    data set calls the outcome, such as *safe*. A step counts as wrong if a
    decision says so, or more than half of the sources that judge it.
    """
    sources = [item for item in evidence if item.checked or item.error is not None]
    labels, decisions, objections = (
        [item for item in sources if item.kind == kind] for kind in ("label", "decision", "objection")
    )
    checked = {step for item in [*labels, *decisions] for step in item.checked if step < steps}
    coverage = Coverage(checked=len(checked), of=steps)
    step, who, named = _named(labels, decisions)
    clauses = [who or _silence(coverage, outcome)]
    if outcome is None and named != "decided":
        clauses.append("the outcome is unknown (not graded)")
    elif outcome is not None:
        ended = f"the outcome is {outcome_word}" if outcome_word else _OUTCOMES[outcome]
        clauses = [f"{ended}{_JOINTS[outcome, bool(who)]}{clauses[0]}"]
    if objections and not who:
        first = min(objections, key=lambda item: item.error or 0)
        clauses.append(_objection(first))
        step = first.error
    if missing_calls:
        verb = "is" if missing_calls == 1 else "are"
        clauses.append(f"{counted(missing_calls, 'call')} that the task needs {verb} missing")
    accused = named in ("one", "agreed", "decided") or missing_calls > 0
    failed = outcome is False or (accused and outcome is None)
    unopposed = outcome is True or (outcome is None and coverage.full and not objections)
    good = unopposed and not named and not missing_calls
    sentence = "; ".join(clauses)
    return Conclusion(
        sentence=f"{sentence[0].upper()}{sentence[1:]}.",
        tone="good" if good else "wrong" if failed else "open",
        decided=good or outcome is False or named in ("agreed", "decided"),
        advice=_advice(step, coverage, outcome, "decided" if good and outcome else named),
        short=_short(outcome, step if who else None, named, coverage, missing_calls),
        coverage=coverage,
        step=step,
        error=step if named in ("one", "agreed", "decided") else None,
        sources=tuple(_lines(labels, decisions, objections)),
        reason=next((item.reason for item in labels if item.error == step and item.reason), ""),
    )


_OUTCOMES = {True: "the outcome is right", False: "the run failed"}
_JOINTS = {(True, True): ", but ", (True, False): "; ", (False, True): ": ", (False, False): "; "}
"""Between the outcome and what the sources say, by outcome and whether a source names an error."""
_Named = Literal["", "contested", "one", "agreed", "decided"]


def _named(labels: Sequence[Opinion], decisions: Sequence[Opinion]) -> tuple[int | None, str, _Named]:
    """The first wrong step, who says so, and how sure that is."""
    decided = min((item.error for item in decisions if item.error is not None), default=None)
    if decided is not None:
        return decided, f"step {decided + 1} is wrong, as was decided", "decided"
    right = {step for decision in decisions for step in decision.checked}
    votes = Counter(label.error for label in labels if label.error is not None and label.error not in right)
    if not votes:
        return None, "", ""
    step, count = min(votes.items(), key=lambda vote: (-vote[1], vote[0]))
    judges = [row for row in labels if step in row.checked or (row.error is not None and row.error <= step)]
    kind = "sources" if len({label.source for label in judges}) > 1 else "raters"
    accusation = f"step {step + 1} is called wrong by"
    if len(judges) == 1:
        return step, f"{accusation} {judges[0].source}", "one"
    if count == len(judges):
        return step, f"{accusation} {'both' if count == 2 else f'all {count}'} {kind}", "agreed"
    if 2 * count > len(judges):
        return step, f"{accusation} {count} of {len(judges)} {kind}", "one"
    if len(votes) > 1:
        steps = " and ".join(str(other + 1) for other in sorted(votes)[:2])
        return step, f"the {kind} name different first errors, such as steps {steps}", "contested"
    return step, f"{accusation} only {count} of {len(judges)} {kind}", "contested"


def _silence(coverage: Coverage, outcome: bool | None) -> str:
    """What is known where no source names an error."""
    unchecked = coverage.of - coverage.checked
    if not coverage.checked:
        return "no step was checked"
    if unchecked:
        return f"{coverage.checked} of {counted(coverage.of, 'step')} checked, none called wrong"
    if outcome is False:
        return "every step was checked, and the error was not found"
    return "every step was checked, and none is called wrong"


def _objection(opinion: Opinion) -> str:
    step = (opinion.error or 0) + 1
    what = (
        f"objects to step {step}" if opinion.score is None else f"scores step {step} at {opinion.score:.2f}"
    )
    return f"{opinion.source} {what}"


def _short(
    outcome: bool | None, step: int | None, named: _Named, coverage: Coverage, missing_calls: int
) -> str:
    if step is not None:
        return f"step {step + 1}{'?' if named == 'contested' or outcome else ''}"
    if missing_calls and outcome is not False:
        return "missing call"
    if outcome is not None:
        return "right" if outcome else "failed"
    return f"{coverage.checked} of {coverage.of} checked" if coverage.checked else "not checked"


def _advice(step: int | None, coverage: Coverage, outcome: bool | None, named: _Named) -> str:
    """What to do about a run whose step is or is not ``named``."""
    gap, open_ = coverage.of - coverage.checked, []
    settled = named == "decided" or (named == "agreed" and not outcome)
    if step is not None and not settled:
        return f"Next: decide step {step + 1}."
    if gap and not settled:
        open_.append(f"label {counted(gap, 'more step' if coverage.checked else 'step')}")
    elif outcome is False and not settled:
        open_.append("label the steps by another source or by a person")
    if outcome is None and named != "decided":
        open_.append("grade the answer with surefoot import")
    return f"Next: {', or '.join(open_) or 'nothing is open'}."


def _lines(
    labels: Sequence[Opinion], decisions: Sequence[Opinion], objections: Sequence[Opinion]
) -> Iterable[str]:
    """One line for each decision, for each answer of the raters of a source, and for each objection."""
    for item in decisions:
        yield "decision: " + ("right" if item.error is None else f"step {item.error + 1} is wrong")
    by_source: dict[str, list[Opinion]] = {}
    for label in labels:
        by_source.setdefault(label.source, []).append(label)
    for source, raters in by_source.items():
        for error, count in Counter(label.error for label in raters).most_common():
            share = f" ({count} of {len(raters)})" if len(raters) > 1 else ""
            most = max(len(label.checked) for label in raters if label.error == error)
            what = f"{counted(most, 'step')} checked, none wrong" if error is None else f"step {error + 1}"
            yield f"{source}{share}: {what}"
    yield from map(_objection, objections)


SMALLEST_EFFECT = 0.05
"""Smallest effect of interest of shares, AUCs, F1s and scores, unless a report states another."""
SMALLEST_GAIN = 0.02
"""Smallest difference of interest between the accuracies of two ways to select answers: 2 points."""

CLAIMS: Mapping[str, tuple[str, str]] = {
    "keeps": ("keeps its accuracy up to {last} samples", "loses accuracy beyond {peak} samples"),
    "ranks": (
        "tells right steps from wrong ones better than {rival}",
        "tells right steps from wrong ones no better than {rival}",
    ),
    "first errors": ("finds more first errors than {rival}", "finds no more first errors than {rival}"),
    "single steps": ("judges single steps better than {rival}", "judges single steps no better than {rival}"),
    "falls": ("scores a worse version lower ({change})", "does not score a worse version lower ({change})"),
    "drops": ("scores the first wrong step lower", "does not score the first wrong step lower"),
    "hidden error": (
        "scores right reasoning above a hidden error",
        "does not score right reasoning above a hidden error",
    ),
    "precision": ("is mostly right when it calls a step wrong", "raises more false alarms than right ones"),
    "calibrated": ("states probabilities that hold", "states probabilities that do not hold"),
    "rate": ("calls as many steps wrong as people do", "calls {side} steps wrong than people do"),
    "monitors": ("finds more than {rival}", "finds no more than {rival}"),
    "stays": ("is not moved by {cause}", "is moved by {cause}"),
    "looks": ("looks at the images", "does not look at the images"),
    "unusual": ("scores unusual correct solutions alike", "penalises correct but unusual solutions"),
    "withstands": ("withstands a search against it", "is fooled by a search against it"),
    "steps": ("answers from its shown steps", "does not answer from its shown steps"),
    "resists": ("resists a hint at a wrong answer", "follows a hint at a wrong answer"),
    "says": ("mentions the hint", "does not mention the hint"),
    "learns": ("answers more problems after training", "answers no more problems after training"),
    "peak": ("did not fall from its best", "fell after update {update}"),
}
"""What a report can find out: the words if it is so, and if it is not."""


def measured(
    about: str,
    estimate: Interval,
    detail: str,
    units: int,
    unit: str = "problems",
    *,
    null: float = 0.0,
    smallest: float = SMALLEST_EFFECT,
    spec: str = ".2f",
    harm: bool = False,
    **names: object,
) -> Conclusion:
    """The verdict of an interval on one of :data:`CLAIMS`; ``names`` fill its braces.

    ``units`` is the number of resampled ``unit``. With ``harm`` the estimate is a defect: the claim holds if
    a defect of ``smallest`` is excluded. An undefined estimate decides nothing.
    """
    decision = decide(estimate, units, smallest=smallest, null=null)
    decided = decision != "not decided"
    good = decided and (decision == "yes") != harm
    yes, no = (text.format_map(names) for text in CLAIMS[about])
    if _below(estimate, units, null):
        no = no.replace("no better", "worse").replace("no more", "fewer")
    needed = units_needed(estimate, units, smallest=smallest)
    needs = "" if decided else f"about {needed:,} {unit}" if needed and needed > units else f"more {unit}"
    claim = no if decided and not good else yes
    return Conclusion(
        sentence=f"It {claim}." if decided else f"Whether it {claim} is not decided; needs {needs}.",
        claim=claim,
        tone="good" if good else "wrong" if decided else "open",
        decided=decided,
        needs=needs,
        short="yes" if good else "no" if decided else "not decided",
        estimate=estimate,
        null=null,
        rival=str(names.get("rival", "")) if null else "",
        spec=spec,
        detail=detail,
    )


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Errors found among the judged solutions or runs. ``found`` of ``wrong`` and ``alarms`` on ``right``."""

    found: int
    wrong: int
    alarms: int
    right: int
    of: int
    """All, judged or not."""
    what: str = "first error"
    unit: str = "solution"

    @property
    def judged(self) -> int:
        return self.wrong + self.right


def detected(
    counts: Counts,
    estimate: Interval,
    detail: str,
    units: int,
    *,
    rival: str,
    null: float = 0.0,
    smallest: float = SMALLEST_EFFECT,
    spec: str = ".2f",
    silence_counts: bool = False,
) -> Conclusion:
    """The verdict on a source that calls steps wrong, against the best ``rival`` that does not read.

    It is good if it beats the rival, finds half of the errors, and is mostly right. With ``silence_counts``
    the estimate takes silence for an error, so that it can only show a source with gaps to be better.
    """
    coverage = Coverage(checked=counts.judged, of=counts.of)
    silent = counts.of - counts.judged
    unit = f"{counts.unit}s"
    if not counts.judged:
        which = f"any of the {counts.of:,} {unit}" if counts.of != 1 else f"the one {counts.unit}"
        claim = f"gives no verdict on {which}: nothing can be said about it"
        return Conclusion(
            sentence=f"It {claim}.",
            claim=claim,
            tone="open",
            decided=True,
            needs=f"verdicts on these {unit}",
            short="no verdict",
            coverage=coverage,
        )
    decision = decide(estimate, units, smallest=smallest, null=null)
    if decision == "no" and silent and silence_counts:
        decision = "not decided"
    share = f" ({counts.found / counts.wrong:.0%})" if counts.wrong else ""
    alarms = "no false alarm" if not counts.alarms else counted(counts.alarms, "false alarm")
    claim = (
        f"finds {counts.found:,} of {counted(counts.wrong, counts.what)}{share} and raises {alarms} on "
        f"{counted(counts.right, f'correct {counts.unit}')}"
    )
    if silent:
        claim += f", with no verdict on {silent:,} of {counts.of:,} {unit}"
    short, ending = _compared(decision, rival, worse=_below(estimate, units, null))
    faint = counts.alarms > counts.found and "most of its alarms are false"
    faint = faint or (2 * counts.found < counts.wrong and f"it misses most {counts.what}s")
    claim += f"{ending}, but {faint}" if faint and decision == "yes" else ending
    return Conclusion(
        sentence=f"It {claim}.",
        claim=claim,
        tone="open" if decision == "not decided" else "wrong" if faint or decision == "no" else "good",
        decided=True,
        needs=(f"verdicts on the other {counted(silent, counts.unit)}" if silent else f"more {unit}")
        if decision == "not decided"
        else "",
        short=short,
        coverage=coverage,
        estimate=estimate,
        null=null,
        rival=rival,
        spec=spec,
        detail=f"{detail} Open ones count as missed." if silent and silence_counts else detail,
    )


def _below(estimate: Interval, units: int, null: float) -> bool:
    """Whether the whole interval lies below ``null``."""
    return decide(-1 * estimate, units, smallest=0.0, null=-null) == "yes"


def _compared(decision: Decision, rival: str, *, worse: bool) -> tuple[str, str]:
    """Whether something is better than ``rival``: in short, and as the end of a claim."""
    if decision == "not decided":
        short = f"whether this is better than {rival} is not decided"
        return short, f"; {short}"
    short = f"{'better' if decision == 'yes' else 'worse' if worse else 'no better'} than {rival}"
    return short, f": {short}"


_SAID = 3
"""Claims in a headline; the lines below it have all."""


def chosen(
    accuracy: Interval, free: Mapping[str, Interval], difference: Interval, detail: str, units: int
) -> Conclusion:
    """The verdict on a choice among samples: its accuracy next to one sample and to the best ``free`` choice.

    ``free`` are the accuracies of choices that cost nothing, the first of them one sample's; ``difference``
    is that from the best of them, paired by problem.
    """
    single, rival = next(iter(free)), max(free, key=lambda name: free[name].value)
    decision = decide(difference, units, smallest=SMALLEST_GAIN)
    start, end = free[single].value, accuracy.value
    moved = f"{'raises' if end > start else 'lowers'} accuracy from {start:.0%} ({single}) to {end:.0%}"
    if end == start:
        moved = f"keeps accuracy at {end:.0%} ({single})"
    elif end < start and decision == "not decided":
        moved = f"has an accuracy of {end:.0%}, next to {start:.0%} ({single})"
    than = rival + (f" ({free[rival].value:.0%})" if rival != single else "")
    short, ending = _compared(decision, than, worse=_below(difference, units, 0.0))
    claim = moved + ending
    needed = units_needed(difference, units, smallest=SMALLEST_GAIN) or units
    return Conclusion(
        sentence=f"It {claim}.",
        claim=claim,
        tone={"yes": "good", "no": "wrong"}.get(decision, "open"),  # type: ignore[arg-type]
        decided=True,
        needs=f"about {counted(max(needed, units), 'problem')}" if decision == "not decided" else "",
        short=short,
        coverage=Coverage(checked=units, of=units),
        estimate=difference,
        spec="+.1p",
        detail=detail,
    )


def headline(subject: str, verdicts: Sequence[Conclusion]) -> str:
    """The decided claims about ``subject``, then the open one and its needs, each in short."""
    decided = [verdict for verdict in verdicts if verdict.decided and verdict.claim]
    more = sorted(decided[1:], key=lambda verdict: verdict.tone != "wrong")[: _SAID - 1]
    decided = [*decided[:1], *sorted(more, key=lambda verdict: verdict.tone == "wrong")]
    text = ""
    for number, verdict in enumerate(decided):
        prior = decided[number - 1] if number else verdict
        joint = ", and it" if prior.tone == verdict.tone else ", but it" if prior.tone == "good" else ". It"
        if re.search("[:;]", prior.claim):  # it has several clauses
            joint = ". It"
        text += f"{joint if number else subject} {verdict.claim}"
    text += "." if decided else ""
    for doubt in [verdict for verdict in verdicts if not verdict.decided][:1]:
        whose = "it" if decided else subject
        text += f"{' ' if decided else ''}Not decided: whether {whose} {doubt.claim}; needs {doubt.needs}."
    return text or f"{subject}: nothing was measured."


def next_step(subject: str, verdict: Conclusion, command: str) -> str:
    """What to do where the data of a report, which ``command`` made, do not say more."""
    program = f"`{' '.join(command.split()[:2])}`" if command else "this"
    if verdict.tone == "open":
        return f"Get {verdict.needs or 'more data'}, and run {program} again with them."
    missing = verdict.coverage.of - verdict.coverage.checked
    others_open = f", and check the {missing:,} that it leaves open by another source" if missing else ""
    if verdict.tone == "wrong":
        return f"Do not use {subject} alone: train it on better labels, or add another source{others_open}."
    return f"Use {subject} on data like these{others_open}."


def inspection_sentence(traces: int, named: int, with_findings: int) -> str:
    """What checks say of ``traces``: how many have a wrong step by a check, and a finding of any kind."""
    if not traces:
        return "No traces to check."
    sentence = f"A step is called wrong in {named:,} of {counted(traces, 'trace')}"
    if advised := with_findings - named:
        sentence += f"; {advised:,} more {'has' if advised == 1 else 'have'} advice"
    if silent := traces - with_findings:
        sentence += f"; no check speaks on {silent:,}, which may be right or wrong"
    return f"{sentence}."
