"""Results as tables, and a report as one self-contained HTML file: no network, no script, equal bytes for
equal input.

Its first screen has a sentence, the rivals, what works, is open or is weak, and examples. Sentence and lines
come from verdicts (:mod:`surefoot.evaluation.verdict`).

A measure is declared once, as the field of a result. Its name is the key in the JSON file and the header of
its column on the page and in the terminal, and the docstring of its class is the caption of the table.
"""

from __future__ import annotations

import inspect
import io
import logging
import math
import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache, partial
from html import escape
from importlib.resources import files
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Self

from pydantic import BaseModel

from surefoot.display import ShownImage, shown_images
from surefoot.errors import counted
from surefoot.evaluation.measures import Measured
from surefoot.evaluation.verdict import WORDS, Conclusion, headline, next_step
from surefoot.extras import installed
from surefoot.extras import sentence as extra_sentence
from surefoot.io.atomic import atomic_file
from surefoot.printable import printable
from surefoot.protocols import ProblemTrace
from surefoot.stats.intervals import Cell, Interval, format_cell

if TYPE_CHECKING:
    from jinja2 import Template
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Tested = Literal[
    "wrong steps on held-out problems",
    "wrong steps on public benchmarks",
    "choosing among samples",
    "calibration of scores",
    "label noise",
    "judge against people",
    "edits that raise a score",
    "outcome leakage",
    "correct answers with a wrong step",
    "other domains",
    "over-optimisation",
    "reworded agent runs",
    "faithfulness of reasoning",
    "monitoring of runs",
    "accuracy of the trained policy",
]
"""What a result can be a test of. A card lists those that no run made."""

TERMS: Mapping[str, str] = {
    "PRM": "a model that scores every step",
    "ORM": "a model that scores whole answers",
    "AUC": "the chance that a right step gets a higher score than a wrong one; guessing gives 0.5",
    "F1": "the harmonic mean of two shares: first errors found, and correct solutions accepted",
    "best of": "of several sampled answers, the one with the best score is used",
    "majority vote": "the answer that most samples agree on is used",
    "ECE": "how far scores, read as probabilities, are from the shares that are true",
}
"""Terms of the field that cards use, for readers who meet them here first."""


@dataclass(frozen=True, kw_only=True)
class Rival:
    """One row of a report's plot."""

    name: str
    value: Interval
    kind: Literal["ours", "rival", "ceiling"] = "rival"
    """A ceiling is not available in practice, such as the share of problems with a correct sample."""


@dataclass(frozen=True, kw_only=True)
class ExampleStep:
    """One step of a worked example."""

    number: int
    """From 1."""
    text: str
    score: float | None = None
    wrong: bool = False
    """Whether it is the first error by its label."""
    rejected: str = ""
    """For the first step below the threshold, or the first that a judge calls wrong: which of the two."""


@dataclass(frozen=True, kw_only=True)
class WorkedExample:
    """A trace whose first error the scorer found (caught) or not, or that it wrongly rejects."""

    title: str
    caught: bool
    trace_id: str
    problem: str
    steps: Sequence[ExampleStep]
    note: str
    """What happened, in one sentence."""
    images: Sequence[ShownImage] = ()

    @property
    def near(self) -> list[ExampleStep]:
        """The steps that matter with two before and after each; all of a short trace."""
        matter = [step.number for step in self.steps if step.wrong or step.rejected] or [1]
        short = len(self.steps) <= 2 * _NEAR + 2
        return [step for step in self.steps if short or min(abs(step.number - at) for at in matter) <= _NEAR]


_NEAR = 2
_IMAGE: Final = 2 * 2**20
"""Characters of the data URL of one image; a page has each at most twice."""
_IMAGES: Final = 2 * _IMAGE
"""Characters of the data URLs of one example."""


@dataclass(frozen=True, kw_only=True)
class JudgedTrace:
    """A trace with its labelled first error and a scorer's prediction, from which examples are chosen."""

    item: ProblemTrace
    error: int
    """0-based index of the first error by the labels; -1 for none."""
    predicted: int | None
    """0-based index of the first step below the threshold; -1 for none, ``None`` without a verdict."""
    scores: Sequence[float | None] = ()
    """Empty for a judge's labels."""
    threshold: float | None = None


