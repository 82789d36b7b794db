"""Valid files of every format that the package reads, and ways to break them."""

from __future__ import annotations

import gzip
import io
import json
import struct
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from benchmarks.readers.agent_judgements import read_judges
from benchmarks.readers.fover import read_fover_scores
from surefoot import records
from surefoot.errors import RecordError
from surefoot.formats import FORMATS, ImportContext, ImportSettings, detect_format, import_traces, read_source
from surefoot.io import ReadReport, read_records
from surefoot.records import Message, Problem, Record, Step, StepLabel, StepPair, StepScores, ToolCall, Trace

DATA = Path(__file__).parents[1] / "data"


@dataclass(frozen=True)
class Seed:
    """A valid file: ``read`` takes its path and a report and yields what is in it."""

    reader: str
    """What reads it: ``source NAME``, ``import NAME``, ``records CLASS`` or ``pool NAME``."""
    ending: str
    rows: tuple[Any, ...] = ()
    """The rows of a file that is JSON or a table; empty where ``content`` is all there is."""
    content: bytes = b""

    def read(self, path: Path, report: ReadReport | None) -> Iterator[Any]:
        if self.reader == "import lerobot":
            return _robot(path, report)
        kind, _, name = self.reader.partition(" ")
        if kind == "source":
            return read_source(name, path, report=report)
        if kind == "records":
            return read_records(path, RECORDS[name], report=report)
        if kind == "pool":
            return iter(POOLS[name](path, report=report))
        return _imported(path, report)

    @property
    def written(self) -> bytes:
        """The bytes of the file."""
        return self.content or packed([dumped(row) for row in self.rows], self.ending)


def _imported(path: Path, report: ReadReport | None) -> Iterator[Any]:
    context = ImportContext(settings=ImportSettings(), report=report or ReadReport(), keep=lambda *_: "kept")
    yield from import_traces(path, detect_format(path), context)


