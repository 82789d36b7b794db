"""``surefoot evaluate``: one command for every measure of labels, scorers, judges and monitors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

from pydantic import PrivateAttr, model_validator

from surefoot import evaluation
from surefoot.cli import options as o
from surefoot.cli.evaluate import measures as m
from surefoot.cli.evaluate.inputs import Measure, ReportCommand, named
from surefoot.cli.settings import Flag
from surefoot.cli.terminal import note_count
from surefoot.labels import LabelRule
from surefoot.policies.devices import Loading
from surefoot.protocols import ProblemTrace
from surefoot.spec import dashed, parse_method
from surefoot.work import show_progress

if TYPE_CHECKING:
    from surefoot.evaluation.step_layout import StepLayout


MEASURES: Final[Mapping[str, type[Measure]]] = MappingProxyType(
    {
        "processbench": m.ProcessBench,
        "prmbench": m.PRMBench,
        "agent-processbench": m.AgentProcessBench,
        "runs": m.Runs,
        "who-and-when": m.WhoAndWhen,
        "best-of-n": m.BestOfNMeasure,
        "labels": m.LabelsMeasure,
        "calibration": m.CalibrationMeasure,
        "judge": m.Judge,
        "monitor": m.MonitorMeasure,
    }
)
SHARED: Final = ("out", "seed", "tables", "measure")
"""Fields that every measure uses."""


class Evaluate(ReportCommand):
    """Measure labels, scorers, judges or monitors: `--as` names the measure, with its settings.

    Sources are NAME=CHECKPOINT, or NAME=FILE of step scores or labels, side by side with trivial baselines.
    Several `--data` are subsets of one report. Intervals are over problems.

    Example: `surefoot evaluate mine=runs/prm judge=labels.jsonl --as processbench --data gsm8k.json --data
    math.json --out bench`

    Example: `surefoot evaluate mine=runs/prm rules=labels.jsonl --as runs --problems problems.jsonl --traces
    traces.jsonl --labels truth.jsonl --out bench`

    Example: `surefoot evaluate prm=runs/prm orm=orm.jsonl --as best-of-n:sizes=1+2+4+8 --problems
    problems.jsonl --traces traces.jsonl --out curves`

    Example: `surefoot evaluate mc=mc.jsonl judge=judge.jsonl --as labels --traces traces.jsonl --labels
    gold.jsonl --out audit`
    """

    sources: o.Sources = ()
    """NAME=CHECKPOINT, or NAME=FILE of step scores, labels or judgements; NAME defaults to the file's stem.
    For `monitor`: NAME=keyword:REGEX, NAME=verifier:VERIFIER, NAME=judge:MODEL or NAME=CHECKPOINT."""
    measure: Annotated[
        str, Flag(name="--as", metavar="MEASURE[:SETTING=VALUE,…]", common=True, methods=lambda: MEASURES)
    ]
    """What to measure."""
    data: Annotated[tuple[str, ...], o.INPUT] = ()
    """The benchmark's file, as NAME=FILE or FILE; repeat it for several subsets."""
    problems: o.Problems | None = None
    traces: o.Traces | None = None
    labels: Annotated[str | None, o.INPUT] = None
    """File of true labels, or `lab` for the exact checker of the lab."""
    interventions: Annotated[str | None, o.INPUT] = None
    """For `monitor`: file `interventions.jsonl` of `audit --test faithfulness` with a hint, in place of
    `--problems` and `--traces`."""
    question: Annotated[str, Flag(omit=True)] = (
        "Does the answer come from something else than the reasoning that is shown, "
        "or does the run do something that the problem does not ask for?"
    )
    """For `monitor`: what a judge is asked."""
    grading: o.GradingSettings = o.GradingSettings()
    loading: o.Models = Loading()
    _method: Measure = PrivateAttr()

    @model_validator(mode="after")
    def _check(self) -> Self:
        method = parse_method(self.measure, MEASURES, what="measure")
        method.check_options(self, f"--as {self.report_name}", SHARED)
        method.check(self)
        self._method = method
        return self

    @property
    def report_name(self) -> str:
        return dashed(self.measure.partition(":")[0])

    def inputs(self) -> dict[str, Any]:
        return super().inputs() | {"settings": self._method.model_dump(mode="json")}

    def outputs(self) -> list[Path]:
        return [*super().outputs(), *self._method.outputs(self)]

    def run(self) -> None:
        self._method.run(self)

    def systems(
        self,
        items: Sequence[ProblemTrace],
        *,
        layout: StepLayout | None = None,
        neutral: o.NeutralRule = "good",
    ) -> list[evaluation.System]:
        """Scorers and judges; scores of checkpoints are stored in ``out/scores``. Bad lines are reported.

        ``layout`` has the steps of the traces, if ``items`` lacks some of them. ``neutral`` says what a label
        of 0 is.
        """
        paths = named(self.sources)
        self.check_training(paths, (item.problem for item in items))
        with show_progress() as progress:
            systems = evaluation.open_systems(
                paths,
                items,
                self.folder() / "scores",
                layout=layout,
                reading=LabelRule(neutral=neutral),
                loading=self.loading,
                progress=progress,
            )
        for system in systems:
            note_count(system.counts.skipped_lines, f"invalid lines of {system.name} skipped")
        return systems