def worked_examples(traces: Iterable[JudgedTrace], images: Path | None = None) -> list[WorkedExample]:
    """A trace whose first error was found, one whose first error was not, and a right one with a rejected
    step: the shortest of each, with the images that it keeps in the folder ``images`` of the records' file.
    If there are none, one without a verdict.

    Traces of one step or with an empty step are passed over if there are others.
    """

    def order(judged: JudgedTrace) -> tuple[bool, int, str]:
        trace = judged.item.trace
        texts = [trace.step_text(step).strip() for step in range(len(trace.steps))]
        return len(texts) < 2 or not all(texts), sum(map(len, texts)), trace.id

    shortest: dict[str, JudgedTrace] = {}
    for judged in traces:
        if judged.predicted == judged.error == _NO_STEP:
            continue
        title = _CAUGHT if judged.predicted == judged.error else _MISSED
        title = _FALSE_ALARM if judged.error == _NO_STEP else title
        title = _SILENT if judged.predicted is None else title
        if title not in shortest or order(judged) < order(shortest[title]):
            shortest[title] = judged
    titles = [title for title in _KINDS if title in shortest] or [*shortest]
    return [_example(shortest[title], title, images) for title in titles]


_NO_STEP = -1
_KINDS = _CAUGHT, _MISSED, _FALSE_ALARM = "It caught this", "It missed this", "A false alarm"
_SILENT = "It gave no verdict on this"


def _example(judged: JudgedTrace, title: str, images: Path | None) -> WorkedExample:
    trace, predicted, scores, cut = judged.item.trace, judged.predicted, judged.scores, judged.threshold
    rejected = "first called wrong" if cut is None else f"first score below {cut:.2g}"
    first = judged.error + 1
    note = f"Step {first} is the first error" if first else "No step is wrong by its label"
    if title == _CAUGHT:
        note += ", and the first step that it rejects."
    elif predicted is None:
        note += "; it gave no verdict."
    else:
        note += f"; it rejects {'no step' if predicted == _NO_STEP else f'step {predicted + 1} first'}."
    return WorkedExample(
        title=title,
        caught=title == _CAUGHT,
        trace_id=trace.id,
        problem=judged.item.problem.text,
        steps=[
            ExampleStep(
                number=step + 1,
                text=trace.step_text(step).strip(),
                score=scores[step] if scores else None,
                wrong=step == judged.error,
                rejected=rejected if step == predicted else "",
            )
            for step in range(len(trace.steps))
        ],
        note=note,
        images=() if images is None else [*shown_images(trace, images, each=_IMAGE, most=_IMAGES)],
    )


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a report comes from; empty parts are left out."""

    data: str = ""
    model: str = ""
    command: str = ""
    json: str = ""
    """Name of the JSON file in the page's folder."""
    date: str = ""


@dataclass(frozen=True, kw_only=True)
class FirstScreen:
    """What a reader sees first."""

    sentence: str
    verdicts: Sequence[Conclusion] = ()
    """On the scorer that the sentence is about."""
    ranking: Mapping[str, str] = field(default_factory=dict)
    """The sentence on every scorer, best first; shown if there are several."""
    claims: Sequence[Sequence[Conclusion]] = ()
    """The verdicts on each scorer of the ranking."""
    scorers: Sequence[str] = ()
    """The whole name of each; in the ranking scorers of one file go by the last part."""
    rivals: Sequence[Rival] = ()
    measure: str = ""
    """What the rivals' values are."""
    advice: Sequence[str] = ()
    """At most two things to do, from the data."""
    examples: Sequence[WorkedExample] = ()
    limits: Sequence[str] = ()
    origin: Origin = Origin()

    @property
    def ordered(self) -> list[Conclusion]:
        """The verdicts: the good first, then the open, then the weak."""
        return sorted(self.verdicts, key=lambda one: list(WORDS).index(one.tone))

    @property
    def terms(self) -> dict[str, str]:
        """The entries of :data:`TERMS` that the sentence and the verdicts use."""
        text = " ".join([self.sentence, *(verdict.detail for verdict in self.verdicts)])
        return {term: meaning for term, meaning in TERMS.items() if re.search(rf"\b{term}\b", text)}

    def lines(self) -> list[str]:
        """The first screen in a terminal."""
        rivals = list(self.ranking.values())[1:_OTHERS]
        return [
            self.sentence,
            *(f"- {verdict.line}" for verdict in self.ordered),
            *(f"{number}. {text}" for number, text in enumerate(rivals, 2)),
            *(f"Next: {text}" for text in self.advice),
        ]


