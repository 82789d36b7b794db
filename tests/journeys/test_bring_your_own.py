"""From files of one's own to labels, scores and back: what the guide says, typed into an empty directory."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import good, refused, run

from surefoot.io import read_records
from surefoot.records import Problem, StepLabel, StepScores, Trace

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"
GUIDE = (ROOT / "docs" / "how-to" / "bring-your-own-data.md").read_text("utf-8")
COMMANDS = [
    re.sub(r"\s*\\\n\s*", " ", line).split()[1:]
    for block in re.findall(r"^```bash\n(.*?)^```", GUIDE, re.M | re.S)
    for line in block.splitlines()
]
EXACT = ("--equality", "exact")
"""The default starts a process for symbolic answers, which takes seconds."""

CHAT = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
OWN = [
    {"problem": "What is 2 + 2?", "response": "2 + 2 = 4\n\nThe answer is 4.", "answer": 4},
    {"problem": "What is 2 + 3?", "response": "2 + 3 = 6\n\nThe answer is 6.", "answer": 5},
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def prm(tmp_path_factory, gpt2_base):
    """A reward model that has learnt nothing, for the commands that need one."""
    from surefoot.models import CheckpointCard, Encoding, RewardModel

    path = tmp_path_factory.mktemp("models") / "prm"
    card = CheckpointCard(encoding=Encoding(max_length=400), kind="prm", label_source="none", base="lab")
    model = RewardModel.initialise(gpt2_base, card)
    model.tokenizer.chat_template = CHAT
    model.save(path)
    return path


def write(name: str, *rows: object) -> None:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def own_files() -> None:
    """The files that the guide speaks of."""
    write("answers.jsonl", *OWN)
    Path("table.csv").write_text('question,reply,gold\n"What is 2 + 2?","2 + 2 = 4\nThe answer is 4.",4\n')
    [chat] = [
        block for block in re.findall(r"^```json\n(.*?)^```", GUIDE, re.M | re.S) if '"messages"' in block
    ]
    write("runs.jsonl", json.loads(chat))
    choice = {"message": {"role": "assistant", "content": "The answer is 4."}, "finish_reason": "stop"}
    body = {"object": "chat.completion", "model": "m", "choices": [choice]}
    write("output.jsonl", {"custom_id": "a", "response": {"status_code": 200, "body": body}})
    write("input.jsonl", {"custom_id": "a", "body": {"messages": [{"role": "user", "content": "2 + 2?"}]}})
    Path("run.traj").write_bytes((DATA / "swe-agent.traj").read_bytes())
    Path("spans.jsonl").write_bytes((DATA / "genai.jsonl").read_bytes())
    Path("results.json").write_bytes((DATA / "tau-bench.json").read_bytes())


def test_the_guide_from_top_to_bottom(folder, prm):
    own_files()
    for words in COMMANDS:
        if words[0] == "install":
            continue
        words = [str(prm) if word == "prm" else word for word in words]
        ended = good(*words, *(EXACT if words[0] in ("import", "select") else ()))
        if words[:2] == ["import", "answers.jsonl"]:
            [shown] = [
                block
                for block in re.findall(r"^```text\n(.*?)^```", GUIDE, re.M | re.S)
                if block.startswith("answers.jsonl")
            ]
            assert ended.err == shown
    traces = list(read_records("mine/traces.jsonl", Trace))
    assert [(trace.answer, trace.outcome) for trace in traces] == [("4", True), ("6", False)]
    labels = list(read_records("labels.jsonl", StepLabel))
    assert [label.value for label in labels] == [1, None, -1, None]
    assert len(list(read_records("scores.jsonl", StepScores))) == 2
    looked = [one.scores for one in read_records("first-look.jsonl", StepScores)]
    assert looked == [one.scores for one in read_records("scores.jsonl", StepScores)]
    [beside] = re.findall(r"^```python\n(import json\n.*?)^```", GUIDE, re.M | re.S)
    exec(beside, {})  # noqa: S102 - the guide's own lines
    judged = [json.loads(line) for line in Path("judged.jsonl").read_text("utf-8").splitlines()]
    assert [row["problem"] for row in judged] == [row["problem"] for row in OWN]
    assert [tuple(row["scores"]) for row in judged] == looked
    [run_of_chat] = read_records("runs/traces.jsonl", Trace)
    assert [step.kind for step in run_of_chat.steps] == ["reasoning", "tool_call", "final_answer"]
    [of_agent] = read_records("coding/traces.jsonl", Trace)
    assert {"edit", "command"} <= {step.kind for step in of_agent.steps}
    [of_batch] = read_records("batch/problems.jsonl", Problem)
    assert of_batch.text == "2 + 2?"


def test_plain_rows_are_scored_without_an_import(folder, prm):
    """What once ended in "0 traces scored" and exit status 0."""
    write("own.jsonl", *OWN)
    ended = good("score", "-m", prm, "--problems", "own.jsonl", "own.jsonl", "--out", "s.jsonl")
    assert "2 traces without steps cut into 4" in ended.err
    assert "2 traces scored; 0 in part or not" in ended.err
    write("p.jsonl", {"id": "p1", "text": "What is 2 + 2?"})
    write("t.jsonl", {"problem_id": "p1", "text": "2 + 2 = 4\nThe answer is 4."})
    ended = good("score", "-m", prm, "--problems", "p.jsonl", "t.jsonl", "--out", "s2.jsonl")
    assert "1 trace scored" in ended.err


def test_an_inspect_log_is_scored(folder, prm):
    Path("run.eval").write_bytes((DATA / "inspect.eval").read_bytes())
    ended = good("import", "run.eval", "--out", "mine", *EXACT)
    assert "2 problems, 2 traces with 8 steps, 2 of them graded" in ended.err
    assert list(Path("mine/attachments").glob("*.png"))
    files = ("mine/traces.jsonl", "--problems", "mine/problems.jsonl", "--out", "scores.jsonl")
    assert "2 traces scored" in good("score", "-m", prm, *files).err


def test_spans_are_scored(folder, prm):
    Path("spans.json").write_bytes((DATA / "genai-otlp.json").read_bytes())
    good("import", "spans.json", "--out", "mine")
    files = ("mine/traces.jsonl", "--problems", "mine/problems.jsonl", "--out", "scores.jsonl")
    assert "1 trace scored" in good("score", "-m", prm, *files).err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("import", "nowhere.jsonl", "--out", "x"), "nowhere.jsonl: file not found"),
        (("import", "answers.jsonl", "--text-field", "reply", "--out", "x"), "the column does not exist"),
        (("import", "table.csv", "--out", "x"), "no solution: name its column with --text-field"),
        (("import", "answers.jsonl", "--from", "atif", "--out", "x"), "a trajectory is an object"),
        (
            ("import", "answers.jsonl", "--from", "odd", "--out", "x"),
            "no format is called 'odd'; choose one of",
        ),
        (("import", "picture.json", "--out", "x"), "neither JSON Lines"),
        (("segment", "nowhere.jsonl"), "nowhere.jsonl"),
    ],
    ids=lambda value: "-".join(value)[:40] if isinstance(value, tuple) else "",
)
def test_a_wrong_file_or_column_is_one_sentence(words, says, folder):
    own_files()
    Path("table.csv").write_text("frage,reply\nWhat?,That.\n")
    Path("picture.json").write_bytes(b"{\x89PNG")
    write("t.jsonl", {"problem_id": "p", "text": "a"})
    sentence = refused(*words)
    assert says in sentence
    assert not Path("x").exists()


@pytest.mark.parametrize(
    ("module", "source"), [("zstandard", "run.eval"), ("datasets", "some/set")], ids=["zstandard", "datasets"]
)
def test_a_missing_extra_is_one_sentence(module, source, folder):
    Path("run.eval").write_bytes((DATA / "inspect.eval").read_bytes())
    program = (
        f"import sys; sys.modules[{module!r}] = None\n"
        f"sys.argv = ['surefoot', 'import', {source!r}, '--out', 'x']\n"
        "from surefoot.cli import main; main()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env=dict(os.environ)
    )
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    assert (
        ended.stderr.strip()
        .splitlines()[-1]
        .endswith(f"needs the package {module}: pip install '.[data]' in a clone of surefoot")
    )


def test_an_import_is_not_written_over(folder):
    write("own.jsonl", *OWN)
    good("import", "own.jsonl", "--out", "mine", *EXACT)
    assert "mine/problems.jsonl exists" in refused("import", "own.jsonl", "--out", "mine", *EXACT)
    assert run("import", "own.jsonl", "--out", "mine", "--force", *EXACT).status == 0
