"""Programs in other languages than Python into steps, by tree-sitter's grammars. Nothing is executed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING

from surefoot.errors import SegmentError
from surefoot.extras import need
from surefoot.segment.spans import Span, tile_at

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

LANGUAGES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "bash": ("tree_sitter_bash", "language"),
        "c": ("tree_sitter_c", "language"),
        "cpp": ("tree_sitter_cpp", "language"),
        "go": ("tree_sitter_go", "language"),
        "java": ("tree_sitter_java", "language"),
        "javascript": ("tree_sitter_javascript", "language"),
        "rust": ("tree_sitter_rust", "language"),
        "typescript": ("tree_sitter_typescript", "language_typescript"),
    }
)
"""Languages by name: the package and function of each grammar."""

ALIASES: Mapping[str, str] = MappingProxyType(
    {"sh": "bash", "shell": "bash", "c++": "cpp", "golang": "go", "js": "javascript"}
    | {"jsx": "javascript", "rs": "rust", "ts": "typescript"}
)
"""Other names that fences have."""

_CONTAINERS = frozenset(
    {"program", "source_file", "translation_unit", "block", "statement_block", "statement_list"}
    | {"compound_statement", "class_body", "interface_body", "declaration_list", "field_declaration_list"}
    | {"do_group", "switch_body", "switch_block", "match_block"}
)
"""Nodes whose parts are statements or declarations each, whatever they are called."""
_STATEMENTS = ("statement", "declaration", "definition", "_item", "command", "clause", "_arm", "_case")
"""Ends of the names of nodes that are steps wherever they stand."""


@dataclass(frozen=True)
class ParsedCode:
    """Steps of a program in one of :data:`LANGUAGES`: each statement with the comments above it.

    A step has whole lines, so statements on one line share a step, and a closing brace goes with its
    block, unless ``else`` and the like follow it. What does not parse is cut as far as the grammar recovers.

    Raises:
        SegmentError: the language is unknown.
        MissingExtraError: tree-sitter is not installed.
    """

    language: str

    def __post_init__(self) -> None:
        if self.language not in LANGUAGES:
            raise SegmentError(f"language is {self.language!r}; choose from {', '.join(LANGUAGES)}")
        for module in ("tree_sitter", LANGUAGES[self.language][0]):
            need(module, f"cutting programs in {self.language}")

    def segment(self, text: str) -> list[Span]:
        """Spans that tile ``text``."""
        # rows of tree-sitter end at "\\n" alone, and its columns are bytes
        rows = text.split("\n")
        starts = [0]
        for line in rows:
            starts.append(starts[-1] + len(line) + 1)
        tree = _parser(self.language).parse(text.encode("utf-8", "surrogatepass"))
        cuts: set[int] = set()
        comments: set[int] = set()
        for node in _nodes(tree.root_node):
            row = node.start_point.row
            indent = rows[row].encode("utf-8", "surrogatepass")[: node.start_point.column]
            if indent.strip(b" \t}"):
                continue
            if node.type.endswith("comment"):
                comments.add(row)
            elif _is_step(node):
                cuts.add(row)
        for row in sorted(comments, reverse=True):  # a comment goes with the statement below it
            if row + 1 in cuts and not rows[row].strip().startswith("}"):
                cuts.discard(row + 1)
                cuts.add(row)
        return tile_at(text, sorted(starts[row] for row in cuts if row))


def _is_step(node: Node) -> bool:
    parent = node.parent
    if node.type in _CONTAINERS:
        return False
    return (parent is not None and parent.type in _CONTAINERS) or node.type.endswith(_STATEMENTS)


def _nodes(root: Node) -> Iterator[Node]:
    """Named nodes below ``root``, without recursion: programs may be nested as deep as they like."""
    waiting = list(root.named_children)
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(node.named_children)


@lru_cache
def _parser(language: str) -> Parser:
    from tree_sitter import Language, Parser

    module, function = LANGUAGES[language]
    return Parser(Language(getattr(import_module(module), function)()))
