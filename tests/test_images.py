"""Images are sent as checked bytes; no address leaves the process."""

from __future__ import annotations

import base64
import hashlib
import io
import json
from pathlib import Path

import pytest
from PIL import Image

from surefoot import images
from surefoot.errors import RecordError
from surefoot.policies.openai_requests import openai_message
from surefoot.records import Attachment, Message

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
