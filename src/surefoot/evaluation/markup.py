"""The HTML of reports: first screen, tables and figures, as one page without scripts or other files."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING

from surefoot.evaluation.frame import (
    MEANINGS,
    QUESTIONS,
    Card,
    ExampleStep,
    FirstScreen,
    Origin,
    Question,
    WorkedExample,
    bar,
)
from surefoot.stats.intervals import Cell, format_cell

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE = files("surefoot.evaluation").joinpath("report.css").read_text("utf-8")

SCOPE = ' scope="col"'
LEGEND = "Dot: the value. Line: its 95 % interval. Broken line: the value that it is compared with."
_NEAR = 2
"""Steps of a worked example before and after those that matter; the others are below the report."""


def first_screen(screen: FirstScreen) -> list[str]:
    """Subject, sentence, cards, ranking, what to do next, worked examples and limits."""
    origin = screen.origin
    subject = f"Test of {origin.model} on {origin.data}" if origin.data and origin.model else origin.model
    parts = [f'<p class="soft">{escape(subject or origin.data)}</p>']
    parts.append(f"<h1>{escape(screen.sentence)}</h1>")
    parts.append(f'<div class="cards">{"".join(map(_card, screen.three))}</div>')
    if any(map(bar, screen.three)):
        parts.append(f'<p class="soft">{LEGEND}</p>')
    if terms := "; ".join(f"<b>{term}</b>: {escape(meaning)}" for term, meaning in screen.terms.items()):
        parts.append(f'<p class="soft">{terms}.</p>')
    if screen.next_steps:
        parts.append(f"<h2>What to do next</h2><ul>{''.join(map(_line, screen.next_steps))}</ul>")
    if len(screen.ranking) > 1:
        parts += ["<h2>All scorers, best first</h2>", _ranking(screen)]
    if screen.examples:
        examples = (_example(example, number) for number, example in enumerate(screen.examples))
        parts.append(f'<h2>Examples</h2><div class="examples">{"".join(examples)}</div>')
    if screen.limits:
        parts.append(f"<h2>What limits this</h2><ul>{''.join(map(_line, screen.limits))}</ul>")
    return parts


def _line(text: str) -> str:
    """An item of a list; a command in backticks is set as code."""
    marked = re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))
    return f"<li>{marked}</li>"


def whole_runs(screen: FirstScreen) -> list[str]:
    """Every step of the worked examples, which link here."""
    if not screen.examples:
        return []
    return [
        "<h2>The examples in full</h2>",
        *(
            f"<details><summary>Trace {escape(example.trace_id)}</summary>"
            f'<div id="run-{number}"><p>{escape(example.problem)}</p>{_steps(example.steps, clip=False)}'
            "</div></details>"
            for number, example in enumerate(screen.examples)
        ),
    ]


def how_made(origin: Origin) -> str:
    """The command, its numbers, the date and the version: the end of a report."""
    from surefoot import __version__

    facts = {
        "command": " ".join(f"<code>{escape(word)}</code>" for word in origin.command.split()),
        "numbers": f'<a href="{escape(origin.json)}">{escape(origin.json)}</a>' if origin.json else "",
        "date": escape(origin.date),
        "version": f"surefoot {escape(__version__)}",
    }
    items = (f"<div><dt>{name}</dt><dd>{text}</dd></div>" for name, text in facts.items() if text)
    return f'<h2>How this was made</h2><dl class="facts">{"".join(items)}</dl>'


def _chip(card: Card) -> str:
    kind = card.verdict.partition(" ")[0]
    return f'<span class="chip {kind}">{escape(card.chip)}</span>'


def _card(card: Card) -> str:
    number = f'<p class="big">{escape(card.number)}</p>' if card.number else ""
    return (
        f'<section class="card"><h2>{escape(QUESTIONS[card.question])}</h2>'
        f'<p class="soft">{escape(MEANINGS[card.question])}</p><p>{_chip(card)}</p>{number}'
        f'<p class="soft">{escape(card.text)}</p>{_bar(card)}</section>'
    )


def _bar(card: Card) -> str:
    """The interval as a line with a dot, drawn against a broken line for the null."""
    points = bar(card)
    if points is None:
        return ""
    low, value, high, null = (f"{100 * point:.1f}%" for point in points)
    null_text = format_cell(float(card.null), card.spec) if card.null else "0"
    estimate = format(card.estimate, card.spec)
    label = f"{estimate}, 95 % interval in brackets; broken line at {null_text}"
    anchors = ["start" if point < 0.3 else "end" if point > 0.7 else "middle" for point in points]
    return (
        f'<svg class="bar" role="img" aria-label="{escape(label)}">'
        f'<line x1="{null}" x2="{null}" y1="2" y2="26" stroke="currentColor" stroke-dasharray="3 3"/>'
        f'<line x1="{low}" x2="{high}" y1="14" y2="14" stroke="currentColor" stroke-width="2"/>'
        f'<circle cx="{value}" cy="14" r="5" fill="var(--link)"/>'
        f'<text x="{null}" y="39" text-anchor="{anchors[3]}">{escape(null_text)}</text></svg>'
        f'<p class="soft">95 %: {escape(estimate.partition(" [")[2].rstrip("]").replace(", ", " to "))}</p>'
    )


def _ranking(screen: FirstScreen) -> str:
    """Every scorer with its answers, best first."""
    questions: list[Question] = [
        question
        for question in QUESTIONS
        if any(card.question == question for cards in screen.ranking.values() for card in cards)
    ]
    rows = []
    for number, (name, cards) in enumerate(screen.ranking.items(), 1):
        of = {card.question: card for card in cards}
        cells = [
            f"{_chip(of[question])} {escape(format(of[question].estimate, of[question].spec))}"
            if question in of
            else "not measured here"
            for question in questions
        ]
        row = [str(number), escape(name).replace("_", "_<wbr>"), *cells]
        rows.append(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>")
    head = "".join(f'<th scope="col">{escape(QUESTIONS[question])}</th>' for question in questions)
    return (
        '<div class="scroll ranking" tabindex="0" role="region" aria-label="All scorers"><table><thead><tr>'
        f'<th scope="col">#</th><th scope="col">scorer</th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _example(example: WorkedExample, number: int) -> str:
    matter = [step.number for step in example.steps if step.wrong or step.rejected] or [1]
    near = [
        step
        for step in example.steps
        if min(abs(step.number - at) for at in matter) <= _NEAR or len(example.steps) <= 2 * _NEAR + 2
    ]
    title = escape(example.title) or ("It caught this" if example.caught else "It missed this")
    part = "" if len(near) == len(example.steps) else f" {len(near)} of {len(example.steps)} steps."
    return (
        f'<section class="card"><h2>{title} <span class="soft">'
        f'<a href="#run-{number}">trace {escape(example.trace_id)}</a></span></h2>'
        f'<p class="soft clipped">{escape(example.problem)}</p>'
        f'{_steps(near, clip=True)}<p class="soft">{escape(example.note)}{part}</p></section>'
    )


def _steps(steps: Sequence[ExampleStep], *, clip: bool) -> str:
    rows = []
    for step in steps:
        marks = ["✗ first error (label)"] * step.wrong + [f"▽ {step.rejected}"] * bool(step.rejected)
        notes = "".join(f'<span class="mark">{mark}</span>' for mark in marks)
        text = f'<span class="clipped">{escape(step.text)}</span>' if clip else escape(step.text)
        score = "" if step.score is None or math.isnan(step.score) else f"{step.score:.2f}"
        kind = ' class="wrong"' * step.wrong
        rows.append(
            f'<tr{kind}><td>{step.number}</td><td>{text}{notes}</td><td class="number">{score}</td></tr>'
        )
    return f'<table class="steps"><tbody>{"".join(rows)}</tbody></table>'


def table_html(
    headers: Sequence[str], rows: Sequence[Sequence[Cell]], caption: str = "", spec: str = ".4g"
) -> str:
    """A table that scrolls sideways; numbers align right."""
    numeric = [_is_numeric([row[column] for row in rows]) for column in range(len(headers))]

    def line(tag: str, cells: Sequence[Cell], scope: str = "") -> str:
        kinds = [' class="number"' * right for right in numeric]
        texts = [escape(format_cell(cell, spec)) for cell in cells]
        html = (f"<{tag}{scope}{kind}>{text}</{tag}>" for kind, text in zip(kinds, texts, strict=True))
        return f"<tr>{''.join(html)}</tr>"

    body = "\n".join(line("td", row) for row in rows)
    label = escape(caption or ", ".join(headers))
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table>'
        f"<thead>{line('th', headers, SCOPE)}</thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def _is_numeric(cells: Sequence[Cell]) -> bool:
    values = [cell for cell in cells if cell is not None]
    return bool(values) and not any(isinstance(cell, str) for cell in values)


def svg_of(figure: Figure, *, prefix: str, label: str) -> str:
    """The figure as a transparent ``<svg>`` whose ink is the page's text colour.

    ``prefix`` keeps the ids of several figures on a page distinct.
    """
    import matplotlib as mpl

    buffer = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "surefoot", "svg.fonttype": "path"}):
        figure.savefig(
            buffer,
            format="svg",
            transparent=True,
            metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
        )
    text = buffer.getvalue()
    text = text[text.index("<svg") :].rstrip().replace("#000000", "currentColor")
    text = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}", text)
    return text.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1)
