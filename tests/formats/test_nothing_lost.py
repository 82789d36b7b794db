"""Every text of a file is in a record, or its field is named in the account of what was left out."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dialect_rows
import hostile_files as hostile
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surefoot.errors import RecordError
from surefoot.formats import ImportContext, ImportSettings, detect_format, import_traces
from surefoot.formats.account import _WORDS
from surefoot.io import ReadReport
from surefoot.records import Record

ARCHIVES = Path(__file__).parents[3] / "shared" / "data" / "agent"
NAMED = re.compile(r"(\S.*?) \(\d[\d,]*\)(?:, |$)")


def texts_of(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Texts of a JSON value with their path."""
    if isinstance(value, dict):
        pair = value.keys() == {"key", "value"} and isinstance(value["key"], str)  # OTLP's attributes
        for name, item in ({value["key"]: value["value"]} if pair else value).items():
            if name != "intValue":  # a number
                yield from texts_of(item, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for item in value:
            yield from texts_of(item, path)
    elif isinstance(value, str):
        inner = None
        if value[:1] in ("[", "{"):
            try:
                inner = json.loads(value)
            except ValueError:
                inner = None
        yield from [(path, value)] if inner is None else texts_of(inner, path)


def all_texts(value: Any) -> Iterator[str]:
    """All texts of records, also those in JSON text."""
    if isinstance(value, Record):
        value = value.model_dump(mode="json")
    elif hasattr(value, "__dataclass_fields__"):
        value = list(vars(value).values())
    if isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from all_texts(item)
    elif isinstance(value, str):
        yield value
        if value[:1] in ("[", "{"):
            try:
                yield from all_texts(json.loads(value))
            except ValueError:
                return


def hash_of(text: str) -> str | None:
    """The hash of an embedded image, which the record has in its place."""
    try:
        return hashlib.sha256(base64.b64decode(text.partition("base64,")[2] or text)).hexdigest()
    except ValueError:
        return None


def assert_nothing_lost(path: Path, rows: Any, *, some: bool = True) -> list[Any]:
    context = ImportContext(settings=ImportSettings(), report=ReadReport(), failed=[])
    items = list(import_traces(path, detect_format(path), context))
    assert items or not some, context.report.summary()
    account = "\n".join(context.account())
    named = set()
    for line in account.split("\n"):
        if line.startswith("fields that no record holds: "):
            named |= set(NAMED.findall(line.partition(": ")[2]))
        elif match := re.match(r"column \S+ = (.*?): ", line):
            named.add(match[1])
    known = list(all_texts(items))
    exact, joined = set(known), "\0".join(known)
    for where, text in texts_of(rows):
        if not text.strip() or text in exact or text in joined or text in _WORDS or hash_of(text) in exact:
            continue
        if json.dumps(text, ensure_ascii=False)[1:-1] in joined:  # inside a text that has JSON in it
            continue
        names = where.split(".")
        paths = {".".join(names[start:end]) for start in range(len(names)) for end in range(len(names) + 1)}
        assert paths & named or any(name.endswith(f".{where}") for name in named), (where, text, account)
    return items


def written(folder: Path, *rows: Any, name: str = "in.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


SEEDS = [seed for seed in hostile.SEEDS if seed.rows and not seed.reader.startswith(("records", "pool"))]


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"{seed.reader} {seed.ending}")
def test_of_every_formats_examples(seed, tmp_path):
    path = tmp_path / f"in{seed.ending}"
    path.write_bytes(seed.written)
    path = hostile.robot_folder(path, tmp_path / "arm") if "lerobot" in seed.reader else path
    assert_nothing_lost(path, list(seed.rows))


@pytest.mark.parametrize("name", dialect_rows.DIALECTS)
@settings(max_examples=10, deadline=None)
@given(turn=dialect_rows.turns(), more=st.dictionaries(dialect_rows.TEXTS, dialect_rows.VALUES, max_size=2))
def test_of_messages_with_unknown_fields_and_parts(name, turn, more, tmp_path_factory):
    rows = dialect_rows.DIALECTS[name](turn)
    noise = {f"x-{key}": value for key, value in more.items()}
    rows = [{**row, "noise": noise} for row in rows]
    rows.insert(
        1, {"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "x-part", **noise}]}
    )
    row = {"messages": rows, "about": noise, "system": "Be brief."}
    assert_nothing_lost(written(tmp_path_factory.mktemp("rows"), row), row)


@settings(max_examples=25, deadline=None)
@given(
    row=st.dictionaries(
        st.sampled_from(
            ["problem", "question", "response", "answer", "steps", "correct", "model", "id", "x", "y.z"]
        ),
        dialect_rows.VALUES,
        max_size=8,
    )
)
def test_of_own_rows(row, tmp_path_factory):
    path = written(tmp_path_factory.mktemp("rows"), row, {"problem": "p", "response": "r"})
    context = ImportContext(settings=ImportSettings(), report=ReadReport())
    list(import_traces(path, detect_format(path), context))
    if not context.report.bad_count:
        assert_nothing_lost(path, row)


def test_a_column_says_how_many_values_it_has_and_which_cannot_be_read(tmp_path):
    rows = [
        {"problem": "p", "response": "r", "passed": passed, "finish_reason": ending}
        for passed, ending in [
            ("no", "length"),
            ("yes", "stop"),
            (1.0, "weird"),
            ("maybe", None),
            (None, "eos"),
        ]
    ]
    context = ImportContext(settings=ImportSettings(), report=ReadReport())
    found = list(import_traces(written(tmp_path, *rows), "rows", context))
    assert [item.trace.outcome for item in found] == [False, True, True, None, None]
    assert [item.trace.cut_off for item in found] == [True, False, False, False, False]
    assert list(context.account()) == [
        "column text = response: 5 values read",
        "column problem = problem: 5 values read",
        "column outcome = passed: 3 values read, 1 not, such as 'maybe'",
        "column finish_reason = finish_reason: 3 values read, 1 not, such as 'weird'",
    ]


def test_python_text_of_pandas_and_steps_with_labels_are_read(tmp_path):
    rows = [
        {"problem": "p", "steps": "['a, b', \"it's\"]", "step_labels": [1, -1]},
        {"problem": "q", "steps": "['a' 'b']", "step_labels": [True, None]},
        {"problem": "r", "steps": "['a', __import__('os')]"},
    ]
    context = ImportContext(settings=ImportSettings(), report=ReadReport())
    found = list(import_traces(written(tmp_path, *rows), "rows", context))
    assert [[item.trace.step_text(at).strip() for at in range(2)] for item in found] == [
        ["a, b", "it's"],
        ["a", "b"],
    ]
    assert [[label.value for label in item.labels] for item in found] == [[1, -1], [1, None]]
    assert "1 not, such as" in next(line for line in context.account() if line.startswith("column steps"))
    assert "steps are a list of texts, not \"['a', __import__" in context.report.bad[0][1]
    nested = {
        "image": "a.png",
        "question": "q",
        "response": {"steps": ["a", "b"], "process_correctness": [1, -1]},
    }
    [item] = assert_nothing_lost(written(tmp_path, nested), nested)
    assert (len(item.trace.steps), [label.value for label in item.labels]) == (2, [1, -1])


def test_a_prompts_system_text_is_read(tmp_path):
    prompt = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]
    turns = [*prompt[1:], {"from": "gpt", "value": "4"}]
    for row in ({"prompt": prompt, "completion": "4"}, {"conversations": turns, "system": "Be brief."}):
        [item] = assert_nothing_lost(written(tmp_path, row), row)
        assert [message.content for message in item.trace.messages] == ["Be brief.", "2+2?", "4"]


@pytest.mark.parametrize("form", sorted(hostile.FORMATS))
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_any_json_ends_in_a_record_or_an_error_of_the_package(form, data, tmp_path_factory):
    """Names of the format's own fields, with values of any type."""
    names = sorted(
        {name for seed in hostile.SEEDS if seed.reader.endswith(f" {form}") for name in keys(seed.rows)}
    )
    values = st.recursive(
        st.none() | st.booleans() | st.integers(-9, 9) | st.floats() | st.text(max_size=4)
        | st.sampled_from(names or ["a"]),
        lambda inner: st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(names or ["a"]), inner, max_size=6),
        max_leaves=20,
    )  # fmt: skip
    rows = data.draw(
        st.lists(st.dictionaries(st.sampled_from(names or ["a"]), values, max_size=8), min_size=1)
    )
    path = written(tmp_path_factory.mktemp("rows"), *rows)
    context = ImportContext(settings=ImportSettings(), report=ReadReport())
    for name in {form, detect_format(path)} - {"records"}:
        try:
            list(import_traces(path, name, context))
        except RecordError:
            continue


