"""Numbers and their nouns agree in every sentence: one function writes them, and no other code does."""

import ast
import re
from itertools import pairwise, product
from pathlib import Path

import pytest

import surefoot
from surefoot.errors import counted
from surefoot.evaluation.verdict import Counts, Opinion, detected, inspection_sentence, measured, run_verdict
from surefoot.stats.intervals import Interval

ROOT = Path(surefoot.__file__).parent
SAYS = ("cards", "cli", "evaluation", "rl/report.py", "search/saved_tree.py", "server/pages", "work")
"""Where sentences for people are written."""
NOUNS = (
    "alarm answer call candidate character check claim critique entry error example failure field figure "
    "file image item label line message model node page pair piece prefix problem question rater record "
    "reply request result rollout round row run sample score session solution step test token tool trace "
    "tree turn update verdict worker"
)
PLURALS = {counted(2, noun).partition(" ")[2] for noun in NOUNS.split()}
PLURAL = re.compile(rf" (?:[a-z-]+ )?({'|'.join(PLURALS)})\b")
ONE = re.compile(rf"(?<![\d.,])1 (?:[a-z-]+ )?({'|'.join(PLURALS)})\b")
NO_NUMBERS = {
    "CHARACTERS_PER_TOKEN", "path", "best.name", "row['kind']", "most.change", "least", "labels", "problems",
    "audit.traces_without_steps", "fit.blocked_good_runs", "fit.blocked_good_calls",
    "score.monitoring.false_alarms.value",
}  # fmt: skip
"""Before a plural: constants, shares and names; ``labels`` follows "none of its"."""


def written_by_hand(path):
    """Sentences with a number before a plural that is always a plural; messages of errors are left out."""
    tree = ast.parse(path.read_text("utf-8"))
    raised = {id(node) for one in ast.walk(tree) if isinstance(one, ast.Raise) for node in ast.walk(one)}
    for text in ast.walk(tree):
        if not isinstance(text, ast.JoinedStr) or id(text) in raised:
            continue
        for number, words in pairwise(text.values):
            if isinstance(number, ast.FormattedValue) and isinstance(words, ast.Constant):
                source = ast.unparse(number.value)
                if PLURAL.match(words.value) and not source.startswith("counted(") and "join(" not in source:
                    yield source, words.value


@pytest.mark.parametrize("place", SAYS)
def test_no_sentence_writes_a_plural_behind_a_number_itself(place):
    files = [ROOT / place] if place.endswith(".py") else sorted((ROOT / place).rglob("*.py"))
    assert files
    found = [(path.name, *by_hand) for path in files for by_hand in written_by_hand(path)]
    assert [row for row in found if row[1] not in NO_NUMBERS and "left_out" not in row[1]] == []


def test_templates_count_with_the_same_function():
    templates = [*ROOT.rglob("*.html")]
    assert len(templates) > 15
    for path in templates:
        assert re.findall(r"\}\} (?:steps|runs|requests|annotators|problems|rows)\b", path.read_text()) == []


@pytest.mark.parametrize("number", [0, 1, 2, 1000])
def test_a_noun_is_plural_unless_it_is_one(number):
    for noun in [*NOUNS.split(), "wrong step", "trace is"]:
        text = counted(number, noun, "traces are" if noun.endswith("is") else "")
        plural = {"trace is": "traces are", "reply": "replies", "prefix": "prefixes", "entry": "entries"}
        assert text == f"{number:,} {noun if number == 1 else plural.get(noun, f'{noun}s')}"


INTERVAL = Interval(value=0.5, low=0.2, high=0.8)


@pytest.mark.parametrize(("a", "b", "c"), list(product(range(3), repeat=3)))
def test_sentences_of_verdicts_agree_with_their_numbers(a, b, c):
    texts = [inspection_sentence(a + b, min(a, a + b), min(a + c, a + b))]
    judge = Opinion(source="judge", checked=range(a), error=b if b < c else None)
    verdict = run_verdict(c, None, [judge], missing_calls=b)
    texts += [verdict.sentence, verdict.advice, *verdict.sources]
    for what, unit in (("first error", "solution"), ("wrong step", "run")):
        counts = Counts(
            found=min(a, b), wrong=b, alarms=min(a, c), right=c, of=b + c + a, what=what, unit=unit
        )
        found = detected(counts, INTERVAL, "", a + b, rival="a fixed step")
        texts += [found.sentence, found.needs]
    claim = measured("ranks", INTERVAL, "", a, "problem", rival="it")
    texts += [claim.sentence, claim.needs]
    assert [text for text in texts if ONE.search(text)] == []
