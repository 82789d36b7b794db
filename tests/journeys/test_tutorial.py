"""The tutorial, typed in from top to bottom: every command and program of its pages, in one directory.

Sizes are smaller than on the pages, the server and the model of part 6 are small ones of the test. What a
command prints and writes is held against what the page says of it.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Ended, good, refused
from openai_server import Body, Reply, chat, serve

from surefoot.io import read_records
from surefoot.records import Problem, StepLabel, StepScores, Trace

PAGES = Path(__file__).parents[2] / "docs" / "tutorial"
FENCE = re.compile(r"^```(bash|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SMALLER = {
    "generate_problems(100,": "generate_problems(10,",
    "--n 16": "--n 3",
    "--n 8": "--n 2",
    "--rollouts 8": "--rollouts 2",
    "--epochs 20": "--epochs 2",
    "--train-problems 40 --test-problems 20": "--train-problems 4 --test-problems 3",
    "--test-samples 8 --shard 10": "--test-samples 2 --shard 4",
    "training.epochs=2": "training.epochs=1",
}
NOT_HERE = ("make quickstart", "vllm serve", "vllm.entrypoints", "pytest ", "--device cuda")
"""Started elsewhere: other tests run the quickstart, and a server and a GPU are not to be had."""


class Reader:
    """Types in what stands on the pages."""

    def __init__(self, replaced: dict[str, str]) -> None:
        self.replaced = SMALLER | replaced
        self.exports: list[str] = []
        self.printed: dict[str, Ended] = {}
        """What each command left behind, by its first words and its ``--out``."""

    def read(self, page: str) -> None:
        """All blocks of a page."""
        text = next(PAGES.glob(f"{page}-*.md")).read_text(encoding="utf-8")
        for language, block in FENCE.findall(text):
            for old, new in self.replaced.items():
                block = block.replace(old, new)
            if language == "python":
                self._program(block, page)
            else:
                self._commands(block)

    def _program(self, block: str, page: str) -> None:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(block, page, "exec"), {"__name__": "__main__"})  # noqa: S102 - of the tutorial
        self.printed[f"program of page {page}"] = Ended(status=0, out=out.getvalue(), err="")

    def _commands(self, block: str) -> None:
        lines = block.replace("\\\n", " ").splitlines()
        lines = [line for line in lines if line.strip() and not any(word in line for word in NOT_HERE)]
        self.exports += [line for line in lines if line.startswith("export ")]
        for line in lines:
            if not line.startswith("export "):
                assert line.startswith("surefoot "), line
                words = self._words(line)
                self.printed[" ".join(_named(words))] = good(*words)

    def _words(self, line: str) -> list[str]:
        """The words of a line as the shell reads them."""
        script = "\n".join([*self.exports, r'surefoot() { printf "%s\0" "$@"; }', line])
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
        return done.stdout.split("\0")[:-1]


def _named(words: list[str]) -> Iterator[str]:
    yield from (word for word in words[:2] if re.fullmatch(r"[a-z][a-z-]*", word))
    if "--out" in words:
        yield words[words.index("--out") + 1]


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reader:
    monkeypatch.chdir(tmp_path)
    write_rows("gsm8k_test.jsonl", [{"question": "2 + 2?", "answer": "It is 4.\n#### 4"}])
    write_rows("math500.jsonl", [{"problem": "$2 + 2$?", "answer": "4"}])
    return Reader({})


def write_rows(path: str, rows: list[dict[str, str]]) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def test_parts_2_to_5_of_the_tutorial(reader: Reader) -> None:
    def server(body: Body) -> Reply:
        return Reply(payload=chat(["Seven.\n\nThe answer is 7."]))

    with serve(server) as served:
        served.models = [{"id": "NAME"}]
        reader.replaced["http://localhost:8000/v1"] = served.url
        reader.read("2")
        # Part 2: problems convert, traces are cut and graded, a failed request is counted and kept.
        assert [p.answer for p in read_records("gsm8k/problems.jsonl", Problem)] == ["4"]
        traces = list(read_records("traces.jsonl", Trace))
        assert len(traces) == 20
        assert {trace.outcome for trace in traces} == {True, False}
        assert all("".join(map(trace.step_text, range(len(trace.steps)))) == trace.text for trace in traces)
        assert len(list(read_records("server-traces.jsonl", Trace))) == 80

    reader.read("3")
    # Part 3: a value a step, unknown ones with a reason; the checkers agree wherever both judge.
    labels = list(read_records("labels.jsonl", StepLabel))
    assert len(labels) == sum(len(trace.steps) for trace in traces)
    assert all(0 <= label.value <= 1 if label.value is not None else label.reason for label in labels)
    checked = {(x.trace_id, x.step): x.value for x in read_records("labels-checked.jsonl", StepLabel)}
    equations = {(x.trace_id, x.step): x.value for x in read_records("labels-equations.jsonl", StepLabel)}
    assert checked.keys() == equations.keys() == {(label.trace_id, label.step) for label in labels}
    assert None not in checked.values()
    assert 1 in equations.values()
    assert all(checked[key] == -1 for key, value in equations.items() if value == -1)
    wrong = list(checked.values()).count(-1)
    counted = re.findall(r"'(?:slip|reasoning|carried|form)': (\d+)", reader.printed["program of page 3"].out)
    assert sum(map(int, counted)) == wrong > 0
    before = Path("labels.jsonl").read_bytes()
    words = ("label", "traces.jsonl", "verify:rules=lab", "--problems", "problems.jsonl")
    assert "--force" in refused(*words, "--out", "labels.jsonl")
    assert Path("labels.jsonl").read_bytes() == before

    reader.read("4")
    # Part 4: both models are complete checkpoints; a pasted solution is shown step by step.
    for name in ("prm", "orm"):
        assert Path(name, "surefoot.json").exists()
        assert json.loads(Path(name, "training.json").read_text())
    shown = reader.printed["score"]
    assert all(line in shown.out for line in ("There are left 96 - 40 = 56.", "Answer: 56."))
    assert "There are left 96 - 40 = 56." in reader.printed["program of page 4"].out
    scores = list(read_records("scores.jsonl", StepScores))
    assert [len(one.scores) for one in scores] == [len(trace.steps) for trace in traces]

    reader.read("5")
    # Part 5: one trace per problem, and no rule finds more than pass@N.
    for name in ("chosen", "checked"):
        chosen = list(read_records(f"{name}.jsonl", Trace))
        assert len({trace.problem_id for trace in chosen}) == len(chosen) == 10
    written = sum(trace.usage.completion_tokens for trace in traces)
    assert str(written) in reader.printed["program of page 5"].out


def test_a_quickstart_of_other_sizes(reader: Reader) -> None:
    reader.read("1")
    made = {path.name for path in Path("runs/small").iterdir()}
    page = (PAGES / "1-quickstart.md").read_text(encoding="utf-8")
    table = page.split("## What it does")[1].split("\n\n`commands.sh`")[0]
    results = "\n".join(row.split("|")[2].split(":")[0] for row in table.splitlines() if row.startswith("|"))
    files = {"commands.sh", *re.findall(r"`([\w./-]+)`", results)}
    assert files - made == set()
    # Into a log file: each command with its number, as it can be copied; then the report in four lines.
    ended = reader.printed["quickstart runs/small"]
    assert re.findall(r"^# (\d+) of 16: ", ended.err, re.M) == [str(number) for number in range(1, 17)]
    named = re.findall(r"^\| `(surefoot [a-z]+)", table, re.M)
    printed = re.findall(r"^surefoot [a-z]+", ended.err, re.M)
    assert printed == named
    shown = " ".join(ended.out.split())
    assert "(one sample)" in shown
    assert "runs/small/best-of-n.html" in shown


def test_part_6_of_the_tutorial(reader: Reader, gpt2_base: Path) -> None:
    rows = [{"question": f"What is {n} + 1?", "answer": f"{n} + 1 = {n + 1}\n#### {n + 1}"} for n in range(4)]
    write_rows("gsm8k/train.jsonl", rows[:2])
    write_rows("gsm8k/test.jsonl", rows[2:])
    write_rows("math500/test.jsonl", [{"problem": "What is 3 + 1?", "answer": "4"}])

    def server(body: Body) -> Reply:
        """Right for half of the samples; goes on where a prefix stands."""
        question = next(m["content"] for m in body["messages"] if m["role"] == "user")
        number = int(re.search(r"(\d+) \+ 1", question)[1]) + 1 + body["seed"] % 2
        begun = body["messages"][-1]["role"] == "assistant"
        assert begun == bool(body.get("continue_final_message"))
        return Reply(payload=chat([("" if begun else "We add.\n\n") + f"So it is \\boxed{{{number}}}."]))

    model = "Qwen/Qwen2.5-1.5B-Instruct"
    with serve(server) as served:
        served.models = [{"id": model}]
        reader.replaced |= {"http://localhost:8000/v1": served.url, "Qwen/Qwen2.5-0.5B": str(gpt2_base)}
        reader.read("6")
    assert [p.answer for p in read_records("data/math500/problems.jsonl", Problem)] == ["4"]
    for rule in ("prm", "orm", "majority"):
        assert len(list(read_records(f"{rule}-chosen.jsonl", Trace))) == 2
    assert Path("prm/surefoot.json").exists()
    assert {trace.outcome for trace in read_records("test-traces.jsonl", Trace)} <= {True, False}
