"""Scores from a judge's log-probabilities: which of two runs is better, and how far a run has come.

The judge writes a letter from A (best) to T; the score is the mean of the letters' values over their
probabilities, averaged over criteria and repeats (LLM-as-a-Verifier, arXiv 2607.05391). A server that returns
no probabilities is read by the letter that it wrote.

A tournament chooses among N runs of a task with N + k (N - k) + k (k - 1) / 2 comparisons: a ring in which
each run stands once in either place, then every run against the k leaders.
"""

from __future__ import annotations

import math
import random
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations, islice
from pathlib import Path
from statistics import fmean
from typing import Final

from pydantic import Field, ValidationError

from surefoot.errors import LabelError, RecordError
from surefoot.labelling.judge import attached, material, run_blocks
from surefoot.policies.prompts import break_control_tokens
from surefoot.protocols import Completion, Policy, ProblemTrace, SampleRequest, SampleResult, Sampling
from surefoot.records import Attachment, Evidence, FrozenModel, Message, StepLabel, Usage, content_id

LETTERS: Final = "ABCDEFGHIJKLMNOPQRST"
"""The scale, from 1 to 0."""
SOURCE: Final = "judge-score"
ALTERNATIVES: Final = 20
"""Tokens whose probabilities are requested at each position: the most that hosted servers give."""
_RUBRICS: Final = Path(__file__).parent / "rubrics"

_SCALE = """\
Answer with one letter from A to T:
A = certainly yes, and the outputs show it; B-G = yes, with less and less certainty; H-M = open; \
N-S = no, with more and more certainty; T = certainly no."""
_PAIR = """\
There are two attempts at the task. Judge each by this criterion alone.

Criterion: {question}
What counts as evidence: {evidence}

Think first. Then end your reply with these two lines, each with one letter between its tags:
<score_A> LETTER </score_A>
<score_B> LETTER </score_B>"""
_PROGRESS = """\
The {steps} steps are numbered from 0 to {last}. For the state right after each step, judge by what stands \
up to there alone: if the work ended here, would this hold?

Criterion: {question}
What counts as evidence: {evidence}

Work, length and confident words are not progress; a step that breaks what worked lowers the answer. Reply \
with {steps} lines and nothing else, one a step, in order:
<after_0>LETTER</after_0> … <after_{last}>LETTER</after_{last}>"""
_STATE = """\
The work has come this far. Judge by what stands up to here alone: if it ended here, would this hold?

Criterion: {question}
What counts as evidence: {evidence}

Work, length and confident words are not progress; a last step that breaks what worked lowers the answer. \
End your reply with this line, with one letter between its tags:
<now> LETTER </now>"""
_REMEMBERED: Final = 100_000
"""States whose scores a :class:`StateLabeller` keeps, the latest ones."""


class Criterion(FrozenModel):
    """One question of a rubric."""

    name: str = Field(min_length=1, max_length=100)
    question: str = Field(min_length=1)
    evidence: str = Field(min_length=1)
    """What counts as evidence."""


