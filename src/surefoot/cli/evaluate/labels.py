"""Measures against true labels: sets of labels, calibration of scores, a judge's labels."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from surefoot import evaluation, models
from surefoot.cli import options as o
from surefoot.cli.evaluate.inputs import AfterError, Measure, lab_labels, named, named_numbers
from surefoot.cli.runs import pair, read_table
from surefoot.cli.terminal import note
from surefoot.errors import CheckpointError
from surefoot.evaluation.calibration import calibrate_judge, judge_section
from surefoot.evaluation.labels import audit_labels, label_section, label_sets
from surefoot.evaluation.report import to_json
from surefoot.evaluation.step_layout import StepLayout
from surefoot.io import write_json
from surefoot.io.sources import files_of
from surefoot.io.tables import facts_of
from surefoot.labels import LabelRule
from surefoot.protocols import ProblemTrace
from surefoot.records import StepLabel, Trace
from surefoot.stats.calibration import MAP_KINDS, Binning, MapKind
from surefoot.stats.reading import step_facts

if TYPE_CHECKING:
    from surefoot.cli.evaluate.command import Evaluate

GoodAbove = Annotated[float, Field(ge=0, le=1, description="A value label above this is good.")]
ByRater = Annotated[bool, Field(description="Treat each rater of a file as a separate source.")]


class AgainstLabels(Measure):
    """Settings of the measures against true labels."""

    after_error: AfterError = "unlabelled"
    """With `--labels lab`: steps after the first error."""
    neutral: o.NeutralRule = "good"
    bins: int = Field(default=10, ge=1, description="Bins of the calibration.")
    binning: Binning = Field(default="equal-mass", description="Kind of bins.")

    def truth(self, labels: str, items: Iterable[ProblemTrace]) -> Iterable[StepLabel]:
        """True labels of a file, or of the lab's exact checker."""
        return lab_labels(items, self.after_error) if labels == "lab" else read_table(labels, StepLabel)


class LabelsMeasure(AgainstLabels):
    """Sets of labels: accuracy, first errors, calibration, agreement, cost. Without `--labels`, the truth,
    only counts, cost and agreement."""

    needs: ClassVar = ("sources", "traces")
    takes: ClassVar = ("problems", "labels", "draws")
    good_above: tuple[str, ...] = ()
    """A value label above this is good; NUMBER for all, NAME=NUMBER for one."""
    by_rater: ByRater = False

    def check(self, command: Evaluate) -> None:
        if command.labels == "lab" and command.problems is None:
            raise ValueError(
                "'labels' lab needs 'problems': the checker reads each trace against its problem"
            )
        self.rules()

    def rules(self) -> dict[str, LabelRule]:
        """Label rules by source; the default rule is under the empty name."""
        cuts = {"": 0.0} | named_numbers("good_above", self.good_above)
        if wrong := [cut for cut in cuts.values() if not 0 <= cut < 1]:
            raise ValueError(
                f"'good_above' {wrong[0]:g}: values lie in [0, 1], so give a number of 0 or more below 1"
            )
        return {name: LabelRule(good_above=cut, neutral=self.neutral) for name, cut in cuts.items()}

    def run(self, command: Evaluate) -> None:
        readings, traces = self.rules(), read_table(command.traces or "", Trace)
        truth = None
        if command.labels:
            items = pair(command.problems or "", traces) if command.labels == "lab" else ()
            truth = self.truth(command.labels, items)
        audit = audit_labels(
            traces,
            {name: read_table(path, StepLabel) for name, path in named(command.sources).items()},
            truth=truth,
            reading=readings.pop("", None),
            readings=readings,
            by_rater=self.by_rater,
            bins=self.bins,
            binning=self.binning,
            draws=command.draws,
            seed=command.seed,
        )
        command.write(label_section(audit))


