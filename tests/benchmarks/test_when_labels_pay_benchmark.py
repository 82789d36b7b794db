"""benchmarks/when_labels_pay: the exact values of its policy, its votes, and verdicts of cells."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.when_labels_pay import cells
from benchmarks.when_labels_pay import chain_length as maps
from benchmarks.when_labels_pay import traces as world
from surefoot.protocols import Candidate
from surefoot.search import SELECTORS
from surefoot.stats import Interval


def test_values_of_the_policy_are_the_share_of_its_samples() -> None:
    rng = np.random.default_rng(0)
    policy = world.misconceptions(rng, 4, "++--*", 0.45)
    chains = world.draw_problems(rng, 20, 4, "++--*")
    lines = world.sample(rng, policy, chains, 4000)
    right = lines[..., -1] == chains.correct()[:, -1:]
    assert right.mean(axis=1) == pytest.approx(policy.success(chains), abs=0.03)
    assert policy.success(chains).mean() == pytest.approx(0.45, abs=0.2)
    assert world.steps_right(chains, chains.correct()[:, None]).all()


def selection(scores: np.ndarray, answers: np.ndarray, truth: np.ndarray) -> maps.Selection:
    """One distinct trace per sample, [P, samples]."""
    count = answers.size
    chains = world.Chains(
        start=answers.ravel() * 0, symbols=np.zeros((count, 1), int), digits=answers.reshape(-1, 1)
    )
    traces = world.Traces(
        chains=chains,
        lines=answers.reshape(-1, 1),
        where=np.arange(count).reshape(answers.shape),
        features=np.zeros((count, 1, 1)),
    )
    return maps.Selection(traces, traces, truth, 0, 0)


@pytest.mark.parametrize("vote", maps.VOTES)
def test_votes_are_those_of_the_package(vote: str) -> None:
    rng = np.random.default_rng(1)
    answers, scores = rng.integers(0, 4, (40, 16)), rng.random((40, 16))
    truth = rng.integers(0, 4, 40)
    ours = selection(scores, answers, truth)._vote(scores[None], vote, 16)[0]
    theirs = [
        row[SELECTORS[vote].select([Candidate(answer=str(a), score=s) for a, s in zip(row, of, strict=True)])]
        == right
        for row, of, right in zip(answers, scores, truth, strict=True)
    ]
    assert ours.tolist() == [float(right) for right in theirs]


def test_raters_stop_at_the_first_error_and_rollouts_do_not() -> None:
    chains = world.Chains(start=np.array([1]), symbols=np.array([[0, 0, 0]]), digits=np.array([[1, 1, 1]]))
    train = world.Traces(
        chains=chains,
        lines=np.array([[2, 9, 0]]),
        where=np.array([[0]]),
        features=np.zeros((1, 3, 1)),
    )
    rng, rows = np.random.default_rng(0), np.array([0])
    exact = maps._labels(rng, "exact", train, rows, np.zeros((1, 3, 10)))
    assert exact[0, :2].tolist() == [1.0, 0.0]
    assert np.isnan(exact[0, 2])
    values = np.zeros((1, 3, 10))
    values[0, 0, 2] = values[0, 2, 0] = 1.0
    assert maps._labels(rng, "Monte Carlo", train, rows, values).tolist() == [[1.0, 0.0, 1.0]]


def test_a_cell_is_decided_by_its_interval_and_both_trunks() -> None:
    def cell(low: float, high: float) -> cells.Cell:
        intervals = {
            ("slips", "cost"): Interval(value=0.1, low=0.05, high=0.2),
            ("no slips", "cost"): Interval(value=(low + high) / 2, low=low, high=high),
        }
        return cells.Cell(
            length=2,
            recoverability="low",
            noise="exact",
            samples=4,
            recovered=0.1,
            wrong_labels=0.0,
            differences=intervals,
        )

    assert cell(0.01, 0.2).agreed("cost") == "prm"
    assert cell(-0.1, 0.2).agreed("cost") == "one"
    assert cell(-0.2, -0.1).verdict("no slips", "cost") == "orm"