_OTHERS = 6
"""Scorers in a terminal; the page has all."""
_ADVICE = 2


def value_order(verdicts: Sequence[Conclusion]) -> tuple[int, float]:
    """The better scorer first, by its first verdict: its tone, then how far above its rival."""
    if not verdicts:
        return 3, 0.0
    first = verdicts[0]
    above = first.estimate.value - first.null if first.measured else -math.inf
    return list(WORDS).index(first.tone) if first.measured else 3, -above


_LOG = logging.getLogger("surefoot.evaluation")
PRINTED_ROWS = 60
"""Rows of a table that ``--tables`` prints; the page has all of them."""
STEP_KEYS = ("by_step",)
"""Keys of results that are indices of steps: from 0 in the JSON file, from 1 in tables and plots."""
_LISTED = 8
"""Longest list that a cell holds."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table; floats and intervals are formatted with ``spec``.

    Raises ``ValueError`` for a row that is not as long as ``headers``.
    """

    caption: str
    headers: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    spec: str = ".4g"

    def __post_init__(self) -> None:
        for number, row in enumerate(self.rows):
            if len(row) != (width := len(self.headers)):
                raise ValueError(f"rows[{number}] has {len(row)} cells, but there are {width} headers")

    @property
    def numeric(self) -> list[bool]:
        """For each column whether it has numbers alone, which align right."""
        columns = ([cell for cell in column if cell is not None] for column in zip(*self.rows, strict=True))
        kinds = [bool(cells) and not any(isinstance(cell, str) for cell in cells) for cells in columns]
        return kinds or [False] * len(self.headers)


class Measures(NamedTuple):
    """One row of a result."""

    about: str
    """First sentence on its class."""
    keys: dict[str, Cell]
    """Names that identify the row, such as its scorer and subset."""
    values: dict[str, Cell]


@dataclass(frozen=True)
class Plot:
    """Measures of a result as lines."""

    rows: str
    """Path of the rows in the result, such as ``scores.subsets``."""
    caption: str
    y: Sequence[str] = ()
    """Measures, the second dashed. By default all of a row against their names (such as N)."""
    x: str = ""
    """Key or measure, with ``y``."""
    where: Mapping[str, Collection[str]] = field(default_factory=dict)
    """Values of keys of the rows to draw; all by default."""
    log: bool = False
    diagonal: bool = False


@dataclass(frozen=True, kw_only=True)
class Section:
    """A result as a part of a report, for the page, the terminal and the JSON file."""

    title: str
    about: str
    results: Any
    """A data class, or several by name; each data class in it becomes a row of a table."""
    plots: Sequence[Plot] = ()
    verdicts: Mapping[str, Sequence[Conclusion]] = field(default_factory=dict)
    """On each scorer; the first decides its rank."""
    rivals: Sequence[Rival] = ()
    """Rows of the main plot; by default the estimates of the scorers' first verdicts."""
    measure: str = ""
    """What the rivals' values are."""
    advice: Sequence[str] = ()
    """What to do, from the data."""
    limits: Sequence[str] = ()
    """What limits the result: numbers, domain, excluded data."""
    sentence: str = ""
    """Replaces the sentence that the verdicts make."""
    tested: Tested | None = None
    """What it is a test of."""
    examples: Sequence[WorkedExample] = ()


