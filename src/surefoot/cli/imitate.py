"""``surefoot imitate``: policies fine-tuned on solutions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field, model_validator

from surefoot import rl, training
from surefoot.cli import options as o
from surefoot.cli.rl import TaskCommand
from surefoot.cli.runs import input_files, labelled, pair, read_table
from surefoot.cli.settings import OptionGroup
from surefoot.cli.terminal import note
from surefoot.cli.train import DETAILS
from surefoot.concurrency import launched
from surefoot.errors import RunError, counted
from surefoot.io import Run
from surefoot.labelling.expert import expert_traces
from surefoot.labelling.specification import rejection
from surefoot.protocols import LabelledTrace
from surefoot.records import Problem, Trace
from surefoot.rl.channels import RewardChannels
from surefoot.rl.config import RoundsConfig
from surefoot.segment import visible_part
from surefoot.work import show_progress

if TYPE_CHECKING:
    from surefoot.rl.rounds import RoundRow

_ROUNDS = OptionGroup(
    title="Training",
    names={
        "problems": "--round-problems",
        "training.lora.rank": "--lora",
        "training.lora.targets": "--lora-target",
    },
    # the run's seed counts
    omit=("threshold", "training.seed", "batch_size", *(f"training.{name}" for name in DETAILS)),
    transient=("batch_size",),
)
_OWN = ("rounds", "problems", "samples", "start", "keep_solutions")
"""Settings of the policy's own solutions."""


class Imitate(TaskCommand):
    """Train a policy on good steps: on an expert's, or on its own.

    With `--traces` it takes the expert's steps (behaviour cloning); `--labels` leaves the good ones. With
    `--specification`, too, it learns the traces of which every step is right or neutral and a right one cites
    a clause (deliberative alignment, arXiv 2412.16339): completions of `sample --specification`, labelled by
    `judge` with it.

    Without `--traces` it learns in rounds (expert iteration, STaR, ReST-EM): it writes solutions and learns
    from different ones with the correct answer. By the answer alone, it also learns lucky answers after a
    wrong step; `--prm` or `--verifier` keep out solutions with a bad step. If the command is stopped, the
    same command resumes.

    Example: `surefoot imitate p.jsonl --traces solutions.jsonl --policy lab --out cloned`

    Example: `surefoot imitate p.jsonl --policy lab --prm prm --threshold 0.5 --held-out test.jsonl --gold lab
    --out iterated`
    """

    out: o.OutDirectory
    """Run directory; it holds `policy` (the best round) and `round-N`."""
    traces: o.Traces | None = Field(default=None, description="File of the expert's traces with steps.")
    labels: Annotated[str | None, o.INPUT] = None
    """File of step labels: only good steps are cloned."""
    threshold: float = Field(default=0.5, ge=0, le=1)
    """A labelled step with a higher value is good; a step of an own solution with at least this score."""
    judge: o.JudgeSettings = o.JudgeSettings()
    imitation: Annotated[RoundsConfig, _ROUNDS] = RoundsConfig()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.specification and self.traces and not self.labels:
            raise ValueError("'specification' needs 'labels' that say whether the cited clauses apply")
        if self.labels and not self.traces:
            raise ValueError("'labels' are of an expert's 'traces'; give both")
        if "threshold" in self.model_fields_set and not (
            self.labels or self.judge.names or self.judge.verifier
        ):
            raise ValueError("'threshold' is of 'labels', or of what 'prm' or 'verifier' score; give one")
        changed = {name for name in _OWN if getattr(self.imitation, name) != getattr(RoundsConfig(), name)}
        judged = [name for name in ("names", "verifier") if getattr(self.judge, name)]
        for name in (*judged, *sorted(changed)) if self.traces else ():
            option = "--round-problems" if name == "problems" else f"'{name}'"
            raise ValueError(f"{option} is for the policy's own solutions; leave it out, or 'traces'")
        return self

    def run(self) -> None:
        if (count := launched()) > 1:
            raise RunError(
                f"{self.path()} works in one process, and {count} were started: run it without torchrun or "
                "accelerate launch"
            )
        problems = read_table(self.problems, Problem)
        held_out = read_table(self.held_out, Problem) if self.held_out else ()
        with (
            self.open_task(problems, held_out, self.judge, self.loading) as task,
            Run.open(self.out, command=self.path(), config=self.resolved(), inputs=input_files(self)) as run,
            show_progress() as progress,
        ):
            about = run, o.lab_policy(self.policy), task
            if self.traces:
                cloned, labelled = self._demonstrations(self.traces, problems), self.labels is not None
                rows = rl.clone(
                    *about, self.imitation, progress, cloned, labelled=labelled, loading=self.loading
                )
            else:
                threshold = self.threshold if task.scorer else None
                config = self.imitation.model_copy(update={"threshold": threshold})
                rows = rl.iterate(*about, config, progress, loading=self.loading)
            report_rounds(self.out, rows)
            note(str(RewardChannels.model_validate(run.result("channels"))))

    def _demonstrations(self, path: str, problems: Sequence[Problem]) -> list[training.Demonstration]:
        """What is cloned of the files; the rest is counted on standard error."""
        traces = read_table(path, Trace)
        if self.labels:
            items = labelled(problems, traces, self.labels)
            if self.specification:
                return [training.demonstrate(item.trace) for item in _passing(items)]
            good = [training.good_steps(item, threshold=self.threshold) for item in items]
            if not self.grade_reasoning:
                good = [g.intersection(visible_part(i.trace).steps) for g, i in zip(good, items, strict=True)]
            cloned = [
                training.demonstrate(item.trace, steps) for item, steps in zip(items, good, strict=True)
            ]
            if bare := sum(not item.steps for item in cloned):
                note(f"{counted(bare, 'trace')} left out: none of their steps is labelled good")
            return [item for item in cloned if item.steps]
        by_problem, left_out = expert_traces(item.trace for item in pair(problems, traces))
        for reason, count in left_out.items():
            note(f"{counted(count, 'trace')} left out: {reason}")
        return [training.demonstrate(trace) for of_problem in by_problem.values() for trace in of_problem]


