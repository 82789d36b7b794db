"""Saved trees as pictures: lines of text for a terminal, SVG for a page. Equal trees, equal bytes."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from surefoot.search.saved_tree import SavedNode, SavedTree

_MARK = "▶ "
_LOW, _MIDDLE, _HIGH = (244, 165, 130), (247, 247, 247), (146, 197, 222)
"""Orange to blue, light enough for black text; told apart by colour-blind readers."""
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_HEIGHT, _GAP_X, _GAP_Y, _MARGIN, _HEAD = 24, 36, 8, 16, 44
_CHARACTER = 6.7
"""Width of one column of an 11 px monospace font, a little more than the 0.6 em that is usual."""


def draw_text(tree: SavedTree, *, width: int = 110) -> str:
    """The tree as lines: value, the step's own score in brackets where it differs, times drawn, step.

    Lines of the chosen solution begin with ``▶``. Steps are shortened so that lines have ``width`` columns,
    but to no less than 20. What a terminal would obey, such as an escape code in a step, is shown as ``�``.
    Ends in a line break.
    """
    chosen, scored, children = set(tree.chosen), _scored(tree), tree.children
    lines = [shorten(tree.problem, width), *(shorten(line, width) for line in _headlines(tree))]
    waiting = [(child, "", child == children[0][-1]) for child in reversed(children[0])]
    while waiting:
        place, indent, last = waiting.pop()
        node = tree.nodes[place]
        mark = _MARK if place in chosen else " " * len(_MARK)
        start = f"{mark}{indent}{'└' if last else '├'} {_numbers(node, scored)}"
        end = "" if node.finish is None else f"  [{shorten(node.finish, 20)}]"
        room = max(20, width - len(start) - len(end))
        lines.append(f"{start}{shorten(node.text, room) or '(no more)'}{end}")
        below = children[place]
        further = indent + ("  " if last else "│ ")
        waiting += [(child, further, child == below[-1]) for child in reversed(below)]
    return "\n".join(lines) + "\n"


def draw_svg(tree: SavedTree, *, box: int = 220) -> str:
    """The tree from left to right as an SVG document that needs nothing else; boxes are ``box`` px wide.

    A box is a step, coloured by its value (white and dashed: it has none), the whole step and its numbers in
    its title, shown where the pointer rests. The chosen solution is drawn bold, greedy steps of a lookahead
    have dashed lines. Boxes do not overlap: a solution's end has a row for itself, and a step stands in the
    middle of its children's rows. Raises ``ValueError`` for boxes less than 60 px wide.
    """
    if box < 60:
        raise ValueError(f"'box' must be 60 or more, not {box}")
    places = _layout(tree, box)
    scale = _Scale.of(tree)
    chosen = {0, *tree.chosen} if tree.chosen else set()
    right = max(place.x for place in places) + box + _MARGIN
    bottom = max(place.y for place in places) + _HEIGHT + _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{right}" height="{bottom:g}" '
        f'viewBox="0 0 {right} {bottom:g}" font-family="ui-monospace, monospace" font-size="11">',
        f"<title>{_xml(_headlines(tree)[0])}</title>",
        f'<rect width="{right}" height="{bottom:g}" fill="#ffffff"/>',
        *_heading(tree, scale, right - 2 * _MARGIN),
        *(_edge(node, places, box, chosen) for node in tree.nodes[1:]),
        *(_box(tree, node, places[node.id], box, scale, bold=node.id in chosen) for node in tree.nodes),
    ]
    return "\n".join(parts) + "\n</svg>\n"


def shorten(text: str, columns: int) -> str:
    """One line of at most ``columns`` columns; what does not fit is an ellipsis in the middle.

    White space becomes single blanks; characters that do not print become ``�``. Wide characters, as of
    Chinese, take two columns.
    """
    clean = "".join(c if c.isprintable() else "\ufffd" for c in " ".join(text.split()))
    if _columns(clean) <= columns:
        return clean
    room = columns - 1
    head = _fitting(clean, room - room // 3)
    tail = _fitting(clean[::-1], room - _columns(head))[::-1]
    return f"{head}…{tail}"


@dataclass(frozen=True, kw_only=True)
class _Place:
    x: int
    y: float


@dataclass(frozen=True, kw_only=True)
class _Scale:
    """From values to colours: 0 to 1, or what the tree spans where a value lies outside."""

    low: float
    high: float

    @classmethod
    def of(cls, tree: SavedTree) -> _Scale | None:
        values = [node.value for node in tree.nodes if node.value is not None]
        if not values:
            return None
        return cls(low=min(0.0, *values), high=max(1.0, *values))

    def colour(self, value: float) -> str:
        share = (value - self.low) / (self.high - self.low)
        ends = (_LOW, _MIDDLE) if share < 0.5 else (_MIDDLE, _HIGH)
        part = 2 * share - (share >= 0.5)
        return "#" + "".join(f"{round(a + (b - a) * part):02x}" for a, b in zip(*ends, strict=True))


def _headlines(tree: SavedTree) -> list[str]:
    """What was searched and found, and how to read the numbers."""
    verdict = {True: "right", False: "wrong", None: "not judged"}[tree.outcome]
    found = "no solution" if not tree.chosen else f"answer {tree.answer or 'not found'} ({verdict})"
    first = f"{tree.method}, seed {tree.seed}: {tree.size} steps, {found}"
    return [first, "value (step alone) ×drawn, ▶ chosen"] if _scored(tree) else [first, "×drawn, ▶ chosen"]


def _scored(tree: SavedTree) -> bool:
    return any(node.value is not None or node.reason for node in tree.nodes)


def _numbers(node: SavedNode, scored: bool) -> str:
    parts = []
    if scored:
        parts.append("n/a" if node.value is None else f"{node.value:.3f}")
        if node.score is not None and node.score != node.value:
            parts.append(f"({node.score:.3f})")
    if node.seen > 1:
        parts.append(f"×{node.seen}")
    return " ".join(parts) + "  " if parts else ""


def _layout(tree: SavedTree, box: int) -> list[_Place]:
    """Ends get rows in the order in which the tree is walked, parents the middle of their children."""
    children = tree.children
    column = [0] * len(tree.nodes)
    for node in tree.nodes[1:]:
        column[node.id] = column[node.parent or 0] + 1
    rows: dict[int, float] = {}
    for place in _walk(children):
        if not children[place]:
            rows[place] = len(rows)
    for node in reversed(tree.nodes):  # children come after their parents
        if below := children[node.id]:
            rows[node.id] = (rows[below[0]] + rows[below[-1]]) / 2
    return [
        _Place(x=_MARGIN + column[k] * (box + _GAP_X), y=_MARGIN + _HEAD + rows[k] * (_HEIGHT + _GAP_Y))
        for k in range(len(tree.nodes))
    ]


def _walk(children: Sequence[Sequence[int]]) -> list[int]:
    order, waiting = [], [0]
    while waiting:
        place = waiting.pop()
        order.append(place)
        waiting += reversed(children[place])
    return order


def _heading(tree: SavedTree, scale: _Scale | None, width: int) -> list[str]:
    lines = [_headlines(tree)[0]]
    if scale:
        lines.append(f"colour: value from {scale.low:g} (orange) to {scale.high:g} (blue)")
    fitting = math.floor(width / _CHARACTER)
    return [
        f'<text x="{_MARGIN}" y="{_MARGIN + 12 + 16 * row}">{_xml(shorten(line, fitting))}</text>'
        for row, line in enumerate(lines)
    ]


def _edge(node: SavedNode, places: Sequence[_Place], box: int, chosen: set[int]) -> str:
    """A curve through the gap between two columns, where no box stands."""
    above, below = places[node.parent or 0], places[node.id]
    x, y, end = above.x + box, above.y + _HEIGHT / 2, below.y + _HEIGHT / 2
    middle = x + _GAP_X // 2
    width, colour = ("3", "#1b1f24") if node.id in chosen else ("1", "#8c959f")
    dashes = ' stroke-dasharray="4 3"' if node.ahead else ""
    return (
        f'<path d="M{x} {y:g}C{middle} {y:g} {middle} {end:g} {below.x} {end:g}" fill="none" '
        f'stroke="{colour}" stroke-width="{width}"{dashes}/>'
    )


def _box(
    tree: SavedTree, node: SavedNode, place: _Place, box: int, scale: _Scale | None, *, bold: bool
) -> str:
    text, details = node.text, _details(node)
    if node.parent is None:
        text, details = tree.problem, [f"problem {tree.problem_id}", tree.problem]
    line = 'stroke="#1b1f24" stroke-width="3"' if bold else 'stroke="#8c959f"'
    if scale is not None and node.value is not None:
        fill = scale.colour(node.value)
    else:
        fill = "#ffffff"
        line += ' stroke-dasharray="4 3"' if scale is not None and node.parent is not None else ""
    value = "" if node.value is None else f"{node.value:.2f} "
    shown = value + (shorten(text, math.floor((box - 12) / _CHARACTER) - len(value)) or "(no more)")
    weight = ' font-weight="bold"' if bold else ""
    # an inner svg cuts off what it holds: no font makes a step run into its neighbours
    return (
        f'<svg x="{place.x}" y="{place.y:g}" width="{box}" height="{_HEIGHT}">'
        f"<title>{_xml(chr(10).join(details))}</title>"
        f'<rect x="1.5" y="1.5" width="{box - 3}" height="{_HEIGHT - 3}" rx="4" fill="{fill}" {line}/>'
        f'<text x="6" y="16"{weight}>{_xml(shown)}</text></svg>'
    )


def _details(node: SavedNode) -> list[str]:
    lines = [node.text or "(the policy wrote no more)"]
    for name, number in (("value", node.value), ("score of this step", node.score)):
        if number is not None:
            lines.append(f"{name}: {number:.6g}")
    if node.value is None and node.reason:
        lines.append(f"not scored: {node.reason}")
    lines.append(f"drawn: {node.seen}, tokens: {node.tokens}")
    if node.finish is not None:
        lines.append(f"ends: {node.finish}")
    return lines


def _columns(text: str) -> int:
    return sum(_width(character) for character in text)


def _width(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _fitting(text: str, columns: int) -> str:
    """The longest beginning of so many columns."""
    used = 0
    for place, character in enumerate(text):
        used += _width(character)
        if used > columns:
            return text[:place]
    return text


def _xml(text: str) -> str:
    return escape(_NOT_XML.sub("\ufffd", text))
