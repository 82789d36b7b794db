"""Write the pictures of the pages that README and the guides show.

    PYTHONPATH=. python tests/support/write_pictures.py       # docs/images
    PYTHONPATH=. python tests/support/write_pictures.py DIR   # the same pages in all four looks, for review

Needs Playwright and a Chromium on the path. Projects and requests are those of the tests of the pages; the
report is measured when this runs: verifiers on the steps of a scripted agent in the shop of the benchmarks.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import chdir
from io import BytesIO
from pathlib import Path

import numpy as np
from browsing import ALL_LOOKS, PHONE, WIDE, looked_at, served
from command_line import good
from PIL import Image
from playwright.sync_api import Page
from real_browser import chromium
from screenshot_pages import open_shown

from benchmarks.worlds.shop import generate_tasks
from surefoot.io import write_records

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
LIGHT = {
    "page-home": ("project", WIDE),
    "page-runs": ("traces", WIDE),
    "page-run": ("trace", WIDE),
    "page-report": ("report", WIDE),
    "page-label": ("agent", PHONE),
    "page-held": ("held-call", WIDE),
}
"""By name of the picture: view and width."""
TALLEST, COLOURS = 1100, 160
"""Pixels of a picture, whose rest is cut, and its colours."""


def write_report() -> None:
    """``shop/runs.html``: two verifiers on 120 runs against the truth."""
    write_records("tasks.jsonl", generate_tasks(60, seed=0))
    tasks = ("--problems", "tasks.jsonl")
    shop = "benchmarks.worlds.shop"
    agent = ("--environment", f"{shop}:Shop", "--policy", f"{shop}:ShopAgent")
    good("sample", "tasks.jsonl", *agent, "--n", 2, "--out", "runs.jsonl")
    verifiers = {"shop": f"{shop}:ShopVerifier", "tool-calls": "tool-calls", "gold-calls": "gold-calls"}
    for name, verifier in verifiers.items():
        good("label", "runs.jsonl", f"verify:rules={verifier}", *tasks, "--out", f"{name}.jsonl")
    compared = ("tool-calls=tool-calls.jsonl", "gold-calls=gold-calls.jsonl")
    truth = ("--labels", "shop.jsonl")
    good(
        "evaluate",
        "--as=runs:unknown=good",
        *compared,
        "--traces",
        "runs.jsonl",
        *tasks,
        *truth,
        "--out",
        "shop",
    )


def write_picture(page: Page, width: int, height: int, path: Path) -> None:
    """The page as far as ``TALLEST``, in few colours, which is half of the bytes."""
    page.wait_for_load_state()
    tall = page.evaluate("document.documentElement.scrollHeight")
    page.set_viewport_size({"width": width, "height": min(max(tall, height), TALLEST)})
    page.evaluate("scrollTo(0, 0)")
    drawn = Image.open(BytesIO(page.screenshot())).convert("RGB")
    # the most frequent colours stay as they are: other palettes tint the background
    pixels = np.asarray(drawn, np.int32)
    colours, at, counts = np.unique(pixels.reshape(-1, 3), axis=0, return_inverse=True, return_counts=True)
    kept = colours[np.argsort(-counts, kind="stable")[:COLOURS]]
    nearest = np.square(colours[:, None] - kept).sum(axis=2).argmin(axis=1).astype(np.uint8)
    small = Image.fromarray(nearest[at].reshape(pixels.shape[:2]))
    small.putpalette(kept.astype(np.uint8).tobytes())
    small.save(path, optimize=True)


def main() -> None:
    """The kept pictures, or all looks of their pages into the folder that is named."""
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES
    out.mkdir(parents=True, exist_ok=True)
    out = out.resolve()
    with tempfile.TemporaryDirectory() as name, chdir(name):
        folder = Path(name)
        write_report()
        found, views = open_shown(folder, reports=(folder,))
        views["report"] = ("admin", f"/report?id={folder.name}%2Fshop%2Fruns.html")
        with served(found.room.app) as address, chromium() as browser:
            for look in ALL_LOOKS if out != IMAGES else [(*WIDE, "light"), (*PHONE, "light")]:
                names = {
                    view: picture
                    for picture, (view, size) in LIGHT.items()
                    if out != IMAGES or look[0] == size[0]
                }
                shown = address, {view: views[view] for view in names}, browser
                for view, page in looked_at(shown, *look):
                    ending = "" if out == IMAGES else f"-{look[0]}-{look[3]}"
                    write_picture(page, look[1], look[2], out / f"{names[view]}{ending}.png")
        found.db.close()


if __name__ == "__main__":
    main()
