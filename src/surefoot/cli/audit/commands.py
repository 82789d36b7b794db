"""``surefoot audit``: tests of scorers and policies for known failures, in one report."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Self

from pydantic import BeforeValidator, model_validator

from surefoot.cli.audit.inputs import AuditCommand, AuditTest
from surefoot.cli.audit.tests import TESTS
from surefoot.cli.settings import Flag
from surefoot.cli.terminal import note
from surefoot.errors import ScoreError
from surefoot.evaluation import audits as a
from surefoot.evaluation.report import Section
from surefoot.spec import dashed, parse_method, split_methods


def _split(value: object) -> object:
    return split_methods(value) if isinstance(value, str) else value


class Audit(AuditCommand):
    """Test step scorers, or a policy's reasoning, for known failures; `--test` names the tests.

    A test that the traces do not allow is left out, with the reason; the only one is an error. Tests that
    change texts need checkpoints, not stored scores; most need labels. `faithfulness` asks a `--policy` in
    place of scorers.

    Example: `surefoot audit prm=prm orm=orm --problems p.jsonl --traces t.jsonl --labels lab --out audit`
    Example: `surefoot audit qwen=scores.jsonl --test clean,outcome --processbench gsm8k.json --out audit`
    Example: `surefoot audit prm=prm --test gaming:rounds=0,twins --processbench gsm8k.json --out audit`
    Example: `surefoot audit --test faithfulness:hint=note --problems p.jsonl --policy lab --out audit`
    """

    test: Annotated[
        tuple[str, ...],
        BeforeValidator(_split),
        Flag(comma=True, common=True, metavar="TEST[:SETTING=VALUE,…],…", methods=lambda: TESTS),
    ] = ("gaming", "outcome", "clean", "over-optimisation")
    """Tests, each with its settings."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name, test in self.tests.items():
            try:
                test.check(self)
            except ValueError as error:
                raise ValueError(f"'test' {name}: {error}") from error
        return self

    @cached_property
    def tests(self) -> dict[str, AuditTest]:
        """The tests by name. Raises ``RunError`` for an unknown name or setting."""
        return {dashed(text.partition(":")[0]): parse_method(text, TESTS, what="test") for text in self.test}

    def run(self) -> None:
        sections: list[Section] = []
        left_out: dict[str, str] = {}
        for name, test in self.tests.items():
            try:
                sections += test.sections(self)
            except ScoreError as error:
                if len(self.tests) == 1:
                    raise
                left_out[name] = str(error)
                note(f"{name} left out: {error}")
        if not sections:
            raise ScoreError(f"these traces allow no audit: {'; '.join(left_out.values())}")
        if left_out:
            about = "Tests that these traces do not allow, and why."
            limits = [f"Left out: {name}, because {reason}." for name, reason in left_out.items()]
            results = {"left_out": left_out}
            sections.append(Section(title="Left out", about=about, results=results, limits=limits))
        judged = a.judged_cases(self.subjects[0], self.cases) if self.scorers or self.pool else ()
        self.write(*sections, judged=judged)
