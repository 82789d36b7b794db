"""Claims in logic puzzles, checked by Z3 against the puzzle's premises: ``z3``.

A puzzle says in ``Problem.meta["logic"]`` what its names are and what holds (:class:`LogicTask`). A claim is
read only where nothing has to be guessed: a formula in backticks or on a line of its own, or a sentence such
as "So Ann is a knight." where the puzzle declares the kinds. Formulas are written as in Python and parsed,
never evaluated; Z3 runs in a process of its own within limits.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from surefoot.errors import LabelError
from surefoot.extras import need
from surefoot.io.bounded_worker import BoundedWorker
from surefoot.protocols import ProblemTrace, Verdict
from surefoot.records import Problem

Tree = list[Any]
"""A formula as JSON: an operator and its arguments, ``["name", n]``, ``["int", i]`` or ``["bool", b]``."""

MAX_CHARS = 500
"""Longest formula that is read."""

_COMPARISONS: Mapping[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}
_ARITHMETIC: Mapping[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*"}
_CALLS = {"implies": 2, "iff": 2, "xor": 2}
_QUOTED = re.compile(r"`([^`\n]+)`")
_SENTENCE = re.compile(r"[^.;\n]+")
_IS = re.compile(
    r"\s*(?:(?:so|thus|therefore|hence|then|and|this means(?: that)?),?\s+)*"
    r"(?P<name>\w+) is (?P<not>not )?an? (?P<kind>\w+)\s*",
    re.IGNORECASE,
)
_SUPPOSES = re.compile(
    r"\b(?:suppose|assume|assuming|if|were|would|case|let us say|either|or)\b", re.IGNORECASE
)
_RETURNS = re.compile(r"\b(?:contradiction|contradicts|impossible)\b", re.IGNORECASE)


class LogicTask(BaseModel):
    """A logic puzzle, in ``Problem.meta["logic"]``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    names: dict[str, Literal["bool", "int"]] = Field(min_length=1)
    premises: tuple[str, ...] = Field(min_length=1)
    """Formulas: ``and``, ``or``, ``not``, comparisons, ``+ - *``, ``implies(a, b)``, ``iff``, ``xor``."""
    kinds: dict[str, bool] = Field(default_factory=dict)
    """What a sentence says of a name that is a bool: ``{"knight": true, "knave": false}``."""


class Z3Verifier:
    """A :class:`surefoot.protocols.StepVerifier`: does each claim follow from the premises?

    A step is -1 if one of its claims contradicts the premises, +1 if all follow from them, and unknown if one
    does neither, or nothing could be read. So are steps that suppose something, and those after them up to a
    contradiction. ``timeout_s`` bounds a claim, ``memory_mb`` the process. Use as a context manager, or call
    ``close``.
    """

    name = "z3"

    def __init__(self, *, timeout_s: float = 5.0, memory_mb: int = 2048) -> None:
        """Raises ``MissingExtraError`` without Z3."""
        need("z3", "the verifier 'z3'")
        self._worker = BoundedWorker(load_z3, timeout_s=timeout_s, memory_mb=memory_mb, error=LabelError)

    def verify(self, items: Sequence[ProblemTrace]) -> list[list[Verdict]]:
        """One list per item, one verdict per step. Raises ``LabelError`` for a puzzle that is none."""
        return [list(self._verdicts(item)) for item in items]

    def close(self) -> None:
        """Stop the process. Can be repeated."""
        self._worker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _verdicts(self, item: ProblemTrace) -> Iterator[Verdict]:
        task = _task(item.problem)
        premises = [] if task is None else [_premise(item.problem, text, task) for text in task.premises]
        supposing = False
        for step in range(len(item.trace.steps)):
            if task is None:
                yield Verdict(value=None, reason="the problem has no puzzle in meta['logic']")
                continue
            text = item.trace.step_text(step)
            supposing |= bool(_SUPPOSES.search(_QUOTED.sub("", text)))
            if supposing:
                yield Verdict(value=None, reason="the step supposes something, or follows what is supposed")
                supposing = not _RETURNS.search(text)
                continue
            yield self._verdict(item.problem, task, premises, claims_of(text, task))

    def _verdict(
        self, problem: Problem, task: LogicTask, premises: Sequence[Tree], claims: Sequence[tuple[str, Tree]]
    ) -> Verdict:
        if not claims:
            return Verdict(value=None, reason="no claim that could be read")
        for text, claim in claims:
            question = {"names": task.names, "premises": premises, "claim": claim}
            reply = self._worker.ask(question)
            match reply.answer:
                case "follows":
                    continue
                case "contradicts":
                    return Verdict(value=-1, reason=f"contradicts the premises: {text}")
                case "premises":
                    raise LabelError(
                        f"problem {problem.id}: the premises in meta['logic'] contradict each other"
                    )
            reason = reply.failure or "neither it nor its opposite follows from the premises"
            return Verdict(value=None, reason=f"{text}: {reason}")
        return Verdict(value=1, reason=f"{len(claims)} claims follow from the premises")


