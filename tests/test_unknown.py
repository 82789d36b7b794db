"""Unknown is never better than failed: a test for each consumer of verdicts, and one that enumerates them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scored_rollouts import scored

from surefoot.answers import AnswerChecker, Grader, Solution
from surefoot.labelling import ConsensusSettings
from surefoot.labels import BinaryLabel
from surefoot.protocols import Candidate
from surefoot.records import StepScores
from surefoot.rl.advantage import ADVANTAGES
from surefoot.rl.credit import ClipDelta, Effective, MinForm, Mixed, Outcome, Summed, unknown_as_failed
from surefoot.rl.loop import within_band
from surefoot.search import SELECTORS, select_among

CONSUMERS = {
    "answers/checker.py": "test_an_answer_that_breaks_its_comparison_is_wrong",
    "answers/grading.py": "test_an_answer_that_breaks_its_comparison_is_wrong",
    "cli/sample.py": "test_a_candidate_that_breaks_its_tests_has_failed",
    "cli/import_export.py": "test_an_answer_that_breaks_its_comparison_is_wrong",
    "cli/label/rules.py": "test_an_abstention_is_never_a_vote_for_a_step",
    "cli/select.py": "test_a_refuted_candidate_is_chosen_only_among_refuted_ones",
    "evaluation/audits/interventions.py": "test_an_answer_that_breaks_its_comparison_is_wrong",
    "labelling/verifiers/programs.py": "test_a_candidate_that_breaks_its_tests_has_failed",
    "labelling/consensus.py": "test_an_abstention_is_never_a_vote_for_a_step",
    "labelling/monte_carlo.py": "test_an_answer_that_breaks_its_comparison_is_wrong",
    "labelling/verifiers/repairs.py": "test_a_candidate_that_breaks_its_tests_has_failed",
    "policies/episodes.py": "test_an_answer_that_breaks_its_comparison_is_wrong",
    "rl/credit.py": "test_no_reward_is_no_better_than_failing",
    "rl/engines/rewards.py": "test_no_reward_is_no_better_than_failing",
    "sandbox/programs.py": "test_a_candidate_that_breaks_its_tests_has_failed",
    "search/estimators.py": "test_curves_treat_unscored_votes_as_the_selectors_do",
    "search/method.py": "test_a_refuted_candidate_is_chosen_only_among_refuted_ones",
    "search/space.py": "test_an_answer_that_breaks_its_comparison_is_wrong",
    "search/trust.py": "test_a_refuted_candidate_is_chosen_only_among_refuted_ones",
    "server/gateway/choice.py": "test_an_answer_that_breaks_its_comparison_is_wrong",
    "server/gateway/tools.py": "test_a_refuted_candidate_is_chosen_only_among_refuted_ones",
}
"""Files that read verdicts, grades or votes, with a test of the rule that they follow."""

_READS = re.compile(
    r"grade_python\(|grade_traces\(|verdict\.passed|(?<!\w)Candidate\(answer|(?<!\w)Candidate\(\n|\.credit\("
    r"|(?<!\w)Consensus[(:]|\.(?:equal|grade)\(pairs|\.(?:grade|grade_problem)\((?!self)"
)


def test_every_consumer_of_verdicts_has_a_test():
    root = Path(__file__).parents[1]
    sources = (root / "src/surefoot").rglob("*.py")
    reading = {
        path.relative_to(root / "src/surefoot").as_posix()
        for path in sources
        if _READS.search(path.read_text())
    }
    assert reading == CONSUMERS.keys()
    tests = "\n".join(
        path.read_text()
        for path in (
            Path(__file__),
            root / "tests/sandbox/test_python_tests.py",
            root / "tests/search/test_estimators.py",
        )
    )
    assert [name for name in CONSUMERS.values() if f"def {name}(" not in tests] == []


CANDIDATES = st.lists(
    st.builds(
        Candidate,
        answer=st.sampled_from(["a", "b", None]),
        score=st.none() | st.sampled_from([-1.0, 0.0, 0.5, 1.0]),
        refuted=st.booleans(),
    ),
    min_size=1,
    max_size=8,
)


@pytest.mark.parametrize("name", SELECTORS)
@given(candidates=CANDIDATES)
def test_a_refuted_candidate_is_chosen_only_among_refuted_ones(name, candidates):
    chosen = candidates[SELECTORS[name].select(candidates)]
    assert not chosen.refuted or all(candidate.refuted for candidate in candidates)
    standing = [candidate for candidate in candidates if not candidate.refuted] or candidates
    plain = [replace(candidate, refuted=False) for candidate in standing]
    assert chosen is standing[SELECTORS[name].select(plain)]


@pytest.mark.parametrize("name", SELECTORS)
@given(candidates=CANDIDATES, data=st.data())
def test_an_unscored_candidate_is_never_better_than_a_failed_one(name, candidates, data):
    """An answer that wins with an unscored candidate also wins where that candidate failed."""
    candidates = [
        replace(c, refuted=False, score=None if c.score is None else max(c.score, 0)) for c in candidates
    ]
    at = data.draw(st.integers(0, len(candidates) - 1))
    unscored = [replace(c, score=None) if k == at else c for k, c in enumerate(candidates)]
    if SELECTORS[name].select(unscored) == at and any(c.score for c in unscored):
        failed = [replace(c, score=0.0) if k == at else c for k, c in enumerate(candidates)]
        assert failed[SELECTORS[name].select(failed)].answer == candidates[at].answer
    if name in ("best_of_n", "weighted_vote"):
        pair = [replace(candidates[at], answer="a", score=None), Candidate(answer="b", score=0.0)]
        assert SELECTORS[name].select(pair) == 1


@pytest.mark.parametrize("votes", [[1.0, 0.0], [1.0, None]])
def test_an_unscored_vote_counts_as_the_lowest(votes):
    pool = [Candidate(answer="a", score=score) for score in votes] + [Candidate(answer="b", score=0.8)]
    assert SELECTORS["agreement"].select(pool) == 2  # the mean of a is a half
    negative = [
        Candidate(answer="a", score=-1.0),
        Candidate(answer="a", score=None),
        Candidate(answer="b", score=-1.5),
    ]
    assert SELECTORS["weighted_vote"].select(negative) == 2


def test_a_gate_treats_unknown_as_failed():
    pool = [Candidate(answer=answer, score=None) for answer in "ab"]
    assert select_among(SELECTORS["majority"], pool, [None, 0.0]) == 1


def test_a_step_is_refuted_by_a_check_that_says_why():
    record = StepScores(
        trace_id="t",
        scorer="s",
        scores=(1.0, 0.0, None),
        unscored_reason="after",
        reasons=(None, "2 ≠ 3", None),
    )
    assert record.refuted()
    assert not record.refuted(2)
    assert not record.model_copy(update={"reasons": ()}).refuted()  # a reward model's 0 is no refutation


RULES = [
    Outcome(),
    Summed(),
    Summed(signed=True),
    MinForm(),
    ClipDelta(),
    Effective(scores="advantages"),
    Mixed(of=ClipDelta()),
]


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("estimator", [kind for name, kind in ADVANTAGES.items() if name != "gae"])
def test_no_reward_is_no_better_than_failing(rule, estimator):
    """In place of the outcome and scores of a failing rollout, none at all bring it no more."""
    right, other = scored([0.9, 0.8], outcome=1.0), scored([0.6, 0.5], outcome=0.0)
    failing, unknown = scored([0.9, 0.1], outcome=0.0), scored([0.9, None])

    def advantage(rollout):
        group = [right, rollout, other, scored([0.2, 0.1], outcome=0.0)]
        rewarded = [
            replace(r, rewards=streams) for r, streams in zip(group, rule.credit([group])[0], strict=True)
        ]
        return estimator().advantages([rewarded])[0][1]

    assert (advantage(unknown) <= advantage(failing) + 1e-9).all()
    nothing = [scored([None, None]) for _ in range(3)]
    assert unknown_as_failed(nothing) == nothing, "nothing is known of the group: its judge failed"


def test_an_overlong_wrong_rollout_is_no_worse_than_an_unjudged_one():
    wrong, unjudged = unknown_as_failed([scored([], outcome=-0.5), scored([])])
    assert unjudged.outcome == wrong.outcome == -0.5


def test_an_unjudged_rollout_is_wrong_in_the_share_of_its_group():
    def group(*outcomes):
        return [SimpleNamespace(trace=SimpleNamespace(outcome=outcome)) for outcome in outcomes]

    mixed, right, unknown = group(True, None), group(True, True), group(None, None)
    assert within_band([mixed, right, unknown], (0.2, 0.8)) == [mixed, unknown]


VOTES = st.lists(st.sampled_from([True, False, None]), min_size=2, max_size=4)
RULES = [
    *(ConsensusSettings(rule=rule) for rule in ("first-error", "weighted")),
    ConsensusSettings(rule="weighted", margin=0.5),
]


@pytest.mark.parametrize("rule", RULES, ids=str)
@given(votes=VOTES, data=st.data())
def test_an_abstention_is_never_a_vote_for_a_step(rule, votes, data):
    def decided(row):
        sources = {
            f"s{k}": [BinaryLabel(good=good, reason="" if good is not None else "?")]
            for k, good in enumerate(row)
        }
        return rule.decide(sources)[0].good

    at = data.draw(st.integers(0, len(votes) - 1))
    silent = [None if k == at else vote for k, vote in enumerate(votes)]
    if decided(silent):
        assert any(silent)
        assert decided([True if k == at else vote for k, vote in enumerate(votes)])
    if rule.rule != "weighted":
        assert decided(silent) is not True, "they decide nothing that a source abstains from"


def test_an_answer_that_breaks_its_comparison_is_wrong():
    with AnswerChecker() as checker:
        grades = Grader(checker=checker).grade(
            [
                Solution(text=rf"\boxed{{{text}}}")
                for text in ("9^{9^{9^9}}", r"\odd{x}", "x+1", "1" * 9000 + "x")
            ],
            ["x+2", "x+2", "9^{9^{9^9}}", "x+2"],
        )
        assert [grade.outcome for grade in grades] == [False, None, None, False]
        assert checker.equal([("9^{9^{9^9}}", "x+2")]) == [None]
