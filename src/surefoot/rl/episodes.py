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

    ``sampling.max_tokens`` is that of a turn. An episode in which a request failed, or a turn has no token,
    counts as failed. The tokens that the policy read before a turn are those that it reports, or those of the
    conversation so far, as ``tokenizer`` renders it for that turn: nothing assumes that a chat template only
    ever adds to what it wrote. A server (``by_server``) renders an environment's tools in its own way:
    raises ``TrainingError`` where it does not report what it read.
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
    if by_server and any(not turn.prompt_ids for of in runs for one in of for turn in one.turns):
        raise TrainingError(
            "the server does not say which tokens it read before a turn ('prompt_token_ids'): let vLLM "
            "sample, with the dialect vllm"
        )
    groups = [[_rollout(one, policy.name, tokenizer) for one in of_problem] for of_problem in runs]
    every = [one for of_problem in runs for one in of_problem]
    return RolloutBatch(
        groups=[[one for one in group if one is not None] for group in groups],
        failed=sum(one is None for group in groups for one in group),
        error=next((one.error for one in every if one.error), None),
        retokenized=sum(any(not turn.completion.token_ids for turn in one.turns) for one in every),
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
    known = turn.completion.token_ids
    return known or tokenize_completion(tokenizer, turn.request, context, turn.completion)
