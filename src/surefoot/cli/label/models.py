"""``mc``, ``tree``, ``judge`` and ``critiques``: labels from what language models write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, NonNegativeFloat

from surefoot import answers, labelling, policies, training
from surefoot.cli import options as o
from surefoot.cli.label.rules import Method, Tally, usable, with_answer, work_of
from surefoot.cli.runs import (
    CHARACTERS_PER_TOKEN,
    RecordFiles,
    pair,
    predict_usage,
    read_table,
    say_prediction,
)
from surefoot.cli.terminal import note, note_count
from surefoot.errors import LabelError, counted
from surefoot.io import read_records
from surefoot.labelling.judge import JudgeMode
from surefoot.labelling.monte_carlo import MonteCarloSettings
from surefoot.labelling.omegaprm import ProblemTree, TreeSettings
from surefoot.protocols import Labeller, Policy, ProblemTrace, Sampling
from surefoot.records import Problem, Record, StepLabel, StepPair, Trace, Usage
from surefoot.sandbox import open_sandbox
from surefoot.segment import segmenter
from surefoot.work import Job
from surefoot.work.jobs import Opened

if TYPE_CHECKING:
    from surefoot.cli.label.command import Label

_ASK = ("loading", "seed", "token_budget", "retry_failed", "dry_run")
"""Options of methods that ask a language model."""
_ROLL_OUT = ("prompt", "sampling", "grading", "allow_uninformative", *_ASK)
_ANSWER = ("sampling.temperature", "sampling.top_p", "sampling.max_tokens", *_ASK)
_PROCESSES = ("workers", "engine")


def open_prover(label: Label) -> Policy:
    """The policy that completes prefixes.

    Raises ``PolicyError`` for a server that answers from scratch: its labels would mean nothing.
    """
    policy = label.open_policy(chat=label.prompt.chat)
    fix = "use judge, or a server that continues" if label.prompt.chat else "use --chat, or judge"
    # without a chat template, only a prompt that is visibly put into one is a reason to refuse
    label.policy.check(policy, "continuation", fix, accept_unknown=not label.prompt.chat)
    return policy


def say_rollouts(
    label: Label, items: Sequence[ProblemTrace], problems: Sequence[Problem], prefixes: int, rollouts: int
) -> None:
    """Show the most that ``rollouts`` from each of the ``prefixes`` cost, from the lengths of ``items``.

    A prefix and its rollout share a trace; without traces, a rollout has as many tokens as it may have.
    """
    half = label.sampled.max_tokens / 2
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
    say_prediction(f"at most {counted(prefixes, 'prefix')} of {counted(rollouts, 'rollout')} each", usage)


class MonteCarlo(MonteCarloSettings, Method):
    """By Monte Carlo rollouts from the prefixes (Math-Shepherd; binary search of OmegaPRM).

    The labels are values (chance of the correct answer from here), with successes and trials as evidence.
    Traces whose problem has no `answer` are counted and left out. With ``environment`` the traces are agent
    runs, and the policy continues from the state after each message.
    """

    needs = ("problems", "policy")
    takes = (*_ROLL_OUT, "sandbox", *_PROCESSES)
    role = "policy"
    grader: Literal["answer", "tests"] = "answer"
    """What decides on a completion: the reference answer, or the hidden tests of a program, which run in a
    sandbox."""
    environment: o.EnvironmentName = None
    turns: int = Field(default=30, ge=1, description="Most messages of an agent in one rollout.")

    def check(self, label: Label) -> None:
        settings = (self.estimate, self.order, self.grader, label.dry_run)
        if self.environment is not None and settings != ("soft", "every", "answer", False):
            raise ValueError("environment needs estimate=soft, order=every, grader=answer and no 'dry_run'")
        o.check_agent(self.environment, label.policy)
        if label.sandbox != "bubblewrap" and self.grader != "tests":
            raise ValueError("'sandbox' is where grader=tests runs programs; grader=answer runs none")

    def items(self, label: Label) -> Any:
        """Traces that can be graded."""
        items = super().items(label)
        if self.environment is not None:
            return items
        if self.grader == "answer":
            return with_answer(items)
        from surefoot.labelling.verifiers.programs import has_hidden_tests

        return usable(items, lambda item: has_hidden_tests(item.problem), "their problem lacks hidden tests")

    def predict(self, label: Label, items: Sequence[ProblemTrace]) -> None:
        prefixes = [max(len(item.trace.steps) - 1, 0) for item in items]
        if self.order == "bisect":
            prefixes = [count.bit_length() for count in prefixes]
        say_rollouts(label, items, [item.problem for item in items[:1000]], sum(prefixes), self.rollouts)

    @contextmanager
    def open(self, label: Label) -> Iterator[Opened]:
        if self.environment is not None:
            policy = label.open_policy(chat=True)
            label.policy.check(policy, "tool_calls", o.CALL_TOOLS, accept_unknown=True)
            runs = labelling.RunMonteCarloLabeller(
                policy=policy,
                environment=policies.load_environment(self.environment),
                rollouts=self.rollouts,
                sampling=label.sampled,
                max_turns=self.turns,
                seed=label.seed,
            )
            yield work_of(runs, policy)
            return
        with self._grader(label) as grader:
            policy = open_prover(label)
            labeller = labelling.MonteCarloLabeller(
                policy=policy,
                grader=grader,
                settings=self,
                prompt=label.prompt,
                sampling=label.sampled,
                seed=label.seed,
            )
            yield work_of(labeller, policy)

    @contextmanager
    def _grader(self, label: Label) -> Iterator[answers.ProblemGrader]:
        if self.grader == "answer":
            with label.grading.open() as grader:
                yield grader
            return
        with open_sandbox(label.sandbox) as sandbox:
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


class Tree(TreeSettings, Method):
    """By tree search on each problem (OmegaPRM, arXiv 2406.06592), whose solutions are labelled.

    Writes `traces.jsonl` (the solutions), `labels.jsonl` (values; each distinct step once), `pairs.jsonl`
    (rival steps after one prefix, for pairwise training) and `trees.jsonl` (all of it, one tree per line)
    into the directory. Problems whose rollouts are all correct, or all wrong, are counted and not searched.
    """

    needs = ("policy",)
    takes = ("traces", *_ROLL_OUT)
    role = "policy"
    folder = ("trees.jsonl", "traces.jsonl", "labels.jsonl", "pairs.jsonl")
    estimate: Literal["soft", "hard"] = "soft"
    """soft: the share of correct rollouts, for probed prefixes. hard: whether any solution through here is
    correct; labels more steps."""
    segment: o.Segment = "line"

    def outputs(self, label: Label) -> list[Path]:
        """The four files, unless the command resumes."""
        return [] if (Path(label.out) / "trees.jsonl.work").is_dir() else super().outputs(label)

    def run(self, label: Label) -> None:
        problems = read_table(label.file, Problem)
        answered = [problem for problem in problems if problem.answer is not None]
        note_count(len(problems) - len(answered), "problem", "skipped: they have no 'answer'")
        if not answered:
            raise LabelError(f"{label.file}: no problem has an 'answer', which rollouts are compared with")
        items = pair(answered, label.traces) if label.traces else []
        if label.dry_run:
            searched = self.search_limit * (self.pieces - 1).bit_length()
            say_rollouts(label, items, answered, len(answered) * (1 + searched), self.rollouts)
            return
        policy, folder = open_prover(label), Path(label.out)
        seeds: dict[str, list[Trace]] = {}
        for item in items:
            seeds.setdefault(item.problem.id, []).append(item.trace)
        folder.mkdir(parents=True, exist_ok=True)
        with label.grading.open() as grader:
            labeller = labelling.OmegaPRMLabeller(
                policy=policy,
                grader=grader,
                segmenter=segmenter(self.segment),
                prompt=label.prompt,
                settings=self,
                estimate=self.estimate,
                sampling=label.sampled,
                seed=label.seed,
            )

            async def work(piece: Sequence[Problem]) -> list[GrownTree]:
                return [_grown(labeller, grown) for grown in await labeller.grow(piece, seeds)]

            job = Job(record=GrownTree, work=work, policy=policy, failure=_failure)
            outcome = label.map(job, answered, 20, out=str(folder / "trees.jsonl"))
        tally = _split(folder)
        outcome.require_complete()
        if not self.may_be_flat(label):
            tally.require_information()


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


def _split(folder: Path) -> Tally:
    """Write traces and labels of all trees into their files, and report the totals."""
    trees, spent, reasons, tally = 0, Usage(), Counter[str](), Tally(trees=True)
    with RecordFiles(folder) as files:
        for trees, grown in enumerate(read_records(folder / "trees.jsonl", GrownTree), start=1):  # noqa: B007
            files.write(traces=grown.traces, labels=grown.labels, pairs=grown.pairs)
            for label in grown.labels:
                tally.add(label.model_dump_json().encode())
            spent += grown.usage
            reasons.update([grown.reason] if grown.reason else ())
    labels = files.count("labels")
    note(f"{counted(trees, 'tree')}, {counted(labels, 'label')}, {counted(spent.tokens, 'token')}")
    for reason, count in reasons.most_common():
        note(f"  {counted(count, 'problem')} not searched: {reason}")
    if labels:
        tally.report()
    return tally


REVIEWS = 16
"""Samples that a critic decodes together in this process, if ``batch_size`` is not given."""


class Asks(Method):
    """Asks a model about each trace, some times."""

    needs = ("problems", "policy")
    role = "automated judge"
    asked: ClassVar[str]
    """What the model writes."""
    price: tuple[NonNegativeFloat, ...] = Field(default=(), min_length=3, max_length=3)
    """What a million tokens cost: read, read from the server's cache, written (`price=0.25+0.025+2`)."""

    @property
    def replies(self) -> int:
        """To each trace."""
        raise NotImplementedError

    def reads(self, label: Label) -> Callable[[ProblemTrace], str]:
        """The prompt for a trace."""
        raise NotImplementedError

    def predict(self, label: Label, items: Sequence[ProblemTrace]) -> None:
        most = label.sampled.max_tokens
        usage = predict_usage(items, self.reads(label), replies=self.replies, max_tokens=most)
        what = f"{counted(len(items), 'trace')}, {counted(self.replies, self.asked)} each"
        say_prediction(what, usage, self.money(usage))

    def money(self, usage: Usage) -> str:
        return f", {usage.cost(self.price):.4g} by the price" if self.price else ""


