"""Cards: built from runs, true until something changes, and every seeded fault is noticed."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_line import good, refused, run
from model_chain import make_audit, make_chain

from surefoot.cards import ReleaseCard, check_card, diff_cards, read_release, safety_case
from surefoot.cards.build import _plans_of_report
from surefoot.errors import RunError
from surefoot.evaluation.report import Origin, Section, first_screen_of, to_json
from surefoot.evaluation.verdict import Conclusion
from surefoot.io.lineage import CommandRecord, hashes_of
from surefoot.io.runs import digest_of
from surefoot.stats import Interval

CARD = Path("card/card.json")
ABOUT = ("--name", "sums", "--license", "MIT", "--intended-use", "tests of cards", "--not-for", "people")
BUILD = ("card", "build", "prm", "audit", "l.jsonl", *ABOUT, "--scope", ".", "--out", "card", "--force")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory, gpt2_base: Path) -> Path:
    """A model, its audit, and their card."""
    folder = tmp_path_factory.mktemp("cards")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        make_chain(gpt2_base)
        make_audit()
        good(*BUILD)
    return folder


@pytest.fixture
def here(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy that a test may damage."""
    folder = tmp_path / "copy"
    shutil.copytree(original, folder)
    monkeypatch.chdir(folder)
    return folder


def edit(path: str, old: str, new: str) -> None:
    """Replace the first ``old`` by ``new``, which must be in the file."""
    text = Path(path).read_text()
    assert old in text
    Path(path).write_text(text.replace(old, new, 1))


def change(**fields: Callable) -> None:
    """Change fields of ``card.json`` by functions of their values."""
    data = json.loads(CARD.read_text())
    for name, function in fields.items():
        data[name] = function(data[name])
    CARD.write_text(json.dumps(data))


def without(name: str) -> Callable:
    return lambda entries: [e for e in entries if name not in json.dumps(e)]


def with_first(**fields: object) -> Callable:
    return lambda entries: [{**entries[0], **fields}, *entries[1:]]


def settle(*folders: str) -> None:
    """Rewrite the records as if the commands had written what is there now."""
    for record in [*Path().rglob("*.manifest.json"), *(Path(f) / "manifest.json" for f in folders)]:
        data = json.loads(record.read_text())
        for name in data["outputs"]:
            data["outputs"][name] = digest_of(name, record.parent / name)
        for entry in data["inputs"].values():
            entry["sha256"] = hashes_of(Path(entry["path"]))[""]
        record.write_text(json.dumps(data))


def relabel() -> None:
    edit("l.jsonl", '"value":-1', '"value":1')


def retrain() -> None:
    (Path("prm") / "head.safetensors").write_bytes(
        (Path("prm") / "head.safetensors").read_bytes()[:-1] + b"x"
    )


def swap_checkpoint() -> None:
    retrain()
    settle("prm")


def new_audit() -> None:
    about = ("--problems", "data*/problems.jsonl", "--traces", "traces.jsonl", "--labels", "l.jsonl")
    good("evaluate", "--as=calibration", "prm=scores.jsonl", *about, "--draws", "20", "--out", "hidden")


