"""Whether a judge looks: judges whose eyes are known, on image files, through a server."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import good, refused
from openai_replies import Body, Reply
from openai_server import chat, serve
from PIL import Image

from surefoot import images
from surefoot.errors import RecordError
from surefoot.io import write_records
from surefoot.records import Attachment, Message, Problem, Trace
from surefoot.segment import segment_trace

COLORS = {"red": (255, 0, 0), "green": (0, 128, 0), "blue": (0, 0, 255)}
COUNT = 24


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs that name the colour of their image, all of them right, and one without any image."""
    folder = tmp_path_factory.mktemp("look")
    problems, traces = [], []
    for number in range(COUNT + 1):
        color = list(COLORS)[number % 3]
        held = (Attachment(kind="image", uri=f"{number}.png"),) if number < COUNT else ()
        Image.new("RGB", (40 + number, 30), COLORS[color]).save(folder / f"{number}.png")
        problem = Problem(text=f"Which colour? Picture {number}.", answer=color)
        messages = (
            Message(role="user", content=problem.text, attachments=held),
            Message(role="assistant", content=f"It is {color}."),
        )
        problems.append(problem)
        traces.append(segment_trace(Trace(id=f"t{number}", problem_id=problem.id, messages=messages)))
    write_records(folder / "p.jsonl", problems)
    write_records(folder / "t.jsonl", traces)
    return folder


def asked(body: Body) -> tuple[str, list[Image.Image]]:
    """The text and the images of a request."""
    content = body["messages"][-1]["content"]
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    urls = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
    assert all(url.startswith("data:image/png;base64,") for url in urls)
    shown = [Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))) for url in urls]
    return "".join(part.get("text", "") for part in parts), shown


def reply(*, right: bool) -> Reply:
    row = {"step": 0, "critique": "so it is", "verdict": "correct" if right else "incorrect"}
    return Reply(payload=chat([json.dumps({"verdicts": [row]})]))


def seeing(body: Body) -> Reply:
    """Compares the named colour with that of the image."""
    text, shown = asked(body)
    named = re.findall(r"It is (\w+)\.", text)[-1]
    return reply(right=any(image.convert("RGB").getpixel((0, 0)) == COLORS[named] for image in shown))


def blind(body: Body) -> Reply:
    asked(body)
    return reply(right=True)


def notices(body: Body) -> Reply:
    """Sees that there is an image, and not what it shows."""
    return reply(right=bool(asked(body)[1]))


def moody() -> Callable[[Body], Reply]:
    rng = np.random.default_rng(0)
    return lambda _: reply(right=bool(rng.integers(2)))


def audited(files: Path, out: Path, answer: Callable[[Body], Reply]) -> tuple[dict[str, Any], str]:
    """The figures of the audit, and its page."""
    with serve(answer) as server:
        command = [
            "audit",
            "--test=look:tolerance=0.2",
            "--policy=eyes",
            "--base-url",
            server.url,
            "--out",
            out,
        ]
        good(*command, "--problems", files / "p.jsonl", "--traces", files / "t.jsonl", "--draws=200")
    (result,) = json.loads((out / "audit.json").read_text())["look"]
    return result, (out / "audit.html").read_text()


def sizes(result: dict[str, Any]) -> Iterator[tuple[str, int, float]]:
    for effect in result["effects"]:
        yield effect["change"], effect["traces"], effect["size"]["value"]


def test_a_judge_with_eyes_looks(files: Path, tmp_path: Path) -> None:
    result, page = audited(files, tmp_path / "out", seeing)
    found = {change: (traces, size) for change, traces, size in sizes(result)}
    assert found["blank"] == (COUNT, 1)
    assert found["removed"] == (COUNT, 1)
    assert found["swapped"][0] == COUNT
    assert 0.4 < found["swapped"][1] < 0.95  # a third of the others have the same colour
    assert result["again"]["value"] == 0
    assert result["without_image"] == 1
    assert "It looks at the images." in page


@pytest.mark.parametrize("answer", [blind, notices])
def test_a_judge_whose_scores_stay_does_not_look(
    files: Path, tmp_path: Path, answer: Callable[[Body], Reply]
) -> None:
    result, page = audited(files, tmp_path / "out", answer)
    found = {change: size for change, _, size in sizes(result)}
    assert found == {"swapped": 0, "blank": 0, "removed": float(answer is notices)}
    assert "does not look at the images" in page


def test_chance_is_not_looking(files: Path, tmp_path: Path) -> None:
    result, page = audited(files, tmp_path / "out", moody())
    assert result["again"]["value"] > 0.2
    assert "It looks at the images." not in page


def test_the_text_is_the_same_whatever_is_shown(files: Path, tmp_path: Path) -> None:
    texts: dict[str, set[str]] = {}
    counts: dict[str, list[int]] = {}

    def note(body: Body) -> Reply:
        text, shown = asked(body)
        number = re.findall(r"Picture (\d+)", text)[0]
        counts.setdefault(number, []).append(len(shown))
        if shown:
            plain = re.sub(r"\b[0-9a-f]{8}\b", "MARK", text)
            texts.setdefault(number, set()).add(plain)
        return reply(right=True)

    audited(files, tmp_path / "out", note)
    assert len(texts) == COUNT
    assert all(len(seen) == 1 for seen in texts.values())
    assert all(sorted(seen) == [0, 1, 1, 1, 1] for seen in counts.values())


def test_a_server_that_does_not_judge_gives_no_verdict(files: Path, tmp_path: Path) -> None:
    with serve(lambda _: Reply(payload=chat(["no idea"]))) as server:
        command = ["audit", "--test=look", "--policy=eyes", "--base-url", server.url, "--out", tmp_path / "o"]
        error = refused(*command, "--problems", files / "p.jsonl", "--traces", files / "t.jsonl")
    assert "has scores to compare" in error


def test_the_test_needs_a_server(files: Path, tmp_path: Path) -> None:
    command = ["audit", "--test=look", "--policy=lab", "--out", tmp_path / "o"]
    error = refused(*command, "--problems", files / "p.jsonl", "--traces", files / "t.jsonl")
    assert "base_url" in error or "--base-url" in error


def test_a_blank_image_has_the_size_of_the_first(files: Path) -> None:
    held = Attachment(kind="image", uri="3.png", sha256=None)
    made = images.blank(held, files)
    image = Image.open(io.BytesIO(base64.b64decode(str(made.uri).partition(",")[2])))
    assert image.size == (43, 30)
    assert image.convert("RGB").getcolors() == [(43 * 30, (128, 128, 128))]
    with pytest.raises(RecordError, match="leaves the folder"):
        images.blank(Attachment(kind="image", uri="../x.png"), files)
