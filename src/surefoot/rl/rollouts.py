"""What a policy learns, and its rollouts: the very tokens that were sampled, and where their steps end."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np
from transformers import PreTrainedTokenizerFast

from surefoot.answers import Grader
from surefoot.errors import TrainingError
from surefoot.policies.episodes import Episode, Turn, build_traces, play_runs, sample_runs, sample_traces
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
from surefoot.records import Problem, Step, StepScores, Trace, Usage
from surefoot.rl.channels import (
    HEARD,
    Graded,
    RewardChannels,
    graded,
    is_opened,
    reward_channels,
    token_canaries,
)
from surefoot.rl.credit import FloatArray, Need, ScoredRollout
from surefoot.scores import Aggregator, channels_read, checked_scores
from surefoot.segment import visible_part

if TYPE_CHECKING:
    from surefoot.rl.config import RLConfig
    from surefoot.rl.server_weights import Publisher

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

    def as_judged(self, item: ProblemTrace) -> ProblemTrace:
        """As the scorer reads it."""
        return item if self.grade_reasoning else replace(item, trace=visible_part(item.trace).trace)

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
        self,
        policy: Policy,
        problems: Sequence[Problem],
        *,
        n: int,
        seed: int,
        sampling: Sampling,
    ) -> list[list[Trace]]:
        """``n`` graded traces of each problem: solutions, or episodes in the environment."""
        if self.environment is not None:
            return await sample_runs(
                policy,
                problems,
                self.environment,
                n=n,
                seed=seed,
                sampling=sampling,
                max_turns=self.max_turns,
                granularity="message",
            )
        return await sample_traces(
            policy,
            problems,
            n=n,
            seed=seed,
            segmenter=self.segmenter,
            grader=self.grader,
            prompt=self.prompt,
            sampling=sampling,
        )

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
class Server:
    """A server that samples the rollouts, and how it receives new weights."""

    policy: Policy
    publisher: Publisher


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """One sample of the policy: a response, or the turns of an episode in an environment."""

    problem: Problem
    trace: Trace
    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    """Tokens of the response [T], as sampled, including the end of sequence if it was sampled."""
    ends: tuple[int, ...]
    """Index into ``ids`` of each step's last token [K]. A token belongs to the step of its first visible
    character, white space alone to that in which it begins. The last step ends with the response, so that the
    decision to stop is part of it. A step in which no token begins (two short ones in one token) ends where
    the step before it does."""
    contexts: tuple[tuple[int, ...], ...] = ()
    """Of an episode, what the policy read before each turn [K]; ``prompt_ids`` is the first. ``ids`` are then
    the tokens of all turns, one after the other, and ``ends`` the turns' ends: what the environment wrote is
    in contexts alone, so it gets neither advantage nor gradient."""
    states: tuple[str, ...] = ()
    """Of an episode, keys of the environment's states before each turn [K]; empty where it has none."""
    server_logprobs: FloatArray | None = None
    """log π [T] of the server that sampled the tokens, in nats, where it says."""
    reasoning_opened: bool = False
    """Whether the prompt began the reasoning, so that a response that does not end it is nothing else."""
    canaries: tuple[str, ...] = ()
    """Pieces of the hidden reasoning by which it is recognised (:func:`surefoot.rl.channels.canaries`)."""

    def turns(self) -> list[Rollout]:
        """An episode's turns as responses to their contexts; any other rollout as it is."""
        if not self.contexts:
            return [self]
        return [
            replace(
                self,
                prompt_ids=context,
                ids=self.ids[tokens],
                ends=(tokens.stop - tokens.start - 1,),
                contexts=(),
                states=(),
                server_logprobs=_part(self.server_logprobs, tokens),
            )
            for context, tokens in zip(self.contexts, self.turn_tokens, strict=True)
        ]

    @property
    def turn_tokens(self) -> list[slice]:
        """Where in ``ids`` the tokens of each step or turn are [K]."""
        return [slice(previous + 1, end + 1) for previous, end in pairwise((-1, *self.ends))]

    @property
    def item(self) -> ProblemTrace:
        """As labellers take it."""
        return ProblemTrace(problem=self.problem, trace=self.trace)

    def graded(self, *, reasoning: bool) -> Graded:
        """As its judges read it, with or without hidden reasoning."""
        return graded(self.item, self.ends, reasoning=reasoning, opened=self.reasoning_opened)


@dataclass(frozen=True, kw_only=True)
class RolloutBatch:
    """The rollouts of one round."""

    groups: list[list[Rollout]]
    """Samples of each problem, in the order of the problems; a group may be empty."""
    failed: int = 0
    """Samples that were requested and failed."""
    error: str | None = None
    """Error of the first failed one."""
    retokenized: int = 0
    """Rollouts whose text was tokenized again, since the policy did not return the tokens it sampled."""


@dataclass(frozen=True, kw_only=True)
class TrainingSample:
    """A rollout with all that the policy update reads of it; arrays have one number per response token
    [T]."""

    rollout: Rollout
    scored: ScoredRollout
    advantages: FloatArray
    scorer_usage: Usage = field(default_factory=Usage)
    old_logprobs: FloatArray | None = None
    """log π_old; ``None`` where the policy has not changed since it sampled the tokens."""
    reference_logprobs: FloatArray | None = None

    def turns(self) -> list[TrainingSample]:
        """One per :meth:`Rollout.turns`; ``scored`` and ``scorer_usage`` stay on the whole rollout."""
        if not self.rollout.contexts:
            return [self]
        return [
            replace(
                self,
                rollout=turn,
                advantages=self.advantages[tokens],
                old_logprobs=_part(self.old_logprobs, tokens),
                reference_logprobs=_part(self.reference_logprobs, tokens),
            )
            for turn, tokens in zip(self.rollout.turns(), self.rollout.turn_tokens, strict=True)
        ]