FAULTS: dict[str, tuple[Callable[[], object], str]] = {
    "edited value": (lambda: change(claims=with_first(value=0.99)), r"claims\[.*step-auc\]\.value"),
    "edited interval": (lambda: change(claims=with_first(low=0.5)), r"\.low: "),
    "edited sentence": (lambda: change(claims=with_first(text="It is perfect.")), r"\.text: .It is perfect"),
    "edited verdict": (lambda: change(claims=with_first(verdict="yes")), r"\.verdict: .yes"),
    "edited hash of evidence": (
        lambda: change(
            claims=lambda c: [{**c[0], "evidence": [{**c[0]["evidence"][0], "sha256": "0"}]}, *c[1:]]
        ),
        r"evidence\[.*\]\.sha256",
    ),
    "another figure": (lambda: change(claims=with_first(figure="records")), r"\.figure: "),
    "dropped claim": (lambda: change(claims=lambda c: c[1:]), r"claims\[.*step-auc\].*: absent"),
    "dropped audit": (
        lambda: change(runs=without("audit"), claims=without("audit/"), tested=without("audit")),
        r"\(audit\) is about a model of this card and not on it",
    ),
    "deleted audit": (lambda: shutil.rmtree("audit"), r"audit"),
    "hidden run": (new_audit, r"evaluate\) is about a model of this card"),
    "missing role": (lambda: change(roles=without("deployment monitor")), r"deployment monitor"),
    "role renamed": (
        lambda: change(
            roles=lambda r: [{**x, "filled_by": ["people"]} if "human" in x["name"] else x for x in r]
        ),
        r"human label source\]\.filled_by",
    ),
    "shared base hidden": (
        lambda: change(roles=with_first(shares_base_with=[])),
        r"shares_base_with",
    ),
    "not tested shortened": (lambda: change(not_tested=lambda n: n[1:]), r"not_tested\["),
    "failure removed": (lambda: change(failures=lambda f: f[1:]), r"failures\["),
    "summary praised": (
        lambda: change(summary=lambda s: s.replace("is not shown", "is shown")),
        r"summary: ",
    ),
    "labels' origin edited": (lambda: change(labels=lambda n: ["Labels were made by experts."]), r"labels\["),
    "licence edited": (lambda: change(sources=with_first(licence="MIT-0")), r"sources\[.*\]\.licence"),
    "stale version": (lambda: change(versions=lambda v: {**v, "surefoot": "0.0.1"}), r"versions\.surefoot"),
    "version of a run": (lambda: change(runs=with_first(version="9")), r"runs\[.*\]\.version"),
    "model's hash edited": (
        lambda: change(models=lambda m: [{**m[0], "sha256": {}}]),
        r"models\[prm\]\.sha256",
    ),
    "model's facts edited": (
        lambda: change(models=lambda m: [{**m[0], "facts": {**m[0]["facts"], "label_source": "human"}}]),
        r"label_source",
    ),
    "retrained model": (retrain, r"head\.safetensors was edited by hand"),
    "swapped checkpoint": (swap_checkpoint, r"prm: head\.safetensors changed after surefoot score read it"),
    "changed label": (relabel, r"l\.jsonl: it was edited by hand"),
    "deleted row of data": (
        lambda: Path("traces.jsonl").write_text(
            "".join(Path("traces.jsonl").read_text().splitlines(True)[1:])
        ),
        r"traces\.jsonl: it was edited by hand",
    ),
    "changed source": (lambda: edit("part0.jsonl", "What is 0", "What was 0"), r"part0\.jsonl: it changed"),
    "changed row behind a figure": (
        lambda: edit("prm/held-out-steps.jsonl", '"good":false', '"good":true'),
        r"held-out-steps\.jsonl was edited by hand",
    ),
    "changed record": (
        lambda: edit("prm/manifest.json", '"epochs": 1', '"epochs": 9'),
        r"runs\[.*\]\.sha256",
    ),
    "README edited": (lambda: edit("card/README.md", "0.", "0.9"), r"README\.md is not what card\.json says"),
    "page edited": (lambda: edit("card/card.html", "excluded", "shown"), r"card\.html is not what"),
}


def test_the_card_is_true_and_equal_runs_give_equal_bytes(here: Path):
    assert check_card(CARD) == []
    first = CARD.read_bytes()
    good(*BUILD)
    assert CARD.read_bytes() == first
    assert "card.json holds" in good("card", "check", CARD).out


@pytest.mark.parametrize("name", FAULTS)
def test_a_seeded_fault_is_noticed(here: Path, name: str):
    fault, reason = FAULTS[name]
    fault()
    reasons = check_card(CARD)
    assert any(re.search(reason, line) for line in reasons), reasons


def test_the_command_fails_with_reasons(here: Path):
    change(claims=with_first(value=0.99))
    ended = run("card", "check", CARD)
    assert ended.status == 1
    assert "step-auc].value: 0.99" in ended.out


def test_the_card_alone_answers_the_four_questions(here: Path):
    """What process was supervised, how labels were produced, where it was tested, what failures remain."""
    text = Path("card/README.md").read_text()
    process, labels, tested, failures = (
        text.partition(f"## {title}\n")[2].partition("\n## ")[0]
        for title in (
            "What process was supervised",
            "How labels were produced",
            "Where the method was tested",
            "What failures remain",
        )
    )
    assert re.search(r"reasoning steps of 40 solutions \(80 steps, cut by line\)", process)
    assert "correctness labels from equations" in process
    assert "prm learned from labels of the source 'equations'." in labels
    assert "80 step labels in l.jsonl." in labels
    assert "The cost of the labels is not recorded." in labels
    assert re.search(r"Step AUC on \d+ held-out problems is [\d.]+ \[", tested)
    assert "audit: " in tested
    assert re.search(r"a gain over the best rival that does not read is (excluded|not decided)", failures)
    assert "- Not tested: other domains." in text


