"""Rollouts written by hand or sampled from any policy."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from transformers import PreTrainedTokenizerFast

from surefoot.answers import AnswerChecker, Grader
from surefoot.protocols import Completion, Policy, ProblemTrace, SampleRequest, SampleResult, Sampling
from surefoot.records import Problem, Step, Trace
from surefoot.rl.rollouts import RolloutBatch, Task, roll_out, step_ends, token_starts
from surefoot.rl.sample import Sample
from surefoot.segment import Line


def made(prompt_ids: Sequence[int], ids: Sequence[int], *, outcome: bool | None = None) -> Sample:
    """A rollout of these tokens; its text is a stand-in of one step."""
    problem = Problem(text="by hand")
    trace = Trace(problem_id=problem.id, text="x", steps=(Step(start=0, end=1),), outcome=outcome)
    return Sample(
        item=ProblemTrace(problem=problem, trace=trace),
        prompt_ids=tuple(prompt_ids),
        tokens=len(ids),
        ids=tuple(ids),
        ends=(len(ids) - 1,),
    )


def of_item(tokenizer, item: ProblemTrace) -> Sample:
    """The solution of ``item`` as if a policy had drawn its tokens, and stopped."""
    prompt_ids = tuple(tokenizer(item.problem.text + "\n")["input_ids"])
    ids = (*tokenizer(item.trace.text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id)
    ends = step_ends(token_starts(tokenizer, ids, item.trace.text, before=prompt_ids), item.trace.steps)
    return Sample(item=item, prompt_ids=prompt_ids, tokens=len(ids), ids=ids, ends=ends)


@dataclass(frozen=True)
class TellsTokens:
    """A policy of texts as one that drew their tokens, with the end of sequence where it ended itself."""

    policy: Policy
    tokenizer: PreTrainedTokenizerFast

    @property
    def name(self) -> str:
        return self.policy.name

    async def sample(self, requests: Sequence[SampleRequest]) -> list[SampleResult]:
        results = await self.policy.sample(requests)
        return [replace(result, completions=tuple(map(self._told, result.completions))) for result in results]

    def _told(self, completion: Completion) -> Completion:
        ids = tuple(self.tokenizer(completion.text, add_special_tokens=False)["input_ids"])
        end = (self.tokenizer.eos_token_id,) if completion.finish_reason == "stop" else ()
        return replace(completion, token_ids=ids + end)


def rolled(
    policy: Policy, tokenizer: PreTrainedTokenizerFast, texts: Sequence[str], *, n: int, max_tokens: int = 48
) -> RolloutBatch:
    """``n`` rollouts of each problem text, cut at lines."""
    with AnswerChecker("exact") as checker:
        problems = [Problem(text=text, answer="7") for text in texts]
        task = Task(problems=problems, segmenter=Line(), grader=Grader(checker=checker))
        sampling = Sampling(max_tokens=max_tokens)
        return asyncio.run(roll_out(policy, problems, tokenizer, task, n=n, seed=3, sampling=sampling))
