"""Step labels by tree search (Luo et al., OmegaPRM, arXiv 2406.06592).

A wrong solution is taken from a pool, its first error is found by binary search with rollouts, and the
rollouts from the good prefixes on the way are solutions themselves: the wrong ones join the pool.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from surefoot.answers import Grader
from surefoot.errors import LabelError
from surefoot.labelling.monte_carlo import AFTER_ERROR, probe
from surefoot.labelling.problem_tree import (
    Candidate,
    ProblemTree,
    State,
    solution_trace,
    step_nodes,
    trace_steps,
)
from surefoot.labelling.rollouts import Rollouts, Tally, require_rollable
from surefoot.labelling.stopping import SoftEstimate, wilson_interval
from surefoot.policies.prompts import PromptFormat
from surefoot.protocols import LabelledTrace, Policy, ProblemTrace, Sampling, Segmenter
from surefoot.records import Evidence, Problem, StepLabel, StepPair, Trace, Usage
from surefoot.tree import Node


@dataclass(frozen=True, kw_only=True)
class TreeSettings:
    """Constants of the search; the defaults are the paper's (section 4 and appendix A)."""

    rollouts: int = 8
    """k: rollouts from each probed prefix."""
    alpha: float = 0.5
    beta: float = 0.9
    length: int = 500
    """L, in tokens. Q(s, r) = alpha^(1 - MC(s)) * beta^(len(r) / L): high values and short rollouts first."""
    c_puct: float = 0.125
    """U(s) = c_puct * sqrt(sum of N) / (1 + N(s)): states that were selected less often first."""
    search_limit: int = 100
    """Selections per problem."""
    pieces: int = 16
    """A solution of more steps is probed at the ends of this many pieces of equal length only."""

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
class OmegaPRMLabeller:
    """Tree search; a :class:`surefoot.protocols.Labeller` for given traces, which seed their problem's tree.

    ``estimate="soft"`` labels a step with the share of right rollouts from its prefix, for probed prefixes
    alone. ``hard`` labels it 1 if any right solution passes through its prefix, 0 if it is the first from
    which none of the rollouts was right; so every step of a right rollout has a label, and prefixes that are
    known to be good are not probed again. Steps after a first error have none. ``grow`` gives the trees
    themselves, whose solutions and pairs of rival steps are training data of their own.
    """

    policy: Policy
    grader: Grader
    segmenter: Segmenter
    prompt: PromptFormat = field(default_factory=PromptFormat)
    settings: TreeSettings = field(default_factory=TreeSettings)
    estimate: Literal["soft", "hard"] = "soft"
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0

    async def label(self, items: Sequence[ProblemTrace]) -> list[list[StepLabel]]:
        """One list per item, one label per step; the cost of a tree is on the first label of its problem.

        Raises ``LabelError`` for a problem without reference answer or a chat trace.
        """
        for item in items:
            require_rollable(item)
        problems = {item.problem.id: item.problem for item in items}
        seeds: dict[str, list[Trace]] = {name: [] for name in problems}
        for item in items:
            seeds[item.problem.id].append(item.trace)
        return self.labels(items, await self.grow(list(problems.values()), seeds))

    def labels(self, items: Sequence[ProblemTrace], trees: Sequence[ProblemTree]) -> list[list[StepLabel]]:
        """What ``trees`` grown from ``items`` say of them: one list per item, one label per step."""
        by_problem = {tree.problem.id: tree for tree in trees}
        unpaid = {name: tree.usage for name, tree in by_problem.items()}
        rows = []
        for item in items:
            tree = by_problem[item.problem.id]
            rows.append(
                [
                    self._label(item.trace, step, node, tree, unpaid.pop(item.problem.id, Usage()))
                    for step, node in enumerate(step_nodes(tree, item.trace))
                ]
            )
        return rows

    async def grow(
        self, problems: Sequence[Problem], seeds: Mapping[str, Sequence[Trace]] | None = None
    ) -> list[ProblemTree]:
        """One tree a problem. ``seeds`` holds solutions by problem id; rollouts make up for missing ones.

        All problems are searched side by side, so that each request to the policy is a large one.
        """
        rollouts = Rollouts(
            policy=self.policy, grader=self.grader, prompt=self.prompt, sampling=self.sampling, seed=self.seed
        )
        rule = SoftEstimate(rollouts=self.settings.rollouts)
        trees = [ProblemTree(problem=problem) for problem in problems]
        searches = [
            self._search(tree, rollouts, list((seeds or {}).get(tree.problem.id, ()))) for tree in trees
        ]
        waiting = [(search, tally) for search in searches if (tally := next(search, None))]
        while waiting:
            await rollouts.settle([tally for _, tally in waiting], rule)
            waiting = [(search, tally) for search, _ in waiting if (tally := next(search, None))]
        return trees

    def labelled_traces(self, tree: ProblemTree) -> list[LabelledTrace]:
        """The tree's solutions as traces; each node's label is on the first solution through it.

        A solution without a label of its own is left out. The labels' evidence adds up to the tree's cost.
        """
        unpaid, done, found = tree.usage, {tree.tree.root}, []
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
                if node in done or self._value(node)[0] is None:
                    continue
                done.add(node)
                labels.append(self._label(trace, step, node, tree, unpaid))
                unpaid = Usage()
            if labels:
                found.append(LabelledTrace(problem=tree.problem, trace=trace, labels=tuple(labels)))
        return found

    def pairs(self, tree: ProblemTree) -> list[StepPair]:
        """Rival steps after one prefix whose values are known and differ, the better one first."""
        found = []
        for node in tree.tree:
            known = [
                (child, value)
                for child in node.children.values()
                if (value := self._value(child)[0]) is not None
            ]
            for place, (one, first) in enumerate(known):
                for other, second in known[place + 1 :]:
                    if first != second:
                        better, worse = sorted(((first, one.text), (second, other.text)), reverse=True)
                        found.append(
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
        return found

    def _search(
        self, tree: ProblemTree, rollouts: Rollouts, seeds: list[Trace]
    ) -> Generator[Tally, None, None]:
        """Yields each tally that needs rollouts; goes on when they are there (algorithm 1 of the paper)."""
        root = tree.tree.root
        tally = root.data.tally = rollouts.tally(tree.problem, "")
        seeds = [trace for trace in seeds if trace.text or trace.error is None]
        own = [trace for trace in seeds if trace.policy == self.policy.name and trace.seed == self.seed]
        tally.start = max((trace.sample + 1 for trace in own), default=0)
        graded = self.grader.grade(
            [trace.text or "" for trace in seeds], [tree.problem.answer for _ in seeds]
        )
        outcomes = [
            grade.outcome if trace.outcome is None else trace.outcome
            for trace, grade in zip(seeds, graded, strict=True)
        ]
        for outcome in outcomes:
            tally.borrow(outcome, "all")
        yield tally
        for trace, outcome in zip(seeds, outcomes, strict=True):
            tokens = trace.usage.completion_tokens or len((trace.text or "").split())
            ended = trace.finish_reason != "length"
            end = self._add(tree, root, trace_steps(trace), outcome, tokens, ended=ended)
            tree.seeds.setdefault(end, trace)
        self._absorb(tree, root)
        tree.reason = tally.failure
        if root.data.value in (0, 1):
            tree.reason = f"{'every' if root.data.value else 'no'} solution of {tally.trials} is right"
        if tree.reason is not None:
            return
        while tree.pool and len(tree.selected) < self.settings.search_limit:
            candidate = self._select(tree)
            while (node := self._probe(candidate)) is not None:
                node.data.tally = rollouts.tally(tree.problem, node.prefix)
                yield node.data.tally
                self._absorb(tree, node)

    def _select(self, tree: ProblemTree) -> Candidate:
        """Takes the candidate with the highest Q + U out of the pool, for good."""
        total = len(tree.selected)

        def merit(candidate: Candidate) -> float:
            state = candidate.state.data
            quality = self.settings.quality(state.value or 0.0, candidate.tokens)
            return quality + self.settings.exploration(state.visits, total)

        best = max(range(len(tree.pool)), key=lambda number: merit(tree.pool[number]))
        candidate = tree.pool.pop(best)
        candidate.state.data.visits += 1
        tree.selected.append(candidate)
        return candidate

    def _probe(self, candidate: Candidate) -> Node[State] | None:
        """Node of the candidate's path to roll out next; ``None`` = no more, or that one failed already."""
        places = _ends(len(candidate.nodes), self.settings.pieces)
        known: dict[int, bool | None] = {len(places): False}
        for number, place in enumerate(places[:-1], start=1):
            state = candidate.nodes[place - 1].data
            if self.estimate == "hard" and state.good:
                known[number] = True
            elif state.tally is not None:
                known[number] = None if state.value is None else state.value > 0
        number_of_next = probe(known, len(places) - 1)
        return None if number_of_next is None else candidate.nodes[places[number_of_next - 1] - 1]

    def _absorb(self, tree: ProblemTree, node: Node[State]) -> None:
        """Take the rollouts from ``node`` into the tree, the wrong ones into the pool."""
        tally = node.data.tally
        for rollout in tally.rollouts if tally is not None else ():
            completion = rollout.completion
            steps = [completion.text[start:end] for start, end in self.segmenter.segment(completion.text)]
            ended = completion.finish_reason != "length"
            self._add(tree, node, [s for s in steps if s], rollout.outcome, completion.tokens, ended=ended)

    def _add(
        self,
        tree: ProblemTree,
        at: Node[State],
        steps: Sequence[str],
        outcome: bool | None,
        tokens: int,
        *,
        ended: bool,
    ) -> Node[State]:
        """Take in one solution, from ``at`` on; returns where it ends."""
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
        # one found again would be searched again, to the same end; one that adds no step has no first error
        if new and end is not at and not outcome and value is not None and 0 < value < 1:
            tree.pool.append(Candidate(state=at, nodes=tuple(path[at.depth :]), tokens=tokens))
        return end

    def _value(self, node: Node[State]) -> tuple[float | None, str | None]:
        """Label of the step that leads to ``node``, or why it has none."""
        state = node.data
        if self.estimate == "hard" and state.good:
            return 1.0, None
        if state.failure is not None:
            return None, state.failure
        if self.estimate == "soft":
            if state.value is not None:
                return state.value, None
            return (None, "not probed") if state.ending is None else (float(state.ending), None)
        before = node.path()[:-1]
        if any(above.data.good is False for above in before):
            return None, AFTER_ERROR
        if state.good is None:
            return None, "not probed"
        if before and not before[-1].data.good:
            return None, "the first error is in this step or in one before it"
        return 0.0, None

    def _label(
        self, trace: Trace, step: int, node: Node[State], tree: ProblemTree, usage: Usage
    ) -> StepLabel:
        value, reason = self._value(node)
        state = node.data
        if value is None and tree.reason is not None:
            reason = tree.reason
        probed = state.value is not None
        successes, trials = state.right, state.solutions
        if self.estimate == "soft" and probed and state.tally is not None:
            successes, trials = state.tally.successes, state.tally.trials
        return StepLabel(
            trace_id=trace.id,
            step=step,
            kind="value",
            value=value,
            reason=reason,
            source=f"omegaprm-{self.estimate}",
            evidence=Evidence(
                successes=successes,
                trials=trials,
                interval=wilson_interval(successes, trials) if probed else None,
                usage=usage,
                rater=self.policy.name,
                message=None if probed else f"{trials} solutions pass through here",
            ),
        )


def _ends(steps: int, pieces: int) -> list[int]:
    """Where the pieces of a solution end, in steps: every step if there are no more than ``pieces``."""
    count = min(steps, pieces)
    return [round(number * steps / count) for number in range(1, count + 1)]