def test_the_calibration_of_a_judge_is_on_the_card(here: Path):
    shutil.copy("l.jsonl", "gold.jsonl")
    good(
        "evaluate",
        "--as=judge",
        "--labels=gold.jsonl",
        "l.jsonl",
        "--traces",
        "traces.jsonl",
        "--out",
        "calibration",
    )
    good(*BUILD[:5], "calibration", *BUILD[5:])
    claims = {claim["id"].rpartition("/")[2]: claim for claim in json.loads(CARD.read_text())["claims"]}
    assert claims["quality|0|kappa"]["value"] == 1.0
    assert "corrected by gold labels" in claims["rates|0|corrected"]["text"]
    assert "corrected by gold labels" in Path("card/README.md").read_text()
    good("card", "check", CARD)
    stored = Path("l.jsonl.calibration.json")
    stored.write_text(stored.read_text().replace('"labels": "', '"labels": "0', 1))
    assert "is about other labels" in refused(*BUILD[:5], "calibration", *BUILD[5:])


def test_an_evaluation_on_several_sets_is_a_test_of_other_domains(here: Path):
    for name, first in (("one", 0), ("two", 12)):
        rows = [
            {
                "id": f"{name}-{number}",
                "generator": "hand",
                "problem": f"What is {number} + 2?",
                "steps": [f"{number} + 2 = {number + 2}", f"The answer is {number + 2 + error}."],
                "final_answer_correct": not error,
                "label": 1 if error else -1,
            }
            for number in range(first, first + 12)
            for error in (number % 2,)
        ]
        Path(f"{name}.json").write_text(json.dumps(rows))
    sets = ("--data", "one=one.json", "--data", "two=two.json")
    good("evaluate", "prm=prm", "--as", "processbench", *sets, "--draws", "20", "--out", "sets")
    assert "- Not tested: other domains." in Path("card/README.md").read_text()
    good(*BUILD[:5], "sets", *BUILD[5:])
    assert "- Not tested: other domains." not in Path("card/README.md").read_text()


def test_of_several_scorers_a_card_states_its_own(here: Path):
    Path("gold.jsonl").write_text("".join(Path("l.jsonl").read_text().splitlines(True)[::-1]))
    about = ("--problems", "data*/problems.jsonl", "--traces", "traces.jsonl", "--labels", "l.jsonl")
    good("evaluate", "--as=runs", "scores.jsonl", "gold=gold.jsonl", *about, "--draws=20", "--out", "sides")
    said = json.loads(Path("sides/runs.json").read_text())["first_screen"]
    assert list(said["ranking"]) == ["gold", "scores"]
    good(*BUILD[:5], "sides", *BUILD[5:])
    sentence, *claims = (claim for claim in read_release(CARD).claims if claim.run.startswith("sides/"))
    assert sentence.text == f"evaluate: {said['ranking']['scores']}"
    own = [verdict["estimate"]["value"] for verdict in said["claims"][1]]
    assert [claim.value for claim in claims] == [round(value, 5) for value in own if value is not None]
    assert "gold finds" not in Path("card/README.md").read_text()
    good("card", "check", CARD)


def test_a_negative_audit_cannot_be_left_out(here: Path):
    words = [word for word in BUILD if word != "audit"]
    assert "results cannot be left out" in refused(*words)