class CalibrationMeasure(AgainstLabels):
    """Calibration of step scores: reliability, ECE and Brier score, overall and by the step's position. Maps
    are fitted on one half of the problems and measured, before and after, on the other."""

    needs: ClassVar = ("sources", "problems", "traces", "labels")
    takes: ClassVar = ("loading", "draws")
    fit: tuple[Literal[MapKind, "none"], ...] = Field(default=MAP_KINDS, description="Maps to fit.")
    store: bool = False
    """Write the one map of `fit` as calibration.json into each checkpoint, for
    `load_prm(path, calibrated=True)`."""
    good_above: GoodAbove = 0.0

    def check(self, command: Evaluate) -> None:  # noqa: ARG002
        if self.store and len(set(self.fit) - {"none"}) != 1:
            raise ValueError("'store' writes one map: choose it, as in fit=platt")

    def run(self, command: Evaluate) -> None:
        files = named(command.sources)
        if self.store and (other := [name for name, path in files.items() if not Path(path).is_dir()]):
            raise CheckpointError(f"store=true needs a checkpoint's directory; {other[0]} is not one")
        items = pair(command.problems or "", command.traces or "")
        layout = StepLayout(facts_of(item.trace) for item in items)
        reading = LabelRule(good_above=self.good_above, neutral=self.neutral)
        truth = self.truth(command.labels or "", items)
        labels = label_sets("labels", truth, layout, lambda _: reading)[0]
        audit = evaluation.audit_calibration(
            command.systems(items),
            labels,
            facts=[
                fact
                for item, good in zip(items, labels.good, strict=True)
                for fact in step_facts(item.problem, item.trace, [label is not None for label in good])
            ],
            fits=[kind for kind in dict.fromkeys(self.fit) if kind != "none"],
            bins=self.bins,
            binning=self.binning,
            draws=command.draws,
            seed=command.seed,
        )
        command.write(evaluation.calibration_section(audit))
        for scorer in audit.scorers if self.store else ():
            if not scorer.fits:
                [reason] = scorer.unfitted.values()
                raise CheckpointError(f"{scorer.name}: nothing to store; {reason}")
            models.save_calibration(files[scorer.name], scorer.fits[0].fitted)
            note(f"{scorer.name}: calibration.json written to {files[scorer.name]}")


STORED = ".calibration.json"
"""Ending of the file next to a judge's labels, which states how good they are."""


class Judge(Measure):
    """How many steps are wrong, from few labels of people (`--labels`, of problems chosen at random) and many
    of a judge: the rate corrected by prediction-powered inference; kappa with the base rate, sensitivity and
    specificity.

    The first source is calibrated; the result is also stored next to it, as `FILE.calibration.json`. Other
    files, or with `by-rater` other instructions of the same judge, are compared with the first one: what does
    removing a clause change?
    """

    needs: ClassVar = ("sources", "traces", "labels")
    takes: ClassVar = ("draws",)
    since: str | None = None
    """Compare the judge's labels before and from this time, such as 2026-11-01T00:00:00Z."""
    by_rater: ByRater = False
    good_above: GoodAbove = 0.0
    neutral: o.NeutralRule = "good"

    @field_validator("since")
    @classmethod
    def _check_since(cls, value: str | None) -> str | None:
        _moment(value)
        return value

    def outputs(self, command: Evaluate) -> list[Path]:
        return [Path(f"{_calibrated(command)}{STORED}")]

    def run(self, command: Evaluate) -> None:
        gold = command.labels or ""
        result = calibrate_judge(
            read_table(command.traces or "", Trace),
            read_table(gold, StepLabel),
            {name: read_table(path, StepLabel) for name, path in named(command.sources).items()},
            reading=LabelRule(good_above=self.good_above, neutral=self.neutral),
            by_rater=self.by_rater,
            since=_moment(self.since),
            draws=command.draws,
            seed=command.seed,
        )
        digests = {"labels": _sha256(_calibrated(command)), "gold": _sha256(gold)}
        command.write(judge_section(result), sha256=digests)
        [stored] = self.outputs(command)
        write_json(stored, {"schema": "surefoot.judge-calibration/1", "sha256": digests, **to_json(result)})
        note(f"stored next to the labels: {stored}")


def _calibrated(command: Evaluate) -> str:
    return next(iter(named(command.sources).values()))


def _moment(text: str | None) -> datetime | None:
    moment = datetime.fromisoformat(text) if text else None
    if moment and moment.tzinfo is None:
        raise ValueError(f"'since' {text} lacks a time zone; add Z for UTC")
    return moment


def _sha256(path: str) -> str:
    digest = hashlib.sha256()
    for file in files_of(path):
        digest.update(Path(file).read_bytes())
    return digest.hexdigest()
