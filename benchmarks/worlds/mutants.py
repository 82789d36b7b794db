"""Mutants: reference solutions with one fault on a known line that fails their tests.

They give exact labels for programs, like the checker of the lab. The operators come from mutation testing
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
from surefoot.labelling import grade_traces
from surefoot.labels import AFTER_FIRST_ERROR, up_to_first_error
from surefoot.protocols import LabelledTrace, ProblemTrace, Segmenter
from surefoot.records import CodeTask, Evidence, Problem, StepLabel, Trace
from surefoot.sandbox import Sandbox
from surefoot.segment.segmenters import PythonCode, parse
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
    """Line of the fault, from 1."""
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
    """Nodes on a single line after line ``first``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.expr | ast.stmt) and node.lineno > first and node.lineno == node.end_lineno:
            yield node


def _differs(text: str, tree: ast.Module) -> bool:
    try:
        return ast.dump(parse(text)) != ast.dump(tree)
    except SyntaxError:
        return False


def _changes(node: ast.expr | ast.stmt, tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
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
    stored = {
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    return sorted(stored | {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)})


@dataclass(frozen=True, kw_only=True)
class MutantReport:
    """Counts of mutants."""

    usable: Counter[str] = field(default_factory=Counter)
    """Mutants that fail a test, by operator."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Other mutants and problems, by reason."""

    def summary(self) -> str:
        """One sentence."""
        by = ", ".join(f"{count} {name}" for name, count in sorted(self.usable.items()))
        lost = ", ".join(f"{count} {reason}" for reason, count in sorted(self.dropped.items()))
        return f"{self.usable.total()} mutants kept ({by or 'none'}); dropped: {lost or 'nothing'}"


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

    Up to ``per_problem`` randomly chosen mutants run. Steps before the fault are +1, the step with the fault
    is -1, and steps after it are unknown, as after any first error. ``report`` counts the mutants.

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
        # seeded by problem, so that the mutants of a problem do not depend on the other problems
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
                report.usable[mutant.operator] += 1
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
    for step, value in enumerate(up_to_first_error(wrong, len(trace.steps))):
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
