"""Options that several commands share."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from surefoot.policies.prompts import PromptFormat

Out = Annotated[
    str,
    typer.Option(
        "--out", "-o", help="File to write (.jsonl, .jsonl.gz, .parquet), or - for standard output."
    ),
]
PolicyName = Annotated[
    str,
    typer.Option(
        "--policy", help="'lab', a checkpoint directory, a hub name, or with --base-url the server's model."
    ),
]
BaseUrl = Annotated[
    str | None, typer.Option("--base-url", help="OpenAI-compatible server, e.g. http://localhost:8000/v1.")
]
Dialect = Annotated[
    str,
    typer.Option(
        "--dialect",
        help="Server: openai = one call a sample, vllm = one call for all samples of a prompt.",
    ),
]
Chat = Annotated[
    bool, typer.Option("--chat", help="Put the prompt through the chat template, as a user message.")
]
System = Annotated[str | None, typer.Option("--system", help="System message; needs --chat.")]
Template = Annotated[str, typer.Option("--template", help="Prompt; {problem} stands for the problem's text.")]
Temperature = Annotated[float, typer.Option("--temperature", min=0, help="0 is greedy.")]
TopP = Annotated[float, typer.Option("--top-p", min=0, max=1, help="Nucleus sampling.")]
MaxTokens = Annotated[int, typer.Option("--max-tokens", min=1, help="Longest completion.")]
Stop = Annotated[list[str] | None, typer.Option("--stop", help="Stop text; may be repeated.")]
Seed = Annotated[int, typer.Option("--seed", help="Equal seeds give equal samples.")]
Segment = Annotated[
    str,
    typer.Option(
        "--segment", help="How steps are cut: blank-line, line, sentence, step-k, ki, regex:PATTERN."
    ),
]
Extract = Annotated[
    str,
    typer.Option(
        "--extract",
        help="Where the final answer is: boxed, hash, phrase, last_number; several in order, by comma.",
    ),
]
Equality = Annotated[str, typer.Option("--equality", help="How answers are compared: math, numeric, exact.")]
Concurrency = Annotated[int, typer.Option("--concurrency", min=1, help="Requests in flight at a server.")]
Timeout = Annotated[
    float, typer.Option("--timeout", min=1, help="Seconds for one call to a server, without its retries.")
]
BatchSize = Annotated[
    int, typer.Option("--batch-size", min=1, help="Samples decoded together in this process.")
]
Device = Annotated[str, typer.Option("--device", help="Where the model runs: cpu, cuda, cuda:1, mps.")]
TokenBudget = Annotated[
    int | None,
    typer.Option("--token-budget", min=1, help="Stop before the piece of work that would spend more tokens."),
]
TimeBudget = Annotated[
    float | None,
    typer.Option(
        "--time-budget", min=0, help="Stop before the piece of work that would end later (minutes)."
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Predict labels and tokens from the traces, spend nothing.")
]
Gold = Annotated[
    list[str] | None,
    typer.Option(
        "--gold",
        help="Verifier of held-out steps (arithmetic, lab or module:Class), for the trace error; repeat.",
    ),
]
Problems = Annotated[str, typer.Option("--problems", help="File of problem records.")]
Traces = Annotated[str, typer.Option("--traces", help="File of trace records.")]
VerifierForm = Annotated[
    str | None,
    typer.Option(
        "--format", help="JSON file of a verifier's texts (the fields of VerifierFormat); else ThinkPRM's."
    ),
]


@dataclass(frozen=True, kw_only=True)
class ReadingOptions:
    """How problems are put to a policy that is trained, and how its solutions are read."""

    chat: Chat = False
    system: System = None
    template: Template = "{problem}\n"
    segment: Segment = "line"
    extract: Extract = "boxed,hash,phrase,last_number"
    equality: Equality = "math"

    def prompt(self) -> PromptFormat:
        """How the policy is asked. Raises ``RunError``."""
        from surefoot.cli._shared import checked_options
        from surefoot.policies.prompts import PromptFormat

        with checked_options():
            return PromptFormat(template=self.template, chat=self.chat, system=self.system)

    def decisive(self) -> dict[str, Any]:
        """What of this decides what a run comes to: all."""
        return asdict(self)
