"""Runs whose observations are images: read from files and messages, and judged frame by frame."""

from __future__ import annotations

import base64
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from command_line import good, refused, run
from openai_replies import Body, Reply
from openai_server import chat, serve
from PIL import Image

from surefoot.io import read_records
from surefoot.records import StepLabel, Trace

LEVELS = (0, 60, 120, 250)
"""Brightness of the screen at first, and after each click: the further, the brighter."""


def screen(level: int) -> bytes:
    stream = io.BytesIO()
    Image.new("L", (20, 10), level).save(stream, "PNG")
    return stream.getvalue()


def atif(folder: Path) -> Path:
    """A browser's run as ATIF, with its screenshots in a folder next to the file."""
    (folder / "frames").mkdir(parents=True)
    for number, level in enumerate(LEVELS):
        (folder / f"frames/{number}.png").write_bytes(screen(level))

    def shot(number: int) -> dict[str, Any]:
        return {"type": "image", "source": {"media_type": "image/png", "path": f"frames/{number}.png"}}

    steps: list[dict[str, Any]] = [
        {"step_id": 1, "source": "user", "message": [{"type": "text", "text": "Order the lamp."}, shot(0)]}
    ]
    for number in range(1, len(LEVELS)):
        call = {"tool_call_id": f"c{number}", "function_name": "click", "arguments": {"x": number, "y": 4}}
        result = {"source_call_id": f"c{number}", "content": [shot(number)]}
        steps.append(
            {"step_id": number + 1, "source": "agent", "message": "", "tool_calls": [call],
             "observation": {"results": [result]}}
        )  # fmt: skip
    run = {
        "schema_version": "ATIF-v1.6",
        "session_id": "s",
        "agent": {"name": "browser", "version": "1"},
        "steps": steps,
    }
    (folder / "run.json").write_text(json.dumps(run))
    return folder / "run.json"


def openai(folder: Path) -> Path:
    """The same run as messages of OpenAI's form, with its screenshots in data URLs."""
    folder.mkdir(parents=True, exist_ok=True)

    def shot(level: int) -> dict[str, Any]:
        url = f"data:image/png;base64,{base64.b64encode(screen(level)).decode()}"
        return {"type": "image_url", "image_url": {"url": url}}

    messages: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "text", "text": "Order the lamp."}, shot(LEVELS[0])]}
    ]
    for number, level in enumerate(LEVELS[1:], start=1):
        function = {"name": "click", "arguments": json.dumps({"x": number, "y": 4})}
        call = {"id": f"c{number}", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": [shot(level)]})
    (folder / "run.jsonl").write_text(json.dumps({"messages": messages}) + "\n")
    return folder / "run.jsonl"


def screens(body: Body) -> list[int]:
    """Brightness of the images of a request, in their order."""
    content = body["messages"][-1]["content"]
    urls = [part["image_url"]["url"] for part in content if part["type"] == "image_url"]
    shown = [Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))) for url in urls]
    return [int(image.convert("L").getpixel((0, 0))) for image in shown]  # type: ignore[arg-type]


def eyes(body: Body) -> Reply:
    """The brighter the screen after a step, the further the run has come."""
    _, *after = screens(body)
    letters = ["ABCDEFGHIJKLMNOPQRST"[19 - level * 19 // 250] for level in after]
    return Reply(payload=chat(["\n".join(f"<after_{n}>{x}</after_{n}>" for n, x in enumerate(letters))]))


def judged(folder: Path, answer: Any = eyes, method: str = "judge-score:images=true") -> list[StepLabel]:
    with serve(answer) as server:
        run(
            *("label", folder / "traces.jsonl", method, "--problems", folder / "problems.jsonl"),
            *("--policy=eyes", f"--base-url={server.url}", "--out", folder / "labels.jsonl"),
        )
    return list(read_records(folder / "labels.jsonl", StepLabel))


@pytest.mark.parametrize("write", [atif, openai])
def test_progress_is_judged_by_the_screenshots_after_each_step(tmp_path, write):
    good("import", write(tmp_path / "raw"), "--out", tmp_path / "run")
    [trace] = read_records(tmp_path / "run/traces.jsonl", Trace)
    assert [step.kind for step in trace.steps] == ["tool_call"] * 3
    kept = [image for message in trace.messages for image in message.attachments]
    assert [(tmp_path / "run" / image.uri).read_bytes() for image in kept] == list(map(screen, LEVELS))
    values = [label.value for label in judged(tmp_path / "run")]
    assert values == pytest.approx([(level * 19 // 250) / 19 for level in LEVELS[1:]])


def test_without_images_the_judge_sees_their_names_alone(tmp_path):
    good("import", atif(tmp_path / "raw"), "--out", tmp_path / "run")
    contents = []

    def blind(body: Body) -> Reply:
        contents.append(body["messages"][-1]["content"])
        return Reply(payload=chat(["\n".join(f"<after_{n}>K</after_{n}>" for n in range(3))]))

    assert len({label.value for label in judged(tmp_path / "run", blind, "judge-score")}) == 1
    assert contents
    assert all(isinstance(content, str) for content in contents)
    assert not re.search("base64|attachments/", "".join(contents))


def grey(stream: io.BytesIO, **options: Any) -> bytes:
    Image.new("L", (20, 10), 9).save(stream, **options)
    return stream.getvalue()


BAD = {
    "damaged": screen(9)[:40],
    "script": b"<svg xmlns='http://www.w3.org/2000/svg'><script>1</script></svg>",
    "other": None,
    "animated": grey(
        io.BytesIO(), format="GIF", save_all=True, append_images=[Image.new("L", (20, 10), 200)]
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_frame_that_cannot_be_shown_leaves_its_run_unknown_with_the_reason(tmp_path, name):
    file = atif(tmp_path / "raw")
    frame = tmp_path / "raw/frames/2.png"
    content = BAD[name]
    if content is not None:
        frame.write_bytes(content)
    good("import", file, "--out", tmp_path / "run")
    [trace] = read_records(tmp_path / "run/traces.jsonl", Trace)
    stored = tmp_path / "run" / trace.messages[4].attachments[0].uri
    if content is None:
        stored.write_bytes(screen(7))
    requests = []
    labels = judged(tmp_path / "run", requests.append)
    assert not requests
    assert [label.value for label in labels] == [None] * 3
    assert all(str(label.reason).startswith("image attachments/") for label in labels)


def test_a_missing_frame_is_counted_and_named(tmp_path):
    file = atif(tmp_path / "raw")
    (tmp_path / "raw/frames/2.png").unlink()
    assert "image frames/2.png: No such file" in good("import", file, "--out", tmp_path / "run").err


def test_images_are_for_progress_by_a_server(tmp_path):
    good("import", atif(tmp_path / "raw"), "--out", tmp_path / "run")
    files = (tmp_path / "run/traces.jsonl", "--problems", tmp_path / "run/problems.jsonl")
    for method in ("judge-score:images=true,ask=states", "judge-score:images=true"):
        said = refused("label", files[0], method, *files[1:], "--policy=lab", "--out", tmp_path / "l.jsonl")
        assert "images=true needs" in said
