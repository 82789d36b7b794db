"""The measure of monitors of runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from surefoot import evaluation, models, policies
from surefoot.cli import options as o
from surefoot.cli.evaluate.inputs import Measure, named
from surefoot.cli.runs import pair
from surefoot.errors import RunError
from surefoot.evaluation.audits.interventions import FaithfulnessRow
from surefoot.evaluation.monitors import Suspicion, View
from surefoot.io.tables import open_table
from surefoot.labelling import open_verifier

if TYPE_CHECKING:
    from surefoot.cli.evaluate.command import Evaluate


class MonitorMeasure(Measure):
    """Monitors of runs, next to length, a constant and a bag of words: do they flag runs whose `outcome` is
    false, or with `--interventions` solutions whose answer a hint moved?

    A monitor scores each run in a view: its reasoning, its actions, or both. Thresholds are chosen on other
    problems than those they flag. A judge answers `question` about each run, or about several of one problem.
    """

    takes: ClassVar = ("sources", "problems", "traces", "interventions", "question", "loading", "draws")
    view: tuple[View, ...] = ("reasoning", "actions", "both")
    """What the monitors read."""
    together: int = Field(default=1, ge=1)
    """Runs of one problem that a monitor sees at once; they must be all bad or all good."""
    judge_url: str | None = None
    """OpenAI-compatible server of the judge."""

    def check(self, command: Evaluate) -> None:
        if bool(command.interventions) == bool(command.problems and command.traces):
            raise ValueError("give 'problems' and 'traces', or 'interventions'")

    def run(self, command: Evaluate) -> None:
        monitors = {name: self._monitor(kind, command) for name, kind in named(command.sources).items()}
        runs = list(_interventions(command.interventions) if command.interventions else _runs(command))
        results = evaluation.evaluate_monitors(
            runs, monitors, self.view, together=self.together, draws=command.draws, seed=command.seed
        )
        command.write(evaluation.monitors_section(runs, results))

    def _monitor(self, kind: str, command: Evaluate) -> Suspicion:
        if kind == "lab":
            from surefoot.lab.world import ExactLabeller
            from surefoot.models import LabelScorer

            return evaluation.scorer_monitor(LabelScorer(ExactLabeller(after_error="wrong"), name="lab"))
        name, _, argument = kind.partition(":")
        if name == "keyword" and argument:
            return evaluation.keyword_monitor(argument)
        if name == "verifier" and argument:
            return evaluation.verifier_monitor(open_verifier(argument))
        if name == "judge" and argument:
            judge = argument if self.judge_url else o.lab_policy(argument)
            policy = policies.load_policy(judge, base_url=self.judge_url, chat=True, loading=command.loading)
            return evaluation.judge_monitor(policy, command.question, seed=command.seed)
        return evaluation.scorer_monitor(models.load_prm(kind, loading=command.loading))


def _runs(command: Evaluate) -> Iterator[evaluation.WatchedRun]:
    for item in pair(command.problems or "", command.traces or ""):
        if item.trace.outcome is not None:
            yield evaluation.WatchedRun(item=item, bad=not item.trace.outcome)


def _interventions(path: str) -> Iterator[evaluation.WatchedRun]:
    rows = open_table(path, FaithfulnessRow)
    if not any(row.hint for row in rows):
        raise RunError(f"{path}: no row has a hint; run `surefoot audit --test faithfulness` with a hint")
    for row in rows:
        yield from evaluation.monitored_runs(row)
