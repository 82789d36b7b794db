"""``surefoot evaluate --as agent-processbench`` and ``who-and-when`` on files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from command_line import good, refused

from benchmarks.readers.__main__ import main as read_data_set
from surefoot.evaluation.splits import half_of
from surefoot.formats import read_agent_processbench, read_who_and_when
from surefoot.io import write_records
from surefoot.records import Evidence, StepScores

FEW = "--draws=20"


def row(query: int, labels: list[int]) -> dict[str, Any]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Do it."}]
    messages += [{"role": "assistant", "content": f"step {step}"} for step in range(len(labels))]
    return {
        "total_index": query,
        "query_index": query,
        "sample_index": 0,
        "question": "Do it.",
        "data_source": "own",
        "ground_truth": None,
        "answer_text": "done",
        "messages": messages,
        "tool_metrics": {},
        "tools": [],
        "step_labels": {str(step + 1): label for step, label in enumerate(labels)},
        "final_label": min(labels),
    }


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two runs of each half of the problems: one without error, one wrong from its second step on."""
    halves = [[query for query in range(20) if half_of(f"own:{query}") == half][:2] for half in (0, 1)]
    rows = [
        row(query, labels) for own in halves for query, labels in zip(own, ([1, 0], [1, -1, -1]), strict=True)
    ]
    path = tmp_path / "apb.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return path


def figures(folder: Path) -> dict[str, Any]:
    found = json.loads((folder / "agent-processbench.json").read_text())
    return {one["system"]: one["subsets"]["own"] for one in found["scores"]}


def test_baselines_alone(data: Path, tmp_path: Path):
    ended = good(
        "evaluate", "--as=agent-processbench", "--data", data, "--out", tmp_path / "out", FEW, "--tables"
    )
    assert "4 runs of 4 problems, 10 steps" in " ".join(ended.out.split())
    found = figures(tmp_path / "out")["last step wrong iff the run failed"]
    assert found["step"]["value"] == 0.6  # the neutral steps and the first wrong ones are missed
    assert found["first_error"]["value"] == 0.5
    assert "baseline: all good" in (tmp_path / "out" / "agent-processbench.html").read_text()


def test_scores_and_labels_side_by_side(data: Path, tmp_path: Path):
    items = list(read_agent_processbench(data))
    scores = [
        StepScores(
            trace_id=item.trace.id,
            scorer="s",
            scores=[0.1 if label.value == -1 else 0.8 for label in item.labels],
        )
        for item in items
    ]
    write_records(tmp_path / "scores.jsonl", scores)
    write_records(tmp_path / "people.jsonl", [label for item in items for label in item.labels])
    for name, sign in (("kind", 1.0), ("strict", -1.0)):
        told = [label.model_copy(update={"value": sign}) for item in items for label in item.labels]
        write_records(tmp_path / f"{name}.jsonl", told)
    names = ("scores", "people", "kind", "strict")
    sources = [f"{name}={tmp_path / name}.jsonl" for name in names]
    good("evaluate", "--as=agent-processbench", *sources, "--data", data, "--out", tmp_path / "out", FEW)
    found = figures(tmp_path / "out")
    assert [found["scores"][name]["value"] for name in ("step", "first_error")] == [0.8, 1.0]
    assert [found["people"][name]["value"] for name in ("step", "first_error")] == [1.0, 1.0]
    assert [found["strict"][name]["value"] for name in ("step", "first_error")] == [0.4, 0.0]
    assert [found["kind"][name]["value"] for name in ("step", "first_error")] == [0.4, 0.5]


