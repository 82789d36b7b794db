"""The commands on files and pipes, with tiny random models, in this process."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
from command_line import good, refused
from openai_server import Reply, chat, serve
from parquet_files import write_parquet

import surefoot
from surefoot.cli.commands import COMMANDS
from surefoot.cli.sample import SampleTraces
from surefoot.io import read_records, write_records
from surefoot.io.runs import Journal
from surefoot.io.tables import open_table
from surefoot.records import Problem, StepLabel, StepScores, Trace
from surefoot.work import Job, Pieces, WorkerTask
from surefoot.work.jobs import open_worker

SAMPLING = [
    *("--n=2", "--max-tokens=40", "--extract=last_number", "--equality=exact"),
    *("--set=policy.batch_size=1", "--concurrency=1"),
]
ROLLOUTS = ["mc:rollouts=2", "--max-tokens=20", "--extract=last_number", "--equality=exact"]


@pytest.fixture(autouse=True, scope="module")
def same_times():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", "1700000000")
        yield


@pytest.fixture(scope="module")
def files(tmp_path_factory, lab_base, lab_items) -> Path:
    """A folder in which every stage has been run once."""
    folder = tmp_path_factory.mktemp("pipeline")
    write_records(folder / "p.jsonl", [item.problem for item in lab_items])
    write_records(folder / "hand.jsonl", [item.trace for item in lab_items])
    p, t, labels, scores = (folder / f"{name}.jsonl" for name in ("p", "t", "l", "s"))
    good("sample", p, "--policy", lab_base, "--out", t, *SAMPLING)
    good("label", t, "--problems", p, "--policy", lab_base, "--out", labels, *ROLLOUTS)
    trained = ("--base", lab_base, "--epochs", 1, "--max-length", 100)
    good("train", "prm", "--problems", p, t, "--labels", labels, "--out", folder / "prm", *trained)
    good("train", "orm", "--problems", p, folder / "hand.jsonl", "--out", folder / "orm", *trained)
    good("score", "-m", folder / "prm", "--problems", p, t, "--out", scores)
    good("select", t, "--scores", scores, "--equality=exact", "--out", folder / "chosen.jsonl")
    return folder


def read(path: Path, record):
    return list(read_records(path, record))


def lines(text: str) -> list[str]:
    return text.strip().splitlines()


def test_the_pipeline_keeps_every_record(files):
    problems, traces = read(files / "p.jsonl", Problem), read(files / "t.jsonl", Trace)
    assert [trace.problem_id for trace in traces] == [p.id for p in problems for _ in range(2)]
    steps = {trace.id: len(trace.steps) for trace in traces}
    labels, scores = read(files / "l.jsonl", StepLabel), read(files / "s.jsonl", StepScores)
    assert {label.trace_id for label in labels} == {name for name, count in steps.items() if count}
    assert len(labels) == sum(steps.values())
    assert {label.kind for label in labels} == {"value"}
    assert {s.trace_id: len(s.scores) for s in scores} == {name: n for name, n in steps.items() if n}
    chosen = read(files / "chosen.jsonl", Trace)
    assert [trace.problem_id for trace in chosen] == [problem.id for problem in problems]
    assert not list(files.glob("*.work"))


def test_checkpoints_say_what_they_were_trained_on(files):
    prm = json.loads((files / "prm" / "surefoot.json").read_text())
    orm = json.loads((files / "orm" / "surefoot.json").read_text())
    assert (prm["kind"], prm["score_means"], prm["label_source"]) == ("prm", "value", "monte-carlo-soft")
    assert (orm["kind"], orm["score_means"], orm["aggregation"]) == ("orm", "outcome", "last")
    assert prm["encoding"]["max_length"] == 100
    assert json.loads((files / "orm" / "training.json").read_text())["losses"]


def test_a_finished_training_is_not_repeated(files, lab_base):
    arguments = ("--problems", files / "p.jsonl", files / "hand.jsonl", "--out", files / "orm")
    before = (files / "orm" / "model.safetensors").stat().st_mtime_ns
    again = good("train", "orm", *arguments, "--base", lab_base, "--epochs", 1, "--max-length", 100)
    assert "finished already" in again.err
    assert (files / "orm" / "model.safetensors").stat().st_mtime_ns == before
    other = refused("train", "orm", *arguments, "--base", lab_base, "--epochs", 2, "--max-length", 100)
    assert "config.training.epochs" in other


def test_pipes_give_the_same_as_files(files, lab_base):
    p, t = files / "p.jsonl", files / "t.jsonl"
    sampled = good("sample", "-", "--policy", lab_base, *SAMPLING, stdin=p.read_text())
    assert sampled.out == t.read_text()
    labelled = good("label", "-", "--problems", p, "--policy", lab_base, *ROLLOUTS, stdin=sampled.out)
    assert labelled.out == (files / "l.jsonl").read_text()
    scored = good("score", "-m", files / "prm", "--problems", p, "-", stdin=sampled.out)
    assert scored.out == (files / "s.jsonl").read_text()
    chosen = good("select", t, "--scores", "-", "--equality=exact", stdin=scored.out)
    assert chosen.out == (files / "chosen.jsonl").read_text()


def test_training_reads_a_pipe(files, lab_base, tmp_path):
    good(
        *("train", "orm", "--problems", files / "p.jsonl", "-", "--out", tmp_path / "orm"),
        *("--base", lab_base, "--epochs", 1, "--max-length", 100),
        stdin=(files / "hand.jsonl").read_text(),
    )
    assert (tmp_path / "orm" / "head.safetensors").read_bytes() == (
        files / "orm" / "head.safetensors"
    ).read_bytes()


def test_parquet_holds_the_same_records(files, tmp_path):
    write_parquet(tmp_path / "t.parquet", read(files / "t.jsonl", Trace))
    good(
        *("score", "-m", files / "prm", "--problems", files / "p.jsonl"),
        *(tmp_path / "t.parquet", "--out", tmp_path / "s.jsonl"),
    )
    assert read(tmp_path / "s.jsonl", StepScores) == read(files / "s.jsonl", StepScores)


def test_bad_lines_and_empty_traces_are_counted_and_the_rest_is_done(files, tmp_path):
    rows = lines((files / "t.jsonl").read_text())
    problem = json.loads(lines((files / "p.jsonl").read_text())[0])["id"]
    empty = json.dumps({"problem_id": problem, "text": ""})
    orphan = json.dumps({"problem_id": "nobody", "text": "a", "steps": [{"start": 0, "end": 1}]})
    (tmp_path / "t.jsonl").write_text("\n".join([*rows, "{broken", empty, '{"text": 3}', orphan]))
    ended = good("score", "-m", files / "prm", "--problems", files / "p.jsonl", tmp_path / "t.jsonl")
    assert ended.out == (files / "s.jsonl").read_text()
    assert f"{len(rows) + 2} read, 2 skipped" in ended.err
    assert f"line {len(rows) + 1}: not JSON" in ended.err
    assert "1 trace skipped: their 'problem_id' is in no problem" in ended.err
    stepless = 1 + sum(not trace.steps for trace in read(files / "t.jsonl", Trace))
    assert f"{stepless} trace{'s' * (stepless != 1)} without steps skipped" in ended.err


def test_a_file_of_which_no_step_can_be_scored_is_an_error(files, tmp_path):
    problem = Problem(text="Start with 7. " + "Add 1. " * 200, answer="7")
    write_records(tmp_path / "p.jsonl", [problem])
    write_records(tmp_path / "t.jsonl", [Trace(problem_id=problem.id, text="7 + 1 = 8")])
    ask = ("score", "-m", files / "prm", "--problems", tmp_path / "p.jsonl", tmp_path / "t.jsonl")
    says = refused(*ask, "--out", tmp_path / "s.jsonl")
    [scores] = read(tmp_path / "s.jsonl", StepScores)
    assert says == f"no step was scored; first trace, {scores.trace_id}: {scores.unscored_reason}"


def test_problems_without_answer_are_skipped_by_the_labeller(files, lab_base, tmp_path):
    rows = [json.loads(row) for row in lines((files / "p.jsonl").read_text())]
    rows[0]["answer"] = None
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, rows)))
    hand = files / "hand.jsonl"
    ended = good("label", hand, "--problems", tmp_path / "p.jsonl", "--policy", lab_base, *ROLLOUTS)
    assert "1 trace skipped: their problem has no 'answer'" in ended.err
    steps = sum(len(trace.steps) for trace in read(hand, Trace)[1:])
    assert len(lines(ended.out)) == steps


def test_absent_labels_are_counted(files, lab_base, tmp_path):
    labels = read(files / "l.jsonl", StepLabel)
    first = labels[0].trace_id
    kept = [label for label in labels if label.trace_id != first]
    write_records(tmp_path / "l.jsonl", [*kept, labels[0].model_copy(update={"trace_id": "nobody"})])
    ended = good(
        *("train", "prm", "--problems", files / "p.jsonl", files / "t.jsonl"),
        *("--labels", tmp_path / "l.jsonl", "--out", tmp_path / "prm"),
        *("--base", lab_base, "--epochs", 1),
    )
    assert "1 label skipped: their 'trace_id' is in no usable trace" in ended.err
    assert "left out: 1 traces without a usable label" in ended.err


def test_a_pasted_solution_is_shown_with_its_first_low_score(files):
    text = "7 + 3 = 0\n0 + 4 = 9\nAnswer: 9\n"
    ask = ("score", "-m", files / "prm", "--problem", "Start with 7. Add 3. Add 4.")
    shown = good(*ask, "--threshold", 1.1, stdin=text)
    assert re.fullmatch(r" *1 +0\.\d{3} +7 \+ 3 = 0 +▽ first score below .+", lines(shown.out)[1].rstrip())
    assert sum("▽" in line for line in lines(shown.out)) == 1
    assert "min of the steps" in shown.out
    fine = good(*ask, "--threshold", 0, "--solution", text)
    assert "▽" not in fine.out
    assert "no step scores below 0" in fine.out
    whole = good(*ask, "--segment", "blank-line", stdin=text)
    assert len(re.findall(r"^ *\d+  0\.\d{3}", whole.out, re.M)) == 1


def test_majority_needs_no_scores_and_missing_scores_are_counted(files, tmp_path):
    chosen = good("select", files / "t.jsonl", "--rule=majority", "--equality=exact")
    assert len(lines(chosen.out)) == 12
    assert "12 problems, 24 solutions" in " ".join(chosen.err.split())
    assert "needs --scores" in refused("select", files / "t.jsonl")
    scores = read(files / "s.jsonl", StepScores)
    write_records(tmp_path / "s.jsonl", scores[1:])
    unscored = 24 - len(scores) + 1
    ended = good("select", files / "t.jsonl", "--scores", tmp_path / "s.jsonl", "--equality=exact")
    assert f"{unscored} unscored traces: chosen last" in ended.err


def test_traces_without_outcome_are_chosen_without_a_table(files, tmp_path):
    rows = [trace.model_copy(update={"outcome": None}) for trace in read(files / "t.jsonl", Trace)]
    write_records(tmp_path / "t.jsonl", rows)
    ended = good("select", tmp_path / "t.jsonl", "--rule=majority", "--equality=exact")
    assert "no accuracy to report" in ended.err
    assert len(lines(ended.out)) == 12


def test_records_are_exported_and_imported(files, tmp_path):
    folder = tmp_path / "records"
    folder.mkdir()
    for name, letter in (("problems", "p"), ("traces", "t"), ("labels", "l")):
        shutil.copy(files / f"{letter}.jsonl", folder / f"{name}.jsonl")
    good("export", folder, "--to=stepwise", "--out", tmp_path / "s.jsonl")
    back = good("import", tmp_path / "s.jsonl", "--from=stepwise", "--out", tmp_path / "back")
    assert "skipped" not in back.err
    assert len(read(tmp_path / "back" / "traces.jsonl", Trace)) > 0


@pytest.mark.slow
def test_workers_write_what_one_process_writes(files, tmp_path):
    many = [
        Trace.model_validate(trace.model_dump(exclude={"id"}) | {"sample": number})
        for trace in read(files / "hand.jsonl", Trace)
        for number in range(100)
    ]
    write_records(tmp_path / "t.jsonl", many)
    words = ["label", tmp_path / "t.jsonl", "verify:rules=benchmarks.worlds.digits:DigitVerifier"]
    words += ["--problems", files / "p.jsonl"]
    alone = good(*words, "--out", tmp_path / "1.jsonl")
    together = good(*words, "--workers=2", "--out", tmp_path / "2.jsonl")
    assert len(read(tmp_path / "1.jsonl", StepLabel)) >= len(many) > 1000, "there are pieces for all workers"
    assert (tmp_path / "2.jsonl").read_bytes() == (tmp_path / "1.jsonl").read_bytes()
    assert together.err.splitlines()[-1] == alone.err.splitlines()[-1]
    assert not (tmp_path / "2.jsonl.work").exists()


def test_a_job_of_sampling_does_the_same_in_another_process(files, lab_base):
    settings = SampleTraces.model_validate(
        {
            "problems": str(files / "p.jsonl"),
            "n": 2,
            "policy": {"name": str(lab_base), "batch_size": 1},
            "sampling": {"max_tokens": 40},
            "grading": {"extract": ["last_number"], "equality": "exact"},
        }
    )
    pieces = Pieces(open_table(files / "p.jsonl", Problem), 4)
    sent = pickle.dumps(WorkerTask(job=Job(record=Trace, load=settings.opened), pieces=pieces))
    task = pickle.loads(sent)  # noqa: S301
    with open_worker(task) as worker:
        done = [worker.do(number) for number in range(len(pieces))]
    written = b"".join(line for piece in done for line in piece.lines)
    assert written == (files / "t.jsonl").read_bytes()


def test_labels_of_unknown_traces_are_counted_by_export(files, tmp_path):
    labels = read(files / "l.jsonl", StepLabel)
    write_records(tmp_path / "labels.jsonl", [*labels, labels[0].model_copy(update={"trace_id": "nobody"})])
    shutil.copy(files / "p.jsonl", tmp_path / "problems.jsonl")
    shutil.copy(files / "t.jsonl", tmp_path / "traces.jsonl")
    ended = good("export", tmp_path, "--to", "stepwise", "--out", tmp_path / "s.jsonl")
    assert "1 label skipped" in ended.err


def interrupted(files: Path, lab_base: Path, out: Path) -> tuple[object, ...]:
    """A ``sample`` command that had to stop at its end (``out`` could not be written); its words."""
    words = ("sample", files / "p.jsonl", "--policy", lab_base, "--out", out, *SAMPLING)
    out.mkdir()
    assert "directory" in refused(*words)
    out.rmdir()
    return words


def test_a_command_that_was_stopped_goes_on(files, lab_base, tmp_path):
    words = interrupted(files, lab_base, tmp_path / "t.jsonl")
    path = tmp_path / "t.jsonl.work" / "pieces" / "pieces.journal"
    (_, first), *between, (number, last) = Journal(path, Trace).pieces()
    assert between
    path.unlink()
    with closing(Journal(path, Trace)) as journal:
        journal.write(0, [trace.model_copy(update={"finish_reason": "kept"}) for trace in first])
        journal.write(number, last)
    os.truncate(path, path.stat().st_size - 10)  # as a kill leaves it
    good(*words)
    written = (tmp_path / "t.jsonl").read_text()
    finished = [trace.finish_reason for trace in read(tmp_path / "t.jsonl", Trace)]
    kept = len(first)
    assert finished[:kept] == ["kept"] * kept, "a finished piece is not made again"
    assert lines(written)[kept:] == lines((files / "t.jsonl").read_text())[kept:]
    assert not (tmp_path / "t.jsonl.work").exists()


def test_other_settings_or_items_do_not_mix_with_what_is_there(files, lab_base, tmp_path):
    words = interrupted(files, lab_base, tmp_path / "t.jsonl")
    assert "config.seed" in refused(*words, "--seed", 1)
    piped = ["-" if word == files / "p.jsonl" else word for word in words]
    assert "config.items" in refused(*piped, stdin=lines((files / "p.jsonl").read_text())[0])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("sample", "nowhere.jsonl", "--policy", "BASE"), "nowhere.jsonl"),
        (("sample", "P", "--policy", "no/such/model"), "could not be loaded"),
        (("sample", "P", "--policy", "BASE", "--out", "t.json"), "unknown ending"),
        (("sample", "P", "--policy", "BASE", "--template", "nothing"), "{problem}"),
        (("sample", "P", "--policy", "BASE", "--system", "s"), "chat"),
        (("sample", "P", "--policy", "BASE", "--segment", "odd"), "odd"),
        (("sample", "P", "--policy", "BASE", "--equality", "odd"), "odd"),
        (("label", "T", "mc:estimate=odd", "--problems", "P", "--policy", "BASE"), "choose soft or hard"),
        (("score", "-m", "no/such/prm", "--problem", "p"), "surefoot.json is missing"),
        (("score", "-m", "PRM", "--problem", ""), "--problem: String should have at least 1 character"),
        (("score", "-m", "PRM", "--problem", "p", "--solution", " "), "empty"),
        (("score", "-m", "PRM"), "--problem"),
        (("select", "T", "--rule", "odd"), "best_of_n"),
        (("select", "T", "--rule", "majority", "--aggregate", "odd"), "product"),
        (("import", "T", "--from", "odd", "--out", "x"), "odd"),
        (("export", "T", "--to", "odd", "--out", "x"), "stepwise"),
        (("train", "orm", "--problems", "P", "T", "--base=lab", "--out", "x", "--at", "odd"), "--at"),
        (
            ("train", "orm", "--problems", "P", "T", "--base=lab", "--out=x", "--max-length", "1"),
            "--max-length",
        ),
        (
            (
                "train",
                "prm",
                "--problems=P",
                "T",
                "--labels",
                "L",
                "--base=lab",
                "--out=x",
                "--aggregation=odd",
            ),
            "--aggregation",
        ),
        (
            ("train", "prm", "--problems=P", "T", "--labels", "L", "--base=lab", "--out=x", "--neutral=odd"),
            "--neutral",
        ),
    ],
)
def test_an_error_is_one_sentence(words, says, files, lab_base, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"P": files / "p.jsonl", "T": files / "t.jsonl", "L": files / "l.jsonl", "PRM": files / "prm"}
    sentence = refused(*(names.get(word, lab_base if word == "BASE" else word) for word in words))
    assert says in sentence


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_shows_an_example(name):
    assert "Example" in good(*name.split(), "--help").out


def test_the_version_is_printed():
    assert good("--version").out.strip() == f"surefoot {surefoot.__version__}"


@pytest.mark.slow
def test_the_program_runs_as_a_program_and_an_interrupt_says_how_to_go_on(files, tmp_path):
    out = tmp_path / "t.jsonl"
    asked = threading.Event()

    def answer(body: dict) -> Reply:
        asked.set()
        return Reply(payload=chat(["Seven."]), wait_s=0.1)

    with serve(answer) as served:
        served.models = [{"id": "NAME"}]
        words = ["sample", files / "p.jsonl", "--policy=NAME", "--base-url", served.url, "--chat"]
        process = subprocess.Popen(
            [sys.executable, "-m", "surefoot", *map(str, words), "--out", out, *SAMPLING, "--n=500"],
            stderr=subprocess.PIPE,
            text=True,
            # a suite started in the background has this signal ignored, and would hand that down
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        assert asked.wait(60), process.communicate()[1]
        os.kill(process.pid, signal.SIGINT)
        _, err = process.communicate()
    assert (tmp_path / "t.jsonl.work" / "pieces").exists()
    assert process.returncode == 130
    assert "start the same command again to resume" in err
    assert "Traceback" not in err


def test_a_trace_that_comes_twice_counts_once(files):
    text, scores = (files / "t.jsonl").read_text(), files / "s.jsonl"
    first = text.splitlines(keepends=True)[0]
    words = ("select", "-", "--scores", scores, "--equality=exact")
    once, twice = good(*words, stdin=text), good(*words, stdin=text + first * 3)
    assert twice.out == once.out
    assert "3 traces come again: left out" in twice.err
    other = json.loads(first) | {"policy": "another", "id": Trace.model_validate_json(first).id}
    assert "two different traces have the id" in refused(*words, stdin=text + json.dumps(other) + "\n")


def test_labels_and_scores_that_come_twice_count_once(files, tmp_path):
    labels, scores = ((files / name).read_text() for name in ("l.jsonl", "s.jsonl"))
    traces = ("--problems", files / "p.jsonl", "--traces", files / "t.jsonl")
    first, *others = labels.splitlines(keepends=True)
    more = tmp_path / "l.jsonl"
    more.write_text(first + first + "".join(others) + others[-1] + first)
    table = open_table(more, StepLabel)
    assert (list(table), table.repeated) == (read(files / "l.jsonl", StepLabel), 3)
    words = ("evaluate", "--as=labels", *traces[2:], "--out", tmp_path / "o", "--draws=10")
    once = good(*words, f"one={files / 'l.jsonl'}")
    twice = good(*words, f"one={more}", "--force")
    assert twice.out == once.out
    assert f"{more}: 3 labels come again: left out" in twice.err
    words = ("select", files / "t.jsonl", "--equality=exact", "--scores", "-")
    once, twice = good(*words, stdin=scores), good(*words, stdin=scores + scores)
    assert twice.out == once.out
    assert f"{len(lines(scores))} scores come again: left out" in twice.err


def test_different_scores_of_one_trace_are_refused(files):
    record = read(files / "s.jsonl", StepScores)[0]
    other = record.model_copy(update={"scores": (0.5,) * len(record.scores)})
    words = ("select", files / "t.jsonl", "--equality=exact", "--scores", "-")
    text = record.model_dump_json() + "\n"
    says = refused(*words, stdin=text + other.model_dump_json())
    assert f"different scores of trace '{record.trace_id}' by '{record.scorer}'" in says
    second = other.model_copy(update={"scorer": "second"}).model_dump_json()
    assert "scores of 2 scorers" in refused(*words, stdin=text + second)


def test_an_id_cannot_drive_the_terminal(files, tmp_path):
    name, reason = "a\x1b]0;owned\x07\x1b[2J", "none\x9b2J"
    trace = Trace.model_validate_json((files / "t.jsonl").read_text().splitlines()[0])
    write_records(tmp_path / "t.jsonl", [trace.model_copy(update={"id": name})])
    scores = (None,) * len(trace.steps)
    record = StepScores(trace_id=name, scorer="s", scores=scores, unscored_reason=reason)
    write_records(tmp_path / "s.jsonl", [record])
    words = ("select", tmp_path / "t.jsonl", "--scores", tmp_path / "s.jsonl")
    said = refused(*words, "--equality=exact")
    assert "owned" in said
    assert not {"\x1b", "\x07", "\x9b"} & set(said)
