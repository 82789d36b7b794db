from itertools import permutations
from pathlib import Path
from weakref import ref

import pytest
from fixed_scorer import FixedScorer, one_character_steps
from parquet_files import write_parquet

from surefoot.errors import RecordError, ScoreError
from surefoot.evaluation.step_scores import labelled_system, open_systems, recorded_by_all, scored_system
from surefoot.io import write_records
from surefoot.records import Evidence, StepLabel

ITEMS = one_character_steps("ab", "cde", "f")
TRACES = [item.trace for item in ITEMS]
SCORER = FixedScorer({"ab": [0.9, 0.1], "cde": [0.8, None, None], "f": [0.7]})
SCORES = SCORER.score_traces(ITEMS)


def label(trace, step, value, kind="correctness"):
    reason = None if value is not None else "tied"
    return StepLabel(trace_id=trace.id, step=step, kind=kind, value=value, reason=reason, source="judge")


def test_scores_are_joined_by_id_and_everything_is_counted():
    stranger = SCORES[0].model_copy(update={"trace_id": "elsewhere"})
    later = SCORES[0].model_copy(update={"scores": (0.2, 0.3)})
    system = scored_system("mine", [stranger, SCORES[1], SCORES[0], later], TRACES)
    assert list(system.scores) == [[0.2, 0.3], [0.8, None, None], [None]]
    assert system.recorded.tolist() == [True, True, False]
    counts = system.counts
    assert (counts.records, counts.foreign, counts.superseded, counts.without_value) == (4, 1, 1, 2)
    assert system.usage.verifier_tokens == 20
    assert system.summary().traces_without_record == 1


def test_records_are_read_one_after_another_and_not_kept():
    before = []

    def one_at_a_time():
        for record in SCORES[:2] * 3:
            copy = record.model_copy()
            assert all(earlier() is None for earlier in before[:-1])
            before.append(ref(copy))
            yield copy

    system = scored_system("mine", one_at_a_time(), TRACES)
    assert (system.counts.records, system.counts.superseded) == (6, 4)
    assert len(before) == 6


def test_a_wrong_number_of_scores_is_never_cut_or_filled():
    wrong = SCORES[0].model_copy(update={"scores": (0.9,)})
    with pytest.raises(ScoreError, match=r"1 scores .* do not fit the 2 steps"):
        scored_system("mine", [SCORES[0], wrong], TRACES)
    assert scored_system("mine", [wrong, SCORES[0]], TRACES).scores[0] == [0.9, 0.1]  # the last counts


def test_scores_of_other_traces_are_refused():
    with pytest.raises(ScoreError, match="none of its 1 records"):
        scored_system("mine", [SCORES[0].model_copy(update={"trace_id": "x"})], TRACES)


def test_labels_are_read_and_a_trace_without_value_still_has_a_record():
    labels = [label(TRACES[0], 0, 1.0), label(TRACES[0], 1, -1.0), label(TRACES[1], 0, None)]
    system = labelled_system("judge", labels, TRACES)
    assert list(system.good) == [[True, False], [None, None, None], [None]]
    assert system.recorded.tolist() == [True, True, False]
    assert system.counts.without_value == 1


def test_traces_that_every_system_has():
    first, second = scored_system("a", SCORES[:2], TRACES), scored_system("b", SCORES[1:], TRACES)
    assert recorded_by_all([first, second]) == [1]
    apart = [scored_system("a", SCORES[:1], TRACES), second]
    with pytest.raises(ScoreError, match=r"no trace has a record of every source \(a 1, b 2\)"):
        recorded_by_all(apart)