def claims_of(text: str, task: LogicTask) -> list[tuple[str, Tree]]:
    """What a step claims, as it is written and as a formula; only what is read without guessing."""
    found: list[tuple[str, Tree]] = []
    for quoted in _QUOTED.findall(text):
        if (formula := read_formula(quoted, task)) is not None:
            found.append((quoted, formula))
    names = {name.lower(): name for name in task.names}
    for sentence in _SENTENCE.findall(_QUOTED.sub("", text)):
        said = _IS.fullmatch(sentence)
        if said and said["name"].lower() in names and said["kind"].lower() in task.kinds:
            name: Tree = ["name", names[said["name"].lower()]]
            true = task.kinds[said["kind"].lower()] != bool(said["not"])
            found.append((sentence.strip(), name if true else ["not", name]))
        elif (formula := read_formula(sentence, task)) is not None:
            found.append((sentence.strip(), formula))
    return found


def read_formula(text: str, task: LogicTask) -> Tree | None:
    """A formula that is a truth value; ``None`` if the text is anything else."""
    if len(text) > MAX_CHARS:
        return None
    try:
        tree, kind = _read(ast.parse(text.strip(), mode="eval").body, task)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return tree if kind == "bool" else None


def _read(node: ast.expr, task: LogicTask) -> tuple[Tree, str]:
    """Formula and type. Raises ``ValueError`` for what is none."""
    match node:
        case ast.Constant(value=bool() as value):
            return ["bool", value], "bool"
        case ast.Constant(value=int() as value):
            return ["int", value], "int"
        case ast.Name(id=name) if name in task.names:
            return ["name", name], task.names[name]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return ["not", _typed(operand, task, "bool")], "bool"
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return ["-", ["int", 0], _typed(operand, task, "int")], "int"
        case ast.BoolOp(op=op, values=values):
            word = "and" if isinstance(op, ast.And) else "or"
            return [word, *(_typed(one, task, "bool") for one in values)], "bool"
        case ast.BinOp(op=op, left=left, right=right) if type(op) in _ARITHMETIC:
            sides = [_typed(one, task, "int") for one in (left, right)]
            return [_ARITHMETIC[type(op)], *sides], "int"
        case ast.Compare(left=left, ops=ops, comparators=others) if all(
            type(op) in _COMPARISONS for op in ops
        ):
            terms = [_read(one, task) for one in (left, *others)]
            kinds = {kind for _, kind in terms}
            words = [_COMPARISONS[type(op)] for op in ops]
            if len(kinds) > 1 or (kinds == {"bool"} and {*words} - {"==", "!="}):
                raise ValueError("compares what cannot be compared")
            pairs = [[word, terms[at][0], terms[at + 1][0]] for at, word in enumerate(words)]
            return (pairs[0] if len(pairs) == 1 else ["and", *pairs]), "bool"
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if _CALLS.get(name) == len(args):
            return [name, *(_typed(one, task, "bool") for one in args)], "bool"
    raise ValueError("no formula")


def _typed(node: ast.expr, task: LogicTask, kind: str) -> Tree:
    tree, found = _read(node, task)
    if found != kind:
        raise ValueError(f"a term of type {kind} is needed")
    return tree


def _premise(problem: Problem, text: str, task: LogicTask) -> Tree:
    tree = read_formula(text, task)
    if tree is None:
        raise LabelError(
            f"problem {problem.id}: the premise {text!r} in meta['logic'] is no formula of its names"
        )
    return tree


def _task(problem: Problem) -> LogicTask | None:
    task = problem.meta.get("logic")
    try:
        return None if task is None else LogicTask.model_validate(task)
    except ValueError as error:
        raise LabelError(f"problem {problem.id}: meta['logic'] is no puzzle: {error}") from error


def load_z3() -> Callable[[dict[str, Any]], str]:
    """Import Z3; returns what says of ``claim`` that it ``follows`` from the ``premises``, ``contradicts``
    them, or is ``open``; ``premises`` if they contradict each other."""
    import z3

    operations: dict[str, Callable[..., Any]] = {
        "and": z3.And,
        "or": z3.Or,
        "not": z3.Not,
        "implies": z3.Implies,
        "iff": lambda a, b: a == b,
        "xor": z3.Xor,
        "==": lambda a, b: a == b,
        "!=": lambda a, b: a != b,
        "<": lambda a, b: a < b,
        "<=": lambda a, b: a <= b,
        ">": lambda a, b: a > b,
        ">=": lambda a, b: a >= b,
        "+": lambda a, b: a + b,
        "-": lambda a, b: a - b,
        "*": lambda a, b: a * b,
    }

    def answer(question: dict[str, Any]) -> str:
        names = {
            name: z3.Bool(name) if kind == "bool" else z3.Int(name)
            for name, kind in question["names"].items()
        }

        def build(tree: Tree) -> Any:
            match tree:
                case ["name", name]:
                    return names[name]
                case ["int", value]:
                    return z3.IntVal(value)
                case ["bool", value]:
                    return z3.BoolVal(value)
            return operations[tree[0]](*map(build, tree[1:]))

        solver = z3.Solver()
        solver.add(*map(build, question["premises"]))
        claim = build(question["claim"])
        may = {word: solver.check(one) for word, one in (("hold", claim), ("fail", z3.Not(claim)))}
        if may["hold"] == may["fail"] == z3.unsat:
            return "premises"
        if may["fail"] == z3.unsat:
            return "follows"
        return "contradicts" if may["hold"] == z3.unsat else "open"

    z3.Solver().check()
    return answer
