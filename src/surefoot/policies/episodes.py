"""From problems to traces: solutions that a policy writes at once, cut into steps and graded, and runs of
agents, a policy and an environment in turns until one of them ends."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from surefoot.answers import Grader, Solution
from surefoot.policies.prompts import PromptFormat, openai_tool
from surefoot.protocols import (
    Completion,
    Environment,
    Policy,
    RestorableEnvironment,
    SampleRequest,
    SampleResult,
    Sampling,
    Segmenter,
    TakesExtraBody,
)
from surefoot.records import Message, Problem, Trace, Usage
from surefoot.segment import Granularity, segment_trace


async def sample_traces(
    policy: Policy,
    problems: Sequence[Problem],
    *,
    n: int,
    seed: int,
    segmenter: Segmenter,
    grader: Grader,
    prompt: PromptFormat | None = None,
    sampling: Sampling | None = None,
) -> list[list[Trace]]:
    """``n`` traces of each problem, in order.

    A problem whose request failed gets one trace with an empty text and the ``error``, so that it is seen
    and counted. The prompt's tokens and the calls are accounted to the first trace of its problem.
    """
    prompt, sampling = prompt or PromptFormat(), sampling or Sampling()
    requests = [
        SampleRequest(prompt=prompt.render(problem), n=n, seed=seed, sampling=sampling)
        for problem in problems
    ]
    results = await policy.sample(requests)
    return [
        build_traces(policy.name, problem, result, seed=seed, segmenter=segmenter, grader=grader)
        for problem, result in zip(problems, results, strict=True)
    ]


def build_traces(
    policy: str,
    problem: Problem,
    result: SampleResult,
    *,
    seed: int,
    segmenter: Segmenter,
    grader: Grader,
    reasoning_opened: bool = False,
) -> list[Trace]:
    """The traces of one problem, in the order of the completions: cut into steps, with answer and outcome.

    With ``reasoning_opened`` the prompt began the reasoning; texts without its closing tag lack an answer.

    A request that failed before its first completion gives one trace with an empty text and the ``error``.
    """
    written = [
        Solution(
            text=completion.text,
            prefix="<think>" if reasoning_opened else "",
            finish_reason=completion.finish_reason,
        )
        for completion in result.completions
    ]
    grades = grader.grade(written, [problem.answer] * len(written), problem.text)
    traces = []
    for sample, (completion, grade) in enumerate(zip(result.completions, grades, strict=True)):
        reasoning = completion.reasoning
        shared = result.usage.model_copy(update={"completion_tokens": 0}) if sample == 0 else Usage()
        trace = Trace(
            problem_id=problem.id,
            text=completion.whole_text,
            # what the text cannot hold: summarised, encrypted or withheld
            reasoning=None if reasoning and reasoning.visibility == "visible" else reasoning,
            answer=grade.answer,
            outcome=grade.outcome,
            policy=policy,
            seed=seed,
            sample=sample,
            finish_reason=completion.finish_reason,
            error=result.error,
            usage=shared + Usage(completion_tokens=completion.tokens),
        )
        traces.append(segment_trace(trace, segmenter))
    if traces:
        return traces
    return [
        Trace(
            problem_id=problem.id, text="", policy=policy, seed=seed, error=result.error, usage=result.usage
        )
    ]


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What the policy read and wrote at once."""

    request: SampleRequest
    completion: Completion
    state: str | None
    """Key of the environment's state before it, equal where the states are; ``None`` where states cannot be
    compared."""
    prompt_ids: tuple[int, ...] = ()
    """What the policy says that it read, token by token; empty where it does not say."""


