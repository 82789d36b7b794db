"""``surefoot calibrate judge``: a judge's labels corrected by a small gold set."""

from __future__ import annotations

import hashlib
from datetime import datetime
from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator

from surefoot.cli import options as o
from surefoot.cli.evaluate.inputs import ReportCommand, named
from surefoot.cli.runs import read_table
from surefoot.cli.settings import Flag, fill
from surefoot.cli.terminal import note
from surefoot.evaluation.judge_calibration import calibrate_judge, judge_section
from surefoot.evaluation.report import to_json
from surefoot.io import write_json
from surefoot.io.sources import files_of
from surefoot.labels import LabelRule
from surefoot.records import StepLabel, Trace

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
