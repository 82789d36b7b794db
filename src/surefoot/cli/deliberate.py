"""``surefoot deliberate``: train a policy to reason about a specification that it no longer reads."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from surefoot.cli import options as o
from surefoot.cli.imitate import Imitate
from surefoot.cli.label.command import METHOD, METHODS, Label
from surefoot.cli.rl import RL
from surefoot.cli.runs import labelled, read_table
from surefoot.cli.sample import Sample
from surefoot.cli.settings import Flag, OptionGroup
from surefoot.cli.terminal import note
from surefoot.errors import RunError
from surefoot.io import write_records
from surefoot.labelling.specification import Specification, rejection
from surefoot.records import Problem, StepLabel, Trace
from surefoot.rl.config import CloningConfig
from surefoot.training.config import SFTConfig

SpecificationFile = Annotated[
    str,
    Field(
        description="JSON file of a specification: `version`, and `clauses` with `id`, `text`, `decision`."
    ),
    o.INPUT,
]


_METHOD = replace(METHOD, methods=lambda: {name: METHODS[name] for name in ("judge", "verify")})


class DeliberateGenerate(Sample):
    """Sample completions with the specification in the prompt, for `deliberate filter`.

    The specification stands before the prompt, with `--chat` in the system message. The output holds only
    the completions. If the command is stopped, the same command resumes.

    Example: `surefoot deliberate generate rules/requests.jsonl --specification rules/specification.json
    --policy rules/policy --max-tokens 24 --out completions.jsonl`
    """

    specification: SpecificationFile

    def run(self) -> None:
        text, prompt = Specification.of_file(self.specification).text, self.prompt
        if prompt.chat:
            system = "\n\n".join(filter(None, (prompt.system, text)))
            prompt = replace(prompt, system=system)
        else:
            prompt = replace(prompt, template=text + prompt.template)
        Sample.run(self.model_copy(update={"prompt": prompt}))


class DeliberateFilter(Label):
    """Let a judge check the clause that each step cites, and keep the completions in which all steps hold.

    The judge reads the specification and says of each step whether the cited clause exists, applies to
    the request and is applied correctly; the lowest of the votes counts. METHOD is another way to
    label, such as `judge:votes=5,lowest=true`. A completion passes if every step is right or
    neutral, a right one cites a clause, and the outcome is not wrong. An unknown step does not pass. Labels
    have the clause in their evidence.

    Example: `surefoot deliberate filter completions.jsonl --problems rules/requests.jsonl
    --specification rules/specification.json --policy judge --out labels.jsonl --passed passed.jsonl`
    """

    method: Annotated[str, _METHOD] = "judge:votes=3,lowest=true"
    out: Annotated[str, Flag(short="-o", transient=True, output=True)]
    """File of step labels to write."""
    passed: Annotated[str, Flag(transient=True, output=True)]
    """File to write the completions to that pass."""
    specification: SpecificationFile
    option_names: ClassVar = (
        *("FILE", str(_METHOD.metavar), "--problems", "--out", "--passed", "--specification", "--seed"),
        *("--policy", "--base-url", "--dialect", "--concurrency", "--device", "--dtype"),
        *("--temperature", "--top-p", "--max-tokens", "--token-budget", "--retry-failed", "--dry-run"),
    )
    always: ClassVar = (*Label.always, "passed", "specification")

    def outputs(self) -> list[Path]:
        """The labels and the completions that pass."""
        return [] if self.dry_run else [*super().outputs(), Path(self.passed)]

    def run(self) -> None:
        super().run()
        if self.dry_run:
            return
        problems, traces = read_table(self.problems, Problem), read_table(self.file, Trace)
        reasons: Counter[str] = Counter()
        passed: list[Trace] = []
        for item in labelled(problems, traces, read_table(self.out, StepLabel)):
            if reason := rejection(item):
                reasons[reason] += 1
            else:
                passed.append(item.trace)
        for reason, count in reasons.most_common():
            note(f"  {count} left out: {reason}")
        if not passed:
            raise RunError(f"none of the {reasons.total()} completions passes, so none is written")
        write_records(Path(self.passed), passed)
        note(f"{len(passed)} of {len(passed) + reasons.total()} completions pass")


class DeliberateTrain(RL):
    """Train a policy on filtered completions without the specification, then by reinforcement learning.

    Supervised fine-tuning on `--traces` comes first (`OUT/sft`), then `surefoot rl` on the outcomes, or on
    the judge that `--prm` or `--verifier` names; the result is `OUT/policy`. Judges never read the reasoning.
    Prompts with a clause of the specification are refused. Settings of `surefoot rl` without an option, and
    `sft.epochs` and the like, go into the file for `--config`. If the command is stopped, the same command
    resumes.

    Example: `surefoot deliberate train rules/requests.jsonl --traces passed.jsonl --held-out
    rules/held-out.jsonl --specification rules/specification.json --policy rules/policy --updates 20
    --out deliberate`
    """

    traces: o.Traces = Field(description="File of the completions that passed `deliberate filter`.")
    specification: SpecificationFile
    sft: Annotated[SFTConfig, OptionGroup(title="Fine-tuning", omit=("*",))] = SFTConfig(epochs=2)
    option_names = (
        *("PROBLEMS", "--out", "--traces", "--held-out", "--specification", "--policy", "--device"),
        *("--prm", "--verifier", "--updates", "--max-tokens", "--chat"),
    )

    @model_validator(mode="after")
    def _check_deliberation(self) -> Self:
        if self.grade_reasoning:
            raise ValueError("'grade_reasoning' shows judges the reasoning, which must stay free here")
        if self.held_out is None:
            raise ValueError("give 'held_out': fine-tuning would train on a share of 'problems'")
        return self

    def run(self) -> None:
        problems = read_table(self.problems, Problem)
        Specification.of_file(self.specification).require_absent(map(self._prompt_text, problems))
        super().run()

    def start(self) -> Path:
        """The policy, fine-tuned."""
        sft = self.out / "sft"
        Imitate(
            problems=self.problems,
            traces=self.traces,
            policy=self.policy,
            out=sft,
            cloning=CloningConfig(training=self.sft, seed=self.rl.seed),
            prompt=self.prompt,
            segment=self.segment,
            grading=self.grading,
            loading=self.loading,
        ).run()
        return sft / "policy"

    def _prompt_text(self, problem: Problem) -> str:
        prompt = self.prompt.render(problem)
        return prompt if isinstance(prompt, str) else "\n".join(str(row.content) for row in prompt)