def _part(array: FloatArray | None, tokens: slice) -> FloatArray | None:
    return None if array is None else array[tokens]


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
    report its prompt tokens: raises ``TrainingError`` if it does not.
    """
    if task.environment is not None:
        runs = await play_runs(
            policy,
            problems,
            task.environment,
            n=n,
            seed=seed,
            sampling=sampling,
            max_turns=task.max_turns,
            logprobs=logprobs,
        )
        return _episodes(runs, policy.name, tokenizer, by_server=by_server)
    requests = [
        SampleRequest(
            prompt=task.prompt.render(problem), n=n, seed=seed, sampling=sampling, logprobs=logprobs
        )
        for problem in problems
    ]
    results = await policy.sample(requests)
    groups: list[list[Rollout]] = []
    failed = retokenized = 0
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
            ids = completion.token_ids or tokenize_completion(tokenizer, request, prompt_ids, completion)
            if not ids:
                continue
            retokenized += not completion.token_ids
            starts = token_starts(tokenizer, ids, completion.whole_text, before=prompt_ids)
            group.append(
                Rollout(
                    problem=problem,
                    trace=trace,
                    prompt_ids=prompt_ids,
                    ids=ids,
                    ends=step_ends(starts, trace.steps),
                    server_logprobs=_logprobs([completion], ids),
                    reasoning_opened=opened,
                    canaries=token_canaries(tokenizer, [ids], trace, problem.text, opened=opened),
                )
            )
        failed += n - len(group)
        error = error or result.error
        groups.append(group)
    return RolloutBatch(groups=groups, failed=failed, error=error, retokenized=retokenized)


def _logprobs(completions: Sequence[Completion], ids: Sequence[int]) -> FloatArray | None:
    """The policy's log-probability of each token, if it gives them all."""
    logprobs = [value for completion in completions for value in completion.logprobs]
    return np.array(logprobs) if len(logprobs) == len(ids) else None


def score_steps(scorer: StepScorer, items: Sequence[ProblemTrace]) -> list[StepScores | None]:
    """Step scores of each item; ``None`` for one without a step, which the scorer does not see."""
    records = iter(checked_scores(scorer, [item for item in items if item.trace.steps]))
    return [next(records) if item.trace.steps else None for item in items]


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


def tokenize_completion(
    tokenizer: PreTrainedTokenizerFast,
    request: SampleRequest,
    prompt_ids: tuple[int, ...],
    completion: Completion,
) -> tuple[int, ...]:
    """Tokens of a completion whose policy returned text only, with the end of sequence restored."""
    all_ids = encode_prompt(tokenizer, request.prompt, completion.text)
    ids = all_ids[len(prompt_ids) :]
    if all_ids[: len(prompt_ids)] != prompt_ids:  # the text's beginning merges with the prompt's last token
        ids = tuple(tokenizer(completion.text, add_special_tokens=False)["input_ids"])
    end = tokenizer.eos_token_id
    ended = completion.ended_itself and not completion.text.endswith(request.sampling.stop)
    return (*ids, end) if ended and end is not None else ids


def _episodes(
    runs: Sequence[Sequence[Episode]], policy: str, tokenizer: PreTrainedTokenizerFast, *, by_server: bool
) -> RolloutBatch:
    if by_server and any(not turn.prompt_ids for of in runs for item in of for turn in item.turns):
        raise TrainingError(
            "the server does not say which tokens it read before a turn ('prompt_token_ids'): let vLLM "
            "sample, with the dialect vllm"
        )
    groups = [[_rollout(item, policy, tokenizer) for item in of_problem] for of_problem in runs]
    episodes = [item for of_problem in runs for item in of_problem]
    return RolloutBatch(
        groups=[[rollout for rollout in group if rollout is not None] for group in groups],
        failed=sum(rollout is None for group in groups for rollout in group),
        error=next((item.error for item in episodes if item.error), None),
        retokenized=sum(any(not turn.completion.token_ids for turn in item.turns) for item in episodes),
    )


def _rollout(episode: Episode, policy: str, tokenizer: PreTrainedTokenizerFast) -> Rollout | None:
    contexts = [turn.prompt_ids or encode_prompt(tokenizer, turn.request.prompt) for turn in episode.turns]
    written = [
        _tokens(turn, context, tokenizer) for turn, context in zip(episode.turns, contexts, strict=True)
    ]
    if episode.error or not written or not all(written):
        return None
    trace, opened = episode.trace(policy, "message"), is_opened(tokenizer, contexts[0])
    return Rollout(
        problem=episode.problem,
        trace=trace,
        reasoning_opened=opened,
        canaries=token_canaries(tokenizer, written, trace, episode.problem.text, opened=opened),
        prompt_ids=contexts[0],
        ids=tuple(token for ids in written for token in ids),
        ends=tuple(end - 1 for end in accumulate(map(len, written))),
        contexts=tuple(contexts),
        server_logprobs=_logprobs(
            [turn.completion for turn in episode.turns], [token for ids in written for token in ids]
        ),
        states=tuple(turn.state for turn in episode.turns if turn.state is not None),
    )


def _tokens(turn: Turn, context: tuple[int, ...], tokenizer: PreTrainedTokenizerFast) -> tuple[int, ...]:
    token_ids = turn.completion.token_ids
    return token_ids or tokenize_completion(tokenizer, turn.request, context, turn.completion)
