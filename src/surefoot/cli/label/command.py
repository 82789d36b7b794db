"""``surefoot label``: one command for all ways to label, which are methods with their settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Self, TypeVar

import click
from pydantic import Field, model_validator

from surefoot.cli import options as o
from surefoot.cli.label.models import Critiques, JudgeLabels, JudgeScores, MonteCarlo, Tree
from surefoot.cli.label.rules import Advantage, ConsensusLabels, ExpertLabels, Method, Verify
from surefoot.cli.parser import FILE_ENDINGS
from surefoot.cli.runs import map_pieces
from surefoot.cli.settings import Command, Flag
from surefoot.policies.devices import Loading
from surefoot.policies.prompts import PromptFormat
from surefoot.protocols import Policy, Sampling
from surefoot.records import Record
from surefoot.spec import dashed, parse_method
from surefoot.work import Job, MapResult

R = TypeVar("R", bound=Record)

METHODS: Mapping[str, type[Method]] = MappingProxyType(
    {
        "mc": MonteCarlo,
        "tree": Tree,
        "judge": JudgeLabels,
        "judge-score": JudgeScores,
        "verify": Verify,
        "expert": ExpertLabels,
        "consensus": ConsensusLabels,
        "advantage": Advantage,
        "critiques": Critiques,
    }
)
"""Ways to label by name. To add one, write its settings class (:class:`Method`) and add a line here."""


METHOD = Flag(argument=True, metavar="METHOD[:SETTING=VALUE,…]", methods=lambda: METHODS)


class PolicyOptions(o.PolicySettings):
    """The language model that a method asks."""

    name: Annotated[str, Flag(name="--policy", common=True)] = ""
    """A checkpoint directory, a hub name (`owner/name@revision`), with `--base-url` the server's name of the
    model, or `lab` (for the small built-in world)."""


class SamplingOptions(o.SettingsGroup):
    """How the policy samples; by default as the method says."""

    temperature: float | None = Field(default=None, ge=0)
    """0 is greedy. Default: 1; critiques 0.1; judge 0 for one vote and 1 for several."""
    top_p: float | None = Field(default=None, ge=0, le=1)
    """Nucleus sampling: the smallest set of tokens with this probability. Default: 1."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Longest completion. Default: 512; judge 2048; critiques and judge-score 4096."""
    stop: tuple[str, ...] = ()
    """Generation ends right after the first of these texts, which stays in the completion."""

    def over(self, default: Sampling) -> Sampling:
        """``default`` with the values that the options give."""
        return Sampling(
            temperature=default.temperature if self.temperature is None else self.temperature,
            top_p=default.top_p if self.top_p is None else self.top_p,
            max_tokens=default.max_tokens if self.max_tokens is None else self.max_tokens,
            stop=self.stop or default.stop,
        )


