"""How records and scored traces are shown to people."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import pytest
from PIL import Image

from surefoot import display
from surefoot.display import show
from surefoot.errors import ScoreError
from surefoot.records import (
    Attachment,
    Message,
    Problem,
    Step,
    StepLabel,
    StepScores,
    ToolCall,
    Trace,
    content_id,
)
from surefoot.segment import segment_trace

TRACE = Trace(
    id="t", problem_id="p", text="7 + 3 = 0\n<b> = 2\n", steps=(Step(start=0, end=10), Step(start=10, end=18))
)


def scores(*values: float | None) -> StepScores:
    return StepScores(
        trace_id="t", scorer="prm", scores=values, unscored_reason="cut" if None in values else None
    )


def test_steps_are_numbered_from_1_and_a_low_score_is_not_called_an_error() -> None:
    assert str(show(TRACE, scores(0.9, 0.2))).splitlines() == [
        "t: 2 steps, no answer, not graded, scored by prm",
        "  1  0.900  7 + 3 = 0",
        "  2  0.200  <b> = 2  ▽ first score below 0.5",
    ]


def test_a_text_is_cut_as_it_is_scored() -> None:
    assert show("7 + 3 = 0\n<b> = 2\n", scores(0.9, 0.2)).first_below == 1
    with pytest.raises(ScoreError, match="do not fit the 1 steps"):
        show("one step", scores(0.9, 0.2))


def test_without_a_low_score_nothing_is_marked() -> None:
    view = show(TRACE, scores(0.9, None), threshold=0.3)
    assert view.first_below is None
    assert "n/a" in str(view)
    assert "▽" not in str(view)
    assert str(view).count("1 step without a score: cut") == view._repr_html_().count("score: cut") == 1
    assert "without a score" not in str(show(TRACE, scores(0.9, 0.2)))


def test_scores_of_another_trace_are_refused() -> None:
    with pytest.raises(ScoreError, match="1 scores of trace t do not fit the 2 steps"):
        show(TRACE, scores(0.5))


def test_a_step_that_only_calls_a_tool_shows_the_call() -> None:
    call = ToolCall(name="search", arguments='{"q": "x"}')
    messages = (Message(role="user", content="hi"), Message(role="assistant", tool_calls=(call,)))
    run = Trace(problem_id="p", messages=messages, steps=(Step(message=1, start=0, end=0, part="message"),))
    assert 'search({"q": "x"})' in str(show(run))


def test_records_read_as_one_line() -> None:
    problem = Problem(id="p", text="word " * 40, answer="7")
    assert repr(problem).startswith("<Problem p: word word")
    assert repr(problem).endswith("… (answer 7)>")
    label = StepLabel(trace_id="t", step=1, kind="correctness", value=-1, source="checker")
    assert str(label) == "t step 2: correctness -1, from checker"
    assert str(scores(0.5, None)) == "t by prm: 0.500 n/a"


def test_identity_rests_on_the_whole_record_and_not_on_what_is_shown() -> None:
    first, second = (Problem(id="p", text="word " * 40 + end) for end in "ab")
    assert str(first) == str(second)
    assert content_id(first) != content_id(second)


def test_the_answer_that_is_there_is_shown() -> None:
    assert "answer 3" in str(show("4 - 1 = 3\nAnswer: 3\n"))
    assert "answer 9" in str(show(r"so it is \boxed{9}"))
    assert "no answer" in str(show("4 - 1 = 3\n"))


def test_a_notebook_shows_a_table_and_escapes_the_text() -> None:
    html = show(TRACE, scores(0.9, 0.2))._repr_html_()
    assert html.count("<tr>") == 2
    assert "&lt;b&gt; = 2" in html
    assert html.count("<b>") == 1  # the first low score


def run_with(*held: Attachment) -> Trace:
    """A run whose second message asks about attachments, between its words."""
    held = tuple(each.model_copy(update={"at": 5}) for each in held)
    messages = (
        Message(role="user", content="hi"),
        Message(role="assistant", content="Hello."),
        Message(role="user", content="Look here.", attachments=held),
        Message(role="assistant", content="It is red."),
    )
    return segment_trace(Trace(problem_id="p", messages=messages))


def png(color: str = "red") -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (8, 6), color).save(stream, "PNG")
    return stream.getvalue()


def test_kept_images_stand_before_the_step_that_follows_them(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png())
    view = show(run_with(Attachment(kind="image", uri="a.png", name='a "sign" <b>')), images=tmp_path)
    page, url = view._repr_html_(), f"data:image/png;base64,{base64.b64encode(png()).decode()}"
    tag = f'<img src="{url}" alt="image: a &quot;sign&quot; &lt;b&gt;" style='
    assert page.count(tag) == 1
    assert page.index("Hello.") < page.index(tag) < page.index("It is red.")
    assert [line.strip() for line in str(view).splitlines()[1:]] == [
        "1  Hello.",
        '[image: a "sign" <b>]',
        "2  It is red.",
    ]
    assert "<img" not in show(run_with(Attachment(kind="image", uri="a.png")))._repr_html_()


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("../secret.png", "leaves the folder"),
        ("script.svg", "not a PNG"),
        ("moving.gif", "animated"),
        ("wide.png", "pixels are too many"),
        ("cut.png", "damaged"),
        ("gone.png", "No such file"),
        ("https://example.org/cat.png", "https://example.org/cat.png"),
        ("data:text/html,<script>alert(1)</script>", "&lt;script&gt;"),
        ("file:///etc/hostname", "file:///etc/hostname"),
    ],
)
def test_other_images_are_named_in_a_notebook(tmp_path: Path, uri: str, says: str) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (tmp_path / "secret.png").write_bytes(png())
    (folder / "script.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'><script>x</script></svg>")
    frames = [Image.new("RGB", (4, 4), color) for color in ("red", "blue")]
    frames[0].save(folder / "moving.gif", save_all=True, append_images=frames[1:])
    Image.new("1", (10_000, 6_000)).save(folder / "wide.png")
    (folder / "cut.png").write_bytes(png()[:-30])
    page = show(run_with(Attachment(kind="image", uri=uri)), images=folder)._repr_html_()
    assert says in page
    assert "<img" not in page
    assert "<script" not in page


def test_a_notebook_holds_no_more_images_than_it_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.png").write_bytes(png())
    monkeypatch.setattr(display, "_MOST_SHOWN", 200)
    held = [Attachment(kind="image", uri="a.png", name=name) for name in ("one", "two", "three")]
    page = show(run_with(*held), images=tmp_path)._repr_html_()
    assert page.count("<img") == 1
    assert "image: two: too large to be shown here" in page
