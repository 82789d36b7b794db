"""Programs into steps: whole lines that make up statements.

Nothing is executed. A program that does not parse is cut as far as it does, and at its lines from there on.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from surefoot.maths import BLANK_LINE
from surefoot.segment.spans import Span, fences, tile, tile_at

PARSED_CHARACTERS = 2_000_000
"""Characters given to the parser in all for one text: what does not parse is tried again, shorter."""

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|\Z)")
_PYTHON = frozenset({"python", "python3", "py", "py3"})
_INFO = re.compile(r"[ \t]*(?:`{3,}|~{3,})[ \t]*(?P<language>[^\s{]*)[^\r\n]*(?P<newline>\r\n|\r|\n|\Z)")


@dataclass(frozen=True)
class PythonCode:
    """Steps of a Python program, or of the rest of one: an indented body that a policy was asked to complete.

    A step has whole lines, so statements on one line share a step. ``else:``, ``except …:`` and the like go
    with what follows them, decorators and comments with the statement below them, a docstring with its
    function.
    """

    def segment(self, text: str) -> list[Span]:
        """Spans that tile ``text``."""
        lines = [match.group() for match in _LINE.finditer(text)]
        parsed, suite = _longest_prefix(lines)
        starts = {*_first_lines(lines, suite), *range(parsed + 1, len(lines) + 1)}
        cuts: list[int] = []
        at = 0
        for number, line in enumerate(lines, start=1):
            if number in starts and at:
                cuts.append(at)
            at += len(line)
        return tile_at(text, cuts)


@dataclass(frozen=True)
class ProseAndCode:
    """Solutions that mix prose and fenced code: prose is cut at blank lines, Python in a fence by ``code``.

    The marks of a fence go with its first and last step. A fence of another language is one step, as is one
    without a language whose content is not Python.
    """

    code: PythonCode = PythonCode()

    def segment(self, text: str) -> list[Span]:
        """Spans that tile ``text``."""
        cuts: list[int] = []
        done = 0
        for start, end in fences(text):
            cuts += _prose_cuts(text, done, start)
            cuts += [start, *self._inner_cuts(text, start, end), end]
            done = end
        return tile_at(text, [*cuts, *_prose_cuts(text, done, len(text))])

    def _inner_cuts(self, text: str, start: int, end: int) -> list[int]:
        """Where the second and later steps of one fence begin."""
        opening = _INFO.match(text, start)
        first = opening.end() if opening else start
        last = text.rfind("\n", first, end) + 1
        code = text[first : last if text[last:end].strip().strip("`~") == "" and last > first else end]
        language = opening["language"].lower() if opening else ""
        if language not in _PYTHON and (language or not parses(code)):
            return []
        return [first + begin for begin, _ in self.code.segment(code)[1:]]


def code_spans(text: str, segmenter: object) -> Sequence[Span]:
    """Where ``text`` is code according to ``segmenter``: everywhere, in its fences, or nowhere."""
    if isinstance(segmenter, PythonCode):
        return [(0, len(text))]
    return list(fences(text)) if isinstance(segmenter, ProseAndCode) else []


def _prose_cuts(text: str, start: int, end: int) -> list[int]:
    part = text[start:end]
    return [start + first for first, _ in tile(part, (match.end() for match in BLANK_LINE.finditer(part)))]


def parses(text: str) -> bool:
    """Whether ``text`` is Python: a program, or the indented rest of one."""
    lines = [match.group() for match in _LINE.finditer(text)]
    return _longest_prefix(lines, tries=1)[0] == len(lines)


def parse(text: str) -> ast.Module:
    """The syntax tree of a program. Raises ``SyntaxError``, also for one too deep or with bad characters."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as invalid escapes
        try:
            return ast.parse(text)
        except (ValueError, RecursionError, MemoryError) as error:
            raise SyntaxError(str(error) or "too deeply nested") from error


def _longest_prefix(lines: Sequence[str], tries: int = 64) -> tuple[int, list[ast.stmt]]:
    """How many of the first ``lines`` parse, and their statements with line numbers of the text."""
    visible = next((line for line in lines if line.strip() and not line.lstrip().startswith("#")), "")
    rest_of_body = visible[:1] in (" ", "\t")
    count, budget = len(lines), PARSED_CHARACTERS
    for _ in range(tries):
        program = "".join(lines[:count])
        budget -= len(program)
        if not count or budget < 0:
            break
        try:
            # An indented body is parsed under an extra first line.
            tree = parse(f"if True:\n{program}" if rest_of_body else program)
        except SyntaxError as error:
            count = min(count - 1, (error.lineno or 1) - 1 - rest_of_body)
            continue
        if not rest_of_body:
            return count, tree.body
        ast.increment_lineno(tree, -1)
        inside = [node for head in tree.body[:1] if isinstance(head, ast.If) for node in head.body]
        return count, [*inside, *tree.body[1:]]
    return 0, []


def _first_lines(lines: Sequence[str], suite: Sequence[ast.stmt]) -> set[int]:
    """The lines, counted from 1, on which steps begin: each right after what the statement before reaches."""
    starts: set[int] = set()
    end = 0
    waiting = [(node, "") for node in reversed(suite)]
    while waiting:  # no recursion: a chain of elif may be longer than calls can be deep
        statement, position = waiting.pop()
        line = _first_line(statement)
        if position != "joins" and line > end:
            while position == "first" and line - 1 > end and lines[line - 2].lstrip()[:1] in ("", "#"):
                line -= 1  # comments go with the statement below them, the end of a head does not
            starts.add(line if position == "first" else end + 1)
        body: list[ast.stmt] = getattr(statement, "body", [])
        cases = getattr(statement, "cases", ())
        if not (body or cases):
            end = max(end, _last_line(statement))
            continue
        end = max(end, _head_end(statement))
        joins = isinstance(statement, ast.Try | ast.TryStar) or (_defines(statement) and _is_text(body[0]))
        inner = [(node, "") for node in body]
        inner[:1] = [(node, "joins" if joins else "first") for node, _ in inner[:1]]
        for part in (*getattr(statement, "handlers", ()), *cases):
            inner += [(node, "") for node in part.body]
        for name in ("orelse", "finalbody"):
            inner += [(node, "") for node in getattr(statement, name, ())]
        waiting += reversed(inner)
    return starts


def _first_line(statement: ast.stmt) -> int:
    decorators: Sequence[ast.expr] = getattr(statement, "decorator_list", ())
    return min([statement.lineno, *(node.lineno for node in decorators)])


def _last_line(node: ast.AST) -> int:
    line: int | None = getattr(node, "end_lineno", None)
    return line or max(map(_last_line, ast.iter_child_nodes(node)), default=0)


def _head_end(statement: ast.stmt) -> int:
    """Last line that an expression of a compound statement's head reaches."""
    parts = (
        node
        for node in ast.iter_child_nodes(statement)
        if not isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case)
    )
    return max([statement.lineno, *map(_last_line, parts)])


def _defines(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)


def _is_text(statement: ast.stmt) -> bool:
    """Whether it is a docstring, by its form."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)
