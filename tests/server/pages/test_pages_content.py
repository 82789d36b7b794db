"""The reference set of contents: each is escaped, stands in a box of its own, and is shown whole."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser

import pytest
from annotation_site import Room
from browsing import ALL_LOOKS, enter, served
from content_site import CASES, cases_in, open_contents
from real_browser import chromium

VOID = {"br", "img", "input", "hr", "meta", "link"}
LATEX = re.compile(r"\\(?:[a-zA-Z]{2,}|\\)")


class Boxes(HTMLParser):
    """Elements and words of each step of a run, and of the messages after it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.steps: list[Box] = []
        self._open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        sent = dict(attrs)
        if tag == "li" and (sent.get("class") or "").split()[:1] == ["step"]:
            self.steps.append(Box())
        if self.steps:
            self.steps[-1].add(tag, sent, self._open)
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self.steps:
            self.steps[-1].words.append((data, tuple(self._open)))


class Box:
    """One step."""

    def __init__(self) -> None:
        self.tags: set[str] = set()
        self.handlers: set[str] = set()
        self.sources: list[str] = []
        self.automatic = 0
        self.words: list[tuple[str, tuple[str, ...]]] = []

    def add(self, tag: str, attrs: dict[str, str | None], _: list[str]) -> None:
        self.tags.add(tag)
        self.handlers |= {name for name in attrs if name.startswith("on")}
        self.handlers |= {f"{attrs['href']}"} if (attrs.get("href") or "").startswith("javascript") else set()
        self.automatic += attrs.get("dir") == "auto"
        if attrs.get("class") == "formula":
            self.sources.append(attrs["title"] or "")

    def text(self, *, code: bool = True) -> str:
        return "".join(words for words, inside in self.words if code or not {"code", "pre"} & {*inside})


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Room, dict[str, str]]]:
    room, addresses = open_contents(tmp_path_factory.mktemp("contents"))
    yield room, addresses
    room.db.close()


@pytest.fixture(scope="module")
def boxes(contents: tuple[Room, dict[str, str]]) -> dict[str, Box]:
    """The box of each case but the answer, which stands above the steps."""
    room, addresses = contents
    admin = room.browser("admin")
    places = {"solution": ("solution",), "run": ("message", "result", "call")}
    return {
        case["name"]: box
        for run, of_run in places.items()
        for case, box in zip(cases_in(*of_run), Boxes(admin.get(addresses[run]).text).steps, strict=True)
    }


def test_there_are_sixty_cases_with_names_of_their_own() -> None:
    assert len({case["name"] for case in CASES}) == len(CASES) == 60


@pytest.mark.parametrize("case", [one for one in CASES if one["in"] != "answer"], ids=lambda one: one["name"])
def test_a_content_is_escaped_and_in_its_form(case: dict[str, object], boxes: dict[str, Box]) -> None:
    box, text = boxes[str(case["name"])], str(case["text"])
    assert {*case["has"]} <= box.tags  # type: ignore[misc]
    assert not box.handlers
    assert not box.tags & {"script", "iframe", "style", *case.get("never", ())}  # type: ignore[misc]
    assert box.automatic, "its direction is that of its text"
    if case["in"] in ("solution", "message") and "code" not in box.tags and "math" in box.tags:
        assert not LATEX.search(box.text(code=False)), "LaTeX that is not a formula"
    # nothing is lost: every word is there, in the text, in the source of a formula, or in an address
    shown = "".join([box.text(), *box.sources])
    visible = re.sub("[\u202a-\u202e\u2066-\u2069]", lambda one: f"\\u{ord(one[0]):04x}", text)
    if case["in"] != "call":
        for word in re.findall(r"[^\W_]{2,}", re.sub(r"\]\([^)]*\)|```\w*", "", visible)):
            assert word in shown, word


def test_an_answer_without_dollars_is_a_formula(contents: tuple[Room, dict[str, str]]) -> None:
    room, addresses = contents
    page = room.browser("admin").get(addresses["solution"]).text
    assert re.search(r'answer <span class="formula" title="[^"]*"><math', page)


def test_json_of_a_run_has_the_texts_unchanged(contents: tuple[Room, dict[str, str]]) -> None:
    room, addresses = contents
    data = room.browser("admin").json(addresses["run"].replace("/run?", "/run.json?"))
    contents_of = [message.get("content") for message in data["trace"]["messages"]]
    for case in cases_in("message"):
        assert case["text"] in contents_of


MEASURE = """() => {
  const wrong = [], scrolls = (node) => /auto|scroll/.test(getComputedStyle(node).overflowX);
  for (const step of document.querySelectorAll(".step, .between")) {
    const name = step.dataset.name ?? "between";
    const edge = step.getBoundingClientRect().right;
    for (const node of step.querySelectorAll("*")) {
      if (!node.getClientRects().length) continue;
      let box = node.parentElement;
      while (box !== step && !scrolls(box)) box = box.parentElement;
      if (box === step && node.getBoundingClientRect().right > edge + 1)
        wrong.push(`${name}: ${node.tagName} leaves its step`);
    }
    for (const box of step.querySelectorAll(".text, .formula, pre, table, .kv")) {
      if (!box.getClientRects().length) continue;
      const style = getComputedStyle(box);
      if (style.overflowY !== "visible" && box.scrollHeight > box.clientHeight + 1)
        wrong.push(`${name}: ${box.className} is cut below`);
      if (box.scrollWidth <= box.clientWidth + 1 || style.display === "table") continue;
      if (!scrolls(box)) wrong.push(`${name}: ${box.className} is cut`);
      if (box.tabIndex < 0 || !box.getAttribute("aria-label"))
        wrong.push(`${name}: the end of ${box.tagName} is not reached by keyboard`);
      box.scrollLeft = 1e6;
      const last = box.lastElementChild ?? box;
      if (last.getBoundingClientRect().right > box.getBoundingClientRect().right + 2)
        wrong.push(`${name}: the end is not seen`);
    }
  }
  return wrong;
}"""


@pytest.mark.slow
def test_every_content_fits_its_box_on_a_desk_and_on_a_phone(
    contents: tuple[Room, dict[str, str]],
) -> None:
    room, addresses = contents
    wrong = []
    with served(room.app) as address, chromium() as browser:
        for _, width, height, scheme in ALL_LOOKS[:2]:
            view = {"width": 1200 if width > 1000 else width, "height": height}
            page = enter(browser, address, "admin", viewport=view, color_scheme=scheme)
            for run in addresses.values():
                page.goto(address + run)
                page.eval_on_selector_all("details", "all => all.forEach((one) => { one.open = true; })")
                page.evaluate("dispatchEvent(new Event('resize'))")
                wrong += [f"{width}: {sentence}" for sentence in page.evaluate(MEASURE)]
                if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
                    wrong.append(f"{width}: the page is too wide")
    assert wrong == [], json.dumps(wrong, indent=1)
