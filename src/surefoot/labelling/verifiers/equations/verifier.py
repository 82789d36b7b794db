"""The verifier of equations: in each step they are right, wrong, or confirmed by earlier ones.

Each kind of error stands alone and has its own precision (see ``docs/results/labels.md``). Equations with
letters of other lines, cases and objects share their letters, so these facts only confirm.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Literal

from surefoot.answers.formulas import FormulaNode
from surefoot.labelling.verifiers.equations.derivation import (
    MAX_UNKNOWNS,
    Relation,
    Work,
    WorkLimitError,
    compare,
    confirming,
    equal,
    is_identity,
    is_impossible,
    wrong_rewriting,
)
from surefoot.labelling.verifiers.equations.parsing import has_angles, is_unknown
from surefoot.labelling.verifiers.equations.reading import MAX_CHARS, Equation, find_equations
from surefoot.labelling.verifiers.equations.values import (
    Notation,
    Number,
    UnknownValueError,
    evaluate,
    unknowns,
)
from surefoot.labelling.verifiers.tool_policy import runs_commands
from surefoot.protocols import SOLUTION_CHANNELS, ProblemTrace, Verdict

EquationState = Literal["holds", "rounded", "follows", "restated", "fails", "unchecked"]
EquationKind = Literal["numbers", "letters", "rewriting"]
_RIGHT: frozenset[EquationState] = frozenset({"holds", "rounded", "follows"})
_REMEMBERED = 60
"""Equations of steps that are remembered, the latest."""


@dataclass(frozen=True, kw_only=True)
class EquationCheck:
    """The result for one equation."""

    text: str
    """As written."""
    state: EquationState
    """``rounded`` counts as holding."""
    kind: EquationKind
    """What it was checked as: an equation of numbers, one with letters, or the rewriting of the equation
    before it."""
    reason: str


class EquationVerifier:
    """A :class:`surefoot.protocols.StepVerifier` for the equations in a step, checked in context.

    It parses plain text (``48/2 = 24``, ``2 x $3 = $6``), GSM8K's calculator marks (``<<48/2=24>>``) and
    LaTeX, chains included. An equation of numbers

    - *holds* if both sides are equal exactly;
    - holds *rounded* if one side is a single decimal number (at least one digit after the point) and the
      other differs from it by at most half a unit of its last shown digit: ``10/3 = 3.33``, or by the error
      of floating-point arithmetic: ``17 * .1 = 1.7000000000000002``;
    - *fails* if the sides differ otherwise and no other reading is plausible;
    - is *unchecked* in all other cases. Among them: an integer instead of a fraction less than 1 away, or a
      decimal less than one unit of its last digit away (rounded up, down or cut off on purpose); a result
      within the rounding of the decimals on the other side (``3 * 3.33 = 10.00``); a chain that continues
      with the result (``5 + 5 = 10 + 2 = 12``); units that may be converted; steps that refute or suppose
      (``0 = 1, a contradiction``), other number bases.

    An equation with unknowns

    - *holds* if it is an identity, and *fails* if it is true for no value (``x + 1 = x + 2``);
    - *follows* if it is a linear combination of one or two earlier equations of the problem and the steps.
      These can only confirm: another line, case or object may share the letters;
    - *fails* as the *rewriting* of the equation right before it if it cannot be that: one side is the same
      and the other is not, a term changed sides without its sign, a value does not solve it;
    - is *restated* or *unchecked* otherwise. Silence says nothing about the step.

    A step is -1 if an equation fails, +1 if one holds or follows and none fails, and ``None`` otherwise.
    Calls, and runs whose tools run commands, are not checked: what looks like an equation there is code or a
    log. The work per step is bounded, and no text is evaluated as a program. Steps after a common prefix read
    it once.
    """

    name = "equations"
    reads = SOLUTION_CHANNELS

    def __init__(self) -> None:
        self._start = lru_cache(maxsize=256)(Context.of_problem)
        self._step = lru_cache(maxsize=1024)(check_step)

    def verify(self, items: Sequence[ProblemTrace]) -> list[list[Verdict]]:
        """One list per item, one verdict per step."""
        return [[_verdict(step, text) for step, text in self._steps(item)] for item in items]

    def check(self, item: ProblemTrace) -> list[tuple[EquationCheck, ...]]:
        """The result for each equation of each step, in order."""
        return [step.checks for step, _ in self._steps(item)]

    def _steps(self, item: ProblemTrace) -> list[tuple[StepCheck, str]]:
        context = self._start(item.problem.text)
        steps = []
        commands = any(runs_commands(call) for row in item.trace.messages for call in row.tool_calls)
        for index in range(len(item.trace.steps)):
            is_code = commands or item.trace.steps[index].part == "tool_call"
            text = "" if is_code else item.trace.step_text(index).strip()
            step = self._step(context, text)
            steps.append((step, text))
            context = step.context
        return steps


def _verdict(step: StepCheck, text: str) -> Verdict:
    checks = step.checks
    if not checks:
        return Verdict(
            value=None, reason="the step is too long" if len(text) > MAX_CHARS else "nothing to check"
        )
    wrong = [check for check in checks if check.state == "fails"]
    if wrong:
        reason = wrong[0].reason
        return Verdict(value=-1, reason=f"does not hold: {wrong[0].text} ({reason})")
    unchecked = [check for check in checks if check.state == "unchecked"]
    right = [check for check in checks if check.state in _RIGHT]
    if unchecked or not right:
        return Verdict(value=None, reason=f"cannot be checked: {(unchecked or checks)[0].reason}")
    rounded = sum(check.state == "rounded" for check in right)
    follow = sum(check.state == "follows" for check in right)
    note = f", {rounded} of them rounded" if rounded else ""
    note += f", {follow} of them because of earlier ones" if follow else ""
    return Verdict(value=1, reason=f"all {len(checks)} equations hold{note}")


@dataclass(frozen=True, kw_only=True, eq=False)
class Context:
    """What a trace states so far."""

    problem: str
    relations: tuple[Relation, ...] = ()
    texts: tuple[str, ...] = ()
    """The last three steps."""
    length: int = 0
    """Steps so far."""

    @classmethod
    def of_problem(cls, problem: str) -> Context:
        """The context before the first step."""
        return _StepChecker(cls(problem=problem), problem, source="the problem").context


@dataclass(frozen=True, kw_only=True)
class StepCheck:
    """All checks of one step, and the context after it."""

    checks: tuple[EquationCheck, ...]
    context: Context


def check_step(context: Context, text: str) -> StepCheck:
    """Check the step after ``context``."""
    checker = _StepChecker(context, text, source=f"step {context.length + 1}")
    next_context = checker.context
    if any(check.state == "fails" for check in checker.checks):
        next_context = context  # nothing follows from a wrong step
    return StepCheck(
        checks=tuple(checker.checks),
        context=replace(next_context, texts=(*context.texts, text)[-3:], length=context.length + 1),
    )


_SUPPOSED = re.compile(
    r"(?:\b(?:if|suppose|supposing|assum\w+|whether|unless|guess|try|cannot|not|instead of)\b|n't\b|\?)"
    r"[^.,;:=]{0,12}$",
    re.IGNORECASE,
)
"""Right before an equation that is only supposed."""
_REFUTED = re.compile(
    r"contradict|impossib|absurd|\bfalse|\bnot (?:true|possible|valid|correct|equal|hold|satisf|work|a )|"
    r"\b(?:does|is) ?n[o']t|incorrect|\bwrong|\bno solution|\bcannot|\bcan't|\bnever\b|\?|✗|mistake",
    re.IGNORECASE,
)
"""After an equation, in its sentence."""
_RETRACTED = re.compile(
    r"\W*(?:(?:this|that|it|which|but|so|thus|and|hence|however)\b[^.]{0,60}"
    r"(?:contradict|impossib|absurd|false|\bnot\b|n't\b|incorrect|wrong|cannot|mistake)|"
    r"(?:a )?contradiction|wait|oops|sorry|no,|hmm|actually|false\b|impossible)",
    re.IGNORECASE,
)
"""The beginning of the sentence after an equation that is taken back."""
_OTHER_ARITHMETIC = re.compile(
    r"\b(?:base[- ]\$?(?:[0-9b]|two|ten)|bases|mod|modulo|modul\w+|binary|octal|hexadecimal|ternary|clock|"
    r"congruences?|congruent (?:to \$?-?[0-9]|mod\w*)|o'clock|remainders?)\b|"
    r"\\p?b?mod\b|≡|\\equiv|[0-9]_\{?[0-9]",
    re.IGNORECASE,
)
_OWN_OPERATION = re.compile(
    r"\b(?:operation|digit stands|each letter|letters? (?:stand|represent)|cipher\w*)\b|[@#♠♣♥♦⊕⊗◇△]|"
    r"\\(?:star|oplus|otimes|diamond|\w+suit)|\bdefined?\b[^.]{0,40}\b[a-z] ?\* ?[a-z]\b",
    re.IGNORECASE,
)
_OTHER_OBJECTS = re.compile(r"mathbf|[pbv]matrix|vector|\\vec|overline|\bsets?\b", re.IGNORECASE)
_CONDITION = re.compile(
    r"\b(?:must|need|want|when|where|let|set|setting|for|case|if|suppose|assum\w+|either|or|solve|possib\w+)\b",
    re.IGNORECASE,
)
_LIST = re.compile(r"\s*\$?\s*(?:,\s*\$?\s*(?:and\s)?|or\s|and\s)\$?-?[0-9]")


class _StepChecker:
    """The checks of one step, and the context after it."""

    def __init__(self, context: Context, text: str, *, source: str) -> None:
        self.before, self.context, self.text, self.source = context, context, text, source
        self.work = Work()
        self.last: tuple[Equation, Relation] | None = None
        """The equation with unknowns before this one in the step."""
        self.among_others = False
        """Whether that one is a link of a chain, or one of several joined by "or" and "and"."""
        self.derived: tuple[str, Relation] | None = None
        """The last letter with a value, and the equation that the value was derived from."""
        self.checks = [self._check(equation) for equation in find_equations(text)]

    @cached_property
    def notations(self) -> list[Notation]:
        """Possible readings of functions and i, the likeliest first."""
        texts = " ".join((self.before.problem, *self.before.texts, self.text))
        first = Notation(imaginary=bool(_COMPLEX.search(texts)), euler=bool(_EXPONENTIAL.search(texts)))
        notations = [first]
        if "log" in texts:
            notations.append(replace(first, natural=True))
        if _TRIGONOMETRY.search(texts):
            in_degrees = replace(first, degrees=True)
            degrees_first = _DEGREES.search(texts) and not _RADIANS.search(texts)
            notations = [in_degrees, *notations] if degrees_first else [*notations, in_degrees]
        return notations

    def _check(self, equation: Equation) -> EquationCheck:
        lhs, rhs = equation.left.tree, equation.right.tree
        if lhs is None or rhs is None:
            problem = equation.left.problem or equation.right.problem or "it cannot be parsed"
            return _result(equation, "unchecked", problem)
        sides = (lhs, rhs)
        if not unknowns(sides, Notation()) or not unknowns(sides, self.notations[0]):
            return self._check_numbers(equation, lhs, rhs)
        relation = Relation(
            left=lhs, right=rhs, quote=equation.text, source=self.source, notation=self.notations[0]
        )
        try:
            check = self._check_letters(equation, relation)
        except WorkLimitError as error:
            return _result(equation, "unchecked", str(error))
        if check.state in ("follows", "unchecked") and not equation.doubt and not equation.approximate:
            relations = (*self.context.relations, relation)
            self.context = replace(self.context, relations=relations[-_REMEMBERED:])
        gap = self.text[self.last[0].end : equation.start][:_GAP] if self.last else ""
        chained = self.last is not None and equation.start < self.last[0].end
        self.among_others = chained or _ALTERNATIVE.fullmatch(gap) is not None
        self.last = (equation, relation)
        return check

    def _check_numbers(self, equation: Equation, left: FormulaNode, right: FormulaNode) -> EquationCheck:
        names = any(part.kind == "name" for side in (left, right) for part in side.walk())
        ambiguous = names or has_angles(left, right)
        notations = self.notations if ambiguous else [Notation()]
        state, reason = compare(equation, left, right, notations)
        if state == "fails":
            doubt = equation.doubt or equation.number_doubt or self._doubt(equation)
            if doubt is None and right.kind in ("number", "neg") and _LIST.match(equation.after):
                doubt = "a list of numbers follows"
            if doubt:
                return _result(equation, "unchecked", f"{reason}, but {doubt}", "numbers")
        return _result(equation, state, reason, "numbers")

    def _doubt(self, equation: Equation) -> str | None:
        """Why a false equation may be meant, or mean something else."""
        if match := (
            _SUPPOSED.search(equation.before)
            or _REFUTED.search(equation.after)
            or _RETRACTED.match(equation.following)
        ):
            return f"the step says {match.group().strip()!r}"
        if match := _OTHER_ARITHMETIC.search(self.text) or _OTHER_ARITHMETIC.search(self.before.problem):
            return f"{match.group()!r} may mean another arithmetic"
        if match := _OWN_OPERATION.search(self.before.problem):
            return f"the problem may define its own operation ({match.group()!r})"
        return None

    def _check_letters(self, equation: Equation, relation: Relation) -> EquationCheck:
        if equation.approximate:
            return _result(equation, "unchecked", "an approximation")
        if len(relation.unknowns) > MAX_UNKNOWNS:
            return _result(equation, "unchecked", "too many unknowns")
        readings = [replace(relation, notation=notation) for notation in self.notations]
        if any(is_identity(reading.residual(self.work)) for reading in readings):
            return _result(equation, "holds", "equal for all values")
        doubt = equation.doubt or self._doubt(equation) or self._other_objects()
        if is_impossible(relation, self.work):
            named = is_unknown(relation.left) or _shows_addition(relation)
            if named or doubt or _CONDITION.search(equation.before):
                reason = "true for no value, but it may be a definition or a condition"
                return _result(equation, "unchecked", reason)
            return _result(equation, "fails", "true for no value")
        if not doubt and (wrong := self._misderived(equation, relation)):
            return _result(equation, "fails", wrong, "rewriting")
        if any(other.written == relation.written for other in self.context.relations):
            return _result(equation, "restated", "as before")
        facts = confirming(relation, self.context.relations, self.work)
        if not facts:
            return _result(equation, "unchecked", "an equation to solve or a definition")
        return _result(equation, "follows", f"from {'; '.join(map(str, facts))}")

    def _misderived(self, equation: Equation, relation: Relation) -> str | None:
        """Why the equation is not what the one before it becomes, if nothing stands between them."""
        derived, self.derived = self.derived, None
        if self.last is None:
            if self.before.relations and _EXPANDS.fullmatch(equation.before):
                return wrong_rewriting(relation, self.before.relations[-1], self.work, named=True)
            return None
        last, previous = self.last
        if equation.start < last.end:  # a chain says that all its sides are equal
            return None
        gap = self.text[last.end : equation.start]
        if len(gap) > _GAP:
            return None
        if relation.left.kind != "name" or unknowns((relation.right,), relation.notation):
            named = _EXPANDS.fullmatch(gap) is not None
            if named or _is_next_line(gap) or _ARROW.fullmatch(gap):
                return wrong_rewriting(relation, previous, self.work, named=named)
            return None
        name = relation.left.text
        if derived is not None and derived[0] == name and _ALTERNATIVE.fullmatch(gap):
            previous = derived[1]
        elif self.among_others or not (_ARROW.fullmatch(gap) or _SO.fullmatch(gap) or _is_next_line(gap)):
            return None
        if previous.unknowns != {name} or previous.left.kind == "name" or has_angles(*previous.sides):
            return None
        self.derived = (name, previous)
        return None if _solves(relation, previous) else f"it does not satisfy {previous.quote!r}"

    def _other_objects(self) -> str | None:
        texts = " ".join((self.before.problem, *self.before.texts, self.text))
        match = _OTHER_OBJECTS.search(texts)
        return f"{match.group()!r} may mean other objects than numbers" if match else None


def _result(
    equation: Equation, state: EquationState, reason: str, kind: EquationKind = "letters"
) -> EquationCheck:
    return EquationCheck(text=equation.text, state=state, kind=kind, reason=reason)


def _value(node: FormulaNode, notation: Notation, known: Mapping[str, Number] = {}) -> Number | None:
    try:
        return evaluate(node, known, notation)
    except UnknownValueError:
        return None


def _is_next_line(gap: str) -> bool:
    """Whether only marks stand between two lines of a derivation; on one line, a comma makes a list."""
    return bool(_MARKS.fullmatch(gap) and (_BREAK.search(gap) or not set(gap) & set(",;&")))


def _shows_addition(relation: Relation) -> bool:
    """Whether the right side is the left one with another term: ``x^2 + 2x = x^2 + 2x + 1``."""
    right = relation.right
    shorter = right.parts[:-1]
    return right.kind == "+" and (
        shorter == relation.left.parts if len(shorter) > 1 else shorter[0] == relation.left
    )


def _solves(value: Relation, relation: Relation) -> bool:
    """Whether the value of a letter may solve an equation with this one unknown; it may be rounded."""
    number = _value(value.right, value.notation)
    if number is None:
        return True
    x, y = (_value(side, relation.notation, {value.left.text: number}) for side in relation.sides)
    if x is None or y is None or equal(x, y):
        return True
    return abs(complex(x) - complex(y)) <= _ROUNDING * abs(complex(y))


_ROUNDING = 0.02


_MARK = (
    r"(?:[\s$&.,;:{}]|\\[\[\]();,:!]|\\\\|\\q?quad\b|"
    r"\\(?:begin|end)\{(?:align|aligned|equation|gather|gathered|split)\*?\})*"
)
"""The marks of formulas and punctuation."""
_GAP = 100
"""Characters at most between an equation and its next form."""
_MARKS, _BREAK = re.compile(_MARK), re.compile(r"\n|\\\\|\\[\[\]]|\$\$")
_SO = re.compile(
    rf"{_MARK}(?:so|thus|hence|therefore|which (?:gives|means|yields)|giving)\b{_MARK}"
    rf"(?:we (?:get|have)\b{_MARK})?",
    re.IGNORECASE,
)
_ALTERNATIVE = re.compile(rf"{_MARK}(?:\\text\s?)?{_MARK}(?:or|and){_MARK}", re.IGNORECASE)
_ARROW = re.compile(rf"{_MARK}(?:\\(?:implies|(?:Long)?[Rr]ightarrow|to)\b|⇒|→|=>|->){_MARK}")
_EXPANDS = re.compile(
    rf"{_MARK}(?:(?:expand|simplify|distribut|rearrang|factor)ing|expand|simplify|distribute|rearrange|factor|"
    rf"combin(?:e|ing) like terms|which (?:simplifies to|becomes|is equivalent to))\b[^.=]{{0,40}}?{_MARK}",
    re.IGNORECASE,
)
_COMPLEX = re.compile(
    r"complex|imaginary|cis|\\omega|roots? of unity|[0-9]\s*i\b|[+-]\s*i\b|\bi\^|e\^\{[^{}]{0,12}i\s*\}|e\^i",
    re.IGNORECASE,
)
_EXPONENTIAL = re.compile(r"e\^(?<![a-zA-Z]e\^)\{?-?[0-9]*\s*(?:[a-z]|\\[a-z])")
_TRIGONOMETRY = re.compile(r"\\(?:arc)?(?:sin|cos|tan|cot|sec|csc)|\b(?:sin|cos|tan)\b")
_DEGREES = re.compile(r"circ(?![a-z])|degree|\b(?:180|360|90)\b|°")
_RADIANS = re.compile(r"\\pi|radian|π")
