"""The space that one search explores: a problem's step tree, which grows by a policy and is scored."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from surefoot.answers import Grader, group_equal
from surefoot.batching import Batcher
from surefoot.errors import PolicyError
from surefoot.policies.prompts import PromptFormat
from surefoot.protocols import (
    STOP_UNKNOWN,
    Completion,
    ProblemTrace,
    SampleRequest,
    SampleResult,
    Sampling,
    Segmenter,
)
from surefoot.records import Problem, Step, StepScores, Trace, Usage, content_id
from surefoot.scores import Aggregator, complete_scores, require_fit, trace_score
from surefoot.segment import Marker
from surefoot.tree import Node, StepTree

TRUNCATED = "length"


@dataclass(eq=False, kw_only=True)
class State:
    """What a search knows of a prefix."""

    finish: str | None = None
    """Why the solution ends here (``stop``, ``length``); ``None`` = it goes on."""
    tokens: int = 0
    """Tokens that the policy wrote when it first drew this step; those of a piece that was cut into steps
    afterwards are all at its last."""
    drawn: int = 0
    """Continuations drawn from here so far."""
    seen: int = 0
    """Times that this step was drawn; more than one = merged."""
    scores: tuple[float | None, ...] | None = None
    """A score for each step up to here; ``None`` = not asked for."""
    reason: str | None = None
    """Why there is no score."""
    ahead: Node[State] | None = None
    """The greedy next step, once it was written."""


Prefix = Node[State]
"""A node of the tree: some steps of a solution."""


@dataclass(frozen=True, kw_only=True)
class Steps:
    """How solutions are written step by step.

    A step ends with ``separator``, and is cut after ``step_tokens`` tokens: it is then the last one, and is
    counted as capped. After ``max_steps`` steps a solution is written to its end in one piece, of at most
    ``sampling.max_tokens`` tokens, and cut into steps by ``segmenter`` (``None``: after each separator).
    ``sampling`` says how tokens are drawn; its ``stop`` is not used.
    """

    separator: str = "\n"
    segmenter: Segmenter | None = None
    step_tokens: int = 256
    max_steps: int = 40
    sampling: Sampling = field(default_factory=lambda: Sampling(temperature=0.8, max_tokens=2048))
    prompt: PromptFormat = field(default_factory=PromptFormat)

    def __post_init__(self) -> None:
        if not self.separator:
            raise ValueError("'separator' is empty: a step could not end")
        if self.step_tokens < 1 or self.max_steps < 1:
            raise ValueError("'step_tokens' and 'max_steps' must be 1 or more")

    def cut(self, text: str) -> list[tuple[int, int]]:
        """Spans of the steps of what was written in one piece."""
        return (self.segmenter or Marker(re.escape(self.separator))).segment(text)


@dataclass(kw_only=True)
class Counts:
    """What a search met on its way."""

    drawn: int = 0
    """Steps drawn."""
    merged: int = 0
    """Of these, steps that were there already, after the same prefix."""
    capped: int = 0
    """Steps cut at ``step_tokens``, and ends cut at ``max_tokens``."""
    unscored: int = 0
    """Prefixes for which the scorer gave no number."""
    failed: int = 0
    """Requests that the policy did not answer."""
    errors: list[str] = field(default_factory=list)
    """What it said, each text once."""


class Space:
    """Grows and scores the step tree of one problem; everything that is spent is counted.

    Equal steps after equal prefixes are one node. The samples of a prefix are numbered on, so that asking
    twice for two continuations gives what asking for four gives, whatever else is asked for.
    """

    def __init__(
        self,
        problem: Problem,
        batcher: Batcher,
        *,
        steps: Steps,
        aggregation: Aggregator,
        grader: Grader,
        seed: int,
    ) -> None:
        self.problem, self.steps, self.aggregation, self.seed = problem, steps, aggregation, seed
        self.grader = grader
        self.tree: StepTree[State] = StepTree(State)
        self.usage = Usage()
        self.counts = Counts()
        self._batcher = batcher

    @property
    def has_scorer(self) -> bool:
        """Whether prefixes can be scored."""
        return self._batcher.scorer is not None

    @property
    def generator(self) -> np.random.Generator:
        """Random numbers for a method's own choices: the same each time for equal seed and problem."""
        return np.random.default_rng(int(content_id("search", self.seed, self.problem.id), 16))

    @property
    def root(self) -> Prefix:
        """The empty solution."""
        return self.tree.root

    async def extend(
        self, prefixes: Sequence[Prefix], counts: int | Sequence[int], *, to_end: bool = False
    ) -> list[list[Prefix]]:
        """``counts[k]`` continuations of each prefix, one step each (``to_end``: all steps to the end).

        One list a prefix, one node a continuation, in the order drawn: a step that was drawn twice is there
        twice, as the same node. A finished prefix gives itself. A prefix of ``max_steps`` steps is written
        to its end. An unanswered request gives fewer nodes, and is counted. Raises
        ``PolicyError`` for a server that does not tell the end of a step from the end of the solution.
        """
        wanted = [counts] * len(prefixes) if isinstance(counts, int) else list(counts)
        open_ = [
            k for k, (prefix, n) in enumerate(zip(prefixes, wanted, strict=True)) if is_open(prefix) and n
        ]
        found = [[] if is_open(prefix) else [prefix] * n for prefix, n in zip(prefixes, wanted, strict=True)]
        whole = [to_end or prefixes[k].depth >= self.steps.max_steps for k in open_]
        requests = []
        for k, end in zip(open_, whole, strict=True):
            requests.append(self._request(prefixes[k], wanted[k], end=end))
            prefixes[k].data.drawn += wanted[k]  # at once: the same prefix may be there twice
        results = await self._batcher.sample(requests) if requests else []
        for k, end, result in zip(open_, whole, results, strict=True):
            self._note(result, step=not end)
            found[k] = [self._insert(prefixes[k], drawn, end=end) for drawn in result.completions]
        return found

    async def roll(self, prefixes: Sequence[Prefix], steps: int) -> list[Prefix]:
        """Where each prefix comes to when it goes on greedily for ``steps`` steps, or to its end.

        What is written on the way is no part of the tree's own samples: it has the temperature 0, and a later
        :meth:`extend` draws as if it had not been. The same greedy step is asked for once. A request that
        fails leaves its prefix where it is.
        """
        ends = list(prefixes)
        for _ in range(steps):
            going = [end for end in dict.fromkeys(ends) if is_open(end)]
            new = [prefix for prefix in going if prefix.data.ahead is None]
            requests = [self._request(prefix, 1, greedy=True) for prefix in new]
            results = await self._batcher.sample(requests) if requests else []
            for prefix, result in zip(new, results, strict=True):
                self._note(result, step=True)
                for drawn in result.completions:
                    prefix.data.ahead = self._insert(prefix, drawn, end=False)
            ends = [end.data.ahead or end for end in ends]
        return ends

    async def foresee(self, prefixes: Sequence[Prefix], steps: int) -> list[float]:
        """Value of each prefix, judged where :meth:`roll` takes it in ``steps`` steps (0 = as it is)."""
        return await self.score(await self.roll(prefixes, steps))

    async def score(self, prefixes: Sequence[Prefix]) -> list[float]:
        """Value of each prefix: its step scores, aggregated; minus infinity where there is none.

        Each node is scored once; only what is new goes to the scorer. The root has no step and no value.
        Raises ``ScoreError`` if the scorer's records do not fit the traces.
        """
        bodies = dict.fromkeys(_body(prefix) for prefix in prefixes)
        new = [body for body in bodies if body.data.scores is None and body.prefix.strip()]
        if new:
            items = [ProblemTrace(problem=self.problem, trace=self.trace(prefix)) for prefix in new]
            for prefix, item, record in zip(new, items, await self._batcher.score(items), strict=True):
                require_fit(record, item.trace)
                prefix.data.scores, prefix.data.reason = record.scores, record.unscored_reason
                self.usage += record.usage
                self.counts.unscored += not complete_scores(record.scores)
        return [self.value(prefix) for prefix in prefixes]

    def value(self, prefix: Prefix) -> float:
        """As :meth:`score`, of a prefix that was scored before; minus infinity if it was not."""
        scores = _body(prefix).data.scores
        value = trace_score(scores or (), self.aggregation)
        return -math.inf if value is None else value

    def step_value(self, prefix: Prefix) -> float:
        """Score of a prefix's last step alone, scored before; minus infinity where there is none."""
        scores = _body(prefix).data.scores
        last = scores[-1] if scores else None
        return last if last is not None and math.isfinite(last) else -math.inf

    async def answers(self, prefixes: Sequence[Prefix]) -> list[str | None]:
        """Final answer of each solution; equal answers are equal strings."""
        texts = [prefix.prefix for prefix in prefixes]

        def work() -> list[str | None]:
            grades = self.grader.grade(texts, [None] * len(texts))
            return group_equal([grade.answer for grade in grades], self.grader.checker)

        return await asyncio.to_thread(work)  # a comparison may take seconds; others need not wait

    def record(self, prefix: Prefix, trace: Trace) -> StepScores:
        """The scores of a prefix as a record of ``trace``; those that were not asked for are unknown."""
        state = _body(prefix).data
        unknown = (None,) * len(trace.steps)
        reason = state.reason if state.scores is not None else "not asked for"
        return StepScores(
            trace_id=trace.id,
            scorer=getattr(self._batcher.scorer, "name", type(self._batcher.scorer).__name__),
            scores=state.scores if state.scores is not None else unknown,
            unscored_reason=reason,
        )

    def trace(self, prefix: Prefix) -> Trace:
        """The steps up to a node as a trace. White space alone belongs to its neighbour."""
        steps: list[Step] = []
        start = end = 0
        for node in prefix.path():
            end += len(node.text)
            if node.text.strip():
                steps.append(Step(start=start, end=end))
            elif steps:
                steps[-1] = Step(start=steps[-1].start, end=end)
            start = steps[-1].end if steps else 0
        return Trace(
            problem_id=self.problem.id,
            text=prefix.prefix,
            steps=tuple(steps),
            policy=self._batcher.policy.name,
            seed=self.seed,
            finish_reason=prefix.data.finish,
        )

    def _request(self, prefix: Prefix, n: int, *, end: bool = False, greedy: bool = False) -> SampleRequest:
        how, steps = self.steps.sampling, self.steps
        sampling = Sampling(
            temperature=0.0 if greedy else how.temperature,
            top_p=how.top_p,
            max_tokens=how.max_tokens if end else min(steps.step_tokens, how.max_tokens),
            stop=() if end else (steps.separator,),
        )
        return SampleRequest(
            prompt=steps.prompt.render(self.problem),
            prefix=prefix.prefix,
            n=n,
            first=0 if greedy else prefix.data.drawn,
            seed=self.seed,
            sampling=sampling,
        )

    def _note(self, result: SampleResult, *, step: bool) -> None:
        self.usage += result.usage
        if step and any(drawn.finish_reason == STOP_UNKNOWN for drawn in result.completions):
            raise PolicyError(
                f"policy {self._batcher.policy.name!r}: the server does not say whether a step or the "
                "solution ended, so a search step by step is not possible; vLLM and SGLang do say it"
            )
        if result.error is not None:
            self.counts.failed += 1
            if result.error not in self.counts.errors:
                self.counts.errors.append(result.error)

    def _insert(self, prefix: Prefix, drawn: Completion, *, end: bool) -> Prefix:
        """The node that a completion leads to."""
        text = drawn.text
        capped = drawn.finish_reason == TRUNCATED
        self.counts.capped += capped
        whole = text.endswith(self.steps.separator)  # the policy could have gone on after this step
        ends = end or capped or not whole
        if ends and not text.strip():
            self.counts.drawn += 1
            self.counts.merged += "" in prefix.children
            return self._end(prefix, drawn, drawn.tokens)
        spans = self.steps.cut(text) if end else [(0, len(text))]
        node = prefix
        for start, stop in spans:
            [node] = self.tree.insert([text[start:stop]], at=node)
            self.counts.merged += node.data.seen > 0
            node.data.seen += 1
        self.counts.drawn += len(spans)
        if node.data.seen == 1:
            node.data.tokens = drawn.tokens
        if ends and whole:  # another solution may go on from here
            return self._end(node, drawn, 0)
        if ends and node.data.finish is None:
            node.data.finish = drawn.finish_reason
        return node

    def _end(self, prefix: Prefix, drawn: Completion, tokens: int) -> Prefix:
        """The leaf without text that says: here the policy wrote no more, though it could have."""
        leaf = prefix.children.get("")
        if leaf is None:
            state = State(finish=drawn.finish_reason, tokens=tokens)
            leaf = Node(text="", prefix=prefix.prefix, depth=prefix.depth, parent=prefix, data=state)
            prefix.children[""] = leaf
        leaf.data.seen += 1
        return leaf


def repeats(prefix: Prefix) -> bool:
    """Whether the last step brings nothing new: it is there already, word for word, earlier in the solution.

    A blank line repeats only a blank line right before it.
    """
    words = prefix.text.split()
    before = prefix.parent
    if before is None or not prefix.text:
        return False
    if not words:
        return bool(before.text) and not before.text.strip()
    return any(node.text.split() == words for node in before.path())


def is_open(prefix: Prefix) -> bool:
    """Whether the solution goes on from here."""
    return prefix.data.finish is None


def _body(prefix: Prefix) -> Prefix:
    """The node whose step counts: white space alone adds no step to what is scored."""
    while prefix.parent is not None and not prefix.text.strip():
        prefix = prefix.parent
    return prefix