def robot_folder(file: Path, folder: Path) -> Path:
    """``folder`` as a robot's data set with the frames of ``file``."""
    (data := folder / "data/chunk-000").mkdir(parents=True)
    (folder / "meta").mkdir()
    features = {"action": "float32", "observation.state": "float32", "observation.image": "image"}
    info = {"features": {name: {"dtype": dtype} for name, dtype in features.items()}}
    (folder / "meta/info.json").write_text(json.dumps(info))
    (folder / "meta/tasks.jsonl").write_text('{"task_index": 0, "task": "Lift it."}\n')
    facts = ({"episode_index": number, "length": 2} for number in range(2))
    (folder / "meta/episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in facts))
    (data / file.name).write_bytes(file.read_bytes())
    return folder


def _robot(path: Path, report: ReadReport | None) -> Iterator[Any]:
    with TemporaryDirectory() as folder:
        yield from _imported(robot_folder(path, Path(folder)), report)


_TRACE = Trace(id="t", problem_id="p", text="a\n\nb", steps=(Step(start=0, end=3), Step(start=3, end=4)))
_CHAT = Trace(
    id="c",
    problem_id="p",
    messages=(
        Message(role="user", content="2+2?"),
        Message(role="assistant", content="4", tool_calls=(ToolCall(id="1", name="add"),)),
    ),
    meta={"import": {"row": 1}},
)
_LABEL = StepLabel(trace_id="t", step=0, kind="correctness", value=1, source="human")
RECORDS: dict[str, type[Record]] = {
    name: kind
    for name, kind in vars(records).items()
    if isinstance(kind, type) and issubclass(kind, Record) and kind is not Record
}
_EXAMPLES: dict[str, tuple[Record, ...]] = {
    "Problem": (Problem(text="2+2?", answer="4", meta={"n": [1, {"m": None}]}),),
    "Trace": (_TRACE, _CHAT),
    "StepLabel": (_LABEL,),
    "StepPair": (
        StepPair(problem_id="p", prefix="", better="a", worse="b", better_value=1, worse_value=0, source="s"),
    ),
    "StepScores": (StepScores(trace_id="t", scorer="s", scores=(0.5, None), unscored_reason="long"),),
}
POOLS: dict[str, Callable[..., Any]] = {
    "fover": read_fover_scores,
    "judgements": read_judges,
}

_COMPLETION = {"text": "a", "rating": 1, "flagged": None}
_REGION = {
    "id": "r",
    "type": "paragraphlabels",
    "value": {"start": "0", "end": "1", "paragraphlabels": ["wrong"]},
    "meta": {"text": ["why"]},
}
_ROWS: dict[str, tuple[Any, ...]] = {
    "source agent-processbench": (
        {
            "total_index": 3,
            "query_index": 1,
            "sample_index": 2,
            "question": "Who wrote it?",
            "data_source": "hotpotqa",
            "ground_truth": {"target": ["Ann"]},
            "answer_text": "Ann",
            "messages": [
                {"role": "user", "content": "Who wrote it?"},
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [
                        {"id": "a", "type": "function", "function": {"name": "search", "arguments": "{}"}}
                    ],
                },
                {"role": "tool", "name": "search", "content": "Ann did.", "tool_call_id": "a"},
                {"role": "assistant", "content": "Ann"},
            ],
            "tool_metrics": {"search": [{"status": "success"}]},
            "tools": [
                {
                    "type": "function",
                    "function": {
                        "name": "search",
                        "description": "Search.",
                        "parameters": {"type": "object"},
                    },
                }
            ],
            "step_labels": {"1": 0, "3": 1},
            "final_label": 1,
        },
    ),
    "source visual-processbench": (
        {
            "image": ["images/1.png"],
            "question": "2+2?",
            "answer": "4",
            "response": {"steps": ["2+2", "is 5"], "process_correctness": [0, -1]},
            "policy_model": "m",
            "data_source": "s",
        },
    ),
    "source who-and-when": (
        {
            "question": "When?",
            "question_ID": "q",
            "ground_truth": "now",
            "history": [
                {"content": "When?", "role": "human"},
                {"content": "Ask.", "role": "Orchestrator (thought)"},
                {"content": "Then.", "role": "assistant", "name": "Clock_Expert"},
            ],
            "mistake_agent": "Clock_Expert",
            "mistake_step": "2",
            "mistake_reason": "It is now.",
        },
    ),
    "source gsm8k": ({"question": "How many?", "answer": "2*3=<<2*3=6>>6\n#### 6"},),
    "source gsm8k-solutions": ({"question": "How many?", "answer": "2*3=<<2*3=6>>6\n#### 6"},),
    **{
        f"source {name}": (
            {
                "task_id": "Test/0",
                "prompt": 'def f(x):\n    """ Add one.\n    >>> f(1)\n    2\n    """\n',
                "entry_point": "f",
                "test": "def check(candidate):\n    assert candidate(1) == 2\n    assert candidate(2) == 3\n",
                "canonical_solution": "    return x + 1\n",
            },
        )
        for name in ("humaneval", "mbpp-check")
    },
    "source mbpp": (
        {
            "task_id": 1,
            "text": "Add one.",
            "code": "def f(x):\n    return x + 1",
            "test_list": ["assert f(1) == 2", "assert f(2) == 3"],
            "test_setup_code": "",
            "challenge_test_list": [],
        },
    ),
    "source label-studio": (
        {
            "data": {"question": "q", "steps": [{"text": "a"}, "b"]},
            "annotations": [{"result": [_REGION], "created_at": "2024-05-01T12:00:00", "completed_by": 1}],
            "predictions": [{"result": [{"id": "n", "type": "number", "value": {"number": 0.5}}]}],
        },
        {
            "data": {
                "steps": ["a\n\n", "b"],
                "surefoot": {
                    "problem": Problem(id="p", text="q").model_dump(mode="json"),
                    "trace": _TRACE.model_dump(mode="json"),
                },
            },
            "annotations": [{"result": [{**_REGION, "meta": {"surefoot": _LABEL.model_dump(mode="json")}}]}],
        },
    ),
    "source math500": (
        {"problem": "q", "answer": "6", "solution": "s", "level": 5, "subject": "x", "unique_id": "u"},
    ),
    "source math-shepherd": (
        {"input": "q Step 1: a ки\nStep 2: b ки", "label": "q Step 1: a +\nStep 2: b -", "task": "t"},
    ),
    "source prm800k": (
        {
            "labeler": "r",
            "timestamp": "2022-07-30T23:23:32.118856",
            "generation": 6,
            "question": {"problem": "q?", "ground_truth_answer": "29", "pre_generated_steps": ["a"]},
            "label": {
                "steps": [
                    {
                        "completions": [_COMPLETION, {**_COMPLETION, "rating": -1}],
                        "human_completion": None,
                        "chosen_completion": 0,
                    },
                    {"completions": None, "human_completion": {"text": "h"}, "chosen_completion": None},
                ],
                "total_time": 3,
                "finish_reason": "solution",
            },
        },
    ),
    "source prm800k-steps": (
        {
            "instruction": "q",
            "responses": ["a"],
            "next_response": "b",
            "answer": "2",
            "is_human_response": False,
            "is_solution": True,
            "is_preferred_response": True,
            "rating": 1,
        },
    ),
    "source processbench": (
        {
            "id": "gsm8k-7",
            "generator": "m",
            "problem": "q",
            "steps": ["a", "b"],
            "final_answer_correct": True,
            "label": 1,
        },
    ),
    "source stepwise": ({"prompt": "q", "completions": ["a", "b"], "labels": [True, False]},),
    "import candidate-pool": (
        {
            "problem": "q",
            "answer": "2",
            "candidates": [{"text": "a\n\nb", "step_scores": [0.5, 1.0], "n_steps_split": 2}],
        },
        {"question": "q", "gt": "2", "response": ["2"], "pred_score": [[0.5]], "score": [True]},
    ),
    "pool judgements": (
        {
            "dataset": "hotpotqa",
            "record_id": "hotpotqa:1:2",
            "data_source": "hotpotqa",
            "query_index": 1,
            "sample_index": 2,
            "human_step_labels": {"1": 0, "3": 1},
            "human_final_label": 1,
            "judges": {"m": {"step_labels": {"1": None, "3": -1}, "final_label": None}},
        },
    ),
    "pool fover": ({"id": "t", "n_steps": 2, "label": 1, "scores": {"a": [0.9, 0.1]}},),
    "import batch": (
        {
            "custom_id": "a",
            "response": {
                "status_code": 200,
                "body": {
                    "model": "m",
                    "choices": [
                        {"message": {"role": "assistant", "content": "4"}, "finish_reason": "stop"},
                        {"text": "5"},
                    ],
                    "usage": {"prompt_tokens": 3, "completion_tokens": 2},
                },
            },
        },
        {
            "object": "response",
            "output": [
                {"type": "reasoning", "summary": [{"text": "r"}]},
                {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
                {"type": "message", "content": [{"type": "output_text", "text": "4"}]},
            ],
            "usage": {"output_tokens": 2, "output_tokens_details": {"reasoning_tokens": 1}},
        },
    ),
}
_OWN_ROWS: tuple[dict[str, Any], ...] = (
    {"id": 1, "question": "2+2?", "response": "a\n\n4", "answer": 4, "correct": True, "model": "m"},
    {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "2+2?"}]},
            {
                "role": "assistant",
                "content": "4",
                "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}],
            },
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
    },
    {"question": "q", "responses": ["a", None], "correct": [True, 0]},
    {"question": "q", "steps": ["a", "b"]},
)
_BENCH = {
    "original_question": "q",
    "modified_question": "q'",
    "original_process": ["a", "b"],
    "modified_process": ["a", "x"],
    "modified_steps": [2],
    "error_steps": [2],
    "reason": "made up",
    "idx": "p_1",
    "question": "q",
    "classification": "redundency",
}
_ROWS |= dict.fromkeys(("source prmbench", "source prmbench-controls"), (_BENCH,))
_ROWS |= {
    f"records {name}": tuple(one.model_dump(mode="json") for one in some) for name, some in _EXAMPLES.items()
}