@dataclass(kw_only=True)
class Episode:
    """One run under way; the environment is in the state that the messages have led to."""

    problem: Problem
    environment: Environment
    messages: list[Message]
    seed: int = 0
    sample: int = 0
    usage: Usage = field(default_factory=Usage)
    turns: list[Turn] = field(default_factory=list)
    """Those that :func:`play` has played."""
    done: bool = False
    finish_reason: str | None = None
    error: str | None = None

    @classmethod
    def begin(cls, problem: Problem, environment: Environment, *, seed: int = 0, sample: int = 0) -> Episode:
        """A new one. Raises what the environment's ``reset`` raises."""
        messages = list(environment.reset(problem, seed))
        return cls(problem=problem, environment=environment, messages=messages, seed=seed, sample=sample)

    def state_key(self) -> str | None:
        """The environment's state as canonical JSON; ``None`` where states cannot be compared."""
        if not isinstance(self.environment, RestorableEnvironment):
            return None
        return json.dumps(self.environment.state(), sort_keys=True)

    def trace(self, policy: str, granularity: Granularity = "part") -> Trace:
        """The run so far, cut into steps, with the environment's outcome; none after an ``error``."""
        trace = Trace(
            problem_id=self.problem.id,
            messages=tuple(self.messages),
            tools=self.environment.tools,
            outcome=None if self.error else self.environment.outcome(),
            policy=policy,
            seed=self.seed,
            sample=self.sample,
            finish_reason=self.finish_reason,
            error=self.error,
            usage=self.usage,
        )
        return segment_trace(trace, granularity=granularity)

    def take(self, message: Message) -> None:
        """Add the assistant's message, and the environment's reply."""
        self.messages.append(message)
        for call in message.tool_calls:
            observation = self.environment.step(call)
            self.messages.append(
                Message(role="tool", content=observation.text, tool_call_id=call.id, error=observation.error)
            )
            self.done |= observation.done
        if not message.tool_calls:
            observation = self.environment.step(message.content or "")
            self.done |= observation.done
            if not self.done:
                self.messages.append(Message(role="user", content=observation.text))


async def play(
    policy: Policy,
    episodes: Sequence[Episode],
    *,
    sampling: Sampling | None = None,
    max_turns: int = 30,
    logprobs: bool = False,
) -> None:
    """Play ``episodes`` of one environment to their ends, all in step, so that each turn is one batch for the
    policy.

    An episode ends where its environment says so, after ``max_turns`` more messages of the policy
    (``finish_reason`` ``length``), or where a request fails (``error``). A policy that takes more fields in a
    request (:class:`surefoot.protocols.TakesExtraBody`, such as one behind a server) is given the
    environment's tools; any other must know them.
    """
    if episodes and isinstance(policy, TakesExtraBody):
        tools = [openai_tool(tool) for tool in episodes[0].environment.tools]
        policy = policy.with_extra_body({"tools": tools} if tools else {})
    for _ in range(max_turns):
        live = [episode for episode in episodes if not episode.done]
        if not live:
            return
        requests = [
            SampleRequest(
                prompt=tuple(episode.messages),
                first=episode.sample,
                seed=episode.seed,
                sampling=sampling or Sampling(),
                logprobs=logprobs,
            )
            for episode in live
        ]
        results = await policy.sample(requests)
        for episode, request, result in zip(live, requests, results, strict=True):
            episode.usage += result.usage
            if result.error is not None or not result.completions:
                episode.done, episode.error = True, result.error or "policy: no completion"
                continue
            [completion] = result.completions
            episode.turns.append(
                Turn(
                    request=request,
                    completion=completion,
                    state=episode.state_key(),
                    prompt_ids=result.prompt_token_ids,
                )
            )
            episode.take(
                Message(
                    role="assistant",
                    content=completion.text or (None if completion.tool_calls else ""),
                    tool_calls=completion.tool_calls,
                    reasoning=completion.reasoning,
                )
            )
            episode.finish_reason = completion.finish_reason
    for episode in episodes:
        if not episode.done:
            episode.done, episode.finish_reason = True, "length"


async def play_runs(
    policy: Policy,
    problems: Sequence[Problem],
    environment: Callable[[], Environment],
    *,
    n: int,
    seed: int = 0,
    sampling: Sampling | None = None,
    max_turns: int = 30,
    logprobs: bool = False,
) -> list[list[Episode]]:
    """``n`` episodes of each problem, played to their ends; ``environment`` makes a new one for each."""
    runs = [
        [Episode.begin(problem, environment(), seed=seed, sample=sample) for sample in range(n)]
        for problem in problems
    ]
    episodes = [episode for of_problem in runs for episode in of_problem]
    await play(policy, episodes, sampling=sampling, max_turns=max_turns, logprobs=logprobs)
    return runs


async def sample_runs(
    policy: Policy,
    problems: Sequence[Problem],
    environment: Callable[[], Environment],
    *,
    n: int,
    seed: int = 0,
    sampling: Sampling | None = None,
    max_turns: int = 30,
    granularity: Granularity = "part",
) -> list[list[Trace]]:
    """``n`` runs of each problem, cut into steps, with the environment's outcome.

    ``environment`` makes a new one for each run. A run whose request failed keeps what came before, and has
    the ``error`` and no outcome.
    """
    runs = await play_runs(
        policy, problems, environment, n=n, seed=seed, sampling=sampling, max_turns=max_turns
    )
    return [[episode.trace(policy.name, granularity) for episode in of_problem] for of_problem in runs]
