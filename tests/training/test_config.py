"""Settings of training: what they refuse, and that they load without torch."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from pydantic import BaseModel, ValidationError
from transformers import get_linear_schedule_with_warmup

from surefoot.models.lora import Lora
from surefoot.training import config
from surefoot.training.config import (
    ImplicitConfig,
    OutcomeTargets,
    SFTConfig,
    StepTargets,
    TrainingConfig,
    VerifierConfig,
    rate_share,
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


@pytest.mark.parametrize("total", [1, 2, 7, 40])
@pytest.mark.parametrize("warmup", [0.0, 0.05, 0.25, 0.5, 1.0])
def test_the_rate_is_the_linear_schedule_of_transformers(total: int, warmup: float) -> None:
    rise = max(1, round(warmup * total))
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = get_linear_schedule_with_warmup(optimiser, rise, total + 1)
    expected = []
    for _ in range(total):
        optimiser.step()
        schedule.step()  # its first rate is 0, of an update that would change nothing
        expected.append(schedule.get_last_lr()[0])
    rates = [rate_share(update, total, warmup) for update in range(total)]
    assert rates == pytest.approx(expected)
    assert rates.index(1.0) == rates.index(max(rates)) == rise - 1
    assert min(rates) > 0
