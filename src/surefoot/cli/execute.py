"""``surefoot execute``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from surefoot.cli import options as o
from surefoot.cli.runs import map_pieces, pair, read_table
from surefoot.cli.settings import Command, Flag
from surefoot.cli.terminal import note
from surefoot.errors import LabelError
from surefoot.io import write_records
from surefoot.labelling import observe_programs
from surefoot.labelling.behaviour import Behaviour
from surefoot.labelling.verifiers.programs import grade_traces
from surefoot.protocols import ProblemTrace
from surefoot.records import StepScores, Trace
from surefoot.sandbox import Sandbox, open_sandbox
from surefoot.work import Job

SCORER = "visible-tests"


class Execute(Command):
    """Run programs: what each returns becomes its answer, and the visible tests it passes its score.

    Programs that return the same on the same inputs have the same answer, so `surefoot select` and
    `evaluate --as best-of-n` vote among them as among numbers; a program that fails or returns nothing on
    some input has none. Inputs are those of the visible tests and variations of them. Hidden tests are run
    for `--grade` alone, which fills in outcomes. Traces of one problem must lie together, as `sample` writes
    them. Programs run in a sandbox.

    Example: `surefoot execute traces.jsonl --problems problems.jsonl --scores visible.jsonl --out ran.jsonl`
    """

    traces: o.TracesArgument
    problems: o.Problems
    out: o.Out = "-"
    scores: Annotated[Path | None, Flag(output=True)] = None
    """File for scores by visible tests: the share that a program passes, at each step."""
    grade: bool = Field(default=False, description="Fill in outcomes by the hidden tests.")
    seed: o.Seed = 0
    sandbox: o.SandboxName = "bubblewrap"

    def run(self) -> None:
        if self.scores and self.out == "-":
            raise LabelError("--scores is written from the file of traces; give --out a file, too")
        items = pair(self.problems, self.traces)
        counts: Counter[str] = Counter()
        with open_sandbox(self.sandbox) as sandbox:
            job = Job(record=Trace, work=lambda piece: self._executed(sandbox, piece))

            def count(line: bytes) -> None:
                counts.update(_counted(Trace.model_validate_json(line)))

            outcome = map_pieces(self, job, items, 4, self.out, by_problem=True, on_line=count)
        if not counts["programs"]:
            raise LabelError(f"{self.problems}: no problem has a programming task in meta['code']")
        note(", ".join(f"{count} {name}" for name, count in counts.items() if count))
        if self.scores:
            write_records(self.scores, _scores(read_table(self.out, Trace)))
        outcome.require_complete()

    def _executed(self, sandbox: Sandbox, items: Sequence[ProblemTrace]) -> list[Trace]:
        behaviours = observe_programs(sandbox, items, seed=self.seed)
        graded = grade_traces(sandbox, items) if self.grade else [None] * len(items)
        return [
            self._with(item.trace, behaviour, None if verdict is None else verdict.passed)
            for item, behaviour, verdict in zip(items, behaviours, graded, strict=True)
        ]

    def _with(self, trace: Trace, behaviour: Behaviour | None, passed: bool | None) -> Trace:
        if behaviour is None:
            return trace
        result = {"passed": behaviour.visible_passed, "of": behaviour.visible, "clean": behaviour.clean}
        changes = {"answer": behaviour.answer(), "meta": trace.meta | {"executed": result}}
        return trace.model_copy(update=changes | ({"outcome": passed} if self.grade else {}))


def _counted(trace: Trace) -> Iterator[str]:
    result = trace.meta.get("executed")
    if result is None:
        yield "traces without a program, unchanged"
        return
    yield "programs"
    if result["clean"]:
        yield "that return something on every input"
    if result["of"] and result["passed"] == result["of"]:
        yield "that pass all visible tests"
    if not result["of"]:
        yield "without visible tests"
    if trace.outcome:
        yield "that are right"


def _scores(traces: Sequence[Trace]) -> Iterator[StepScores]:
    """The share of visible tests as the score of every step, so that every aggregation gives this share."""
    for trace in traces:
        result = trace.meta.get("executed") or {"of": 0}
        if not result["of"]:
            yield StepScores.unscored(trace, SCORER, "no visible test")
        else:
            share = result["passed"] / result["of"]
            yield StepScores(trace_id=trace.id, scorer=SCORER, scores=(share,) * len(trace.steps))