def test_a_run_without_a_record_or_a_figure(here: Path, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    assert "is without the record of a run" in refused(
        "card", "build", tmp_path / "empty", *ABOUT, "--out", "c2"
    )
    good("inspect", "traces.jsonl", "--out", "seen.json")
    assert "lacks any figure" in refused(
        "card", "build", "seen.json", *ABOUT, "--scope", "data0", "--out", "c2"
    )


def test_renderings_are_valid(here: Path):
    from huggingface_hub import ModelCard

    card = ModelCard.load("card/README.md")
    assert card.data.license == "mit"
    assert card.data.eval_results[0].dataset_name == "wrong steps on held-out problems"
    page = Path("card/card.html").read_text()
    assert 'class="chip' in page
    assert "<script" not in page


def test_a_verdict_is_evidence_for_its_own_test_alone(tmp_path: Path):
    said = ("edits that raise a score", "outcome leakage", "")
    verdicts = [
        Conclusion(
            sentence=f"On {of}.",
            tone="good",
            decided=True,
            estimate=Interval(value=0.7, low=0.6, high=0.8),
            tested=of,
        )
        for of in said
    ]
    screen = {"sentence": "", "verdicts": to_json(verdicts)}
    (tmp_path / "audit.json").write_text(json.dumps({"inputs": {}, "first_screen": screen}))
    manifest = {"command": "audit", "inputs": {}, "models": {}, "outputs": {"audit.json": ""}}
    record = CommandRecord(path=tmp_path / "audit.json.manifest.json", manifest=manifest)
    plans = list(_plans_of_report(record, set()))
    assert [plan.verdict for plan in plans] == ["yes"] * 3
    assert [plan.tests for plan in plans] == [(said[0],), (said[1],), ()]


def test_all_scorers_of_an_own_file_are_on_the_card(tmp_path: Path):
    """Scorers of one file go by the last part of their names; another source has a name of its own."""
    found = Interval(value=0.7, low=0.6, high=0.8)
    claim = Conclusion(
        sentence="It works.", tone="good", decided=True, estimate=found, detail="is good", claim="w"
    )
    for others in ((), ("rival",)):
        names = ("prm/a", "prm/b", *others)
        section = Section(title="T", about="", results={}, verdicts={name: [claim] for name in names})
        screen = to_json(first_screen_of([section], Origin()))
        sources = ["prm=prm", "rival=owner/name@commit"]
        said = {"inputs": {"sources": sources}, "first_screen": screen}
        (tmp_path / "e.json").write_text(json.dumps(said))
        models = {"prm": {"model.safetensors": "1"}, "owner/name@commit": "commit"}
        manifest = {"command": "evaluate", "inputs": {}, "models": models, "outputs": {"e.json": ""}}
        record = CommandRecord(path=tmp_path / "e.json.manifest.json", manifest=manifest)
        paths = [plan.arguments["at"] for plan in _plans_of_report(record, {"1"})]
        assert [path for path in paths if path.endswith("estimate")] == [
            "first_screen|claims|0|0|estimate",
            "first_screen|claims|1|0|estimate",
        ]


def test_the_published_schema_describes_the_card(here: Path):
    import jsonschema_rs

    schema = ReleaseCard.model_json_schema()
    assert jsonschema_rs.validator_for(schema).is_valid(json.loads(CARD.read_text()))
    assert not jsonschema_rs.validator_for(schema).is_valid({"format": 1})
    CARD.write_text('{"format": 1}')
    assert "field 'about': missing" in refused("card", "check", CARD)


def test_two_cards_are_compared(here: Path):
    shutil.copytree("card", "old")
    old = read_release(Path("old/card.json"))
    assert diff_cards(old, read_release(CARD)) == []
    change(claims=with_first(value=0.99))
    assert "step-auc].value: " in "".join(diff_cards(old, read_release(CARD)))


def test_links_of_the_safety_case_resolve(here: Path):
    text = Path("card/safety-case.md").read_text()
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert links
    assert all((Path("card") / link).is_file() for link in links)
    assert "**Status: not supported: undecided or not tested.**" in text
    edit("prm/held-out-steps.jsonl", '"good":false', '"good":true')
    with pytest.raises(RunError, match="was changed"):
        safety_case(read_release(CARD), Path("card/again.md"))


def test_the_checkpoint_states_its_card_when_it_is_loaded(here: Path, capfd: pytest.CaptureFixture):
    from surefoot.models import load_prm

    load_prm("prm").score("Что это?", ["Это ответ на вопрос."])
    said = capfd.readouterr().err
    assert re.search(
        r"prm: (detects|is not shown to detect) wrong steps on .*, not tested on other subjects", said
    )
    assert "threshold" in said
    release = read_release(CARD)
    good(*BUILD[:-3], "--out", "prm", "--force")
    copy = Path("again")
    shutil.copytree("prm", copy)
    load_prm(copy)
    assert f"again: {release.summary}" in capfd.readouterr().err


def test_text_that_differs_from_the_tested_one_is_warned_about(here: Path, caplog: pytest.LogCaptureFixture):
    from surefoot.models import load_prm

    scorer = load_prm("prm")
    scorer.score("What is 3 + 2?", ["3 + 2 = 5\nThe answer is 5."])
    assert "was not tested on this" not in caplog.text
    scorer.score("Wie viel?", ["Das wissen wir nicht.\n" * 5])
    assert "prm was not tested on this: text: " in caplog.text
    assert "prm was not tested on this: length: more than" in caplog.text
    scorer.score("Сколько?", ["Пять."])
    assert "language: letters of CYRILLIC" in caplog.text


def test_a_runs_times_are_part_of_its_record(tmp_path: Path):
    for name in ("manifest.json", "timings.json"):
        (tmp_path / name).write_text("{}")
    assert set(hashes_of(tmp_path)) == {"timings.json"}
