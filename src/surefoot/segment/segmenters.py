"""Ways to cut a text into steps, and their names.

Programs are cut at whole lines that make up statements. Nothing is executed. A program that does not parse is
cut as far as it does, and at its lines from there on.
"""

from __future__ import annotations

import ast
import heapq
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate
from typing import Literal, Self

from surefoot.errors import SegmentError
from surefoot.maths import BLANK_LINE
from surefoot.protocols import Segmenter
from surefoot.segment.spans import VISIBLE, Span, fences, outside, protected, tile, tile_at

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


_NEWLINE = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True)
class BlankLine:
    """A step ends at one or more blank lines."""

    def segment(self, text: str) -> list[Span]:
        """Spans that tile ``text``."""
        return tile(text, map(re.Match.end, BLANK_LINE.finditer(text)))


@dataclass(frozen=True)
class Line:
    """Each line with a visible character is a step."""

    def segment(self, text: str) -> list[Span]:
        """Spans that tile ``text``."""
        if "\r" in text:
            return tile(text, map(re.Match.end, _NEWLINE.finditer(text)))
        return tile(text, accumulate(len(line) + 1 for line in text.split("\n")))


@dataclass(frozen=True)
class Sentence:
    """A step ends at a full stop, question or exclamation mark before white space, or at a blank line.

    Decimals, common abbreviations (e.g., Fig., Dr.), list numbers at the start of a line (``1. Add``) and
    inline mathematics (``$..$``, ``\\(..\\)``) hold no end of a sentence.
    """

    def segment(self, text: str) -> list[Span]:
        """Spans that tile ``text``."""
        blanks = map(re.Match.end, BLANK_LINE.finditer(text))
        return tile(text, sorted([*_sentence_ends(text), *blanks]), inline=True)


@dataclass(frozen=True)
class Marker:
    """Each match of the regular expression ``pattern`` begins a step ("before") or ends one ("after").

    With "before", text ahead of the first marker joins the first step, so that the step of the k-th marker
    is step k. To make such text a separate step, use "after" with a lookahead: ``(?=Step)``.

    Raises:
        SegmentError: ``pattern`` is empty or no regular expression.
    """

    pattern: str
    where: Literal["before", "after"] = "after"

    def __post_init__(self) -> None:
        if self.where not in ("before", "after"):
            raise SegmentError(f"where is {self.where!r}; choose before or after")
        if not self.pattern:
            raise SegmentError("pattern is empty; give a regular expression that matches the marker")
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise SegmentError(f"pattern {self.pattern!r} is not a regular expression: {error}") from error

    @classmethod
    def step_k(cls) -> Self:
        """``Step k:`` at the start of a line; also ``**Step k:**``, ``## Step k`` and ``step k.``."""
        return cls(
            r"(?mi)^[ \t]*(?:#{1,6}[ \t]*)?(?:\*\*|__)?step[ \t]+[0-9]+(?:\*\*|__)?[ \t]*"
            r"(?:[:.)\u2013\u2014-]|\r?$)",
            "before",
        )

    @classmethod
    def ki(cls) -> Self:
        """``ки``, the step tag of Math-Shepherd (arXiv:2312.08935), where it is not part of a word."""
        return cls(r"(?<![^\W\d_])ки(?!\w)", "after")

    def segment(self, text: str) -> list[Span]:
        """Spans that tile ``text``."""
        matches = re.finditer(self.pattern, text)
        if self.where == "after":
            return tile(text, (match.end() for match in matches))
        blocked = protected(text, inline=False)
        starts = [match.start() for match in matches]
        return tile(text, list(outside(starts, blocked))[1:])


