"""The test ``faithfulness`` of ``surefoot audit``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from pydantic import Field

from surefoot import policies
from surefoot.cli import options as o
from surefoot.cli.audit.inputs import AuditCommand, AuditTest, subset
from surefoot.cli.runs import map_pieces, read_table
from surefoot.cli.terminal import note
from surefoot.evaluation import audits as a
from surefoot.evaluation.audits.faithfulness import intervention_examples
from surefoot.evaluation.audits.settings import FaithfulnessSettings
from surefoot.evaluation.report import Section
from surefoot.io.tables import open_table
from surefoot.records import Problem
from surefoot.segment import segmenter
from surefoot.work.jobs import Job, Opened


class Faithfulness(AuditTest, FaithfulnessSettings):
    """Do a policy's answers follow from the steps that it shows, and does it say if it used a hint?

    The policy solves each problem; then it answers again after its reasoning was cut short, replaced by
    filler, or altered by a mistake whose consequence is known, and after a hint at a wrong answer was put
    before the problem. A server that cannot continue the beginning of an answer gets the hint alone.
    """

    problems: int = Field(default=200, ge=1, description="Number of problems, at most.")
    segment: o.Segment = "line"

    def check(self, audit: AuditCommand) -> None:
        if audit.policy is None or audit.problems is None:
            raise ValueError("give 'policy' and 'problems'")

    def sections(self, audit: AuditCommand) -> list[Section]:
        rows = self.rows(audit)
        result = a.audit_faithfulness(
            policy_of(audit).name, rows, hint=self.hint, draws=audit.draws, seed=audit.seed
        )
        return [replace(a.faithfulness_section(result), examples=intervention_examples(rows))]

    def rows(self, audit: AuditCommand) -> list[a.FaithfulnessRow]:
        """The tests of every problem, resumed where the command was stopped."""
        problems = read_table(audit.problems or "", Problem)
        chosen = subset(problems, min(self.problems, audit.limit or self.problems), audit.seed)
        rows_file = audit.folder() / "interventions.jsonl"
        job = Job(record=a.FaithfulnessRow, load=partial(self.opened, audit), failure=_failure)
        outcome = map_pieces(
            audit,
            job,
            chosen,
            64,
            str(rows_file),
            policy=audit.policy,
            retry_failed=audit.retry_failed,
        )
        outcome.require_complete()
        return list(open_table(Path(rows_file), a.FaithfulnessRow))

    @contextmanager
    def opened(self, audit: AuditCommand) -> Iterator[Opened]:
        """The work of a job: load the policy, and ask a server whether it continues text."""
        settings = policy_of(audit)
        policy = settings.open(chat=audit.prompt.chat, loading=audit.loading)
        continuation = policies.capabilities_of(policy).continuation
        if not continuation.confirmed:
            note(f"only the hint is tested: the server may not continue text ({continuation.evidence})")
        paraphraser = audit.paraphraser and policies.load_policy(
            audit.paraphraser, base_url=settings.base_url, chat=True, loading=audit.loading
        )
        with audit.grading.open() as grader:
            interventions = a.Interventions(
                policy=policy,
                grader=grader,
                segmenter=segmenter(self.segment),
                settings=self,
                prompt=audit.prompt,
                sampling=audit.sampling,
                seed=audit.seed,
                continues=continuation.confirmed,
                paraphraser=paraphraser or None,
            )
            yield Opened(work=interventions.test, policy=policy)


def policy_of(audit: AuditCommand) -> o.PolicySettings:
    """The policy under test, which :meth:`Faithfulness.check` demands."""
    if audit.policy is None:
        raise ValueError("'policy' is missing")
    return audit.policy


def _failure(records: Sequence[a.FaithfulnessRow]) -> str | None:
    """Why no problem was solved, if none was."""
    return records[-1].error if all(row.error for row in records) else None
