"""Published methods by name: a credit rule and the estimator it was published with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from surefoot.rl.advantage import Advantage, Gae, Group, LeaveOneOut, Reinforce
from surefoot.rl.credit import Credit, Effective, Implicit, MinForm, Mixed, Outcome, Summed


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Settings that make up a published method."""

    credit: Credit
    advantage: Advantage
    accuracy_band: tuple[float, float] | None = None
    source: str


PRESETS: dict[str, Preset] = {
    "grpo": Preset(
        credit=Outcome(), advantage=Group(), source="DeepSeekMath, arXiv 2402.03300, section 4.1.2"
    ),
    "process-grpo": Preset(
        credit=Summed(), advantage=Group(), source="DeepSeekMath, arXiv 2402.03300, section 4.1.3"
    ),
    "step-ppo": Preset(credit=Summed(), advantage=Gae(), source="Math-Shepherd, arXiv 2312.08935"),
    "pure": Preset(
        credit=Mixed(of=MinForm()), advantage=LeaveOneOut(baseline="token"), source="PURE, arXiv 2504.15275"
    ),
    "prime": Preset(
        credit=Mixed(of=Implicit()),
        advantage=LeaveOneOut(baseline="prime", whiten=True),
        accuracy_band=(0.2, 0.8),
        source="PRIME, arXiv 2502.01456",
    ),
    "pav": Preset(credit=Effective(), advantage=Reinforce(), source="PAV, arXiv 2410.08146"),
}
"""Methods by the name that the command line accepts."""


def method_settings(credit: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a configuration whose ``credit`` names a rule or a published method.

    ``process`` and ``outcome`` beside another rule than ``mixed`` mix it with the outcome by these weights.
    """
    credit = dict(credit)
    settings: dict[str, Any] = {}
    if preset := PRESETS.get(credit.get("rule", "")):
        del credit["rule"]
        credit = preset.credit.model_dump() | credit
        settings = {"advantage": preset.advantage}
        if preset.accuracy_band:
            settings["accuracy_band"] = preset.accuracy_band
    weights: dict[str, Any] = {name: credit.pop(name) for name in ("process", "outcome") if name in credit}
    if weights and credit.get("rule") == "mixed":
        credit |= weights
    elif weights:
        credit = {"rule": "mixed", "of": credit, **weights}
    return {"credit": credit, **settings}
