"""Step labels by tree search (Luo et al., OmegaPRM, arXiv 2406.06592).

The search takes a wrong solution from a pool and finds its first error by binary search with rollouts. The
rollouts from the good prefixes are solutions too: the wrong ones join the pool.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from surefoot.answers import Grader
from surefoot.batching import Batcher
from surefoot.labelling.omegaprm_tree import (
    Estimate,
    PrefixRecord,
    ProblemTree,
    TreeSearch,
    TreeSettings,
    solution_trace,
    step_nodes,
)
from surefoot.labelling.rollouts import RolloutSampler, require_rollable
from surefoot.labelling.stopping import SoftEstimate
from surefoot.labels import AFTER_FIRST_ERROR
from surefoot.policies.prompts import PromptFormat
from surefoot.protocols import LabelledTrace, Policy, ProblemTrace, Sampling, Segmenter
from surefoot.records import Evidence, Problem, StepLabel, StepPair, Trace, Usage
from surefoot.stats.intervals import wilson_interval
from surefoot.tree import Node


@dataclass(frozen=True, kw_only=True)
class OmegaPRMLabeller:
    """Tree search as a :class:`surefoot.protocols.Labeller`: traces seed the tree of their problem.

    ``estimate="soft"`` labels a step with the share of correct rollouts from its prefix, for probed prefixes
    only. ``hard`` labels it 1 if any correct solution passes through its prefix, 0 if it is the first prefix
    from which no rollout was correct; so every step of a correct rollout has a label, and prefixes that are
    known to be good are not probed again. Steps after a first error are unknown. ``grow`` returns the trees,
    whose solutions and pairs of rival steps are training data too.
    """

    policy: Policy
    grader: Grader
    segmenter: Segmenter
    prompt: PromptFormat = field(default_factory=PromptFormat)
    settings: TreeSettings = field(default_factory=TreeSettings)
    estimate: Estimate = "soft"
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0

    async def label(self, items: Sequence[ProblemTrace]) -> list[list[StepLabel]]:
        """One list per item, one label per step; the cost of a tree is on the first label of its problem.

        Raises ``LabelError`` for a problem without reference answer or a chat trace.
        """
        for item in items:
            require_rollable(item, self.grader)
        problems = {item.problem.id: item.problem for item in items}
        seeds: dict[str, list[Trace]] = {name: [] for name in problems}
        for item in items:
            seeds[item.problem.id].append(item.trace)
        return self.labels(items, await self.grow(list(problems.values()), seeds))

    def labels(self, items: Sequence[ProblemTrace], trees: Sequence[ProblemTree]) -> list[list[StepLabel]]:
        """Labels of ``items`` from the ``trees`` grown from them: one list per item, one label per step."""
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
        """One tree per problem. ``seeds`` holds solutions by problem id; rollouts replace missing ones.

        All problems are searched concurrently: a policy in this process gets large batches, and a server is
        always busy.
        """
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
        rule = SoftEstimate(rollouts=self.settings.rollouts)
        for tally in search.run(seeds, await rollouts.outcomes(seeds)):
            await rollouts.settle([tally], rule)
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
                if node in done or self._value(node)[0] is None:
                    continue
                done.add(node)
                labels.append(self._label(trace, step, node, tree, cost))
                cost = Usage()
            if labels:
                labelled.append(LabelledTrace(problem=tree.problem, trace=trace, labels=tuple(labels)))
        return labelled

    def pairs(self, tree: ProblemTree) -> list[StepPair]:
        """Pairs of steps after the same prefix with different values, the better one first."""
        rivals = []
        for node in tree.tree:
            valued = [
                (child, value)
                for child in node.children.values()
                if (value := self._value(child)[0]) is not None
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

    def _value(self, node: Node[PrefixRecord]) -> tuple[float | None, str | None]:
        """Label of the step that leads to ``node``, or the reason why it is unknown."""
        state = node.data
        if self.estimate == "hard" and state.good:
            return 1.0, None
        if state.failure is not None:
            return None, state.failure
        if self.estimate == "soft":
            if state.value is not None:
                return state.value, None
            return (None, "not probed") if state.ending is None else (float(state.ending), None)
        ancestors = node.path()[:-1]
        if any(above.data.good is False for above in ancestors):
            return None, AFTER_FIRST_ERROR
        if state.good is None:
            return None, "not probed"
        if ancestors and not ancestors[-1].data.good:
            return None, "the first error is in this step or in one before it"
        return 0.0, None

    def _label(
        self, trace: Trace, step: int, node: Node[PrefixRecord], tree: ProblemTree, usage: Usage
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
                interval=wilson_interval(successes, trials).bounds if probed else None,
                usage=usage,
                rater=self.policy.name,
                message=None if probed else f"{trials} solutions pass through here",
            ),
        )