class Rubric(FrozenModel):
    """What a judge is asked about a run: a TOML file with ``note`` and tables ``criteria``."""

    note: str = ""
    """What is the truth and what a claim; shown with every criterion."""
    criteria: tuple[Criterion, ...] = Field(min_length=1, max_length=20)

    @classmethod
    def named(cls, name: str) -> Rubric:
        """The rubric in a file, or a packaged one: code, review, terminal, tools, writing.

        Raises ``LabelError`` if there is none, or it is invalid.
        """
        packaged = {file.stem: file for file in _RUBRICS.glob("*.toml")}
        path = packaged[name] if name in packaged and not Path(name).is_file() else Path(name)
        try:
            return cls.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError as error:
            names = ", ".join(sorted(packaged))
            raise LabelError(f"{name}: no such file, and no packaged rubric; there are {names}") from error
        except (OSError, ValueError, ValidationError) as error:
            raise LabelError(f"{name}: not a valid rubric: {error}") from error

    @property
    def version(self) -> str:
        """Hash of the wording and the criteria."""
        return content_id(_SCALE, _PAIR, _PROGRESS, _STATE, self.model_dump())[:8]

    def progress_prompt(self, item: ProblemTrace, criterion: Criterion) -> str:
        """The prompt for all prefixes of a finished run."""
        steps = len(item.trace.steps)
        question = _PROGRESS.format(
            steps=steps, last=steps - 1, question=criterion.question, evidence=criterion.evidence
        )
        blocks = [("problem", item.problem.text), *run_blocks(item.trace)]
        return self._prompt("the work of an assistant", blocks, question)

    def state_prompts(self, item: ProblemTrace, criterion: Criterion) -> list[str]:
        """For each step the prompt for the state before the next one begins, which shows nothing later."""
        question = _STATE.format(question=criterion.question, evidence=criterion.evidence)
        blocks = [("problem", item.problem.text), *run_blocks(item.trace)]
        begins = {tag: at for at, (tag, _) in reversed(list(enumerate(blocks)))}
        ends = [begins.get(f"step_{step}", len(blocks)) for step in range(1, len(item.trace.steps) + 1)]
        return [self._prompt("the work of an assistant so far", blocks[:end], question) for end in ends]

    def pair_prompt(self, first: ProblemTrace, second: ProblemTrace, criterion: Criterion) -> str:
        """The prompt for two runs, in this order."""
        blocks = [("problem", first.problem.text)]
        for name, item in (("A", first), ("B", second)):
            blocks += [(f"attempt_{name}_{tag}", text) for tag, text in run_blocks(item.trace)]
        question = _PAIR.format(question=criterion.question, evidence=criterion.evidence)
        return self._prompt("two attempts of an assistant, A and B", blocks, question)

    def _prompt(self, what: str, blocks: Iterable[tuple[str, str]], question: str) -> str:
        note = [break_control_tokens(self.note)] if self.note else []
        return "\n\n".join([*material(what, blocks), *note, _SCALE, question])


def letter_score(completion: Completion, tag: str) -> float | None:
    """The expected value, in [0, 1], of a lone letter in the last ``<tag>``; ``None`` without or if cut off.

    Only the probabilities of letters count, of a letter's forms (``A``, `` a``, ``>A``) the most probable.
    """
    opening, text = f"<{tag}>", "".join(position.token for position in completion.positions)
    written = re.match(rf"\s*([A-Ta-t])\s*</{tag}>", completion.text.rpartition(opening)[2])
    if written is None or opening not in completion.text or completion.cut_off:
        return None
    begin, end = text.rfind(opening), 0
    for position in completion.positions if begin >= 0 else ():
        end += len(position.token)
        if not text[begin + len(opening) : end].strip():
            continue  # the tag itself, or blanks after it
        chances: dict[float, float] = {}
        for token, logprob in position.logprobs.items():
            letter = token.strip().removeprefix(">").strip().upper()
            if len(letter) == 1 and letter in LETTERS:
                value = _value(letter)
                chances[value] = max(chances.get(value, 0.0), math.exp(min(logprob, 0.0)))
        if total := math.fsum(chances.values()):
            return math.fsum(value * chance for value, chance in chances.items()) / total
        break
    return _value(written[1].upper())


def _value(letter: str) -> float:
    return 1 - LETTERS.index(letter) / (len(LETTERS) - 1)


