"""``surefoot imitate`` and ``surefoot expert-iteration``: policies fine-tuned in rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, model_validator

from surefoot.cli import options as o
from surefoot.cli.rl import open_task
from surefoot.cli.settings import Command, Flag, OptionGroup
from surefoot.cli.terminal import echo
from surefoot.policies.devices import LOADING, Loading
from surefoot.policies.prompts import PromptFormat
from surefoot.rl.config import ExpertIterationConfig, ImitationConfig

if TYPE_CHECKING:
    from surefoot.io import Run
    from surefoot.protocols import Policy
    from surefoot.records import Problem
    from surefoot.rl.imitation import Expert
    from surefoot.rl.rollouts import Task
    from surefoot.rl.rounds import Progress, RoundRow
    from surefoot.training.sft import Demonstration

EXACT = "lab-exact"
"""Name of the solver of the lab's world that makes no error."""

ROUNDS = OptionGroup(
    title="Rounds",
    names={
        "problems": "--round-problems",
        "batch_size": "--decode-batch",
        "training.lora.rank": "--lora",
        "training.lora.targets": "--lora-target",
    },
    omit=("training.seed",),  # the run's counts
    transient=("batch_size",),
)


class RoundsCommand(Command):
    """What both commands have: problems, a policy to start from, a run directory."""

    problems: o.ProblemsArgument
    out: o.OutDirectory = Field(
        description="Run directory; it holds `policy` (the best round) and `round-N`."
    )
    policy: str = Field(description="Policy to start from: `lab`, a checkpoint directory or a hub name.")
    held_out: Annotated[str | None, o.INPUT] = Field(
        default=None,
        description="File of problems to evaluate on after every round; they choose the best one.",
    )
    gold: o.Gold = ()
    loading: o.TrainedModels = LOADING
    prompt: PromptFormat = PromptFormat()
    segment: o.Segment = "line"
    grading: o.GradingSettings = o.GradingSettings()

    def train(
        self,
        name: str,
        judge: o.JudgeSettings,
        work: Callable[[Run, Task, Progress], list[RoundRow]],
        **files: str | None,
    ) -> None:
        """Run ``work`` in the run directory, and report its rounds."""
        from surefoot.cli.runs import file_inputs, read_table, require_one_process
        from surefoot.io import Run
        from surefoot.records import Problem
        from surefoot.work import progress_bars

        require_one_process(name)
        problems = read_table(self.problems, Problem)
        held_out = read_table(self.held_out, Problem) if self.held_out else ()
        inputs = file_inputs(problems=self.problems, held_out=self.held_out, **files) | judge.files()
        with (
            open_task(self, problems, held_out, judge, self.loading) as task,
            Run.open(self.out, command=name, config=self.resolved(), inputs=inputs) as run,
            progress_bars() as progress,
        ):
            rows = work(run, task, progress)
        report_rounds(self.out, rows)


class ExpertSettings(o.PolicySettings):
    """The expert."""

    name: Annotated[str | None, Flag(name="--expert")] = Field(  # type: ignore[assignment]
        default=None,
        description=f"Policy to ask in the policy's own states: `{EXACT}`, a checkpoint, a hub name or, with "
        "`--base-url`, the server's model.",
    )
    chat: Annotated[bool, Flag(name="--expert-chat")] = Field(
        default=False, description="Send the expert's prompt through its chat template."
    )
    temperature: Annotated[float, Flag(name="--expert-temperature")] = Field(
        default=0.0, ge=0, description="Sampling temperature of the expert; 0 is greedy."
    )
    stop: tuple[str, ...] = Field(
        default=(), description=r"Text at which the expert stops, such as `\n`: one step per request."
    )

    def policy(self, loading: Loading) -> Policy:
        """The expert."""
        from surefoot.lab.solver import NoisySolver

        if self.name == EXACT and not self.base_url:
            return NoisySolver(error_rate=0.0, name=EXACT)
        return self.open(chat=self.chat, loading=loading)


