"""Images of requests: checked, stored once, and shown to whoever reads images. Records hold their hashes.

An image is its bytes. An address is refused: whoever opened it, this process or the policy's server, would
read on behalf of the client what only it can reach.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Final

from surefoot.errors import MissingExtraError, RecordError
from surefoot.images import checked, is_inline, still
from surefoot.messages.dialects import CONTENTS, OUTPUTS, PART_KINDS
from surefoot.messages.reading import data_url, embedded_bytes, embedded_hash
from surefoot.records import Attachment, Message, Trace, trusted_copy
from surefoot.server.gateway.errors import ApiError

MOST_IMAGES: Final = 100
"""Different images of one request."""
MOST_PIXELS: Final = 100_000_000
"""Pixels of one request's images that were not decoded before: a few bytes may hold very many."""
_NOT_DECODED: Final = re.compile(rb"[\w\s+/=-]+")
"""Text in place of an image: :func:`embedded_bytes` returns invalid base64 unchanged."""
_NAME: Final = "in the request"
_REMEMBERED: Final = 10_000
IMAGES: ContextVar[Mapping[str, str]] = ContextVar("images", default=MappingProxyType({}))
"""Checked images of the current request, as data URLs by hash."""
_known: Final[OrderedDict[str, str]] = OrderedDict()
"""Media types of images that were found good, by hash: a conversation sends its images again each time."""

Rows = tuple[str, Sequence[Any]]
"""Messages or items as the client sent them, and the name of their field."""


def detached(rows: Rows, messages: Iterable[Message]) -> tuple[tuple[Message, ...], dict[str, str]]:
    """The messages with hashes in place of images, and the images' data URLs by hash, not checked.

    Raises :class:`ApiError` that names the part, for anything but images with their bytes.
    """
    images: dict[str, str] = {}
    messages = tuple(messages)
    if not any(message.attachments for message in messages):
        return messages, images

    def without(held: Attachment) -> Attachment:
        if not is_inline(held):
            what = f"a part of kind {held.kind} cannot be had here; leave it out"
            if held.kind == "image":
                what = "an address is not opened; send the image itself, in base64"
            raise _refused(rows, held, what)
        digest = held.sha256 or embedded_hash(str(held.uri))
        images[digest] = str(held.uri)
        return trusted_copy(held, {"uri": None, "sha256": digest})

    return tuple(message.with_attachments(without) for message in messages), images


def checked_images(rows: Rows, images: Mapping[str, str]) -> dict[str, tuple[str, bytes]]:
    """Media type, as the bytes say, and bytes of each image. It decodes them, so call it in a thread.

    Raises :class:`ApiError` that names the part, for what is not one bounded still image, and before anything
    is decoded for more than ``MOST_IMAGES`` or ``MOST_PIXELS``.
    """
    if len(images) > MOST_IMAGES:
        raise ApiError(400, f"{rows[0]}: {len(images)} images; the limit is {MOST_IMAGES}", param=rows[0])
    contents = {digest: embedded_bytes(url) for digest, url in images.items()}
    new = 0
    for digest, content in contents.items():
        with _named(rows, digest):
            if hashlib.sha256(content).hexdigest() != digest:
                raise RecordError("the hash is of another image")
            if _NOT_DECODED.fullmatch(content):
                raise RecordError(f"image {_NAME}: not a PNG, JPEG, WEBP, GIF file, or invalid base64")
            if digest not in _known:
                with still(content, _NAME) as image:
                    new += image.width * image.height
    if new > MOST_PIXELS:
        message = f"{rows[0]}: {new:,} pixels in new images; the limit is {MOST_PIXELS:,}: send smaller ones"
        raise ApiError(400, message, param=rows[0])
    images_by_hash = {}
    for digest, content in contents.items():
        with _named(rows, digest):
            media_type = _known.get(digest) or checked(content, _NAME)
        _known[digest] = media_type
        while len(_known) > _REMEMBERED:
            _known.popitem(last=False)
        images_by_hash[digest] = (media_type, content)
    return images_by_hash


def check_traces(traces: Iterable[Trace]) -> None:
    """Raise :class:`ApiError` for images of a request's traces as :func:`checked_images` does."""
    attachments = (each for trace in traces for message in trace.messages for each in message.attachments)
    urls = (str(each.uri) for each in attachments if is_inline(each))
    checked_images(("trace", ()), {embedded_hash(url): url for url in urls})


def show(images: Mapping[str, tuple[str, bytes]]) -> None:
    """From now on, the current request's images are these."""
    IMAGES.set({digest: data_url(content, kind) for digest, (kind, content) in images.items()})


def shown(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The messages with the current request's images, for a policy or a scorer."""
    urls = IMAGES.get()

    def with_image(held: Attachment) -> Attachment:
        return trusted_copy(held, {"uri": urls.get(held.sha256 or "", held.uri)})

    return tuple(message.with_attachments(with_image) for message in messages) if urls else tuple(messages)


@contextmanager
def _named(rows: Rows, digest: str) -> Iterator[None]:
    """Refuse the image with this hash by its place."""
    try:
        yield
    except (RecordError, MissingExtraError) as error:
        raise _refused(rows, Attachment(kind="image", sha256=digest), str(error)) from error


def _refused(rows: Rows, held: Attachment, reason: str) -> ApiError:
    field = "sha256" if held.sha256 else "uri"
    same = (path for path, other in _parts(*rows) if getattr(other, field) == getattr(held, field))
    where = next(same, rows[0])
    return ApiError(400, f"{where}: {reason}", param=where, code="unsupported")


def _parts(where: str, value: Any) -> Iterator[tuple[str, Attachment]]:
    """The attachments of messages in any dialect, with their places."""
    for number, part in enumerate(value if isinstance(value, Sequence) else ()):
        if not isinstance(part, Mapping):
            continue
        if PART_KINDS.get(str(part.get("type"))) == "media":
            with suppress(ValueError):
                message = Message.model_validate({"role": "user", "content": [part]})
                yield f"{where}.{number}", message.attachments[0]
        for name in part.keys() & {*CONTENTS, *OUTPUTS}:
            if not isinstance(part[name], str):
                yield from _parts(f"{where}.{number}.{name}", part[name])
