"""Published methods by name: a credit rule and the estimator it was published with."""

from __future__ import annotations

from dataclasses import dataclass

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
