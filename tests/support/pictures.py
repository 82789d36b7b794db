"""Image files that tests make: sound ones, an animation, and one with too many pixels."""

from __future__ import annotations

import io

from PIL import Image


def picture(form: str = "PNG", size: tuple[int, int] = (30, 20), color: str = "teal") -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", size, color).save(stream, form)
    return stream.getvalue()


def animated() -> bytes:
    stream = io.BytesIO()
    frames = [Image.new("RGB", (4, 4), color) for color in ("red", "blue")]
    frames[0].save(stream, "GIF", save_all=True, append_images=frames[1:])
    return stream.getvalue()


def huge() -> bytes:
    stream = io.BytesIO()
    Image.new("1", (10_000, 6_000)).save(stream, "PNG")
    return stream.getvalue()
