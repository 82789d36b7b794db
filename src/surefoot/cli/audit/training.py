"""``--audit`` of the training commands: tests of the policies before and after."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import model_validator

from surefoot.cli import options as o
from surefoot.cli.audit.commands import Audit
from surefoot.cli.audit.faithfulness import Faithfulness
from surefoot.cli.audit.tests import TESTS
from surefoot.cli.runs import origin_of, print_report
from surefoot.cli.settings import Flag, OptionGroup
from surefoot.evaluation import audits as a
from surefoot.evaluation.audits.faithfulness import intervention_examples
from surefoot.evaluation.report import Report, Section, first_screen_of, to_json
from surefoot.io import Run, write_json, write_records
from surefoot.protocols import Sampling
from surefoot.records import Problem
from surefoot.spec import parse_method


class TrainingAudit(o.SettingsGroup):
    """Audit of the policy that training started from and of the one that it made."""

    test: Annotated[str | None, Flag(name="--audit", metavar="faithfulness[:SETTING=VALUE,…]")] = None
    """Also test, before and after training, whether the answers follow from the shown steps; `surefoot audit
    --help` lists the settings."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.test is not None:
            self._parsed(self.test, "line")
        return self

    def _parsed(self, test: str, segment: str) -> Faithfulness:
        kinds = {name: kind for name, kind in TESTS.items() if issubclass(kind, Faithfulness)}
        return parse_method(test, kinds, what="test", segment=segment)

    def compare(
        self, test: str, command: Any, run: Run, held_out: Sequence[Problem], max_tokens: int
    ) -> Section:
        """Test both policies, and write the comparison to ``audit`` in the run directory and to its record.

        ``command`` trained ``policy`` in its run directory from the policy that it names.
        """
        folder: Path = command.out / "audit"
        folder.mkdir(exist_ok=True)
        write_records(folder / "problems.jsonl", held_out)
        faithfulness = self._parsed(test, command.segment)
        by_policy = {
            name: faithfulness.rows(
                Audit(
                    out=folder / name,
                    test=(test,),
                    problems=str(folder / "problems.jsonl"),
                    policy=o.PolicySettings(name=str(policy)),
                    prompt=command.prompt,
                    sampling=Sampling(temperature=0.0, max_tokens=max_tokens),
                    grading=command.grading,
                    loading=command.loading,
                )
            )
            for name, policy in (("initial", command.policy), ("final", command.out / "policy"))
        }
        audits = [
            a.audit_faithfulness(f"The {name} policy", rows, hint=faithfulness.hint)
            for name, rows in by_policy.items()
        ]
        changes = a.compare_faithfulness(*by_policy.values())
        section = a.training_section(audits[0], audits[1], changes)
        first = first_screen_of(
            [section], origin_of(command, "faithfulness.json"), intervention_examples(by_policy["final"])
        )
        write_json(folder / "faithfulness.json", to_json(section.results))
        Report(section.title, first).section(section).write(folder / "faithfulness.html")
        run.finish("audit", to_json(changes))
        print_report(first, section.findings)
        return section


AUDIT = OptionGroup(title="Audit", transient=("*",))
"""An audit changes nothing in the run, so that it can be added to a finished one."""
