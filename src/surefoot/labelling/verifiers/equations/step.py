"""The equations of one step against its context.

A new equation *holds* (an identity), *fails* (true for no value), *follows* (it is true at every point where
the earlier facts are), is *restated*, or is unchecked: independent of the facts, or not readable. Facts only
confirm: an equation with letters may be about another line, case or object than the facts with these
letters, so one that *conflicts* with them says nothing about the step. Nothing follows from such a step or a
wrong one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from surefoot.labelling.verifiers.equations.claims import check_claims
from surefoot.labelling.verifiers.equations.closed import compare_closed
from surefoot.labelling.verifiers.equations.context import (
    MAX_FACTS_AT_ONCE,
    Context,
    EquationCheck,
    EquationState,
    PooledFact,
)
from surefoot.labelling.verifiers.equations.exact import Notation
from surefoot.labelling.verifiers.equations.facts import (
    ASSUMES,
    REFUTING,
    Fact,
    as_fact,
    is_number,
    is_stated,
    read_definitions,
)
from surefoot.labelling.verifiers.equations.parsing import Expression, leaves, symbols
from surefoot.labelling.verifiers.equations.phrases import Phrases
from surefoot.labelling.verifiers.equations.points import (
    MAX_UNKNOWNS,
    Pair,
    Solutions,
    Solver,
    WorkLimitError,
    constants,
    unknowns,
)
from surefoot.labelling.verifiers.equations.reading import Equation

_DEGENERATE = 2e-2
"""Points at which a free unknown is smaller are not used: 0 solves too many equations."""


@dataclass(frozen=True, kw_only=True)
class StepCheck:
    """All checks of one step, and the context after it."""

    checks: tuple[EquationCheck, ...]
    context: Context


def check_step(context: Context, text: str) -> StepCheck:
    """Check the step after ``context``."""
    scope = context.in_scope(text)
    equations = scope.equations(text)
    checks = tuple(_StepChecker(scope, text, equations).checks())
    return StepCheck(checks=checks, context=scope.after(text, equations, checks))


_VECTORS = Phrases(r"mathbf|[pbv]matrix|vector")
_REFUTED = Phrases(
    r"\b(?:contradict\w*|impossible|not possible|no solutions?|cannot|can't|false|never|incorrect|wrong|"
    r"absurd|not true|not equal|does ?n[o']t|is ?n[o']t|not (?:a )?(?:valid|work)|suppose|assum\w+|if|guess|"
    r"try|mistake|oops|wait|instead|check)\b|\?"
)
_OTHER_ARITHMETIC = Phrases(
    r"\b(?:base[- ]\$?(?:[0-9b]|two|ten)|bases|mod|modulo|modul\w+|binary|octal|hexadecimal|ternary|clock|"
    r"congruences?|congruent (?:to \$?-?[0-9]|mod\w*)|o'clock|remainders?)\b|"
    r"\\p?b?mod\b|≡|\\equiv|[0-9]_\{?[0-9]"
)
_OWN_OPERATION = Phrases(
    r"\b(?:operation|digit stands|each letter|letters? (?:stand|represent)|cipher\w*)\b|[@#♠♣♥♦⊕⊗◇△]|"
    r"\\(?:star|oplus|otimes|diamond|\w+suit)|\bdefined?\b[^.]{0,40}\b[a-z] ?\* ?[a-z]\b"
)
_SUPPOSED = Phrases(
    rf"{REFUTING}|\bif\b|suppose|assum|guess|\btry|\bcase|\blet\b|let's|I'll|\bwhen\b|\bcould\b|\bmight|\bmay\b|"
    r"\bwant\b|\bneed\b|\?|\bfor (?:example|instance|all|some|every|any)|maybe|"
    r"possib|either|e\.g\.|consider|\bset\b|denote|define|choose|pick|find|look|must\b|minim|maxim|"
    r"at most|at least|\bwhere\b|formula|general|identity|recall|theorem|remember|also|\bat\b|\bonly\b|"
    r"satisf|means that|respectively|another|solutions?\b|yields?|asymptote|solving the equation|"
    r"denominator|setting"
)
"""Words of a step whose equations may be conditions rather than consequences."""
_TRIES_VALUE = Phrases(r"\b(?:if|when|suppose|try|check|assume|plug\w* in|case)\b[^.=]{0,20}\$?[A-Za-z] ?=")
_CHECKING = Phrases(r"check|whether|verif|satisf|plug.*\?|does it work|what does")
_LIST = re.compile(r"\s*\$?\s*(?:,\s*\$?\s*(?:and\s)?|or\s|and\s)\$?-?[0-9]")


class _StepChecker:
    """The checks of one step."""

    def __init__(self, context: Context, text: str, equations: Sequence[Equation]) -> None:
        self.text, self.equations = text, equations
        own_definitions = {
            name: body
            for name, body in read_definitions(equations).items()
            if not re.search(rf"(?<![A-Za-z\\]){re.escape(name)}[(_]", context.problem)
        }
        self.context = context
        if own_definitions:
            self.context = replace(context, definitions={**own_definitions, **context.definitions})
        self.local: list[Fact] = []
        """Equations of this step so far that are not wrong."""
        self.open_facts: set[Fact] = set()
        """The unchecked ones of them: nothing follows from these."""

    @cached_property
    def notations(self) -> list[Notation]:
        """See :meth:`Context.notations`; equations of numbers are checked without them."""
        return self.context.notations(self.text)

    @cached_property
    def notation(self) -> Notation:
        return self.notations[0]

    @cached_property
    def solver(self) -> Solver:
        return Solver(notation=self.notation)

    def checks(self) -> Iterator[EquationCheck]:
        for equation in self.equations:
            check = self._check(equation)
            fact = as_fact(equation, self.context.length)
            if fact is not None and check.state not in ("fails", "conflicts") and is_stated(equation):
                self.local.append(fact)
                if check.state == "unchecked":
                    self.open_facts.add(fact)
            yield check
        for claim in check_claims(self.text):
            yield EquationCheck(
                text=claim.text, state="holds" if claim.holds else "fails", reason=claim.reason
            )

    def _number_doubt(self, equation: Equation) -> str | None:
        """Why a false equation of numbers may be meant, or mean something else."""
        if match := _REFUTED.search(equation.follow_up) or ASSUMES.search(equation.lead):
            return f"the step says {match.group()!r}"
        if match := _OTHER_ARITHMETIC.search(self.text) or _OTHER_ARITHMETIC.search(self.context.problem):
            return f"{match.group()!r} may mean another arithmetic"
        if match := _OWN_OPERATION.search(self.context.problem):
            return f"the problem may define its own operation ({match.group()!r})"
        if self.context.texts and (match := _CHECKING.search(self.context.texts[-1])):
            return f"the step before says {match.group()!r}"
        return None

    def _check(self, equation: Equation) -> EquationCheck:
        lhs, rhs = equation.left.tree, equation.right.tree
        if lhs is None or rhs is None:
            problem = equation.left.problem or equation.right.problem or "it cannot be parsed"
            return _unchecked(equation, problem)
        sides = self.context.expand(lhs), self.context.expand(rhs)
        if not unknowns(sides, Notation()) or not unknowns(sides, self.notation):
            return self._check_closed(equation, sides)
        try:
            return self._check_open(equation, sides)
        except WorkLimitError as error:
            return _unchecked(equation, str(error))

    def _check_closed(self, equation: Equation, sides: Pair) -> EquationCheck:
        state, reason = compare_closed(equation, sides, lambda: self.notations)
        if state == "fails":
            doubt = equation.doubt or equation.number_doubt or self._number_doubt(equation)
            if doubt is None and is_number(sides[1]) and _LIST.match(equation.following):
                doubt = "a list of numbers follows"
            if doubt:
                return _unchecked(equation, f"{reason}, but {doubt}")
        return EquationCheck(text=equation.text, state=state, reason=reason)

    def _check_open(self, equation: Equation, sides: Pair) -> EquationCheck:
        """An equation with unknowns: an identity, or against the context."""
        if equation.approximate:
            return _unchecked(equation, "an approximation")
        notations = [self.solver, *(Solver(notation=notation) for notation in self.notations[1:])]
        relations = [solver.relation(sides) for solver in notations]
        if "identity" in relations:
            return EquationCheck(text=equation.text, state="holds", reason="equal for all values")
        if None in relations:
            return _unchecked(equation, "it is undefined")
        supposed = _SUPPOSED.search(equation.sentence) or ASSUMES.search(equation.lead)
        doubt = equation.doubt or (f"the step says {supposed.group()!r}" if supposed else None)
        if any(_TRIES_VALUE.search(text) for text in self.context.texts[-2:]):
            doubt = doubt or "an earlier step tries a value"
        if relations[0] == "never":
            named = sides[0].kind in ("s", "call") or doubt or self._number_doubt(equation)
            if named:
                return _unchecked(equation, "true for no value, but it may be an assignment or a condition")
            return EquationCheck(text=equation.text, state="fails", reason="true for no value")
        names = unknowns(sides, self.notation)
        if len(names) > MAX_UNKNOWNS:
            return _unchecked(equation, "too many unknowns")
        if self._other_objects(sides):
            return _unchecked(equation, "vectors, moduli or another arithmetic")
        written = {str(sides[0]), str(sides[1])}
        for fact, fact_sides, _ in self.context.pool:
            if {str(fact_sides[0]), str(fact_sides[1])} == written:
                return _check(equation, "restated", f"as in {fact}", (fact,))
        return self._check_against_facts(equation, sides, names)

    def _other_objects(self, sides: Pair) -> bool:
        texts = " ".join((self.context.problem, *self.context.texts, self.text))
        return bool(
            (self.notation.imaginary and _has_modulus(sides))
            or _VECTORS.search(texts)
            or _OTHER_ARITHMETIC.search(self.text)
            or _OWN_OPERATION.search(self.context.problem)
        )

    def _check_against_facts(self, equation: Equation, sides: Pair, names: set[str]) -> EquationCheck:
        related = self._related(names, sides)
        related, solutions = self._points(related, names)
        if solutions is None:
            return _unchecked(equation, "no common point of the earlier facts was involved_names")
        holds = self.solver.holds_at(sides, solutions)
        if holds is None:
            return _unchecked(equation, "it is undefined at the points of the earlier facts")
        facts = tuple(fact for fact, _, _ in related)
        if holds.all() and facts:
            return self._follows(equation, sides, names, related)
        if holds.any() or not facts:
            return _unchecked(equation, "an equation to solve or a definition")
        if self.solver.satisfiable([*(pair for _, pair, _ in related), sides]) is False:
            sources = "; ".join(map(str, facts))
            return _check(equation, "conflicts", f"no value satisfies it together with {sources}", facts)
        return _unchecked(equation, "independent of the earlier facts")

    def _follows(
        self,
        equation: Equation,
        sides: Pair,
        names: set[str],
        related: Sequence[PooledFact],
    ) -> EquationCheck:
        """An equation that holds at all points of ``related``, if the unchecked facts are not needed."""
        checked = [item for item in related if item[0] not in self.open_facts]
        if len(checked) < len(related):
            checked, solutions = self._points(checked, names)
            holds = None if solutions is None else self.solver.holds_at(sides, solutions)
            if not checked or holds is None or not holds.all():
                return _unchecked(equation, "it follows from this step's own equations")
        facts = tuple(fact for fact, _, _ in checked[:2])
        return _check(equation, "follows", f"from {'; '.join(map(str, facts))}", facts)

    def _related(self, names: set[str], sides: Pair) -> list[PooledFact]:
        """Facts that share unknowns with ``names``, directly or through others, the latest first."""
        constant = constants(self.notation).keys()
        pool = [(fact, pair, involved_names - constant) for fact, pair, involved_names in self.context.pool]
        for fact in self.local:
            pair = self.context.expand(fact.left), self.context.expand(fact.right)
            if pair[0] != sides[0]:
                pool.append((fact, pair, unknowns(pair, self.notation)))
        if self.notation.imaginary:  # the solver needs derivatives, which |z| has not
            pool = [item for item in pool if not _has_modulus(item[1])]
        pool = _without_enumerations(pool)
        connected, related = set(names), list[PooledFact]()
        pending = list(reversed(pool))
        while len(related) < MAX_FACTS_AT_ONCE:
            item = next(
                (x for x in pending if x[2] & connected and len(connected | x[2]) <= MAX_UNKNOWNS), None
            )
            if item is None:
                break
            pending.remove(item)
            if self.solver.relation(item[1]) == "open":
                related.append(item)
                connected |= item[2]
        return related

    def _points(
        self, related: list[PooledFact], names: set[str]
    ) -> tuple[list[PooledFact], Solutions | None]:
        """Points where the latest facts hold; if all have none in common, the latest three or one."""
        for most in (MAX_FACTS_AT_ONCE, 3, 1):
            if most != MAX_FACTS_AT_ONCE and len(related) <= most:
                continue
            related = related[:most]
            equations = [pair for _, pair, _ in related]
            solutions = self.solver.solve(equations, names=names)
            if solutions.count < 3 and len(equations) < 6:
                solutions = self.solver.solve(equations, names=names, starts=30, seed=2, over_complex=True)
            if solutions.count >= 3 and (usable := _without_degenerate(solutions)) is not None:
                return related, usable
        return related, None


def _without_enumerations(
    pool: Sequence[PooledFact],
) -> list[PooledFact]:
    """Leave out ``x = 2`` and ``x = 3`` of steps: the values of cases."""
    values: dict[str, set[str]] = {}
    for fact, (lhs, rhs), _ in pool:
        if fact.step is not None and lhs.kind == "s" and _is_value(rhs):
            values.setdefault(lhs.name, set()).add(str(rhs))
    return [
        (fact, (lhs, rhs), names)
        for fact, (lhs, rhs), names in pool
        if fact.step is None or lhs.kind != "s" or not _is_value(rhs) or len(values[lhs.name]) == 1
    ]


def _has_modulus(sides: Pair) -> bool:
    """Whether there is an absolute value or a conjugate."""
    return any(
        any(leaves(side, "abs")) or any("bar" in name or "overline" in name for name in symbols(side))
        for side in sides
    )


def _is_value(node: Expression) -> bool:
    return unknowns([node], Notation(imaginary=True)) <= {"±"}


def _without_degenerate(solutions: Solutions) -> Solutions | None:
    """Leave out points where a free unknown is almost 0 or huge; ``None`` if fewer than two remain."""
    points = np.abs(solutions.points)
    usual = (points > _DEGENERATE) & (points < 1e5)
    columns: NDArray[np.bool_] = np.asarray(usual.all(axis=0))
    if columns.sum() < 2:
        free = np.ptp(points, axis=1) >= 1e-6
        columns = np.asarray(usual[free].all(axis=0) if free.any() else np.ones(points.shape[1], dtype=bool))
    return solutions.select(columns) if columns.sum() >= 2 else None


def _unchecked(equation: Equation, reason: str) -> EquationCheck:
    return EquationCheck(text=equation.text, state="unchecked", reason=reason)


def _check(equation: Equation, state: EquationState, reason: str, facts: tuple[Fact, ...]) -> EquationCheck:
    return EquationCheck(text=equation.text, state=state, reason=reason, facts=facts)
