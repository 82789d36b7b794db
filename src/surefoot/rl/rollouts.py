"""What a policy learns, and its rollouts: the very tokens that were sampled, and where their steps end."""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from surefoot.answers import Grader
from surefoot.errors import LabelError, PolicyError, TrainingError
from surefoot.policies.episodes import Episode, build_traces, play_runs, sample_runs, sample_traces
from surefoot.policies.prompts import PromptFormat, encode_prompt
from surefoot.protocols import (
    SOLUTION_CHANNELS,
    Completion,
    Environment,
    Labeller,
    Policy,
    ProblemTrace,
    SampleRequest,
    Sampling,
    Segmenter,
    StepScorer,
    TraceChannel,
)
from surefoot.records import Problem, Step, StepLabel, StepScores, Trace, Usage
from surefoot.rl.channels import HEARD, RewardChannels, is_opened, reward_channels, trace_canaries
from surefoot.rl.credit import Need
from surefoot.rl.log import EvaluationRow, Shape
from surefoot.rl.sample import FloatArray, Sample
from surefoot.scores import Aggregator, channels_read, checked_scores, trace_score
from surefoot.segment import visible_part
from surefoot.stats.bootstrap import bootstrap_mean, bootstrap_totals
from surefoot.stats.intervals import Interval

if TYPE_CHECKING:
    from surefoot.rl.config import RLConfig