def rows_of(results: Any) -> dict[str, list[Measures]]:
    """The rows of each table of a result by its path."""
    rows: dict[str, list[Measures]] = {}
    _collect(results, (), {}, rows)
    return rows


def first_screen_of(
    sections: Sequence[Section], origin: Origin, examples: Sequence[WorkedExample] = ()
) -> FirstScreen:
    """What the sections say together, on the best scorer first."""
    sections = sorted(sections, key=lambda section: not section.rivals)
    names = dict.fromkeys(name for section in sections for name in section.verdicts)
    folders = {name.rpartition("/")[0] for name in names}
    short = len(names) > 1 and len(folders) == 1  # scorers of one file are called file/scorer
    verdicts: dict[str, list[Conclusion]] = {name: [] for name in names}
    for section in sections:
        for name, claims in section.verdicts.items():
            verdicts[name] += [replace(claim, tested=section.tested or "") for claim in claims]
    order = sorted(names, key=lambda name: value_order(verdicts[name]))
    title = {name: name.rpartition("/")[2] if short else name for name in order}
    ranking = {title[name]: headline(title[name], verdicts[name]) for name in order}
    sentences = [section.sentence for section in sections if section.sentence] or list(ranking.values())[:1]
    first = sections[0]
    firsts = [(title[name], verdicts[name][0]) for name in order if verdicts[name]]
    advice = [text for section in sections for text in section.advice]
    advice = advice or [next_step(*first, origin.command) for first in firsts[:1]]
    ours = [Rival(name=name, value=claim.estimate, kind="ours") for name, claim in firsts if claim.measured]
    floors = {claim.rival: claim.null for _, claim in firsts if claim.measured and claim.rival}
    free = [Rival(name=name, value=Interval(value=x, low=x, high=x)) for name, x in floors.items()]
    return FirstScreen(
        sentence=" ".join(sentences) or f"{sections[0].title}: nothing was measured.",
        verdicts=verdicts[order[0]] if order else [],
        ranking=ranking,
        claims=[verdicts[name] for name in order],
        scorers=order,
        rivals=first.rivals or [*ours[: _ROWS - len(free)], *free],
        measure=first.measure or next((claim.detail.removeprefix("is ") for _, claim in firsts), ""),
        advice=list(dict.fromkeys(advice))[:_ADVICE],
        examples=examples,
        limits=list(dict.fromkeys(limit for section in sections for limit in section.limits)),
        origin=origin,
    )


def _collect(
    value: Any, path: tuple[str, ...], keys: dict[str, Cell], rows: dict[str, list[Measures]]
) -> None:
    """Add the rows of ``value``; leading texts of a data class or of figures, or the
    ``name``, are keys of all below it."""
    if isinstance(value, list | tuple):
        for item in value:
            _collect(item, path, keys, rows)
        return
    by_group = isinstance(value, Mapping) and not isinstance(value, Measured)
    parts = dict(value) if isinstance(value, Mapping) else _attributes(value)
    if path and not by_group:
        leading = dict(takewhile(lambda part: part[1] is None or isinstance(part[1], str), parts.items()))
        named = {"name": parts["name"]} if "name" in parts else leading
        hidden = named if "name" in leading else named | leading
        keys, parts = keys | named, {name: part for name, part in parts.items() if name not in hidden}
    cells = {str(name): _cell(part) for name, part in parts.items() if _is_cell(part)}
    if cells:
        about = "" if isinstance(value, Mapping) else (inspect.getdoc(type(value)) or "").split("\n\n")[0]
        rows.setdefault(".".join(path), []).append(Measures(about.replace("``", ""), keys, cells))
    for name, part in parts.items():
        if _is_cell(part):
            continue
        if by_group and path:
            _collect(part, path, keys | {path[-1]: from_1(name) if path[-1] in STEP_KEYS else name}, rows)
        elif part is not None:
            _collect(part, (*path, name), keys, rows)


def from_1(index: str | int) -> str:
    """An index of a step, or a range of them such as ``5-6`` or ``10+``, as people count: from 1."""
    return re.sub(r"\d+", lambda number: str(int(number[0]) + 1), str(index))


