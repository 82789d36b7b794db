"""Journals: order of pieces, incomplete pieces, and records that cannot be written."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from surefoot.errors import RecordError
from surefoot.io.runs import Journal
from surefoot.records import Problem


def texts(journal: Journal[Problem]) -> list[str]:
    return [problem.text for problem in journal.read()]


def test_pieces_come_back_in_the_order_of_their_numbers(tmp_path: Path):
    with closing(Journal(tmp_path / "j", Problem)) as journal:
        journal.write(3, [Problem(text="d\n]}")])
        journal.write(0, [Problem(text="a"), Problem(text="á ≤ b")])
        journal.write(2, [])
        assert texts(journal) == ["a", "á ≤ b", "d\n]}"]
        assert journal.missing(5) == [1, 4]
    with closing(Journal(tmp_path / "j", Problem)) as journal:
        assert journal.missing(5) == [1, 4]
        journal.write(1, [Problem(text="c")])
        assert texts(journal) == ["a", "á ≤ b", "c", "d\n]}"]
        assert [(number, len(piece)) for number, piece in journal.pieces()] == [
            (0, 2),
            (1, 1),
            (2, 0),
            (3, 1),
        ]
        journal.write(0, [Problem(text="again")])
        assert texts(journal) == ["again", "c", "d\n]}"], "a piece that is done again replaces the first"


def test_a_line_cut_at_any_byte_is_a_missing_piece_and_nothing_else(tmp_path: Path):
    path = tmp_path / "j"
    with closing(Journal(path, Problem)) as journal:
        journal.write(0, [Problem(text="a")])
        first = path.stat().st_size
        journal.write(1, [Problem(text="b")])
    whole = path.read_bytes()
    for end in range(first, len(whole)):
        path.write_bytes(whole[:end])
        with closing(Journal(path, Problem)) as journal:
            assert journal.missing(2) == [1]
            journal.write(1, [Problem(text="b")])
        assert path.read_bytes() == whole


def test_a_corrupted_piece_and_all_after_it_are_missing(tmp_path: Path):
    path = tmp_path / "j"
    with closing(Journal(path, Problem)) as journal:
        sizes = []
        for number in range(3):
            journal.write(number, [Problem(text="x" * 50)])
            sizes.append(path.stat().st_size)
    content = bytearray(path.read_bytes())
    content[sizes[0] + 60] = 0
    path.write_bytes(content)
    with closing(Journal(path, Problem)) as journal:
        assert journal.missing(3) == [1, 2]
    assert path.stat().st_size == sizes[0]


def test_a_record_that_is_no_text_leaves_the_file_as_it_was(tmp_path: Path):
    with closing(Journal(tmp_path / "j", Problem)) as journal:
        journal.write(0, [Problem(text="a")])
        with pytest.raises(RecordError, match="record 1 cannot be written"):
            journal.write(1, [Problem.model_construct(text="\ud800", id="x")])
        assert texts(journal) == ["a"]
