"""Mutants: reference solutions with one fault, whose line is known, that their tests find.

They give exact labels for programs, as a checker does in the lab. The operators are those of mutation testing
(DeMillo, Lipton and Sayward, 1978); a mutant that passes all tests may be equivalent, and is dropped.
"""

from __future__ import annotations

import ast
import copy
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from surefoot.errors import LabelError
from surefoot.labelling.verifiers.programs import grade_traces
from surefoot.labels import AFTER_FIRST_ERROR
from surefoot.protocols import LabelledTrace, ProblemTrace, Segmenter
from surefoot.records import CodeTask, Evidence, Problem, StepLabel, Trace
from surefoot.sandbox import Sandbox
from surefoot.segment.code import PythonCode, parse
from surefoot.segment.traces import segment_trace

SOURCE = "mutant"

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
}


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A program with one fault."""

    text: str
    line: int
    """Of the fault, from 1."""
    operator: str
    """``comparison``, ``arithmetic``, ``constant``, ``boolean``, ``deleted statement``, ``swapped
    arguments`` or ``wrong variable``."""
    change: str
    """``before → after``."""


def mutants(prompt: str, solution: str) -> Iterator[Mutant]:
    """All mutants of ``solution``, which continues ``prompt``, in the order of their lines.

    Raises ``LabelError`` if the program does not parse.
    """
    try:
        tree = parse(prompt + solution)
    except SyntaxError as error:
        raise LabelError(f"the reference solution does not parse: {error}") from error
    first = prompt.count("\n")
    lines = solution.splitlines(keepends=True)
    for node in sorted(_nodes(tree, first), key=lambda node: (node.lineno, node.col_offset)):
        for operator, changed in _changes(node, tree):
            line = lines[node.lineno - first - 1].encode()
            old, new = line[node.col_offset : node.end_col_offset].decode(), ast.unparse(changed)
            mutated = (line[: node.col_offset] + new.encode() + line[node.end_col_offset :]).decode()
            text = "".join([*lines[: node.lineno - first - 1], mutated, *lines[node.lineno - first :]])
            if _differs(prompt + text, tree):
                yield Mutant(text=text, line=node.lineno - first, operator=operator, change=f"{old} → {new}")


def _nodes(tree: ast.Module, first: int) -> Iterator[ast.expr | ast.stmt]:
    """Nodes below line ``first`` that lie in one line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.expr | ast.stmt) and node.lineno > first and node.lineno == node.end_lineno:
            yield node


def _differs(text: str, tree: ast.Module) -> bool:
    try:
        return ast.dump(parse(text)) != ast.dump(tree)
    except SyntaxError:
        return False


