"""A trace's context: the facts, definitions and scopes that its problem and steps state so far."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Literal

from surefoot.labelling.verifiers.equations.exact import Notation
from surefoot.labelling.verifiers.equations.facts import (
    OPENS_CASE,
    RETRACTS,
    Fact,
    defined_functions,
    read_definitions,
    read_facts,
    same_function,
)
from surefoot.labelling.verifiers.equations.parsing import Definition, Expression, leaves, substitute
from surefoot.labelling.verifiers.equations.phrases import Phrases
from surefoot.labelling.verifiers.equations.points import Pair, unknowns
from surefoot.labelling.verifiers.equations.reading import Equation, find_equations

EquationState = Literal["holds", "rounded", "follows", "restated", "fails", "conflicts", "unchecked"]
RIGHT: frozenset[EquationState] = frozenset({"holds", "rounded", "follows"})

MAX_FACTS = 200
"""Facts of steps that are remembered, the latest."""
MAX_FACTS_AT_ONCE = 9
"""Facts that are solved together."""
_MAX_NAMES_OF_FACT = 7

PooledFact = tuple[Fact, Pair, set[str]]
"""A fact, its sides with functions replaced by their definitions, and the names of its unknowns."""


@dataclass(frozen=True, kw_only=True)
class EquationCheck:
    """The result for one equation or claim."""

    text: str
    """As written."""
    state: EquationState
    """``rounded`` counts as holding."""
    reason: str
    facts: tuple[Fact, ...] = ()
    """The earlier facts that the equation follows from, restates or conflicts with."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Context:
    """What a trace states so far."""

    problem: str
    facts: tuple[Fact, ...] = ()
    outer_facts: tuple[Fact, ...] | None = None
    """The facts before the first case; ``None`` = none was opened."""
    definitions: Mapping[str, Definition | None] = field(default_factory=dict)
    """Functions by name; ``None`` = the text defines it in several ways."""
    functions: frozenset[str] = frozenset()
    texts: tuple[str, ...] = ()
    """The last three steps."""
    length: int = 0
    """Steps so far."""

    @classmethod
    def of_problem(cls, problem: str) -> Context:
        """The context before the first step."""
        context = cls(problem=problem, functions=defined_functions(problem))
        equations = context.equations(problem)
        return replace(
            context,
            facts=tuple(read_facts(equations, None))[:MAX_FACTS],
            definitions=read_definitions(equations),
        )

    def equations(self, text: str) -> tuple[Equation, ...]:
        """The equations in ``text``, read with the functions of this context."""
        return find_equations(text, geometry=_is_geometry(self.problem), functions=self.functions)

    def notations(self, text: str) -> list[Notation]:
        """Possible readings of functions and i, the likeliest first."""
        texts = " ".join((self.problem, *self.texts, text))
        first = Notation(imaginary=bool(_COMPLEX.search(texts)), euler=bool(_EXPONENTIAL.search(texts)))
        notations = [first]
        if "log" in texts:
            notations.append(replace(first, natural=True))
        if _TRIGONOMETRY.search(texts):
            in_degrees = replace(first, degrees=True)
            degrees_first = _DEGREES.search(texts) and not _RADIANS.search(texts)
            notations = [in_degrees, *notations] if degrees_first else [*notations, in_degrees]
        return notations

    @cached_property
    def pool(self) -> list[PooledFact]:
        """The facts that have unknowns, not too many."""
        pool = []
        for fact in self.facts:
            sides = self.expand(fact.left), self.expand(fact.right)
            names = unknowns(sides, Notation())
            if names and len(names) <= _MAX_NAMES_OF_FACT:
                pool.append((fact, sides, names))
        return pool

    def expand(self, node: Expression) -> Expression:
        """``node`` with calls replaced by the functions' definitions."""
        bodies = {name: body for name, body in self.definitions.items() if body is not None}
        return substitute(node, {}, bodies) if bodies and any(leaves(node, "call")) else node

    def in_scope(self, text: str) -> Context:
        """The facts that count for ``text``, which may retract the earlier steps or open a case."""
        facts, outer_facts = self.facts, self.outer_facts
        if RETRACTS.search(text):
            facts, outer_facts = tuple(fact for fact in facts if fact.step is None), None
        if OPENS_CASE.search(text):
            outer_facts = facts if outer_facts is None else outer_facts
            facts = outer_facts
        functions = self.functions | defined_functions(text)
        if (facts, outer_facts, functions) == (self.facts, self.outer_facts, self.functions):
            return self
        return replace(self, facts=facts, outer_facts=outer_facts, functions=functions)

    def after(self, text: str, equations: Sequence[Equation], checks: Sequence[EquationCheck]) -> Context:
        """The context after a step with these equations and results."""
        definitions = dict(self.definitions)
        facts = self.facts
        if not any(check.state in ("fails", "conflicts") for check in checks):
            for name, definition in read_definitions(equations).items():
                earlier = definitions.setdefault(name, definition)
                if earlier is not None and earlier != definition and not same_function(earlier, definition):
                    definitions[name] = None
            of_problem = [fact for fact in facts if fact.step is None]
            of_steps = [fact for fact in facts if fact.step is not None]
            of_steps += read_facts(equations, self.length)
            facts = (*of_problem, *of_steps[-MAX_FACTS:])
        return Context(
            problem=self.problem,
            facts=facts,
            outer_facts=self.outer_facts,
            definitions=definitions,
            functions=self.functions,
            texts=(*self.texts, text)[-3:],
            length=self.length + 1,
        )


@lru_cache(maxsize=256)
def _is_geometry(problem: str) -> bool:
    return _GEOMETRY.search(problem) is not None


_COMPLEX = Phrases(
    r"complex|imaginary|cis|\\omega|roots? of unity|[0-9]\s*i\b|[+-]\s*i\b|\bi\^|e\^\{[^{}]{0,12}i\s*\}|e\^i"
)
_EXPONENTIAL = re.compile(r"e\^(?<![a-zA-Z]e\^)\{?-?[0-9]*\s*(?:[a-z]|\\[a-z])")
_TRIGONOMETRY = re.compile(
    r"\\(?:arc)?(?:sin|cos|tan|cot|sec|csc)|sin(?<=\bsin)\b|cos(?<=\bcos)\b|tan(?<=\btan)\b"
)
_DEGREES = re.compile(r"circ(?![a-z])|degree|\b(?:180|360|90)\b|°")
_RADIANS = re.compile(r"\\pi|radian|π")
_GEOMETRY = Phrases(
    r"triangle|circle|square|rectang|polygon|quadrilateral|segment|point|line|angle|hexagon|pentagon|octagon|"
    r"cube|pyramid|tetrahedron|trapezoid|parallelogram|overline"
)
