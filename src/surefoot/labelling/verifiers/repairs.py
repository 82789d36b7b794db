"""``repair``: the statement of a failing program whose repair makes the tests pass.

Repairs are single statements of a passing program, whatever its names. They are proposals, which the tests
confirm or do not.
"""

from __future__ import annotations

import ast
import builtins
import itertools
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from copy import deepcopy
from dataclasses import dataclass, field
from difflib import SequenceMatcher, unified_diff
from functools import cached_property, partial
from itertools import islice
from operator import attrgetter

from surefoot.labelling.verifiers.programs import (
    NO_TESTS,
    CompileVerifier,
    SandboxedVerifier,
    SourceLine,
    TraceProgram,
    gradable_task,
    grade_traces,
    python_task,
    reference_program,
    unknown,
)
from surefoot.labels import AFTER_FIRST_ERROR
from surefoot.protocols import ProblemTrace, Verdict, verify_each
from surefoot.records import CodeTask, Execution, TestVisibility
from surefoot.sandbox import TaskVerdict, TestOutcome, grade_python
from surefoot.segment.segmenters import parse

REFERENCES, REPAIRS = 4, 24
"""Most passing programs that one is compared with, and most repairs of it that are tested."""
_LINES, _CHARACTERS = 300, 20_000
"""Longer programs are not aligned."""
_TEXT, _DIFF = 400, 4_000
"""Characters of a text and of a repair that people see."""
_NO_SUCH_NAME = re.compile(
    r"NameError: name '(\w+)' is not defined|(?:ModuleNotFound|Import)Error: .*?'([\w.]+)'"
)

_TOKEN = re.compile(r"""[A-Za-z_]\w*|[\d.]+|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|\S""")
_JUMPS = ("Return", "Raise", "Break", "Continue")
_SIMPLE = ("Assign", "AugAssign", "AnnAssign", "Expr")
_COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp

Pair = tuple[int | None, int | None]


class RepairVerifier(SandboxedVerifier):
    """A :class:`surefoot.protocols.StepVerifier`: the statement whose repair makes the tests pass.

    The repair of a program that fails is one statement of a program that passes: the problem's reference
    solution, or another trace of the problem among those verified together, the most similar ones first.
    Statements are aligned whatever the names of variables. The step of the repaired statement is -1, or the
    step before which a statement is missing; the steps before it are +1, and those after it are unknown.
    Without such a repair a step is -1 if it does not parse, or uses a name or a module that does not exist.
    Otherwise all steps are unknown. If the program passes the tests, all steps are +1.
    """

    name = "repair"
    visibility: TestVisibility = "hidden"

    def verify(self, items: Sequence[ProblemTrace]) -> list[list[Verdict]]:
        """One list per item, one verdict per step. Raises ``SandboxError``."""
        rows: list[list[Verdict]] = []
        by_problem: dict[str, list[_Graded]] = {}
        verdicts = grade_traces(self.sandbox, items, limits=self.limits)
        for number, (item, verdict) in enumerate(zip(items, verdicts, strict=True)):
            rows.append(unknown(len(item.trace.steps), verdict.reason if verdict else NO_TESTS))
            if verdict is not None and verdict.passed is not None and (task := gradable_task(item)):
                program = TraceProgram.of(item.trace, task)
                graded = _Graded(number=number, item=item, program=program, task=task, verdict=verdict)
                by_problem.setdefault(item.problem.id, []).append(graded)
        for group in by_problem.values():
            _find_references(group)
        programs = [graded for group in by_problem.values() for graded in group]
        self._confirm(programs)
        for graded in programs:
            rows[graded.number] = graded.verdicts()
        return rows

    def _confirm(self, programs: Sequence[_Graded]) -> None:
        jobs = [(graded, repair) for graded in programs for repair in graded.proposals()]
        repaired = [
            (repair.text, python_task(graded.task, graded.task.that_are("hidden"))) for graded, repair in jobs
        ]
        verdicts = grade_python(self.sandbox, repaired, limits=self.limits)
        for (graded, repair), verdict in zip(jobs, verdicts, strict=True):
            if verdict.passed and graded.repair is None:
                graded.repair = repair