def _attributes(value: Any) -> dict[str, Any]:
    """Fields, and properties that are cells."""
    if isinstance(value, BaseModel):
        return dict(value)
    parts = {field.name: getattr(value, field.name) for field in fields(value)}
    properties = [name for name, _ in inspect.getmembers(type(value), lambda m: isinstance(m, property))]
    return parts | {name: cell for name in properties if _is_cell(cell := getattr(value, name))}


def _is_cell(part: Any) -> bool:
    if isinstance(part, list | tuple):
        return all(isinstance(item, str | int | float) for item in part)
    return part is None or isinstance(part, str | int | float | Interval)


def _cell(part: Any) -> Cell:
    if isinstance(part, list | tuple):
        return ", ".join(format_cell(item) for item in part[:_LISTED]) + ", …" * (len(part) > _LISTED)
    return ("no", "yes")[part] if isinstance(part, bool) else part


def _table(path: str, rows: Sequence[Measures]) -> Table:
    """The rows of one path; columns without any value are left out. A result's own values form a list."""
    about = " ".join(rows[0].about.split())
    if not path:
        return Table(
            caption=about,
            headers=["item", "value"],
            rows=[(_header(name), value) for name, value in rows[0].values.items()],
        )
    cells = [row.keys | row.values for row in rows]
    names = list(dict.fromkeys([name for row in rows for name in row.keys]))
    names = list(dict.fromkeys([*names, *(name for row in rows for name in row.values)]))
    names = [name for name in names if any(row.get(name) not in (None, "") for row in cells)]
    return Table(
        caption=f"{_header(path)}: {about}" if about else _header(path),
        headers=[_header(name) for name in names],
        rows=[[row.get(name) for name in names] for row in cells],
    )


def _header(path: str) -> str:
    words = path.replace(".", ", ").split("_")
    return " ".join(word.upper() if word in {"auc", "ece", "f1"} else word for word in words)


class Report:
    """Collects parts in order and writes them as one page; each call returns the report, for chaining."""

    def __init__(self, title: str, first: FirstScreen | None = None) -> None:
        self._title, self._first = title, first
        self._parts: list[tuple[str, object]] = []
        self._figures = 0
        self._says_no_plots = False
        self.printed: list[str | Table] = []
        """Paragraphs and tables of sections for the terminal."""

    def heading(self, text: str) -> Self:
        """Start a section."""
        return self._add("heading", text)

    def text(self, paragraph: str) -> Self:
        """Add a paragraph of plain text; markup in it is escaped."""
        return self._add("text", paragraph)

    def table(self, headers: Sequence[str], rows: Sequence[Sequence[Cell]], caption: str = "") -> Self:
        """Add a table, which shows its caption until the reader opens it; it is open on paper.

        Raises ``ValueError`` if a row is not as long as ``headers``.
        """
        return self._add("table", Table(caption=caption, headers=headers, rows=rows))

    def tables(self, results: Any) -> Self:
        """Add the tables of a result, which are printed as well unless a cell has several lines."""
        for path, of_path in rows_of(results).items():
            table = _table(path, of_path)
            self._add("table", table)
            if any("\n" in str(cell) for row in table.rows for cell in row):
                continue
            self.printed.append(replace(table, rows=table.rows[:PRINTED_ROWS], spec=".3f"))
            if len(table.rows) > PRINTED_ROWS:
                more = counted(len(table.rows) - PRINTED_ROWS, "more row")
                self.printed.append(f"{more} in the report")
        return self

    def figure(self, draw: Callable[[], Figure | None], caption: str) -> Self:
        """Add the matplotlib figure that ``draw`` makes, if any, as inline SVG.

        ``caption`` is also what a screen reader says. Without matplotlib figures are left out, and
        the report says so once.
        """
        if not installed("matplotlib"):
            why = f"Plots are left out: they need {extra_sentence('matplotlib')}"
            if not self._says_no_plots:
                self._says_no_plots = True
                _LOG.warning(why)
                self.text(f"{why}.")
            return self
        if (figure := draw()) is None:
            return self
        self._figures += 1
        svg = svg_of(figure, prefix=f"f{self._figures}-", label=caption)
        return self._add("figure", {"svg": svg, "caption": caption})

    def section(self, section: Section) -> Self:
        """Add a result; the terminal gets its text and the tables without multi-line cells."""
        self.heading(section.title)
        self.printed.append(f"\n{section.title}")
        self.text(section.about)
        self.printed.append(section.about)
        rows = rows_of(section.results)
        for plot in section.plots:
            self.figure(partial(plot_figure, plot, rows), plot.caption)
        return self.tables(section.results)

    def html(self) -> str:
        """The whole page."""
        from surefoot import __version__

        return _template().render(
            title=self._title,
            first=self._first,
            plot=self._first and _rivals(self._first),
            parts=self._parts,
            style=STYLE,
            words=WORDS,
            version=__version__,
        )

    def write(self, path: Path | str) -> Self:
        """Write the page to ``path``, atomically."""
        with atomic_file(Path(path)) as stream:
            stream.write(self.html().encode("utf-8"))
        return self

    def _add(self, kind: str, part: object) -> Self:
        self._parts.append((kind, part))
        return self


