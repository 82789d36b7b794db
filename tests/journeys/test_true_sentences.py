"""What reports say first of sources of known quality, and sentences that once said more than was true."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest
from annotation_site import text_trace
from command_line import good, run

from surefoot.evaluation.verdict import Counts, Opinion, chosen, detected, headline, measured, run_verdict
from surefoot.io import write_records
from surefoot.records import Problem, StepLabel, StepScores, Trace
from surefoot.stats.intervals import Interval

PROBLEMS = 60
SAMPLES = 4
QUALITIES = ("perfect", "useless", "silent", "mixed")
NEVER = re.compile(r"may or may not|cannot tell|reads the steps|\bnan\b|n/a")


class Data:
    """Sums of which every second has one wrong step, with four sources of labels and of scores."""

    def __init__(self, folder: Path) -> None:
        rng = random.Random(0)
        self.folder, self.problems, self.traces, self.wrong = folder, [], [], dict[str, int]()
        rows = []
        for number in range(PROBLEMS):
            value, steps, bad = rng.randint(2, 9), [], rng.randrange(4) if number % 2 == 0 else -1
            for at in range(4):
                more = rng.randint(2, 9)
                steps.append(f"We add {more}: {value} + {more} = {(value := value + more + (at == bad))}.")
            problem = Problem(text=f"Sum {number}", answer=str(value))
            trace = text_trace(problem, *steps, id=f"sum-{number}", outcome=bad < 0, answer=str(value))
            self.problems.append(problem)
            self.traces.append(trace)
            self.wrong[trace.id] = bad
            rows.append(
                {
                    "id": trace.id,
                    "generator": "m",
                    "problem": problem.text,
                    "steps": steps,
                    "final_answer_correct": bad < 0,
                    "label": bad,
                }
            )
        (folder / "bench.json").write_text(json.dumps(rows))
        write_records(folder / "problems.jsonl", self.problems)
        write_records(folder / "traces.jsonl", self.traces)
        write_records(folder / "truth.jsonl", self.labels("truth", "perfect"))
        for quality in QUALITIES:
            write_records(folder / f"{quality}.jsonl", self.labels(quality, quality))
            write_records(folder / f"{quality}-scores.jsonl", self.scores(quality, self.traces))
        self._samples()

    def value(self, quality: str, trace: str, step: int, rng: random.Random) -> float | None:
        bad = self.wrong[trace]
        true = 1.0 if bad < 0 or step < bad else -1.0 if step == bad else None
        if quality == "silent":
            return None
        if quality == "useless":
            return rng.choice([1.0, -1.0])
        number = int(trace.split("-")[1])
        return (true if number % 8 < 4 else 1.0 if number % 8 < 6 else None) if quality == "mixed" else true

    def labels(self, source: str, quality: str) -> list[StepLabel]:
        rng = random.Random(1)
        return [
            StepLabel(
                trace_id=trace.id,
                step=step,
                kind="correctness",
                value=(value := self.value(quality, trace.id, step, rng)),
                source=source,
                reason="no verdict" if value is None else None,
            )
            for trace in self.traces
            for step in range(len(trace.steps))
        ]

    def scores(self, quality: str, traces: list[Trace]) -> list[StepScores]:
        """Scores in (0, 1) that follow the labels."""
        rng, rows = random.Random(2), []
        for trace in traces:
            values = [self.value(quality, trace.id, step, rng) for step in range(len(trace.steps))]
            scores = [None if v is None else 0.5 + 0.49 * v + rng.uniform(-0.01, 0.01) for v in values]
            missing = "silent" if all(score is None for score in scores) else None
            rows.append(
                StepScores(trace_id=trace.id, scorer=quality, scores=tuple(scores), unscored_reason=missing)
            )
        return rows

    def _samples(self) -> None:
        """Four samples for each problem; each is right by chance, and its scores say so or not."""
        rng, traces, rows = random.Random(3), [], {quality: [] for quality in QUALITIES}
        for problem in self.problems:
            for at in range(SAMPLES):
                right = rng.random() < 0.5
                answer = problem.answer if right else str(rng.randint(1000, 1003))
                trace = text_trace(
                    problem,
                    "We add.",
                    f"It is {answer}.",
                    outcome=right,
                    answer=answer,
                    id=f"{problem.id}-{at}",
                )
                traces.append(trace)
                sure = 0.8 if right else 0.2
                for quality, score in (
                    ("perfect", sure),
                    ("useless", rng.random()),
                    ("silent", None),
                    ("mixed", sure if rng.random() < 0.6 else rng.random()),
                ):
                    rows[quality].append(
                        StepScores(
                            trace_id=trace.id,
                            scorer=quality,
                            scores=(score, score),
                            unscored_reason="silent" if score is None else None,
                        )
                    )
        write_records(self.folder / "samples.jsonl", traces)
        for quality, scores in rows.items():
            write_records(self.folder / f"{quality}-samples.jsonl", scores)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    return Data(tmp_path_factory.mktemp("sources"))


DATA = ("--traces", "traces.jsonl", "--labels", "truth.jsonl")
GIVEN = ("--problems", "problems.jsonl", *DATA)
REPORTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "processbench": ("{}.jsonl", ("--data", "bench.json")),
    "labels": ("{}.jsonl", DATA),
    "judge": ("{}.jsonl", DATA),
    "runs": ("{}.jsonl", GIVEN),
    "calibration": ("{}-scores.jsonl", GIVEN),
    "best-of-n:sizes=1+4,bootstrap=300,subsets=20": (
        "{}-samples.jsonl",
        ("--problems", "problems.jsonl", "--traces", "samples.jsonl"),
    ),
}
"""The file of a source, and the other words, by measure."""


@pytest.mark.parametrize("quality", QUALITIES)
@pytest.mark.parametrize("measure", REPORTS, ids=lambda measure: measure.partition(":")[0])
def test_a_report_begins_with_the_truth_about_its_source(
    measure: str, quality: str, data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(data.folder)
    source, words = REPORTS[measure]
    quick = () if measure.startswith("best-of-n") else ("--draws", "50")
    ended = good_or_refused(
        f"{quality}={source.format(quality)}", "--as", measure, *words, "--out", tmp_path, *quick
    )
    if ended is None:  # it says that nothing could be measured
        assert quality == "silent"
        return
    (file,) = [path for path in tmp_path.glob("*.json") if not path.name.endswith("manifest.json")]
    first = json.loads(file.read_text())["first_screen"]
    assert ended.startswith(quality), ended[:200]
    assert not NEVER.search(first["sentence"])
    tones = [verdict["tone"] for verdict in first["verdicts"]]
    if quality == "perfect":
        assert tones[0] == "good"
        assert "wrong" not in tones
    elif quality == "useless":
        assert "good" not in tones
    elif quality == "silent":
        assert {*tones} <= {"open"}
        assert re.search("no verdict|not decided|nothing", first["sentence"])
    else:
        assert (
            tones[0] != "wrong"
            or "but" in first["sentence"]
            or re.search("no better|worse", first["sentence"])
        )
    assert first["advice"] or first["verdicts"] == []


def good_or_refused(*words: object) -> str | None:
    """What a report prints; ``None`` if it is refused in a sentence."""
    ended = run("evaluate", *words)
    assert "Traceback" not in ended.err
    if ended.status:
        assert re.search("no step|no score|none of|no label|nothing|without|0 predictions", ended.err), (
            ended.err
        )
        return None
    return ended.out


POINT = Interval(value=0.0, low=-0.01, high=0.1)
ROWS = {
    "a failed run whose steps a judge calls right, and that lacks a call": (
        run_verdict(3, False, [Opinion(source="judge", checked=range(3))], missing_calls=1),
        "The run failed; every step was checked, and the error was not found; 1 call that the task needs is "
        "missing.",
        "wrong",
    ),
    "a perfect rule that is silent on most": (
        detected(
            Counts(found=2, wrong=2, alarms=0, right=0, of=60),
            Interval(value=0.03, low=0.0, high=0.1),
            "",
            60,
            rival="a fixed step",
            null=0.28,
            silence_counts=True,
        ),
        "It finds 2 of 2 first errors (100%) and raises no false alarm on 0 correct solutions, with no "
        "verdict on 58 of 60 solutions; whether this is better than a fixed step is not decided.",
        "open",
    ),
    "a judge that finds an eighth of the wrong steps": (
        detected(
            Counts(found=8, wrong=61, alarms=5, right=400, of=461, what="wrong step", unit="step"),
            Interval(value=0.16, low=0.06, high=0.27),
            "",
            60,
            rival="chance",
        ),
        "It finds 8 of 61 wrong steps (13%) and raises 5 false alarms on 400 correct steps: better than "
        "chance, but it misses most wrong steps.",
        "wrong",
    ),
    "better than one sample; next to majority not decided": (
        chosen(
            Interval(value=0.76, low=0.7, high=0.82),
            {
                "one sample": Interval(value=0.49, low=0.4, high=0.6),
                "majority": Interval(value=0.69, low=0.6, high=0.75),
            },
            POINT,
            "",
            100,
        ),
        "It raises accuracy from 49% (one sample) to 76%; whether this is better than majority (69%) is not "
        "decided.",
        "open",
    ),
    "better than one sample, and worse than majority": (
        chosen(
            Interval(value=0.69, low=0.65, high=0.72),
            {
                "one sample": Interval(value=0.54, low=0.5, high=0.6),
                "majority": Interval(value=0.725, low=0.7, high=0.75),
            },
            Interval(value=-0.035, low=-0.05, high=-0.02),
            "",
            400,
        ),
        "It raises accuracy from 54% (one sample) to 69%: worse than majority (72%).",
        "wrong",
    ),
    "below one sample, not decided": (
        chosen(
            Interval(value=0.48, low=0.4, high=0.55),
            {"one sample": Interval(value=0.5, low=0.4, high=0.6)},
            Interval(value=-0.02, low=-0.1, high=0.06),
            "",
            50,
        ),
        "It has an accuracy of 48%, next to 50% (one sample); whether this is better than one sample is not "
        "decided.",
        "open",
    ),
    "one of three people on a right run": (
        run_verdict(
            4,
            True,
            [
                Opinion(source="human", checked=range(4)),
                Opinion(source="human", checked=range(4)),
                Opinion(source="human", checked=range(2), error=2),
            ],
        ),
        "The outcome is right, but step 3 is called wrong by only 1 of 3 raters.",
        "open",
    ),
    "a run that nobody graded": (
        run_verdict(2, None, []),
        "No step was checked; the outcome is unknown (not graded).",
        "open",
    ),
    "what a data set calls safe": (
        run_verdict(2, True, [], outcome_word="safe"),
        "The outcome is safe; no step was checked.",
        "good",
    ),
}
"""Sentences that once claimed more: the verdict, the sentence and its tone."""


@pytest.mark.parametrize("name", ROWS)
def test_a_sentence_claims_no_more_than_is_known(name: str) -> None:
    verdict, sentence, tone = ROWS[name]
    assert (verdict.sentence, verdict.tone) == (sentence, tone)
    assert not NEVER.search(verdict.sentence)


def test_a_headline_of_several_claims_has_a_sentence_for_each_that_has_clauses() -> None:
    weak = ROWS["a judge that finds an eighth of the wrong steps"][0]
    steps = measured(
        "single steps", Interval(value=0.7, low=0.6, high=0.8), "", 100, null=0.5, rival="position"
    )
    assert headline("judge", [weak, steps]).endswith(
        "better than chance, but it misses most wrong steps. It judges single steps better than position."
    )


def test_the_best_source_comes_first_whatever_the_order(
    data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(data.folder)
    names = [f"{quality}={quality}.jsonl" for quality in ("silent", "useless", "mixed", "perfect")]
    said = good("evaluate", *names, "--as", "labels", *DATA, "--out", tmp_path, "--draws", "200").out
    assert said.startswith("perfect finds 30 of 30")
    assert re.findall(r"^\d\. (\w+)", said, re.MULTILINE) == ["mixed", "useless", "silent"]