_CONTEXT_TOKENS = 4
"""Decoded before new tokens, so that their leading white space is preserved."""
_INCOMPLETE = "�"
"""What part of a character decodes to."""
_VISIBLE = re.compile(r"\S")


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is to be learned, and who judges it: by reinforcement learning, imitation or expert iteration.

    Raises ``TrainingError`` without problems, or if one is both trained on and held out.
    """

    problems: Sequence[Problem]
    held_out: Sequence[Problem] = ()
    """Problems to evaluate on; imitation and expert iteration do not evaluate without any."""
    segmenter: Segmenter
    grader: Grader
    prompt: PromptFormat = field(default_factory=PromptFormat)
    scorer: StepScorer | None = None
    """Source of step scores, for credit rules and for the choice of solutions: a reward model, or a checker
    wrapped in ``LabelScorer``."""
    gold: Labeller | None = None
    """Labels the steps of held-out solutions with correct answers (trace error); independent of the
    reward."""
    environment: Callable[[], Environment] | None = None
    """Makes an environment, in which a rollout is an episode of several turns; it then gives the outcomes,
    and ``segmenter``, ``grader`` and ``prompt`` are not used. Steps are turns. For reinforcement learning."""
    max_turns: int = 30
    """Most turns of an episode; it ends there with the outcome that its state has."""
    aggregation: Aggregator = "min"
    """How step scores are reduced to the proxy that is plotted with the gold accuracy."""
    grade_reasoning: bool = False
    """Whether ``scorer`` reads hidden reasoning (:mod:`surefoot.rl.channels`)."""

    def __post_init__(self) -> None:
        if not self.problems:
            raise TrainingError("'problems' is empty: there is nothing to train on")
        if shared := {problem.id for problem in self.problems} & {problem.id for problem in self.held_out}:
            raise TrainingError(
                f"{len(shared)} problems are both held out and trained on, first {min(shared)}: remove them "
                "from 'problems' or from 'held_out'"
            )

    def reward_channels(self, needs: Collection[Need]) -> RewardChannels:
        """What the judges read that a credit rule ``needs``."""
        outcome = channels_read(self.grader) if self.environment is None else HEARD
        judges: dict[str, Collection[TraceChannel]] = {}
        if "outcome" in needs:
            judges["outcome"] = outcome
        if "scores" in needs:
            judges[getattr(self.scorer, "name", "scorer")] = channels_read(self.scorer)
        if "log_ratios" in needs:
            judges["online PRM"] = SOLUTION_CHANNELS
        return reward_channels(judges, grade_reasoning=self.grade_reasoning)

    async def sample(
        self, policy: Policy, problems: Sequence[Problem], *, n: int, seed: int, sampling: Sampling
    ) -> list[list[Trace]]:
        """``n`` graded traces of each problem: solutions, or episodes in the environment."""
        request: dict[str, Any] = {"n": n, "seed": seed, "sampling": sampling}
        if self.environment is not None:
            request |= {"max_turns": self.max_turns, "granularity": "message"}
            return await sample_runs(policy, problems, self.environment, **request)
        request |= {"segmenter": self.segmenter, "grader": self.grader, "prompt": self.prompt}
        return await sample_traces(policy, problems, **request)

    def check(self, config: RLConfig) -> None:
        """Raise ``TrainingError`` for what reinforcement learning with ``config`` needs and this lacks."""
        if not self.held_out:
            raise TrainingError("'held_out' is empty: reinforcement learning needs problems to evaluate on")
        if "scores" in config.credit.needs and self.scorer is None:
            raise TrainingError(f"credit {config.credit.rule!r} needs step scores: give a 'scorer'")
        if "states" in config.credit.needs and self.environment is None:
            raise TrainingError(
                f"credit {config.credit.rule!r} compares turns in equal states of an environment: give an "
                "'environment', or choose another rule"
            )
        trains_judge = "log_ratios" in config.credit.needs or config.advantage.needs_values
        if self.environment is not None and trains_judge:
            raise TrainingError(
                "a model that is trained with the policy (credit 'implicit', advantage 'gae') reads single "
                "responses, not episodes: leave 'environment' out, or choose another rule"
            )
        unanswered = [problem.id for problem in self.problems if problem.answer is None]
        if self.environment is None and "outcome" in config.credit.needs and unanswered:
            raise TrainingError(
                f"credit {config.credit.rule!r} needs outcomes, but {len(unanswered)} problems have no "
                f"'answer', first {unanswered[0]}"
            )
        if len(self.problems) < config.problems:
            raise TrainingError(
                f"'problems' is {config.problems} per round, but there are only {len(self.problems)}: lower "
                "it, or give more problems"
            )


@dataclass(frozen=True, kw_only=True)
class RolloutBatch:
    """The rollouts of one round."""

    groups: list[list[Sample]]
    """Samples of each problem, in the order of the problems; a group may be empty."""
    failed: int = 0
    """Samples that were requested and failed."""
    error: str | None = None
    """Error of the first failed one."""


async def roll_out(
    policy: Policy,
    problems: Sequence[Problem],
    tokenizer: PreTrainedTokenizerFast,
    task: Task,
    *,
    n: int,
    seed: int,
    sampling: Sampling,
    logprobs: bool = False,
    by_server: bool = False,
) -> RolloutBatch:
    """Sample ``n`` rollouts of each problem: solutions, or episodes in the task's environment.

    ``tokenizer`` is the trained model's, which a server (``by_server``) must share; with ``logprobs`` it is
    asked for the log-probabilities of its samples.

    Each episode has a new environment; a turn is a step of its trace. ``sampling.max_tokens`` applies to each
    turn. An episode with a failed request or an empty turn counts as failed. The prompt tokens of a turn are
    the ones that the policy reports, or else the conversation so far as ``tokenizer`` renders it for that
    turn; a chat template may change earlier messages. A server may render tools differently, so it must
    report its prompt tokens. Raises ``TrainingError`` if it does not, and for text without its tokens.
    """
    if task.environment is not None:
        options: dict[str, Any] = {"n": n, "seed": seed, "sampling": sampling, "logprobs": logprobs}
        runs = await play_runs(policy, problems, task.environment, max_turns=task.max_turns, **options)
        return _episodes(runs, policy.name, tokenizer, by_server=by_server)
    requests = [
        SampleRequest(
            prompt=task.prompt.render(problem), n=n, seed=seed, sampling=sampling, logprobs=logprobs
        )
        for problem in problems
    ]
    results = await policy.sample(requests)
    groups: list[list[Sample]] = []
    failed = 0
    error = None
    for problem, request, result in zip(problems, requests, results, strict=True):
        prompt_ids = encode_prompt(tokenizer, request.prompt, request.prefix)
        opened = is_opened(tokenizer, prompt_ids)
        traces = build_traces(
            policy.name,
            problem,
            result,
            seed=seed,
            segmenter=task.segmenter,
            grader=task.grader,
            reasoning_opened=opened,
        )
        group = []
        for trace, completion in zip(traces, result.completions, strict=False):
            if not (ids := _tokens(completion)):
                continue
            starts = token_starts(tokenizer, ids, completion.whole_text, before=prompt_ids)
            group.append(
                Sample(
                    item=ProblemTrace(problem=problem, trace=trace),
                    prompt_ids=prompt_ids,
                    tokens=len(ids),
                    ids=ids,
                    ends=step_ends(starts, trace.steps),
                    server_logprobs=_logprobs([completion], ids),
                    reasoning_opened=opened,
                    canaries=trace_canaries(
                        trace, problem.text, written=_decoded(tokenizer, [ids]), opened=opened
                    ),
                )
            )
        failed += n - len(group)
        error = error or result.error
        groups.append(group)
    return RolloutBatch(groups=groups, failed=failed, error=error)


def _decoded(tokenizer: PreTrainedTokenizerFast, turns: Sequence[Sequence[int]]) -> list[str]:
    return [str(tokenizer.decode(list(ids))) for ids in turns]


def _tokens(completion: Completion) -> tuple[int, ...]:
    if completion.text and not completion.token_ids:
        raise TrainingError(
            "the policy does not say which tokens it sampled, and tokenizing its text again need not give "
            "them: sample in this process, or let vLLM sample, with the dialect vllm"
        )
    return completion.token_ids


def _logprobs(completions: Sequence[Completion], ids: Sequence[int]) -> FloatArray | None:
    """The policy's log-probability of each token, if it gives them all."""
    logprobs = [value for completion in completions for value in completion.logprobs]
    return np.array(logprobs) if len(logprobs) == len(ids) else None


