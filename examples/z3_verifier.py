"""A step verifier of your own: claims in logic puzzles, checked by Z3 against the puzzle's premises.

Install Z3 (``pip install z3-solver``). With this file on Python's path, the command line uses it as well::

    surefoot label traces.jsonl verify:rules=z3_verifier:Z3Verifier --problems puzzles.jsonl -o out.jsonl

``Problem.meta["logic"]`` holds the puzzle: the names with their types, the premises, and the words that
mean true and false. Formulas use Python's syntax and the functions ``implies``, ``iff`` and ``xor``.
"""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import z3

from surefoot.errors import LabelError
from surefoot.labelling import VerifierLabeller
from surefoot.protocols import ProblemTrace, Verdict
from surefoot.records import Problem, Trace
from surefoot.segment import Line, segment_trace

MAX_CHARS = 500
"""Longest formula that is parsed."""
TIMEOUT_MS = 5000
"""Limit of one question to Z3, in milliseconds."""

_OPERATORS: Mapping[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
}
_FUNCTIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "implies": z3.Implies,
    "iff": lambda a, b: a == b,
    "xor": z3.Xor,
}
_QUOTED = re.compile(r"`([^`\n]+)`")
_SENTENCE = re.compile(r"(?:`[^`\n]+`|[^.;\n])+")
_IS = re.compile(
    r"\s*(?:(?:so|thus|therefore|hence|then|and),?\s+)*(?P<name>\w+) is (?P<not>not )?an? (?P<kind>\w+)\s*",
    re.IGNORECASE,
)
_STATES = re.compile(
    r"(?:\W|\b(?:so|thus|therefore|hence|then|and|also|now|finally|we|have|get|know|see|find|conclude|it|this|"
    r"means|follows|that|is|true|holds)\b)*",
    re.IGNORECASE,
)
"""All that may stand around a formula in backticks for it to be a claim of the step."""
_REPORTS = re.compile(
    r"\b(?:says?|said|saying|claim\w*|stat(?:es|ed|ing)|according|believes?|thinks?|den(?:y|ies|ied)|"
    r"whether|false|untrue|wrong|incorrect|cannot|never|doubts?|not (?:true|so|right|correct|"
    r"the case|know))\b|n't\b|\?",
    re.IGNORECASE,
)
"""Words with which a step reports or denies something instead of claiming it."""
_SUPPOSES = re.compile(r"\b(?:suppose|assume|assuming|if|were|would|case|either|or)\b", re.IGNORECASE)
_CONTRADICTION = re.compile(r"\b(?:contradiction|contradicts|impossible)\b", re.IGNORECASE)


class Z3Verifier:
    """A :class:`surefoot.protocols.StepVerifier`: does each claim follow from the premises?

    A step is -1 if one of its claims contradicts the premises, and +1 if all its claims follow from them.
    It is unlabelled if a claim does neither, or if the step makes no claim that can be parsed. Only two forms
    are parsed: formulas, as whole sentences or in backticks after words such as "so we have", and sentences
    such as "So Ann is a knight." Steps that report, ask or deny something ("Ann says `Bob`") are unlabelled.
    Steps that suppose something are unlabelled, and so are the steps after them up to a contradiction.
    """

    name = "z3"

    def verify(self, items: Sequence[ProblemTrace]) -> list[list[Verdict]]:
        """One list per item, one verdict per step. Raises ``LabelError`` for an invalid puzzle."""
        return [list(self._verdicts(item)) for item in items]

    def _verdicts(self, item: ProblemTrace) -> Iterator[Verdict]:
        puzzle = Puzzle(item.problem) if "logic" in item.problem.meta else None
        supposing = False
        for step in range(len(item.trace.steps)):
            text = item.trace.step_text(step)
            supposing |= bool(_SUPPOSES.search(_QUOTED.sub("", text)))
            if puzzle is None:
                yield Verdict(value=None, reason="the problem has no puzzle in meta['logic']")
            elif supposing:
                yield Verdict(value=None, reason="the step supposes something, or follows a supposition")
                supposing = not _CONTRADICTION.search(text)
            else:
                yield puzzle.verdict(text)


