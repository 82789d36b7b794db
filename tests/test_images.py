"""Images are sent as checked bytes; no address leaves the process."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import struct
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import surefoot
from surefoot import images
from surefoot.errors import RecordError
from surefoot.labelling import JudgePrompt
from surefoot.models.remote.wires import GatewayScore
from surefoot.policies.openai_requests import body_of, openai_message
from surefoot.protocols import ProblemTrace, SampleRequest
from surefoot.records import Attachment, Message, Problem, Trace
from surefoot.rl.turn_rewards import reward_row
from surefoot.segment import segment_trace

ADDRESSES = (
    "attachments/3fd6.png",
    "/etc/passwd",
    "file:///etc/passwd",
    "http://169.254.169.254/latest/meta-data",
    "https://example.org/cat.png",
    "s3://bucket/key",
    "attachment://1",
)


def saved(folder: Path, name: str, image: Image.Image | None = None, **options: object) -> Attachment:
    """An image file in ``folder`` and its attachment."""
    (image or Image.new("RGB", (8, 6), "red")).save(folder / name, **options)
    return Attachment(kind="image", uri=name)


@pytest.mark.parametrize(
    ("name", "media_type"),
    [("a.png", "image/png"), ("a.jpg", "image/jpeg"), ("a.webp", "image/webp"), ("a.gif", "image/gif")],
)
def test_a_kept_image_is_sent_as_the_bytes_of_its_file(tmp_path, name, media_type):
    attachment = saved(tmp_path, name)
    head, _, data = (images.embedded(attachment, tmp_path).uri or "").partition(",")
    assert head == f"data:{media_type};base64"
    assert base64.b64decode(data) == (tmp_path / name).read_bytes()


@pytest.mark.parametrize("kind", ["image", "audio", "file"])
@pytest.mark.parametrize("address", ADDRESSES)
def test_no_address_is_in_a_request(kind, address):
    message = Message(role="user", content="x", attachments=(Attachment(kind=kind, uri=address),))
    assert address not in json.dumps(openai_message(message))


def sent(prompt: Any) -> Any:
    return body_of(SampleRequest(prompt=prompt), model="m", mode="chat", dialect="openai")


WRITERS = {
    "policy": lambda item: sent(item.trace.messages),
    "judge": lambda item: sent(JudgePrompt().render(item)),
    "scoring server": lambda item: GatewayScore().request([item]).body,
    "trainers": lambda item: [
        reward_row(item.trace, [1.0, 1.0], engine) for engine in ("trl", "verl", "skyrl")
    ],
}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("kind", ["image", "audio", "file"])
@pytest.mark.parametrize("address", ADDRESSES)
def test_no_writer_sends_an_address(writer, kind, address):
    held = (Attachment(kind=kind, uri=address),)
    messages = (
        Message(role="user", content="Look.", attachments=held),
        Message(role="assistant", content="I look.", attachments=held),
        Message(role="tool", content="Seen.", tool_call_id="1", attachments=held),
        Message(role="assistant", content="It is red."),
    )
    trace = segment_trace(Trace(problem_id="p", messages=messages))
    item = ProblemTrace(problem=Problem(id="p", text="Which colour?"), trace=trace)
    written = json.dumps(WRITERS[writer](item))
    assert "It is red." in written
    assert address not in written
    inline = Attachment(kind="image", uri="data:image/png;base64,aGk=")
    shown = trace.model_copy(update={"messages": (trace.messages[0].with_attachments(lambda _: inline),)})
    if kind == "image" and writer in ("policy", "scoring server"):
        shown = shown.model_copy(update={"steps": ()})
        again = json.dumps(WRITERS[writer](ProblemTrace(problem=item.problem, trace=shown)))
        assert "data:image/png;base64,aGk=" in again


def test_addresses_are_read_where_images_are_and_nowhere_else():
    """Whatever writes messages elsewhere has no address to send."""
    root = Path(surefoot.__file__).parent
    readers = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if re.search(r"\.uri\b", path.read_text("utf-8"))
    }
    assert readers == {
        "display.py",
        "images.py",
        "models/families/visualprm.py",
        "policies/openai_requests.py",
        "server/gateway/images.py",
        "server/store/transfer.py",  # of data URLs, whose bytes it keeps
    }


def test_a_judge_without_images_is_shown_no_data_url_either():
    held = (Attachment(kind="image", uri="data:image/png;base64,aGk="),)
    messages = (
        Message(role="user", content="Look.", attachments=held),
        Message(role="assistant", content="It is red."),
    )
    trace = segment_trace(Trace(problem_id="p", messages=messages))
    item = ProblemTrace(problem=Problem(id="p", text="Which colour?"), trace=trace)
    assert "base64" not in json.dumps(sent(JudgePrompt().render(item)))


@pytest.mark.parametrize("content", [b"", b"<svg/>", b"GIF89a"])
def test_a_data_url_in_a_record_is_checked_too(content, tmp_path):
    held = Attachment(kind="image", uri=f"data:image/png;base64,{base64.b64encode(content).decode()}")
    with pytest.raises(RecordError, match="image data:image/png"):
        images.embedded(held, tmp_path)


def test_an_extension_says_nothing_about_the_type(tmp_path):
    saved(tmp_path, "a.png")
    (tmp_path / "a.png").rename(tmp_path / "a.jpg")
    sent = images.embedded(Attachment(kind="image", uri="a.jpg", media_type="image/jpeg"), tmp_path)
    assert sent.media_type == "image/png"


def animation() -> bytes:
    stream = io.BytesIO()
    frames = [Image.new("RGB", (4, 4), color) for color in ("red", "blue")]
    frames[0].save(stream, "GIF", save_all=True, append_images=frames[1:])
    return stream.getvalue()


def gif() -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (8, 6), "red").save(stream, "GIF")
    return stream.getvalue()


def png() -> bytes:
    stream = io.BytesIO()
    Image.effect_noise((64, 64), 50).save(stream, "PNG")
    return stream.getvalue()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not a PNG"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>", "not a PNG"),
        (png()[:-800], "damaged"),
        (gif()[:-1] + b",", "damaged"),
        (animation(), "animated"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 1 1\n", "not a PNG"),
    ],
    ids=["empty", "svg", "cut", "cut GIF", "animated", "eps"],
)
def test_what_is_not_one_still_image_is_refused_by_name(tmp_path, content, reason):
    (tmp_path / "bad.png").write_bytes(content)
    with pytest.raises(RecordError, match=rf"image bad\.png: .*{reason}"):
        images.embedded(Attachment(kind="image", uri="bad.png"), tmp_path)


def test_size_in_bytes_and_in_pixels_is_bounded_before_decoding(tmp_path, monkeypatch):
    attachment = saved(tmp_path, "wide.png", Image.new("1", (10_000, 6_000)))
    with pytest.raises(RecordError, match="10000 × 6000 pixels"):
        images.embedded(attachment, tmp_path)
    monkeypatch.setattr(images, "MAX_BYTES", 100)
    with pytest.raises(RecordError, match="larger than"):
        images.embedded(attachment, tmp_path)


def test_threads_that_overlap_leave_the_filters_of_warnings_as_they_were(monkeypatch):
    """The first enters before the second and leaves before it, so that a filter set here would stay."""
    opened, inside, left = Image.open, threading.Event(), threading.Event()

    def first_then_second(*args: Any, **options: Any) -> Any:
        if threading.current_thread().name == "first":
            assert inside.wait(30)
        else:
            inside.set()
            assert left.wait(30)
        return opened(*args, **options)

    monkeypatch.setattr(Image, "open", first_then_second)
    monkeypatch.setattr(warnings, "filters", [("default", None, Warning, None, 0)])
    before, types = list(warnings.filters), []
    threads = [
        threading.Thread(target=lambda: types.append(images.checked(png(), "x")), name=name)
        for name in ("first", "second")
    ]
    for thread in threads:
        thread.start()
    threads[0].join(30)
    left.set()
    threads[1].join(30)
    assert types == ["image/png"] * 2
    assert warnings.filters == before


def test_the_scans_of_a_photograph_are_bounded_before_decoding(monkeypatch):
    """An empty scan has ten bytes and costs a pass over all pixels: a small file could take for ever."""
    stream = io.BytesIO()
    Image.new("L", (8, 6)).save(stream, "JPEG", progressive=True)
    content, start = stream.getvalue(), stream.getvalue().rindex(b"\xff\xda")
    scan = content[start : start + 2 + int.from_bytes(content[start + 2 : start + 4], "big")]
    assert images.checked(content[:-2] + 50 * scan + content[-2:], "x") == "image/jpeg"
    monkeypatch.setattr(Image, "open", None)
    with pytest.raises(RecordError, match="image x: more than 100 scans"):
        images.checked(content[:-2] + 100 * scan + content[-2:], "x")


def test_a_photograph_with_bad_metadata_warns_of_nothing():
    """Pillow would warn of each tag in another text, and Python remembers every text."""
    stream = io.BytesIO()
    Image.new("RGB", (8, 6), "red").save(stream, "JPEG")
    tags = b"".join(struct.pack("<HHLL", 0x9000 + tag, 2, 100_000 + tag, 60_000) for tag in range(99))
    ifd = b"II*\0\x08\0\0\0" + struct.pack("<H", 99) + tags + bytes(4)
    for marker, name in ((b"\xff\xe1", b"Exif\0\0"), (b"\xff\xe2", b"MPF\0")):
        size = struct.pack(">H", len(name + ifd) + 2)
        content = b"\xff\xd8" + marker + size + name + ifd + stream.getvalue()[2:]
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            Image.open(io.BytesIO(content)).getexif()
        assert len(found) >= 99
        assert images.checked(content, "x") == "image/jpeg"


@pytest.mark.parametrize("uri", ["a\0.png", "loop.png"])
def test_what_is_no_path_is_refused(tmp_path, uri):
    (tmp_path / "loop.png").symlink_to("loop.png")
    with pytest.raises(RecordError, match="image"):
        images.embedded(Attachment(kind="image", uri=uri), tmp_path)


@pytest.mark.parametrize("uri", ["../secret.png", "/etc/hostname", "link.png"])
def test_a_path_outside_the_folder_is_refused(tmp_path, uri):
    folder = tmp_path / "run"
    folder.mkdir()
    saved(tmp_path, "secret.png")
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    with pytest.raises(RecordError, match="leaves the folder"):
        images.embedded(Attachment(kind="image", uri=uri), folder)


def test_a_path_is_followed_only_by_images_that_are_not_kept_yet(tmp_path):
    attachment = saved(tmp_path, "a.png")
    kept: dict[str, bytes] = {}

    def store(content: bytes, media_type: str) -> str:
        return kept.setdefault(media_type, content) and "attachments/1.png"

    first = images.stored(attachment, tmp_path, store)
    assert kept == {"image/png": (tmp_path / "a.png").read_bytes()}
    assert (first.uri, first.sha256) == ("attachments/1.png", hashlib.sha256(kept["image/png"]).hexdigest())
    assert images.stored(first, tmp_path / "gone", store) is first
    remote = Attachment(kind="image", uri="https://example.org/cat.png")
    assert images.stored(remote, tmp_path, store) is remote


def test_another_file_under_the_recorded_name_is_refused(tmp_path):
    attachment = saved(tmp_path, "a.png")
    recorded = hashlib.sha256((tmp_path / "a.png").read_bytes()).hexdigest()
    kept = attachment.model_copy(update={"sha256": recorded})
    assert images.embedded(kept, tmp_path).uri
    saved(tmp_path, "a.png", Image.new("RGB", (8, 6), "blue"))
    with pytest.raises(RecordError, match="not the one that was recorded"):
        images.embedded(kept, tmp_path)
    with pytest.raises(RecordError, match=r"missing\.png: No such file"):
        images.embedded(Attachment(kind="image", uri="missing.png"), tmp_path)