def step_ends(starts: Sequence[int], steps: Sequence[Step]) -> tuple[int, ...]:
    """Last token of each step [K], given the character at which each token begins [T]."""
    inner = [max(0, bisect_left(starts, step.end) - 1) for step in steps[:-1]]
    return (*inner, len(starts) - 1)


def token_starts(
    tokenizer: PreTrainedTokenizerFast, ids: Sequence[int], text: str, *, before: Sequence[int] = ()
) -> list[int]:
    """Character of ``text`` at which each sampled token begins [T]; ``before`` are the prompt's tokens.

    White space before a token's first visible character is skipped: a step begins with such a character, and
    the token " So" belongs to the step that begins with "So".

    Tokenizing the text again need not give the sampled tokens, so these are decoded: one by one where that
    gives the text, else (parts of characters, spaces that a lone token loses) after their neighbours. A token
    that continues a character begins where the character does.
    """
    pieces = tokenizer.batch_decode([[token] for token in ids], skip_special_tokens=True)
    if "".join(pieces)[: len(text)] == text:
        ends = list(accumulate(map(len, pieces)))
    else:
        ends = list(_ends_in_context(tokenizer, ids, list(before[-_CONTEXT_TOKENS:])))
    starts = [min(start, len(text)) for start in (0, *ends[:-1])]
    visible = (_VISIBLE.search(text, start, end) for start, end in zip(starts, ends, strict=True))
    return [match.start() if match else start for match, start in zip(visible, starts, strict=True)]


def _ends_in_context(
    tokenizer: PreTrainedTokenizerFast, ids: Sequence[int], context: list[int]
) -> Iterator[int]:
    """Complete characters after each token, decoded after the tokens that complete the text before it."""

    def decode(tokens: list[int]) -> str:
        return str(tokenizer.decode(tokens, skip_special_tokens=True))

    done, held, decoded = 0, list[int](), len(decode(context))
    for token in ids:
        held.append(token)
        piece = decode(context + held)[decoded:]
        text = piece.rstrip(_INCOMPLETE)
        yield done + len(text)
        if text and text == piece:
            done, context, held = done + len(piece), held[-_CONTEXT_TOKENS:], []
            decoded = len(decode(context))


