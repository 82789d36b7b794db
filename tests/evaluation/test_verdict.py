"""The table of sentences, and what none of them may claim."""

import re
from itertools import product
from pathlib import Path

import pytest

from surefoot.evaluation.verdict import Opinion, run_verdict

TABLE = Path(__file__).with_name("verdicts.txt")
"""One line for each sentence on a run of five steps: the state of the sources, the tone, the sentence."""
STEPS = 5
OUTCOMES = {"right": True, "unknown": None, "failed": False}
COVERAGE = {"none": (), "part": (1, 2), "all": range(STEPS)}
OPPOSITE = {"abstain": "wrong", "right": "wrong", "wrong": "right"}
CELLS = list(
    product(("abstain", "right", "wrong"), OUTCOMES, COVERAGE, ("one", "agreeing", "disagreeing", "minority"))
)


def says(what, coverage, source):
    """A source that calls step 3 wrong, or what it checked right; without coverage it is silent."""
    checked = () if what == "abstain" else COVERAGE[coverage]
    return Opinion(source=source, checked=checked, error=2 if what == "wrong" and checked else None)


def sources(what, coverage, who):
    first = says(what, coverage, "judge")
    if who == "one":
        return [first]
    if who == "minority":
        return [first, *(says(OPPOSITE[what], coverage, f"rater {at}") for at in (1, 2))]
    return [first, says(what if who == "agreeing" else OPPOSITE[what], coverage, "rules")]


def verdict_of(cell):
    what, outcome, coverage, who = cell
    return run_verdict(STEPS, OUTCOMES[outcome], sources(what, coverage, who))


@pytest.mark.parametrize("cell", CELLS, ids="-".join)
def test_no_sentence_claims_more_than_its_cell(cell):
    verdict, evidence = verdict_of(cell), sources(cell[0], cell[2], cell[3])
    checked = {step for one in evidence for step in one.checked}
    accusers = [one for one in evidence if one.error is not None]
    outcome = OUTCOMES[cell[1]]
    assert verdict.coverage.checked == len(checked)
    if verdict.tone == "good":  # every step was checked or the outcome is right, and nobody objects
        assert outcome is not False
        assert not accusers
        assert outcome or len(checked) == STEPS
    if outcome is False:
        assert verdict.tone == "wrong"
        assert verdict.sentence.startswith("The run failed")
    assert ("outcome is right" in verdict.sentence) == (outcome is True)
    assert ("outcome is unknown" in verdict.sentence) == (outcome is None)
    assert ("every step" in verdict.sentence.lower()) == (len(checked) == STEPS and not accusers)
    assert ("no step was checked" in verdict.sentence.lower()) == (not checked)
    assert bool(re.search("step 3", verdict.sentence, re.IGNORECASE)) == bool(accusers)
    judges = [one for one in evidence if one.checked]
    if accusers and len(judges) > 1:
        many = "both" if len(accusers) == len(judges) == 2 else f"{len(accusers)} of {len(judges)}"
        assert many in verdict.sentence
    assert (verdict.error is not None) == (2 * len(accusers) > len(judges))
    if not checked and outcome is None:
        assert not verdict.decided
    assert not re.search("no error|may or may not|cannot tell", verdict.sentence, re.IGNORECASE)
    assert re.fullmatch(r"Next: [^.]+\.", verdict.advice)
    assert ("nothing is open" in verdict.advice) <= (verdict.decided and "unknown" not in verdict.sentence)


MORE = {
    "a decision, against the labels": (None, [says("right", "all", "judge")], 2, 0),
    "a decision that the step is right": (None, [says("wrong", "all", "judge")], None, 0),
    "two first errors": (
        None,
        [Opinion(source="a", checked=(0, 1), error=1), says("wrong", "all", "b")],
        "",
        0,
    ),
    "a low score": (None, [Opinion(source="prm", kind="objection", error=3, score=0.21)], "", 0),
    "a low score, all steps right": (
        None,
        [says("right", "all", "judge"), Opinion(source="prm", kind="objection", error=3, score=0.21)],
        "",
        0,
    ),
    "a missing call, nothing checked": (None, [], "", 1),
    "a missing call, all steps right": (None, [says("right", "all", "judge")], "", 1),
    "two missing calls of a failed run": (False, [], "", 2),
    "a missing call, but the outcome is right": (True, [], "", 1),
}


def test_the_table_of_sentences():
    """A person reads the table after each change of a sentence."""
    lines: dict[str, str] = {}
    for cell in CELLS:
        verdict = verdict_of(cell)
        state = "{}, outcome {}, checked {}, {}".format(*cell)
        lines.setdefault(
            f"{verdict.sentence} {verdict.advice}",
            f"{verdict.tone:5} | {state:51} | {verdict.sentence} {verdict.advice}",
        )
    for name, (outcome, evidence, decided, missing) in MORE.items():
        if decided != "":
            evidence = [*evidence, Opinion(source="decision", kind="decision", checked=(2,), error=decided)]
        verdict = run_verdict(STEPS, outcome, evidence, missing_calls=missing)
        lines[name] = f"{verdict.tone:5} | {name:51} | {verdict.sentence} {verdict.advice}"
    assert "\n".join(lines.values()) + "\n" == TABLE.read_text("utf-8")
