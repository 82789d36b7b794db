"""What a policy can do, and how that is known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from surefoot.errors import PolicyError
from surefoot.protocols import Policy
from surefoot.records import FrozenModel

CapabilityName = Literal["continuation", "logprobs", "n", "tool_calls", "stop_strings", "token_ids"]
MEANINGS: Mapping[CapabilityName, str] = {
    "continuation": "continue the beginning of an answer",
    "logprobs": "return the log-probabilities of sampled tokens",
    "n": "return several samples of one request",
    "tool_calls": "call tools",
    "stop_strings": "say which stop text ended a sample",
    "token_ids": "return the ids of sampled tokens",
}


class Capability(FrozenModel):
    """Whether a server can do one thing, and how this is known."""

    status: Literal["yes", "no", "unknown"]
    evidence: str

    @property
    def confirmed(self) -> bool:
        """Unknown is never better than missing."""
        return self.status == "yes"


class Capabilities(FrozenModel):
    """What a policy can do; see :data:`MEANINGS`."""

    continuation: Capability
    logprobs: Capability
    n: Capability
    tool_calls: Capability
    stop_strings: Capability
    token_ids: Capability

    def require(
        self, name: CapabilityName, server: str, instead: str, *, accept_unknown: bool = False
    ) -> None:
        """Raise :class:`PolicyError` unless ``name`` is confirmed; ``instead`` names an alternative."""
        capability: Capability = getattr(self, name)
        if not (capability.confirmed or (accept_unknown and capability.status == "unknown")):
            failing = "cannot" if capability.status == "no" else "may not be able to"
            raise PolicyError(f"{server} {failing} {MEANINGS[name]} ({capability.evidence}); {instead}")


IN_PROCESS = Capabilities.model_validate(
    {name: {"status": "yes", "evidence": "the model is in this process"} for name in MEANINGS}
)
"""Of a policy that keeps to the whole protocol."""
_UNKNOWN = Capabilities.model_validate(
    {name: {"status": "unknown", "evidence": "it lacks the method 'capabilities'"} for name in MEANINGS}
)


def capabilities_of(policy: Policy) -> Capabilities:
    """What ``policy`` can do: a server is probed once. Unknown for a policy without ``capabilities``.

    Blocks for some seconds at a server's first call; in an event loop call it in a thread.
    """
    probe = getattr(policy, "capabilities", None)
    return _UNKNOWN if probe is None else probe()