class JudgeLabels(Asks):
    """By a language model that writes a critique (LLM as a judge), a vote for each reply.

    The labels say whether a step is correct (+1), neutral (0) or wrong (-1). Refused, truncated or
    malformed replies are counted and ignored.
    """

    takes = ("rules", "specification", "allow_uninformative", *_ANSWER, *_PROCESSES)
    asked = "verdict"
    mode: JudgeMode = "per-step"
    """Ask for a verdict on each step, or for the first error alone."""
    votes: int = Field(default=1, ge=1, description="Replies per trace.")
    lowest: bool = False
    """The lowest verdict on a step counts, not the most frequent one; a missing vote makes it unknown."""
    show_answer: bool = Field(default=False, description="Show the judge the problem's reference answer.")
    name_failures: bool = False
    """Let the judge name the kind of failure of each wrong step of an agent."""
    structured: bool | None = None
    """Make the server enforce a JSON schema; by default with `--base-url`."""
    images: bool = False
    """Send the images that the traces keep, to a model that reads them; by default they are only named."""

    @property
    def sampling(self) -> Sampling:
        """Greedy for one vote."""
        return Sampling(temperature=float(self.votes > 1), max_tokens=2048)

    def check(self, label: Label) -> None:
        if self.structured and not label.policy.base_url:
            raise ValueError("structured=true needs 'base_url': only a server can enforce a schema")
        if self.images and not label.policy.base_url:
            raise ValueError("images=true needs 'base_url': models in this process read text only")

    def config(self, label: Label) -> dict[str, Any]:
        """The settings, with the version of the prompt."""
        return super().config(label) | {"prompt": self._prompt(label).version}

    def items(self, label: Label) -> Any:
        """Traces; to show the answer, those whose problem has one."""
        items = with_answer(super().items(label)) if self.show_answer else super().items(label)
        note_count(
            0 if self.images else sum(any(m.attachments for m in item.trace.messages) for item in items),
            "trace",
            "with images or files that the judge is not shown; images=true sends images",
        )
        return items

    @property
    def replies(self) -> int:
        return self.votes

    def reads(self, label: Label) -> Callable[[ProblemTrace], str]:
        prompt = replace(self._prompt(label), images=None)  # which would be read, and cost by their size
        return lambda item: "".join(message.content or "" for message in prompt.render(item))

    @contextmanager
    def open(self, label: Label) -> Iterator[Opened]:
        prompt = self._prompt(label)
        form = labelling.structured_output(
            prompt.mode, name_failures=prompt.name_failures, name_clauses=prompt.specification is not None
        )
        structured = bool(label.policy.base_url) if self.structured is None else self.structured
        body = form if structured else None
        policy = label.open_policy(chat=True, batch_size=REVIEWS, extra_body=body)
        judge = labelling.JudgeLabeller(
            policy=policy,
            prompt=prompt,
            votes=self.votes,
            lowest=self.lowest,
            sampling=label.sampled,
            seed=label.seed,
        )
        yield work_of(judge, policy, judge.failures)

    def _prompt(self, label: Label) -> labelling.JudgePrompt:
        try:
            rules = label.rules.read_text(encoding="utf-8") if label.rules is not None else None
        except UnicodeDecodeError as error:
            raise LabelError(f"--rules {label.rules} is not UTF-8 text: {error}") from error
        specification = labelling.Specification.of_file(label.specification) if label.specification else None
        return labelling.JudgePrompt(
            mode=self.mode,
            specification=specification,
            rules=rules,
            show_answer=self.show_answer,
            name_failures=self.name_failures,
            images=Path(label.file).parent if self.images else None,
        )


