"""``surefoot rl``: train a policy on step rewards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, model_validator

from surefoot import lab, models, policies
from surefoot import rl as r
from surefoot.cli import options as o
from surefoot.cli.runs import input_files, is_held_out, open_run, origin_of, read_table
from surefoot.cli.settings import Command, Flag, OptionGroup
from surefoot.cli.terminal import echo_wrapped, note
from surefoot.errors import RunError, counted
from surefoot.evaluation.report import Origin
from surefoot.labelling.specification import Specification
from surefoot.policies.devices import FLOAT32, LOADING, Loading
from surefoot.policies.prompts import PromptFormat
from surefoot.records import Message, Problem
from surefoot.rl.config import NOT_DECISIVE, RLConfig
from surefoot.scores import Aggregator
from surefoot.segment import segmenter
from surefoot.work import show_progress

if TYPE_CHECKING:
    from surefoot.rl.log import RLLog, UpdateRow

_JUDGE = ("names", "family", "calibrated", "verifier", "sandbox")
_LAB_PROBLEMS, _LAB_HELD_OUT, _LAB_SEED = 2_000, 300, 1_000_000


class TaskCommand(Command):
    """Trains a policy on problems: what reinforcement learning, cloning and expert iteration share."""

    problems: o.ProblemsArgument
    out: o.OutDirectory = Field(description="Run directory; the trained policy is its folder `policy`.")
    policy: str = Field(description="Policy to start from: `lab`, a checkpoint directory or a hub name.")
    held_out: Annotated[str | None, o.INPUT] = None
    """File of problems to evaluate on."""
    gold: o.Gold = ()
    loading: o.TrainedModels = LOADING
    prompt: PromptFormat = PromptFormat()
    segment: o.Segment = "line"
    grading: o.GradingSettings = o.GradingSettings()
    grade_reasoning: bool = False
    """Let the judges of steps read hidden reasoning, which they otherwise never see. A policy that is graded
    on it learns to hide its intentions there."""

    specification: o.SpecificationFile = None
    """JSON file of a specification that the policy shall follow without reading it: a training prompt that
    holds a clause of it is refused, and so is grading the reasoning."""

    @model_validator(mode="after")
    def _check_specification(self) -> Self:
        if self.specification and self.grade_reasoning:
            raise ValueError("'grade_reasoning' shows judges the reasoning, which must stay free here")
        return self

    @contextmanager
    def open_task(
        self,
        problems: Sequence[Problem],
        held_out: Sequence[Problem],
        judge: o.JudgeSettings,
        loading: Loading,
        **fields: Any,
    ) -> Iterator[r.Task]:
        """What is trained on, with judge, grader and verifiers open; these run programs in a sandbox."""
        if self.specification:
            prompts = (prompt_text(self.prompt.render(problem)) for problem in problems)
            Specification.of_file(self.specification).require_absent(prompts)
        gold = o.open_verifiers(self.gold, sandbox=judge.sandbox)
        with ExitStack() as stack:
            yield r.Task(
                problems=problems,
                held_out=held_out,
                segmenter=segmenter(self.segment),
                grader=stack.enter_context(self.grading.open()),
                prompt=self.prompt,
                scorer=stack.enter_context(judge.open(loading)),
                gold=stack.enter_context(gold) if self.gold else None,
                grade_reasoning=self.grade_reasoning,
                **fields,
            )


def prompt_text(prompt: str | Sequence[Message]) -> str:
    """All that a prompt says."""
    return prompt if isinstance(prompt, str) else "\n".join(str(message.content) for message in prompt)


class RL(TaskCommand):
    """Train a policy by reinforcement learning on step rewards, on outcomes, or on both.

    Step scores come from a reward model (`--prm`) or from rules (`--verifier`); the credit rule turns them
    into rewards, and the estimator subtracts a baseline: `--credit min-form:temperature=0.2,outcome=1
    --advantage leave-one-out:baseline=token`. Held-out problems are sampled every few updates; `--gold`
    counts wrong steps there by a rule that the reward does not see. Guards watch for reward hacking and can
    end the run. The optimiser, the loss and the guards are set in a `--config` file.

    With `--environment` a rollout is an episode of several turns, and the environment says what came of it;
    a turn is a step. A policy in this process needs a chat template, and the environment receives its
    text; one behind a vLLM server (`--base-url`) can call tools.

    If the command is stopped, the same command resumes and gives the same curve. On several processes:
    `accelerate launch -m surefoot rl ...`

    Example: `surefoot rl lab --policy lab --credit min-form --verifier lab --gold lab --out rl`

    Example: `surefoot rl --credit pure --policy Qwen/Qwen2.5-Math-7B --prm Qwen/Qwen2.5-Math-PRM-7B
    train.jsonl --chat --learning-rate 1e-6 --config rl.toml --out rl`
    """

    problems: o.ProblemsArgument
    """File of problem records, or `lab`: problems of the lab's world."""
    validation: float = Field(default=0.1, ge=0, le=0.9)
    """Share of the problems to hold out, without `--held-out`."""
    environment: str | None = None
    """World of several turns, as `module:Class`; one of calls needs `--base-url`."""
    max_turns: int = Field(default=30, ge=1)
    """Most turns of an episode; `--max-tokens` limits each turn."""
    loading: o.TrainedModels = FLOAT32
    aggregate: Annotated[Aggregator, Flag(omit=True)] = "min"
    """How step scores become the proxy that the curves show."""
    judge: Annotated[
        o.JudgeSettings, OptionGroup(title="Reward", only=_JUDGE, common=("names", "verifier"))
    ] = o.JudgeSettings()
    rl: Annotated[
        RLConfig,
        OptionGroup(
            title="Training",
            only=(
                *("credit", "advantage", "updates", "problems", "samples", "max_tokens"),
                *("learning_rate", "lora.rank", "objective.kl.coefficient", "seed", "evaluate_every"),
            ),
            names={
                "problems": "--round-problems",
                "samples": "--samples -n",
                "lora.rank": "--lora",
                "objective.kl.coefficient": "--kl",
            },
            common=("credit", "advantage", "updates", "learning_rate"),
            # an unfinished run may be made longer or shorter
            transient=(*NOT_DECISIVE, "updates"),
        ),
    ] = RLConfig()
    base_url: str | None = None
    """vLLM server that writes the rollouts and takes new weights, with `/v1`."""
    server_model: str | None = None
    """The server's name for the policy, with `--base-url`."""
    concurrency: Annotated[int, Flag(transient=True, omit=True)] = Field(default=16, ge=1)
    """Requests in flight at the server."""
    timeout: Annotated[float, Flag(transient=True, omit=True)] = Field(default=120.0, ge=1)
    """Seconds for one whole call to the server, without its retries."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.environment is not None and self.problems == "lab":
            raise ValueError("'environment' needs its own 'problems': the lab's are not its tasks")
        if bool(self.base_url) != (self.server_model is not None):
            raise ValueError("'base_url' and 'server_model' go together: one needs the other")
        return self

    def run(self) -> None:
        input_files(self)  # before torch is imported, which takes seconds: a file may be missing
        with self.task() as task, open_run(self) as run:
            task.check(self.rl)
            if run is not None and run.done("rl"):
                _report_finished(self.out, run.result("rl"), self.rl.updates)
                return
            model, tokenizer = models.load_causal(o.lab_policy(self.policy), self.loading)
            with show_progress() as progress:

                def show(done: int, total: int, _row: UpdateRow) -> None:
                    progress("rl", done, total)

                log = r.train_policy(
                    model, tokenizer, task, self.rl, self.out, server=self._server(), progress=show
                )
            if run is not None:
                from surefoot.rl.report import write_report

                write_report(
                    log,
                    self.out / "report.html",
                    samples=self.out / "samples",
                    settings=self.rl.model_dump(mode="json"),
                    origin=origin_of(self, "curves.jsonl"),
                )
                channels = log.channels and log.channels.model_dump(mode="json")
                done: Any = {"updates": len(log.updates), "stopped": log.stopped, "channels": channels}
                run.finish("rl", done)
                _report(self.out, log)

    def task(self) -> AbstractContextManager[r.Task]:
        """What is learned. Raises ``RunError``."""
        environment = policies.load_environment(self.environment) if self.environment else None
        if environment is not None and environment().tools and not self.base_url:
            raise RunError(
                f"--environment {self.environment} takes calls of its tools, which a model in this process "
                "does not make: let a vLLM server sample (--base-url), or give one that reads texts"
            )
        return self.open_task(
            *self._problems(),
            self.judge,
            self.loading.as_saved(),
            aggregation=self.aggregate,
            environment=environment,
            max_turns=self.max_turns,
        )

    def _problems(self) -> tuple[list[Problem], Sequence[Problem]]:
        """Problems to train on, and held-out ones."""
        separate = read_table(self.held_out, Problem) if self.held_out else []
        if self.problems == "lab":
            held_out = separate or lab.generate_problems(_LAB_HELD_OUT, seed=_LAB_SEED)
            return lab.generate_problems(_LAB_PROBLEMS, seed=self.rl.seed, exclude=held_out), held_out
        problems = read_table(self.problems, Problem)
        if separate:
            held_out_ids = {problem.id for problem in separate}
            training = [problem for problem in problems if problem.id not in held_out_ids]
            if overlap := len(problems) - len(training):
                note(f"{counted(overlap, 'problem is', 'problems are')} held out and not trained on")
            return training, separate
        sides: tuple[list[Problem], list[Problem]] = ([], [])
        for problem in problems:
            sides[is_held_out(problem.id, self.validation)].append(problem)
        if not all(sides):
            raise RunError(
                f"--validation {self.validation:g} of {len(problems)} problems leaves one side empty"
            )
        return sides

    def _server(self) -> r.Server | None:
        """The server that writes the rollouts, if there is one."""
        if not self.base_url or self.server_model is None:
            return None
        from surefoot.policies.probe import list_models

        list_models(self.base_url)  # not whether the model is there: an adapter is published only later
        policy = policies.OpenAIPolicy(
            model=self.server_model,
            base_url=self.base_url,
            mode="chat" if self.prompt.chat or self.environment is not None else "completions",
            dialect="vllm",
            concurrency=self.concurrency,
            timeout_s=self.timeout,
        )
        publisher = r.ServerWeights(model=self.server_model, base_url=self.base_url)
        return r.Server(policy=policy, publisher=publisher)


def _report_finished(out: Path, result: dict[str, Any], updates: int) -> None:
    """Raises ``RunError`` if more updates are wanted than there were: the checkpoint is gone."""
    if not result["stopped"] and result["updates"] < updates:
        raise RunError(
            f"{out} is finished with {result['updates']} updates: train on from --policy {out / 'policy'}, "
            "with another --out"
        )
    note(f"{out} is finished already")


def _report(out: Path, log: RLLog) -> None:
    """The first screen of the report, on standard error."""
    from surefoot.rl.report import first_screen

    for line in first_screen(log, Origin()).lines():
        echo_wrapped(line, indent="  ", err=True)
    note(str(log.channels))
    note(f"policy: {out / 'policy'}; curves: {out / 'report.html'}")