def _find_references(group: Sequence[_Graded]) -> None:
    """Align each failing program of a problem with the most similar passing ones."""
    task = group[0].task
    passing = [graded.statements for graded in group if graded.verdict.passed]
    passing.insert(0, _statements(reference_program(task)) if task.reference else None)
    references = list({program.text: program for program in passing if program is not None}.values())
    for graded in group:
        if graded.statements is not None and not graded.verdict.passed:
            similar = sorted(references, key=partial(similarity, graded.statements), reverse=True)
            alignments = [align(graded.statements, reference) for reference in similar[: 2 * REFERENCES]]
            graded.alignments = sorted(alignments, key=attrgetter("distance"))[:REFERENCES]


@dataclass(kw_only=True)
class _Graded:
    """A program with its verdict, and the programs that it is compared with."""

    number: int
    item: ProblemTrace
    program: TraceProgram
    task: CodeTask
    verdict: TaskVerdict
    alignments: list[Alignment] = field(default_factory=list)
    """With the most similar passing programs."""
    repair: Repair | None = None
    """With which all tests pass, of the most similar program."""

    @cached_property
    def statements(self) -> StatementLines | None:
        """``None`` if the program cannot be aligned."""
        return _statements(self.program.text)

    def proposals(self) -> list[Repair]:
        """Different repairs, the most similar programs first."""
        repairs = (repair for alignment in self.alignments for repair in alignment.repairs())
        return list(islice({repair.text: repair for repair in repairs}.values(), REPAIRS))

    def verdicts(self) -> list[Verdict]:
        """One verdict for each step."""
        count = len(self.item.trace.steps)
        if self.verdict.passed:
            return [Verdict(value=1, reason="all tests pass")] * count
        wrong, reason = self._wrong()
        if wrong is None:
            reason = f"the program fails ({self.verdict.reason}), and no line of it could be blamed"
            last = Verdict(value=None, reason=reason, execution=self._execution())
            return [*unknown(count - 1, reason), last] if count else []
        earlier = unknown(wrong, "not known")
        if self.repair is not None:
            earlier = [Verdict(value=1, reason="all tests pass once a later step is repaired")] * wrong
        blamed = Verdict(value=-1, reason=reason, execution=self._execution())
        return [*earlier, blamed, *unknown(count - wrong - 1, AFTER_FIRST_ERROR)]

    def _wrong(self) -> tuple[int | None, str]:
        """The wrong step, and why."""
        if self.repair is not None and self.statements is not None:
            line = self.statements.source_line(self.repair.line)
            return self.program.step(SourceLine(line)), f"line {line}: {self.repair.reason}"
        [parsed] = verify_each(CompileVerifier(), [self.item])
        for step, verdict in enumerate(parsed):
            if verdict.value == -1:
                return step, verdict.reason
        for test in self.verdict.tests:
            if match := _NO_SUCH_NAME.match(test.reason):
                used = _first_use(self.program.text, match[1], match[2])
                return self.program.step(used), f"line {used}: {test.reason}"
        return None, ""

    def _execution(self) -> Execution:
        """The repair, and the first test that fails."""
        repair = None
        if self.repair is not None and self.statements is not None:
            old, new = self.statements.text.splitlines(), self.repair.text.splitlines()
            repair = _short("\n".join([*unified_diff(old, new, n=3, lineterm="")][3:]), _DIFF)
        tests = zip(self.task.that_are("hidden"), self.verdict.tests, strict=True)
        test, failed = next(pair for pair in tests if pair[1].outcome is not TestOutcome.PASSED)
        result = f"{failed.outcome}: {failed.reason}".removesuffix(": ")
        return Execution(repair=repair, test=_short(test.code), result=_short(result))


def _short(text: str, most: int = _TEXT) -> str:
    """Short text that a record accepts: without halves of surrogate pairs."""
    return text[:most].encode("utf-8", "replace").decode()


