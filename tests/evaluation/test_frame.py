import pytest

from surefoot.evaluation.frame import (
    FirstScreen,
    JudgedTrace,
    Origin,
    card,
    not_measured,
    sentence,
    weakest,
    worked_examples,
)
from surefoot.evaluation.report import Report, Section, first_screen_of
from surefoot.records import Trace
from surefoot.segment import Line, segment_trace
from surefoot.stats import Interval


def interval(low, high):
    return Interval(value=(low + high) / 2, low=low, high=high)


def judged(text, error, predicted, scores=()):
    trace = segment_trace(Trace(id=text[:3], problem_id="p", text=text), Line())
    return JudgedTrace(trace=trace, problem="Add.", error=error, predicted=predicted, scores=scores)


READS = card("reads", interval(0.9, 0.96), "Content probe; chance is 0.1.", units=200, null=0.1)
SELECTS = card("selects", interval(-0.02, 0.0275), "PRM less ORM.", units=300, smallest=0.02, spec="+.1p")
FALLS = card("trust", interval(0.04, 0.08), "Fall after N = 16.", units=300, smallest=0.02, harm=True)


def test_a_card_says_yes_no_or_how_many_problems_are_missing():
    assert (READS.verdict, READS.chip, READS.number) == ("yes", "yes", "0.93")
    assert (SELECTS.verdict, SELECTS.number) == ("cannot tell", "+0.4 points")
    assert SELECTS.chip == "cannot tell: needs about 1,693 problems"
    assert FALLS.verdict == "no"
    same = card("trust", interval(0.0, 0.01), "", units=300, smallest=0.02, harm=True)
    assert same.verdict == "yes"
    words = {"no": "not beyond 16 samples"}
    assert card("trust", FALLS.estimate, "", units=300, harm=True, chips=words).chip == words["no"]


def test_the_sentence_may_say_no():
    assert sentence("prm", [READS, SELECTS, FALLS]) == (
        "prm reads the steps, and it may or may not select better answers, and it cannot be trusted without "
        "limits."
    )
    assert sentence("x", [not_measured("reads")]) == "x: this report measures none of the three questions."


def test_the_weakest_answer_to_a_question_counts():
    low = card("reads", interval(0.0, 0.02), "Drop at the first error.", units=200)
    assert weakest([READS, low, SELECTS]) == [low, SELECTS]
    few = card("reads", interval(0.1, 0.5), "Nine traces.", units=9)
    assert weakest([few, READS]) == [READS]
    untested = card("trust", interval(0.0, 0.9), "", units=20, harm=True)
    holds = card("trust", interval(0.0, 0.01), "", units=200, harm=True)
    assert weakest([holds, untested, not_measured("selects")]) == [untested]
    assert weakest([untested, FALLS]) == [FALLS]


def test_a_question_without_a_figure_is_not_measured():
    screen = FirstScreen(sentence="So.", cards=[READS])
    assert [one.verdict for one in screen.three] == ["yes", "not measured here", "not measured here"]
    assert screen.lines()[1] == (
        "- Does it read the steps? yes. 0.93 [0.90, 0.96] Content probe; chance is 0.1."
    )
    assert screen.lines()[2] == "- Does it select better answers? not measured here."


def test_examples_are_the_shortest_caught_and_missed_error_with_steps_from_1():
    caught, missed = worked_examples(
        [
            judged("a long beginning\nwrong\n", 1, 1, (0.9, 0.1)),
            judged("ok\nwrong\n", 1, 1, (0.9, 0.2)),
            judged("no\nwrong\n", 1, 0, (0.3, 0.8)),
            judged("no prediction\nwrong\n", 1, None),
        ]
    )
    assert [(step.number, step.score, step.wrong, bool(step.rejected)) for step in caught.steps] == [
        (1, 0.9, False, False),
        (2, 0.2, True, True),
    ]
    assert missed.note == "Step 2 is the first error; it rejects step 1 first."
    assert [(step.wrong, bool(step.rejected)) for step in missed.steps] == [(False, True), (True, False)]
    [silent] = worked_examples([judged("ok\nwrong\n", 1, -1)])
    assert silent.note == "Step 2 is the first error; it rejects no step."


def test_sections_share_one_first_screen_and_scorers_are_ranked_in_a_table():
    one = Section(title="A", about="", results={}, cards={"prm": [READS], "orm": [FALLS]}, limits=["n = 9"])
    two = Section(title="B", about="", results={}, cards={"prm": [FALLS]}, limits=["n = 9", "One seed."])
    screen = first_screen_of([one, two], Origin(json="all.json"))
    assert list(screen.cards) == [READS, FALLS]
    assert screen.limits == ["n = 9", "One seed."]
    assert screen.sentence.startswith("prm reads the steps, but it cannot be trusted without limits.")
    assert "2 scorers" in screen.sentence
    html = Report("t", screen).html()
    assert html.index("<h1>") < html.index('class="cards"') < html.index(">orm<") < html.index("One seed.")
    assert '<a href="all.json">' in html
    assert html.count("not measured here") == 2  # the card, and the other scorer's cell


@pytest.mark.parametrize("steps", [3, 40])
def test_an_example_shows_the_steps_near_the_error_and_links_to_the_whole_run(steps):
    text = "".join(f"line <{number}>\n" for number in range(1, steps + 1))
    examples = worked_examples([judged(text, 1, 2, [0.5] * steps)])
    html = Report("t", FirstScreen(sentence="So.", examples=examples)).html()
    shown = html[: html.index("The examples in full")]
    assert shown.count("line &lt;") == min(steps, 5)
    assert 'href="#run-0"' in shown
    assert html.count("line &lt;") == shown.count("line &lt;") + steps
    assert "✗ first error (label)" in shown
    assert "▽ first called wrong" in shown


def test_the_interval_is_drawn_against_the_null():
    html = Report("t", FirstScreen(sentence="So.", cards=[READS])).html()
    assert 'aria-label="0.93 [0.90, 0.96], 95 % interval in brackets; broken line at 0.10"' in html
    assert "95 %: 0.90 to 0.96" in html


def test_the_first_screen_says_what_to_do_about_each_verdict():
    reads = card("reads", interval(0.1, 0.3), "AUC of the PRM", 100)
    selects = card("selects", interval(-0.2, 0.2), "best of 16", 100)
    screen = FirstScreen(sentence="The PRM reads the steps.", cards=[reads, selects])
    [advice] = screen.next_steps
    assert "rule that it was compared with" in advice
    assert f"Next: {advice}" in screen.lines()
    assert screen.terms.keys() == {"PRM", "AUC", "best of"}
    assert "make this report again" in FirstScreen(sentence="s", cards=[reads]).next_steps[0]
    assert FirstScreen(sentence="s").next_steps == []


def test_a_page_begins_with_the_answer_and_ends_with_its_command():
    trust = card("trust", interval(-0.3, -0.1), "lost", 100)
    origin = Origin(data="p.jsonl", model="prm", command="surefoot audit prm")
    first = FirstScreen(
        sentence="It cannot be trusted.", cards=[trust], limits=["`--full` helps"], origin=origin
    )
    page = Report("title", first).html()
    places = [
        page.index(text) for text in ("Test of prm on p.jsonl", "<h1>", "What to do next", "What limits")
    ]
    assert places == sorted(places)
    assert page.index("How this was made") > places[-1]
    assert "<code>--full</code> helps" in page
