"""A reward model for the stages of Ray Data, alone and on a cluster."""

from __future__ import annotations

import pytest

from surefoot.models import CheckpointCard, RewardModel


@pytest.fixture(scope="module")
def prm(lab_base, tmp_path_factory):
    directory = tmp_path_factory.mktemp("model") / "prm"
    card = CheckpointCard(kind="prm", label_source="test", base="tiny")
    RewardModel.initialise(lab_base, card=card).save(directory)
    return directory
