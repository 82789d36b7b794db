"""What a text states as equations: facts with their quotes and steps, definitions of functions, and scopes.

A fact is *supposed* rather than stated in a step that tries, assumes or distinguishes cases. Such a step
states nothing: a contradiction with a supposition is often the purpose of the step.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from surefoot.labelling.verifiers.equations.exact import Notation
from surefoot.labelling.verifiers.equations.parsing import Definition, Expression, substitute
from surefoot.labelling.verifiers.equations.phrases import Phrases
from surefoot.labelling.verifiers.equations.points import Solver, unknowns
from surefoot.labelling.verifiers.equations.reading import Equation

REFUTING = (
    r"contradict|impossib|not possible|no solution|cannot|can't|\bfalse|\bwrong|incorrect|mistake|oops|"
    r"\bwait|n't\b|\bnot\b|instead|\bno\b|\bnever|absurd|\berror|\bhmm|typo|confus|neither|\bnor\b|unless|"
    r"\bsorry|actually|should|nope|correction"
)
"""Pattern of words in a step whose equations may be refuted or only considered."""
_NOT_STATED = Phrases(
    rf"{REFUTING}|would|suppose|assum|guess|\btry|\bcase|\bif\b|maybe|either|\bor\b|\?|example|formula|identity|"
    "general|theorem|recall"
)
ASSUMES = Phrases(r"\b(?:suppose|assum\w+|guess\w*|try|case)\b|let's try")
"""Words that make all that follows them in a step a supposition."""
SETS_VALUE = Phrases(
    r"\b(?:at|when|if|for|with|setting|plug\w*(?: in)?|substitut\w*|using|where|let|say|take)\W*$"
)
"""Right before an equation that gives a name a value, perhaps for this step only."""
_IF = re.compile(r"\bif\W*$")
"""Inside a sentence of the problem: a condition of a definition by cases."""
_CONDITION = Phrases(r"\b(?:if|or|then|either)\W*$")
_DEFINED = re.compile(r"(?<![A-Za-z\\])([A-Za-z])\((?:[a-z]\)|[0-9]{1,3}\)\s*&?=)")

RETRACTS = Phrases(
    r"\bwrong|incorrect|mistake|oops|\bwait\b|\bredo|start over|\berror|\binstead|not (?:right|correct|true)|"
    r"typo|forgot|go back|sorry|try again"
)
"""Words of a step that takes back earlier ones."""
OPENS_CASE = Phrases(
    r"\bcase\b|\bsuppose|\bassume|this time|I'll take|what (?:happens )?if|see what happens|\btry\b|"
    r"\bwhen \$?[a-z] ?=|\bif \$?[A-Za-z] ?=|can.t be|prove that|possibilit|next value|"
    r"other (?:value|solution|root)"
)
"""Words of a step that opens a case: what follows holds until the next case."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Fact:
    """An equation that the problem or a step states."""

    left: Expression
    right: Expression
    quote: str
    """The equation as written."""
    step: int | None
    """Index of the step; ``None`` = the problem."""

    @property
    def sides(self) -> tuple[Expression, Expression]:
        return self.left, self.right

    def __str__(self) -> str:
        source = "the problem" if self.step is None else f"step {self.step + 1}"
        return f"{source}: {self.quote!r}"


def defined_functions(text: str) -> frozenset[str]:
    """Letters that ``text`` defines as functions: f in ``f(x) = 2x``."""
    return frozenset(_DEFINED.findall(text))


def read_facts(equations: Iterable[Equation], step: int | None) -> Iterator[Fact]:
    """The facts among ``equations``: neither suppositions nor decimals, which may be rounded."""
    for equation in equations:
        fact = as_fact(equation, step)
        if fact is None or has_decimals(*fact.sides) or not (step is None or is_stated(equation)):
            continue
        conditional = SETS_VALUE if step is not None else _IF
        sets_value = equation.link == 0 and is_closed(fact.right)
        if not (sets_value and conditional.search(equation.preceding)):
            yield fact


def is_stated(equation: Equation) -> bool:
    """Whether neither its sentence nor an assumption before it makes the equation a supposition."""
    return not (_NOT_STATED.search(equation.sentence) or ASSUMES.search(equation.lead))


def as_fact(equation: Equation, step: int | None) -> Fact | None:
    """The equation as a fact; ``None`` if it cannot be parsed without doubt, or is approximate."""
    lhs, rhs = equation.left.tree, equation.right.tree
    if lhs is None or rhs is None or equation.doubt or equation.approximate:
        return None
    return Fact(left=lhs, right=rhs, quote=equation.text, step=step)


def read_definitions(equations: Iterable[Equation]) -> Mapping[str, Definition]:
    """Definitions ``f(x) = body`` among ``equations``, the first of each name."""
    definitions: dict[str, Definition] = {}
    for equation in equations:
        lhs, rhs = equation.left.tree, equation.right.tree
        if lhs is None or rhs is None or lhs.kind != "call" or _CONDITION.search(equation.preceding):
            continue
        variable, names = lhs.parts[0], unknowns([rhs], Notation())
        if variable.kind == "s" and variable.name in names and str(lhs) not in names:
            definitions.setdefault(lhs.name, Definition(variable.name, rhs))
    return definitions


def same_function(first: Definition, second: Definition) -> bool:
    """Whether two definitions agree."""
    variable = Expression(kind="s", name=first.variable)
    body = substitute(second.body, {second.variable: variable}, {})
    return Solver(notation=Notation()).relation((first.body, body)) == "identity"


def is_closed(node: Expression) -> bool:
    """Whether it has neither letters nor calls."""
    return not unknowns([node], Notation())


def is_number(node: Expression) -> bool:
    """Whether this is a single number, perhaps with a sign."""
    while node.kind in ("neg", "%", "deg"):
        node = node.parts[0]
    return node.kind == "n"


def has_decimals(*nodes: Expression) -> bool:
    """Whether a number is written with decimals."""
    pending = list(nodes)
    for node in pending:  # which grows meanwhile
        if node.places:
            return True
        pending += node.parts
    return False
