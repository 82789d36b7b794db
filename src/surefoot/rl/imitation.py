"""Imitation of an expert in the states that the policy itself visits.

A policy that is cloned from an expert's solutions has never seen the states that its own errors lead to. In
DAgger the policy writes solutions, the expert gives its own action at each of their steps, and the
policy is fine-tuned on all expert actions so far; then the cycle repeats.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from surefoot.errors import TrainingError
from surefoot.io import Run
from surefoot.policies.devices import LOADING, Loading
from surefoot.policies.prompts import PromptFormat
from surefoot.protocols import (
    RUN_CHANNELS,
    SOLUTION_CHANNELS,
    Policy,
    ProblemTrace,
    SampleRequest,
    SampleResult,
    Sampling,
    Segmenter,
    TraceChannel,
)
from surefoot.records import Problem, Step, Trace, Usage, content_id
from surefoot.rl.config import After, ImitationConfig
from surefoot.rl.rollouts import Task
from surefoot.rl.rounds import ProblemData, Progress, RoundRow, Rounds
from surefoot.training.sft import Demonstration


@dataclass(frozen=True, kw_only=True)
class Expert:
    """The policy that is imitated."""

    policy: Policy
    prompt: PromptFormat = field(default_factory=PromptFormat)
    sampling: Sampling = field(default_factory=lambda: Sampling(temperature=0.0, max_tokens=96))
    """With a stop text that ends a step, the expert writes one step at a time: cheap where it rarely agrees
    for long. Without, it writes to the end, and is asked again only after the policy has departed from it."""


def imitate(
    run: Run,
    policy: str | Path,
    task: Task,
    config: ImitationConfig,
    progress: Progress,
    *,
    demonstrations: Sequence[Demonstration] = (),
    expert: Expert | None = None,
    labelled: bool = False,
    loading: Loading = LOADING,
) -> list[RoundRow]:
    """Clone the ``demonstrations``, then run DAgger with the ``expert`` (Ross et al., arXiv 1011.0686).

    Either may be left out: without ``expert`` this is behaviour cloning, without ``demonstrations`` DAgger
    from the first policy's own states on. ``labelled``: labels chose the steps of the demonstrations. See
    :class:`surefoot.rl.rounds.Rounds`.

    Raises ``TrainingError`` for a rollout with hidden reasoning, which the expert would correct, unless the
    task says ``grade_reasoning``.
    """
    if not demonstrations and expert is None:
        raise TrainingError("nothing to imitate: give traces, or an expert, or both")
    collect = partial(_collect, task, expert, config) if expert else None
    judges: dict[str, Collection[TraceChannel]] = {"expert": SOLUTION_CHANNELS} if expert else {}
    if labelled:
        judges["labels"] = RUN_CHANNELS
    return Rounds(
        run, policy, task, config, collect, progress, demonstrations, loading=loading, judges=judges
    ).run_all()


async def _collect(
    task: Task,
    expert: Expert,
    config: ImitationConfig,
    policy: Policy,
    problems: Sequence[Problem],
    *,
    number: int,
    seed: int,
) -> list[ProblemData]:
    """The expert's decisions on new rollouts (a :data:`surefoot.rl.rounds.Collector`)."""
    by_policy: list[Problem] = []
    by_expert: list[Problem] = []
    for problem in problems:
        # a number in [0, 1) that depends on seed and problem alone
        uniform = int(content_id("expert", seed, problem.id), 16) / 2**64
        (by_expert if uniform < config.beta**number else by_policy).append(problem)
    sampling = Sampling(temperature=expert.sampling.temperature, max_tokens=config.max_tokens)
    traces: dict[str, list[Trace]] = {}
    for writer, chosen, prompt, how in (
        (policy, by_policy, task.prompt, config.sampling),
        (expert.policy, by_expert, expert.prompt, sampling),
    ):
        if chosen:
            groups = await task.sample(
                writer, chosen, n=config.samples, seed=seed, sampling=how, prompt=prompt
            )
            traces |= {problem.id: group for problem, group in zip(chosen, groups, strict=True)}
    rollouts = [
        ProblemTrace(problem=problem, trace=trace)
        for problem in problems
        for trace in traces[problem.id]
        if trace.steps
    ]
    if hidden := [item.trace.id for item in rollouts if task.as_judged(item).trace != item.trace]:
        raise TrainingError(
            f"{len(hidden)} of {len(rollouts)} rollouts have hidden reasoning, first {hidden[0]}: the expert "
            "would correct it step by step; ask for that with 'grade_reasoning'"
        )
    relabelled = await relabel(expert, rollouts, segmenter=task.segmenter, after=config.after, seed=seed)
    by_trace = {item.trace.id: entry for item, entry in zip(rollouts, relabelled, strict=True)}
    return [_problem_data(problem, traces[problem.id], by_trace) for problem in problems]


def _problem_data(
    problem: Problem, traces: Sequence[Trace], by_trace: Mapping[str, ExpertDecisions]
) -> ProblemData:
    relabelled = [by_trace[trace.id] for trace in traces if trace.id in by_trace]
    dropped = sum((item.dropped for item in relabelled), Counter[str]())
    dropped["rollouts without a step"] += len(traces) - len(relabelled)
    dropped["states without a demonstration"] += sum(
        len(trace.steps) + (not trace.cut_off) - by_trace[trace.id].states
        for trace in traces
        if trace.id in by_trace
    )
    return ProblemData(
        problem_id=problem.id,
        traces=tuple(traces),
        demonstrations=tuple(
            demonstration for record in relabelled for demonstration in record.demonstrations
        ),
        dropped={reason: count for reason, count in dropped.items() if count},
        usage=sum((trace.usage for trace in traces), Usage())
        + sum((item.usage for item in relabelled), Usage()),
    )


