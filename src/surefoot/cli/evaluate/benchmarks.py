"""``surefoot evaluate processbench`` and ``prmbench``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from surefoot.cli import options as o
from surefoot.cli.evaluate.inputs import EvaluationCommand, named, open_all, show, unlabelled
from surefoot.cli.terminal import echo
from surefoot.labels import LabelRule
from surefoot.policies.devices import Loading

if TYPE_CHECKING:
    from surefoot.protocols import LabelledTrace


class BenchmarkCommand(EvaluationCommand):
    """Settings of both benchmarks."""

    data: Annotated[tuple[str, ...], o.INPUT] = Field(
        min_length=1, description="The benchmark's file, as NAME=FILE or FILE; repeat it for several subsets."
    )
    missing: Literal["leave-out", "wrong"] = Field(
        default="leave-out",
        description="Traces of which a source has no record: `leave-out` (of all sources), or `wrong`: as a "
        "trace without a verdict.",
    )
    neutral: o.NeutralRule = "good"
    loading: o.Models = Loading()


class EvaluateProcessBench(BenchmarkCommand):
    """Find the first error: ProcessBench's F1 of scorers and judges, side by side, with intervals.

    Sources are checkpoints, or files of step scores, of a judge's labels, or of published scores. Scores of
    checkpoints are stored in DIR/scores and reused; a killed run resumes. The tables are printed;
    DIR/processbench.json has every number and DIR/processbench.html the plots.

    Example: `surefoot evaluate processbench mine=runs/prm judge=labels.jsonl --data gsm8k.json
    --data math.json --out bench`
    """

    report_name: ClassVar[str] = "processbench"

    threshold: tuple[str, ...] = Field(
        default=(),
        description="`split` (fitted on the other half of the problems), a subset's name (fitted on it, "
        "applied to all) or a number. By default `split`, `gsm8k` if it is there, and 0.5.",
    )

    def run(self) -> None:
        """Evaluate, print and write the report."""
        from surefoot.evaluation.benchmarks.processbench import (
            evaluate_processbench,
            processbench_cases,
            write_processbench_report,
        )
        from surefoot.evaluation.splits import SPLIT, parse_rules
        from surefoot.io import write_json

        files, paths = named(self.sources), named(self.data)
        default = [SPLIT, *(["gsm8k"] if "gsm8k" in paths else []), "0.5"]
        rules = parse_rules(list(self.threshold) or default, list(paths))
        subsets = {name: _read_processbench(path) for name, path in paths.items()}
        items = unlabelled(item for rows in subsets.values() for item in rows)
        folder = self.folder()
        systems = open_all(
            files, items, folder, reading=LabelRule(neutral=self.neutral), loading=self.loading
        )
        result = evaluate_processbench(
            processbench_cases(subsets),
            systems,
            rules=rules,
            missing=self.missing,
            draws=self.draws,
            seed=self.seed,
        )
        inputs = {"sources": files, "data": paths, "neutral": self.neutral}
        for_json, for_html = self.outputs()
        write_json(for_json, {"inputs": inputs, **result.to_json()})
        show(write_processbench_report(result, for_html))


class EvaluatePRMBench(BenchmarkCommand):
    """Flag wrong steps: PRMBench's PRMScore of scorers and judges, side by side, with intervals.

    Scores of checkpoints are stored in DIR/scores and reused; a killed run resumes. The tables are printed;
    DIR/prmbench.json has every number and DIR/prmbench.html the plots. PRMBench does not count traces without
    a verdict.

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
            write_prmbench_report,
        )
        from surefoot.evaluation.splits import parse_rules
        from surefoot.io import write_json

        files, paths, redundancy = named(self.sources), named(self.data), named(self.redundancy)
        rules = parse_rules(list(self.threshold), [])
        cases = prmbench_cases([item for path in paths.values() for item in _read_prmbench(path)])
        items = unlabelled(case.item for case in cases.cases)
        folder = self.folder()
        systems = open_all(
            files, items, folder, reading=LabelRule(neutral=self.neutral), loading=self.loading
        )
        result = evaluate_prmbench(
            cases,
            systems,
            redundancy={
                system.name: system for system in open_all(redundancy, items, folder, loading=self.loading)
            },
            redundancy_threshold=self.redundancy_threshold,
            rules=rules,
            missing=self.missing,
            draws=self.draws,
            seed=self.seed,
        )
        inputs = {"sources": files, "data": paths, "redundancy": redundancy, "neutral": self.neutral}
        for_json, for_html = self.outputs()
        write_json(for_json, {"inputs": inputs, **result.to_json()})
        show(write_prmbench_report(result, for_html))


def _read_processbench(path: str) -> list[LabelledTrace]:
    from surefoot.formats import read_processbench
    from surefoot.io import ReadReport

    report = ReadReport()
    items = list(read_processbench(path, report=report))
    if report.bad_count:
        echo(report.summary(), err=True)
    return items


def _read_prmbench(path: str) -> list[LabelledTrace]:
    """Rows and controls; what is skipped is said once."""
    from surefoot.formats import read_prmbench, read_prmbench_controls
    from surefoot.io import ReadReport

    report, controls = ReadReport(), ReadReport()
    items = [*read_prmbench(path, report=report), *read_prmbench_controls(path, report=controls)]
    for kind, counted in (("", report), ("controls of ", controls)):
        if counted.bad_count > (0 if counted is report else report.bad_count):
            echo(kind + counted.summary(), err=True)
    return items