def keys(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
    for item in (
        value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    ):
        yield from keys(item)


def archived(name: str, ending: str) -> list[bytes]:
    path = ARCHIVES / name
    if not path.exists():
        pytest.skip("the archives are not part of the repository")
    with tarfile.open(path) as archive:
        return [archive.extractfile(member).read() for member in archive if member.name.endswith(ending)]


@pytest.mark.parametrize(
    ("name", "ending"),
    [
        ("terminal_bench_2.1_mini_swe_agent.tar.gz", "_trajectory.json"),
        ("harbor_trials_claude_code_kimi.tar.gz", "agent/trajectory.json"),
        ("harbor_trials_claude_code_kimi.tar.gz", "claude-code.txt"),
        ("claude_code_streams.tar.gz", "session.jsonl"),
    ],
)
def test_of_archives(name, ending, tmp_path):
    for number, content in enumerate(archived(name, ending)):
        path = tmp_path / f"{number}.jsonl"
        path.write_bytes(content)
        lines = content.split(b"\n")
        rows = (
            [json.loads(line) for line in lines if line.strip()]
            if ending[-1] in "tl"
            else json.loads(content)
        )
        assert_nothing_lost(path, rows)


@pytest.mark.parametrize("name", ["agentprocessbench_hotpotqa.jsonl.gz", "tau_bench_gpt4o_airline.json.gz"])
def test_of_data_sets_of_runs(name, tmp_path):
    if not (ARCHIVES / name).exists():
        pytest.skip("the archives are not part of the repository")
    content = gzip.decompress((ARCHIVES / name).read_bytes())
    rows = [json.loads(line) for line in content.splitlines()] if "jsonl" in name else json.loads(content)
    assert_nothing_lost(ARCHIVES / name, rows)
