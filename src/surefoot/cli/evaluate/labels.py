"""``surefoot evaluate labels``: measure labels against the truth and each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from surefoot.cli import options as o
from surefoot.cli.evaluate.inputs import AfterError, EvaluationCommand, lab_labels, named
from surefoot.labels import LabelRule

if TYPE_CHECKING:
    from surefoot.records import StepLabel, Trace


class EvaluateLabels(EvaluationCommand):
    """Audit labels: accuracy, first errors, calibration, agreement between sources, cost.

    Without `--truth` only counts, cost and agreement are reported. The tables are printed; DIR/labels.json
    has every number and DIR/labels.html the plots.

    Example: `surefoot evaluate labels mc=mc.jsonl judge=judge.jsonl --traces traces.jsonl --truth gold.jsonl
    --out audit`
    """

    report_name: ClassVar[str] = "labels"

    sources: o.Sources = Field(
        min_length=1, description="Files of labels, as NAME=FILE or FILE; NAME defaults to the file's stem."
    )
    traces: o.Traces
    problems: o.Problems | None = Field(
        default=None, description="File of problem records; needed for `--truth lab`."
    )
    truth: Annotated[str | None, o.INPUT] = Field(
        default=None, description="File of true labels, or `lab` for the exact checker of the lab."
    )
    after_error: AfterError = Field(
        default="unlabelled", description="With `--truth lab`: steps after the first error."
    )
    good_above: tuple[str, ...] = Field(
        default=(), description="A value label above this is good; NUMBER for all, NAME=NUMBER for one."
    )
    neutral: o.NeutralRule = "good"
    by_rater: bool = Field(default=False, description="Treat each rater of a file as a separate source.")
    bins: int = Field(default=10, ge=1, description="Bins of the calibration.")
    binning: Literal["equal-mass", "equal-width"] = Field(default="equal-mass", description="Kind of bins.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.truth == "lab" and self.problems is None:
            raise ValueError("'truth' lab needs 'problems': the checker reads each trace against its problem")
        self.rules()
        return self

    def rules(self) -> dict[str, LabelRule]:
        """Label rules by source; the default rule is under the empty name."""
        cuts = {"": 0.0}
        for text in self.good_above:
            name, _, number = text.rpartition("=")
            try:
                cuts[name] = float(number)
            except ValueError as error:
                raise ValueError(f"'good_above' {text}: give a number, or NAME=NUMBER") from error
            if not 0 <= cuts[name] < 1:
                raise ValueError(
                    f"'good_above' {text}: values lie in [0, 1], so give a number of 0 or more below 1"
                )
        return {name: LabelRule(good_above=cut, neutral=self.neutral) for name, cut in cuts.items()}

    def run(self) -> None:
        """Evaluate, print and write the report."""
        from surefoot.cli.runs import read_table
        from surefoot.evaluation.label_audit import audit_labels, label_section
        from surefoot.records import StepLabel, Trace

        rules, traces = self.rules(), read_table(self.traces, Trace)
        labels = {name: read_table(path, StepLabel) for name, path in named(self.sources).items()}
        audit = audit_labels(
            traces,
            labels,
            truth=self._truth(traces),
            reading=rules.pop("", None),
            readings=rules,
            by_rater=self.by_rater,
            bins=self.bins,
            binning=self.binning,
            draws=self.draws,
            seed=self.seed,
        )
        self.write(label_section(audit))

    def _truth(self, traces: Sequence[Trace]) -> Iterable[StepLabel] | None:
        from surefoot.cli.runs import pair, read_table
        from surefoot.records import Problem, StepLabel

        if self.truth is None:
            return None
        if self.truth != "lab":
            return read_table(self.truth, StepLabel)
        return lab_labels(pair(read_table(self.problems or "", Problem), traces), self.after_error)
