"""Settings of training: what they refuse, and that they load without torch."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pydantic import BaseModel, ValidationError

from surefoot.models.lora import Lora
from surefoot.training import config
from surefoot.training.config import (
    ImplicitConfig,
    OutcomeTargets,
    SFTConfig,
    StepTargets,
    TrainingConfig,
    VerifierConfig,
)

SETTINGS = (TrainingConfig, ImplicitConfig, SFTConfig, VerifierConfig, StepTargets, OutcomeTargets, Lora)


def test_settings_load_without_torch() -> None:
    program = f"import sys, {config.__name__}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("settings", SETTINGS)
def test_every_setting_says_what_it_does(settings: type[BaseModel]) -> None:
    for name, field in settings.model_fields.items():
        assert field.description or name == "kind", name


@pytest.mark.parametrize("name", ["clip", "accumulate", "tokens_per_pass"])
def test_an_unknown_setting_is_named(name: str) -> None:
    with pytest.raises(ValidationError, match=f"{name}\n.*Extra inputs are not permitted"):
        TrainingConfig.model_validate({name: 1})


def test_settings_that_exclude_each_other() -> None:
    with pytest.raises(ValidationError, match="choose one"):
        TrainingConfig(freeze_trunk=True, lora=Lora())
    with pytest.raises(ValidationError, match="'pairwise' has pairs"):
        TrainingConfig(loss="pairwise", balance=0.5)
