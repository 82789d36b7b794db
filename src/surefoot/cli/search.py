"""``surefoot search``: one method on a file of problems."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import ByteSize, Field, field_validator

from surefoot import policies
from surefoot import search as s
from surefoot.cli import options as o
from surefoot.cli.runs import input_files, map_pieces, read_table
from surefoot.cli.settings import Command, Flag, OptionGroup
from surefoot.cli.terminal import echo_table, note, note_count
from surefoot.errors import PolicyError, RecordError, RunError, counted
from surefoot.io import Run, read_records, write_records
from surefoot.io.sources import OUT_ENDINGS
from surefoot.policies.devices import Loading
from surefoot.policies.prompts import PromptFormat
from surefoot.protocols import Policy, Sampling, StepScorer
from surefoot.records import Problem, Usage
from surefoot.scores import trace_rule
from surefoot.search.method import run_search
from surefoot.search.revise import Revise
from surefoot.search.saved_tree import save_tree
from surefoot.search.spec import search_of
from surefoot.segment import segmenter
from surefoot.stats.bootstrap import bootstrap_mean
from surefoot.work import Job, show_progress

_PIECE = 4
"""Problems per piece, as a multiple of those searched at once: the next starts as soon as one ends."""


class StepSettings(o.SettingsGroup):
    """How solutions are written step by step."""

    separator: str | None = Field(default=None, min_length=1)
    r"""Text that ends a step; `\n` is a line break, `\t` a tab. Default: the separator in the reward model's
    training data (Qwen: a blank line), else a line break."""
    segment: o.Segment | None = None
    """How text that is written in one piece is cut into steps (see `sample`); after each separator if not
    given."""
    step_tokens: int = Field(default=256, ge=1, description="Longest step; it is cut there.")
    max_steps: int = Field(default=40, ge=1)
    """Steps after which the rest is written in one piece."""


class SearchJudge(o.JudgeSettings):
    """The reward model or verifier of steps, and how its scores become one number."""

    aggregate: o.Aggregate = None


class RunSearch(Command):
    """Search a file of problems: METHOD is a search with its settings, such as `beam:width=4,expand=4`.

    Example: `surefoot search problems.jsonl beam:width=4 --policy lab --prm prm --out results.jsonl`
    Example: `surefoot search problems.jsonl majority:n=16 --policy lab --out results.jsonl`
    """

    problems: o.ProblemsArgument
    method: Annotated[
        str, Flag(argument=True, metavar="METHOD[:SETTING=VALUE,…]", methods=lambda: s.SEARCHES)
    ]
    seed: o.Seed = 0
    out: o.Out = "-"
    trees: Annotated[str | None, Flag(output=True)] = None
    """File for the trees (`.jsonl`, `.jsonl.gz`)."""
    token_budget: o.TokenBudget = None
    retry_failed: o.RetryFailed = False
    in_flight: int = Field(default=32, ge=1, description="Problems searched at the same time.")
    policy: o.PolicySettings
    prompt: PromptFormat = PromptFormat()
    sampling: Annotated[Sampling, OptionGroup(omit=("stop",))] = Sampling(temperature=0.8, max_tokens=2048)
    steps: StepSettings = StepSettings()
    grading: o.GradingSettings = o.GradingSettings()
    judge: Annotated[
        SearchJudge, OptionGroup(title="Reward model or verifier", common=("names", "verifier"))
    ] = SearchJudge()
    loading: o.Models = Loading()
    remember: ByteSize = Field(
        default="2GB",  # type: ignore[assignment]  # pydantic reads it
        description="Memory for the keys and values of texts that were read, for policy and reward model "
        "each, if they run in this process: 500MB, 2GB, 1.5GiB; 0 = no cache.",
    )

    @field_validator("method")
    @classmethod
    def _same_text_for_the_same_search(cls, text: str) -> str:
        return search_of(text).name

    def how(self, scorer: StepScorer | None, policy: Policy | None = None) -> s.Steps:
        """How solutions are written for ``scorer``; in one piece if ``policy`` cannot continue a text."""
        continuation = policies.capabilities_of(policy).continuation if policy else None
        whole_solutions = continuation is not None and not continuation.confirmed
        if whole_solutions and continuation:
            reason = f"the policy cannot continue a text ({continuation.evidence})"
            note(f"{reason}: each solution is written in one piece and cut into steps")
        return s.Steps(
            whole=whole_solutions,
            separator=o.separator(self.steps.separator, scorer),
            segmenter=segmenter(self.steps.segment) if self.steps.segment else None,
            step_tokens=self.steps.step_tokens,
            max_steps=self.steps.max_steps,
            sampling=self.sampling,
            prompt=self.prompt,
        )

    @contextmanager
    def scorer(self, search: s.SearchMethod) -> Iterator[StepScorer | None]:
        """Open the judge. Raises ``RunError`` without one, or if it reveals hidden tests to a revision."""
        with self.judge.open(self.loading) as scorer:
            if scorer is None and search.needs_scorer:
                raise RunError("give --prm or --verifier, which scores the steps")
            for verifier in getattr(getattr(scorer, "labeller", None), "verifiers", ()):
                if isinstance(search, Revise) and getattr(verifier, "visibility", "visible") == "hidden":
                    raise RunError(
                        f"--verifier {verifier.name}: its reasons reveal hidden tests; use visible-tests"
                    )
            yield scorer

    def run(self) -> None:
        """Search all problems and print a summary.

        Raises ``PolicyError`` when every request of a piece failed, as when the server is down: finished
        pieces are kept, and the same command resumes.
        """
        from surefoot.search.caches import remembering_policy, remembering_scorer

        search = search_of(self.method)
        problems = read_table(self.problems, Problem)
        input_files(self)  # before torch is imported, which takes seconds: a file may be missing
        policy = self.policy.open(chat=self.prompt.chat, loading=self.loading)
        # behind a server each problem is a piece, so that a kill loses those alone that are under way
        size = 1 if self.policy.base_url else _PIECE * self.in_flight
        order = {problem.id: index for index, problem in enumerate(problems)}
        summary = SearchSummary()
        with (
            self.scorer(search) as scorer,
            self.grading.open() as grader,
            self._tree_file() as keep,
            show_progress() as show,
        ):
            accepted = self._false_accepts(search, scorer)
            bar = _Bar(self.path(), show)
            steps = self.how(scorer, policy if search.by_steps else None)

            async def work(piece: Sequence[Problem]) -> list[s.SearchResult]:
                trees: dict[str, s.SavedTree] = {}

                def watch(space: s.Space, result: s.SearchResult) -> None:
                    bar.add()
                    if keep:
                        trees[result.problem_id] = save_tree(space, result)

                results = await run_search(
                    search,
                    piece,
                    remembering_policy(policy, self.remember),
                    remembering_scorer(scorer, self.remember) if scorer else None,
                    steps=steps,
                    aggregation=self.judge.aggregate,
                    grader=grader,
                    seed=self.seed,
                    overlap=bool(self.policy.base_url),
                    concurrency=self.in_flight,
                    watch=watch,
                )
                if results and all(result.counts.failed and not result.candidates for result in results):
                    raise PolicyError(
                        f"no problem of this piece has a solution, the last with: {results[-1].error}; fix "
                        "that and start the same command again, finished pieces are kept"
                    )
                if keep:
                    keep(order[piece[0].id] // size, [trees[problem.id] for problem in piece])
                return results

            job = Job(record=s.SearchResult, work=work)
            outcome = map_pieces(
                self,
                job,
                problems,
                size,
                self.out,
                policy=self.policy,
                token_budget=self.token_budget,
                retry_failed=self.retry_failed,
                on_line=summary.add,
                progress=bar.pieces,
            )
        summary.show(f"{self.path()} {self.method}")
        if accepted:
            note(f"wrong held-out solutions that reach stop_at: {accepted}")
        outcome.require_complete()

    def _false_accepts(self, search: s.SearchMethod, scorer: StepScorer | None) -> str | None:
        """How often a wrong solution reaches the score at which the search stops; ``None`` = it does not."""
        if not isinstance(search, s.BestOfNSearch) or search.stop_at is None:
            return None
        from surefoot.search.trust import STEPS, HeldOutStep

        [checkpoint] = self.judge.names if len(self.judge.names) == 1 else [""]
        rows = Path(checkpoint) / STEPS
        if not checkpoint or not rows.is_file():
            return "unknown, the reward model lacks held-out scores"
        how = self.judge.aggregate or trace_rule(scorer)
        steps = list(read_records(rows, HeldOutStep))
        if self.judge.calibrated:
            from surefoot.models.kinds.derived import load_calibration

            scores = load_calibration(checkpoint).map.apply([step.score for step in steps]).tolist()
            steps = [
                step.model_copy(update={"score": score}) for step, score in zip(steps, scores, strict=True)
            ]
        share = s.false_accepts(steps, search.stop_at, how)
        return f"{share:.1%}" if share else "unknown, none is wrong"

    @contextmanager
    def _tree_file(self) -> Iterator[Callable[[int, Sequence[s.SavedTree]], None] | None]:
        """Collect trees in ``<trees>.work`` and write them at the end; ``None`` without ``--trees``.

        A piece's trees are saved before its results, so that none is missing when a command resumes.
        Raises ``RecordError`` for a file of unknown ending and ``RunError`` as ``map_resumable``.
        """
        path = self.trees
        if path is None:
            yield None
            return

        if not path.endswith(OUT_ENDINGS):
            raise RecordError(f"--trees {path}: unknown ending; choose {', '.join(OUT_ENDINGS)}")
        if path == self.out:
            raise RecordError(f"--trees and --out are both {path}; give two files")
        folder = Path(f"{path}.work")
        config = {**self.resolved(), "out": self.out}
        with Run.open(folder, command=self.path(), config=config, inputs=input_files(self)) as run:
            journal = run.journal("trees", s.SavedTree)
            yield journal.write
            written = write_records(Path(path), journal.read())
        note(f"{counted(written, 'tree')} written")
        if not Path(f"{self.out}.work").exists():  # else a budget ended the work, and it can resume
            shutil.rmtree(folder / "pieces")  # first: pieces without a manifest would be refused after a kill
            shutil.rmtree(folder)


class _Bar:
    """A progress bar of problems, including problems solved before a restart."""

    def __init__(self, command: str, show: Callable[[str, int, int], None]) -> None:
        self._command, self._show = command, show
        self._done, self._problems = 0, 0

    def add(self) -> None:
        """Count a finished problem."""
        self._done += 1
        self._show(self._command, self._done, self._problems)

    def pieces(self, _: str, done: int, problems: int) -> None:
        """Set the number of finished problems when a piece ends."""
        self._done, self._problems = done, problems
        self._show(self._command, done, problems)


class SearchSummary:
    """Sums results and prints them as a table on standard error."""

    def __init__(self) -> None:
        self._outcomes: list[float] = []
        self._solvable: list[float] = []
        """Whether any candidate is correct, for problems with a reference answer."""
        self._problems = self._candidates = self._without = self._unscored = 0
        self._usage = Usage()
        self._counts: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()

    def add(self, line: bytes) -> None:
        """Add a result, which is a line of JSON."""
        result = s.SearchResult.model_validate_json(line)
        self._problems += 1
        self._candidates += len(result.candidates)
        self._without += result.finish == "none"
        self._unscored += result.finish == "unscored"
        self._usage += result.usage
        self._counts.update(result.counts.model_dump())
        if result.error:
            self._errors[result.error] += 1
        if result.outcome is not None or any(trace.outcome is not None for trace in result.candidates):
            self._outcomes.append(float(result.outcome is True))  # unknown counts as wrong
            self._solvable.append(float(any(trace.outcome for trace in result.candidates)))

    def show(self, title: str) -> None:
        """Print the table."""
        each = 1 / max(1, self._problems)
        usage, counts = self._usage, self._counts
        unjudged = self._problems - len(self._outcomes)
        rows = {
            "chosen answer is correct": _share(self._outcomes),
            "a candidate is correct (pass@ candidates)": _share(self._solvable),
            **({"problems of unknown outcome": str(unjudged)} if unjudged else {}),
            "problems without a solution": str(self._without),
            "candidates per problem": f"{self._candidates * each:.1f}",
            "tokens per problem": f"{usage.tokens * each:.0f}",
            "  read by the policy": f"{usage.prompt_tokens * each:.0f}",
            "  written by the policy": f"{usage.completion_tokens * each:.0f}",
            "  read or written by the verifier": f"{usage.verifier_tokens * each:.0f}",
            "steps sampled": str(counts["sampled"]),
            "  merged with equal steps": str(counts["merged"]),
            "  capped": str(counts["capped"]),
            "prefixes without a score": str(counts["unscored"]),
            "rejected steps in chosen solutions": str(counts["rejected"]),
            "failed requests": str(counts["failed"]),
        }
        title = f"{title}: {counted(self._problems, 'problem')}"
        echo_table(title, ("", ""), list(rows.items()), err=True, show_headings=False)
        note_count(self._unscored, "problem", "without a scored candidate: votes or order decided")
        for error, count in self._errors.most_common(5):
            note(f"{counted(count, 'problem')} with: {error}")
        note_count(max(0, len(self._errors) - 5), "other error", "(see 'error' in the results)")


def _share(outcomes: list[float]) -> str:
    """Mean with its 95 % interval over problems."""
    if not outcomes:
        return "no reference answers"
    return format(bootstrap_mean(outcomes, rng=np.random.default_rng(0)), ".1%")
