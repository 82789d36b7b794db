"""Specifications: files of numbered clauses that a model reasons about and its reasoning is judged by.

Deliberative alignment (Guan et al., arXiv 2412.16339) samples reasoning with the specification in the prompt,
filters it with a judge that reads the specification, and trains without the specification in the prompt.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from surefoot.errors import LabelError, TrainingError
from surefoot.labelling.verifiers.tool_policy import PolicyRule, ToolPolicy, packaged_policy
from surefoot.labels import LabelRule, binary_labels
from surefoot.protocols import LabelledTrace
from surefoot.records import FrozenModel

Decision = Literal["allow", "refuse", "ask", "partial"]
"""What follows from a clause: comply, refuse, ask for more, or comply with the harmless part."""

_LONG = 24
"""Characters of a clause's text that no other text has by chance."""
_PASSES = LabelRule(neutral="good", good_above=None)


class Clause(FrozenModel):
    """One numbered clause."""

    id: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9.-]{0,31}$", description="How reasoning cites it.")
    text: str = Field(min_length=1, max_length=4_000, description="Which requests it is about.")
    decision: Decision
    overrides: tuple[str, ...] | Literal["all"] = ()
    """Ids of the clauses that do not count where this one applies, or ``all`` others."""
    tools: PolicyRule | None = None
    """What calls of tools require by this clause, for :class:`ToolPolicy`."""

    @property
    def line(self) -> str:
        """The clause as prompts and judges read it."""
        return f"Clause {self.id}. {self.text}: {self.consequence}\n"

    @property
    def consequence(self) -> str:
        """What follows from it, and which clauses it overrides."""
        over = "all" if self.overrides == "all" else ", ".join(self.overrides)
        return f"{self.decision}{over and f', overriding {over}'}"


class Specification(FrozenModel):
    """Numbered clauses with a version. Raises ``ValueError`` for an id that occurs twice, and for exceptions
    that name a clause that does not exist, themselves, or each other."""

    version: str = Field(min_length=1, max_length=100)
    clauses: tuple[Clause, ...] = Field(min_length=1, max_length=1_000)

    @model_validator(mode="after")
    def _check(self) -> Self:
        by_id = {clause.id: clause for clause in self.clauses}
        if len(by_id) < len(self.clauses):
            ids = [clause.id for clause in self.clauses]
            twice = next(name for name in ids if ids.count(name) > 1)
            raise ValueError(f"clauses: the id {twice!r} occurs twice; give every clause its own")
        for number, clause in enumerate(self.clauses):
            for other in clause.overrides if clause.overrides != "all" else ():
                where = f"clauses.{number}.overrides: clause {clause.id} overrides {other!r}"
                if other not in by_id:
                    raise ValueError(f"{where}, which does not exist")
                if other == clause.id or clause.id in by_id[other].overrides:
                    raise ValueError(f"{where}, and the other way round; which one counts?")
        return self

    @classmethod
    def of_file(cls, path: str | Path) -> Self:
        """The specification in a JSON file. Raises ``LabelError`` if it cannot be read or is invalid."""
        try:
            return cls.model_validate_json(Path(path).read_bytes())
        except (OSError, ValueError) as error:
            raise LabelError(f"{path}: not a valid specification: {error}") from error

    @property
    def text(self) -> str:
        """All clauses as prompts show them, one per line."""
        return "".join(clause.line for clause in self.clauses)

    def tool_policy(self) -> ToolPolicy:
        """The clauses that concern tools as a policy, whose reasons name the clause."""
        rules = [
            clause.tools.model_copy(update={"reason": f"clause {clause.id}: {clause.tools.message}"})
            for clause in self.clauses
            if clause.tools is not None
        ]
        return ToolPolicy(rules=tuple(rules))

    def require_absent(self, prompts: Iterable[str]) -> None:
        """Raise ``TrainingError`` if a training prompt has a clause's line in it, or a text of 24 characters
        or more. White space counts as one space."""
        pieces = {
            " ".join(piece.split()): clause
            for clause in self.clauses
            for piece in (clause.line, clause.text)
            if piece == clause.line or len(piece) >= _LONG
        }
        for number, prompt in enumerate(prompts):
            spaced = " ".join(prompt.split())
            clause = next((clause for piece, clause in pieces.items() if piece in spaced), None)
            if clause is not None:
                raise TrainingError(
                    f"training prompt {number} holds clause {clause.id} of the specification: give problems "
                    "and a template without it"
                )


def read_tool_policy(path: str | Path) -> ToolPolicy:
    """The tool policy in a JSON file, or the rules for tools of the specification in it.

    Names of :func:`surefoot.labelling.verifiers.tool_policy.packaged_policies`, joined by ``+``, come
    before files. Raises ``LabelError`` if it cannot be read, is invalid, or is a specification
    without rules for tools.
    """
    if (policy := packaged_policy(str(path))) is not None:
        return policy
    try:
        value = json.loads(Path(path).read_bytes())
    except (OSError, ValueError):
        value = None  # refused below
    if isinstance(value, dict) and "clauses" in value:
        policy = Specification.of_file(path).tool_policy()
        if not policy.rules:
            raise LabelError(f"{path}: no clause has 'tools', so it would allow every call")
        return policy
    return ToolPolicy.of_file(path)


def rejection(item: LabelledTrace) -> str | None:
    """Why a labelled completion does not pass; ``None`` if it does.

    Every step needs a label that calls it right or neutral, one right step has to cite a clause, and the
    outcome must not be known to be wrong.
    """
    if item.trace.cut_off or not item.trace.steps:
        return "truncated or empty"
    if item.trace.outcome is False:
        return "a wrong answer"
    good = [step.good for step in binary_labels(item.labels, len(item.trace.steps), _PASSES)]
    if False in good:
        return "a wrong step"
    if None in good:
        return "a step that could not be judged"
    cited = any(label.evidence.clause and label.value == 1 for label in item.labels)
    return None if cited else "no right step cites a clause"