def _changes(node: ast.expr | ast.stmt, tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """What one node may become, by operator."""
    changed = copy.deepcopy(node)
    match changed:
        case ast.Compare(ops=[op, *others]) if type(op) in _COMPARISONS:
            changed.ops = [_COMPARISONS[type(op)](), *others]
            yield "comparison", changed
        case ast.BinOp(op=op, left=left) if type(op) in _ARITHMETIC and not _is_text(left):
            changed.op = _ARITHMETIC[type(op)]()
            yield "arithmetic", changed
        case ast.BoolOp():
            changed.op = ast.Or() if isinstance(changed.op, ast.And) else ast.And()
            yield "boolean", changed
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "boolean", operand
        case ast.Constant(value=bool() as value):
            yield "constant", ast.Constant(not value)
        case ast.Constant(value=int() as value):
            yield "constant", ast.Constant(value + 1)
        case ast.Call(args=[one, two, *others]) if ast.dump(one) != ast.dump(two):
            changed.args = [two, one, *others]
            yield "swapped arguments", changed
        case ast.Name(id=name, ctx=ast.Load()):
            names = _variables(tree)
            if name in names and len(names) > 1:
                other = names[(names.index(name) + 1) % len(names)]
                yield "wrong variable", ast.Name(other, ast.Load())
        case ast.Assign() | ast.AugAssign() | ast.Expr(value=ast.Call()):
            yield "deleted statement", ast.Pass()
        case _:
            return


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _variables(tree: ast.Module) -> list[str]:
    """Names that the program binds: arguments and variables."""
    stored = {
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    return sorted(stored | {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)})


@dataclass(frozen=True, kw_only=True)
class MutantReport:
    """What became of the mutants."""

    kept: Counter[str] = field(default_factory=Counter)
    """By operator."""
    dropped: Counter[str] = field(default_factory=Counter)
    """By reason."""

    def summary(self) -> str:
        """One sentence."""
        by = ", ".join(f"{count} {name}" for name, count in sorted(self.kept.items()))
        lost = ", ".join(f"{count} {reason}" for reason, count in sorted(self.dropped.items()))
        return f"{self.kept.total()} mutants kept ({by or 'none'}); dropped: {lost or 'nothing'}"


def labelled_mutants(
    problems: Iterable[Problem],
    sandbox: Sandbox,
    *,
    per_problem: int = 10,
    seed: int = 0,
    segmenter: Segmenter | None = None,
    report: MutantReport | None = None,
) -> Iterator[LabelledTrace]:
    """Mutants of each problem's reference solution that fail its hidden tests, with exact labels.

    Up to ``per_problem`` are drawn at random and run. Steps before the fault are +1, that with it -1, and
    those after it are unknown, as after any first error. ``report`` counts them, and what was left out.

    Raises:
        SandboxError: programs cannot be run.
    """
    report = MutantReport() if report is None else report
    for problem in problems:
        task = CodeTask.of(problem)
        if task is None or task.reference is None or not task.that_are("hidden"):
            report.dropped["problems without reference solution or hidden tests"] += 1
            continue
        try:
            candidates = list(mutants(task.prompt, task.reference))
        except LabelError:
            report.dropped["problems whose reference solution does not parse"] += 1
            continue
        # by problem, so that one problem's mutants do not depend on the others
        sample = random.Random(f"{seed} {problem.id}").sample(candidates, min(per_problem, len(candidates)))
        items = [
            _item(problem, mutant, number, segmenter or PythonCode()) for number, mutant in enumerate(sample)
        ]
        for item, mutant, verdict in zip(items, sample, grade_traces(sandbox, items), strict=True):
            if verdict is None or verdict.passed is None:
                report.dropped["not run: the tests or the sandbox failed"] += 1
            elif verdict.passed:
                report.dropped["equivalent as far as the tests tell"] += 1
            else:
                report.kept[mutant.operator] += 1
                trace = item.trace.model_copy(update={"outcome": False})
                labels = tuple(_labels(trace, mutant, verdict.reason))
                yield LabelledTrace(problem=problem, trace=trace, labels=labels)


def _item(problem: Problem, mutant: Mutant, number: int, segmenter: Segmenter) -> ProblemTrace:
    meta = {"mutant": {"line": mutant.line, "operator": mutant.operator, "change": mutant.change}}
    trace = Trace(problem_id=problem.id, text=mutant.text, policy=SOURCE, sample=number, meta=meta)
    return ProblemTrace(problem=problem, trace=segment_trace(trace, segmenter))


def _labels(trace: Trace, mutant: Mutant, failed: str) -> Iterator[StepLabel]:
    text = trace.text or ""
    lines = text.splitlines(keepends=True)
    at = (
        sum(map(len, lines[: mutant.line - 1]))
        + len(lines[mutant.line - 1])
        - len(lines[mutant.line - 1].lstrip())
    )
    wrong = next(number for number, step in enumerate(trace.steps) if step.start <= at < step.end)
    for step in range(len(trace.steps)):
        value = 1.0 if step < wrong else -1.0 if step == wrong else None
        yield StepLabel(
            trace_id=trace.id,
            step=step,
            kind="correctness",
            value=value,
            reason=AFTER_FIRST_ERROR if value is None else None,
            source=SOURCE,
            evidence=Evidence(
                message=f"{mutant.operator}: {mutant.change}; {failed}" if step == wrong else None
            ),
        )
