"""Small policies and scorers whose every word follows from a hash: for tests of searches."""

from __future__ import annotations

import asyncio
from functools import reduce

from watched_policy import Watched

from benchmarks.worlds.scripted import ScriptedPolicy
from surefoot.answers import AnswerChecker, Grader
from surefoot.batching import Batcher
from surefoot.protocols import Sampling
from surefoot.records import Problem, StepScores, Usage, content_id
from surefoot.search import Space, Steps, run_search

GRADER = Grader(checker=AnswerChecker("exact"), styles=("phrase",))
STEPS = Steps(step_tokens=8, max_steps=12, sampling=Sampling(temperature=1.0, max_tokens=64))


def chance(*parts: object) -> float:
    """A number in [0, 1) that follows from ``parts``."""
    return int(content_id(*parts), 16) / 2**64


def problems(count: int) -> list[Problem]:
    return [Problem(text=f"problem {number}", answer=str(number % 3)) for number in range(count)]


def random_solver(depth: int = 3, kinds: int = 3):
    """Each solution has 1 to ``depth`` steps, each one of ``kinds``, and an answer in 0, 1, 2."""

    def answer(request, sample):
        text = request.prefix
        while True:
            at = text.count("\n")
            draw = chance("solver", request.prompt, text, sample, request.seed)
            if at >= depth or (at > 0 and draw < 0.2):
                return (text + f"The answer is {int(draw * 1e6) % 3}")[len(request.prefix) :]
            text += f"step {at} is {int(draw * 1e6) % kinds}\n"

    return answer


def full_tree(depth: int, kinds: int):
    """Sample k takes the (k mod ``kinds``)-th child, so that ``kinds`` samples see all of them."""

    def answer(request, sample):
        text = request.prefix
        while text.count("\n") < depth:
            text += f"step {text.count(chr(10))} is {sample % kinds}\n"
        return (text + f"The answer is {text.count('is 0')}")[len(request.prefix) :]

    return answer


class HashScorer:
    """The score of a step follows from the problem and the text up to it, by ``rule`` if there is one."""

    name = "hash"

    def __init__(self, rule=None):
        self.rule = rule or (lambda prefix: round(chance("score", prefix), 3))
        self.rounds, self.usage = [], Usage()

    def score_traces(self, items):
        self.rounds.append(list(items))
        records = [self._record(item) for item in items]
        self.usage = reduce(Usage.__add__, (record.usage for record in records), self.usage)
        return records

    def _record(self, item):
        scores = tuple(self.rule(item.trace.prefix(k + 1)) for k in range(len(item.trace.steps)))
        return StepScores(
            trace_id=item.trace.id,
            scorer=self.name,
            scores=scores,
            unscored_reason="no number" if None in scores else None,
            usage=Usage(verifier_tokens=len(item.trace.text.split()), calls=1),
        )


def searched(search, items, policy, scorer=None, **settings):
    """Results of a search, with the toys' own settings."""
    settings = {"steps": STEPS, "grader": GRADER, **settings}
    return asyncio.run(run_search(search, items, policy, scorer, **settings))


def in_space(work, policy, scorer=None, *, problem=None, steps=STEPS, aggregation="min", seed=0):
    """What ``await work(space)`` gives for a space of its own."""
    batcher = Batcher(policy, scorer)
    space = Space(
        problem or problems(1)[0], batcher, steps=steps, aggregation=aggregation, grader=GRADER, seed=seed
    )

    async def main():
        [found] = await batcher.run([work(space)])
        return found

    return asyncio.run(main())


__all__ = [
    "GRADER",
    "STEPS",
    "HashScorer",
    "ScriptedPolicy",
    "Watched",
    "chance",
    "full_tree",
    "in_space",
    "problems",
    "random_solver",
    "searched",
]
