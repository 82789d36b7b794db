"""``surefoot reward``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated, Self

from pydantic import Field, model_validator

from surefoot.cli import options as o
from surefoot.cli.runs import ScoreFile, read_table
from surefoot.cli.settings import Command, Flag
from surefoot.cli.terminal import note
from surefoot.errors import RunError
from surefoot.io.files import write_lines
from surefoot.records import StepScores, Trace, as_json
from surefoot.rl.turn_rewards import Engine, TurnRule, reward_row, turn_rewards


class Reward(Command):
    """Turn step labels and scores of agent runs into one reward, or null, for every turn.

    A turn is one message of the agent, the last answer included. Where a step has a label with a value, the
    label counts; elsewhere its score. Labels become numbers in [0, 1]: wrong 0, neutral ½, right 1. A turn
    that cannot be judged is null, and in the formats of engines that need a number the lowest of all runs or
    0, so that unknown is never better than failed.

    Example: `surefoot reward runs.jsonl --labels labels.jsonl --out rewards.jsonl`
    Example: `surefoot reward runs.jsonl --scores scores.jsonl --rule mean --to prime-rl --out traces.jsonl`
    """

    runs: Annotated[str, Field(description="File of agent runs."), Flag(argument=True, file=True)]
    labels: o.Labels | None = None
    scores: Annotated[str | None, o.INPUT] = None
    """File of step scores."""
    rule: Annotated[TurnRule, Flag(common=True)] = "lowest"
    """How the steps of a turn become its reward: the lowest; the last; their mean; or 1 before the first
    wrong step's turn, 0 there, null after it."""
    to: Annotated[Engine, Flag(common=True)] = "jsonl"
    """Lines of JSON with ids and rewards; columns for TRL; `extra_info` of verl; `env_extras` of SkyRL; or
    verifiers' traces with `info["turn_rewards"]`, which prime-rl reads."""
    out: Annotated[str, Flag(short="-o", transient=True, output=True)] = "-"
    """File to write (`.jsonl`, `.jsonl.gz`), or `-` for standard output."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.labels is None and self.scores is None:
            raise ValueError("give 'labels', 'scores' or both")
        return self

    def run(self) -> None:
        counts: Counter[str] = Counter()
        write_lines(self.out, self._lines(counts))
        turns, unknown = counts["turns"], counts["unknown"]
        fate = "null" if self.to in ("jsonl", "prime-rl") else "the lowest of all runs or 0"
        note(
            f"{turns - unknown} of {turns} turns of {counts['runs']} runs have a reward by the rule "
            f"{self.rule!r}; {unknown} are unknown and {fate}"
        )
        if counts["texts"]:
            note(f"{counts['texts']} traces are texts, not runs, and are left out")

    def _lines(self, counts: Counter[str]) -> Iterator[bytes]:
        sources = [ScoreFile(path) for path in (self.labels, self.scores) if path is not None]
        traces = read_table(self.runs, Trace)

        def rewarded() -> Iterator[tuple[Trace, list[float | None]]]:
            for trace in traces:
                if trace.messages:
                    scores = _first_known([source.of([trace])[0] for source in sources], len(trace.steps))
                    yield trace, turn_rewards(trace, scores, self.rule)

        runs = rewarded() if self.to != "jsonl" else ()  # JSON lines keep null, the others need numbers
        values = (reward for _, rewards in runs for reward in rewards if reward is not None)
        worst = min(values, default=0.0)
        for trace, rewards in rewarded():
            counts.update(runs=1, turns=len(rewards), unknown=rewards.count(None))
            row = reward_row(trace, rewards, self.to, worst=min(worst, 0.0))
            yield as_json(row).encode("utf-8", "surrogatepass") + b"\n"
        counts["texts"] = len(traces) - counts["runs"]
        if counts["turns"] == counts["unknown"]:  # raised here, so that no file is written
            raise RunError(
                f"no turn of {counts['runs']} runs got a reward: no step of them has a label or score"
            )


def _first_known(records: Sequence[StepScores | None], steps: int) -> list[float | None]:
    """For each step the first record's score that is known."""
    rows = [record.scores for record in records if record is not None]
    return [next((row[at] for row in rows if row[at] is not None), None) for at in range(steps)]
