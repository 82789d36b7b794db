"""``surefoot score``."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from surefoot import models as m
from surefoot.cli import options as o
from surefoot.cli.runs import map_pieces, pair, predict_usage, say_prediction, trained_on
from surefoot.cli.settings import Command, Flag
from surefoot.cli.terminal import echo, note, note_count
from surefoot.display import show
from surefoot.errors import ScoreError, counted
from surefoot.labels import Information
from surefoot.policies.devices import Loading
from surefoot.protocols import ProblemTrace
from surefoot.records import Problem, StepScores
from surefoot.segment import segmenter
from surefoot.work import Here
from surefoot.work.jobs import Job, Opened

_PIECE = 200
"""Traces to score before they are saved."""


class Score(Command):
    """Score one pasted solution step by step, or a file of traces, with a reward model of any kind.

    One solution: `--problem TEXT`, and the solution on standard input or with `--solution`. The steps are
    shown with their scores, and the first score below `--threshold` is marked. A file: `--problems` and
    `--traces`; the output holds one record of step scores per trace.

    Example: `surefoot score -m prm --problem "What is 7 * 12 + 5?" < solution.txt`

    Example: `surefoot score traces.jsonl -m prm --problems problems.jsonl --out scores.jsonl`
    """

    traces: o.TracesArgument | None = None
    names: Annotated[tuple[str, ...], Flag(name="--prm", short="-m")] = Field(min_length=1)
    """Checkpoint directory, hub name (`owner/name@revision`) or URL of a reward model; several are an
    ensemble."""
    problem: str | None = Field(default=None, min_length=1, description="One problem's text.")
    solution: str = Field(default="-", description="One solution's text; `-` reads standard input.")
    segment: o.Segment | None = None
    """How the solution is cut into steps; if not given, as the model's training data, else by blank line or
    line."""
    threshold: float | None = None
    """The first step with a score below this is marked; it need not be an error. Default: the checkpoint's
    threshold, else 0.5."""
    problems: o.Problems | None = None
    out: o.Out = "-"
    loading: o.Models = Loading()
    family: o.Family = None
    tokenizer: o.Tokenizer = None
    reference: str | None = None
    """Second model of an implicit reward, if it is not where the checkpoint says."""
    base: str | None = None
    """Model that an adapter belongs to, if it is not where the checkpoint says."""
    chains: int = Field(default=1, ge=1, description="Critiques of a generative verifier to average.")
    calibrated: o.Calibrated = False
    windows: bool | None = None
    """Read a trace that is longer than the model's context in windows, each with the task and the latest
    steps; if not given, as the model was trained. `reasons` tell how much was left out."""
    workers: o.Workers = 1
    engine: o.EngineName = "local"
    allow_uninformative: o.AllowUninformative = False
    retry_failed: o.RetryFailed = False
    dry_run: o.DryRun = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.problem is None and (self.problems is None or self.traces is None):
            raise ValueError("give 'problem' and a solution, or both 'problems' and 'traces'")
        if self.dry_run and self.problem is not None:
            raise ValueError("'dry_run' is for files: give 'problems' and 'traces'")
        return self

    def outputs(self) -> list[Path]:
        return [] if self.dry_run else super().outputs()

    def run(self) -> None:
        if not self.dry_run:
            o.require_checkpoints(self.names)
        if self.problem is not None:
            self._show(self.load(), self.problem)
        else:
            self._score_file()

    def load(self) -> m.CheckpointScorer:
        """The reward model."""
        return m.load_prm(
            o.one_or_all(self.names),
            family=self.family,
            loading=self.loading,
            reference=self.reference,
            base=self.base,
            chains=self.chains,
            calibrated=self.calibrated,
            tokenizer=self.tokenizer,
            windows=self.windows,
            images=Path(self.traces or "-").parent,
        )

    def _show(self, scorer: m.CheckpointScorer, problem: str) -> None:
        from surefoot.models.scorer import cut

        text = sys.stdin.read() if self.solution == "-" else self.solution
        question = Problem(text=problem)
        trace = cut(question, text, segmenter(self.segment) if self.segment else scorer.card.segmenter)
        [scores] = scorer.score_traces([ProblemTrace(problem=question, trace=trace)])
        trust, threshold = scorer.card.trust, self.threshold
        if threshold is None:
            threshold = trust.threshold if trust else 0.5
        view = show(trace, scores, threshold=threshold)
        echo(str(view))
        if not scores.unscored_reason:
            echo(f"{scorer.card.aggregation} of the steps: {scorer.aggregate(scores):.3f}")
            if view.first_below is None:
                echo(f"no step scores below {threshold:.3g}")

    def _score_file(self) -> None:
        from surefoot.models.loading import identifying_files, is_server

        items = pair(self.problems or "-", self.traces or "-")
        if self.dry_run:
            self._predict(items)
            return
        with_traces = set(items.problem_ids())
        used = (problem for problem in items.problems if problem.id in with_traces)
        for warning in trained_on(self.names, used):
            note(warning)
        summary = _Summary()
        about: Any = {"inputs": identifying_files(o.one_or_all(self.names)), "counts": summary.critiques}
        job = Job(record=StepScores, load=self.opened, set_aside=self.set_aside, **about)
        size, engine = _PIECE, o.open_engine(self.engine, self.workers, self.loading)
        if any(map(is_server, self.names)):
            scorer, engine = self.load(), Here()

            async def ask(piece: Sequence[ProblemTrace]) -> list[StepScores]:
                return await asyncio.to_thread(scorer.score_traces, piece)

            job = Job(record=StepScores, work=ask, failure=_failure, **about)
            if isinstance(scorer, m.RemoteScorer):
                size, engine = scorer.batch_size, Here(scorer.concurrency)
        outcome = map_pieces(
            self,
            job,
            items,
            size,
            self.out,
            engine=engine,
            retry_failed=self.retry_failed,
            on_line=summary.add,
        )
        summary.show(outcome.written, may_be_flat=self.allow_uninformative)
        outcome.require_complete()

    def _predict(self, items: Sequence[ProblemTrace]) -> None:
        def text_of(item: ProblemTrace) -> str:
            steps = range(len(item.trace.steps))
            return "".join([item.problem.text, *map(item.trace.step_text, steps)])

        usage = predict_usage(items, text_of, replies=1, max_tokens=0)
        steps = f"{counted(len(items), 'trace')}; common beginnings are read once, which is not predicted"
        say_prediction(steps, usage)

    @contextmanager
    def opened(self) -> Iterator[Opened]:
        """The work of a job, with the reward model loaded."""
        scorer = self.load()
        verifier = getattr(scorer, "scorer", scorer)  # the model that a calibration wraps
        counts = verifier.invalid if isinstance(verifier, m.GenerativeVerifier) else Counter[str]()
        yield Opened(work=scorer.score_traces, counts=counts)

    def set_aside(self, item: ProblemTrace, reason: str) -> list[StepScores]:
        """A record without scores, and why."""
        return [StepScores.unscored(item.trace, ", ".join(self.names), reason)]


class _Summary:
    """What a file of scores holds, counted over the whole run."""

    def __init__(self) -> None:
        self.unscored, self.windowed, self.information = 0, 0, Information()
        self.critiques: Counter[str] = Counter()
        self._empty: StepScores | None = None

    def add(self, line: bytes) -> None:
        """Scores, as a line of the output."""
        record = StepScores.model_validate_json(line)
        self.unscored += None in record.scores
        self.windowed += any(record.reasons)
        self.information.add(record.scores)
        if self._empty is None and {*record.scores} <= {None}:
            self._empty = record

    def show(self, written: int, *, may_be_flat: bool) -> None:
        """Counts on standard error. Raises ``ScoreError`` if no step has a score, or all the same."""
        note(f"{counted(written, 'trace')} scored; {self.unscored} in part or not (see 'unscored_reason')")
        note_count(self.windowed, "trace", "longer than the context and read in windows (see 'reasons')")
        for reason, count in self.critiques.most_common():
            note_count(count, "critique", f"not scored: {reason}")
        note(str(self.information).replace("value", "score"))
        if self.information.is_flat and not may_be_flat:
            raise ScoreError(
                f"all {self.information.with_value} steps have the score {self.information.low:g}, which "
                "tells no step from another; --allow-uninformative accepts this"
            )
        if self._empty and not self.information.with_value:
            raise ScoreError(
                f"no step was scored; first trace, {self._empty.trace_id}: {self._empty.unscored_reason}"
            )


def _failure(records: Sequence[StepScores]) -> str | None:
    """Why a server gave no score for these traces, if it gave none."""
    reason = records[-1].unscored_reason or ""
    if reason.startswith("server: ") and all(set(record.scores) == {None} for record in records):
        return reason
    return None
