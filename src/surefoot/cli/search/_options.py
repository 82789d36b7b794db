"""Options that the ``search`` commands share, and what they make."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from surefoot.cli import _options as o

if TYPE_CHECKING:
    from surefoot.models.scorer import CheckpointScorer
    from surefoot.protocols import Policy
    from surefoot.scores import Aggregator
    from surefoot.search.space import Steps

Prm = Annotated[
    str,
    typer.Option("--prm", "-m", help="Checkpoint directory or hub name of the reward model of steps."),
]
Family = Annotated[
    str | None,
    typer.Option("--family", help="Published family, where name and files do not tell, e.g. qwen-prm."),
]
Calibrated = Annotated[
    bool, typer.Option("--calibrated", help="Put scores through the checkpoint's calibration.json.")
]
Aggregate = Annotated[
    str | None,
    typer.Option(
        "--aggregate", help="Step scores to one number: min, product, last or mean; else the checkpoint's."
    ),
]
Separator = Annotated[
    str, typer.Option("--separator", help=r"Text that ends a step; \n is a line break, \t a tab.")
]
StepSegment = Annotated[
    str | None,
    typer.Option(
        "--segment", help="How what is written in one piece is cut (see sample); after each separator if not."
    ),
]
StepTokens = Annotated[int, typer.Option("--step-tokens", min=1, help="Longest step; it is cut there.")]
MaxSteps = Annotated[
    int, typer.Option("--max-steps", min=1, help="Steps after which the rest is written in one piece.")
]
InFlight = Annotated[int, typer.Option("--in-flight", min=1, help="Problems searched at the same time.")]
Remember = Annotated[
    str,
    typer.Option(
        "--remember",
        help="Memory for keys and values of what was read, for policy and reward model each, where they run "
        "in this process: 500MB, 2GB, 1.5GiB; 0 = read all again.",
    ),
]
Trees = Annotated[
    str | None, typer.Option("--trees", help="File for the trees, to draw (.jsonl, .jsonl.gz, .parquet).")
]
Lookahead = Annotated[
    int, typer.Option("--lookahead", min=0, help="Greedy steps to write before a prefix is judged.")
]
PenalizeRepeats = Annotated[
    bool,
    typer.Option("--penalize-repeats/--allow-repeats", help="Put a step that its solution has already last."),
]
Rule = Annotated[
    Literal["best_of_n", "weighted_vote", "majority", "first"],
    typer.Option(
        "--rule", help="Who is chosen of the solutions: best_of_n, weighted_vote, majority or first."
    ),
]


@dataclass(frozen=True, kw_only=True)
class FileOptions:
    """What is read and written, and what may be spent on it."""

    problems: o.Problems
    out: o.Out = "-"
    trees: Trees = None
    seed: o.Seed = 0
    in_flight: InFlight = 32
    extract: o.Extract = "boxed,hash,phrase,last_number"
    equality: o.Equality = "math"
    token_budget: o.TokenBudget = None
    time_budget: o.TimeBudget = None


@dataclass(frozen=True, kw_only=True)
class PolicyOptions:
    """Who writes the steps, and how."""

    policy: o.PolicyName = "lab"
    base_url: o.BaseUrl = None
    dialect: o.Dialect = "openai"
    chat: o.Chat = False
    system: o.System = None
    template: o.Template = "{problem}\n"
    temperature: o.Temperature = 0.8
    top_p: o.TopP = 1.0
    max_tokens: o.MaxTokens = 2048
    separator: Separator = r"\n"
    segment: StepSegment = None
    step_tokens: StepTokens = 256
    max_steps: MaxSteps = 40
    concurrency: o.Concurrency = 16
    timeout: o.Timeout = 120.0
    batch_size: o.BatchSize = 256
    device: o.Device = "cpu"
    remember: Remember = "2GB"

    def steps(self) -> Steps:
        """How solutions are written. Raises ``ValueError``, or ``ValidationError`` (pydantic)."""
        from surefoot.policies.prompts import PromptFormat
        from surefoot.protocols import Sampling
        from surefoot.search.space import Steps
        from surefoot.segment import segmenter

        return Steps(
            separator=self.separator.replace(r"\n", "\n").replace(r"\t", "\t"),
            segmenter=segmenter(self.segment) if self.segment else None,
            step_tokens=self.step_tokens,
            max_steps=self.max_steps,
            sampling=Sampling(temperature=self.temperature, top_p=self.top_p, max_tokens=self.max_tokens),
            prompt=PromptFormat(template=self.template, chat=self.chat, system=self.system),
        )

    def memory(self) -> int:
        """Bytes that policy and reward model may keep each. Raises ``RunError``."""
        from surefoot.cli.search._remember import parse_size

        return parse_size(self.remember)

    def open(self) -> Policy:
        """The policy. Raises ``PolicyError``."""
        from surefoot.cli._shared import open_policy

        return open_policy(
            self.policy,
            base_url=self.base_url,
            dialect=self.dialect,
            chat=self.chat,
            concurrency=self.concurrency,
            timeout=self.timeout,
            batch_size=self.batch_size,
            device=self.device,
        )


@dataclass(frozen=True, kw_only=True)
class PrmOptions:
    """What scores the steps, and how its scores become one number."""

    prm: Prm
    family: Family = None
    calibrated: Calibrated = False
    aggregate: Aggregate = None

    def aggregation(self) -> Aggregator | None:
        """The rule asked for. Raises ``ScoreError`` for an unknown one."""
        from surefoot.errors import ScoreError
        from surefoot.scores import AGGREGATORS

        found = next((rule for rule in AGGREGATORS if rule == self.aggregate), None)
        if self.aggregate is not None and found is None:
            raise ScoreError(f"--aggregate is {self.aggregate!r}; choose from {', '.join(AGGREGATORS)}")
        return found

    def open(self, device: str) -> CheckpointScorer:
        """The reward model. Raises ``CheckpointError``."""
        from surefoot.models.loading import load_prm

        return load_prm(self.prm, family=self.family, calibrated=self.calibrated, device=device)