class Puzzle:
    """The names, the premises and the vocabulary of one puzzle."""

    def __init__(self, problem: Problem) -> None:
        """Raises ``LabelError`` if the puzzle is invalid or its premises contradict each other."""
        logic = problem.meta["logic"]
        try:
            types = {"bool": z3.Bool, "int": z3.Int}
            self.names = {name: types[kind](name) for name, kind in logic["names"].items()}
            self.kinds = {str(word): bool(value) for word, value in logic.get("kinds", {}).items()}
            premises = [self.formula(text) for text in logic["premises"]]
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise LabelError(f"problem {problem.id}: meta['logic'] is not a valid puzzle: {error}") from error
        self.solver = z3.Solver()
        self.solver.set("timeout", TIMEOUT_MS)
        self.solver.add(*premises)
        if self.solver.check() == z3.unsat:
            raise LabelError(f"problem {problem.id}: the premises in meta['logic'] contradict each other")

    def verdict(self, text: str) -> Verdict:
        """The verdict on one step."""
        if reported := _REPORTS.search(_QUOTED.sub("", text)):
            return Verdict(value=None, reason=f"{reported[0]!r}: the step reports, asks or denies something")
        claims = list(self.claims(text))
        if not claims:
            return Verdict(value=None, reason="no claim that can be parsed")
        for quote, claim in claims:
            if self.solver.check(claim) == z3.unsat:
                return Verdict(value=-1, reason=f"contradicts the premises: {quote}")
            if self.solver.check(z3.Not(claim)) != z3.unsat:
                return Verdict(value=None, reason=f"neither proved nor refuted by the premises: {quote}")
        return Verdict(value=1, reason=f"{len(claims)} claims follow from the premises")

    def claims(self, text: str) -> Iterator[tuple[str, z3.BoolRef]]:
        """Each claim of a step as written, with its formula."""
        names = {name.lower(): formula for name, formula in self.names.items()}
        sentences = map(str.strip, _SENTENCE.findall(text))
        for candidate in (part for sentence in sentences for part in _parts(sentence)):
            sentence = _IS.fullmatch(candidate)
            if sentence and sentence["name"].lower() in names and sentence["kind"].lower() in self.kinds:
                formula = names[sentence["name"].lower()]
                positive = self.kinds[sentence["kind"].lower()] != bool(sentence["not"])
                yield candidate, formula if positive else z3.Not(formula)
                continue
            try:
                yield candidate, self.formula(candidate)
            except ValueError:
                continue

    def formula(self, text: str) -> z3.BoolRef:
        """Parse a formula; nothing is evaluated. Raises ``ValueError`` if it is not a truth value."""
        try:
            formula = self._build(ast.parse(text[: MAX_CHARS + 1].strip(), mode="eval").body)
        except (SyntaxError, RecursionError, MemoryError, z3.Z3Exception, TypeError, AttributeError) as error:
            raise ValueError(f"cannot parse {text[:MAX_CHARS]!r}") from error
        if len(text) > MAX_CHARS or not z3.is_bool(formula):
            raise ValueError(f"{text[:MAX_CHARS]!r} is not a truth value")
        return formula

    def _build(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=bool() as value):
                return z3.BoolVal(value)
            case ast.Constant(value=int() as value):
                return z3.IntVal(value)
            case ast.Name(id=name) if name in self.names:
                return self.names[name]
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return z3.Not(self._build(operand))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self._build(operand)
            case ast.BoolOp(op=op, values=values):
                join = z3.And if isinstance(op, ast.And) else z3.Or
                return join(*map(self._build, values))
            case ast.BinOp(op=op, left=left, right=right) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](self._build(left), self._build(right))
            case ast.Compare(left=left, ops=ops, comparators=others) if all(
                type(op) in _OPERATORS for op in ops
            ):
                terms = [self._build(term) for term in (left, *others)]
                return z3.And(*(_OPERATORS[type(op)](*terms[at : at + 2]) for at, op in enumerate(ops)))
            case ast.Call(func=ast.Name(id=name), args=[left, right], keywords=[]) if name in _FUNCTIONS:
                return _FUNCTIONS[name](self._build(left), self._build(right))
        raise ValueError(f"cannot parse {ast.unparse(node)!r}")


def _parts(sentence: str) -> list[str]:
    """What a sentence may claim: its formulas in backticks, or all of it if it has none."""
    quoted: list[str] = _QUOTED.findall(sentence)
    return (quoted if _STATES.fullmatch(_QUOTED.sub("", sentence)) else []) if quoted else [sentence]


def main() -> None:
    """Ann says: Bob is a knave. Bob says: we are both knaves. Knights tell the truth, knaves lie."""
    logic = {
        "names": {"Ann": "bool", "Bob": "bool"},
        "premises": ["iff(Ann, not Bob)", "iff(Bob, not Ann and not Bob)"],
        "kinds": {"knight": True, "knave": False},
    }
    problem = Problem(text="Who is a knight?", meta={"logic": logic})
    text = "Suppose Bob is a knight.\nThat is a contradiction.\nBob is not a knight.\nSo `not Ann`."
    item = ProblemTrace(problem=problem, trace=segment_trace(Trace(problem_id=problem.id, text=text), Line()))
    (labels,) = asyncio.run(VerifierLabeller(verifiers=(Z3Verifier(),)).label([item]))
    for label in labels:
        value = "unlabelled" if label.value is None else f"{label.value:+.0f}"
        reason = label.reason or label.evidence.message
        print(f"{item.trace.step_text(label.step).strip():26} {value:10} {reason}")


if __name__ == "__main__":
    main()