def _episodes(
    runs: Sequence[Sequence[Episode]], policy: str, tokenizer: PreTrainedTokenizerFast, *, by_server: bool
) -> RolloutBatch:
    if by_server and any(not turn.prompt_ids for of in runs for item in of for turn in item.turns):
        raise TrainingError(
            "the server does not say which tokens it read before a turn ('prompt_token_ids'): let vLLM "
            "sample, with the dialect vllm"
        )
    groups = [[_sample(item, policy, tokenizer) for item in of_problem] for of_problem in runs]
    episodes = [item for of_problem in runs for item in of_problem]
    return RolloutBatch(
        groups=[[rollout for rollout in group if rollout is not None] for group in groups],
        failed=sum(rollout is None for group in groups for rollout in group),
        error=next((item.error for item in episodes if item.error), None),
    )


def _sample(episode: Episode, policy: str, tokenizer: PreTrainedTokenizerFast) -> Sample | None:
    contexts = [turn.prompt_ids or encode_prompt(tokenizer, turn.request.prompt) for turn in episode.turns]
    written = [_tokens(turn.completion) for turn in episode.turns]
    if episode.error or not written or not all(written):
        return None
    trace, opened = episode.trace(policy, "message"), is_opened(tokenizer, contexts[0])
    spoken = _decoded(tokenizer, written)
    ids = tuple(token for of_turn in written for token in of_turn)
    return Sample(
        item=ProblemTrace(problem=episode.problem, trace=trace),
        reasoning_opened=opened,
        canaries=trace_canaries(trace, episode.problem.text, written=spoken, opened=opened),
        prompt_ids=contexts[0],
        tokens=len(ids),
        ids=ids,
        ends=tuple(end - 1 for end in accumulate(map(len, written))),
        contexts=tuple(contexts),
        server_logprobs=_logprobs([turn.completion for turn in episode.turns], ids),
        states=tuple(turn.state for turn in episode.turns if turn.state is not None),
    )


def score_steps(scorer: StepScorer, items: Sequence[ProblemTrace]) -> list[StepScores | None]:
    """Step scores of each item; ``None`` for one without a step, which the scorer does not see."""
    records = iter(checked_scores(scorer, [item for item in items if item.trace.steps]))
    return [next(records) if item.trace.steps else None for item in items]


_DRAWS = 2_000


async def audit_policy(
    policy: Policy, task: Task, *, update: int, samples: int, n: int, seed: int, sampling: Sampling
) -> tuple[EvaluationRow, list[Trace]]:
    """Sample ``n`` solutions (or episodes) of each held-out problem of ``task``: graded, scored by its
    scorer, correct ones checked by its ``gold``.

    ``update`` and ``samples`` say how far training is. ``gold`` gives labels of kind correctness; a trace is
    wrong if one of its steps is labelled -1. Equal seeds give equal samples of an unchanged policy and equal
    bootstrap draws. Returns the measurements and the traces, one problem's after the other, without failed
    samples. Raises ``PolicyError`` if all samples failed, ``LabelError`` if no answer could be graded.
    """
    problems = task.held_out
    sampled = await task.sample(policy, problems, n=n, seed=seed, sampling=sampling)
    groups = [
        [ProblemTrace(problem=problem, trace=trace) for trace in traces if trace.text or not trace.error]
        for problem, traces in zip(problems, sampled, strict=True)
    ]
    items = [item for group in groups for item in group]
    if not items:
        errors = {trace.error for traces in sampled for trace in traces if trace.error}
        raise PolicyError(
            f"all samples of {len(problems)} held-out problems failed: {'; '.join(sorted(errors))}"
        )
    graded = [np.array([i.trace.outcome for i in g if i.trace.outcome is not None], float) for g in groups]
    right = [group.mean() for group in graded if len(group)]
    if not right:
        raise LabelError("no held-out answer could be graded: give problems that have an 'answer'")
    usage = sum((trace.usage for traces in sampled for trace in traces), Usage())
    proxy = trace_error = None
    unscored = unjudged = 0
    if task.scorer:
        proxy, unscored, spent = await _scored(items, task, task.scorer, seed)
        usage += spent
    if task.gold:
        trace_error, unjudged, spent = await _judged(groups, task.gold, seed)
        usage += spent
    row = EvaluationRow(
        update=update,
        samples=samples,
        accuracy=bootstrap_mean(right, draws=_DRAWS, rng=np.random.default_rng(seed)),
        proxy=proxy,
        trace_error=trace_error,
        problems=len(right),
        shape=shape_of([item.trace for item in items]),
        failed=n * len(problems) - len(items),
        ungraded=len(items) - sum(map(len, graded)),
        unscored=unscored,
        unjudged=unjudged,
        usage=usage,
    )
    return row, [item.trace for item in items]


