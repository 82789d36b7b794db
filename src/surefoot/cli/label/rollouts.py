"""``surefoot label mc`` and ``surefoot label tree``: labels from rollouts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from surefoot.cli import options as o
from surefoot.cli.label.command import LabelCommand, usable, with_answer
from surefoot.cli.settings import Command, Flag, OptionGroup
from surefoot.cli.terminal import echo
from surefoot.labelling.monte_carlo import MonteCarloSettings
from surefoot.labelling.omegaprm import TreeSettings
from surefoot.policies.devices import Loading
from surefoot.policies.prompts import PromptFormat
from surefoot.protocols import Sampling
from surefoot.records import Record, StepLabel, StepPair, Trace, Usage
from surefoot.work.cost import Rates

if TYPE_CHECKING:
    from surefoot.answers import Grader, ProblemGrader
    from surefoot.labelling.monte_carlo import MonteCarloLabeller
    from surefoot.labelling.omegaprm import OmegaPRMLabeller, ProblemTree
    from surefoot.protocols import Labeller, Policy, ProblemTrace
    from surefoot.records import Problem


class RolloutSettings(Command):
    """The policy that completes prefixes, its sampling, and the budget."""

    policy: o.PolicySettings
    prompt: PromptFormat = PromptFormat()
    sampling: Sampling = Sampling()
    grading: o.GradingSettings = o.GradingSettings()
    loading: o.Models = Loading()
    seed: o.Seed = 0
    token_budget: o.TokenBudget = None
    retry_failed: o.RetryFailed = False
    dry_run: o.DryRun = False
    rates: o.CostRates = Rates()

    def say_rollouts(
        self, items: Sequence[ProblemTrace], problems: Sequence[Problem], prefixes: int, rollouts: int
    ) -> None:
        """Show the most that ``rollouts`` from each of the ``prefixes`` cost, from the lengths of ``items``.

        A prefix and its rollout share a trace; without traces, a rollout has as many tokens as it may have.
        """
        from surefoot.cli.runs import CHARACTERS_PER_TOKEN, say_prediction

        half = self.sampling.max_tokens / 2
        if sample := items[:: max(1, len(items) // 1000)]:
            traces = [item.trace for item in sample]
            lengths = [t.usage.completion_tokens or len(t.text or "") / CHARACTERS_PER_TOKEN for t in traces]
            half = fmean(lengths) / 2
        texts = fmean(len(problem.text) for problem in problems[:1000]) / CHARACTERS_PER_TOKEN
        usage = Usage(
            prompt_tokens=round(prefixes * (texts + half)),
            completion_tokens=round(prefixes * rollouts * half),
            calls=prefixes,
        )
        say_prediction(f"at most {prefixes:,} prefixes of {rollouts} rollouts each", usage, self.rates)

    def open_policy(self, *, continues: bool = True) -> Policy:
        """The policy that completes prefixes.

        Raises ``PolicyError`` for a server that answers from scratch: its labels would mean nothing.
        """
        policy = self.policy.open(chat=self.prompt.chat, loading=self.loading)
        if continues:
            alternative = "label mc --chat --prefix-in user-turn" if self.prompt.chat else "--chat"
            instead = f"use {alternative}, or surefoot label judge"
            # without a chat template, only a prompt that is visibly put into one is a reason to refuse
            self.policy.check(policy, "continuation", instead, accept_unknown=not self.prompt.chat)
        return policy


class MonteCarlo(RolloutSettings, LabelCommand):
    """Label steps by Monte Carlo rollouts from their prefixes (Math-Shepherd; binary search of OmegaPRM).

    The labels are values (chance of the correct answer from here), with successes and trials as evidence.
    Traces whose problem has no `answer` are counted and left out. With `--environment` the traces are
    agent runs, and the policy continues from the state after each message; the environment must be able to
    restore its state. `--dry-run` predicts the cost. If the command is stopped, the same command resumes.

    Example: `surefoot label mc traces.jsonl --problems problems.jsonl --policy lab --rollouts 8
    --max-tokens 96 --out labels.jsonl`

    Example: `surefoot label mc traces.jsonl --problems problems.jsonl --policy lab --estimate hard
    --order until-error --token-budget 5000000 --out labels.jsonl`
    """

    command: ClassVar[str] = "label mc"

    monte_carlo: Annotated[
        MonteCarloSettings,
        OptionGroup(names={"estimate.kind": "--estimate", "estimate.rollouts": "--rollouts -k"}),
    ] = MonteCarloSettings()
    grader: Literal["answer", "tests"] = Field(
        default="answer",
        description="What decides on a completion: the reference answer, or the hidden tests of a program, "
        "which run in a sandbox.",
    )
    sandbox: o.SandboxName = "bubblewrap"
    environment: o.EnvironmentName = None
    turns: int = Field(default=30, ge=1, description="Most messages of an agent in one rollout.")
    workers: o.Workers = 1
    engine: o.EngineName = "local"

    @model_validator(mode="after")
    def _check(self) -> Self:
        settings = (self.monte_carlo.estimate.kind, self.monte_carlo.order, self.grader, self.dry_run)
        if self.environment is not None and settings != ("soft", "every", "answer", False):
            raise ValueError(
                "'environment' takes --estimate soft, --order every and no other --grader, and no 'dry_run'"
            )
        o.check_agent(self.environment, self.policy)
        if self.monte_carlo.prefix_in == "user-turn" and (
            self.environment is not None or not self.prompt.chat
        ):
            raise ValueError("'prefix_in' user-turn needs 'chat', and is for solutions, not agent runs")
        if self.sandbox != "bubblewrap" and self.grader != "tests":
            raise ValueError("'sandbox' is where --grader tests runs programs; --grader answer runs none")
        return self

    def items(self) -> Any:
        """Traces that can be graded; reports the error rates of a sequential test."""
        from surefoot.labelling.verifiers.programs import has_hidden_tests

        items = super().items()
        estimate = self.monte_carlo.estimate
        if estimate.kind == "sequential":
            false_good = estimate.chance_of_good(estimate.p_bad)
            false_bad = 1 - estimate.chance_of_good(estimate.p_good)
            echo(
                f"sequential test of at most {estimate.rollouts} rollouts: calls {false_good:.1%} of "
                f"prefixes of value {estimate.p_bad:g} good, and {false_bad:.1%} of prefixes of value "
                f"{estimate.p_good:g} bad (aim: {estimate.error_rate:.1%})",
                err=True,
            )
        if self.environment is not None:
            return items
        if self.grader == "answer":
            return with_answer(items)
        return usable(items, lambda item: has_hidden_tests(item.problem), "their problem lacks hidden tests")

    def predict(self, items: Sequence[ProblemTrace]) -> None:
        """Show the most that rollouts from all prefixes cost; the end of a trace needs none."""
        prefixes = [max(len(item.trace.steps) - 1, 0) for item in items]
        if self.monte_carlo.order == "bisect":
            prefixes = [count.bit_length() for count in prefixes]
        problems = [item.problem for item in items[:1000]]
        self.say_rollouts(items, problems, sum(prefixes), self.monte_carlo.estimate.rollouts)

    @contextmanager
    def labeller(self) -> Iterator[Labeller]:
        """The labeller, with its policy and grader."""
        if self.environment is not None:
            from surefoot.labelling.run_rollouts import RunMonteCarloLabeller
            from surefoot.policies import load_environment

            policy = self.policy.open(chat=True, loading=self.loading)
            self.policy.check(policy, "tool_calls", o.CALL_TOOLS, accept_unknown=True)
            yield RunMonteCarloLabeller(
                policy=policy,
                environment=load_environment(self.environment),
                rollouts=self.monte_carlo.estimate.rollouts,
                sampling=self.sampling,
                max_turns=self.turns,
                seed=self.seed,
            )
            return
        if self.grader == "answer":
            with self.grading.open() as grader:
                yield self._labeller(self._open(), grader)
            return
        from surefoot.labelling.verifiers.programs import ProgramGrader
        from surefoot.sandbox import open_sandbox

        with open_sandbox(self.sandbox) as sandbox:
            yield self._labeller(self._open(), ProgramGrader(sandbox))

    def _open(self) -> Policy:
        return self.open_policy(continues=self.monte_carlo.prefix_in == "answer")

    def _labeller(self, policy: Policy, grader: ProblemGrader) -> MonteCarloLabeller:
        from surefoot.labelling.monte_carlo import MonteCarloLabeller

        return MonteCarloLabeller(
            **vars(self.monte_carlo),
            policy=policy,
            grader=grader,
            prompt=self.prompt,
            sampling=self.sampling,
            seed=self.seed,
        )


class GrownTree(Record):
    """The tree of one problem: a line of ``trees.jsonl``."""

    problem_id: str
    traces: tuple[Trace, ...]
    labels: tuple[StepLabel, ...]
    pairs: tuple[StepPair, ...]
    selections: int
    reason: str | None
    """Why the search did not start."""
    usage: Usage


_FILES = ("trees.jsonl", "traces.jsonl", "labels.jsonl", "pairs.jsonl")


class Tree(RolloutSettings):
    """Grow a tree of solutions for each problem and label its steps (OmegaPRM, arXiv 2406.06592).

    Writes `traces.jsonl` (the solutions), `labels.jsonl` (values; each distinct step once), `pairs.jsonl`
    (rival steps after one prefix, for pairwise training) and `trees.jsonl` (all of it, one tree per line)
    into the directory. Problems whose rollouts are all correct, or all wrong, are counted and not searched.
    If the command is stopped, the same command resumes.

    Example: `surefoot label tree problems.jsonl --policy lab --search-limit 20 --max-tokens 96
    --extract phrase --equality exact --out trees/`
    """

    problems: Annotated[str, Flag(argument=True, transient=True)] = Field(
        description="File of problem records with `answer`, or `-` for standard input."
    )
    out: o.OutDirectory = Field(description="Directory for traces, labels and pairs.")
    traces: Annotated[str | None, o.INPUT] = Field(
        default=None, description="File of traces of the same policy that seed the trees."
    )
    estimate: Literal["soft", "hard"] = Field(
        default="soft",
        description="soft: the share of correct rollouts, for probed prefixes. hard: whether any solution "
        "through here is correct; labels more steps.",
    )
    tree: Annotated[TreeSettings, OptionGroup(names={"rollouts": "--rollouts -k"})] = TreeSettings()
    segment: o.Segment = "line"

    def outputs(self) -> list[Path]:
        """The four files, unless the command resumes."""
        names = () if self.dry_run or (self.out / "trees.jsonl.work").is_dir() else _FILES
        return [self.out / name for name in names]

    def run(self) -> None:
        """Grow trees, or predict the cost."""
        from surefoot.cli.runs import connections, file_inputs, map_pieces, pair, read_table, server_facts
        from surefoot.records import Problem
        from surefoot.work import Job

        problems = read_table(self.problems, Problem)
        answered = [problem for problem in problems if problem.answer is not None]
        if len(answered) < len(problems):
            echo(f"{len(problems) - len(answered)} problems skipped: they have no 'answer'", err=True)
        items = pair(answered, read_table(self.traces, Trace)) if self.traces is not None else []
        if self.dry_run:
            searched = self.tree.search_limit * (self.tree.pieces - 1).bit_length()
            self.say_rollouts(items, answered, len(answered) * (1 + searched), self.tree.rollouts)
            return
        policy = self.open_policy()
        seeds: dict[str, list[Trace]] = {}
        for item in items:
            seeds.setdefault(item.problem.id, []).append(item.trace)
        self.out.mkdir(parents=True, exist_ok=True)
        with self.grading.open() as grader:
            labeller = self._labeller(policy, grader)

            async def work(piece: Sequence[Problem]) -> list[GrownTree]:
                return [_grown(labeller, grown) for grown in await labeller.grow(piece, seeds)]

            job = Job(
                record=GrownTree,
                work=work,
                during=connections(policy),
                failure=_failure,
                tokens=lambda grown: sum(tree.usage.tokens for tree in grown),
                command="label tree",
                config=self.resolved(),
                inputs=file_inputs(problems=self.problems, traces=self.traces),
                facts=server_facts(policy),
            )
            outcome = map_pieces(self, job, answered, 20, out=str(self.out / "trees.jsonl"))
        _split(self.out)
        outcome.require_complete()

    def _labeller(self, policy: Policy, grader: Grader) -> OmegaPRMLabeller:
        from surefoot.labelling.omegaprm import OmegaPRMLabeller
        from surefoot.segment import segmenter

        return OmegaPRMLabeller(
            policy=policy,
            grader=grader,
            segmenter=segmenter(self.segment),
            prompt=self.prompt,
            settings=self.tree,
            estimate=self.estimate,
            sampling=self.sampling,
            seed=self.seed,
        )


def _grown(labeller: OmegaPRMLabeller, grown: ProblemTree) -> GrownTree:
    labelled = labeller.labelled_traces(grown)
    return GrownTree(
        problem_id=grown.problem.id,
        traces=tuple(item.trace for item in labelled),
        labels=tuple(label for item in labelled for label in item.labels),
        pairs=tuple(labeller.pairs(grown)),
        selections=len(grown.selected),
        reason=grown.reason,
        usage=grown.usage,
    )


def _failure(trees: Sequence[GrownTree]) -> str | None:
    """Why all requests for these trees failed, if they did."""
    tried = [tree for tree in trees if tree.usage.calls]
    if tried and all(not tree.usage.tokens for tree in tried):
        return tried[-1].reason
    return None


def _split(folder: Path) -> None:
    """Write traces, labels and pairs of all trees into their files, and report the totals."""
    from surefoot.io import read_records
    from surefoot.io.files import record_writer

    counts, spent, reasons = Counter[str](), Usage(), Counter[str]()
    kinds: dict[str, type[Record]] = {"traces": Trace, "labels": StepLabel, "pairs": StepPair}
    with ExitStack() as stack:
        writers = {
            name: stack.enter_context(record_writer(folder / f"{name}.jsonl", kind))
            for name, kind in kinds.items()
        }
        for grown in read_records(folder / "trees.jsonl", GrownTree):
            counts["trees"] += 1
            for name, writer in writers.items():
                for record in getattr(grown, name):
                    writer.write(record)
                    counts[name] += 1
            spent += grown.usage
            if grown.reason:
                reasons[grown.reason] += 1
    parts = [f"{counts[name]} {name}" for name in ("trees", "labels", "pairs")]
    echo(f"{', '.join(parts)}, {spent.tokens} tokens", err=True)
    for reason, count in reasons.most_common():
        echo(f"  {count} problems not searched: {reason}", err=True)
