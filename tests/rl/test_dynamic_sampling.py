"""Dynamic sampling: which problems are drawn again, and that what was dropped is counted."""

from __future__ import annotations

from dataclasses import dataclass

from surefoot.records import Problem, Trace
from surefoot.rl.loop import within_band
from surefoot.rl.rollouts import Rollout, RolloutBatch, draw_groups

MIXED, ALL, NONE = (True, False), (True, True), (False, False)


@dataclass
class Scripted:
    """Samples with known outcomes, by problem; remembers what it was asked for."""

    outcomes: dict[str, tuple[bool, ...]]

    def __post_init__(self) -> None:
        self.asked: list[list[str]] = []

    def __call__(self, problems) -> RolloutBatch:
        self.asked.append([problem.id for problem in problems])
        return RolloutBatch(
            groups=[
                [
                    Rollout(
                        problem=problem,
                        trace=Trace(problem_id=problem.id, text="x", outcome=outcome, sample=number),
                        prompt_ids=(1,),
                        ids=(2,),
                        ends=(0,),
                    )
                    for number, outcome in enumerate(self.outcomes[problem.id])
                ]
                for problem in problems
            ],
            failed=1,
        )


def draw(outcomes: list[tuple[bool, ...]], first: int, again: int):
    problems = [Problem(id=str(number), text="x") for number in range(len(outcomes))]
    sample = Scripted({problem.id: one for problem, one in zip(problems, outcomes, strict=True)})
    batch, groups = draw_groups(
        sample,
        problems[:first],
        problems[first:],
        useful=lambda some: within_band(some, None, mixed=True),
        again=again,
    )
    return sample.asked, batch, [group[0].problem.id for group in groups]


def test_groups_with_equal_rewards_are_replaced_until_the_round_is_full():
    asked, batch, groups = draw([ALL, MIXED, NONE, ALL, MIXED, MIXED, MIXED], 3, again=5)
    assert asked == [["0", "1", "2"], ["3", "4"], ["5"]]
    assert groups == ["1", "4", "5"]
    assert (len(batch.groups), batch.failed, sum(map(len, batch.groups))) == (6, 3, 12)


def test_it_ends_where_tries_or_problems_run_out():
    asked, _, groups = draw([ALL, ALL, NONE, NONE, MIXED], 2, again=1)
    assert (asked, groups) == ([["0", "1"], ["2", "3"]], [])
    asked, _, groups = draw([ALL, ALL, NONE], 2, again=9)
    assert (asked, groups) == ([["0", "1"], ["2"]], [])
    asked, _, groups = draw([ALL, MIXED, MIXED], 2, again=0)
    assert (asked, groups) == ([["0", "1"]], ["1"])


def test_a_full_round_is_left_alone():
    asked, batch, groups = draw([MIXED, MIXED, MIXED], 2, again=3)
    assert (asked, groups) == ([["0", "1"]], ["0", "1"])
    assert sum(map(len, batch.groups)) + batch.failed == 5