def to_json(value: Any) -> Any:
    """``value`` as JSON data, through data classes, records, mappings and lists; NaN becomes ``None``.

    A field that a ``repr`` leaves out, such as the bytes of an image, is left out.
    """
    if is_dataclass(value):
        return {field.name: to_json(getattr(value, field.name)) for field in fields(value) if field.repr}
    if isinstance(value, BaseModel):
        return to_json(value.model_dump())
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value


STYLE = files("surefoot.evaluation").joinpath("report.css").read_text("utf-8")
_ROWS = 7
"""Rivals in the main plot."""


@cache
def _template() -> Template:
    from jinja2 import Environment, StrictUndefined  # slow to import
    from markupsafe import Markup, escape

    def commands(text: str) -> Markup:
        """A command in backticks is set as code."""
        return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704 - text is escaped

    page = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    page.filters |= {"cell": format_cell, "commands": commands, "counted": counted}
    return page.from_string(files("surefoot.evaluation").joinpath("report.html").read_text("utf-8"))


def _rivals(screen: FirstScreen) -> dict[str, object]:
    """What the main plot shows: rows and what ours must beat, by their places across the page."""
    rows = [row for row in screen.rivals if not math.isnan(row.value.value)][:_ROWS]
    first = next((verdict for verdict in screen.verdicts if verdict.measured), None)
    named = {verdict.rival for verdict in screen.verdicts}
    shares = any(row.kind == "rival" and row.name not in named for row in rows)
    spec = ".0%" if shares else first.spec if first else ".2f"
    null = first.null if first and not shares else None
    ends = [end for row in rows for end in row.value.bounds] + ([] if null is None else [null])
    start, end = min(ends, default=0.0), max(ends, default=1.0)
    if start >= 0 and end <= 1 and end - start > 0.3:
        start, end = 0.0, 1.0

    def at(value: float) -> int:
        return round(190 + 290 * (value - start) / ((end - start) or 1))

    return {
        "rows": [
            {
                "kind": row.kind,
                "name": row.name[:26],
                "text": format(row.value, spec.lstrip("+")).partition(" [")[0],
                **{part: at(getattr(row.value, part)) for part in ("low", "value", "high")},
            }
            for row in rows
        ],
        "null": None if null is None else at(null),
        "label": ", ".join(f"{row.name} {format(row.value, spec)}" for row in rows),
        "caption": f"{screen.measure[:1].upper()}{screen.measure[1:]} Line: 95 % interval.",
    }


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


SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#7f7f7f")
"""Colours of lines in order, which all readers can tell apart (Okabe and Ito 2008) on white and on dark."""
GREY = SERIES[-1]
MAX_LINES = 5
"""The most lines that a figure shows, so that it stays readable; the table has all."""

