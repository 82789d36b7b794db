"""The search for first errors in the tree of one problem: which prefixes to probe, and the pool of
solutions."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, TypeAlias

from surefoot.errors import LabelError
from surefoot.labelling.monte_carlo import probe
from surefoot.labelling.rollouts import PrefixRollouts, RolloutSampler
from surefoot.protocols import Segmenter
from surefoot.records import Problem, Step, Trace, Usage
from surefoot.tree import Node, StepTree

Estimate: TypeAlias = Literal["soft", "hard"]
"""soft: the share of correct rollouts; hard: whether any was correct."""


@dataclass(frozen=True, kw_only=True)
class TreeSettings:
    """Constants of the search; the defaults are the paper's (section 4 and appendix A)."""

    rollouts: int = 8
    """Rollouts from each probed prefix."""
    alpha: float = 0.5
    """Q(s, r) = alpha^(1 - MC(s)) · beta^(tokens of r / length): high values and short rollouts first."""
    beta: float = 0.9
    """See alpha."""
    length: int = 500
    """See alpha; in tokens."""
    c_puct: float = 0.125
    """U(s) = c_puct · sqrt(sum of N) / (1 + N(s)): states that were selected less often first."""
    search_limit: int = 100
    """Wrong solutions searched per problem."""
    pieces: int = 16
    """A solution of more steps is probed only at the ends of this many pieces of equal length."""

    def __post_init__(self) -> None:
        if min(self.rollouts, self.length, self.pieces) < 1 or self.search_limit < 0 or self.c_puct < 0:
            raise LabelError(
                "rollouts, length and pieces must be at least 1, search_limit and c_puct at least 0"
            )
        if not (0 < self.alpha <= 1 and 0 < self.beta <= 1):
            raise LabelError(f"alpha and beta lie in (0, 1], got {self.alpha} and {self.beta}")

    def quality(self, value: float, tokens: int) -> float:
        """Q of a rollout of ``tokens`` tokens from a state whose MC is ``value`` (eq. 1)."""
        return float(self.alpha ** (1 - value) * self.beta ** (tokens / self.length))

    def exploration(self, visits: int, total: int) -> float:
        """U of a state selected ``visits`` times, where all states together were ``total`` times (eq. 2)."""
        return float(self.c_puct * total**0.5 / (1 + visits))


@dataclass(frozen=True, kw_only=True)
class TreeSearch:
    """Grows ``tree``. With the ``hard`` estimate, prefixes that are known to be good are not probed again."""

    tree: ProblemTree
    rollouts: RolloutSampler
    segmenter: Segmenter
    settings: TreeSettings
    estimate: Estimate

    def run(
        self, seeds: Sequence[Trace], outcomes: Sequence[bool | None]
    ) -> Generator[PrefixRollouts, None, None]:
        """Yield each tally that needs rollouts and resume when they are complete (algorithm 1 of the paper).

        ``seeds`` are existing solutions, ``outcomes`` theirs.
        """
        tree, rollouts = self.tree, self.rollouts
        root = tree.tree.root
        tally = root.data.tally = rollouts.tally("")
        name = rollouts.batcher.policy.name
        same_policy = [trace for trace in seeds if trace.policy == name and trace.seed == rollouts.seed]
        tally.start = max((trace.sample + 1 for trace in same_policy), default=0)
        for outcome in outcomes:
            tally.borrow(outcome, "all")
        yield tally
        for trace, outcome in zip(seeds, outcomes, strict=True):
            tokens = trace.usage.completion_tokens or len((trace.text or "").split())
            ended = not trace.cut_off
            end = self._add(root, trace_steps(trace), outcome, tokens, ended=ended)
            tree.seeds.setdefault(end, trace)
        self._absorb(root)
        tree.reason = tally.failure
        if root.data.value in (0, 1):
            tree.reason = f"{'every' if root.data.value else 'no'} solution of {tally.trials} is right"
        if tree.reason is not None:
            return
        while tree.pool and len(tree.selected) < self.settings.search_limit:
            candidate = self._select()
            while (node := self._probe(candidate)) is not None:
                node.data.tally = rollouts.tally(node.prefix)
                yield node.data.tally
                self._absorb(node)

    def _select(self) -> WrongSolution:
        """Remove the candidate with the highest Q + U from the pool."""
        tree = self.tree
        total = len(tree.selected)

        def merit(candidate: WrongSolution) -> float:
            state = candidate.state.data
            quality = self.settings.quality(state.value or 0.0, candidate.tokens)
            return quality + self.settings.exploration(state.visits, total)

        best = max(range(len(tree.pool)), key=lambda number: merit(tree.pool[number]))
        candidate = tree.pool.pop(best)
        candidate.state.data.visits += 1
        tree.selected.append(candidate)
        return candidate

    def _probe(self, candidate: WrongSolution) -> Node[PrefixRecord] | None:
        """Node of the candidate's path to roll out next; ``None`` = none, or its rollouts failed."""
        ends = _ends(len(candidate.nodes), self.settings.pieces)
        verdicts: dict[int, bool | None] = {len(ends): False}
        for number, end in enumerate(ends[:-1], start=1):
            state = candidate.nodes[end - 1].data
            if self.estimate == "hard" and state.good:
                verdicts[number] = True
            elif state.tally is not None:
                verdicts[number] = None if state.value is None else state.value > 0
        number_of_next = probe(verdicts, len(ends) - 1)
        return None if number_of_next is None else candidate.nodes[ends[number_of_next - 1] - 1]

    def _absorb(self, node: Node[PrefixRecord]) -> None:
        """Add the rollouts from ``node`` to the tree, and the wrong ones to the pool."""
        tally = node.data.tally
        for rollout in tally.rollouts if tally is not None else ():
            completion = rollout.completion
            steps = [completion.text[start:end] for start, end in self.segmenter.segment(completion.text)]
            ended = not completion.cut_off
            self._add(node, [s for s in steps if s], rollout.outcome, completion.tokens, ended=ended)

    def _add(
        self,
        at: Node[PrefixRecord],
        steps: Sequence[str],
        outcome: bool | None,
        tokens: int,
        *,
        ended: bool,
    ) -> Node[PrefixRecord]:
        """Add one solution below ``at`` and return its last node."""
        tree = self.tree
        end = (tree.tree.insert(steps, at=at) or [at])[-1]
        new = end not in tree.solutions
        tree.solutions.setdefault(end, outcome)
        if outcome is None:
            return end
        if ended:
            end.data.ending = outcome
        path = end.path()
        for node in [tree.tree.root, *path]:
            node.data.solutions += 1
            node.data.right += outcome
        value = at.data.value
        # Searching a repeated solution gives the same result; a solution without a new step cannot err.
        if new and end is not at and not outcome and value is not None and 0 < value < 1:
            tree.pool.append(WrongSolution(state=at, nodes=tuple(path[at.depth :]), tokens=tokens))
        return end


