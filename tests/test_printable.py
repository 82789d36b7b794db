"""Text that a terminal shows and does not obey."""

from __future__ import annotations

import json
import unicodedata

import pytest

from surefoot.printable import printable

OBEYED = [
    chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) in ("Cc", "Zl", "Zp", "Cs")
]
TURNS = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")


def test_every_control_character_and_change_of_direction_is_escaped():
    turns = [chr(code) for code in range(0x110000) if unicodedata.bidirectional(chr(code)) in TURNS]
    assert len(turns) == 9
    assert len(OBEYED) > 2000
    for one in (*OBEYED, *turns, "\u200e", "\u200f", "\u061c"):
        assert printable(one) == (one if one in "\n\t" else f"\\u{ord(one):04x}")


@pytest.mark.parametrize(
    "text", ["x² ≤ ½", "a\n\tb", "文字　式", "می\u200cخواهم", "👩\u200d🔬", "[bold]x[/bold]"]
)
def test_what_people_write_stays_as_it_is(text):
    assert printable(text) == text


def test_json_stays_the_same_json():
    value = {"id": "a\x1b[2J\x9b2J\u202e\x7f", "text": "line\nline"}
    shown = printable(json.dumps(value, ensure_ascii=False))
    assert shown.isprintable()
    assert json.loads(shown) == value
