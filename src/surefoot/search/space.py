"""The space that a search explores: a problem's step tree, which a policy extends and a scorer scores."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from surefoot.answers import Grader, Solution, group_equal
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
from surefoot.records import Message, Problem, Step, StepScores, Trace, Usage, content_id
from surefoot.scores import TraceRule, is_scored, require_fit, step_score, trace_score
from surefoot.segment import Marker
from surefoot.tree import Node, StepTree


@dataclass(eq=False, kw_only=True)
class PrefixState:
    """State of a prefix in a search."""

    finish: str | None = None
    """Why the solution ends here (``stop``, ``length``); ``None`` = it continues."""
    tokens: int = 0
    """Tokens that the policy wrote when it first sampled this step; the tokens of a piece that
    was cut into steps afterwards are all counted at its last step."""
    samples: int = 0
    """Continuations sampled from here so far."""
    count: int = 0
    """Times that this step was sampled; more than one = merged."""
    scores: tuple[float | None, ...] | None = None
    """A score for each step up to here; ``None`` = not requested."""
    reason: str | None = None
    """Why the score is missing."""
    reasons: tuple[str | None, ...] = ()
    """The scorer's reason for each score, if it gives reasons."""


_REMEMBERED = 16
"""Texts of a problem whose steps are remembered: samples often repeat each other."""

Prefix = Node[PrefixState]
"""A node of the tree: some steps of a solution."""

Prompt = str | tuple[Message, ...]
"""What a policy reads before a solution; see ``SampleRequest``."""


@dataclass(frozen=True, kw_only=True)
class PrefixStep:
    """A step of a solution with its score."""

    text: str
    start: int
    """Where it begins in the solution."""
    score: float | None
    reason: str | None
    """The scorer's reason for the score, if it gives one."""


@dataclass(frozen=True, kw_only=True)
class Steps:
    """How solutions are written step by step.

    A step ends with ``separator``, and is cut after ``step_tokens`` tokens: it is then the last one, and is
    counted as capped. After ``max_steps`` steps a solution is written to its end in one piece, of at most
    ``sampling.max_tokens`` tokens, and cut into steps by ``segmenter`` (``None``: after each separator).
    ``sampling`` configures decoding; its ``stop`` is ignored.
    """

    separator: str = "\n"
    segmenter: Segmenter | None = None
    step_tokens: int = 256
    max_steps: int = 40
    whole: bool = False
    """Write each solution in one piece, for a policy that cannot continue a text."""
    sampling: Sampling = field(default_factory=lambda: Sampling(temperature=0.8, max_tokens=2048))
    prompt: PromptFormat = field(default_factory=PromptFormat)

    def __post_init__(self) -> None:
        if not self.separator:
            raise ValueError("'separator' is empty: a step could not end")
        if self.step_tokens < 1 or self.max_steps < 1:
            raise ValueError("'step_tokens' and 'max_steps' must be 1 or more")

    def cut(self, text: str) -> list[tuple[int, int]]:
        """Spans of the steps in a text that was written in one piece."""
        return (self.segmenter or _marker(self.separator)).segment(text)


@lru_cache
def _marker(separator: str) -> Marker:
    return Marker(re.escape(separator))