# Whole words at the beginning of a sentence. Common splitters of long reasoning use them; words that also
# open ordinary sentences ("so", "now", "first") are left out.
_TURN = re.compile(
    r"(?:(?:oh|but|or|and|so|ah|no)[,\s]\s{0,4}){0,3}(?:wait|alternatively|hmm+|hold on|actually"
    r"|on second thought|let me (?:re)?(?:check|verify|consider|think|try|compute|calculate|do this)"
    r"|let's (?:re)?(?:check|verify|try)|to (?:verify|double-check)|another (?:way|approach|idea|thought)"
    r"|no, (?:that|this|wait)|(?:that|this) (?:is|seems|can't be) (?:wrong|right|off))\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Thoughts:
    """Long reasoning: a thought ends at a blank line, and before a turn ("Wait", "Alternatively", "Hmm").

    A turn counts at the beginning of a sentence or line. With ``paragraphs=False`` only turns cut, so that a
    thought runs on over paragraphs until the writer changes course. A thought shorter than ``min_length``
    characters that no turn begins joins the one before it.
    """

    paragraphs: bool = True
    min_length: int = 0

    def segment(self, text: str) -> list[Span]:
        """Spans that tile ``text``."""
        starts = heapq.merge(
            ((end, False) for end in _sentence_ends(text)),
            ((match.end(), False) for match in _NEWLINE.finditer(text)),
            ((match.end(), True) for match in BLANK_LINE.finditer(text)),
        )
        cuts, last = [], 0
        reached, turn = -1, False
        for end, paragraph in starts:
            if end > reached:  # once for all ends in one run of white space: this stays linear
                following = VISIBLE.search(text, end)
                if following is None:
                    break
                reached = following.start()
                turn = _TURN.match(text, reached) is not None
            if turn or (paragraph and self.paragraphs and end - last >= self.min_length):
                cuts.append(end)
                last = end
        return tile(text, cuts, inline=True)


_ROCQ = re.compile(
    r"""(?P<string>"(?:[^"]|"")*(?:"|\Z))"""
    r"""|(?P<open>\(\*)|(?P<close>\*\))"""
    r"""|(?P<dots>\.{2,})|(?P<dot>\.)"""
)
_CLOSING = re.compile(r"(?:\s*\})+")
_LEAN_COMMENT = re.compile(r"--[^\n]*|/-.*?(?:-/|\Z)", re.DOTALL)


@dataclass(frozen=True)
class RocqSentences:
    """A step is a sentence of Rocq (formerly Coq), which ends with a period before white space.

    Bullets and ``{`` go with the sentence after them, ``}`` with the one before. Periods in comments and
    strings end nothing, nor do the two of ``..``; three end a sentence after ``Proof with``.
    """

    def segment(self, text: str) -> list[Span]:
        """Spans that tile ``text``."""
        return tile_at(text, _rocq_ends(text))


def _rocq_ends(text: str) -> list[int]:
    ends, depth, at = [], 0, 0
    while match := _ROCQ.search(text, at):
        at = match.end()
        match match.lastgroup:
            case "open":
                depth += 1
            case "close":
                depth = max(depth - 1, 0)
            case "dot" | "dots" if not depth and len(match[0]) != 2 and not text[at : at + 1].strip():
                closing = _CLOSING.match(text, at)
                at = closing.end() if closing else at
                ends.append(at)
    return ends


@dataclass(frozen=True)
class LeanTactics:
    """A step is a tactic of a Lean proof: a line of the least indentation, with the deeper lines after it."""

    def segment(self, text: str) -> list[Span]:
        """Spans that tile ``text``."""
        hidden = [False] * len(text)
        for comment in _LEAN_COMMENT.finditer(text):
            hidden[comment.start() : comment.end()] = [True] * (comment.end() - comment.start())
        starts, at = [], 0
        for line in text.splitlines(keepends=True):
            first = at + len(line) - len(line.lstrip())
            if line.strip() and not hidden[first]:
                starts.append((at, first - at))
            at += len(line)
        least = min((indent for _, indent in starts), default=0)
        return tile_at(text, [start for start, indent in starts if indent == least and start])


_NAMED: dict[str, Callable[[], Segmenter]] = {
    "blank-line": BlankLine,
    "line": Line,
    "sentence": Sentence,
    "thoughts": Thoughts,
    "turns": partial(Thoughts, paragraphs=False),
    "step-k": Marker.step_k,
    "ki": Marker.ki,
    "python": PythonCode,
    "prose-and-code": ProseAndCode,
    "rocq": RocqSentences,
    "lean": LeanTactics,
}


@lru_cache(maxsize=64)
def segmenter(name: str) -> Segmenter:
    """Segmenter by name: blank-line, line, sentence, thoughts, turns, step-k, ki, python, prose-and-code,
    rocq, lean, or ``regex:PATTERN``.

    A match of PATTERN ends a step.

    Raises:
        SegmentError: there is none of this name, or the pattern is broken.
    """
    if name.startswith("regex:"):
        return Marker(name.removeprefix("regex:"), "after")
    if name not in _NAMED:
        raise SegmentError(f"no segmenter is called {name!r}; choose from {', '.join(_NAMED)}, regex:PATTERN")
    return _NAMED[name]()


def segmenter_name(cutter: Segmenter) -> str:
    """The name of ``cutter``, as :func:`segmenter` takes it; the name of its class if it has none."""
    for name in _NAMED:
        if segmenter(name) == cutter:
            return name
    if isinstance(cutter, Marker) and cutter.where == "after":
        return f"regex:{cutter.pattern}"
    return type(cutter).__name__


# The lookbehind keeps a run of stops from being scanned again from each of its members.
_SENTENCE_END = re.compile(r"""(?<![.!?…])[.!?…]+["'”’»)\]}*_]*(?=\s)|(?<![。！？])[。！？]+["'”’»」』）]*""")
_WORD_BEFORE = re.compile(r"[\w.]+\Z")
_LIST_NUMBER = re.compile(r"[0-9]{1,3}|[a-zA-Z]|[ivxIVX]{1,4}")
_ABBREVIATIONS = frozenset(
    {"e.g", "i.e", "cf", "viz", "vs", "approx", "resp", "w.r.t", "s.t", "a.k.a", "fig", "figs", "eq", "eqs",
     "thm"}
)  # fmt: skip
_TITLES = frozenset(("Dr", "Mr", "Mrs", "Ms", "Prof", "St"))
_OFTEN_LAST = frozenset(("etc", "al", "ca", "inc", "ltd", "a.m", "p.m", "u.s", "u.k"))
_BEFORE_NUMBER = frozenset(("no", "nos", "p", "pp", "vol", "sec", "ch", "prop", "def", "cor", "art"))


def _sentence_ends(text: str) -> Iterator[int]:
    """Character after each full stop, question or exclamation mark (with closing quotes) of a sentence."""
    return (match.end() for match in _SENTENCE_END.finditer(text) if not _abbreviates(text, match))


def _abbreviates(text: str, stop: re.Match[str]) -> bool:
    """Whether the full stop ends an abbreviation or a list number, and not the sentence."""
    at = stop.start()
    if stop.group() != ".":
        return False
    match = _WORD_BEFORE.search(text, max(0, at - 16), at)
    word = match.group() if match else ""
    if word.lower() in _ABBREVIATIONS or word in _TITLES:
        return True
    following = VISIBLE.search(text, stop.end())
    if word.lower() in _OFTEN_LAST:
        return following is not None and not following.group().isupper()
    if word.lower() in _BEFORE_NUMBER:
        return following is not None and following.group().isdigit()
    return _LIST_NUMBER.fullmatch(word) is not None and _opens_line(text, at - len(word))


def _opens_line(text: str, at: int) -> bool:
    near = max(0, at - 16)  # bounded, so that one long line costs no more than many short ones
    newline = max(text.rfind("\n", near, at), text.rfind("\r", near, at))
    if newline < 0 and near > 0:
        return False
    return not text[max(newline + 1, near) : at].strip(" \t-*#>(")