def _inspect_log() -> dict[str, Any]:
    from surefoot.formats.inspect_log import _content

    with zipfile.ZipFile(DATA / "inspect.eval") as archive:
        entries = [entry for entry in archive.infolist() if entry.filename.startswith("samples/")]
        samples = [json.loads(_content(archive, entry)) for entry in entries]
    for sample in samples:
        del sample["events_data"]
    return {"version": 2, "eval": {}, "samples": samples}


def _from_data(reader: str, name: str) -> Seed:
    text = (DATA / name).read_text("utf-8")
    whole = name.endswith((".json", ".traj"))
    rows = json.loads(text) if whole else [json.loads(line) for line in text.splitlines()]
    rows = rows if isinstance(rows, list) else [rows]
    return Seed(reader, Path(name).suffix, rows=tuple(rows))


_FRAMES = tuple(
    {
        "episode_index": number // 2,
        "frame_index": number % 2,
        "task_index": 0,
        "action": [0.5, float(number)],
        "observation.state": [1.0],
        "observation.image": {"bytes": None, "path": "https://example.org/0.png"},
    }
    for number in range(4)
)
SEEDS: tuple[Seed, ...] = (
    *(Seed(reader, ".jsonl", rows=rows) for reader, rows in _ROWS.items()),
    *(Seed("import rows", ".jsonl", rows=(row,)) for row in _OWN_ROWS),
    *(Seed(f"records {name}", ".parquet", rows=_ROWS[f"records {name}"]) for name in RECORDS),
    Seed("import rows", ".csv", rows=_OWN_ROWS[:1]),
    Seed("import rows", ".tsv", rows=_OWN_ROWS[:1]),
    Seed("import rows", ".parquet", rows=_OWN_ROWS[:1]),
    Seed("import lerobot", ".parquet", rows=_FRAMES),
    Seed("import inspect", ".eval", content=(DATA / "inspect.eval").read_bytes()),
    Seed("import inspect", ".json", rows=(_inspect_log(),)),
    _from_data("import otel", "genai.jsonl"),
    _from_data("import otel", "genai-otlp.json"),
    _from_data("import otel", "openinference.jsonl"),
    _from_data("import langfuse", "langfuse.jsonl"),
    _from_data("import langsmith", "langsmith.jsonl"),
    _from_data("import atif", "atif.json"),
    _from_data("import tau-bench", "tau-bench.json"),
    _from_data("import tau2", "tau2.json"),
    _from_data("import swe-agent", "swe-agent.traj"),
    _from_data("import openhands", "openhands.json"),
    _from_data("import claude-code", "claude-code.jsonl"),
    _from_data("import claude-code", "claude-code-stream.jsonl"),
    _from_data("import codex", "codex.jsonl"),
    _from_data("import gemini-cli", "gemini-cli.jsonl"),
    _from_data("import opencode", "opencode.json"),
    _from_data("import mini-swe-agent", "mini-swe-agent.traj.json"),
    _from_data("import openhands", "openhands-sdk.jsonl"),
)
REGISTERED = frozenset(
    {
        *(f"source {name}" for name, form in FORMATS.items() if form.read_dataset),
        *(f"import {name}" for name, form in FORMATS.items() if form.read_log),
        *(f"records {name}" for name in RECORDS),
        *(f"pool {name}" for name in POOLS),
    }
)
"""Whatever can be read: one seed at least for each."""


