"""The search for first errors in the tree of one problem: what is probed next, and what joins the pool."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from surefoot.errors import LabelError
from surefoot.labelling.monte_carlo import probe
from surefoot.labelling.problem_tree import Candidate, ProblemTree, State, trace_steps
from surefoot.labelling.rollouts import Rollouts, Tally
from surefoot.protocols import Segmenter
from surefoot.records import Trace
from surefoot.tree import Node

Estimate: TypeAlias = Literal["soft", "hard"]
"""soft: the share of right rollouts; hard: whether any was right."""


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
class TreeSearch:
    """Grows ``tree``. With the ``hard`` estimate, prefixes that are known to be good are not probed again."""

    tree: ProblemTree
    rollouts: Rollouts
    segmenter: Segmenter
    settings: TreeSettings
    estimate: Estimate

    def run(self, seeds: Sequence[Trace]) -> Generator[Tally, None, None]:
        """Yields each tally that needs rollouts; goes on when they are there (algorithm 1 of the paper).

        ``seeds`` are solutions that are there already.
        """
        tree, rollouts = self.tree, self.rollouts
        root = tree.tree.root
        tally = root.data.tally = rollouts.tally(tree.problem, "")
        seeds = [trace for trace in seeds if trace.text or trace.error is None]
        own = [
            trace for trace in seeds if trace.policy == rollouts.policy.name and trace.seed == rollouts.seed
        ]
        tally.start = max((trace.sample + 1 for trace in own), default=0)
        graded = rollouts.grader.grade(
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
                node.data.tally = rollouts.tally(tree.problem, node.prefix)
                yield node.data.tally
                self._absorb(node)

    def _select(self) -> Candidate:
        """Takes the candidate with the highest Q + U out of the pool, for good."""
        tree = self.tree
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

    def _absorb(self, node: Node[State]) -> None:
        """Take the rollouts from ``node`` into the tree, the wrong ones into the pool."""
        tally = node.data.tally
        for rollout in tally.rollouts if tally is not None else ():
            completion = rollout.completion
            steps = [completion.text[start:end] for start, end in self.segmenter.segment(completion.text)]
            ended = completion.finish_reason != "length"
            self._add(node, [s for s in steps if s], rollout.outcome, completion.tokens, ended=ended)

    def _add(
        self,
        at: Node[State],
        steps: Sequence[str],
        outcome: bool | None,
        tokens: int,
        *,
        ended: bool,
    ) -> Node[State]:
        """Take in one solution, from ``at`` on; returns where it ends."""
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
        # one found again would be searched again, to the same end; one that adds no step has no first error
        if new and end is not at and not outcome and value is not None and 0 < value < 1:
            tree.pool.append(Candidate(state=at, nodes=tuple(path[at.depth :]), tokens=tokens))
        return end


def _ends(steps: int, pieces: int) -> list[int]:
    """Where the pieces of a solution end, in steps: every step if there are no more than ``pieces``."""
    count = min(steps, pieces)
    return [round(number * steps / count) for number in range(1, count + 1)]