class Label(Command):
    """Label steps: METHOD is a way to label with its settings, such as `mc:rollouts=8,estimate=hard`.

    FILE holds traces with steps; for `tree` it holds problems, and `--out` is a directory.
    Lists are joined by `+` (`verify:rules=equations+tool-calls`). A method refuses options that it does not
    use. If the command is stopped, the same command resumes.

    Example: `surefoot label traces.jsonl verify:rules=equations --problems problems.jsonl --out labels.jsonl`

    Example: `surefoot label traces.jsonl mc:rollouts=8 --problems problems.jsonl --policy lab --max-tokens 96
    --out labels.jsonl`

    Example: `surefoot label traces.jsonl judge:votes=3 --problems problems.jsonl --policy Qwen/Qwen3-8B
    --base-url http://localhost:8000/v1 --out labels.jsonl`

    Example: `surefoot label traces.jsonl consensus --problems problems.jsonl --labels mc=mc.jsonl
    --labels judge=judge.jsonl --out labels.jsonl`
    """

    file: Annotated[str, Flag(argument=True, transient=True, file=True)]
    """File of trace records with steps (of problem records for `tree`), or `-` for standard
    input."""
    method: Annotated[str, METHOD]
    problems: o.Problems = ""
    out: o.Out = "-"
    traces: Annotated[str, o.INPUT] = ""
    """More traces: for `expert` the experts'; for `tree` those that seed the trees; for `advantage`
    plain samples of the labels' policy, whose success rate is the value before the first step."""
    labels: Annotated[tuple[str, ...], o.INPUT] = ()
    """File of step labels, `NAME=FILE` if there are several: for `advantage` the values, for `consensus`
    two sources or more."""
    rules: Annotated[Path | None, o.INPUT] = None
    """Text file: a policy or specification that `judge` judges by."""
    specification: Annotated[str, Flag(transient=True, file=True)] = ""
    """JSON file of a specification; `judge` says whether the clause that a step cites exists and applies."""
    tool_policy: Annotated[str, o.INPUT] = ""
    """JSON file with a policy for `verify:rules=tool-calls` (`forbidden`, `rules`, `repeatable`,
    `read_only`), in addition to a problem's `meta.tool_policy`."""
    format: o.VerifierFormatFile = None
    policy: PolicyOptions = PolicyOptions()
    prompt: PromptFormat = PromptFormat()
    sampling: SamplingOptions = SamplingOptions()
    grading: o.GradingSettings = o.GradingSettings()
    loading: o.Models = Loading()
    sandbox: o.SandboxName = "bubblewrap"
    seed: o.Seed = 0
    token_budget: o.TokenBudget = None
    allow_uninformative: o.AllowUninformative = False
    retry_failed: o.RetryFailed = False
    dry_run: o.DryRun = False
    workers: o.Workers = 1
    engine: o.EngineName = "local"

    @cached_property
    def chosen(self) -> Method:
        """The method with its settings. Raises ``RunError`` for an unknown one."""
        return parse_method(self.method, METHODS, what="way to label")

    @property
    def name(self) -> str:
        """The method's name."""
        return dashed(self.method.partition(":")[0])

    @model_validator(mode="after")
    def _check(self) -> Self:
        method = self.chosen
        method.check_options(self, self.name, shared=("file", "method", "out"))
        if method.folder and self.out == "-":
            raise click.UsageError(f"--out is required by {self.name}, which writes a directory")
        if method.folder and (ending := Path(self.out).suffix) in FILE_ENDINGS:
            raise ValueError(f"--out {self.out} is a directory here: leave out {ending}")
        method.check(self)
        return self

    def resolved(self) -> dict[str, Any]:
        """The options that the method uses, and its settings."""
        config = {name: value for name, value in super().resolved().items() if self.chosen.uses((name,))}
        if any(field.startswith("sampling") for field in self.chosen.takes):
            config["sampling"] = asdict(self.sampled)
        return config | {"method": self.name, "role": self.chosen.role} | self.chosen.config(self)

    def outputs(self) -> list[Path]:
        """The method's files."""
        return [] if self.dry_run else self.chosen.outputs(self)

    def map(
        self,
        job: Job[R],
        items: Any,
        size: int,
        *,
        out: str | None = None,
        by_problem: bool = False,
        on_line: Callable[[bytes], object] | None = None,
    ) -> MapResult:
        """``map_pieces`` with the command's engine, budget and output."""
        return map_pieces(
            self,
            job,
            items,
            size,
            out or self.out,
            policy=self.policy,
            engine=o.open_engine(self.engine, self.workers, self.loading),
            token_budget=self.token_budget,
            retry_failed=self.retry_failed,
            by_problem=by_problem,
            on_line=on_line,
        )

    @property
    def sampled(self) -> Sampling:
        """How the policy samples."""
        return self.sampling.over(self.chosen.sampling)

    def open_policy(
        self, *, chat: bool, batch_size: int | None = None, extra_body: dict[str, Any] | None = None
    ) -> Policy:
        """The policy, with the ``batch_size`` of the method. Raises ``PolicyError``."""
        policy = self.policy
        if batch_size is not None and "batch_size" not in policy.model_fields_set:
            policy = policy.model_copy(update={"batch_size": batch_size})
        return policy.open(chat=chat, loading=self.loading, extra_body=extra_body)

    def run(self) -> None:
        """Label, or predict the cost."""
        self.chosen.run(self)
