"""``surefoot label judge`` and ``surefoot label critiques``: language models review steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, model_validator

from surefoot.cli import options as o
from surefoot.cli.label.command import LabelCommand, usable, with_answer
from surefoot.cli.runs import connections, map_pieces, predict_usage, say_prediction
from surefoot.cli.settings import Flag, OptionGroup, fill
from surefoot.cli.terminal import note
from surefoot.errors import LabelError
from surefoot.labelling.judge import JudgeMode, JudgePrompt
from surefoot.policies.devices import Loading
from surefoot.protocols import Labeller, ProblemTrace, Sampling
from surefoot.work import Job
from surefoot.work.cost import Rates

if TYPE_CHECKING:
    from surefoot.training.critiques import TraceCritiques


class CriticSettings(o.PolicySettings):
    """The language model that reviews."""

    batch_size: Annotated[int, Flag(transient=True)] = Field(default=16, ge=1)
    """Samples decoded together in this process."""


class ReviewCommand(LabelCommand):
    """A language model reviews each trace several times."""

    policy: CriticSettings
    seed: o.Seed = 0
    token_budget: o.TokenBudget = None
    loading: o.Models = Loading()
    retry_failed: o.RetryFailed = False
    dry_run: o.DryRun = False
    rates: o.CostRates = Rates()

    def say_reviews(
        self, items: Sequence[ProblemTrace], text_of: Callable[[ProblemTrace], str], what: str, replies: int
    ) -> None:
        """Show the predicted cost of ``replies`` to each prompt."""
        sampling: Sampling = getattr(self, "sampling")  # noqa: B009  (each command declares its own)
        usage = predict_usage(items, text_of, replies=replies, max_tokens=sampling.max_tokens)
        say_prediction(f"{len(items):,} traces, {replies} {what} each", usage, self.rates)


class Judge(ReviewCommand):
    """Label steps by asking a language model for a critique (LLM as a judge).

    The labels say whether a step is correct (+1), neutral (0) or wrong (-1). Refused, truncated or
    malformed replies are counted and ignored.

    Example: `surefoot label judge traces.jsonl --problems problems.jsonl --policy Qwen/Qwen3-8B
    --base-url http://localhost:8000/v1 --out labels.jsonl`
    """

    mode: JudgeMode = "per-step"
    """Ask for a verdict on each step, or for the first error alone."""
    votes: Annotated[int, Flag(short="-k")] = Field(default=1, ge=1, description="Replies per trace.")
    rules: Annotated[Path | None, o.INPUT] = None
    """Text file: a policy or specification to judge by."""
    show_answer: bool = Field(default=False, description="Show the judge the problem's reference answer.")
    name_failures: bool = False
    """Let the judge name the kind of failure of each wrong step of an agent."""
    structured: bool | None = None
    """Make the server enforce a JSON schema; by default with `--base-url`."""
    temperature: float | None = Field(default=None, ge=0)
    """0 is greedy; by default 0 for one vote and 1 for several."""
    sampling: Annotated[Sampling, OptionGroup(omit=("temperature", "stop"))] = Sampling(max_tokens=2048)
    workers: o.Workers = 1
    engine: o.EngineName = "local"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.structured and not self.policy.base_url:
            raise ValueError("'structured' needs 'base_url': only a server can enforce a schema")
        return self

    def resolved(self) -> dict[str, Any]:
        """The settings, with the version of the prompt."""
        return super().resolved() | {"prompt": self._prompt().version}

    def items(self) -> Any:
        """Traces, with ``--show-answer`` those whose problem has one."""
        return with_answer(super().items()) if self.show_answer else super().items()

    def predict(self, items: Sequence[ProblemTrace]) -> None:
        prompt = self._prompt()
        self.say_reviews(
            items,
            lambda item: "".join(message.content or "" for message in prompt.render(item)),
            "verdicts",
            self.votes,
        )

    @contextmanager
    def labeller(self) -> Iterator[Labeller]:
        from dataclasses import replace

        from surefoot.labelling.judge import JudgeLabeller, structured_output

        prompt = self._prompt()
        temperature = float(self.votes > 1) if self.temperature is None else self.temperature
        form = structured_output(prompt.mode, name_failures=prompt.name_failures)
        body = form if prompt.structured else None
        policy = self.policy.open(chat=True, loading=self.loading, extra_body=body)
        sampling = replace(self.sampling, temperature=temperature)
        yield fill(JudgeLabeller, self, policy=policy, prompt=prompt, sampling=sampling)

    def _prompt(self) -> JudgePrompt:
        from surefoot.labelling.judge import JudgePrompt

        try:
            rules = self.rules.read_text(encoding="utf-8") if self.rules is not None else None
        except UnicodeDecodeError as error:
            raise LabelError(f"--rules {self.rules} is not UTF-8 text: {error}") from error
        structured = bool(self.policy.base_url) if self.structured is None else self.structured
        return fill(JudgePrompt, self, rules=rules, structured=structured)


class Critiques(ReviewCommand):
    """Let a language model criticise each step of traces, to train a verifier (`surefoot train verifier`).

    All critiques are written; training filters those that can be parsed and agree with labels. If the
    command is stopped, the same command resumes.

    Example: `surefoot label critiques traces.jsonl --problems problems.jsonl --policy Qwen/QwQ-32B
    --base-url http://localhost:8000/v1 --out critiques.jsonl`
    """

    format: o.VerifierFormatFile = None
    chains: Annotated[int, Flag(short="-k")] = Field(default=4, ge=1, description="Critiques per trace.")
    sampling: Annotated[Sampling, OptionGroup(omit=("stop",))] = Sampling(temperature=0.1, max_tokens=4096)

    def run(self) -> None:
        items = usable(
            self.items(), lambda item: item.trace.text is not None, "a verifier reads text, not messages"
        )
        from surefoot.training.critiques import TraceCritiques, sample_critiques  # imports torch

        form = o.verifier_format(self.format)
        if self.dry_run:
            self.say_reviews(items, lambda item: str(form.prompt(item)), "critiques", self.chains)
            return
        policy = self.policy.open(chat=form.chat, loading=self.loading)
        missing = 0

        async def work(piece: Sequence[ProblemTrace]) -> list[TraceCritiques]:
            return await sample_critiques(
                policy, piece, form, chains=self.chains, sampling=self.sampling, seed=self.seed
            )

        def count(record: TraceCritiques) -> None:
            nonlocal missing
            missing += self.chains - len(record.texts)

        def failed(critiques: Sequence[TraceCritiques]) -> str | None:
            return None if any(record.texts for record in critiques) else critiques[-1].error

        job = Job(
            record=TraceCritiques,
            work=work,
            during=connections(policy),
            failure=failed,
            tokens=lambda records: sum(record.usage.tokens for record in records),
            config={"format": form.model_dump()},
        )
        outcome = map_pieces(self, job, items, self.size, on_record=count)
        note(f"critiques of {outcome.written} traces written; {missing} failed (see 'error')")
        outcome.require_complete()
