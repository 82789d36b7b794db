"""Step labels by tree search (Luo et al., OmegaPRM, arXiv 2406.06592).

The search takes a wrong solution from a pool and finds its first error by binary search with rollouts. The
rollouts from the good prefixes are solutions too: the wrong ones join the pool.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from pydantic import Field

from surefoot.answers import Grader
from surefoot.batching import Batcher
from surefoot.labelling.monte_carlo import (
    PrefixRollouts,
    RolloutRule,
    RolloutSampler,
    probe,
    require_rollable,
)
from surefoot.policies.prompts import PromptFormat
from surefoot.protocols import LabelledTrace, Policy, ProblemTrace, Sampling, Segmenter
from surefoot.records import Evidence, FrozenModel, Problem, Step, StepLabel, StepPair, Trace, Usage
from surefoot.stats.intervals import wilson_interval
from surefoot.tree import Node, StepTree


class TreeSettings(FrozenModel):
    """Constants of the search; the defaults are the paper's (section 4 and appendix A)."""

    rollouts: int = Field(default=8, ge=1)
    """Rollouts from each probed prefix."""
    alpha: float = Field(default=0.5, gt=0, le=1)
    """Q(s, r) = alpha^(1 - MC(s)) · beta^(tokens of r / length): high values and short rollouts first."""
    beta: float = Field(default=0.9, gt=0, le=1)
    """See alpha."""
    length: int = Field(default=500, ge=1)
    """See alpha; in tokens."""
    c_puct: float = Field(default=0.125, ge=0)
    """U(s) = c_puct · sqrt(sum of N) / (1 + N(s)): states that were selected less often first."""
    search_limit: int = Field(default=100, ge=0)
    """Wrong solutions searched per problem."""
    pieces: int = Field(default=16, ge=1)
    """A solution of more steps is probed only at the ends of this many pieces of equal length."""

    def quality(self, value: float, tokens: int) -> float:
        """Q of a rollout of ``tokens`` tokens from a state whose MC is ``value`` (eq. 1)."""
        return float(self.alpha ** (1 - value) * self.beta ** (tokens / self.length))

    def exploration(self, visits: int, total: int) -> float:
        """U of a state selected ``visits`` times, where all states together were ``total`` times (eq. 2)."""
        return float(self.c_puct * total**0.5 / (1 + visits))