class Imitate(RoundsCommand):
    """Train a policy to take an expert's steps: behaviour cloning of traces, or DAgger with an expert.

    With `--traces` the policy learns their steps (with `--labels` only the good ones). With `--expert` the
    policy writes solutions, the expert gives its own action at each step, and the policy learns it;
    with both, the traces come first. If the command is stopped, the same command resumes.

    Example: `surefoot imitate p.jsonl --traces solutions.jsonl --policy lab --out cloned`

    Example: `surefoot imitate p.jsonl --policy lab --expert lab-exact --rounds 4 --held-out test.jsonl
    --gold lab --out dagger`
    """

    traces: Annotated[str | None, o.INPUT] = Field(
        default=None, description="File of the expert's traces with steps, to clone."
    )
    labels: Annotated[str | None, o.INPUT] = Field(
        default=None, description="File of step labels: only good steps are cloned."
    )
    threshold: float = Field(
        default=0.5, ge=0, le=1, description="A step with a higher value than this is good."
    )
    sandbox: o.SandboxName = "bubblewrap"
    expert: Annotated[ExpertSettings, OptionGroup(omit=("batch_size",))] = ExpertSettings()
    rounds: Annotated[ImitationConfig, ROUNDS] = ImitationConfig()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.traces is None and self.expert.name is None:
            raise ValueError("nothing to imitate: give 'traces', or 'expert', or both")
        if self.labels and not self.traces:
            raise ValueError("'labels' are of 'traces': give both")
        return self

    def run(self) -> None:
        """Clone, then follow the expert."""
        from surefoot.rl.imitation import imitate

        def work(run: Run, task: Task, progress: Progress) -> list[RoundRow]:
            return imitate(
                run,
                o.lab_policy(self.policy),
                task,
                self.rounds,
                progress,
                demonstrations=self._demonstrations(task.problems),
                expert=self._expert(),
                loading=self.loading,
            )

        judge = o.JudgeSettings(sandbox=self.sandbox)
        self.train("imitate", judge, work, traces=self.traces, labels=self.labels)

    def _expert(self) -> Expert | None:
        from surefoot.protocols import Sampling
        from surefoot.rl.imitation import Expert

        if self.expert.name is None:
            return None
        return Expert(
            policy=self.expert.policy(self.loading),
            prompt=PromptFormat(template=self.prompt.template, chat=self.expert.chat),
            sampling=Sampling(
                temperature=self.expert.temperature,
                max_tokens=self.rounds.max_tokens,
                stop=tuple(map(o.unescaped, self.expert.stop)),
            ),
        )

    def _demonstrations(self, problems: Sequence[Problem]) -> list[Demonstration]:
        """What is cloned of the files; the rest is counted on standard error."""
        if self.traces is None:
            return []
        from surefoot.cli.runs import labelled, pair, read_table
        from surefoot.labelling.expert import expert_traces
        from surefoot.records import StepLabel, Trace
        from surefoot.training.sft import demonstrate, good_steps

        traces = read_table(self.traces, Trace)
        if self.labels:
            items = labelled(problems, traces, read_table(self.labels, StepLabel))
            cloned = [demonstrate(item.trace, good_steps(item, threshold=self.threshold)) for item in items]
            if bare := sum(not item.steps for item in cloned):
                echo(f"{bare} traces left out: none of their steps is labelled good", err=True)
            return [item for item in cloned if item.steps]
        by_problem, left_out = expert_traces(item.trace for item in pair(problems, traces))
        for reason, count in left_out.items():
            echo(f"{count} traces left out: {reason}", err=True)
        return [demonstrate(trace) for of_problem in by_problem.values() for trace in of_problem]


class ExpertIteration(RoundsCommand):
    """Train a policy on its good solutions, in rounds (expert iteration, STaR, ReST-EM).

    In each round the policy writes solutions and learns from different ones with the correct answer. By the
    answer alone, it also learns lucky answers after a wrong step; `--prm` or `--verifier` keep out solutions
    with a bad step. Problems need an answer. If the command is stopped, the same command resumes.

    Example: `surefoot expert-iteration p.jsonl --policy lab --prm prm --threshold 0.5
    --held-out test.jsonl --gold lab --out iterated`
    """

    judge: o.JudgeSettings = o.JudgeSettings()
    rounds: Annotated[ExpertIterationConfig, ROUNDS] = ExpertIterationConfig()

    @model_validator(mode="before")
    @classmethod
    def _default_threshold(cls, settings: Any) -> Any:
        """A judge without a threshold has 0.5; without a judge there is nothing to compare."""
        judge = settings.get("judge") or {}
        rounds = settings.get("rounds") or {}
        if isinstance(judge, dict) and isinstance(rounds, dict):
            judged = bool(judge.get("names") or judge.get("verifier"))
            return {
                **settings,
                "rounds": {**rounds, "threshold": rounds.get("threshold", 0.5) if judged else None},
            }
        return settings

    def run(self) -> None:
        """Sample, select and fine-tune."""
        from surefoot.rl.rounds import iterate

        def work(run: Run, task: Task, progress: Progress) -> list[RoundRow]:
            start = o.lab_policy(self.policy)
            return iterate(run, start, task, self.rounds, progress, loading=self.loading)

        self.train("expert-iteration", self.judge, work)


def report_rounds(out: Path, rows: Sequence[RoundRow]) -> None:
    """A line per round on standard error: steps learned, accuracy, dropped traces."""
    for row in rows:
        parts = []
        if row.round:
            loss = "" if row.loss is None else f", loss {row.loss:.4f}"
            parts.append(f"{row.sampled} solutions written, {row.decisions} steps learned{loss}")
        if row.evaluation:
            correct, wrong = row.evaluation.accuracy, row.evaluation.trace_error
            parts.append(f"accuracy {correct:.1%}")
            if wrong:
                parts.append(f"trace error {wrong:.1%}")
        if parts:
            echo(f"round {row.round}: {'; '.join(parts)}", err=True)
        for reason, count in row.dropped.items():
            echo(f"  left out: {count} {reason}", err=True)
    echo(f"policy: {out / 'policy'}, {_choice(rows)}", err=True)


def _choice(rows: Sequence[RoundRow]) -> str:
    """Which round it is of, and why."""
    from surefoot.rl.rounds import best_round

    best, start = best_round(rows), rows[0].evaluation
    if best.evaluation is None or start is None:
        return f"of round {best.round}, the last: give --held-out to choose the best"
    message = (
        f"of round {best.round}, the best on the {best.evaluation.problems} held-out problems; they chose "
        "it, so measure it on others"
    )
    if best.evaluation.accuracy.value <= start.accuracy.value:
        message += f"; no round is better than the policy it started from ({start.accuracy:.1%})"
    return message
