"""``surefoot faithfulness``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from surefoot import policies
from surefoot.cli import options as o
from surefoot.cli.audit.inputs import subset
from surefoot.cli.evaluate.inputs import ReportCommand
from surefoot.cli.runs import map_pieces, origin_of, print_report, read_table
from surefoot.cli.settings import Flag, OptionGroup, fill
from surefoot.cli.terminal import note
from surefoot.evaluation import audits as a
from surefoot.evaluation.audits.faithfulness import (
    audit_faithfulness,
    faithfulness_section,
    intervention_examples,
)
from surefoot.evaluation.audits.interventions import FaithfulnessRow, Interventions
from surefoot.evaluation.audits.settings import FaithfulnessSettings
from surefoot.evaluation.report import Report, Section, first_screen_of, to_json
from surefoot.io import Run, write_json, write_records
from surefoot.io.tables import open_table
from surefoot.policies.devices import Loading
from surefoot.policies.prompts import PromptFormat
from surefoot.protocols import Sampling
from surefoot.records import Problem
from surefoot.segment import segmenter
from surefoot.work.jobs import Job, Opened


class AuditFaithfulness(ReportCommand):
    """Ask whether a policy's shown reasoning is what its answers depend on.

    The policy solves each problem; then it answers again after its reasoning was cut short, replaced by
    filler, or altered by a mistake whose consequence is known, and after a hint at a wrong answer was put
    before the problem. The report says whether the answers follow from the steps, whether the hint moves
    them, and whether the solutions say so. A server that cannot continue the beginning of an answer gets
    the hint alone. If the command is stopped, the same command resumes.

    Example: `surefoot faithfulness problems.jsonl --policy lab:covert --hint note --cue "Answer: "
    --out audit`
    Example: `surefoot faithfulness gsm8k.jsonl --policy my-model --base-url http://localhost:8000/v1
    --chat --limit 200 --out audit`
    """

    problems: o.ProblemsArgument
    policy: o.PolicySettings
    tests: FaithfulnessSettings = FaithfulnessSettings()
    paraphraser: str | None = None
    """Policy that paraphrases the reasoning: a checkpoint, or a model of `--base-url`."""
    limit: int | None = Field(default=200, ge=1)
    """Number of problems, chosen at random with `--seed`."""
    segment: o.Segment = "line"
    prompt: PromptFormat = PromptFormat()
    sampling: Sampling = Sampling(temperature=0.0)
    grading: o.GradingSettings = o.GradingSettings()
    loading: o.Models = Loading()
    retry_failed: o.RetryFailed = False

    def run(self) -> None:
        rows = self.rows()
        audit = fill(audit_faithfulness, self, self.policy.name, rows, hint=self.tests.hint)
        self.write(faithfulness_section(audit), examples=intervention_examples(rows))

    def rows(self) -> list[FaithfulnessRow]:
        """The tests of every problem, resumed where the command was stopped."""
        problems = subset(read_table(self.problems, Problem), self.limit, self.seed)
        rows_file = self.folder() / "interventions.jsonl"
        job = Job(record=FaithfulnessRow, load=self.opened, failure=_failure)
        outcome = map_pieces(self, job, problems, 64, out=str(rows_file))
        outcome.require_complete()
        return list(open_table(rows_file, FaithfulnessRow))

    @contextmanager
    def opened(self) -> Iterator[Opened]:
        """The work of a job: load the policy, and ask a server whether it continues text."""
        policy = self.policy.open(chat=self.prompt.chat, loading=self.loading)
        continuation = policies.capabilities_of(policy).continuation
        if not continuation.confirmed:
            note(f"only the hint is tested: the server may not continue text ({continuation.evidence})")
        paraphraser = self.paraphraser and policies.load_policy(
            self.paraphraser,
            base_url=self.policy.base_url,
            chat=True,
            loading=self.loading,
        )
        with self.grading.open() as grader:
            interventions = fill(
                Interventions,
                self,
                policy=policy,
                grader=grader,
                segmenter=segmenter(self.segment),
                settings=self.tests,
                continues=continuation.confirmed,
                paraphraser=paraphraser or None,
            )
            yield Opened(work=interventions.test, policy=policy)


def _failure(records: Sequence[FaithfulnessRow]) -> str | None:
    """Why no problem was solved, if none was."""
    return records[-1].error if all(row.error for row in records) else None


class TrainingAudit(o.SettingsGroup):
    """Audit of the policy that training started from and of the one that it made."""

    name: Annotated[Literal["faithfulness"] | None, Flag(name="--audit")] = None
    """Also test, before and after training, whether the answers follow from the shown steps."""
    problems: Annotated[int, Flag(name="--audit-problems")] = Field(default=200, ge=1)
    """Held-out problems to test on, at most."""
    tests: FaithfulnessSettings = FaithfulnessSettings()

    def compare(self, command: Any, run: Run, held_out: Sequence[Problem], max_tokens: int) -> Section:
        """Test both policies, and write the comparison to ``audit`` in the run directory and to its record.

        ``command`` trained ``policy`` in its run directory from the policy that it names.
        """
        folder: Path = command.out / "audit"
        folder.mkdir(exist_ok=True)
        write_records(folder / "problems.jsonl", held_out)
        by_policy = {
            name: AuditFaithfulness(
                out=folder / name,
                problems=str(folder / "problems.jsonl"),
                policy=o.PolicySettings(name=str(policy)),
                tests=self.tests,
                limit=self.problems,
                segment=command.segment,
                prompt=command.prompt,
                sampling=Sampling(temperature=0.0, max_tokens=max_tokens),
                grading=command.grading,
                loading=command.loading,
            ).rows()
            for name, policy in (("initial", command.policy), ("final", command.out / "policy"))
        }
        audits = [
            audit_faithfulness(f"The {name} policy", rows, hint=self.tests.hint)
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