class Space:
    """Grows and scores the step tree of one problem, and counts all costs.

    Equal steps after equal prefixes are one node. The samples of a prefix are numbered through, so that
    sampling two continuations twice gives the same as sampling four, whatever else is sampled.
    """

    def __init__(
        self,
        problem: Problem,
        batcher: Batcher,
        *,
        steps: Steps,
        aggregation: TraceRule,
        grader: Grader,
        seed: int,
    ) -> None:
        self.problem, self.steps, self.aggregation, self.seed = problem, steps, aggregation, seed
        self.grader = grader
        self.tree: StepTree[PrefixState] = StepTree(PrefixState)
        self.usage = Usage()
        self.counts: Counter[str] = Counter()
        """Events by the name of their field in ``SearchCounts``."""
        self.rejected: dict[str, int] = {}
        """Solutions with steps that the search rejected, by their text, with the number of these."""
        self.errors: list[str] = []
        """Errors of failed requests, each text once."""
        self._batcher = batcher
        self._cut = lru_cache(_REMEMBERED)(steps.cut)

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
        self,
        prefixes: Sequence[Prefix],
        counts: int | Sequence[int],
        *,
        to_end: bool = False,
        prompts: Sequence[Prompt] | None = None,
    ) -> list[list[Prefix]]:
        """``counts[k]`` continuations of each prefix, one step each (``to_end``: all steps to the end).

        One list per prefix, one node per continuation, in the order sampled: a step sampled twice is
        listed twice, as the same node. A finished prefix returns itself. A prefix of ``max_steps`` steps is
        written to its end. ``prompts``, one per prefix, replace the problem's prompt. A failed request
        gives fewer nodes, and is counted. Raises ``PolicyError`` for a server that does not say whether a
        step or the solution ended.
        """
        numbers = [counts] * len(prefixes) if isinstance(counts, int) else list(counts)
        open_ = [
            k for k, (prefix, n) in enumerate(zip(prefixes, numbers, strict=True)) if is_open(prefix) and n
        ]
        nodes = [[] if is_open(prefix) else [prefix] * n for prefix, n in zip(prefixes, numbers, strict=True)]
        to_end = to_end or self.steps.whole
        finish = [to_end or prefixes[k].depth >= self.steps.max_steps for k in open_]
        requests = []
        for k, end in zip(open_, finish, strict=True):
            prompt = None if prompts is None else prompts[k]
            requests.append(self._request(prefixes[k], numbers[k], end=end, prompt=prompt))
            prefixes[k].data.samples += numbers[k]  # before the call: the same prefix may be there twice
        results = await self._batcher.sample(requests) if requests else []
        for k, end, result in zip(open_, finish, results, strict=True):
            self._account(result, step=not end)
            nodes[k] = [self._insert(prefixes[k], completion, end=end) for completion in result.completions]
        return nodes

    async def score(self, prefixes: Sequence[Prefix]) -> list[float]:
        """Value of each prefix: its step scores, aggregated; minus infinity without a score.

        Each node is scored once; only new nodes go to the scorer. The root has neither step nor value.
        Raises ``ScoreError`` if the scorer's records do not fit the traces.
        """
        nodes = dict.fromkeys(_scored_node(prefix) for prefix in prefixes)
        new = [node for node in nodes if node.data.scores is None and node.prefix.strip()]
        if new:
            items = [ProblemTrace(problem=self.problem, trace=self.trace(prefix)) for prefix in new]
            for prefix, item, record in zip(new, items, await self._batcher.score(items), strict=True):
                require_fit(record, item.trace)
                prefix.data.scores, prefix.data.reason = record.scores, record.unscored_reason
                prefix.data.reasons = record.reasons
                self.usage += record.usage
                self.counts["unscored"] += not is_scored(record.scores, self.aggregation)
        return [self.value(prefix) for prefix in prefixes]

    def value(self, prefix: Prefix) -> float:
        """As :meth:`score`, of a prefix that was scored before; minus infinity if it was not."""
        scores = _scored_node(prefix).data.scores
        value = trace_score(scores or (), self.aggregation)
        return -math.inf if value is None else value

    def refuted(self, prefix: Prefix) -> bool:
        """Whether a check found a step of a prefix that was scored before wrong."""
        state = _scored_node(prefix).data
        pairs = zip(state.scores or (), state.reasons, strict=False)
        return any(score == 0 and reason for score, reason in pairs)

    def step_value(self, prefix: Prefix) -> float:
        """Score of a prefix's last step alone, or the lowest of a solution written in one piece.

        The prefix was scored before; minus infinity without a score.
        """
        scores = _scored_node(prefix).data.scores or (None,)
        values = [step_score(score, self.aggregation) for score in scores[0 if self.steps.whole else -1 :]]
        return min(-math.inf if value is None else value for value in values)

    def scored_steps(self, prefix: Prefix) -> list[PrefixStep]:
        """The steps of a prefix that was scored before; none of one that was not."""
        state = _scored_node(prefix).data
        steps = self.trace(prefix).steps if state.scores else ()
        reasons = state.reasons or (None,) * len(steps)
        return [
            PrefixStep(
                text=prefix.prefix[step.start : step.end], start=step.start, score=score, reason=reason
            )
            for step, score, reason in zip(steps, state.scores or (), reasons, strict=True)
        ]

    def before(self, prefix: Prefix, end: int) -> Prefix:
        """The longest part of ``prefix`` that has at most ``end`` characters, and is not above the root."""
        nodes = [node for node in prefix.path() if len(node.prefix) <= end and node.depth > self.root.depth]
        return nodes[-1] if nodes else self.root

    async def answers(self, prefixes: Sequence[Prefix]) -> list[str | None]:
        """Final answer of each solution; equal answers are equal strings."""
        solutions = [self.solution(prefix) for prefix in prefixes]

        def extract() -> list[str | None]:
            grades = self.grader.grade(solutions, [None] * len(solutions))
            return group_equal([grade.answer for grade in grades], self.grader.checker)

        return await self.grader.checker.run(extract)  # a comparison may take seconds; others need not wait

    def solution(self, prefix: Prefix) -> Solution:
        """A solution as it is graded; an unfinished one is cut off."""
        return Solution(text=prefix.prefix, finish_reason=prefix.data.finish or "length")

    def record(self, prefix: Prefix, trace: Trace) -> StepScores:
        """The scores of a prefix as a record of ``trace``; scores that were not requested are ``None``."""
        state = _scored_node(prefix).data
        unscored = (None,) * len(trace.steps)
        reason = state.reason if state.scores is not None else "not requested"
        return StepScores(
            trace_id=trace.id,
            scorer=getattr(self._batcher.scorer, "name", type(self._batcher.scorer).__name__),
            scores=state.scores if state.scores is not None else unscored,
            unscored_reason=reason,
            reasons=state.reasons,
        )

    def trace(self, prefix: Prefix) -> Trace:
        """The steps up to a node as a trace. White space alone belongs to its neighbour."""
        steps: list[Step] = []
        start = end = 0
        for node in prefix.path():
            end += len(node.text)
            if node.text.strip():
                steps.append(Step.trusted(start, end, "thought"))
            elif steps:
                steps[-1] = Step.trusted(steps[-1].start, end, "thought")
            start = steps[-1].end if steps else 0
        return Trace(
            problem_id=self.problem.id,
            text=prefix.prefix,
            steps=tuple(steps),
            policy=self._batcher.policy.name,
            seed=self.seed,
            finish_reason=prefix.data.finish,
        )

    def _request(
        self, prefix: Prefix, n: int, *, end: bool = False, prompt: Prompt | None = None
    ) -> SampleRequest:
        steps, base = self.steps, self.steps.sampling
        sampling = Sampling(
            temperature=base.temperature,
            top_p=base.top_p,
            max_tokens=base.max_tokens if end else min(steps.step_tokens, base.max_tokens),
            stop=() if end else (steps.separator,),
        )
        return SampleRequest(
            prompt=steps.prompt.render(self.problem) if prompt is None else prompt,
            prefix=prefix.prefix,
            n=n,
            first=prefix.data.samples,
            seed=self.seed,
            sampling=sampling,
        )

    def _account(self, result: SampleResult, *, step: bool) -> None:
        self.usage += result.usage
        if step and any(completion.finish_reason == STOP_UNKNOWN for completion in result.completions):
            raise PolicyError(
                f"policy {self._batcher.policy.name!r}: the server does not say whether a step or the "
                "solution ended, so a search step by step is not possible; vLLM and SGLang do say it"
            )
        if result.error is not None:
            self.counts["failed"] += 1
            if result.error not in self.errors:
                self.errors.append(result.error)

    def _insert(self, prefix: Prefix, completion: Completion, *, end: bool) -> Prefix:
        """The node that a completion leads to."""
        text = completion.text if prefix.prefix else completion.whole_text
        capped = completion.cut_off
        self.counts["capped"] += capped
        complete = text.endswith(self.steps.separator)  # the policy could have continued after this step
        ends = end or capped or not complete
        if ends and not text.strip():
            self.counts["sampled"] += 1
            self.counts["merged"] += "" in prefix.children
            return self._end(prefix, completion, completion.tokens)
        spans = self._cut(text) if end else [(0, len(text))]
        node = prefix
        for start, stop in spans:
            [node] = self.tree.insert([text[start:stop]], at=node)
            self.counts["merged"] += node.data.count > 0
            node.data.count += 1
        self.counts["sampled"] += len(spans)
        if node.data.count == 1:
            node.data.tokens = completion.tokens
        if ends and complete:  # another solution may continue from here
            return self._end(node, completion, 0)
        if ends and node.data.finish is None:
            node.data.finish = completion.finish_reason
        return node

    def _end(self, prefix: Prefix, completion: Completion, tokens: int) -> Prefix:
        """The leaf without text that marks where the policy wrote no more, though it could have."""
        leaf = prefix.children.get("")
        if leaf is None:
            state = PrefixState(finish=completion.finish_reason, tokens=tokens)
            leaf = Node(text="", prefix=prefix.prefix, depth=prefix.depth, parent=prefix, data=state)
            prefix.children[""] = leaf
        leaf.data.count += 1
        return leaf


def is_open(prefix: Prefix) -> bool:
    """Whether the solution is unfinished here."""
    return prefix.data.finish is None


def _scored_node(prefix: Prefix) -> Prefix:
    """The node with the last step that is scored: white space alone does not count as a step."""
    while prefix.parent is not None and not prefix.text.strip():
        prefix = prefix.parent
    return prefix
