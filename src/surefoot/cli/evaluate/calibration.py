"""``surefoot evaluate calibration``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from surefoot.cli import options as o
from surefoot.cli.evaluate.inputs import AfterError, ScoringCommand, lab_labels, named
from surefoot.cli.terminal import echo
from surefoot.errors import CheckpointError
from surefoot.labels import LabelRule
from surefoot.stats.calibration import MAP_KINDS, MapKind

if TYPE_CHECKING:
    from surefoot.evaluation.scorer_calibration import CalibrationAudit


class EvaluateCalibration(ScoringCommand):
    """Are step scores calibrated? Reliability, ECE and Brier score, and the effect of a fitted map.

    Overall and by the step's position, with 95 % intervals over problems. Maps are fitted on one half of the
    problems and evaluated, before and after, on the other. With `--store` the map is written into the
    checkpoint, for `load_prm(path, calibrated=True)`. Tables are printed; DIR/calibration.json has every
    number and DIR/calibration.html the plots. Scores of checkpoints are stored in DIR/scores and reused.

    Example: `surefoot evaluate calibration prm=runs/prm --problems problems.jsonl --traces traces.jsonl
    --labels gold.jsonl --fit temperature --store --out calibration`
    """

    report_name: ClassVar[str] = "calibration"

    problems: o.Problems
    traces: o.Traces
    labels: Annotated[str, o.INPUT] = Field(
        description="File of true labels, or `lab` for the exact checker of the lab."
    )
    fit: tuple[Literal[MapKind, "none"], ...] = Field(default=MAP_KINDS, description="Map to fit.")
    store: bool = Field(
        default=False, description="Write calibration.json into each checkpoint; needs one `--fit`."
    )
    after_error: AfterError = Field(
        default="unlabelled", description="With `--labels lab`: steps after the first error."
    )
    good_above: float = Field(default=0.0, ge=0, le=1, description="A value label above this is good.")
    neutral: o.NeutralRule = "good"
    bins: int = Field(default=10, ge=1, description="Bins of the scores.")
    binning: Literal["equal-mass", "equal-width"] = Field(default="equal-mass", description="Kind of bins.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.store and len(set(self.fit) - {"none"}) != 1:
            raise ValueError("'store' writes one map: choose it, as in `--fit platt`")
        return self

    def run(self) -> None:
        """Evaluate, print and write the report."""
        from surefoot.cli.runs import pair, read_table
        from surefoot.evaluation.label_sets import label_sets
        from surefoot.evaluation.scorer_calibration import audit_calibration, calibration_section
        from surefoot.evaluation.step_layout import StepLayout
        from surefoot.io.tables import facts_of
        from surefoot.records import Problem, StepLabel, Trace

        files = named(self.sources)
        if self.store and (other := [name for name, path in files.items() if not Path(path).is_dir()]):
            raise CheckpointError(f"--store needs a checkpoint's directory; {other[0]} is not one")
        items = pair(read_table(self.problems, Problem), read_table(self.traces, Trace))
        in_lab = self.labels == "lab"
        truth = lab_labels(items, self.after_error) if in_lab else read_table(self.labels, StepLabel)
        layout = StepLayout(facts_of(item.trace) for item in items)
        reading = LabelRule(good_above=self.good_above, neutral=self.neutral)
        audit = audit_calibration(
            self.systems(items),
            label_sets("labels", truth, layout, lambda _: reading)[0],
            fits=[kind for kind in dict.fromkeys(self.fit) if kind != "none"],
            bins=self.bins,
            binning=self.binning,
            draws=self.draws,
            seed=self.seed,
        )
        self.write(calibration_section(audit))
        if self.store:
            _store(audit, files)


def _store(audit: CalibrationAudit, files: dict[str, str]) -> None:
    from surefoot.models.kinds.calibrated import save_calibration

    for scorer in audit.scorers:
        if not scorer.fits:
            [reason] = scorer.unfitted.values()
            raise CheckpointError(f"{scorer.name}: nothing to store; {reason}")
        save_calibration(files[scorer.name], scorer.fits[0].fitted)
        echo(f"{scorer.name}: calibration.json written to {files[scorer.name]}", err=True)