class JudgeScores(Asks):
    """Scores of agent runs from the probabilities of a judge's letters: how far a run is after each step, or
    by a tournament among the runs of a task, at the last step, the chance that it beats another. `progress`
    is one call a run, which sees all of it; `states` one a step, which sees nothing later.

    The labels are of kind value. A server that returns no probabilities is read by its letters alone. The
    runs of a task must lie together for a tournament.
    """

    takes = (*_ANSWER, *_PROCESSES)
    size = 4
    by_problem = True
    ask: Literal["progress", "states", "tournament"] = "progress"
    """Each step of each run, or which run of a task is best."""
    rubric: str = "terminal"
    """Criteria: a TOML file, or `code`, `review`, `terminal`, `tools`, `writing`."""
    repeats: int = Field(default=1, ge=1, description="Replies to each question.")
    pivots: int = Field(default=2, ge=1, description="Leaders of the ring that all others meet.")
    images: bool = False
    """Show the images that the traces keep; for `progress`, by a model that reads them."""

    def check(self, label: Label) -> None:
        if self.images and (self.ask != "progress" or not label.policy.base_url):
            raise ValueError("images=true needs 'base_url' and ask=progress")

    @property
    def sampling(self) -> Sampling:
        """Greedy for one reply to each question."""
        return Sampling(temperature=float(self.repeats > 1), max_tokens=4096)

    def config(self, label: Label) -> dict[str, Any]:
        """The settings with the criteria."""
        return super().config(label) | {"criteria": labelling.Rubric.named(self.rubric).model_dump()}

    def items(self, label: Label) -> Any:
        """Traces; for a tournament all runs of a task lie together."""
        items = super().items(label)
        if self.ask == "tournament":
            order = [item.trace.problem_id for item in items]
            if sum(1 for _ in groupby(order)) > len(set(order)):
                need = "the runs of a task must lie together; sort them by problem_id"
                raise LabelError(f"{label.file}: {need}")
        return items

    def predict(self, label: Label, items: Sequence[ProblemTrace]) -> None:
        rubric = labelling.Rubric.named(self.rubric)
        first, questions = rubric.criteria[0], len(items)
        states = [(item, step) for item in items for step in range(len(item.trace.steps))]
        if self.ask == "states":
            questions = len(states)
        if self.ask == "tournament":
            runs = Counter(item.trace.problem_id for item in items).values()
            questions = sum(labelling.comparisons(count, self.pivots) for count in runs)

        def text_of(number: int) -> str:
            if self.ask == "states":
                item, step = states[number % len(states)]
                return rubric.state_prompts(item, first)[step]
            item = items[number % len(items)]
            pair = self.ask == "tournament"
            return rubric.pair_prompt(item, item, first) if pair else rubric.progress_prompt(item, first)

        prompts = range(questions * len(rubric.criteria))
        most = label.sampled.max_tokens
        usage = predict_usage(prompts, text_of, replies=self.repeats, max_tokens=most)
        what = f"{counted(questions, 'question')}, criteria: {len(rubric.criteria)}, replies: {self.repeats}"
        say_prediction(what, usage, self.money(usage))

    @contextmanager
    def open(self, label: Label) -> Iterator[Opened]:
        policy = label.open_policy(chat=True, batch_size=REVIEWS)
        judge = labelling.RunJudge(
            policy=policy,
            rubric=labelling.Rubric.named(self.rubric),
            repeats=self.repeats,
            sampling=label.sampled,
            seed=label.seed,
            images=Path(label.file).parent if self.images else None,
        )
        labeller: Labeller = judge
        if self.ask == "states":
            labeller = labelling.StateLabeller(judge)
        elif self.ask == "tournament":
            labeller = labelling.TournamentLabeller(judge, self.pivots)
        yield work_of(labeller, policy, judge.failures)


