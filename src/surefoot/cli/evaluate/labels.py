"""``surefoot evaluate labels``, ``evaluate calibration`` and ``calibrate judge``: measured by true labels."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from surefoot import evaluation, models
from surefoot.cli import options as o
from surefoot.cli.evaluate.inputs import (
    AfterError,
    EvaluationCommand,
    ReportCommand,
    ScoringCommand,
    lab_labels,
    named,
    named_numbers,
)
from surefoot.cli.runs import pair, read_table
from surefoot.cli.settings import Flag, fill
from surefoot.cli.terminal import note
from surefoot.errors import CheckpointError
from surefoot.evaluation.judge_calibration import calibrate_judge, judge_section
from surefoot.evaluation.label_audit import audit_labels, label_section
from surefoot.evaluation.label_sets import label_sets
from surefoot.evaluation.report import to_json
from surefoot.evaluation.step_layout import StepLayout
from surefoot.io import write_json
from surefoot.io.sources import files_of
from surefoot.io.tables import facts_of
from surefoot.labels import LabelRule
from surefoot.records import StepLabel, Trace
from surefoot.stats.calibration import MAP_KINDS, Binning, MapKind
from surefoot.stats.reading import step_facts

_BINS = Field(default=10, ge=1, description="Bins of the calibration.")
_BINNING: Any = Field(default="equal-mass", description="Kind of bins.")


class EvaluateLabels(EvaluationCommand):
    """Audit labels: accuracy, first errors, calibration, agreement between sources, cost.

    Without `--truth` only counts, cost and agreement are reported.

    Example: `surefoot evaluate labels mc=mc.jsonl judge=judge.jsonl --traces traces.jsonl --truth gold.jsonl
    --out audit`
    """

    sources: o.Sources = Field(min_length=1)
    """Files of labels, as NAME=FILE or FILE; NAME defaults to the file's stem."""
    traces: o.Traces
    problems: o.Problems | None = None
    """File of problem records; needed for `--truth lab`."""
    truth: Annotated[str | None, o.INPUT] = None
    """File of true labels, or `lab` for the exact checker of the lab."""
    after_error: AfterError = "unlabelled"
    """With `--truth lab`: steps after the first error."""
    good_above: tuple[str, ...] = ()
    """A value label above this is good; NUMBER for all, NAME=NUMBER for one."""
    neutral: o.NeutralRule = "good"
    by_rater: bool = Field(default=False, description="Treat each rater of a file as a separate source.")
    bins: int = _BINS
    binning: Binning = _BINNING

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.truth == "lab" and self.problems is None:
            raise ValueError("'truth' lab needs 'problems': the checker reads each trace against its problem")
        self.rules()
        return self

    def rules(self) -> dict[str, LabelRule]:
        """Label rules by source; the default rule is under the empty name."""
        cuts = {"": 0.0} | named_numbers("good_above", self.good_above)
        if wrong := [cut for cut in cuts.values() if not 0 <= cut < 1]:
            raise ValueError(
                f"'good_above' {wrong[0]:g}: values lie in [0, 1], so give a number of 0 or more below 1"
            )
        return {name: LabelRule(good_above=cut, neutral=self.neutral) for name, cut in cuts.items()}

    def run(self) -> None:
        rules, traces = self.rules(), read_table(self.traces, Trace)
        labels = {name: read_table(path, StepLabel) for name, path in named(self.sources).items()}
        truth, reading = self._truth(traces), rules.pop("", None)
        audit = fill(audit_labels, self, traces, labels, truth=truth, reading=reading, readings=rules)
        self.write(label_section(audit))

    def _truth(self, traces: Sequence[Trace]) -> Iterable[StepLabel] | None:
        if self.truth is None:
            return None
        if self.truth != "lab":
            return read_table(self.truth, StepLabel)
        return lab_labels(pair(self.problems or "", traces), self.after_error)