def dumped(row: Any) -> str:
    return json.dumps(row, ensure_ascii=False)


def packed(rows: list[str], ending: str) -> bytes:
    """A file of rows that are JSON texts."""
    if ending in (".csv", ".tsv"):
        return _table(rows, "," if ending == ".csv" else "\t")
    if ending == ".parquet":
        return parquet([json.loads(row) for row in rows])
    if ending == ".json":
        text = rows[0] if len(rows) == 1 else "[" + ",\n".join(rows) + "]"
    else:
        text = "".join(f"{row}\n" for row in rows)
    return text.encode("utf-8", "surrogatepass")


def _table(rows: list[str], delimiter: str) -> bytes:
    import csv

    parsed = [json.loads(row) for row in rows]
    stream = io.StringIO()
    writer = csv.DictWriter(stream, fieldnames=list(parsed[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(parsed)
    return stream.getvalue().encode("utf-8", "surrogatepass")


def parquet(rows: list[dict[str, Any]]) -> bytes:
    """A Parquet file of the rows."""
    stream = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), stream)
    return stream.getvalue()


# --- bytes

TOKENS = [
    b"",
    b"\x00",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\xed\xa0\x80",
    b'"\\ud800"',
    b"\n",
    b"\r",
    b"\xe2\x80\xa8",
    b"1e999",
    b"NaN",
    b"null",
    b"[" * 3_000,
    b'{"a":' * 3_000,
    b"9" * 5_000,
    b'"',
    b'",',
    b"}",
    b"]",
    *(struct.pack("<I", number) for number in (0, 1, 2**31 - 1, 2**31, 2**32 - 1)),
    *(struct.pack("<Q", number) for number in (2**40, 2**63 - 1, 2**64 - 1)),
    b"\xff\xff\xff\xff\x0f",
]
"""What is written into a file: odd characters, numbers and lengths."""


@st.composite
def broken_bytes(draw: st.DrawFn, content: bytes) -> bytes:
    """``content`` with a few places flipped, cut, doubled, moved or overwritten."""
    data = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        end = len(data)
        at = draw(st.integers(0, end))
        how = draw(st.sampled_from(["flip", "flip", "set", "cut", "drop", "double", "over", "into", "move"]))
        some = draw(st.integers(0, 64))
        if how == "flip" and at < end:
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif how == "set" and at < end:
            data[at] = draw(st.integers(0, 255))
        elif how == "cut":
            del data[at:]
        elif how == "drop":
            del data[at : at + some]
        elif how == "double":
            data[at:at] = data[at : at + some] * draw(st.sampled_from([1, 2, 1_000]))
        elif how == "move":
            there = draw(st.integers(0, end))
            data[at : at + some] = data[there : there + some]
        elif how in ("over", "into"):
            token = draw(st.sampled_from(TOKENS))
            data[at : at + (len(token) if how == "over" else 0)] = token
    return bytes(data)


# --- JSON

DEEP = 100_000
VALUES = [
    "null", "true", "false", "0", "-1", "1", "1.5", "1e999", "-1e999", "NaN", "Infinity", "1e308", "-0.0",
    str(2**63), str(2**64), "9" * 400, "9" * 100_000, "-" + "9" * 5_000, "1" + "0" * 30,
    '""', '" "', '"x"', '"\\ud800"', '"\\udc00\\ud800"', '"\\u0000"', '"\\u2028"', '"\\ufeff"',
    '"\\u001b[2J"', '"=cmd()"',
    '"' + "x" * 200_000 + '"', '"' + "9" * 5_000 + '"', '"1e999"', '"NaN"', '"٣"', '"²"',
    '"0001-01-01T00:00:00+14:00"', '"9999-12-31T23:59:59-14:00"', '"2024-02-30"', '"-1"',
    "[]", "{}", "[[]]", "[{}]", "[null]", '[""]', '["x"]', "[1]", "[true, 0]", '{"": null}', '{"a": 1}',
    '{"type": null}', '{"role": "assistant"}', '[{"role": "assistant", "content": "x"}]', '{"text": 1}',
    '{"role": []}', '[{"type": {}}]', '{"function": 1}', '{"values": 1}', '{"intValue": 1e999}',
    "[" * DEEP + "]" * DEEP, '{"a":' * DEEP + "1" + "}" * DEEP, "[" * 150 + "]" * 150,
    '{"a":' * 150 + "1" + "}" * 150, '"' + "[" * DEEP + '"', '"' + '{\\"a\\":' * DEEP + '"',
    '"{\\"a\\": 1e999}"', '"{\\"a\\": \\"\\\\ud800\\"}"', '"[{\\"role\\": \\"x\\"}]"', '"[1"',
    '"data:image/png;base64,@@"', '"attachment://x"', '"../../etc/passwd"', '"1970-01-01"',
]  # fmt: skip
"""JSON texts, and texts that are almost JSON, in the place of a value."""
_HOLE = "\ue000{}\ue001"


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _places(inner, (*path, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _places(inner, (*path, number))


@st.composite
def broken_rows(draw: st.DrawFn, rows: tuple[Any, ...]) -> list[str]:
    """The rows as JSON texts, in which some values are others, gone, doubled or under another name."""
    texts = []
    for row in rows:
        row, holes = json.loads(dumped(row)), []
        for _ in range(draw(st.integers(0, 3))):
            path = draw(st.sampled_from(list(_places(row))))
            if not path:
                row = {"": row} if draw(st.booleans()) else row
                continue
            at = row
            for key in path[:-1]:
                at = at[key]
            how = draw(st.sampled_from(["value", "value", "value", "value", "drop", "name", "more"]))
            if how == "value":
                at[path[-1]] = _HOLE.format(len(holes))
                holes.append(draw(st.sampled_from(VALUES)))
            elif how == "drop":
                del at[path[-1]]
            elif how == "name" and isinstance(at, dict):
                at[draw(st.sampled_from(["", "\u2028", "x" * 10_000, "text", "role"]))] = at.pop(path[-1])
            elif how == "more" and isinstance(at, list):
                at.append(at[path[-1]])
        text = dumped(row)
        for number, hole in enumerate(holes):
            text = text.replace(f'"{_HOLE.format(number)}"', hole)
        texts.append(text)
    return texts


# --- Parquet


def _invalid_text(rows: int) -> pa.Array:
    offsets = struct.pack(f"<{rows + 1}i", *range(rows + 1))
    return pa.Array.from_buffers(
        pa.string(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(b"\xff" * rows)]
    )


COLUMNS: dict[str, Callable[[int], pa.Array]] = {
    "int": lambda n: pa.array([2**63 - 1] * n),
    "uint": lambda n: pa.array([2**64 - 1] * n, pa.uint64()),
    "float": lambda n: pa.array([float("nan")] * n),
    "infinity": lambda n: pa.array([float("inf")] * n),
    "half": lambda n: pa.array([1.0] * n, pa.float16()),
    "bool": lambda n: pa.array([True] * n),
    "null": lambda n: pa.nulls(n),
    "bytes": lambda n: pa.array([b"\xff"] * n),
    "fixed bytes": lambda n: pa.array([b"\xff\x00"] * n, pa.binary(2)),
    "invalid UTF-8": _invalid_text,
    "invalid UTF-8 inside": lambda n: pa.StructArray.from_arrays([_invalid_text(n)], ["a"]),
    "large text": lambda n: pa.array(["x"] * n, pa.large_string()),
    "text view": lambda n: pa.array(["x"] * n, pa.string_view()),
    "nanoseconds": lambda n: pa.array([2**63 - 1] * n, pa.timestamp("ns")),
    "microseconds": lambda n: pa.array([2**63 - 1] * n, pa.timestamp("us", "UTC")),
    "seconds": lambda n: pa.array([-(2**60)] * n, pa.timestamp("ms")),
    "time zone": lambda n: pa.array([0] * n, pa.timestamp("us", "No/Where")),
    "date": lambda n: pa.array([2**31 - 1] * n, pa.int32()).cast(pa.date32()),
    "time": lambda n: pa.array([2**62] * n, pa.int64()).view(pa.time64("us")),
    "duration": lambda n: pa.array([2**63 - 1] * n, pa.duration("us")),
    "decimal": lambda n: pa.array([10**37] * n, pa.decimal128(38)),
    "large decimal": lambda n: pa.array([10**70] * n, pa.decimal256(76)),
    "list": lambda n: pa.array([["x", None]] * n),
    "lists": lambda n: pa.array([[[["x"]]]] * n),
    "fixed list": lambda n: pa.array([[1, 2]] * n, pa.list_(pa.int64(), 2)),
    "struct": lambda n: pa.array([{"a": 1, "b": ["x"]}] * n),
    "messages": lambda n: pa.array([[{"role": "assistant", "content": "x"}]] * n),
    "two of one name": lambda n: pa.StructArray.from_arrays([pa.array([1] * n)] * 2, ["a", "a"]),
    "map": lambda n: pa.array([[(1, "x")]] * n, pa.map_(pa.int64(), pa.string())),
    "map of texts": lambda n: pa.array([[("a", "x"), ("a", "y")]] * n, pa.map_(pa.string(), pa.string())),
    "codes": lambda n: pa.array(["x"] * n).dictionary_encode(),
    "codes inside": lambda n: pa.StructArray.from_arrays([pa.array(["x"] * n).dictionary_encode()], ["a"]),
    "codes of numbers": lambda n: pa.array([1] * n).dictionary_encode(),
    "deep text": lambda n: pa.array(["[" * DEEP] * n),
    "long text": lambda n: pa.array(["x" * 100_000] * n),
    "empty text": lambda n: pa.array([""] * n),
}
"""A column of ``n`` rows instead of another."""


@st.composite
def broken_tables(draw: st.DrawFn, rows: tuple[Any, ...]) -> bytes:
    """A valid Parquet file of the rows in which columns are others, or twice, or gone."""
    table = pq.read_table(io.BytesIO(parquet(list(rows))))
    if draw(st.integers(0, 5)) == 0:
        table = table.slice(0, 0)
    table = pa.concat_tables([table] * draw(st.sampled_from([1, 1, 3])))
    for _ in range(draw(st.integers(1, 3))):
        if not table.num_columns:
            break
        at = draw(st.integers(0, table.num_columns - 1))
        how = draw(st.sampled_from(["other", "other", "other", "twice", "gone"]))
        name = table.column_names[at]
        if how == "gone":
            table = table.remove_column(at)
        else:
            column = COLUMNS[draw(st.sampled_from(sorted(COLUMNS)))](table.num_rows)
            table = (
                table.set_column(at, name, column) if how == "other" else table.append_column(name, column)
            )
    stream = io.BytesIO()
    try:
        pq.write_table(
            table,
            stream,
            compression=draw(st.sampled_from(["none", "snappy", "gzip", "zstd", "brotli", "lz4"])),
            row_group_size=draw(st.sampled_from([1, 2, None])),
            use_dictionary=draw(st.booleans()),
            data_page_version=draw(st.sampled_from(["1.0", "2.0"])),
        )
    except (pa.ArrowException, RecordError):
        return b""  # Parquet has no such column
    return stream.getvalue()


# --- archives


@st.composite
def broken_archives(draw: st.DrawFn, log: dict[str, Any]) -> bytes:
    """A zip archive of broken samples, under odd names and in any compression."""
    stream = io.BytesIO()
    kinds = [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
    with zipfile.ZipFile(stream, "w", draw(st.sampled_from(kinds))) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # two members of one name
        archive.writestr("header.json", "{}")
        for number, text in enumerate(draw(broken_rows(tuple(log["samples"])))):
            names = [
                f"samples/{number}.json",
                "samples/../../x",
                "samples/",
                "/samples/x",
                "samples/\x00\u2028",
            ]
            archive.writestr(draw(st.sampled_from(names)), text.encode("utf-8", "surrogatepass"))
    content = stream.getvalue()
    return draw(broken_bytes(content)) if draw(st.booleans()) else content


LOG = _inspect_log()


def broken(seed: Seed) -> st.SearchStrategy[bytes]:
    """Broken files of ``seed``."""
    ways = [broken_bytes(seed.written)]
    if seed.ending == ".parquet":
        ways.append(broken_tables(seed.rows))
    elif seed.ending == ".eval":
        ways.append(broken_archives(LOG))
    elif seed.ending not in (".csv", ".tsv"):
        ways += [broken_rows(seed.rows).map(lambda rows: packed(rows, seed.ending))] * 3
        ways.append(broken_rows(seed.rows).map(lambda rows: packed(rows, seed.ending)).flatmap(broken_bytes))
    return st.one_of(ways)


@st.composite
def broken_gzip(draw: st.DrawFn, content: bytes) -> bytes:
    """``content`` gzipped, whole or in several members, then broken or with something behind it."""
    at = draw(st.integers(0, len(content)))
    made = gzip.compress(content[:at], 1) + (gzip.compress(content[at:], 1) if at else b"")
    if draw(st.booleans()):
        return draw(broken_bytes(made))
    return made + draw(st.sampled_from([b"", b"\x00" * 9, b"rubbish", made, b"\x1f\x8b"]))
