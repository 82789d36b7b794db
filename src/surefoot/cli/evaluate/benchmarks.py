"""``surefoot evaluate processbench`` and ``prmbench``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from surefoot.cli import options as o
from surefoot.cli.evaluate.inputs import ScoringCommand, named, show_skipped, unlabelled
from surefoot.labels import LabelRule

if TYPE_CHECKING:
    from surefoot.protocols import LabelledTrace


class BenchmarkCommand(ScoringCommand):
    """Settings of both benchmarks."""

    data: Annotated[tuple[str, ...], o.INPUT] = Field(
        min_length=1, description="The benchmark's file, as NAME=FILE or FILE; repeat it for several subsets."
    )
    missing: Literal["leave-out", "wrong"] = Field(
        default="leave-out",
        description="Traces without a record of some source: `leave-out` (for all sources), or `wrong` (no "
        "prediction of this source).",
    )
    neutral: o.NeutralRule = "good"

    @property
    def reading(self) -> LabelRule:
        """How labels become good or bad."""
        return LabelRule(neutral=self.neutral)


class EvaluateProcessBench(BenchmarkCommand):
    """Find the first error: ProcessBench's F1 of scorers and judges, side by side, with intervals.

    Sources are checkpoints, or files of step scores, of a judge's labels, or of published scores. Scores of
    checkpoints are stored in DIR/scores and reused, so a killed run resumes. The tables are printed;
    DIR/processbench.json has every number and DIR/processbench.html the plots.

    Example: `surefoot evaluate processbench mine=runs/prm judge=labels.jsonl --data gsm8k.json
    --data math.json --out bench`
    """

    report_name: ClassVar[str] = "processbench"

    threshold: tuple[str, ...] = Field(
        default=(),
        description="`split` (fitted on the other half of the problems), a subset's name (fitted on it, "
        "applied to all) or a number. By default `split`, `gsm8k` if it is in the data, and 0.5.",
    )

    def run(self) -> None:
        """Evaluate, print and write the report."""
        from surefoot.evaluation.benchmarks.processbench import (
            evaluate_processbench,
            processbench_cases,
            processbench_section,
        )
        from surefoot.evaluation.splits import SPLIT, parse_rules

        paths = named(self.data)
        default = [SPLIT, *(["gsm8k"] if "gsm8k" in paths else []), "0.5"]
        rules = parse_rules(list(self.threshold) or default, list(paths))
        subsets = {name: _read_processbench(path) for name, path in paths.items()}
        items = unlabelled(item for rows in subsets.values() for item in rows)
        result = evaluate_processbench(
            processbench_cases(subsets),
            self.systems(items, reading=self.reading),
            rules=rules,
            missing=self.missing,
            draws=self.draws,
            seed=self.seed,
        )
        self.write(processbench_section(result))


class EvaluatePRMBench(BenchmarkCommand):
    """Detect wrong steps: PRMBench's PRMScore of scorers and judges, side by side, with intervals.

    Scores of checkpoints are stored in DIR/scores and reused, so a killed run resumes. The tables are
    printed; DIR/prmbench.json has every number and DIR/prmbench.html the plots. Like PRMBench, it does not
    count traces without a verdict.

    Example: `surefoot evaluate prmbench mine=runs/prm --data prmbench.jsonl --out bench`
    """

    report_name: ClassVar[str] = "prmbench"

    threshold: tuple[str, ...] = Field(
        default=("0.5", "split"),
        description="A number (a step above it is valid; 0.5 is the published one), or `split` (fitted "
        "on the other half of the problems).",
    )
    redundancy: Annotated[tuple[str, ...], o.INPUT] = Field(
        default=(),
        description="NAME=FILE of redundancy scores of the source NAME, for the classes of simplicity.",
    )
    redundancy_threshold: float = Field(default=0.15, description="A step with more redundancy is flagged.")

    def run(self) -> None:
        """Evaluate, print and write the report."""
        from surefoot.evaluation.benchmarks.prmbench import (
            evaluate_prmbench,
            prmbench_cases,
            prmbench_section,
        )
        from surefoot.evaluation.splits import parse_rules

        rules = parse_rules(list(self.threshold), [])
        cases = prmbench_cases([item for path in named(self.data).values() for item in _read_prmbench(path)])
        items = unlabelled(case.item for case in cases.cases)
        systems = self.systems(items, reading=self.reading)
        redundancy = {system.name: system for system in self.systems(items, sources=self.redundancy)}
        result = evaluate_prmbench(
            cases,
            systems,
            redundancy=redundancy,
            redundancy_threshold=self.redundancy_threshold,
            rules=rules,
            missing=self.missing,
            draws=self.draws,
            seed=self.seed,
        )
        self.write(prmbench_section(result))


def _read_processbench(path: str) -> list[LabelledTrace]:
    from surefoot.formats import read_processbench
    from surefoot.io import ReadReport

    report = ReadReport()
    items = list(read_processbench(path, report=report))
    show_skipped(report)
    return items


def _read_prmbench(path: str) -> list[LabelledTrace]:
    """Rows and controls; a skipped row is reported once."""
    from surefoot.formats import read_prmbench, read_prmbench_controls
    from surefoot.io import ReadReport

    report, controls = ReadReport(), ReadReport()
    items = [*read_prmbench(path, report=report), *read_prmbench_controls(path, report=controls)]
    show_skipped(report)
    if controls.bad_count > report.bad_count:
        show_skipped(controls, "controls of ")
    return items
