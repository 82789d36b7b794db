"""Rollouts written by hand, for what reads their tokens."""

from __future__ import annotations

from collections.abc import Sequence

from surefoot.protocols import ProblemTrace
from surefoot.records import Problem, Step, Trace
from surefoot.rl.rollouts import Rollout, step_ends, token_starts


def made(prompt_ids: Sequence[int], ids: Sequence[int], *, outcome: bool | None = None) -> Rollout:
    """A rollout of these tokens; its text is a stand-in of one step."""
    problem = Problem(text="by hand")
    trace = Trace(problem_id=problem.id, text="x", steps=(Step(start=0, end=1),), outcome=outcome)
    return Rollout(
        problem=problem, trace=trace, prompt_ids=tuple(prompt_ids), ids=tuple(ids), ends=(len(ids) - 1,)
    )


def of_item(tokenizer, item: ProblemTrace) -> Rollout:
    """The solution of ``item`` as if a policy had drawn its tokens, and stopped."""
    prompt_ids = tuple(tokenizer(item.problem.text + "\n")["input_ids"])
    ids = (*tokenizer(item.trace.text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id)
    ends = step_ends(token_starts(tokenizer, ids, item.trace.text, before=prompt_ids), item.trace.steps)
    return Rollout(problem=item.problem, trace=item.trace, prompt_ids=prompt_ids, ids=ids, ends=ends)
