"""How a gateway writes, cuts, scores and answers unless a request says otherwise."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from surefoot.answers import AnswerStyle
from surefoot.gateway.http.settings import Settings
from surefoot.gateway.schemas import Candidates
from surefoot.scores import Aggregator

OFFERED = ("best-of-16", "majority-16", "weighted-vote-16", "beam-4x4", "dvts-4x4")


class GatewaySettings(Settings):
    """Settings of a :class:`surefoot.gateway.gateway.Gateway`."""

    strategy: str = "plain"
    """What the model name ``surefoot`` stands for."""
    offered: tuple[str, ...] = OFFERED
    """Strategies that ``/v1/models`` lists beside ``accept-reject``; others of the same form work too."""
    candidates: Candidates = "all"
    """Which solutions an answer shows, for requests that do not say."""
    ignore_tools: bool = False
    """Pass over tools where they cannot be minded, for clients that always send some; else refuse them."""
    refusal_as_text: bool = False
    """Say in the message's text why an answer was withheld, for clients that show no ``refusal``."""
    chat: bool = False
    """Whether messages go to the policy as such; else the one user message is put into ``template``."""
    template: str = "{problem}\n"
    temperature: float = Field(default=0.8, ge=0, le=2)
    """For requests that name none."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    separator: str = Field(default="\n", min_length=1, max_length=20)
    """Text that ends a step."""
    step_tokens: int = Field(default=256, ge=1)
    max_steps: int = Field(default=40, ge=1)
    threshold: float = Field(default=0.5, ge=0, le=1)
    """A step below this is bad, for ``/v1/verify`` and ``accept-reject``."""
    retries: int = Field(default=3, ge=0, le=100)
    """Draws after the first, of a step that ``accept-reject`` rejects."""
    abstain_below: float | None = Field(default=None, ge=0, le=1)
    """An answer whose aggregated score is below this is withheld; ``None`` = never."""
    aggregation: Aggregator | None = None
    """Step scores to one number; ``None`` = as the reward model's checkpoint says, else ``min``."""
    extract: tuple[AnswerStyle, ...] = ("boxed", "hash", "phrase", "last_number")
    """Where final answers are."""
    overlap: bool = False
    """The policy takes many calls at the same time, as one behind a server does; else calls are made one
    after the other, each with all that waits."""
    gather_s: float = Field(default=0.002, ge=0, le=1)
    """Seconds that the first request of a batch waits for others, where ``overlap`` is off."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if "{problem}" not in self.template:
            raise ValueError("'template' must contain '{problem}'")
        return self
