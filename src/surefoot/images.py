"""Images of messages for a server: their bytes as data URLs, checked and bounded; never an address."""

from __future__ import annotations

import hashlib
import io
import mimetypes
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from surefoot import extras
from surefoot.errors import RecordError
from surefoot.messages.reading import StoreAttachment, data_url, embedded_bytes
from surefoot.records import Attachment

if TYPE_CHECKING:
    from PIL import Image

MAX_BYTES: Final = 20 * 2**20
"""Largest image file that is sent, in bytes."""
MAX_PIXELS: Final = 50_000_000
"""Largest image that is decoded, in pixels."""
_MOST_SCANS: Final = 100
_SCHEME: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")
FORMATS: Final = {"PNG": "image/png", "JPEG": "image/jpeg", "WEBP": "image/webp", "GIF": "image/gif"}
"""Formats that servers read, with their media types. SVG, which may hold scripts, is none of them."""


def embedded(attachment: Attachment, folder: Path) -> Attachment:
    """The attachment with its image as a data URL, read from ``folder``, the folder of the records' file, or
    from the data URL that it has.

    An attachment that is not an image, or whose bytes are not kept, is returned unchanged.

    Raises:
        RecordError: the file lies outside the folder, is missing, is larger than ``MAX_BYTES`` or
            ``MAX_PIXELS``, has other bytes than were recorded, or is not one still image of ``FORMATS``.
        MissingExtraError: without Pillow.
    """
    if not is_kept(attachment):
        return attachment
    content, name = _bytes(attachment, folder), str(attachment.uri)[:200]
    if attachment.sha256 not in (None, hashlib.sha256(content).hexdigest()):
        raise RecordError(f"image {name}: the file is not the one that was recorded; import it again")
    media_type = checked(content, name)
    return attachment.model_copy(update={"uri": data_url(content, media_type), "media_type": media_type})


def stored(attachment: Attachment, folder: Path, store: StoreAttachment) -> Attachment:
    """The attachment with its image, read from ``folder`` as :func:`embedded` does, in ``store``.

    It is checked when it is used. Raises ``RecordError`` as there.
    """
    if not is_kept(attachment) or (attachment.sha256 and not is_inline(attachment)):
        return attachment
    content = _bytes(attachment, folder)
    media_type = attachment.media_type or mimetypes.guess_type(str(attachment.uri))[0]
    uri = store(content, media_type or "application/octet-stream")
    return attachment.model_copy(update={"uri": uri, "sha256": hashlib.sha256(content).hexdigest()})


def blank(attachment: Attachment, folder: Path) -> Attachment:
    """The attachment with a grey image of the same size. Raises as :func:`embedded`."""
    from PIL import Image

    content = embedded_bytes(str(embedded(attachment, folder).uri))
    with Image.open(io.BytesIO(content), formats=tuple(FORMATS)) as image:
        size, stream = image.size, io.BytesIO()
    Image.new("RGB", size, "grey").save(stream, "PNG")
    url = data_url(stream.getvalue(), "image/png")
    return attachment.model_copy(update={"uri": url, "media_type": "image/png", "sha256": None})


def is_inline(attachment: Attachment) -> bool:
    """Whether it is an image whose bytes are in its data URL."""
    return attachment.kind == "image" and (attachment.uri or "").startswith("data:")


def is_kept(attachment: Attachment) -> bool:
    """Whether it is an image with bytes: in its own data URL, or in a file that a path names."""
    uri = attachment.uri
    return attachment.kind == "image" and uri is not None and not _SCHEME.match(uri)


def _bytes(attachment: Attachment, folder: Path) -> bytes:
    uri = str(attachment.uri)
    if is_inline(attachment):
        return embedded_bytes(uri)
    try:
        path, root = (folder / uri).resolve(), folder.resolve()
        if not path.is_relative_to(root):  # a file of another person or program, named by a hostile record
            raise RecordError(f"image {uri}: the path leaves the folder {folder}")
        with path.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except (OSError, RuntimeError, ValueError) as error:  # such as a null byte, or a loop of links
        reason = getattr(error, "strerror", None) or "cannot be read"
        raise RecordError(f"image {uri}: {reason} in {folder}") from error
    if len(content) > MAX_BYTES:
        raise RecordError(f"image {uri}: larger than {MAX_BYTES // 2**20} MB")
    return content


def checked(content: bytes, name: str) -> str:
    """The media type of one still image that can be decoded in bounds.

    Raises:
        RecordError: it is larger than ``MAX_BYTES`` or ``MAX_PIXELS``, damaged, animated, or of no format of
            ``FORMATS``; ``name`` says in the message which image it is.
        MissingExtraError: without Pillow.
    """
    with still(content, name) as image:
        image.load()
        return FORMATS[str(image.format)]


@contextmanager
def still(content: bytes, name: str) -> Iterator[Image.Image]:
    """One still image in bounds, not decoded yet. Raises as :func:`checked`, also for errors in the block.

    It sets no filters of warnings, which belong to the process: images are read in threads.
    """
    if len(content) > MAX_BYTES:
        raise RecordError(f"image {name}: larger than {MAX_BYTES // 2**20} MB")
    extras.need("PIL", "reading images")
    from PIL import Image, UnidentifiedImageError

    if content.startswith(b"\xff\xd8"):  # a warning for each bad tag of a JPEG, which Python keeps for ever
        content = re.sub(rb"(Exif\0|MPF)\0", rb"\1-", content)
        if content.count(b"\xff\xda") > _MOST_SCANS:  # each visits all pixels, and takes ten bytes
            raise RecordError(f"image {name}: more than {_MOST_SCANS} scans; save it again")
    try:
        image = Image.open(io.BytesIO(content), formats=tuple(FORMATS))
        if image.width * image.height > MAX_PIXELS:
            raise RecordError(f"image {name}: {image.width} × {image.height} pixels are too many")
        if getattr(image, "n_frames", 1) > 1:
            raise RecordError(f"image {name}: it is animated; keep one frame")
        yield image
    except RecordError:
        raise
    except Exception as error:  # whatever a decoder raises on damaged bytes
        is_other = isinstance(error, UnidentifiedImageError)
        what = f"not a {', '.join(FORMATS)} file" if is_other else f"damaged ({error})"
        raise RecordError(f"image {name}: {what}") from error
