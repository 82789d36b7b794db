"""Rollouts of several turns: the policy and an environment alternate, and only the policy's tokens learn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np
from transformers import PreTrainedTokenizerFast

from surefoot.errors import TrainingError
from surefoot.policies.episodes import Episode, Turn, play_runs
from surefoot.policies.prompts import encode_prompt
from surefoot.protocols import Environment, Policy, Sampling
from surefoot.records import Problem
from surefoot.rl.rollouts import Rollout, RolloutBatch, tokenize_completion


async def roll_out_episodes(
    policy: Policy,
    problems: Sequence[Problem],
    tokenizer: PreTrainedTokenizerFast,
    environment: Callable[[], Environment],
    *,
    n: int,
    seed: int,
    sampling: Sampling,
    max_turns: int,
    logprobs: bool = False,
    by_server: bool = False,
) -> RolloutBatch:
    """``n`` episodes of each problem, each in a new environment; a turn is a step of its trace.

    ``sampling.max_tokens`` applies to each turn. An episode with a failed request or an empty turn counts as
    failed. The prompt tokens of a turn are the ones that the policy reports, or else the conversation so far
    as ``tokenizer`` renders it for that turn; a chat template may change earlier messages. A server
    (``by_server``) may render tools differently, so it must report its prompt tokens: raises
    ``TrainingError`` if it does not.
    """
    runs = await play_runs(
        policy,
        problems,
        environment,
        n=n,
        seed=seed,
        sampling=sampling,
        max_turns=max_turns,
        logprobs=logprobs,
    )
    if by_server and any(not turn.prompt_ids for of in runs for item in of for turn in item.turns):
        raise TrainingError(
            "the server does not say which tokens it read before a turn ('prompt_token_ids'): let vLLM "
            "sample, with the dialect vllm"
        )
    groups = [[_rollout(item, policy.name, tokenizer) for item in of_problem] for of_problem in runs]
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
    logprobs = [value for turn in episode.turns for value in turn.completion.logprobs]
    return Rollout(
        problem=episode.problem,
        trace=episode.trace(policy, "message"),
        prompt_ids=contexts[0],
        ids=tuple(token for ids in written for token in ids),
        ends=tuple(end - 1 for end in accumulate(map(len, written))),
        sampler_logprobs=np.array(logprobs) if logprobs else None,
        contexts=tuple(contexts),
        states=tuple(turn.state for turn in episode.turns if turn.state is not None),
    )


def _tokens(turn: Turn, context: tuple[int, ...], tokenizer: PreTrainedTokenizerFast) -> tuple[int, ...]:
    token_ids = turn.completion.token_ids
    return token_ids or tokenize_completion(tokenizer, turn.request, context, turn.completion)
