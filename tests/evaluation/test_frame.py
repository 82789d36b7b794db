from dataclasses import replace

import pytest

from surefoot.evaluation.report import (
    FirstScreen,
    JudgedTrace,
    Origin,
    Report,
    Rival,
    Section,
    first_screen_of,
    worked_examples,
)
from surefoot.evaluation.verdict import Counts, chosen, detected, headline, measured, next_step
from surefoot.protocols import ProblemTrace
from surefoot.records import Problem, Trace
from surefoot.segment import Line, segment_trace
from surefoot.stats import Interval


def interval(low, high):
    return Interval(value=(low + high) / 2, low=low, high=high)


def judged(text, error, predicted, scores=()):
    trace = segment_trace(Trace(id=text[:3], problem_id="p", text=text), Line())
    item = ProblemTrace(problem=Problem(id="p", text="Add."), trace=trace)
    return JudgedTrace(item=item, error=error, predicted=predicted, scores=scores)


CONTENT = measured("hidden error", interval(0.9, 0.96), "of lines; chance is 0.1.", 200, null=0.1)
MONITORS = measured(
    "monitors", interval(-0.02, 0.0275), "less it.", 300, smallest=0.02, spec="+.1p", rival="a word"
)
FALLS = measured("keeps", interval(0.04, 0.08), "lost.", 300, smallest=0.02, harm=True, last=64, peak=16)


def test_a_verdict_is_decided_or_says_what_would_decide_it():
    assert (CONTENT.tone, CONTENT.decided, CONTENT.sentence) == (
        "good",
        True,
        "It scores right reasoning above a hidden error.",
    )
    assert (MONITORS.tone, MONITORS.decided, MONITORS.needs) == ("open", False, "about 1,693 problems")
    assert (FALLS.tone, FALLS.sentence) == ("wrong", "It loses accuracy beyond 16 samples.")
    same = measured("keeps", interval(0.0, 0.01), "", 300, smallest=0.02, harm=True, last=64, peak=16)
    assert (same.tone, same.claim) == ("good", "keeps its accuracy up to 64 samples")


def test_what_is_decided_comes_first():
    assert headline("prm", [MONITORS, CONTENT, FALLS]) == (
        "prm scores right reasoning above a hidden error, but it loses accuracy beyond 16 samples. Not "
        "decided: whether it finds more than a word; needs about 1,693 problems."
    )
    assert headline("x", []) == "x: nothing was measured."


@pytest.mark.parametrize(
    ("ours", "vote", "gain", "said", "tone"),
    [
        (0.77, 0.65, 0.12, "raises accuracy from 47% (one sample) to 77%: better than b (65%)", "good"),
        (
            0.60,
            0.65,
            -0.05,
            "raises accuracy from 47% (one sample) to 60%: worse than b (65%)",
            "wrong",
        ),
        (
            0.40,
            0.30,
            -0.07,
            "lowers accuracy from 47% (one sample) to 40%: worse than one sample",
            "wrong",
        ),
        (0.47, 0.30, 0.0, "keeps accuracy at 47% (one sample): no better than one sample", "wrong"),
    ],
)
def test_a_choice_is_compared_with_the_best_that_costs_nothing(ours, vote, gain, said, tone):
    free = {"one sample": interval(0.47, 0.47), "b": interval(vote, vote)}
    verdict = chosen(interval(ours, ours), free, interval(gain - 0.01, gain + 0.01), "", 300)
    assert (verdict.claim, verdict.tone) == (said, tone)
    unclear = chosen(interval(0.68, 0.68), free, interval(-0.05, 0.1), "", 300)
    assert "is not decided" in unclear.claim
    assert unclear.needs.startswith("about ")