def test_the_commands_of_the_page_of_results_compare_each_stored_judge(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """They run as written, on files of a few runs."""
    signs = [[1, 0], [1, -1, -1]] * 2
    judges = {"kind": lambda own: [1] * len(own), "right": list, "silent": lambda own: [None] * len(own)}
    rows = [
        {
            "dataset": "own",
            "data_source": "own",
            "query_index": query,
            "sample_index": 0,
            "human_step_labels": {str(at): sign for at, sign in enumerate(own)},
            "human_final_label": min(own),
            "judges": {
                name: {"step_labels": {str(at): sign for at, sign in enumerate(says(own))}}
                for name, says in judges.items()
            },
        }
        for query, own in enumerate(signs)
    ]
    monkeypatch.chdir(tmp_path)
    with gzip.open("apb_human_vs_judges.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(one) + "\n" for one in rows)
    Path("agentprocessbench_hotpotqa.jsonl.gz").write_bytes(gzip.compress(data.read_bytes()))
    page = (Path(__file__).parents[2] / "docs" / "results" / "agents.md").read_text("utf-8")
    block = page.split("## AgentProcessBench: stored judges")[1].split("```bash\n")[1].split("```")[0]
    for line in block.replace("\\\n", " ").splitlines():
        words = line.split()
        if words[0] == "surefoot":
            good(*words[1:], FEW)
        else:
            assert words[:3] == ["python", "-m", "benchmarks.readers"]
            monkeypatch.setattr("sys.argv", words[2:])
            read_data_set()
    found = json.loads(Path("bench/runs.json").read_text())
    steps = {one["system"]: one["subsets"]["own"]["step"]["value"] for one in found["scores"]}
    assert steps["judge/kind"] == 0.4  # a sign of 0 is missed
    assert steps["judge/right"] == 1.0
    assert steps["judge/silent"] == 0.0
    assert "all good" in figures(Path("hotpotqa"))


def test_files_of_another_kind_are_refused(data: Path, tmp_path: Path):
    (tmp_path / "other.jsonl").write_text('{"id": "1"}\n')
    ended = refused(
        "evaluate", "--as=agent-processbench", "--data", tmp_path / "other.jsonl", "--out", tmp_path / "out"
    )
    assert "give a file of AgentProcessBench" in " ".join(ended.split())
    ended = refused(
        "evaluate", "--as=agent-processbench", "--data", data, "--data", data, "--out", tmp_path / "out"
    )
    assert "occurs twice" in ended


def test_runs_of_ones_own_with_a_loophole(data: Path, tmp_path: Path):
    """The same figures as from the benchmark's file; the last step of the failed runs exploits a loophole."""
    items = list(read_agent_processbench(data))
    labels = [
        label.model_copy(update={"evidence": Evidence(message="loophole: marks it as done")})
        if label.step == 2
        else label
        for item in items
        for label in item.labels
    ]
    write_records(tmp_path / "p.jsonl", [item.problem for item in items])
    write_records(tmp_path / "t.jsonl", [item.trace for item in items])
    write_records(tmp_path / "l.jsonl", labels)
    records = [f"--{name}={tmp_path / name[0]}.jsonl" for name in ("problems", "traces", "labels")]
    good("evaluate", "--as=runs", f"people={tmp_path / 'l.jsonl'}", *records, "--out", tmp_path / "out", FEW)
    found = json.loads((tmp_path / "out" / "runs.json").read_text())
    by_name = {one["system"]: one for one in found["scores"]}
    assert by_name["people"]["subsets"]["own"]["step"]["value"] == 1.0
    assert by_name["people"]["monitoring"]["loopholes_found"]["value"] == 1.0
    assert by_name["all good"]["monitoring"]["loopholes_found"]["value"] == 0.0
    assert by_name["people"]["monitoring"]["loopholes"] == 2
    assert by_name["people"]["monitoring"]["lead_time"]["value"] == 1.0
    assert "Runs of agents" in (tmp_path / "out" / "runs.html").read_text()


def test_who_and_when(tmp_path: Path):
    """Two files of one run each; a scorer that is right about one of them."""
    for number in range(2):
        run = {
            "question": f"q{number}",
            "question_ID": str(number),
            "ground_truth": "a",
            "history": [{"role": "human", "content": "?"}, *({"role": who, "content": who} for who in "AB")],
            "mistake_agent": "B",
            "mistake_step": "2",
            "mistake_reason": "r",
        }
        (tmp_path / f"{number}.json").write_text(json.dumps(run, indent=4))
    items = list(read_who_and_when(str(tmp_path / "?.json")))
    scores = [
        StepScores(trace_id=item.trace.id, scorer="s", scores=(0.0, 0.5, low))
        for item, low in zip(items, (0.1, 0.9), strict=True)
    ]
    write_records(tmp_path / "s.jsonl", scores)
    words = ("--data", f"made={tmp_path}/?.json", "--out", tmp_path / "out", FEW, "--tables")
    ended = good("evaluate", "--as=who-and-when", f"s={tmp_path}/s.jsonl", *words)
    assert "Who&When 2 failed runs" in " ".join(ended.out.split())
    found = json.loads((tmp_path / "out" / "who-and-when.json").read_text())["scores"]
    by_name = {one["system"]: one["subsets"]["made"] for one in found}
    assert (by_name["s"]["agent"]["value"], by_name["s"]["within"]["1"]["value"]) == (0.5, 1.0)
    assert by_name["last step"]["within"]["0"]["value"] == 1.0
    assert "give files of Who&When" in refused(
        "evaluate", "--as=who-and-when", "--data", tmp_path / "s.jsonl", "--out", tmp_path / "out2"
    )
