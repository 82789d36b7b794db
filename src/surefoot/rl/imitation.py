"""Imitation of an expert on the policy's own states: DAgger (Ross, Gordon and Bagnell, arXiv 1011.0686).

A policy that is cloned from an expert's solutions has never seen the states that its own errors lead to. Here
it writes solutions, the expert says what it would have done at each of their steps, and the policy is
fine-tuned on all that the expert has said so far; then again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from surefoot.errors import TrainingError
from surefoot.io import Run
from surefoot.policies.prompts import PromptFormat
from surefoot.policies.traces import sample_traces
from surefoot.protocols import Policy, ProblemTrace, Sampling
from surefoot.records import Problem, Trace, Usage, content_id
from surefoot.rl.exercise import Exercise, RoundsConfig
from surefoot.rl.gathering import Gathered, Turn
from surefoot.rl.relabelling import After, Expert, Relabelled, relabel, step_match
from surefoot.rl.round_rows import RoundRow
from surefoot.rl.rounds import Progress, run_rounds
from surefoot.training.cloning import Demonstration


class ImitationConfig(RoundsConfig):
    """Rounds of DAgger."""

    after: After = "until_error"
    """What to do with the states after the first step that the expert would not have taken. ``until_error``:
    nothing, since the solution is wrong from there on and its continuation hardly worth knowing. ``all``: the
    expert goes on from there too, so that the policy learns to carry on after an error; what it then learns
    is to make the best of a wrong value, and it needs an expert that can."""
    match: Literal["exact", "numbers", "tolerance"] = "exact"
    """When a step of other words is the expert's all the same, and so no error: for ``until_error``. The
    expert's words are what is learned in any case."""
    beta: float = Field(default=0.0, ge=0, le=1)
    """In round n the solutions of a problem are the expert's own with chance beta^n. (Ross et al. mix step by
    step. Their first round, which is the expert's alone, is to clone its solutions and start from there.)"""


def imitate(
    run: Run,
    exercise: Exercise,
    config: ImitationConfig,
    progress: Progress,
    *,
    given: Sequence[Demonstration] = (),
    expert: Expert | None = None,
) -> list[RoundRow]:
    """Clone what is ``given``, then follow the ``expert``; in the run directory, or the rest of it.

    Either may be left out: without ``expert`` this is behaviour cloning, without ``given`` DAgger from the
    first policy's own states on. See :func:`surefoot.rl.rounds.run_rounds`.
    """
    if not given and expert is None:
        raise TrainingError("there is nobody to imitate: give traces, or an expert, or both")
    gather = _OwnStates(exercise, expert, config) if expert else None
    return run_rounds(run, exercise, config, gather, progress, given=given)


@dataclass(frozen=True)
class _OwnStates:
    """Gathers the expert's decisions on new rollouts (:class:`surefoot.rl.gathering.Gather`)."""

    exercise: Exercise
    expert: Expert
    config: ImitationConfig

    async def __call__(self, turn: Turn) -> list[Gathered]:
        problems, seed, chance = turn.problems, turn.seed, self.config.beta**turn.number
        experts = [problem for problem in problems if _share(seed, problem) < chance]
        own = [problem for problem in problems if _share(seed, problem) >= chance]
        whole = Sampling(temperature=self.expert.sampling.temperature, max_tokens=self.config.max_tokens)
        drawn = await self._draw(turn.policy, own, seed, self.exercise.prompt, self.config.sampling)
        drawn |= await self._draw(self.expert.policy, experts, seed, self.expert.prompt, whole)
        rollouts = [
            ProblemTrace(problem=problem, trace=trace)
            for problem in problems
            for trace in drawn[problem.id]
            if trace.steps
        ]
        heard = await relabel(
            self.expert,
            rollouts,
            segmenter=self.exercise.segmenter,
            after=self.config.after,
            match=step_match(self.config.match),
            seed=seed,
        )
        of_trace = {item.trace.id: one for item, one in zip(rollouts, heard, strict=True)}
        return [_gathered(problem, drawn[problem.id], of_trace) for problem in problems]

    async def _draw(
        self, policy: Policy, problems: Sequence[Problem], seed: int, prompt: PromptFormat, sampling: Sampling
    ) -> dict[str, list[Trace]]:
        """Solutions by problem."""
        if not problems:
            return {}
        groups = await sample_traces(
            policy,
            problems,
            n=self.config.samples,
            seed=seed,
            segmenter=self.exercise.segmenter,
            grader=self.exercise.grader,
            prompt=prompt,
            sampling=sampling,
        )
        return {problem.id: traces for problem, traces in zip(problems, groups, strict=True)}


def _share(seed: int, problem: Problem) -> float:
    """A number in [0, 1) of this problem's own."""
    return int(content_id("expert", seed, problem.id), 16) / 2**64


def _gathered(problem: Problem, drawn: Sequence[Trace], of_trace: Mapping[str, Relabelled]) -> Gathered:
    heard = [of_trace[trace.id] for trace in drawn if trace.id in of_trace]
    dropped = sum((one.dropped for one in heard), Counter[str]())
    dropped["rollouts without a step"] += len(drawn) - len(heard)
    dropped["states that nothing was shown in"] += sum(
        _states(trace) - of_trace[trace.id].states for trace in drawn if trace.id in of_trace
    )
    return Gathered(
        problem_id=problem.id,
        drawn=tuple(drawn),
        shown=tuple(one for record in heard for one in record.shown),
        dropped={reason: count for reason, count in dropped.items() if count},
        usage=sum((trace.usage for trace in drawn), Usage()) + sum((one.usage for one in heard), Usage()),
    )


def _states(trace: Trace) -> int:
    return len(trace.steps) + (trace.finish_reason != "length")
