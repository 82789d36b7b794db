"""What is written down of a request: who asked what, and every solution that was considered."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from surefoot.annotation.database import ApiKey, GatewayCandidate, GatewayRecord
from surefoot.annotation.database.gateway_record import Decision
from surefoot.gateway.monitor import Observations
from surefoot.gateway.tasks import Choice, Generation
from surefoot.records import Problem, Trace, Usage


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request that is understood; what its record says whatever comes of it."""

    id: str
    endpoint: str
    model: str
    strategy: str
    policy: str
    scorer: str | None
    """The reward model that the strategy asks."""
    problem: Problem
    key: ApiKey | None
    parameters: dict[str, Any]
    created: datetime = field(default_factory=lambda: datetime.now(UTC))
    began: float = field(default_factory=time.monotonic)

    def answered(
        self,
        *,
        usage: Usage,
        generation: Generation | None,
        seen: Observations,
        given: GatewayCandidate | None = None,
        decision: Decision | None = None,
    ) -> GatewayRecord:
        """The record of an answer; ``given`` is a solution that came with the request."""
        choices = generation.choices if generation else ()
        found = [one for number, choice in enumerate(choices) for one in _candidates(number, choice)]
        return self._record(
            status=200,
            usage=usage,
            candidates=(*([given] if given else ()), *found),
            trees={number: choice.tree for number, choice in enumerate(choices) if choice.tree is not None},
            tally={"answered": 1, **seen.tally()},
            decision=decision,
        )

    def failed(self, status: int, error: str, usage: Usage, shown: Mapping[int, str]) -> GatewayRecord:
        """The record of a failure: the HTTP status that was answered, and what a stream had shown by then, by
        the number of the answer."""
        broken = [
            GatewayCandidate(
                trace=Trace(problem_id=self.problem.id, text=text, policy=self.policy),
                chosen=False,
                choice=number,
                reason="shown, then broken off",
            )
            for number, text in sorted(shown.items())
        ]
        return self._record(
            status=status, error=error, usage=usage, candidates=tuple(broken), tally={"failed": 1}
        )

    def _record(self, **more: Any) -> GatewayRecord:
        return GatewayRecord(
            request_id=self.id,
            created=self.created,
            endpoint=self.endpoint,
            model=self.model,
            strategy=self.strategy,
            policy=self.policy,
            scorer=self.scorer,
            problem=self.problem,
            latency_ms=1000 * (time.monotonic() - self.began),
            key_id=self.key.id if self.key else None,
            project_id=self.key.project_id if self.key else None,
            request=self.parameters,
            **more,
        )


def new_id(prefix: str) -> str:
    """Id of an answer."""
    return f"{prefix}-{uuid.uuid4().hex}"


def _candidates(number: int, choice: Choice) -> list[GatewayCandidate]:
    result = choice.result
    return [
        GatewayCandidate(
            trace=trace,
            chosen=place == result.chosen and choice.withheld is None,
            choice=number,
            weight=result.weights[place],
            score=result.values[place],
            scores=result.scores[place] if result.scores else None,
            reason=choice.withheld if place == result.chosen else f"not chosen by {result.rule}",
        )
        for place, trace in enumerate(result.candidates)
    ]