@dataclass(frozen=True, kw_only=True)
class RunJudge:
    """Asks ``policy`` about runs by the criteria of ``rubric``, ``repeats`` times each.

    Each prompt begins with the material and ends with the criterion, so that a server's
    prefix cache reads a run once for all criteria. :meth:`label` is a
    :class:`surefoot.protocols.Labeller` of kind *value*; with ``images``, the folder of the images that the
    traces keep, it shows these, in order. ``failures`` counts replies without a letter, which are left out of
    the means.

    Raises ``LabelError`` for fewer than one repeat, or several at temperature 0, which would all be equal.
    """

    reads = frozenset({"reasoning", "text", "calls", "observations"})
    policy: Policy
    rubric: Rubric
    repeats: int = 1
    sampling: Sampling = field(default_factory=lambda: Sampling(temperature=1.0, max_tokens=4096))
    seed: int = 0
    images: Path | None = None
    failures: Counter[str] = field(default_factory=Counter, init=False, compare=False)

    def __post_init__(self) -> None:
        if self.repeats < 1 or (self.repeats > 1 and self.sampling.temperature == 0):
            raise LabelError("'repeats' must be at least 1, and 1 at temperature 0, where all would be equal")

    async def compare(
        self, pairs: Sequence[tuple[ProblemTrace, ProblemTrace]], spent: list[Usage] | None = None
    ) -> list[tuple[float, float] | None]:
        """Scores of both runs of each pair, in [0, 1]; ``None`` where no reply had both letters.

        Every second repeat shows them in the other order. ``spent`` gets the cost of each request.
        """
        questions = [
            (number, swap, criterion)
            for number in range(len(pairs))
            for swap in (False, True)[: self.repeats]
            for criterion in self.rubric.criteria
        ]
        requests = []
        for number, swap, criterion in questions:
            first, second = reversed(pairs[number]) if swap else pairs[number]
            in_this_order = (self.repeats + (not swap)) // 2
            requests.append(self._request(self.rubric.pair_prompt(first, second, criterion), in_this_order))
        scores: list[list[tuple[float, float]]] = [[] for _ in pairs]
        for (number, swap, _), result in zip(questions, await self._ask(requests), strict=True):
            if spent is not None:
                spent.append(result.usage.by_verifier)
            for completion in result.completions:
                a, b = letter_score(completion, "score_A"), letter_score(completion, "score_B")
                if a is None or b is None:
                    self.failures["no letter for both attempts"] += 1
                else:
                    scores[number].append((b, a) if swap else (a, b))
        return [(fmean(a for a, _ in row), fmean(b for _, b in row)) if row else None for row in scores]

    async def score_states(
        self, states: Sequence[tuple[str, ...]], spent: list[Usage] | None = None
    ) -> list[float | None]:
        """The expected answer to each state's prompts, one a criterion (:meth:`Rubric.state_prompts`).

        ``None`` where no reply has a letter. ``spent`` gets the cost of each request.
        """
        requests = [self._request(prompt, self.repeats) for prompts in states for prompt in prompts]
        results = iter(await self._ask(requests))
        scores: list[float | None] = []
        for prompts in states:
            of_state = [next(results) for _ in prompts]
            if spent is not None:
                spent += [result.usage.by_verifier for result in of_state]
            replies = [completion for result in of_state for completion in result.completions]
            scores.append(self._mean(replies, "now"))
        return scores

    def _mean(self, replies: Sequence[Completion], tag: str) -> float | None:
        letters = [letter_score(reply, tag) for reply in replies]
        values = [value for value in letters if value is not None]
        if missing := len(letters) - len(values):
            self.failures["no letter for a step"] += missing
        return fmean(values) if values else None

    async def label(self, items: Sequence[ProblemTrace]) -> list[list[StepLabel]]:
        """For each step the expected answer for the state after it: one call per criterion and repeat."""
        rows = list(map(self._questions, items))
        requests = [request for row in rows if not isinstance(row, str) for request in row]
        results = iter(await self._ask(requests))
        answers = [row if isinstance(row, str) else [next(results) for _ in row] for row in rows]
        return list(map(self._labels, items, answers))

    def _questions(self, item: ProblemTrace) -> list[SampleRequest] | str:
        """The requests for a run, or why its images cannot be shown."""
        try:
            held = attached(item.trace, self.images, at=0) if self.images else ()
        except RecordError as error:
            return str(error)
        criteria = self.rubric.criteria if item.trace.steps else ()
        prompts = (self.rubric.progress_prompt(item, criterion) for criterion in criteria)
        return [self._request(prompt, self.repeats, held) for prompt in prompts]

    def _labels(self, item: ProblemTrace, answer: list[SampleResult] | str) -> list[StepLabel]:
        results = [] if isinstance(answer, str) else answer
        usage = sum((result.usage.by_verifier for result in results), Usage())
        replies = [completion for result in results for completion in result.completions]
        means = [self._mean(replies, f"after_{step}") for step in range(len(item.trace.steps))]
        errors = [result.error for result in results if result.error]
        reason = f"request failed ({errors[0]})" if errors else "no reply has a letter for this step"
        return self.labels_of(item, means, answer if isinstance(answer, str) else reason, usage)

    def labels_of(
        self, item: ProblemTrace, values: Sequence[float | None], reason: str, usage: Usage
    ) -> list[StepLabel]:
        """Labels of this judge, one a step; ``reason`` says why a value is ``None``."""
        rater = f"{self.policy.name}#{self.rubric.version}"
        return [
            StepLabel(
                trace_id=item.trace.id,
                step=step,
                kind="value",
                value=value,
                reason=reason if value is None else None,
                source=SOURCE,
                evidence=Evidence(rater=rater, usage=Usage() if step else usage),
            )
            for step, value in enumerate(values)
        ]

    def _request(self, prompt: str, repeats: int, held: Sequence[Attachment] = ()) -> SampleRequest:
        return SampleRequest(
            prompt=(Message(role="user", content=prompt, attachments=tuple(held)),),
            n=repeats,
            seed=self.seed,
            sampling=self.sampling,
            alternatives=ALTERNATIVES,
        )

    async def _ask(self, requests: Sequence[SampleRequest]) -> list[SampleResult]:
        results = await self.policy.sample(requests)
        for request, result in zip(requests, results, strict=True):
            if missing := request.n - len(result.completions):
                self.failures[f"request failed: {result.error}"] += missing
        return results


