"""Losses against numbers worked by hand, and the places where their gradients vanish."""

from __future__ import annotations

import math

import pytest
import torch

from surefoot.errors import TrainingError
from surefoot.training.classifier import check_head, reduced_loss

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
