import json
import re
import sys
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from surefoot.evaluation.report import (
    FirstScreen,
    Measures,
    Origin,
    Plot,
    Report,
    Rival,
    Section,
    from_1,
    plot_figure,
    rows_of,
    to_json,
)
from surefoot.evaluation.verdict import measured
from surefoot.stats.intervals import Interval

VOID = {"meta", "br", "img", "hr", "link", "input"}


def curves():
    point = Interval(value=0.5, low=0.4, high=0.6)
    better = Interval(value=0.8, low=0.7, high=0.9)
    rows = {"majority": {"1": point, "4": better}, "pass@N": {"1": point, "4": better, "64": better}}
    return [Measures("", {"name": name}, values) for name, values in rows.items()]


def curve_figure():
    return plot_figure(Plot("accuracy", "", log=True), {"accuracy": curves()})


def full_report():
    return (
        Report("Audit & <proof>")
        .heading("Curves")
        .text("a < b & <script>alert('x')</script>")
        .table(["name", "f1", "n"], [["<b>", 0.123456, 3], ["none", None, 4]], caption="Scores")
        .figure(curve_figure, "Accuracy \"against\" <samples> 'N'")
        .figure(curve_figure, "Again")
    )


class Balance(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.tags, self.ids = [], set(), []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        self.tags.add(tag)
        self.ids += [value for name, value in attrs if name == "id"]


def test_a_report_without_matplotlib_says_once_what_its_plots_need(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    page = full_report().html()
    said = "they need the package matplotlib: pip install '.[evaluation]' in a clone of surefoot"
    assert [message.endswith(said) for message in caplog.messages] == [True]
    assert page.count("Plots are left out") == 1
    assert "<svg" not in page
    assert "<table" in page


def test_page_is_well_formed_and_has_no_duplicate_ids():
    page = Balance()
    page.feed(full_report().html())
    page.close()
    assert page.open == []
    assert {"table", "figure", "svg", "h1", "h2"} <= page.tags
    assert len(page.ids) == len(set(page.ids))


def test_page_runs_nothing_and_fetches_nothing():
    html = full_report().html()
    page = Balance()
    page.feed(html)
    assert not page.tags & {"script", "link", "img", "iframe", "object", "embed", "base"}
    assert "@import" not in html
    assert all(target.startswith("#") for target in re.findall(r'(?:href|src)="([^"]*)"', html))
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", html))
    without_names = re.sub(r'xmlns(:\w+)?="[^"]*"', "", html)  # names of languages, never fetched
    assert "http" not in without_names.replace("<meta http-equiv=", "")
    assert "prefers-color-scheme: dark" in html


def test_every_reference_inside_a_figure_resolves():
    html = full_report().html()
    ids = set(re.findall(r'\bid="([^"]*)"', html))
    references = re.findall(r'href="#([^"]*)"', html) + re.findall(r"url\(#([^)]*)\)", html)
    assert references
    assert set(references) <= ids


def test_text_is_escaped():
    html = full_report().html()
    assert "<title>Audit &amp; &lt;proof&gt;</title>" in html
    assert "&lt;script&gt;" in html
    assert "<td>&lt;b&gt;</td>" in html
    assert 'aria-label="Accuracy &quot;against&quot; &lt;samples&gt; &#x27;N&#x27;"' in html
    assert "<figcaption>Accuracy &#34;against&#34; &lt;samples&gt; &#39;N&#39;</figcaption>" in html


def test_cells_show_numbers_intervals_and_unknowns():
    interval = Interval(value=0.61234, low=0.5, high=0.7)
    html = Report("t").table(["a", "b", "c"], [[interval, float("nan"), 12345678]]).html()
    assert '<td class="number">0.6123 [0.5, 0.7]</td>' in html
    assert '<td class="number">n/a</td>' in html
    assert '<td class="number">12345678</td>' in html
    assert Report("t").table(["a"], []).html().count("<td") == 0


def test_equal_input_gives_equal_bytes(tmp_path):
    for name in ("first.html", "second.html"):
        full_report().write(tmp_path / name)
    assert (tmp_path / "first.html").read_bytes() == (tmp_path / "second.html").read_bytes()


def test_write_replaces_whole_and_leaves_nothing_behind(tmp_path):
    target = tmp_path / "report.html"
    target.write_text("old")
    report = Report("new")
    report.write(target)
    assert target.read_text(encoding="utf-8") == report.html()
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_a_failed_write_keeps_the_old_file(tmp_path):
    target = tmp_path / "report.html"
    target.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        Report("\ud800").write(target)
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_drawing_leaves_the_global_settings_alone():
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    full_report().html()
    assert dict(mpl.rcParams) == before


def test_curves_are_drawn_on_a_log2_axis_and_named_at_their_ends():
    figure = curve_figure()
    (axes,) = figure.axes
    assert axes.get_xscale() == "log"
    assert axes.get_ylabel() == "accuracy"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "4", "64"]
    majority, ceiling = axes.get_lines()
    np.testing.assert_array_equal(ceiling.get_xdata(), [1, 4, 64])
    np.testing.assert_array_equal(ceiling.get_ydata(), [0.5, 0.8, 0.8])
    names = {text.get_text(): text for text in axes.texts}
    assert names["pass@N"].get_color() == ceiling.get_color() != majority.get_color()
    assert names["majority"].xy[1] != names["pass@N"].xy[1]  # both end at 0.8, and no name hides another
    shade = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (shade.min(), shade.max()) == (0.4, 0.9)


def test_a_figure_has_at_most_five_lines_and_no_colour_twice():
    rows = [Measures("", {"name": str(n)}, {"1": interval(0.1 * n), "2": interval(0.5)}) for n in range(9)]
    [axes] = plot_figure(Plot("accuracy", ""), {"accuracy": rows}).axes
    colours = [line.get_color() for line in axes.get_lines()]
    assert len(colours) == len(set(colours)) == 5


def test_ragged_rows_raise():
    with pytest.raises(ValueError, match=r"rows\[1\] has 1 cells"):
        Report("t").table(["a", "b"], [[1, 2], [3]])


@dataclass(frozen=True, kw_only=True)
class Effect:
    """The effect of one edit. Intervals are over problems."""

    edit: str
    change: Interval
    traces: int


@dataclass(frozen=True, kw_only=True)
class Scorer:
    """One scorer."""

    system: str
    rule: str
    left_out: int
    effects: tuple[Effect, ...]
    accuracy: dict[int, float]
    tokens: dict[int, float]
    by_step: dict[str, Effect]

    @property
    def name(self) -> str:
        return f"{self.system}, {self.rule}"


def interval(value):
    return Interval(value=value, low=value - 0.1, high=value + 0.1)


def scorers():
    return [
        Scorer(
            system=name,
            rule="min",
            left_out=2,
            effects=(Effect(edit="swap", change=interval(0.5), traces=3),),
            accuracy={1: 0.25, 4: 0.5},
            tokens={1: 10.0, 4: 40.0},
            by_step={"0": Effect(edit="all", change=interval(float("nan")), traces=0)},
        )
        for name in ("a", "b")
    ]


def test_each_data_class_of_a_result_is_a_row_with_the_names_above_it():
    rows = rows_of({"audit": scorers(), "reasons": {"c": "no label"}})
    assert list(rows) == [
        "audit",
        "audit.effects",
        "audit.accuracy",
        "audit.tokens",
        "audit.by_step",
        "reasons",
    ]
    assert [(row.keys, row.values) for row in rows["audit"]] == [
        ({"name": "a, min"}, {"left_out": 2}),
        ({"name": "b, min"}, {"left_out": 2}),
    ]
    [effect, _] = rows["audit.effects"]
    assert effect.keys == {"name": "a, min", "edit": "swap"}
    assert effect.values == {"change": interval(0.5), "traces": 3}
    assert rows["audit.accuracy"][1].values == {"1": 0.25, "4": 0.5}
    assert rows["audit.by_step"][0].keys == {"name": "a, min", "by_step": "1", "edit": "all"}
    assert rows["reasons"][0].values == {"c": "no label"}


def test_steps_are_counted_from_1_in_tables_and_from_0_in_json():
    assert [from_1(index) for index in (0, "4", "5-6", "10+")] == ["1", "5", "6-7", "11+"]
    assert '"by_step": {"0":' in json.dumps(to_json({"audit": scorers()}))


def test_a_section_is_printed_and_shown_with_all_its_tables():
    section = Section(
        title="Audit",
        about="Why.",
        results={"audit": scorers()},
        plots=[
            Plot("audit.accuracy", "Lines", where={"name": ("a, min",)}, log=True),
            Plot("audit.nothing", "Absent"),
        ],
    )
    report = Report("t").section(section)
    title, about, _, table, *others = report.printed
    assert len(others) == 3
    assert (title, about) == ("\nAudit", "Why.")
    assert table.caption == "audit, effects: The effect of one edit. Intervals are over problems."
    assert (list(table.headers), len(table.rows)) == (["name", "edit", "change", "traces"], 2)
    page = report.html()
    assert page.count("<svg") == 1
    assert page.count("<table") == 5
    assert "Lines" in page
    assert "Absent" not in page


def test_plots_draw_the_measures_of_the_rows():
    rows = rows_of({"audit": scorers()})
    lines = plot_figure(Plot("audit.accuracy", "", log=True), rows)
    assert lines is not None
    [axes] = lines.axes
    assert [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines] == [
        ([1, 4], [0.25, 0.5]),
        ([1, 4], [0.25, 0.5]),
    ]
    assert [text.get_text() for text in axes.texts] == ["a, min", "b, min"]
    assert plot_figure(Plot("audit.accuracy", ""), {}) is None


def test_figures_are_transparent_and_drawn_in_the_colour_of_the_text():
    html = full_report().html()
    [first, *_] = re.findall(r"<svg.*?</svg>", html, re.S)
    assert "currentColor" in first
    assert "#000000" not in first
    assert not re.search(r"fill: ?#fff", first)


PAGES = Path(__file__).parents[1] / "support/page_audit.js"


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_a_page_has_no_defect_for_keyboard_screen_reader_or_eyes(browser, tmp_path, scheme, width):
    first = FirstScreen(
        sentence="prm reads the steps.",
        verdicts=[
            measured("hidden error", interval(0.5), "Text.", 200),
            measured("monitors", interval(0.1), "", 20, rival="majority"),
        ],
        ranking={"prm": "prm reads.", "orm": "orm does not."},
        rivals=[Rival(name="prm", value=interval(0.5), kind="ours"), Rival(name="m", value=interval(0.4))],
        measure="share of problems.",
        advice=["Do `this`."],
        limits=["n = 9"],
        origin=Origin(data="d.jsonl", command="surefoot audit --out x", json="audit.json"),
    )
    report = Report("t", first).heading("More").table(["name", "f1"], [["a", 0.5]], "Scores")
    report.figure(curve_figure, "Accuracy").write(tmp_path / "page.html")
    page = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900}).new_page()
    page.goto((tmp_path / "page.html").as_uri())
    assert page.evaluate(PAGES.read_text()) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.emulate_media(media="print")
    assert page.get_by_role("cell", name="0.5", exact=True).is_visible()
