"""Labels and traces read as columns hold what their records hold, line by line, right or wrong."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from itertools import count, product

import pytest

from surefoot.errors import RecordError
from surefoot.evaluation.columns import (
    BAD,
    GOOD,
    LABEL_KINDS,
    UNREAD,
    LabelFile,
    StepLayout,
    TraceFacts,
    label_columns,
    read_traces,
    trace_facts,
)
from surefoot.evaluation.labels import label_codes, label_sets
from surefoot.io import ReadReport, read_records, write_records
from surefoot.io.files import FileLimits
from surefoot.io.tables import Facts
from surefoot.labels import LabelRule
from surefoot.records import Evidence, Message, Step, StepLabel, Trace, Usage

LABEL = StepLabel(
    trace_id="t1",
    step=2,
    kind="value",
    value=0.25,
    source="mc",
    evidence=Evidence(
        successes=1,
        trials=4,
        interval=(0.0, 0.5),
        rater="ann",
        message="a, b",
        usage=Usage(prompt_tokens=3, calls=1),
    ),
    created=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
)
GOOD_LINE = LABEL.model_dump_json()
TEXT = Trace(
    problem_id="p",
    text="one\ntwo\nthree",
    steps=[Step(start=0, end=3), Step(start=4, end=7)],
    answer="2",
    outcome=True,
    meta={"of": 1},
    usage=Usage(calls=1),
)
CHAT = Trace(
    problem_id="q",
    messages=[Message(role="user", content="go"), Message(role="assistant", content="hi")],
    steps=[Step(start=0, end=2, message=1)],
)
VALUES = (
    *(None, True, 1, -1, 0, 0.5, 2, 2**50, 2**70, -0.1, 3.0, "x", "", "1", "correctness", "advantage", "{}"),
    *([], {}, [{}], [None], [0, 1], [0, 2, 3], [1, "x"], {"x": 1}, [{"start": 0, "end": 99}]),
    *("2026-01-02T03:04:05", "2026-01-02T05:04:05+02:00", "2026-02-30T00:00:00Z", '{"repair": "x"}'),
)


def mutated(line: str) -> Iterator[str]:
    """Other lines, as this package and as ``json`` write them."""
    for other in changed(line):
        yield other
        with suppress(ValueError):
            yield json.dumps(json.loads(other), separators=(",", ":"))


def with_a_change(part: object) -> Iterator[object]:
    """Copies of a JSON value with one value anywhere in it changed, missing or added."""
    if isinstance(part, dict):
        for name in part:
            yield {key: value for key, value in part.items() if key != name}
            yield from (part | {name: value} for value in (*VALUES, *with_a_change(part[name])))
        yield part | {"unknown": None}
        yield dict(reversed(part.items()))
    elif isinstance(part, list):
        for at, item in enumerate(part):
            yield from ([*part[:at], other, *part[at + 1 :]] for other in (*VALUES, *with_a_change(item)))
            yield [*part[:at], *part[at + 1 :]]
        yield part[::-1]


def changed(line: str) -> Iterator[str]:
    """The line with any one field, also of a nested object, changed, and in other spellings."""
    yield from map(json.dumps, with_a_change(json.loads(line)))
    yield json.dumps(json.loads(line), indent=None, separators=(" , ", " : "))
    yield from (line[:60], f"{line},{line}", f"[{line}]", f"{line} {line}", "  ", "\t", '"x"', "null", "NaN")


def changed_label() -> Iterator[str]:
    """:func:`mutated` for a label, whose value depends on its kind, and spellings of the same label."""
    yield from mutated(GOOD_LINE)
    fields = json.loads(GOOD_LINE)
    for kind, value, reason in product(LABEL_KINDS, (None, -1, -0.5, 0, 0.5, 1, 1.5), (None, "", "why")):
        yield json.dumps(fields | {"kind": kind, "value": value, "reason": reason}, separators=(",", ":"))
    for value in ("NaN", "Infinity", "0.250", "25e-2"):
        yield GOOD_LINE.replace("0.25", value)
    for trace in ('"\\ud800"', '"\\u0074\\u0031"'):
        yield GOOD_LINE.replace('"t1"', trace)
    yield GOOD_LINE.replace('"step":2', '"step":2,"step":3')
    yield GOOD_LINE.replace("05Z", "05+00:00")


def columns_of(labels) -> dict[str, list]:
    """All columns of labels as lists, apart from the hashes."""
    together: dict[str, list] = {}
    for part in label_columns(labels):
        for name, column in vars(part).items():
            if name != "hashes":
                together.setdefault(name, []).extend(list(column))
    together["values"] = [None if math.isnan(value) else value for value in together.get("values", [])]
    return together


def distinct(labels: list[StepLabel]) -> list[StepLabel]:
    """The first of equal labels. Those without a time equal each other, whenever they are read."""
    kept: list[StepLabel] = []
    for label in labels:
        timed = "created" in label.model_fields_set
        same = label if timed else label.model_copy(update={"created": None})
        if same not in kept:
            kept.append(same)
    return kept


def test_a_line_gives_what_its_record_gives_or_the_same_error(tmp_path):
    path = tmp_path / "labels.jsonl"
    plain = StepLabel(trace_id="t0", step=0, kind="correctness", value=1, source="people").model_dump_json()
    for line in changed_label():
        path.write_text("\n".join([plain, line, GOOD_LINE]), encoding="utf-8")
        report, source = ReadReport(), LabelFile(str(path))
        records = list(read_records(path, StepLabel, report=report))
        assert columns_of(source) == columns_of(distinct(records)), line
        assert (source.report, source.repeated) == (report, len(records) - len(distinct(records))), line


def test_whether_labels_without_a_time_are_equal_does_not_depend_on_the_clock(tmp_path, monkeypatch):
    fields = json.loads(GOOD_LINE)
    line = json.dumps({name: value for name, value in fields.items() if name != "created"})
    path = tmp_path / "labels.jsonl"
    path.write_text("\n".join([line, GOOD_LINE, line, line.replace("t1", "t2")]), encoding="utf-8")
    seconds = count(1_700_000_000)

    class Ticking(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.fromtimestamp(next(seconds), tz)

    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    monkeypatch.setattr("surefoot.records.datetime", Ticking)
    assert LABEL.model_validate_json(line) != LABEL.model_validate_json(line)
    source = LabelFile(str(path))
    assert columns_of(source)["trace_ids"] == ["t1", "t1", "t2"]
    assert source.repeated == 1


@pytest.mark.parametrize("record", [TEXT, CHAT])
def test_a_trace_counts_only_if_its_record_is_valid(tmp_path, record):
    path = tmp_path / "traces.jsonl"
    good = record.model_dump_json()
    for line in changed(good):
        path.write_text("\n".join([good, line, good]), encoding="utf-8")
        report, read = ReadReport(), ReadReport()
        records = list(read_records(path, Trace, report=report))
        facts = list(trace_facts(path, read))
        assert read == report, line
        places = [fact.number for fact in facts], [fact.start for fact in facts]
        assert list(read_traces(path, *places, range(len(facts)))) == records, line
        assert [fact[:7] for fact in facts] == [TraceFacts.of(record)[:7] for record in records], line


def test_lines_in_every_place_of_many_and_files_of_other_kinds(tmp_path):
    labels = [LABEL.model_copy(update={"trace_id": f"t{n // 9}", "step": n % 9}) for n in range(300)]
    lines = [label.model_dump_json() for label in labels]
    lines[::70] = ["{}" for _ in lines[::70]]
    (tmp_path / "a.jsonl").write_text("\ufeff" + "\r\n\n".join(lines) + "\n", encoding="utf-8")
    write_records(tmp_path / "b.jsonl.gz", labels)
    source, report = LabelFile(str(tmp_path / "[ab].jsonl*")), ReadReport()
    records = list(read_records(source.path, StepLabel, report=report))
    assert columns_of(source) == columns_of(distinct(records))
    assert source.report == report
    assert source.repeated == len(records) - len(distinct(records)) > 290


def test_bounds_of_files_hold_and_a_file_without_labels_says_what_a_label_needs(tmp_path, monkeypatch):
    path = tmp_path / "labels.jsonl"
    path.write_text("\n".join([GOOD_LINE] * 200))
    for name, most in (("SUREFOOT_MAX_ROWS", "150"), ("SUREFOOT_MAX_PIECE_BYTES", "100")):
        with monkeypatch.context() as environment:
            environment.setenv(name, most)
            assert FileLimits.from_environment() != FileLimits()
            with pytest.raises(RecordError, match=name):
                list(LabelFile(str(path)))
    path.write_text('{"trace_id": "a"}\n')
    with pytest.raises(RecordError, match=r"labels.jsonl: its one line is not usable; line 1: field 'step'"):
        list(LabelFile(str(path)))


@pytest.mark.parametrize("neutral", ["good", "bad", "drop"])
@pytest.mark.parametrize("good_above", [None, 0.0, 0.5])
def test_columns_are_read_by_the_rule_as_records_are(neutral, good_above):
    rule = LabelRule(neutral=neutral, good_above=good_above)
    values = {"correctness": (-1, 0, 1), "value": (0, 0.3, 0.5, 0.7, 1), "advantage": (-1, 0, 1)}
    labels = [
        StepLabel(trace_id="t", step=0, kind=kind, value=value, reason="?", source="s")
        for kind in LABEL_KINDS
        for value in (*values[kind], None)
    ]
    [columns] = label_columns(labels)
    expected = [{True: GOOD, False: BAD, None: UNREAD}[rule.good(label)] for label in labels]
    assert label_codes(rule, columns).tolist() == expected
    for label, code in zip(labels, expected, strict=True):
        [one] = label_sets("s", [label], StepLayout([Facts("t", "p", 1)]), rule)
        reason = label.reason if label.value is None else rule.why_unknown(label)
        assert one.counts.unread == ({reason: 1} if code == UNREAD else {})


def test_traces_give_their_facts_and_the_place_of_their_line(tmp_path):
    text = Trace(problem_id="p", text="one\ntwo", steps=[Step(start=0, end=3)], answer="2", outcome=True)
    chat = Trace(problem_id="q", messages=[Message(role="assistant", content="hi")])
    path = tmp_path / "traces.jsonl"
    by_hand = '{"problem_id": "p", "text": "three", "answer": 3}'
    rows = [
        text.model_dump_json(),
        "",
        chat.model_dump_json(),
        '{"text": 1}',
        by_hand,
        text.model_dump_json(),
    ]
    path.write_text("\n".join(rows))
    report = ReadReport()
    facts = list(trace_facts(path, report))
    records = [Trace.model_validate_json(rows[fact.number - 1]) for fact in facts]
    assert [fact.number for fact in facts] == [1, 3, 5, 6]
    assert (report.good, report.bad_count, report.bad[0][0]) == (4, 1, 4)
    for fact, record in zip(facts, records, strict=True):
        assert fact.id == record.id
        assert fact.problem_id == record.problem_id
        assert (fact.steps, fact.answer, fact.outcome) == (len(record.steps), record.answer, record.outcome)
        assert fact.characters == len(record.text or "")
        assert fact.record == (None if record.text else record)
        assert path.read_bytes()[fact.start :].startswith(rows[fact.number - 1].encode())
    assert facts[1].record == chat
