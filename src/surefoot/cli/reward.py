"""``surefoot reward``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Self

from pydantic import Field, model_validator

from surefoot.cli import options as o
from surefoot.cli.runs import read_step_scores, read_table
from surefoot.cli.settings import Command, Flag
from surefoot.cli.terminal import note, note_count
from surefoot.errors import RunError, counted
from surefoot.evaluation.columns import StepLayout
from surefoot.io.files import write_lines
from surefoot.records import Trace, as_json
from surefoot.rl.turn_rewards import Engine, TurnRule, is_signed, reward_row, turn_rewards


class Reward(Command):
    """Turn step labels and scores of agent runs into one reward, or null, for every turn.

    A turn is one message of the agent, the last answer included. Where a step has a label with a value, the
    label decides; elsewhere its score. All are numbers from 0 to 1: a wrong step's label is 0, a neutral one
    ½, a right one 1; scores of a file that has one below 0 go from -1 to 1, and s becomes (1 + s) / 2. A turn
    that cannot be judged is null, and 0 in the formats of engines that need a number, so that unknown is
    never better than failed.

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
        fate = "null" if self.to in ("jsonl", "prime-rl") else "0, as if they had failed"
        note(
            f"{turns - unknown} of {counted(turns, 'turn')} of {counted(counts['runs'], 'run')} rewarded by "
            f"{self.rule!r}; {unknown} unknown and {fate}"
        )
        note_count(counts["texts"], "trace", "left out: a text, not a run")

    def _lines(self, counts: Counter[str]) -> Iterator[bytes]:
        traces = read_table(self.runs, Trace)
        layout = StepLayout.of(traces)
        files = [read_step_scores(path, layout) for path in (self.labels, self.scores) if path is not None]
        signed = [is_signed(file.lowest, file.highest) for file in files]
        if any(signed):
            note("the scores are signed, so that -1 counts as 0, 0 as 0.5 and 1 as 1")
        for number, trace in enumerate(traces):
            if not trace.messages:
                counts["texts"] += 1
                continue
            scores: list[float | None] = [None] * len(trace.steps)
            for file, is_from_minus_one in zip(files, signed, strict=True):  # labels first: they decide
                for step, score in enumerate(file.of(number) or ()):
                    if scores[step] is None and score is not None:
                        scores[step] = (1 + score) / 2 if is_from_minus_one else score
            rewards = turn_rewards(trace, scores, self.rule)
            counts.update(runs=1, turns=len(rewards), unknown=rewards.count(None))
            yield as_json(reward_row(trace, rewards, self.to)).encode("utf-8", "surrogatepass") + b"\n"
        if counts["turns"] == counts["unknown"]:  # raised here, so that no file is written
            raise RunError(
                f"no turn of {counts['runs']} runs got a reward: no step of them has a label or score"
            )