async def relabel(
    expert: Expert,
    rollouts: Sequence[ProblemTrace],
    *,
    segmenter: Segmenter,
    after: After = "until_error",
    seed: int = 0,
) -> list[ExpertDecisions]:
    """The expert's decisions in the states of text ``rollouts``; one record each, in order.

    A state is the text up to a step; where the policy ended a solution itself, ending there is a decision as
    well. While the policy's steps are the expert's own, word for word, one reply of the expert covers several
    states: it is what the expert does there. A failure, or a truncated step, ends the relabelling of the
    rollout and is counted.
    """
    decisions = [ExpertDecisions(item, after) for item in rollouts]
    while active := [entry for entry in decisions if not entry.done]:
        requests = [entry.request(expert, seed) for entry in active]
        for entry, result in zip(active, await expert.policy.sample(requests), strict=True):
            entry.receive(result, expert, segmenter)
    return decisions


class ExpertDecisions:
    """What an expert would have done in the states of one rollout, collected decision by decision.

    A decision is the text of a step, or ``None`` to end here.
    """

    def __init__(self, item: ProblemTrace, after: After) -> None:
        trace = item.trace
        if trace.text is None:
            raise TrainingError(f"trace {trace.id} is a chat; an expert can continue only texts")
        self._problem, self._trace, self._after = item.problem, trace, after
        self._own: list[str | None] = [trace.step_text(step) for step in range(len(trace.steps))]
        if not trace.cut_off:
            self._own.append(None)
        self._at = 0  # decisions before the current state
        self._same: list[int] = []  # decisions shared with the expert, not yet in a demonstration
        self.demonstrations: list[Demonstration] = []
        """Together they hold the expert's decision in every state that counts, each once."""
        self.states = 0
        """States in which it decided: before each step, and at the end."""
        self.agreed = 0
        """Of these, those in which the policy did the same, word for word."""
        self.dropped: Counter[str] = Counter()
        self.usage = Usage()
        self.done = False

    def request(self, expert: Expert, seed: int) -> SampleRequest:
        """Ask what the expert would do in this state, and after."""
        return SampleRequest(
            prompt=expert.prompt.render(self._problem),
            prefix=self._trace.prefix(self._at),
            seed=seed,
            sampling=expert.sampling,
        )

    def receive(self, result: SampleResult, expert: Expert, segmenter: Segmenter) -> None:
        """Follow a reply for as long as the rollout does the same."""
        self.usage += Usage(verifier_tokens=result.usage.tokens, calls=result.usage.calls)
        reply = self._decisions(result, expert.sampling.stop, segmenter)
        for number, decision in enumerate(reply):
            if self._at == len(self._own):
                break
            self.states += 1
            if decision != self._own[self._at]:
                last = reply[number + 1 : number + 2] == [None]
                self._correct(decision, expert.policy.name, last=last)
                return
            self.agreed += 1
            self._same.append(self._at)
            self._at += 1
        if not reply or self._at == len(self._own):
            self._finish()

    def _decisions(
        self, result: SampleResult, stop: tuple[str, ...], segmenter: Segmenter
    ) -> list[str | None]:
        """What the expert does from here on; nothing (counted) if that is not known."""
        if not result.completions:
            self.dropped["states in which the expert failed"] += 1
            return []
        completion = result.completions[0]
        prefix = self._trace.prefix(self._at)
        text = prefix + completion.text if completion.text.strip() else prefix
        spans = segmenter.segment(text) if text != prefix else []
        steps: list[str | None] = [text[max(a, len(prefix)) : b] for a, b in spans if b > len(prefix)]
        if len(steps) > 1 and not str(steps[0]).strip():
            # the segmenter attached leading white space to the step before; it belongs to the expert's first
            steps[:2] = [f"{steps[0]}{steps[1]}"]
        if completion.ending != "finished":
            steps = steps[:-1]
            self.dropped["truncated steps of the expert"] += not steps
        elif not (stop and text.endswith(stop)) or text == prefix:
            steps.append(None)
        if steps == [None] and not prefix.strip():
            self.dropped["problems for which the expert wrote nothing"] += 1
            return []
        return steps

    def _correct(self, decision: str | None, name: str, *, last: bool) -> None:
        """Demonstrate the expert's decision in place of the policy's, and continue if that is wanted."""
        at, prefix = self._at, self._trace.prefix(self._at)
        steps = self._trace.steps[:at]
        if decision is not None:
            steps = (*steps, Step(start=len(prefix), end=len(prefix) + len(decision)))
        trace = Trace(
            problem_id=self._problem.id,
            text=prefix + (decision or ""),
            steps=steps,
            policy=name,
            meta={"rollout": self._trace.id},
        )
        learned = (*self._same, at) if decision is not None else tuple(self._same)
        self.demonstrations.append(Demonstration(trace=trace, steps=learned, end=last or decision is None))
        self._same = []
        self._at += 1
        if self._at >= len(self._own) or self._after == "until_error":
            self._finish()

    def _finish(self) -> None:
        """Demonstrate what the rollout shares with the expert since the last correction."""
        self.done = True
        steps = tuple(at for at in self._same if self._own[at] is not None)
        if self._same:
            end = len(steps) < len(self._same)
            self.demonstrations.append(Demonstration(trace=self._trace, steps=steps, end=end))
