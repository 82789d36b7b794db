"""From labels, outcomes and critiques to a checkpoint of each kind and its scores, on the command line."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from pathlib import Path

import pytest
from command_line import good, refused, run
from openai_server import Body, Reply, completion, serve
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.worlds import critic
from benchmarks.worlds.digits.world import ExactLabeller
from surefoot import load_prm
from surefoot.io import read_records, write_records
from surefoot.labelling.advantage import start_values
from surefoot.models.kinds.derived import fit_calibration, save_calibration
from surefoot.protocols import ProblemTrace, SampleRequest
from surefoot.records import Evidence, StepLabel, StepScores, Trace
from surefoot.scores import best_of_k
from surefoot.training.critiques import TraceCritiques

FORM = critic.FORMAT
SUCCESSES = (7, 5, 5, 8, 2, 0)
"""Of 8 rollouts after each step, in turn."""


@pytest.fixture(autouse=True, scope="module")
def same_times():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", "1700000000")
        yield


def value(item: ProblemTrace, step: int) -> StepLabel:
    right = SUCCESSES[step % len(SUCCESSES)]
    return StepLabel(
        trace_id=item.trace.id,
        step=step,
        kind="value",
        value=right / 8,
        source="monte-carlo-soft",
        evidence=Evidence(successes=right, trials=8),
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory, lab_base, lab_items) -> Path:
    """Problems, traces, labels, and a base that has the words of critiques."""
    folder = tmp_path_factory.mktemp("kinds")
    write_records(folder / "p.jsonl", [item.problem for item in lab_items])
    write_records(folder / "t.jsonl", [item.trace for item in lab_items])
    values = [value(item, step) for item in lab_items for step in range(len(item.trace.steps))]
    write_records(folder / "v.jsonl", values)
    exact = asyncio.run(ExactLabeller().label(lab_items))
    write_records(folder / "gold.jsonl", [label for of_trace in exact for label in of_trace])
    (folder / "format.json").write_text(FORM.model_dump_json())
    tokenizer = AutoTokenizer.from_pretrained(lab_base)
    tokenizer.add_tokens(list(critic.PIECES))
    model = AutoModelForCausalLM.from_pretrained(lab_base)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    model.save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")
    return folder


def read(path: Path, record):
    return list(read_records(path, record))


def scored(files: Path, model: Path, out: Path, *more: object) -> list[StepScores]:
    good("score", "-m", model, "--problems", files / "p.jsonl", files / "t.jsonl", "-o", out, *more)
    return read(out, StepScores)


def shown(model: Path, item: ProblemTrace, *more: object) -> str:
    ask = ("score", "-m", model, "--problem", item.problem.text, "--solution", item.trace.text)
    return good(*ask, *more).out


# Advantages


def advantages(files: Path, out: Path, *more: object, method: str = "advantage"):
    words = ("label", files / "t.jsonl", method, "--problems", files / "p.jsonl")
    return good(*words, "--labels", files / "v.jsonl", "--out", out, *more)


@pytest.mark.parametrize("best_of", [1, 4])
def test_advantages_are_differences_of_the_provers_values(files, lab_items, tmp_path, best_of):
    ended = advantages(
        files, tmp_path / "a.jsonl", "--traces", files / "t.jsonl", method=f"advantage:best-of={best_of}"
    )
    labels = read(tmp_path / "a.jsonl", StepLabel)
    assert {label.kind for label in labels} == {"advantage"}
    start = start_values([item.trace for item in lab_items])
    expected = []
    for item in lab_items:
        steps = len(item.trace.steps)
        values = [start[item.problem.id], *(SUCCESSES[s % len(SUCCESSES)] / 8 for s in range(steps))]
        bests = [best_of_k(one, best_of) for one in values]
        expected += [after - before for before, after in pairwise(bests)]
    assert [label.value for label in labels] == pytest.approx(expected)
    assert f"{len(labels)} labels written, 0 of them without a value" in ended.err
    assert f"success rates of {len(start)} problems" in ended.err
    piped = good(
        *("label", "-", f"advantage:best-of={best_of}", "--problems", files / "p.jsonl"),
        *("--labels", files / "v.jsonl", "--traces", files / "t.jsonl"),
        stdin=(files / "t.jsonl").read_text(),
    )
    assert piped.out == (tmp_path / "a.jsonl").read_text()


def test_without_a_start_first_steps_have_no_advantage(files, lab_items, tmp_path):
    ended = advantages(files, tmp_path / "a.jsonl")
    unknown = [label for label in read(tmp_path / "a.jsonl", StepLabel) if label.value is None]
    assert [label.step for label in unknown] == [0] * len(lab_items)
    assert "12 without a value: no value of the problem itself" in ended.err


def test_labels_that_give_no_advantage_are_refused_or_counted(files, tmp_path):
    words = ("label", files / "t.jsonl", "advantage", "--problems", files / "p.jsonl")
    assert "lacks labels of kind 'value'" in refused(*words, "--labels", files / "gold.jsonl")
    values = read(files / "v.jsonl", StepLabel)
    hard = [label.model_copy(update={"value": float(label.value > 0)}) for label in values]
    write_records(tmp_path / "hard.jsonl", hard)
    assert "label with soft estimates" in refused(*words, "--labels", tmp_path / "hard.jsonl")
    first = values[0].trace_id
    write_records(tmp_path / "some.jsonl", [label for label in values if label.trace_id != first])
    ended = good(*words, "--labels", tmp_path / "some.jsonl")
    assert "1 trace skipped: " in ended.err
    assert "lacks labels of kind 'value' for them" in ended.err
    assert first not in ended.out


def trained_on(files: Path, lab_base: Path, labels: Path, out: Path, *more: object) -> tuple[object, ...]:
    words = ("train", "prm", "--problems", files / "p.jsonl", files / "t.jsonl")
    return (*words, "--labels", labels, "--out", out, "--base", lab_base, "--epochs", 1, *more)


def test_a_pav_learns_advantages_from_values(files, lab_base, lab_items, tmp_path):
    advantages(files, tmp_path / "a.jsonl", "--traces", files / "t.jsonl", method="advantage:best-of=4")
    good(*trained_on(files, lab_base, tmp_path / "a.jsonl", tmp_path / "pav", "--validation", 0.4))
    pav = load_prm(tmp_path / "pav")
    assert pav.card.score_means == "advantage"
    assert pav.card.label_source == "best-of-4-advantage of monte-carlo-soft"
    records = scored(files, tmp_path / "pav", tmp_path / "s.jsonl")
    assert [r.scores for r in records] == [r.scores for r in pav.score_traces(lab_items)]
    assert "min of the steps" in shown(tmp_path / "pav", lab_items[0])


def test_advantages_are_not_mixed_or_thresholded(files, lab_base, tmp_path):
    advantages(files, tmp_path / "a.jsonl")
    both = [*read(tmp_path / "a.jsonl", StepLabel), *read(files / "v.jsonl", StepLabel)]
    write_records(tmp_path / "both.jsonl", both)
    said = refused(*trained_on(files, lab_base, tmp_path / "both.jsonl", tmp_path / "prm"))
    assert "advantage labels are mixed with value labels" in said
    for more, says in ((["--hard"], "'hard'"), (["--loss", "classes"], "three classes")):
        words = trained_on(files, lab_base, tmp_path / "a.jsonl", tmp_path / "prm", *more)
        assert says in refused(*words)
    assert not (tmp_path / "prm").exists()


# Implicit


def implicit(files: Path, lab_base: Path, out: Path, *more: object) -> tuple[object, ...]:
    words = ("train", "implicit", "--problems", files / "p.jsonl", files / "t.jsonl")
    return (*words, "--out", out, "--base", lab_base, "--epochs", 2, "--batch-size", 4, *more)


def test_an_implicit_model_from_outcomes_to_scores(files, lab_base, lab_items, tmp_path):
    out = tmp_path / "iprm"
    ended = good(*implicit(files, lab_base, out, "--beta", 0.1))
    assert "6 updates, mean loss of the last 6" in ended.err
    model = load_prm(out)
    card = model.card
    assert (card.family, card.score_means, card.aggregation) == ("implicit", "advantage", "min")
    assert model.card.base == str(lab_base)
    assert model.settings.beta == 0.1
    assert not (out / "checkpoint.safetensors").exists()
    records = scored(files, out, tmp_path / "s.jsonl")
    assert [r.scores for r in records] == [r.scores for r in model.score_traces(lab_items)]
    assert {r.scorer for r in records} == {"iprm"}
    assert "min of the steps" in shown(out, lab_items[0])
    again = good(*implicit(files, lab_base, out, "--beta", 0.1))
    assert "finished already" in again.err
    assert "config.beta" in refused(*implicit(files, lab_base, out))


def test_a_reference_by_name_and_that_has_moved(files, lab_base, lab_items, tmp_path):
    base = tmp_path / "base"
    base.symlink_to(lab_base)
    named = tmp_path / "named"
    good(*implicit(files, lab_base, named, "--reference", base, "--no-copy-reference"))
    assert not (named / "reference").exists()
    expected = scored(files, named, tmp_path / "s.jsonl")
    base.unlink()
    ask = ("score", "-m", named, "--problem", "p", "--solution", "1")
    assert "is missing or broken" in refused(*ask)
    assert scored(files, named, tmp_path / "t.jsonl", "--reference", lab_base) == expected


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--beta", 0), "--beta"),
        (("--max-length", 1), "--max-length"),
        (("--system", "s"), "chat"),
        (("--reference", "no/such/model"), "could not be loaded"),
    ],
)
def test_wrong_options_of_implicit_are_named(files, lab_base, tmp_path, more, says):
    assert says in refused(*implicit(files, lab_base, tmp_path / "x", *more))


# Verifiers


def criticised(body: Body) -> Reply:
    """What a critic without fault would write."""
    prompt = body["prompt"].removesuffix(critic.OPENING)
    assert prompt != body["prompt"]
    request = SampleRequest(prompt=prompt, prefix=critic.OPENING, seed=body["seed"])
    (result,) = asyncio.run(critic.NoisyCritic().sample([request]))
    return Reply(payload=completion([result.completions[0].text]))


def critiques(files: Path, url: str, out: Path, *more: object) -> tuple[object, ...]:
    words = ("label", files / "t.jsonl", "critiques:chains=1", "--problems", files / "p.jsonl")
    policy = ("--policy", "critic", "--base-url", url)
    return (*words, *policy, "--format", files / "format.json", "--out", out, *more)


def verifier(files: Path, texts: Path, out: Path, *more: object) -> tuple[object, ...]:
    words = ("train", "verifier", "--problems", files / "p.jsonl", files / "t.jsonl")
    data = ("--labels", files / "gold.jsonl", "--critiques", texts, "--format", files / "format.json")
    return (*words, *data, "--base", files / "base", "--out", out, "--batch-size", 6, *more)


def test_a_verifier_from_critiques_to_scores(files, lab_items, tmp_path):
    texts, out = tmp_path / "c.jsonl", tmp_path / "verifier"
    with serve(criticised) as running:
        ended = good(*critiques(files, running.url, texts))
    assert "critiques of 12 traces written; 0 failed" in ended.err
    records = read(texts, TraceCritiques)
    assert [record.trace_id for record in records] == [item.trace.id for item in lab_items]
    assert all(record.usage.tokens for record in records)
    words = verifier(files, texts, out, "--epochs", 30, "--learning-rate", 5e-3)
    ended = good(*words)
    assert "12 of 12 critiques" in ended.err
    assert "finished already" in good(*words).err
    model = load_prm(out)
    assert (model.card.family, model.card.label_source) == ("generative", "digit-checker")
    found = scored(files, out, tmp_path / "s.jsonl")
    assert [r.trace_id for r in found] == [item.trace.id for item in lab_items]
    assert sum(None not in record.scores for record in found) >= 6, "it writes critiques that can be read"
    untrained = tmp_path / "untrained"
    good(*verifier(files, texts, untrained, "--epochs", 1, "--learning-rate", 1e-9))
    ask = ("score", "-m", untrained, "--problems", files / "p.jsonl", files / "one.jsonl")
    write_records(files / "one.jsonl", [lab_items[0].trace])
    ended = run(*ask)
    [record] = [StepScores.model_validate_json(line) for line in ended.out.splitlines()]
    unscored = int(None in record.scores)  # what it writes is chance, and may be read as a verdict
    assert ended.status == unscored, "a file without any score is an error"
    assert f"1 trace scored; {unscored} in part or not" in ended.err
    assert ("1 critique not scored: " in ended.err) == bool(unscored)
    readable = next(i for i, r in zip(lab_items, found, strict=True) if None not in r.scores)
    assert "last of the steps" in shown(out, readable)


def test_critiques_are_filtered_and_counted(files, lab_items, tmp_path):
    gold = critic.NoisyCritic(error_rate=0.3, omit_rate=0.2)
    requests = [
        SampleRequest(prompt=FORM.prompt(item), prefix=FORM.opening, n=8, seed=1) for item in lab_items[:11]
    ]
    rows = [
        TraceCritiques(trace_id=i.trace.id, policy="c", texts=tuple(c.text for c in result.completions))
        for i, result in zip(lab_items, asyncio.run(gold.sample(requests)), strict=False)
    ]
    strays = TraceCritiques(trace_id="nobody", policy="c", texts=("a", "b"))
    write_records(tmp_path / "c.jsonl", [*rows, strays])
    ended = good(*verifier(files, tmp_path / "c.jsonl", tmp_path / "v", "--epochs", 1, "--no-balance"))
    assert "2 critiques skipped: their 'trace_id' is in no usable trace" in ended.err
    assert "1 trace without a critique" in ended.err
    counted = json.loads((tmp_path / "v" / "done" / "train.json").read_text())["data"]["dropped"]
    assert {"verdict is wrong", "unreadable: a verdict is missing", "repeated"} <= set(counted)
    assert f"left out: {counted['repeated']} repeated" in ended.err
    assert f"{88 - sum(counted.values())} of 88 critiques" in ended.err


def test_what_a_verifier_cannot_be_trained_on_is_said(files, lab_items, tmp_path):
    write_records(
        tmp_path / "c.jsonl", [TraceCritiques(trace_id=lab_items[0].trace.id, policy="c", texts=("x",))]
    )
    words = verifier(files, tmp_path / "c.jsonl", tmp_path / "v")
    assert "no critique is left to train on: 1 unreadable" in refused(*words)
    swapped = [files / "v.jsonl" if word == files / "gold.jsonl" else word for word in words]
    assert "no label of kind 'correctness'" in refused(*swapped)
    (tmp_path / "form.json").write_text('{"template": "nothing"}')
    other = [tmp_path / "form.json" if word == files / "format.json" else word for word in words]
    assert "template must contain '{problem}'" in refused(*other)
    assert "--neutral is 'odd'" in refused(*words, "--neutral", "odd")


def test_critiques_of_a_server_that_is_gone(files, tmp_path):
    with serve(lambda _: Reply(status=400, payload="gone")) as running:
        said = refused(*critiques(files, running.url, tmp_path / "c.jsonl"))
        assert "no request succeeded" in said
        assert "finished pieces are kept" in said


def test_critiques_are_of_texts_alone(files, tmp_path):
    chat = [
        Trace(
            problem_id="p",
            messages=({"role": "assistant", "content": "1"},),
            steps=({"message": 0, "start": 0, "end": 1},),
        )
    ]
    write_records(tmp_path / "chat.jsonl", [*chat, *read(files / "t.jsonl", Trace)[:1]])
    problems = (files / "p.jsonl").read_text() + '{"id": "p", "text": "1"}\n'
    (tmp_path / "p.jsonl").write_text(problems)
    with serve(criticised) as running:
        words = critiques(files, running.url, tmp_path / "c.jsonl")
        swap = {files / "t.jsonl": tmp_path / "chat.jsonl", files / "p.jsonl": tmp_path / "p.jsonl"}
        ended = good(*(swap.get(word, word) if isinstance(word, Path) else word for word in words))
    assert "1 trace skipped: a verifier reads text" in ended.err
    assert "critiques of 1 trace written" in ended.err


# Calibration


def test_calibrated_scores_are_asked_for(files, lab_base, lab_items, tmp_path):
    good(*trained_on(files, lab_base, files / "v.jsonl", tmp_path / "prm"))
    raw = scored(files, tmp_path / "prm", tmp_path / "raw.jsonl")
    ask = ("score", "-m", tmp_path / "prm", "--problem", "p", "--solution", "1")
    assert "has no calibration.json" in refused(*ask, "--calibrated")
    steps = [score for record in raw for score in record.scores]
    facts = [float(number % 3 > 0) for number in range(len(steps))]
    fitted = fit_calibration("isotonic", steps, facts, split="held-out", trace_ids=[r.trace_id for r in raw])
    save_calibration(tmp_path / "prm", fitted)
    assert scored(files, tmp_path / "prm", tmp_path / "again.jsonl") == raw
    found = scored(files, tmp_path / "prm", tmp_path / "c.jsonl", "--calibrated")
    assert [r.scores for r in found] == [tuple(fitted.map.apply(record.scores).tolist()) for record in raw]
    assert {r.scorer for r in found} == {"prm+isotonic"}
    assert "min of the steps" in shown(tmp_path / "prm", lab_items[0], "--calibrated")


def test_options_of_another_kind_are_refused(files, lab_base, tmp_path):
    good(*trained_on(files, lab_base, files / "v.jsonl", tmp_path / "prm"))
    ask = ("score", "-m", tmp_path / "prm", "--problem", "p", "--solution", "1")
    assert "is for generative verifiers" in refused(*ask, "--chains", 3)
    assert "is for implicit rewards" in refused(*ask, "--reference", "other")
    assert "is for adapters" in refused(*ask, "--base", "other")