@dataclass(frozen=True, kw_only=True)
class Tournament:
    """The result among the runs of one task."""

    preferences: tuple[float | None, ...]
    """Mean chance that the run beats another; ``None`` if none of its comparisons could be read."""
    comparisons: int
    usage: Usage

    @property
    def best(self) -> int:
        """Index of the preferred run; the first of equal ones."""
        values = [-1.0 if value is None else value for value in self.preferences]
        return values.index(max(values))


def comparisons(runs: int, pivots: int) -> int:
    """Comparisons of a tournament among ``runs``: N + k (N - k) + k (k - 1) / 2."""
    pivots = min(pivots, runs)
    return (runs if runs > 1 else 0) + pivots * (runs - pivots) + pivots * (pivots - 1) // 2


async def hold_tournament(
    judge: RunJudge, runs: Sequence[ProblemTrace], *, pivots: int = 2, seed: int = 0
) -> Tournament:
    """Compare the ``runs`` of one task: a ring in random order, then all against the ``pivots`` leaders.

    A comparison gives each run the chance of Bradley and Terry, 1 / (1 + exp(R_other - R)); one that cannot
    be read gives nothing to either. Raises ``LabelError`` without runs.
    """
    if not runs:
        raise LabelError("'runs' is empty; give the runs of one task")
    order = list(range(len(runs)))
    random.Random(seed).shuffle(order)
    ring = [(run, order[(at + 1) % len(order)]) for at, run in enumerate(order)] if len(runs) > 1 else []
    won: list[list[float]] = [[] for _ in runs]
    spent: list[Usage] = []

    async def play(pairs: Sequence[tuple[int, int]]) -> None:
        scores = await judge.compare([(runs[a], runs[b]) for a, b in pairs], spent)
        for (a, b), pair in zip(pairs, scores, strict=True):
            if pair is not None:
                chance = 1 / (1 + math.exp(pair[1] - pair[0]))
                won[a].append(chance)
                won[b].append(1 - chance)

    await play(ring)
    means = [fmean(row) if row else 0.0 for row in won]
    leaders = sorted(range(len(runs)), key=lambda run: (-means[run], run))[:pivots]
    followers = [run for run in range(len(runs)) if run not in leaders]
    pairs = [(run, leader) for run in followers for leader in leaders]
    pairs += combinations(sorted(leaders), 2)
    await play(pairs)
    return Tournament(
        preferences=tuple(fmean(row) if row else None for row in won),
        comparisons=len(ring) + len(pairs),
        usage=sum(spent, Usage()),
    )