def _passing(items: Iterable[LabelledTrace]) -> list[LabelledTrace]:
    """The completions that follow their specification; the others are counted by reason on standard error.

    Raises ``RunError`` if none does.
    """
    passed, reasons = [], Counter[str]()
    for item in items:
        if reason := rejection(item):
            reasons[reason] += 1
        else:
            passed.append(item)
    for reason, count in reasons.most_common():
        note(f"{counted(count, 'trace')} left out: {reason}")
    if not passed:
        raise RunError(f"none of the {reasons.total()} completions passes, so there is nothing to learn")
    note(f"{len(passed)} of {len(passed) + reasons.total()} completions pass")
    return passed


def report_rounds(out: Path, rows: Sequence[RoundRow]) -> None:
    """A line per round on standard error: steps learned, accuracy, dropped traces."""
    for row in rows:
        parts = []
        if row.round:
            loss = "" if row.loss is None else f", loss {row.loss:.4f}"
            steps = counted(row.decisions, "step")
            parts.append(f"{counted(row.sampled, 'solution')} written, {steps} learned{loss}")
        if row.evaluation:
            correct, wrong = row.evaluation.accuracy, row.evaluation.trace_error
            parts.append(f"accuracy {correct:.1%}")
            if wrong:
                parts.append(f"trace error {wrong:.1%}")
        if parts:
            note(f"round {row.round}: {'; '.join(parts)}")
        for reason, count in row.dropped.items():
            note(f"  left out: {count} {reason}")
    note(f"policy: {out / 'policy'}, {_choice(rows)}")


def _choice(rows: Sequence[RoundRow]) -> str:
    from surefoot.rl.rounds import best_round

    best, start = best_round(rows), rows[0].evaluation
    if best.evaluation is None or start is None:
        return f"of round {best.round}, the last: give --held-out to choose the best"
    message = (
        f"of round {best.round}, the best on {counted(best.evaluation.problems, 'held-out problem')}; "
        "they chose it, so measure it on others"
    )
    if best.evaluation.accuracy.value <= start.accuracy.value:
        message += f"; no round is better than the policy it started from ({start.accuracy:.1%})"
    return message
