"""What ``surefoot rl`` is to learn, who judges it, and who draws its rollouts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from surefoot.cli._options import ReadingOptions
    from surefoot.cli._rl_options import RLOptions
    from surefoot.records import Problem
    from surefoot.rl.task import Server, Task

_LAB_PROBLEMS, _LAB_HELD_OUT, _LAB_SEED = 2_000, 300, 1_000_000


@contextmanager
def open_task(options: RLOptions, reading: ReadingOptions, seed: int) -> Iterator[Task]:
    """What is learned, with the grader and the verifiers open. Raises ``RunError``."""
    from surefoot.cli._shared import choice, grader
    from surefoot.cli._step_judges import step_scorer, verifiers
    from surefoot.rl.task import Task
    from surefoot.scores import AGGREGATORS
    from surefoot.segment import segmenter

    choice("--aggregate", options.aggregate, *AGGREGATORS, "sum")
    prompt = reading.prompt()
    train, held_out = _problems(options, seed)
    with ExitStack() as stack:
        yield Task(
            problems=train,
            held_out=held_out,
            segmenter=segmenter(reading.segment),
            grader=stack.enter_context(grader(reading.extract, reading.equality)),
            prompt=prompt,
            scorer=step_scorer(
                stack,
                prm=options.prm,
                family=options.family,
                verifier=options.verifier,
                device=options.device,
                calibrated=options.calibrated,
            ),
            gold=verifiers(stack, options.gold) if options.gold else None,
            aggregation=options.aggregate,  # type: ignore[arg-type]
        )


def open_server(options: RLOptions, *, chat: bool) -> Server | None:
    """Of ``--base-url``, if one is to draw the rollouts. Raises ``RunError``."""
    from surefoot.errors import RunError
    from surefoot.policies.openai import OpenAIPolicy
    from surefoot.rl.server_weights import ServerWeights
    from surefoot.rl.task import Server

    if (options.base_url is None) != (options.server_model is None):
        raise RunError("--base-url and --server-model go together: one needs the other")
    if options.base_url is None or options.server_model is None:
        return None
    policy = OpenAIPolicy(
        model=options.server_model,
        base_url=options.base_url,
        mode="chat" if chat else "completions",
        dialect="vllm",
        concurrency=options.concurrency,
        timeout_s=options.timeout,
    )
    return Server(
        policy=policy, publisher=ServerWeights(model=options.server_model, base_url=options.base_url)
    )


def _problems(options: RLOptions, seed: int) -> tuple[list[Problem], list[Problem]]:
    """Problems to train on, and held-out ones."""
    from surefoot.cli._shared import is_held_out, read_all
    from surefoot.errors import RunError
    from surefoot.lab.world import generate_problems
    from surefoot.records import Problem

    given = read_all(options.held_out, Problem) if options.held_out else []
    if options.problems == "lab":
        held_out = given or generate_problems(_LAB_HELD_OUT, seed=_LAB_SEED)
        return generate_problems(_LAB_PROBLEMS, seed=seed, exclude=held_out), held_out
    found = read_all(options.problems, Problem)
    if given:
        known = {problem.id for problem in given}
        left = [problem for problem in found if problem.id not in known]
        if len(left) < len(found):
            typer.echo(f"{len(found) - len(left)} problems are held out, and not trained on", err=True)
        return left, given
    held_out = [problem for problem in found if is_held_out(problem.id, options.validation)]
    if not held_out or len(held_out) == len(found):
        raise RunError(f"--validation {options.validation:g} of {len(found)} problems leaves one side empty")
    kept = {problem.id for problem in held_out}
    return [problem for problem in found if problem.id not in kept], held_out