def _first_use(text: str, name: str | None, module: str | None) -> SourceLine | None:
    """The first line that reads a name which nothing in the program defines, or that imports a module."""
    try:
        nodes = list(ast.walk(parse(text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if name in {*_assigned(nodes), *(defined for node in nodes for defined in _defined(node))}:
        return None
    lines: list[int] = []
    for node in nodes:
        match node:
            case ast.Name(id=found, lineno=line) if found == name:
                lines.append(line)
            case ast.Import(names=aliases, lineno=line) | ast.ImportFrom(names=aliases, lineno=line):
                imported = {getattr(node, "module", None), *(alias.name for alias in aliases)}
                if module is not None and any(f"{path}.".startswith(f"{module}.") for path in imported):
                    lines.append(line)
    return SourceLine(min(lines)) if lines else None


def _statements(program: str) -> StatementLines | None:
    """``None`` if it does not parse, or is too long to be aligned."""
    try:
        statements = StatementLines(program)
    except SyntaxError:
        return None
    return statements if len(statements.lines) <= _LINES and len(program) <= _CHARACTERS else None


class StatementLines:
    """A program with one line for each simple statement and each head, without comments and docstrings.

    Lines are numbered from 0. Raises ``SyntaxError`` if it does not parse.
    """

    def __init__(self, program: str) -> None:
        try:
            tree = _WithoutTexts().visit(parse(program))
            self.text = _written(tree)
            self.tree = parse(self.text)
            same = ast.dump(tree) == ast.dump(self.tree)
        except (ValueError, RecursionError, MemoryError) as error:
            raise SyntaxError(str(error) or "too deeply nested") from error
        if not same:
            raise SyntaxError("it cannot be written with one line for each statement")
        self.lines = self.text.split("\n")[:-1]
        self.kinds = [""] * len(self.lines)
        source: dict[int, int] = {}
        for node, original in zip(ast.walk(self.tree), ast.walk(tree), strict=True):
            if isinstance(node, ast.stmt | ast.excepthandler) and isinstance(original, type(node)):
                self.kinds[node.lineno - 1] = type(node).__name__
                source[node.lineno - 1] = original.lineno
        self._source = sorted(source.items())
        self.indents = [len(line) - len(line.lstrip()) for line in self.lines]

    def source_line(self, line: int) -> int:
        """Line of the program from 1; the next statement's for ``else:`` and the like."""
        at = bisect_left(self._source, (line, 0))
        return self._source[min(at, len(self._source) - 1)][1] if self._source else 1

    @cached_property
    def words(self) -> Counter[str]:
        """The tokens of the program, to find similar ones."""
        return Counter(_TOKEN.findall(self.text))

    @cached_property
    def names(self) -> dict[str, bool]:
        """Names that are assigned, and whether only comprehensions do; also those that nothing defines."""
        nodes = list(ast.walk(self.tree))
        assigned, outside = set(_assigned(nodes)), set(_assigned(_outside_comprehensions(self.tree)))
        read = {node.id for node in nodes if isinstance(node, ast.Name)}
        defined = {name for node in nodes for name in _defined(node)}
        missing = read - assigned - defined - set(dir(builtins))
        return {name: name in assigned - outside for name in assigned | missing}

    @cached_property
    def used(self) -> set[tuple[str, str]]:
        """Function and name of what other statements read than those that assign, define or change it."""
        used: set[tuple[str, str]] = set()
        for function in ast.walk(self.tree):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            nodes = [*_outside_comprehensions(function), *self.tree.body]
            stored = {*_assigned(nodes), *(name for node in nodes for name in _defined(node))}
            for statement in ast.walk(function):
                if isinstance(statement, ast.stmt) and statement is not function:
                    names = {node.id for node in _head(statement) if isinstance(node, ast.Name)}
                    used |= {(function.name, name) for name in names & stored - _changed(statement)}
        return used

    @cached_property
    def dead(self) -> int:
        """How many statements of the same block follow directly after one that leaves it."""
        following = zip(self.kinds, self.indents, self.indents[1:], strict=False)
        return sum(kind in _JUMPS and next_indent == indent for kind, indent, next_indent in following)


def _written(tree: ast.AST) -> str:
    return "".join(f"{line}\n" for line in ast.unparse(tree).split("\n") if line)


class _WithoutTexts(ast.NodeTransformer):
    """Drops docstrings and ``...``."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for name in ("body", "orelse", "finalbody"):
            suite = getattr(node, name, None)
            if isinstance(suite, list) and suite:
                statements = [statement for statement in suite if not _is_text(statement)]
                needs_pass = name == "body" and not isinstance(node, ast.Module) and not statements
                setattr(node, name, [ast.copy_location(ast.Pass(), suite[0])] if needs_pass else statements)
        return node


def _is_text(statement: ast.AST) -> bool:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and (value.value is ... or isinstance(value.value, str))


def _defined(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            yield from ((alias.asname or alias.name).partition(".")[0] for alias in aliases)


def _assigned(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.ExceptHandler(name=str(name)):
                yield name


def _outside_comprehensions(root: ast.AST) -> Iterator[ast.AST]:
    stack = [root]
    while stack:
        for child in ast.iter_child_nodes(stack.pop()):
            if not isinstance(child, _COMPREHENSIONS | ast.Lambda):
                yield child
                stack.append(child)


def _head(statement: ast.stmt) -> Iterator[ast.AST]:
    """The nodes of a statement without the statements in it."""
    for child in ast.iter_child_nodes(statement):
        if isinstance(child, ast.expr | ast.withitem | ast.keyword):
            yield from ast.walk(child)


def _changed(statement: ast.stmt) -> set[str]:
    """Names that a statement assigns, or whose method it calls for its effect."""
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))):
            return {name}
    return set(_assigned(_head(statement)))


@dataclass(frozen=True, kw_only=True)
class Repair:
    """A program with one line replaced, added, or made ``pass``."""

    text: str
    line: int
    """The line that is wrong: the one replaced, or the one before which a line is added."""
    new: str
    adds: bool
    """Whether a line is added, and none is replaced."""

    @property
    def reason(self) -> str:
        """What the repair changes, in words."""
        return f"all tests pass with {self.new[:200]!r} {'before it' if self.adds else 'instead'}"


@dataclass(frozen=True, kw_only=True)
class Alignment:
    """A failing program line by line next to a passing one, which has the failing one's names."""

    program: StatementLines
    reference: tuple[str, ...]
    kinds: Sequence[str]
    """Of the statement of each line of the passing program."""
    pairs: tuple[Pair, ...]
    distance: float
    """0 for equal programs; about 1 for each line without a partner."""

    def _equal(self, line: int | None, partner: int | None) -> bool:
        return (
            line is not None and partner is not None and self.program.lines[line] == self.reference[partner]
        )

    def repairs(self) -> Iterator[Repair]:
        """Programs with one line of the passing one.

        A repair is left out if the rest of the program no longer matters with it: if it ends its block early,
        or if a variable or function is not read any more.
        """
        lines = self.program.lines
        for at, (line, partner) in enumerate(self.pairs):
            wrong = next((number for number, _ in self.pairs[at:] if number is not None), None)
            if wrong is None or self._equal(line, partner) or not self._same_kind(line, partner):
                continue
            new = " " * self.program.indents[wrong] + "pass" if partner is None else self.reference[partner]
            lines_after = lines[wrong:] if line is None else lines[wrong + 1 :]
            text = "\n".join([*lines[:wrong], new, *lines_after, ""])
            if self._keeps_the_rest(text):
                yield Repair(text=text, line=wrong, new=new.strip(), adds=line is None)

    def _same_kind(self, line: int | None, partner: int | None) -> bool:
        """Whether a new line does the same sort of thing as the one that it replaces, if any."""
        if line is None:
            return True
        kind = self.program.kinds[line]
        if partner is None or kind in (*_JUMPS, "Pass"):
            return kind in (*_SIMPLE, *_JUMPS, "Pass")
        new = self.kinds[partner]
        return kind == new or (kind in _SIMPLE and new in _SIMPLE) or (kind, new) == ("Expr", "Return")

    def _keeps_the_rest(self, text: str) -> bool:
        try:
            repaired = StatementLines(text)
        except SyntaxError:
            return False
        return repaired.dead <= self.program.dead and self.program.used <= repaired.used


def align(program: StatementLines, reference: StatementLines) -> Alignment:
    """Align two programs, first without their names, then with the failing program's names in both."""
    pairs, _ = _align(
        _shapes(program.lines, program.names.keys()), _shapes(reference.lines, reference.names.keys())
    )
    names = _mapping(program, reference, pairs)
    renamed = _written(_Renaming(names).visit(deepcopy(reference.tree))).splitlines()
    pairs, distance = _align(_shapes(program.lines, set()), _shapes(renamed, set()))
    return Alignment(
        program=program,
        reference=tuple(renamed),
        kinds=reference.kinds,
        pairs=tuple(pairs),
        distance=distance,
    )


def similarity(program: StatementLines, reference: StatementLines) -> float:
    """Share of common tokens, from 0 to 1."""
    tokens = program.words.total() + reference.words.total()
    return 2 * (program.words & reference.words).total() / max(tokens, 1)


class _Renaming(ast.NodeTransformer):
    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = names

    def visit(self, node: ast.AST) -> ast.AST:
        for attribute in ("id", "arg", "name"):
            name = getattr(node, attribute, None)
            # keywords of calls are other functions' names
            if isinstance(name, str) and isinstance(node, ast.Name | ast.arg | ast.ExceptHandler):
                setattr(node, attribute, self.names.get(name, name))
        return self.generic_visit(node)


@dataclass(frozen=True)
class _Shape:
    """A line for comparison: its indentation and its tokens, some of them as ``_``."""

    indent: int
    tokens: tuple[str, ...]
    counts: Counter[str]

    def distance(self, other: _Shape) -> float:
        """0: equal; below 2, the cost of two lines without partners, if they have common tokens."""
        if self.tokens == other.tokens and self.indent == other.indent:
            return 0
        common = 2 * (self.counts & other.counts).total() / (len(self.tokens) + len(other.tokens))
        return 0.4 + 1.6 * (1 - common * (1 if self.indent == other.indent else 0.7))


def _shapes(lines: Sequence[str], names: Set[str]) -> list[_Shape]:
    shapes = []
    for line in lines:
        tokens = tuple("_" if token in names else token for token in _TOKEN.findall(line))
        shapes.append(_Shape(len(line) - len(line.lstrip()), tokens, Counter(tokens)))
    return shapes


def _align(program: Sequence[_Shape], reference: Sequence[_Shape]) -> tuple[list[Pair], float]:
    """The alignment of least cost (Needleman and Wunsch, 1970); a line without a partner costs 1."""
    costs = [[float(column) for column in range(len(reference) + 1)]]
    for row, line in enumerate(program):
        above, current = costs[-1], [row + 1.0]
        for column, partner in enumerate(reference):
            together = above[column] + line.distance(partner)
            current.append(min(together, above[column + 1] + 1, current[column] + 1))
        costs.append(current)
    row, column, pairs = len(program), len(reference), list[Pair]()
    while row or column:
        cost = costs[row][column]
        if (
            row
            and column
            and cost == costs[row - 1][column - 1] + program[row - 1].distance(reference[column - 1])
        ):
            row, column = row - 1, column - 1
            pairs.append((row, column))
        elif row and cost == costs[row - 1][column] + 1:
            row -= 1
            pairs.append((row, None))
        else:
            column -= 1
            pairs.append((None, column))
    return pairs[::-1], costs[-1][-1]


def _mapping(program: StatementLines, reference: StatementLines, pairs: Sequence[Pair]) -> dict[str, str]:
    """Name in ``program`` for each name of ``reference``, by the places at which they stand; one to one."""
    votes: Counter[tuple[str, str]] = Counter()
    for line, partner in pairs:
        if line is None or partner is None:
            continue
        tokens, partner_tokens = _TOKEN.findall(program.lines[line]), _TOKEN.findall(reference.lines[partner])
        shape = ["_" if token in program.names else token for token in tokens]
        partner_shape = ["_" if token in reference.names else token for token in partner_tokens]
        matcher = SequenceMatcher(None, shape, partner_shape, autojunk=False)
        for start, partner_start, length in matcher.get_matching_blocks():
            for at in range(length):
                name, old = tokens[start + at], partner_tokens[partner_start + at]
                if name in program.names and program.names[name] == reference.names.get(old):
                    votes[old, name] += 2 if shape == partner_shape else 1
    names: dict[str, str] = {}
    for (old, name), _ in sorted(votes.items(), key=lambda vote: (-vote[1], vote[0][0] != vote[0][1], vote)):
        if old not in names and name not in names.values():
            names[old] = name
    used_names = {node.id for node in ast.walk(program.tree) if isinstance(node, ast.Name)} | set(
        names.values()
    )
    for old in sorted(reference.names.keys() - names.keys()):
        names[old] = next(new for count in itertools.count() if (new := old + "_" * count) not in used_names)
        used_names.add(names[old])
    return names