@dataclass(frozen=True)
class TournamentLabeller:
    """A labeller of kind *value* at the last step of each run: its preference among the runs of its task."""

    judge: RunJudge
    pivots: int = 2
    reads = RunJudge.reads

    async def label(self, items: Sequence[ProblemTrace]) -> list[list[StepLabel]]:
        """The runs of a task must be among ``items`` together."""
        by_task: dict[str, list[int]] = {}
        for at, item in enumerate(items):
            by_task.setdefault(item.trace.problem_id, []).append(at)
        labels: list[list[StepLabel]] = [[] for _ in items]
        reason = "the run is judged as a whole, at its last step, if a comparison can be read"
        for runs in by_task.values():
            of_task = [items[at] for at in runs]
            result = await hold_tournament(self.judge, of_task, pivots=self.pivots, seed=self.judge.seed)
            for at, preference in zip(runs, result.preferences, strict=True):
                values: list[float | None] = [None] * len(items[at].trace.steps)
                values[-1:] = [preference] if values else []
                usage = result.usage if at == runs[0] else Usage()
                labels[at] = self.judge.labels_of(items[at], values, reason, usage)
        return labels


@dataclass(frozen=True)
class StateLabeller:
    """A labeller of kind *value* that judges a run while it grows: one call a step, criterion and repeat.

    A call sees what happened before the next step alone. A state that was scored is not asked about again, so
    that a run with one more step costs one more call. :class:`surefoot.models.JudgedStates` is the same as a
    scorer.
    """

    judge: RunJudge
    reads = RunJudge.reads
    _known: dict[tuple[str, ...], float] = field(default_factory=dict, init=False, compare=False, repr=False)

    async def label(self, items: Sequence[ProblemTrace]) -> list[list[StepLabel]]:
        """One label a step; the cost of an item is that of its states which no other one has."""
        criteria = self.judge.rubric.criteria
        prompts = self.judge.rubric.state_prompts
        rows = [list(zip(*(prompts(item, each) for each in criteria), strict=True)) for item in items]
        keys = [[tuple(content_id(prompt) for prompt in state) for state in row] for row in rows]
        requests: dict[tuple[str, ...], tuple[int, tuple[str, ...]]] = {}
        for number, (row, row_keys) in enumerate(zip(rows, keys, strict=True)):
            for key, state in zip(row_keys, row, strict=True):
                if key not in self._known:
                    requests.setdefault(key, (number, state))
        spent: list[Usage] = []
        scores = await self.judge.score_states([state for _, state in requests.values()], spent)
        usage, costs = [Usage()] * len(items), iter(spent)
        for number, state in requests.values():
            usage[number] += sum((next(costs) for _ in state), Usage())
        new = dict(zip(requests, scores, strict=True))
        values = [[new.get(key, self._known.get(key)) for key in row_keys] for row_keys in keys]
        self._known.update({key: score for key, score in new.items() if score is not None})
        for key in list(islice(self._known, max(0, len(self._known) - _REMEMBERED))):
            del self._known[key]
        reason = "no reply has a letter for this step"
        return [
            self.judge.labels_of(item, row, reason, cost)
            for item, row, cost in zip(items, values, usage, strict=True)
        ]
