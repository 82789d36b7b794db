"""``surefoot label mc``, ``tree``, ``judge`` and ``critiques``: labels from what language models write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from surefoot import answers, labelling, policies, training
from surefoot.cli import options as o
from surefoot.cli.label.command import LabelCommand, usable, with_answer
from surefoot.cli.runs import (
    CHARACTERS_PER_TOKEN,
    RecordFiles,
    map_pieces,
    pair,
    predict_usage,
    read_table,
    say_prediction,
)
from surefoot.cli.settings import Command, Flag, OptionGroup, fill
from surefoot.cli.terminal import note, note_count
from surefoot.errors import LabelError
from surefoot.io import read_records
from surefoot.labelling.judge import JudgeMode
from surefoot.labelling.monte_carlo import MonteCarloSettings
from surefoot.labelling.omegaprm import ProblemTree, TreeSettings
from surefoot.policies.devices import Loading
from surefoot.policies.prompts import PromptFormat
from surefoot.protocols import Labeller, Policy, ProblemTrace, Sampling
from surefoot.records import Problem, Record, StepLabel, StepPair, Trace, Usage
from surefoot.sandbox import open_sandbox
from surefoot.segment import segmenter
from surefoot.work import Job
from surefoot.work.cost import Rates


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

    monte_carlo: Annotated[
        MonteCarloSettings,
        OptionGroup(names={"estimate.kind": "--estimate", "estimate.rollouts": "--rollouts -k"}),
    ] = MonteCarloSettings()
    grader: Literal["answer", "tests"] = "answer"
    """What decides on a completion: the reference answer, or the hidden tests of a program, which run in a
    sandbox."""
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
        items = super().items()
        estimate = self.monte_carlo.estimate
        if estimate.kind == "sequential":
            false_good = estimate.chance_of_good(estimate.p_bad)
            false_bad = 1 - estimate.chance_of_good(estimate.p_good)
            note(
                f"sequential test of at most {estimate.rollouts} rollouts: calls {false_good:.1%} of "
                f"prefixes of value {estimate.p_bad:g} good, and {false_bad:.1%} of prefixes of value "
                f"{estimate.p_good:g} bad (aim: {estimate.error_rate:.1%})"
            )
        if self.environment is not None:
            return items
        if self.grader == "answer":
            return with_answer(items)
        from surefoot.labelling.verifiers.programs import has_hidden_tests

        return usable(items, lambda item: has_hidden_tests(item.problem), "their problem lacks hidden tests")

    def predict(self, items: Sequence[ProblemTrace]) -> None:
        prefixes = [max(len(item.trace.steps) - 1, 0) for item in items]
        if self.monte_carlo.order == "bisect":
            prefixes = [count.bit_length() for count in prefixes]
        problems = [item.problem for item in items[:1000]]
        self.say_rollouts(items, problems, sum(prefixes), self.monte_carlo.estimate.rollouts)

    @contextmanager
    def labeller(self) -> Iterator[Labeller]:
        if self.environment is not None:
            policy = self.policy.open(chat=True, loading=self.loading)
            self.policy.check(policy, "tool_calls", o.CALL_TOOLS, accept_unknown=True)
            yield fill(
                labelling.RunMonteCarloLabeller,
                self,
                policy=policy,
                environment=policies.load_environment(self.environment),
                rollouts=self.monte_carlo.estimate.rollouts,
                max_turns=self.turns,
            )
            return
        with self._grader() as grader:
            policy = self.open_policy(continues=self.monte_carlo.prefix_in == "answer")
            yield fill(
                labelling.MonteCarloLabeller, self, policy=policy, grader=grader, **vars(self.monte_carlo)
            )

    @contextmanager
    def _grader(self) -> Iterator[answers.ProblemGrader]:
        if self.grader == "answer":
            with self.grading.open() as grader:
                yield grader
            return
        with open_sandbox(self.sandbox) as sandbox:
            yield labelling.ProgramGrader(sandbox)


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

    problems: o.ProblemsArgument
    """File of problem records with `answer`, or `-` for standard input."""
    out: o.OutDirectory = Field(description="Directory for traces, labels and pairs.")
    traces: Annotated[str | None, o.INPUT] = None
    """File of traces of the same policy that seed the trees."""
    estimate: Literal["soft", "hard"] = "soft"
    """soft: the share of correct rollouts, for probed prefixes. hard: whether any solution through here is
    correct; labels more steps."""
    tree: Annotated[TreeSettings, OptionGroup(names={"rollouts": "--rollouts -k"})] = TreeSettings()
    segment: o.Segment = "line"

    def outputs(self) -> list[Path]:
        """The four files, unless the command resumes."""
        names = () if self.dry_run or (self.out / "trees.jsonl.work").is_dir() else _FILES
        return [self.out / name for name in names]

    def run(self) -> None:
        problems = read_table(self.problems, Problem)
        answered = [problem for problem in problems if problem.answer is not None]
        note_count(len(problems) - len(answered), "problems skipped: they have no 'answer'")
        if not answered:
            raise LabelError(f"{self.problems}: no problem has an 'answer', which rollouts are compared with")
        items = pair(answered, self.traces) if self.traces is not None else []
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
            labeller = fill(
                labelling.OmegaPRMLabeller,
                self,
                policy=policy,
                grader=grader,
                segmenter=segmenter(self.segment),
                settings=self.tree,
            )

            async def work(piece: Sequence[Problem]) -> list[GrownTree]:
                return [_grown(labeller, grown) for grown in await labeller.grow(piece, seeds)]

            job = Job(record=GrownTree, work=work, policy=policy, failure=_failure)
            outcome = map_pieces(self, job, answered, 20, out=str(self.out / "trees.jsonl"))
        _split(self.out)
        outcome.require_complete()


def _grown(labeller: labelling.OmegaPRMLabeller, grown: ProblemTree) -> GrownTree:
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
    trees, spent, reasons = 0, Usage(), Counter[str]()
    with RecordFiles(folder) as files:
        for trees, grown in enumerate(read_records(folder / "trees.jsonl", GrownTree), start=1):  # noqa: B007
            files.write(traces=grown.traces, labels=grown.labels, pairs=grown.pairs)
            spent += grown.usage
            reasons.update([grown.reason] if grown.reason else ())
    labels, pairs = files.count("labels"), files.count("pairs")
    note(f"{trees} trees, {labels} labels, {pairs} pairs, {spent.tokens} tokens")
    for reason, count in reasons.most_common():
        note(f"  {count} problems not searched: {reason}")


class CriticSettings(o.PolicySettings):
    """The language model that reviews."""

    batch_size: Annotated[int, Flag(transient=True)] = Field(default=16, ge=1)
    """Samples decoded together in this process."""


class ReviewCommand(LabelCommand):
    """A language model reviews each trace several times."""

    policy: CriticSettings
    seed: o.Seed = 0
    token_budget: o.TokenBudget = None
    loading: o.Models = Loading()
    retry_failed: o.RetryFailed = False
    dry_run: o.DryRun = False
    rates: o.CostRates = Rates()

    def say_reviews(
        self, items: Sequence[ProblemTrace], text_of: Callable[[ProblemTrace], str], what: str, replies: int
    ) -> None:
        """Show the predicted cost of ``replies`` to each prompt."""
        sampling: Sampling = getattr(self, "sampling")  # noqa: B009  (each command declares its own)
        usage = predict_usage(items, text_of, replies=replies, max_tokens=sampling.max_tokens)
        say_prediction(f"{len(items):,} traces, {replies} {what} each", usage, self.rates)


class Judge(ReviewCommand):
    """Label steps by asking a language model for a critique (LLM as a judge).

    The labels say whether a step is correct (+1), neutral (0) or wrong (-1). Refused, truncated or
    malformed replies are counted and ignored.

    Example: `surefoot label judge traces.jsonl --problems problems.jsonl --policy Qwen/Qwen3-8B
    --base-url http://localhost:8000/v1 --out labels.jsonl`
    """

    mode: JudgeMode = "per-step"
    """Ask for a verdict on each step, or for the first error alone."""
    votes: Annotated[int, Flag(short="-k")] = Field(default=1, ge=1, description="Replies per trace.")
    rules: Annotated[Path | None, o.INPUT] = None
    """Text file: a policy or specification to judge by."""
    show_answer: bool = Field(default=False, description="Show the judge the problem's reference answer.")
    name_failures: bool = False
    """Let the judge name the kind of failure of each wrong step of an agent."""
    structured: bool | None = None
    """Make the server enforce a JSON schema; by default with `--base-url`."""
    temperature: float | None = Field(default=None, ge=0)
    """0 is greedy; by default 0 for one vote and 1 for several."""
    sampling: Annotated[Sampling, OptionGroup(omit=("temperature", "stop"))] = Sampling(max_tokens=2048)
    workers: o.Workers = 1
    engine: o.EngineName = "local"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.structured and not self.policy.base_url:
            raise ValueError("'structured' needs 'base_url': only a server can enforce a schema")
        return self

    def resolved(self) -> dict[str, Any]:
        """The settings, with the version of the prompt."""
        return super().resolved() | {"prompt": self._prompt().version}

    def items(self) -> Any:
        """Traces, with ``--show-answer`` those whose problem has one."""
        return with_answer(super().items()) if self.show_answer else super().items()

    def predict(self, items: Sequence[ProblemTrace]) -> None:
        prompt = self._prompt()
        self.say_reviews(
            items,
            lambda item: "".join(message.content or "" for message in prompt.render(item)),
            "verdicts",
            self.votes,
        )

    @contextmanager
    def labeller(self) -> Iterator[Labeller]:

        prompt = self._prompt()
        temperature = float(self.votes > 1) if self.temperature is None else self.temperature
        form = labelling.structured_output(prompt.mode, name_failures=prompt.name_failures)
        body = form if prompt.structured else None
        policy = self.policy.open(chat=True, loading=self.loading, extra_body=body)
        sampling = replace(self.sampling, temperature=temperature)
        yield fill(labelling.JudgeLabeller, self, policy=policy, prompt=prompt, sampling=sampling)

    def _prompt(self) -> labelling.JudgePrompt:
        try:
            rules = self.rules.read_text(encoding="utf-8") if self.rules is not None else None
        except UnicodeDecodeError as error:
            raise LabelError(f"--rules {self.rules} is not UTF-8 text: {error}") from error
        structured = bool(self.policy.base_url) if self.structured is None else self.structured
        return fill(labelling.JudgePrompt, self, rules=rules, structured=structured)


class Critiques(ReviewCommand):
    """Let a language model criticise each step of traces, to train a verifier (`surefoot train verifier`).

    All critiques are written; training filters those that can be parsed and agree with labels. If the
    command is stopped, the same command resumes.

    Example: `surefoot label critiques traces.jsonl --problems problems.jsonl --policy Qwen/QwQ-32B
    --base-url http://localhost:8000/v1 --out critiques.jsonl`
    """

    format: o.VerifierFormatFile = None
    chains: Annotated[int, Flag(short="-k")] = Field(default=4, ge=1, description="Critiques per trace.")
    sampling: Annotated[Sampling, OptionGroup(omit=("stop",))] = Sampling(temperature=0.1, max_tokens=4096)

    def run(self) -> None:
        items = usable(
            self.items(), lambda item: item.trace.text is not None, "a verifier reads text, not messages"
        )
        form = o.verifier_format(self.format)
        if self.dry_run:
            self.say_reviews(items, lambda item: str(form.prompt(item)), "critiques", self.chains)
            return
        policy = self.policy.open(chat=form.chat, loading=self.loading)
        missing = 0

        async def work(piece: Sequence[ProblemTrace]) -> list[training.TraceCritiques]:
            return await training.sample_critiques(
                policy, piece, form, chains=self.chains, sampling=self.sampling, seed=self.seed
            )

        def count(record: training.TraceCritiques) -> None:
            nonlocal missing
            missing += self.chains - len(record.texts)

        def failed(critiques: Sequence[training.TraceCritiques]) -> str | None:
            return None if any(record.texts for record in critiques) else critiques[-1].error

        job = Job(
            record=training.TraceCritiques,
            work=work,
            policy=policy,
            failure=failed,
            config={"format": form.model_dump()},
        )
        outcome = map_pieces(self, job, items, self.size, on_record=count)
        note(f"critiques of {outcome.written} traces written; {missing} failed (see 'error')")
        outcome.require_complete()