def shape_of(traces: Sequence[Trace]) -> Shape:
    """Lengths of some traces."""
    if not traces:
        return Shape()
    return Shape(
        traces=len(traces),
        tokens=sum(trace.usage.completion_tokens for trace in traces) / len(traces),
        steps=sum(len(trace.steps) for trace in traces) / len(traces),
        finished=sum(not trace.cut_off for trace in traces) / len(traces),
    )


async def _scored(
    items: Sequence[ProblemTrace], task: Task, proxy: StepScorer, seed: int
) -> tuple[Interval | None, int, Usage]:
    """Mean over problems of the mean score of their traces, the number of unscored traces, the cost."""
    read = list(items)
    if not task.grade_reasoning:
        read = [replace(item, trace=visible_part(item.trace).trace) for item in items]
    records = await asyncio.to_thread(score_steps, proxy, read)
    values: dict[str, list[float]] = {}
    for item, record in zip(items, records, strict=True):
        if record and (score := trace_score(record.scores, task.aggregation)) is not None:
            values.setdefault(item.problem.id, []).append(score)
    means = [float(np.mean(of_problem)) for of_problem in values.values()]
    mean = bootstrap_mean(means, draws=_DRAWS, rng=np.random.default_rng(seed)) if means else None
    unscored = len(items) - sum(map(len, values.values()))
    return mean, unscored, sum((record.usage for record in records if record), Usage())


async def _judged(
    groups: Sequence[Sequence[ProblemTrace]], gold: Labeller, seed: int
) -> tuple[Interval | None, int, Usage]:
    """Share of the traces with a correct answer that have a wrong step, the number of unjudged ones, the
    cost."""
    right = [[item for item in group if item.trace.outcome] for group in groups]
    labels = await gold.label([item for group in right for item in group])
    usage = sum((label.evidence.usage for of_trace in labels for label in of_trace), Usage())
    rows = iter(labels)
    wrong = [[_has_wrong_step(item.trace, next(rows)) for item in group] for group in right]
    unjudged = sum(group.count(None) for group in wrong)
    counts = np.array([[group.count(True), len(group) - group.count(None)] for group in wrong])
    share = None
    if counts[:, 1].any():
        [share] = bootstrap_totals([counts], _ratio, draws=_DRAWS, rng=np.random.default_rng(seed))
    return share, unjudged, usage.by_verifier


def _has_wrong_step(trace: Trace, labels: Sequence[StepLabel]) -> bool | None:
    """``None`` = no step is known to be wrong, and some are unknown."""
    labels_by_step = {
        label.step: label.value for label in labels if label.kind == "correctness" and label.value is not None
    }
    if -1 in labels_by_step.values():
        return True
    return False if trace.steps and len(labels_by_step) == len(trace.steps) else None


def _ratio(totals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Wrong over judged [n, 1], from totals [n, 1, 2]; NaN in a draw without a judged trace."""
    wrong, judged = totals[:, 0, :1], totals[:, 0, 1:]
    return np.divide(wrong, judged, out=np.full_like(wrong, np.nan), where=judged > 0)