class Critiques(Asks):
    """Not labels but critiques by a language model, to train a verifier (`surefoot train verifier`).

    All critiques are written; training filters those that can be parsed and agree with labels.
    """

    takes = ("format", *_ANSWER)
    asked = "critique"
    chains: int = Field(default=4, ge=1, description="Critiques per trace.")

    @property
    def sampling(self) -> Sampling:
        """ThinkPRM's."""
        return Sampling(temperature=0.1, max_tokens=4096)

    def items(self, label: Label) -> Any:
        """Traces of text."""
        need = "a verifier reads text, not messages"
        return usable(super().items(label), lambda item: item.trace.text is not None, need)

    @property
    def replies(self) -> int:
        return self.chains

    def reads(self, label: Label) -> Callable[[ProblemTrace], str]:
        form = o.verifier_format(label.format)
        return lambda item: str(form.prompt(item))

    def run(self, label: Label) -> None:
        items = self.items(label)
        if label.dry_run:
            self.predict(label, items)
            return
        form = o.verifier_format(label.format)
        policy = label.open_policy(chat=form.chat, batch_size=REVIEWS)
        missing = 0

        async def work(piece: Sequence[ProblemTrace]) -> list[training.TraceCritiques]:
            return await training.sample_critiques(
                policy, piece, form, chains=self.chains, sampling=label.sampled, seed=label.seed
            )

        def count(line: bytes) -> None:
            nonlocal missing
            missing += self.chains - len(training.TraceCritiques.model_validate_json(line).texts)

        def failed(critiques: Sequence[training.TraceCritiques]) -> str | None:
            return None if any(record.texts for record in critiques) else critiques[-1].error

        job = Job(
            record=training.TraceCritiques,
            work=work,
            policy=policy,
            failure=failed,
            config={"format": form.model_dump()},
        )
        outcome = label.map(job, items, self.size, on_line=count)
        note(f"critiques of {counted(outcome.written, 'trace')} written; {missing} failed (see 'error')")
        outcome.require_complete()
