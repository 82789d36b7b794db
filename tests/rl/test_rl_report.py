"""The page of a run and the page of several: nothing of the model's text is obeyed, and all is shown."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from rl_logs import evaluation_row, update_row

from surefoot.evaluation.report import Origin
from surefoot.records import Problem, Step, Trace
from surefoot.rl.log import Guards, RLLog, SampleRow, UpdateRow, stop_reason, watch
from surefoot.rl.report import findings, first_screen, truth_figure, write_report
from surefoot.stats import Interval

EVIL = "<script>alert('x')</script>\n"


def gamed_log():
    log = RLLog(
        updates=[update_row(n, tokens=40 + 4 * n) for n in range(1, 31)],
        evaluations=[
            evaluation_row(10 * n, accuracy, proxy, error=0.2)
            for n, (accuracy, proxy) in enumerate(((0.4, 0.5), (0.6, 0.7), (0.3, 0.8), (0.2, 0.9)))
        ],
    )
    log.alarms = watch(log.evaluations, Guards())
    log.stopped = stop_reason(log.alarms, Guards())
    return log


def keep(folder, update, text):
    problem = Problem(text=f"<b>{update}</b> & more")
    half = len(text) // 2
    trace = Trace(
        problem_id=problem.id,
        text=text,
        steps=(Step(start=0, end=half), Step(start=half, end=len(text))),
        outcome=False,
    )
    row = SampleRow(update=update, problem=problem, trace=trace, scores=(0.25, None), advantages=(0.5, -0.75))
    folder.mkdir(exist_ok=True)
    (folder / f"{update:06d}.jsonl").write_bytes(row.model_dump_json().encode() + b"\n")


class Page(HTMLParser):
    def __init__(self, html):
        super().__init__()
        self.tags, self.ids, self.text = [], [], ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_data(self, data):
        self.text += data


def written(path):
    return Page(path.read_text(encoding="utf-8"))


SETTINGS = {"credit": {"rule": "summed"}, "path": "<here>"}


@pytest.fixture(scope="module")
def gamed(tmp_path_factory):
    """The page of a run with alarms and rollouts."""
    folder = tmp_path_factory.mktemp("gamed")
    for update in (1, 2, 3, 4, 5, 6, 7):
        keep(folder / "samples", update, f"{EVIL * 2}Step {update}\n")
    write_report(gamed_log(), folder / "report.html", samples=folder / "samples", settings=SETTINGS)
    return folder / "report.html"


@pytest.mark.slow
def test_the_page_of_a_gamed_run(gamed, tmp_path):
    log = gamed_log()
    assert [alarm.name for alarm in log.alarms] == ["overoptimization"]
    write_report(log, tmp_path / "again", samples=gamed.parent / "samples", settings=SETTINGS)
    assert gamed.read_bytes() == (tmp_path / "again").read_bytes()
    page = written(gamed)
    for alarm in log.alarms:
        assert alarm.message in page.text
    assert "Ended early: alarm 'overoptimization' at update 30" in page.text
    assert page.tags.count("figure") == 1
    assert '{"rule": "summed"}' in page.text
    assert len(page.ids) == len(set(page.ids))
    assert "0.2 [0.15, 0.25]" in page.text  # the last accuracy, with its interval


@pytest.mark.slow
def test_the_text_of_a_model_is_shown_and_not_obeyed(gamed):
    html = gamed.read_text()
    page = Page(html)
    assert "script" not in page.tags
    assert "b" not in page.tags
    assert "<script>alert('x')</script>↵" in page.text
    assert "<b>4</b> & more" in page.text
    assert [n for n in range(1, 8) if f"A rollout of update {n}: wrong" in page.text] == [1, 4, 7]
    assert "0.25" in page.text
    assert "-0.75" in page.text
    assert not re.search(r'(?:src|href)="(?!#)', html)


@pytest.mark.slow
@pytest.mark.parametrize(
    "log",
    [
        RLLog(),
        RLLog(evaluations=[evaluation_row(0, 0.5)]),
        RLLog(updates=[UpdateRow(update=1, samples=0)]),
        RLLog(updates=[update_row(1)], evaluations=[evaluation_row(0, 0.5, 0.5)]),
    ],
)
def test_a_run_that_has_hardly_begun_has_a_page(tmp_path, log):
    write_report(log, tmp_path / "report.html", samples=tmp_path / "none")
    assert "None." in written(tmp_path / "report.html").text  # alarms


def test_the_first_screen_says_that_a_gamed_policy_got_worse():
    screen = first_screen(gamed_log(), Origin())
    learns, peak = screen.verdicts
    assert (learns.tone, learns.estimate.value) == ("wrong", pytest.approx(-0.2))
    assert (peak.tone, peak.claim) == ("wrong", "fell after update 20")
    assert screen.sentence == (
        "The policy answers fewer problems after training, and it fell after update 20."
    )
    assert first_screen(RLLog(), Origin()).sentence == "The policy was not evaluated twice."


def test_the_first_screen_says_what_is_not_decided():
    log = RLLog(updates=[update_row(1)], evaluations=[evaluation_row(0, 0.5), evaluation_row(1, 0.5)])
    sentence = first_screen(log, Origin()).sentence
    assert sentence.startswith("Not decided: whether the policy answers more problems after training; needs ")


def test_a_difference_of_two_intervals_has_the_width_of_both():
    first = Interval(value=0.7, low=0.67, high=0.74)
    second = Interval(value=0.5, low=0.46, high=0.53)
    gap = first.less(second)
    assert (gap.value, gap.low, gap.high) == pytest.approx((0.2, 0.2 - 0.0424264, 0.2 + 0.0565685))


def test_findings():
    told = " ".join(findings(gamed_log()))
    assert "30 updates on 240 rollouts." in told


def test_the_parting_is_marked_where_it_began():
    figure = truth_figure(gamed_log())
    marked = {line.get_label(): line for line in figure.axes[0].lines}
    assert list(marked["overoptimization"].get_xdata()) == [160, 160]  # update 20, 8 rollouts each
    assert list(marked["best accuracy"].get_xdata()) == [80]
