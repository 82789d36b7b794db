"""The tree of one problem: distinct steps of its solutions, and what rollouts say of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from surefoot.labelling.rollouts import Tally
from surefoot.records import Problem, Step, Trace, Usage
from surefoot.tree import Node, StepTree


@dataclass(eq=False, kw_only=True)
class State:
    """What the search knows of one prefix."""

    tally: Tally | None = None
    """Rollouts from here, once it was probed."""
    visits: int = 0
    """N: how often a rollout from here was selected."""
    solutions: int = 0
    """Judged solutions that pass through here or end here …"""
    right: int = 0
    """… and how many of them are right."""
    ending: bool | None = None
    """Outcome of a solution that ends here."""

    @property
    def failure(self) -> str | None:
        """What went wrong with the rollouts from here, if there are any."""
        return None if self.tally is None else self.tally.failure

    @property
    def value(self) -> float | None:
        """MC: share of the rollouts from here that are right; ``None`` = not probed, or they failed."""
        tally = self.tally
        return None if tally is None or tally.failure else tally.successes / tally.trials

    @property
    def good(self) -> bool | None:
        """The hard estimate: whether any solution through here is right; ``None`` = not known."""
        if self.right:
            return True
        return False if self.value is not None or self.ending is False else None


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A wrong solution in the pool: where its rollout began, and the nodes of the steps it added."""

    state: Node[State]
    nodes: tuple[Node[State], ...]
    tokens: int


@dataclass(eq=False, kw_only=True)
class ProblemTree:
    """The tree of one problem as the search left it."""

    problem: Problem
    tree: StepTree[State] = field(default_factory=lambda: StepTree(State))
    solutions: dict[Node[State], bool | None] = field(default_factory=dict)
    """Where each solution ends, and its outcome, in the order found."""
    seeds: dict[Node[State], Trace] = field(default_factory=dict)
    """The given traces among them."""
    selected: list[Candidate] = field(default_factory=list)
    pool: list[Candidate] = field(default_factory=list)
    reason: str | None = None
    """Why nothing was searched: all rollouts of the problem right, all wrong, or a failure."""

    @property
    def usage(self) -> Usage:
        """All that the tree cost."""
        # nodes cut differently on the way to the same prefix share its tally
        tallies = {id(tally): tally for node in self.tree if (tally := node.data.tally) is not None}
        return sum((tally.usage for tally in tallies.values()), Usage())


def trace_steps(trace: Trace) -> list[str]:
    """The trace's text cut at the ends of its steps; what follows the last step belongs to it."""
    text = trace.text or ""
    ends = [trace.steps[step].end for step in range(len(trace.steps) - 1)]
    cuts = [0, *ends, len(text)] if trace.steps else [0, len(text)]
    return [part for start, end in pairwise(cuts) if (part := text[start:end])]


def step_nodes(tree: ProblemTree, trace: Trace) -> list[Node[State]]:
    """Node of the prefix that ends with each step; a step without text stays at the node before it."""
    parts, nodes = trace_steps(trace), [tree.tree.root]
    by_length = {len(node.prefix): node for node in tree.tree.insert(parts)}
    for step in trace.steps[:-1]:
        nodes.append(by_length.get(step.end, nodes[-1]))
    return [*nodes[1:], by_length.get(len(trace.text or ""), nodes[-1])] if trace.steps else []


def solution_trace(
    problem: Problem, nodes: Sequence[Node[State]], outcome: bool | None, policy: str, seed: int, number: int
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