class EvaluateCalibration(ScoringCommand):
    """Are step scores calibrated? Reliability, ECE and Brier score, and the effect of a fitted map.

    Overall and by the step's position, with 95 % intervals over problems. Maps are fitted on one half of
    the problems and evaluated, before and after, on the other. With `--store` the map is written into the
    checkpoint, for `load_prm(path, calibrated=True)`.

    Example: `surefoot evaluate calibration prm=runs/prm --problems problems.jsonl --traces traces.jsonl
    --labels gold.jsonl --fit temperature --store --out calibration`
    """

    problems: o.Problems
    traces: o.Traces
    labels: Annotated[str, o.INPUT]
    """File of true labels, or `lab` for the exact checker of the lab."""
    fit: tuple[Literal[MapKind, "none"], ...] = Field(default=MAP_KINDS, description="Map to fit.")
    store: bool = False
    """Write calibration.json into each checkpoint; needs one `--fit`."""
    after_error: AfterError = "unlabelled"
    """With `--labels lab`: steps after the first error."""
    good_above: float = Field(default=0.0, ge=0, le=1, description="A value label above this is good.")
    neutral: o.NeutralRule = "good"
    bins: int = _BINS
    binning: Binning = _BINNING

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.store and len(set(self.fit) - {"none"}) != 1:
            raise ValueError("'store' writes one map: choose it, as in `--fit platt`")
        return self

    def run(self) -> None:
        files = named(self.sources)
        if self.store and (other := [name for name, path in files.items() if not Path(path).is_dir()]):
            raise CheckpointError(f"--store needs a checkpoint's directory; {other[0]} is not one")
        items = pair(self.problems, self.traces)
        in_lab = self.labels == "lab"
        truth = lab_labels(items, self.after_error) if in_lab else read_table(self.labels, StepLabel)
        layout = StepLayout(facts_of(item.trace) for item in items)
        reading = LabelRule(good_above=self.good_above, neutral=self.neutral)
        labels = label_sets("labels", truth, layout, lambda _: reading)[0]
        fits = [kind for kind in dict.fromkeys(self.fit) if kind != "none"]
        labelled_steps = [
            labels.is_known[slice(*layout.span(number))].tolist() for number in range(len(items))
        ]
        facts = [
            fact
            for item, chosen in zip(items, labelled_steps, strict=True)
            for fact in step_facts(item.problem, item.trace, chosen)
        ]
        audit = fill(evaluation.audit_calibration, self, self.systems(items), labels, facts=facts, fits=fits)
        self.write(evaluation.calibration_section(audit))
        for scorer in audit.scorers if self.store else ():
            if not scorer.fits:
                [reason] = scorer.unfitted.values()
                raise CheckpointError(f"{scorer.name}: nothing to store; {reason}")
            models.save_calibration(files[scorer.name], scorer.fits[0].fitted)
            note(f"{scorer.name}: calibration.json written to {files[scorer.name]}")


STORED = ".calibration.json"
"""Ending of the file next to a judge's labels, which states how good they are."""


class CalibrateJudge(ReportCommand):
    """How many steps are wrong, from few labels of people and many of a judge?

    The rate is corrected by the gold labels (prediction-powered inference). Kappa comes with the base rate,
    sensitivity and specificity by kind of step and position. Other files, or with `--by-rater` other
    instructions of the same judge, are compared with the first one: what does removing a clause change? The
    result is also stored next to the first file, as `FILE.calibration.json`.

    Example: `surefoot calibrate judge gold.jsonl judge=judge.jsonl without=no-clause.jsonl --traces
    traces.jsonl --since 2026-11-01T00:00:00Z --out calibration`
    """

    gold: Annotated[str, Flag(argument=True, transient=True, file=True)]
    """File of gold labels: steps of problems that were chosen at random."""
    sources: o.Sources = Field(min_length=1)
    """Files of the judge's labels, as NAME=FILE or FILE; the first is calibrated."""
    traces: o.Traces
    since: str | None = None
    """Compare the judge's labels before and from this time, such as 2026-11-01T00:00:00Z."""
    by_rater: bool = Field(default=False, description="Treat each rater of a file as a separate judge.")
    good_above: float = Field(default=0.0, ge=0, le=1, description="A value label above this is good.")
    neutral: o.NeutralRule = "good"

    @field_validator("since")
    @classmethod
    def _check_since(cls, value: str | None) -> str | None:
        _moment(value)
        return value

    def outputs(self) -> list[Path]:
        return [*super().outputs(), Path(f"{self._calibrated()}{STORED}")]

    def run(self) -> None:
        reading = LabelRule(good_above=self.good_above, neutral=self.neutral)
        judges = {name: read_table(path, StepLabel) for name, path in named(self.sources).items()}
        gold, traces = read_table(self.gold, StepLabel), read_table(self.traces, Trace)
        since = _moment(self.since)
        result = fill(calibrate_judge, self, traces, gold, judges, reading=reading, since=since)
        digests = {"labels": _sha256(self._calibrated()), "gold": _sha256(self.gold)}
        self.write(judge_section(result), sha256=digests)
        stored = self.outputs()[-1]
        write_json(stored, {"schema": "surefoot.judge-calibration/1", "sha256": digests, **to_json(result)})
        note(f"stored next to the labels: {stored}")

    def _calibrated(self) -> str:
        return next(iter(named(self.sources).values()))


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