@dataclass(frozen=True, kw_only=True)
class OmegaPRMLabeller:
    """Tree search: ``grow`` returns a tree for each problem.

    :meth:`labelled_traces` returns the solutions of one, and :meth:`pairs` its rival steps.

    ``estimate="soft"`` labels a step with the share of correct rollouts from its prefix, for probed prefixes
    only. ``hard`` labels it 1 if any correct solution passes through its prefix, 0 if it is the first prefix
    from which no rollout was correct; so every step of a correct rollout has a label, and prefixes that are
    known to be good are not probed again. Steps after a first error are unknown.
    """

    policy: Policy
    grader: Grader
    segmenter: Segmenter
    prompt: PromptFormat = field(default_factory=PromptFormat)
    settings: TreeSettings = field(default_factory=TreeSettings)
    estimate: Literal["soft", "hard"] = "soft"
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0

    async def grow(
        self, problems: Sequence[Problem], seeds: Mapping[str, Sequence[Trace]] | None = None
    ) -> list[ProblemTree]:
        """One tree per problem. ``seeds`` holds solutions by problem id; rollouts replace missing ones.

        All problems are searched concurrently: a policy in this process gets large batches, and a server is
        always busy. Raises ``LabelError`` for a seed of a problem without reference answer, or a chat trace.
        """
        for problem in problems:
            for trace in (seeds or {}).get(problem.id, ()):
                require_rollable(ProblemTrace(problem=problem, trace=trace), self.grader)
        batcher = Batcher(self.policy)
        return await batcher.run(
            [self._grow_one(problem, (seeds or {}).get(problem.id, ()), batcher) for problem in problems]
        )

    async def _grow_one(self, problem: Problem, seeds: Sequence[Trace], batcher: Batcher) -> ProblemTree:
        rollouts = RolloutSampler(
            problem=problem,
            batcher=batcher,
            grader=self.grader,
            prompt=self.prompt,
            sampling=self.sampling,
            seed=self.seed,
        )
        seeds = [trace for trace in seeds if trace.text or trace.error is None]
        search = TreeSearch(
            tree=ProblemTree(problem=problem),
            rollouts=rollouts,
            segmenter=self.segmenter,
            settings=self.settings,
            estimate=self.estimate,
        )
        await search.run(seeds, await rollouts.outcomes(seeds))
        return search.tree

    def labelled_traces(self, tree: ProblemTree) -> list[LabelledTrace]:
        """The tree's solutions as traces; each node's label is on the first solution through it.

        A solution without such a label is left out. The labels' evidence adds up to the tree's cost.
        """
        cost, done, labelled = tree.usage, {tree.tree.root}, []
        for number, (end, outcome) in enumerate(tree.solutions.items()):
            nodes = end.path()
            if not nodes:  # a solution without text
                continue
            seed = tree.seeds.get(end)
            if seed is None or len(seed.steps) != len(nodes):
                trace = solution_trace(tree.problem, nodes, outcome, self.policy.name, self.seed, number)
            else:
                trace = seed
            labels = []
            for step, node in enumerate(nodes):
                value = self.value(node)
                if node in done or value is None:
                    continue
                done.add(node)
                labels.append(self._label(trace, step, node, value, cost))
                cost = Usage()
            if labels:
                labelled.append(LabelledTrace(problem=tree.problem, trace=trace, labels=tuple(labels)))
        return labelled

    def pairs(self, tree: ProblemTree) -> list[StepPair]:
        """Pairs of steps after the same prefix with different values, the better one first."""
        rivals = []
        for node in tree.tree:
            valued = [
                (child, value) for child in node.children.values() if (value := self.value(child)) is not None
            ]
            for number, (child, first) in enumerate(valued):
                for other, second in valued[number + 1 :]:
                    if first != second:
                        better, worse = sorted(((first, child.text), (second, other.text)), reverse=True)
                        rivals.append(
                            StepPair(
                                problem_id=tree.problem.id,
                                prefix=node.prefix,
                                better=better[1],
                                worse=worse[1],
                                better_value=better[0],
                                worse_value=worse[0],
                                source=f"omegaprm-{self.estimate}",
                            )
                        )
        return rivals

    def value(self, node: Node[PrefixRecord]) -> float | None:
        """Label of the step that leads to ``node``; ``None`` if it is unknown."""
        state = node.data
        if self.estimate == "hard" and state.good:
            return 1.0
        if state.failure is not None:
            return None
        if self.estimate == "soft":
            return state.value if state.value is not None or state.ending is None else float(state.ending)
        # the first error is at the first prefix that is not good, if the one before it is
        ancestors = node.path()[:-1]
        return 0.0 if state.good is False and all(above.data.good for above in ancestors) else None

    def _label(
        self, trace: Trace, step: int, node: Node[PrefixRecord], value: float, usage: Usage
    ) -> StepLabel:
        state = node.data
        probed = state.value is not None
        successes, trials = state.right, state.solutions
        if self.estimate == "soft" and probed and state.tally is not None:
            successes, trials = state.tally.successes, state.tally.trials
        return StepLabel(
            trace_id=trace.id,
            step=step,
            kind="value",
            value=value,
            source=f"omegaprm-{self.estimate}",
            evidence=Evidence(
                successes=successes,
                trials=trials,
                interval=wilson_interval(successes, trials).bounds if probed else None,
                usage=usage,
                rater=self.policy.name,
                message=None if probed else f"{trials} solutions pass through here",
            ),
        )


@dataclass(frozen=True, kw_only=True)
class TreeSearch:
    """Grows ``tree``. With the ``hard`` estimate, prefixes that are known to be good are not probed again."""

    tree: ProblemTree
    rollouts: RolloutSampler
    segmenter: Segmenter
    settings: TreeSettings
    estimate: Literal["soft", "hard"]

    async def run(self, seeds: Sequence[Trace], outcomes: Sequence[bool | None]) -> None:
        """Search (algorithm 1 of the paper). ``seeds`` are existing solutions, ``outcomes`` theirs."""
        tree, rollouts = self.tree, self.rollouts
        root = tree.tree.root
        tally = root.data.tally = rollouts.tally("")
        name = rollouts.batcher.policy.name
        same_policy = [trace for trace in seeds if trace.policy == name and trace.seed == rollouts.seed]
        tally.start = max((trace.sample + 1 for trace in same_policy), default=0)
        for outcome in outcomes:
            if outcome is not None:
                tally.borrow(outcome)
        rule = RolloutRule(rollouts=self.settings.rollouts)
        await rollouts.settle([tally], rule)
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
                await rollouts.settle([node.data.tally], rule)
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
        self, at: Node[PrefixRecord], steps: Sequence[str], outcome: bool | None, tokens: int, *, ended: bool
    ) -> Node[PrefixRecord]:
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