Line = tuple[list[Any], list[Interval]]
"""x and y."""


def plot_figure(plot: Plot, tables: Mapping[str, Sequence[Measures]]) -> Figure | None:
    """The figure of the rows that ``plot`` names; ``None`` if there is nothing to draw."""
    rows = [
        row
        for row in tables.get(plot.rows, ())
        if all(row.keys[key] in allowed for key, allowed in plot.where.items())
    ]
    same = {plot.x, *(key for key, allowed in plot.where.items() if len(allowed) == 1)}
    lines: dict[str, list[Line]] = {}
    for row in rows:
        cells = row.keys | row.values
        names = [str(key) for at, key in row.keys.items() if at not in same and key is not None]
        name = ", ".join(names) or str(next(iter(row.keys.values())))
        if plot.y:
            points = [(cells[plot.x], [cells[y] for y in plot.y])]
        else:
            points = [(int(at), [value]) for at, value in row.values.items()]
        for x, values in points:
            for line, value in zip(lines.setdefault(name, [([], []) for _ in values]), values, strict=True):
                line[0].append(x)
                line[1].append(_interval(value))
    xlabel = plot.x.rpartition(".")[2].replace("_", " ") or "N"
    ylabel = ", ".join(plot.y or [plot.rows.rpartition(".")[2]]).replace("_", " ")
    return _lines(lines, xlabel, ylabel, log=plot.log, diagonal=plot.diagonal) if lines else None


def _interval(value: Any) -> Interval:
    """A number as an interval without width."""
    return value if isinstance(value, Interval) else Interval(value=value, low=value, high=value)


def _lines(
    curves: Mapping[str, Sequence[Line]], xlabel: str, ylabel: str, *, log: bool, diagonal: bool = False
) -> Figure:
    """For each name a solid line, named at its end, and if it has a second curve a dashed one."""
    figure, axes = new_figure(xlabel, ylabel)
    if diagonal:
        axes.plot([0, 1], [0, 1], color=GREY, linestyle=":")
    ends: list[tuple[float, float, str, str]] = []
    for number, (name, lines) in enumerate(list(curves.items())[:MAX_LINES]):
        for (x, values), style in zip(lines, ("-", "--"), strict=False):
            shade(axes, x, values, SERIES[number], alpha=0.12)
            y = [value.value for value in values]
            axes.plot(x, y, style, marker="o", markersize=3, color=SERIES[number])
            if style == "-":
                last = max((at for at, share in enumerate(y) if not math.isnan(share)), default=0)
                ends.append((y[last], x[last], wrapped(name, 28), SERIES[number]))
    bottom, top = axes.get_ylim()
    free = -math.inf
    for height, right, name, colour in sorted(ends):
        free = max(height, free + 0.055 * (top - bottom) * (1 + name.count("\n")))
        axes.annotate(name, (right, free), (8, 0), textcoords="offset points", va="center", color=colour)
    if log:
        from matplotlib.ticker import NullLocator

        sizes = sorted({size for lines in curves.values() for x, _ in lines for size in x})
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.xaxis.set_minor_locator(NullLocator())
    return figure


def new_figure(xlabel: str, ylabel: str, *, height: float = 4.5) -> tuple[Figure, Axes]:
    """A figure with one panel."""
    from matplotlib.figure import Figure as NewFigure

    figure = NewFigure(figsize=(9, height), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.grid(alpha=0.3)
    return figure, axes


def legend(figure: Figure) -> None:
    """A legend to the right of the panels."""
    figure.legend(loc="outside right upper", frameon=False, fontsize="small")


def shade(axes: Axes, x: Sequence[float], values: Sequence[Interval], colour: str, *, alpha: float) -> None:
    """The band between the bounds."""
    axes.fill_between(x, [v.low for v in values], [v.high for v in values], color=colour, alpha=alpha, lw=0)


def wrapped(name: str, width: int = 40) -> str:
    """A long name on several lines, so that the figure keeps its width; control characters are escaped."""
    return "\n".join(textwrap.wrap(printable(name), width))
