"""The loss against numbers worked by hand, and the place where its gradient vanishes."""

from __future__ import annotations

import pytest
import torch

from surefoot.models.card import CheckpointCard
from surefoot.models.kinds.classifier import RewardModel
from surefoot.training.classifier import train
from surefoot.training.config import TrainingConfig
from surefoot.training.examples import Example

WHOLE = {"epochs": 1, "batch_size": 3, "head_epochs": 0, "layout": "padded"}


def trained(base, directory, *, bias: float, targets: tuple[float, ...]):
    """The log of one update of a head whose logit is ``bias`` everywhere."""
    model = RewardModel.initialise(base, CheckpointCard(kind="prm", label_source="test", base="tiny"))
    torch.nn.init.constant_(model.head.bias, bias)
    example = Example(
        trace_id="t", ids=tuple(range(4, 8)), positions=tuple(range(len(targets))), targets=targets
    )
    return train(model, [example], TrainingConfig(**WHOLE), directory)


@pytest.mark.parametrize(
    ("bias", "targets", "expected"),
    [
        # ln 2;  ln(1 + e^-2) + 0.5;  ln(1 + e^-1)
        (0.0, (0.5,), 0.693147),
        (2.0, (0.75,), 0.626928),
        (-1.0, (0.0,), 0.313262),
        (0.0, (0.0, 0.3, 1.0), 0.693147),
    ],
)
def test_golden_values(lab_base, tmp_path, bias, targets, expected):
    assert trained(lab_base, tmp_path, bias=bias, targets=targets).losses == [
        pytest.approx(expected, rel=1e-5)
    ]


def test_the_gradient_vanishes_where_the_score_is_the_soft_target(lab_base, tmp_path):
    score = float(torch.sigmoid(torch.tensor(2.0)))
    assert trained(lab_base, tmp_path, bias=2.0, targets=(score,)).norms[0] < 1e-6