SOURCES = {
    "perfect": (Counts(found=30, wrong=30, alarms=0, right=30, of=60), interval(0.9, 1.0)),
    "useless": (Counts(found=5, wrong=30, alarms=29, right=30, of=60), interval(0.0, 0.1)),
    "silent": (Counts(found=0, wrong=0, alarms=0, right=0, of=60), interval(0.0, 0.0)),
    "mixed": (Counts(found=4, wrong=30, alarms=1, right=30, of=60), interval(0.45, 0.6)),
    "partly silent": (Counts(found=2, wrong=2, alarms=0, right=0, of=60), interval(0.0, 0.1)),
}
SAID = {
    "perfect": "finds 30 of 30 first errors (100%) and raises no false alarm on 30 correct solutions: better "
    "than a fixed step",
    "useless": "finds 5 of 30 first errors (17%) and raises 29 false alarms on 30 correct solutions: "
    "worse than a fixed step",
    "silent": "gives no verdict on any of the 60 solutions: nothing can be said about it",
    "mixed": "finds 4 of 30 first errors (13%) and raises 1 false alarm on 30 correct solutions: better than "
    "a fixed step, but it misses most first errors",
    "partly silent": "finds 2 of 2 first errors (100%) and raises no false alarm on 0 correct solutions, "
    "with no verdict on 58 of 60 solutions; whether this is better than a fixed step is not decided",
}
TONES = {"perfect": "good", "useless": "wrong", "silent": "open", "mixed": "wrong", "partly silent": "open"}


@pytest.mark.parametrize("source", SOURCES)
def test_silence_is_coverage_and_never_a_miss(source):
    counts, f1 = SOURCES[source]
    verdict = detected(counts, f1, "", 60, rival="a fixed step", null=0.3, silence_counts=True)
    assert (verdict.claim, verdict.tone) == (SAID[source], TONES[source])
    assert verdict.coverage.checked == counts.wrong + counts.right
    assert bool(verdict.needs) == (TONES[source] == "open")


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
    [missed] = worked_examples([judged("ok\nwrong\n", 1, -1)])
    assert (missed.title, missed.note) == ("It missed this", "Step 2 is the first error; it rejects no step.")


def test_a_source_without_a_verdict_missed_nothing():
    [silent] = worked_examples([judged("right\n", -1, -1), judged("ok\nwrong\n", 1, None)])
    assert silent.title == "It gave no verdict on this"
    assert silent.note == "Step 2 is the first error; it gave no verdict."
    [silent] = worked_examples([judged("ok\nright\n", -1, None)])
    assert silent.note == "No step is wrong by its label; it gave no verdict."


@pytest.mark.parametrize(("high", "word"), [(0.29, "worse"), (0.3, "no better"), (0.32, "no better")])
def test_worse_is_said_only_where_the_whole_interval_lies_below_the_rival(high, word):
    counts, estimate = SOURCES["useless"][0], interval(0.1, high)
    verdict = detected(counts, estimate, "", 60, rival="a fixed step", null=0.3)
    assert (verdict.short, verdict.tone) == (f"{word} than a fixed step", "wrong")
    steps = measured("single steps", estimate, "", 60, null=0.3, rival="position")
    assert steps.claim == f"judges single steps {word} than position"
    choice = chosen(interval(0, 0), {"one sample": interval(0.3, 0.3)}, interval(-0.2, high - 0.3), "", 60)
    assert choice.short == (f"{word} than one sample" if high < 0.32 else choice.short)


def test_the_next_step_names_the_command_and_what_is_open():
    counts = Counts(found=20, wrong=25, alarms=0, right=16, of=60)
    works = detected(counts, interval(0.5, 0.7), "", 60, rival="a fixed step", null=0.3, silence_counts=True)
    assert works.detail == " Open ones count as missed."
    assert next_step("west", works, "") == (
        "Use west on data like these, and check the 19 that it leaves open by another source."
    )
    weak = detected(counts, interval(0.1, 0.2), "", 60, rival="a fixed step", null=0.3)
    assert next_step("west", weak, "").endswith(", and check the 19 that it leaves open by another source.")
    assert next_step("m", MONITORS, "surefoot evaluate m=x --as monitors") == (
        "Get about 1,693 problems, and run `surefoot evaluate` again with them."
    )