def _ends(steps: int, pieces: int) -> list[int]:
    """Ends of the pieces of a solution, in steps: every step if there are at most ``pieces``."""
    count = min(steps, pieces)
    return [round(number * steps / count) for number in range(1, count + 1)]


@dataclass(eq=False, kw_only=True)
class PrefixRecord:
    """Statistics of one prefix."""

    tally: PrefixRollouts | None = None
    """Rollouts from here, if it was probed."""
    visits: int = 0
    """N: how often a rollout from here was selected."""
    solutions: int = 0
    """Graded solutions that pass through here or end here …"""
    right: int = 0
    """… and how many of them are correct."""
    ending: bool | None = None
    """Outcome of a solution that ends here."""

    @property
    def failure(self) -> str | None:
        """Why the rollouts from here failed, if they did."""
        return None if self.tally is None else self.tally.failure

    @property
    def value(self) -> float | None:
        """MC: share of correct rollouts from here; ``None`` = not probed, or they failed."""
        tally = self.tally
        return None if tally is None or tally.failure else tally.successes / tally.trials

    @property
    def good(self) -> bool | None:
        """The hard estimate: whether any solution through here is correct; ``None`` = unknown."""
        if self.right:
            return True
        return False if self.value is not None or self.ending is False else None


@dataclass(frozen=True, kw_only=True)
class WrongSolution:
    """A wrong solution in the pool: the prefix of its rollout, and the nodes of the steps that it added."""

    state: Node[PrefixRecord]
    nodes: tuple[Node[PrefixRecord], ...]
    tokens: int


@dataclass(eq=False, kw_only=True)
class ProblemTree:
    """The tree of one problem after the search."""

    problem: Problem
    tree: StepTree[PrefixRecord] = field(default_factory=lambda: StepTree(PrefixRecord))
    solutions: dict[Node[PrefixRecord], bool | None] = field(default_factory=dict)
    """Last node and outcome of each solution, in order of appearance."""
    seeds: dict[Node[PrefixRecord], Trace] = field(default_factory=dict)
    """The seed traces among them."""
    selected: list[WrongSolution] = field(default_factory=list)
    pool: list[WrongSolution] = field(default_factory=list)
    reason: str | None = None
    """Why the search did not start: all rollouts of the problem correct, all wrong, or a failure."""

    @property
    def usage(self) -> Usage:
        """Total cost of the tree."""
        # nodes that cut the same prefix differently share its tally
        tallies = {id(tally): tally for node in self.tree if (tally := node.data.tally) is not None}
        return sum((tally.usage for tally in tallies.values()), Usage())


def trace_steps(trace: Trace) -> list[str]:
    """The trace's text cut at the ends of its steps; text after the last step belongs to it."""
    text = trace.text or ""
    ends = [trace.steps[step].end for step in range(len(trace.steps) - 1)]
    cuts = [0, *ends, len(text)] if trace.steps else [0, len(text)]
    return [part for start, end in pairwise(cuts) if (part := text[start:end])]


def step_nodes(tree: ProblemTree, trace: Trace) -> list[Node[PrefixRecord]]:
    """Node of the prefix that ends with each step; an empty step has the node before it."""
    parts, nodes = trace_steps(trace), [tree.tree.root]
    by_length = {len(node.prefix): node for node in tree.tree.insert(parts)}
    for step in trace.steps[:-1]:
        nodes.append(by_length.get(step.end, nodes[-1]))
    return [*nodes[1:], by_length.get(len(trace.text or ""), nodes[-1])] if trace.steps else []


def solution_trace(
    problem: Problem,
    nodes: Sequence[Node[PrefixRecord]],
    outcome: bool | None,
    policy: str,
    seed: int,
    number: int,
) -> Trace:
    starts = [node.parent.prefix if node.parent is not None else "" for node in nodes]
    return Trace(
        problem_id=problem.id,
        text=nodes[-1].prefix,
        steps=tuple(
            Step(start=len(start), end=len(node.prefix)) for start, node in zip(starts, nodes, strict=True)
        ),
        outcome=outcome,
        policy=policy,
        seed=seed,
        sample=number,
    )
