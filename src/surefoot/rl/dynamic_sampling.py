"""Dynamic sampling (DAPO, Yu et al., arXiv 2503.14476, section 3.2): only groups that teach something."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from surefoot.records import Problem
from surefoot.rl.rollouts import Rollout, RolloutBatch

Groups = list[list[Rollout]]


def draw_groups(
    sample: Callable[[Sequence[Problem]], RolloutBatch],
    problems: Sequence[Problem],
    spare: Sequence[Problem],
    *,
    useful: Callable[[Groups], Groups],
    again: int,
) -> tuple[RolloutBatch, Groups]:
    """All rollouts that were sampled, and the groups that are learned from: at most one per ``problems``.

    ``useful`` drops groups, such as those with equal rewards. While there are too few left, and at most
    ``again`` times, as many ``spare`` problems are sampled as are missing. Where tries or spare problems run
    out, there are fewer groups. What was sampled and dropped is in the first result: it was paid for.
    """
    batch = sample(problems)
    groups = useful(batch.groups)
    used = 0
    for _ in range(again):
        missing = len(problems) - len(groups)
        more = spare[used : used + missing]
        if not more:
            break
        used += len(more)
        extra = sample(more)
        batch = batch + extra
        groups += useful(extra.groups)
    return batch, groups