def test_a_right_trace_is_an_example_only_with_a_rejected_step():
    [alarm] = worked_examples(
        [
            judged("ok\nright\n", -1, -1),
            judged("a longer beginning\nright\n", -1, 0, (0.2, 0.9)),
            judged("fine\nright\n", -1, 1, (0.9, 0.4)),
            judged("no\n", -1, None),
        ]
    )
    assert (alarm.title, alarm.caught) == ("A false alarm", False)
    assert alarm.note == "No step is wrong by its label; it rejects step 2 first."
    assert [(step.wrong, bool(step.rejected)) for step in alarm.steps] == [(False, False), (False, True)]


def test_scorers_are_ranked_by_what_was_found_whatever_order_they_are_given_in():
    def said(source):
        counts, f1 = SOURCES[source]
        return [detected(counts, f1, "", 60, rival="a fixed step", null=0.3, silence_counts=True)]

    for order in (list(SOURCES), list(SOURCES)[::-1]):
        section = Section(title="A", about="", results={}, verdicts={name: said(name) for name in order})
        screen = first_screen_of([section], Origin())
        assert next(iter(screen.ranking)) == "perfect"
        assert list(screen.ranking)[-1] == "silent"
        assert screen.sentence == f"perfect {SAID['perfect']}."


def test_sections_share_one_first_screen():
    one = Section(
        title="A",
        about="",
        results={},
        verdicts={"prm": [CONTENT], "orm": [FALLS]},
        limits=["n = 9"],
        tested="label noise",
    )
    two = Section(title="B", about="", results={}, verdicts={"prm": [FALLS]}, limits=["n = 9", "One seed."])
    screen = first_screen_of([one, two], Origin(json="all.json"))
    assert list(screen.verdicts) == [replace(CONTENT, tested="label noise"), FALLS]
    assert screen.limits == ["n = 9", "One seed."]
    assert screen.sentence == (
        "prm scores right reasoning above a hidden error, but it loses accuracy beyond 16 samples."
    )
    html = Report("t", screen).html()
    assert html.index("<h1>") < html.index("<svg") < html.index("orm loses") < html.index("One seed.")
    assert '<a href="all.json">' in html
    assert [line[:8] for line in screen.lines()] == [
        "prm scor",
        "- Works:",
        "- Weak: ",
        "2. orm l",
        "Next: Us",
    ]


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


def test_rivals_are_drawn_as_points_with_intervals_and_named():
    rivals = [
        Rival(name="one sample", value=interval(0.4, 0.5)),
        Rival(name="prm", value=interval(0.7, 0.8), kind="ours"),
        Rival(name="some sample is right", value=interval(0.9, 0.95), kind="ceiling"),
    ]
    screen = FirstScreen(sentence="So.", verdicts=[CONTENT], rivals=rivals, measure="share of problems.")
    html = Report("t", screen).html()
    assert [html.count(f'<g class="{kind}"') for kind in ("rival", "ours", "ceiling")] == [1, 1, 1]
    assert 'aria-label="one sample 45% [40, 50], prm 75% [70, 80]' in html
    alone = FirstScreen(sentence="So.", verdicts=[CONTENT], rivals=rivals[1:2])
    assert 'class="null"' in Report("t", alone).html()  # what it must beat


def test_a_page_begins_with_the_answer_and_ends_with_its_command():
    origin = Origin(data="p.jsonl", model="prm", command="surefoot audit prm")
    first = FirstScreen(
        sentence="It cannot be trusted.",
        verdicts=[FALLS],
        advice=["Run `--full`."],
        limits=["`--full` helps"],
        origin=origin,
    )
    page = Report("title", first).html()
    places = [page.index(text) for text in ("Test of prm on p.jsonl", "<h1>", "Do next", "What limits")]
    assert places == sorted(places)
    assert page.index("How this was made") > places[-1]
    assert "<code>--full</code> helps" in page
    assert "not measured" not in page
