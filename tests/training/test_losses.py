"""Losses against numbers worked by hand, and the places where their gradients vanish."""

from __future__ import annotations

import math
from itertools import accumulate

import pytest
import torch

from surefoot.errors import TrainingError
from surefoot.training.classifier import check_head, ranking_loss, reduced_loss

LOGITS = torch.tensor([[0.0], [2.0], [-1.0]])


@pytest.mark.parametrize(
    ("loss", "head", "outputs", "targets", "expected"),
    [
        # ln 2;  ln(1 + e^-2) + 0.5;  ln(1 + e^-1)
        ("bce", "logit", LOGITS, [0.5, 0.75, 0.0], [0.693147, 0.626928, 0.313262]),
        # sigmoids 0.5, 0.880797, 0.268941
        ("mse", "logit", LOGITS, [0.5, 1.0, 0.0], [0.0, 0.0142093, 0.0723295]),
        ("mse", "linear", LOGITS, [0.5, 1.0, 0.0], [0.25, 1.0, 1.0]),
        # softmax (0.1, 0.2, 0.7)
        (
            "classes",
            "classes",
            torch.tensor([[0.1, 0.2, 0.7]] * 3).log(),
            [0.0, 0.5, 1.0],
            [2.302585, 1.609438, 0.356675],
        ),
        # differences -2 and 3 with preferences 0.5 and 0.9
        (
            "pairwise",
            "logit",
            torch.tensor([[0.0], [2.0], [2.0], [-1.0]]),
            [0.5, 0.9],
            [1.126928, 0.348587],
        ),
    ],
)
def test_golden_values(loss, head, outputs, targets, expected):
    total = reduced_loss(loss, head, outputs, targets, reduction="sum")
    assert total.item() == pytest.approx(sum(expected), rel=1e-5)
    assert reduced_loss(loss, head, outputs, targets).item() == pytest.approx(
        sum(expected) / len(expected), rel=1e-5
    )


@pytest.mark.parametrize("loss", ["bce", "mse"])
def test_the_gradient_vanishes_where_the_score_is_the_soft_target(loss):
    logits = LOGITS.clone().requires_grad_()
    targets = torch.sigmoid(LOGITS[:, 0]).tolist()
    reduced_loss(loss, "logit", logits, targets).backward()
    assert logits.grad.abs().max() < 1e-7


def test_the_pairwise_gradient_vanishes_where_the_margin_is_the_preference():
    margin = math.log(0.7 / 0.3)  # ½ (1 + 0.8 - 0.4) = 0.7
    outputs = torch.tensor([[1.0 + margin], [1.0]], requires_grad=True)
    reduced_loss("pairwise", "logit", outputs, [0.7]).backward()
    assert outputs.grad.abs().max() < 1e-7


def test_what_does_not_fit_is_refused():
    with pytest.raises(TrainingError, match=r"not 0\.25"):
        reduced_loss("classes", "classes", torch.zeros(1, 3), [0.25])
    for loss, head in (("bce", "classes"), ("bce", "linear"), ("classes", "logit"), ("pairwise", "linear")):
        with pytest.raises(TrainingError, match="head"):
            check_head(loss, head)
    check_head("mse", "linear")


def pqm_by_the_formula(q, good, zeta):
    """Equation 10 of arXiv 2410.11287 for one trace, term by term."""
    bad = sum(math.exp(score + zeta) for score, is_good in zip(q, good, strict=True) if not is_good)
    ranked = [0.0, *(score for score, is_good in zip(q, good, strict=True) if is_good)]
    sums = accumulate(math.exp(score) for score in ranked)
    terms = [-math.log(math.exp(score) / (before + bad)) for score, before in zip(ranked, sums, strict=True)]
    terms = terms if bad else terms[1:]  # an anchor without rivals is no term
    return sum(terms) / len(terms)


def ranking(q, good, zeta=4.0):
    logits = torch.tensor(q, dtype=torch.float64)
    return ranking_loss(logits, [float(one) for one in good], [len(q)], zeta=zeta).item()


def test_pqm_by_hand():
    # a right step with Q = 1 and a wrong one with Q = 0.5: e^4.5 = 90.01713 stands for the wrong one
    anchor = math.log(1 + 90.0171313)
    right = math.log((1 + math.e + 90.0171313) / math.e)
    assert ranking([1.0, 0.5], [True, False]) == pytest.approx((anchor + right) / 2, rel=1e-8)
    assert ranking([0.5, 1.0], [False, True]) == pytest.approx((anchor + right) / 2, rel=1e-8)
    assert ranking([2.0], [True]) == pytest.approx(math.log(1 + math.exp(-2.0)), rel=1e-12), "BCE of one step"
    assert ranking([2.0], [False], zeta=0.0) == pytest.approx(math.log(1 + math.exp(2.0)), rel=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_pqm_is_the_papers_formula_on_any_traces(seed):
    generator = torch.Generator().manual_seed(seed)
    lengths = [1, 3, 7, 2]
    q = torch.randn(sum(lengths), generator=generator, dtype=torch.float64) * 3
    good = (torch.rand(sum(lengths), generator=generator) > 0.4).tolist()
    parts = zip(q.split(lengths), torch.tensor(good).split(lengths), strict=True)
    expected = sum(pqm_by_the_formula(one.tolist(), truth.tolist(), 4.0) for one, truth in parts)
    found = ranking_loss(q, [float(one) for one in good], lengths, zeta=4.0)
    assert found.item() == pytest.approx(expected, rel=1e-10)
    logits = q.clone().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: ranking_loss(x, [float(one) for one in good], lengths, zeta=4.0), logits
    )


def test_pqm_does_not_overflow_where_the_exponentials_do():
    logits = torch.tensor([900.0, -900.0], requires_grad=True)
    loss = ranking_loss(logits, [0.0, 1.0], [2], zeta=4.0)
    loss.backward()
    assert loss.item() == pytest.approx((904 + 1804) / 2)
    assert torch.isfinite(logits.grad).all()


def test_pqm_refuses_degrees():
    with pytest.raises(TrainingError, match=r"not 0\.25.*'hard'"):
        ranking_loss(torch.zeros(2), [0.25, 1.0], [2], zeta=4.0)