def test_files_of_each_kind_are_told_apart(tmp_path: Path):
    write_records(tmp_path / "scores.jsonl", SCORES)
    write_parquet(tmp_path / "labels.parquet", [label(TRACES[0], 0, -1.0)])
    both = [*SCORES, *[record.model_copy(update={"scorer": "other"}) for record in SCORES]]
    write_records(tmp_path / "both.jsonl.gz", both)
    (tmp_path / "bad.jsonl").write_text((tmp_path / "scores.jsonl").read_text() + "{}\n")
    names = {"a": "scores.jsonl", "b": "labels.parquet", "c": "both.jsonl.gz", "d": "bad.jsonl"}
    found = open_systems({n: str(tmp_path / file) for n, file in names.items()}, ITEMS, tmp_path)
    assert [(s.name, s.kind) for s in found] == [
        ("a", "scores"),
        ("b", "labels"),
        ("c/fixed", "scores"),
        ("c/other", "scores"),
        ("d", "scores"),
    ]
    assert [s.counts.skipped_lines for s in found] == [0, 0, 0, 0, 1]
    assert all(s.recorded.tolist() == [True] * 3 for s in found if s.kind == "scores")


def rated(rater, step, value, *, trace=TRACES[1], source="judge"):
    made = label(trace, step, value)
    return made.model_copy(update={"source": source, "evidence": Evidence(rater=rater)})


def test_raters_of_the_same_steps_are_systems_of_their_own(tmp_path: Path):
    rows = {"a": [1.0, -1.0, None], "b": [-1.0, None, 1.0], None: [1.0, 1.0, -1.0]}
    for order in permutations(rows):
        labels = [rated(rater, step, value) for rater in order for step, value in enumerate(rows[rater])]
        labels.append(rated("elsewhere", 0, 1.0).model_copy(update={"trace_id": "x"}))
        write_records(tmp_path / "judges.jsonl", labels)
        found = open_systems({"j": str(tmp_path / "judges.jsonl")}, ITEMS, tmp_path)
        assert {system.name: list(system.good)[1] for system in found} == {
            "j/a": [True, False, None],
            "j/b": [False, None, True],
            "j/judge": [True, True, False],
        }
        assert [system.counts.superseded for system in found] == [0, 0, 0]
        assert [system.counts.records for system in found] == [3, 3, 3]


def test_an_unknown_label_of_one_rater_is_not_filled_by_another(tmp_path: Path):
    write_records(tmp_path / "two.jsonl", [rated("a", 0, None), rated("b", 0, 1.0)])
    found = open_systems({"j": str(tmp_path / "two.jsonl")}, ITEMS, tmp_path)
    assert {system.name: list(system.good)[1][0] for system in found} == {"j/a": None, "j/b": True}


def test_raters_of_different_steps_and_repeats_of_one_are_one_system(tmp_path: Path):
    """Such as the labels of rules, whose rater is the rule that decided the step."""
    write_records(tmp_path / "rules.jsonl", [rated("a", 0, 1.0), rated("b", 1, -1.0), rated(None, 2, None)])
    write_records(tmp_path / "again.jsonl", [rated("a", 0, 1.0), rated("a", 0, -1.0)])
    files = {"rules": str(tmp_path / "rules.jsonl"), "again": str(tmp_path / "again.jsonl")}
    rules, again = open_systems(files, ITEMS, tmp_path)
    assert (rules.name, list(rules.good)[1]) == ("rules", [True, False, None])
    assert (again.name, list(again.good)[1][0], again.counts.superseded) == ("again", False, 1)


def test_shards_are_one_system(tmp_path: Path):
    for number, record in enumerate(SCORES):
        write_records(tmp_path / f"part-{number}.jsonl", [record])
    write_records(tmp_path / "whole.jsonl", SCORES)
    sources = {"shards": f"{tmp_path}/part-*.jsonl", "whole": f"{tmp_path}/whole.jsonl"}
    shards, whole = open_systems(sources, ITEMS, tmp_path)
    assert shards.recorded.tolist() == whole.recorded.tolist() == [True] * 3
    assert shards.counts == whole.counts


def test_a_file_of_nothing_usable_is_refused(tmp_path: Path):
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(RecordError, match="no StepScores and no StepLabel"):
        open_systems({"x": str(tmp_path / "x.jsonl")}, ITEMS, tmp_path)
