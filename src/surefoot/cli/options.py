"""Settings that several commands share, and functions that open models, verifiers and engines from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from surefoot import answers, labelling, models, policies, work
from surefoot.cli.settings import Flag, OptionGroup
from surefoot.cli.terminal import note
from surefoot.errors import CheckpointError, RunError, SandboxError, counted
from surefoot.io.files import error_reason
from surefoot.io.sources import is_hub_name
from surefoot.lab.checkpoints import POLICY
from surefoot.labels import Neutral
from surefoot.policies.devices import Loading
from surefoot.protocols import Policy, StepScorer, StepVerifier
from surefoot.scores import TraceRule
from surefoot.segment import segmenter

if TYPE_CHECKING:
    from surefoot.policies.capabilities import CapabilityName

INPUT = Flag(transient=True, common=True, file=True)
"""A file: the manifest holds its hash, so the path does not matter."""

SpecificationFile = Annotated[str | None, Flag(transient=True, file=True)]
"""A file of numbered clauses (:mod:`surefoot.labelling.specification`)."""


def _segmenter(name: str) -> str:
    segmenter(name)  # raises ValueError
    return name


def _sandbox(name: str) -> str:
    from surefoot.sandbox.backends import check_sandbox_name

    try:
        check_sandbox_name(name)
    except SandboxError as error:
        raise ValueError(str(error)) from error
    return name


def _in_one_piece(loading: Loading) -> Loading:
    if loading.device_map is not None:
        raise ValueError("'device_map' spreads a model for reading; to train one on several devices use FSDP")
    return loading


def split_commas(value: Any) -> Any:
    return tuple(value.split(",")) if isinstance(value, str) else value


def unescaped(text: str) -> str:
    r"""Replace ``\n`` and ``\t`` by the characters, because a shell passes them on literally."""
    return text.replace(r"\n", "\n").replace(r"\t", "\t")


def separator(text: str | None, scorer: StepScorer | None) -> str:
    """The text that ends a step, by default the separator of the reward model's training data."""
    if text is not None:
        return unescaped(text)
    return getattr(getattr(scorer, "card", None), "separator", None) or "\n"


Out = Annotated[
    str,
    Field(description="File to write (`.jsonl`, `.jsonl.gz`), or `-` for standard output."),
    Flag(short="-o", transient=True, output=True),
]
OutDirectory = Annotated[Path, Flag(short="-o", transient=True, output=True, directory=True)]
Problems = Annotated[str, Field(description="File of problem records."), INPUT]
Traces = Annotated[str, Field(description="File of trace records."), INPUT]
Labels = Annotated[str, Field(description="File of step labels."), INPUT]
ProblemsArgument = Annotated[
    str,
    Field(description="File of problem records, or `-` for standard input."),
    Flag(argument=True, transient=True, file=True),
]
TracesArgument = Annotated[
    str,
    Field(description="File of trace records with steps, or `-` for standard input."),
    Flag(argument=True, transient=True, file=True),
]
Sources = Annotated[
    tuple[str, ...], Flag(argument=True, metavar="NAME=FILE", transient=True, file=True, scorer=True)
]
Seed = Annotated[int, Field(description="Seed of everything that is random; equal seeds give equal results.")]
MODELS = OptionGroup(
    title="Models in this process",
    omit=("tf32", "attention", "batch_tokens", "device_map"),
    common=("device",),
    transient=("batch_tokens",),
)
Models = Annotated[Loading, MODELS]
TrainedModels = Annotated[Loading, AfterValidator(_in_one_piece), MODELS]
"""`auto` and `bfloat16` apply to frozen weights; adapters and heads are trained in float32."""
Segment = Annotated[
    str,
    Field(
        description="How text is cut into steps: `blank-line`, `line`, `sentence`, `thoughts`, `turns`, "
        "`step-k`, `ki`, `python`, `prose-and-code`, `rocq`, `lean` or `regex:PATTERN`."
    ),
    AfterValidator(_segmenter),
]
Family = Annotated[
    str | None,
    Field(
        description="Published family, if the name and files do not say which, e.g. `qwen-prm`; also at the "
        "end of a URL: `http://host:8000#qwen-prm`."
    ),
]
Tokenizer = Annotated[
    str | None,
    Field(
        description="Directory or hub name of the tokenizer of a reward model behind a URL, if the server "
        "names none that is here."
    ),
    Flag(name="--prm-tokenizer"),
]
DryRun = Annotated[bool, Flag(transient=True), Field(description="Predict tokens, spend and write nothing.")]
TokenBudget = Annotated[
    int | None,
    Flag(transient=True),
    Field(ge=1, description="Stop before the piece of work that would exceed this total over all starts."),
]
Workers = Annotated[
    int,
    Flag(transient=True),
    Field(
        ge=1,
        description="Processes of this machine that work side by side, each with the models loaded; the "
        "results are the same.",
    ),
]
EngineName = Annotated[
    Literal["local", "ray"],
    Flag(transient=True),
    Field(
        description="Where `--workers` run: on this machine, or as tasks of the Ray cluster that RAY_ADDRESS "
        "names, whose nodes share the folders of the inputs and of TMPDIR."
    ),
]
AllowUninformative = Annotated[
    bool,
    Flag(transient=True),
    Field(description="Accept values that are all equal, from which nothing can be learned."),
]
RetryFailed = Annotated[
    bool,
    Flag(transient=True),
    Field(description="Do again what failed in an earlier start of the same command, and nothing else."),
]
SandboxName = Annotated[
    str,
    Flag(transient=True),
    Field(description="Sandbox for programs: `bubblewrap`, `docker` or `podman` (`docker:IMAGE`)."),
    AfterValidator(_sandbox),
]
Calibrated = Annotated[bool, Field(description="Put scores through the checkpoint's `calibration.json`.")]
Aggregate = Annotated[
    TraceRule | None,
    Field(
        description="How step scores become one number; else as the checkpoint says, and verdicts for a "
        "verifier: any refuted step loses, then more confirmed ones win."
    ),
]
Gold = Annotated[
    tuple[str, ...],
    Field(
        description="Verifier of held-out steps (`equations`, `lab` or `module:Class`), which the reward "
        "does not see, for the trace error."
    ),
]
Draws = Annotated[int, Field(ge=1, description="Bootstrap draws for the intervals.")]
NeutralRule = Annotated[
    Neutral, Field(description="What a correctness label of 0 is: good, bad, or unknown (`drop`).")
]


CALL_TOOLS = "start the server with a parser of tool calls (vLLM: --enable-auto-tool-choice)"
"""What to do about a server that does not call tools."""


def check_agent(environment: str | None, policy: PolicySettings) -> None:
    """Raise ``ValueError`` for a policy that would not know an environment's tools."""
    if environment is not None and not policy.base_url and ":" not in policy.name:
        raise ValueError(
            "'environment' needs a policy that calls tools: a server's ('base_url'), or module:Class"
        )


EnvironmentName = Annotated[
    str | None, Field(description="World in which an agent calls tools, as `module:Class`.")
]


class SettingsGroup(BaseModel):
    """Base of the nested settings of the command line."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class PolicySettings(SettingsGroup):
    """The policy: a model in this process, or one behind an OpenAI-compatible server."""

    name: Annotated[str, Flag(name="--policy", common=True)]
    """A checkpoint directory, a hub name (`owner/name@revision`), with `--base-url` the server's name of the
    model, `lab` (for the small built-in world), or `module:Class`."""
    base_url: Annotated[str | None, Flag(common=True)] = None
    """OpenAI-compatible server, such as `http://localhost:8000/v1`; its key is read from `OPENAI_API_KEY`."""
    dialect: Literal["openai", "vllm"] = "openai"
    """`openai`: one call per sample, for any server. `vllm`: one call for all samples of a prompt; needs
    `--base-url`."""
    concurrency: Annotated[int, Flag(transient=True)] = Field(default=16, ge=1)
    """Requests in flight at the server."""
    timeout: Annotated[float, Flag(transient=True, omit=True)] = Field(default=120.0, ge=1)
    """Seconds for one whole call to a server, without its retries; of a stream, for the wait between two
    events."""
    batch_size: Annotated[int, Flag(transient=True, omit=True)] = Field(default=256, ge=1)
    """Samples decoded together in this process."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.dialect != "openai" and not self.base_url:
            raise ValueError(f"'dialect' {self.dialect} is for a server; give its address with 'base_url'")
        return self

    @property
    def in_flight(self) -> int:
        """Pieces of work to have under way at once: many at a server, one in this process."""
        return self.concurrency if self.base_url else 1

    def open(self, *, chat: bool, loading: Loading, extra_body: dict[str, Any] | None = None) -> Policy:
        """The policy; ``extra_body`` goes into every request to a server. Raises ``PolicyError``."""
        name = self.name if self.base_url else lab_policy(self.name)
        return policies.load_policy(
            name,
            base_url=self.base_url,
            chat=chat,
            dialect=self.dialect,
            concurrency=self.concurrency,
            timeout_s=self.timeout,
            extra_body=extra_body,
            batch_size=self.batch_size,
            loading=loading,
        )

    def check(
        self, policy: Policy, needs: CapabilityName, instead: str, *, accept_unknown: bool = False
    ) -> None:
        """Raise ``PolicyError`` for a server without a capability; ``instead`` names an alternative."""
        able = policies.capabilities_of(policy)
        able.require(needs, self.base_url or "", instead, accept_unknown=accept_unknown)


class GradingSettings(SettingsGroup):
    """Where the final answer is, and when two answers are equal."""

    extract: Annotated[tuple[answers.AnswerStyle, ...], BeforeValidator(split_commas), Flag(comma=True)] = (
        Field(
            default=("boxed", "hash", "phrase", "last_number"),
            description="Where the final answer is; the first of these styles that finds one counts.",
        )
    )
    equality: Literal["math", "exact"] = "math"
    """How answers are compared."""

    @contextmanager
    def open(self) -> Iterator[answers.Grader]:
        """The grader; at the end it says what could not be compared."""
        with answers.AnswerChecker(self.equality) as checker:
            yield answers.Grader(checker=checker, styles=self.extract)
            note_failures(checker)


def note_failures(checker: answers.AnswerChecker) -> None:
    """Say on standard error how many answers could not be compared, and why."""
    for reason, count in checker.failures.items():
        note(f"{counted(count, 'answer')} could not be compared: {reason}")


class JudgeSettings(SettingsGroup):
    """The judge of steps: a reward model, or verifiers that check by rule."""

    names: Annotated[tuple[str, ...], Flag(name="--prm", short="-m")] = ()
    """Checkpoint directory, hub name (`owner/name@revision`) or URL of a reward model; several are an
    ensemble."""
    family: Family = None
    tokenizer: Tokenizer = None
    calibrated: Calibrated = False
    verifier: tuple[str, ...] = ()
    """Verifiers in place of `--prm`: `equations`, `lab`, `visible-tests` or `module:Class`; the lowest
    verdict counts."""
    sandbox: SandboxName = "bubblewrap"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.names and self.verifier:
            raise ValueError("'prm' and 'verifier' both judge steps; give one of them")
        return self

    @contextmanager
    def open(self, loading: Loading) -> Iterator[StepScorer | None]:
        """The judge, if there is one. Raises ``CheckpointError``."""
        if self.verifier:
            from surefoot.models.kinds.derived import LabelScorer

            with open_verifiers(self.verifier, sandbox=self.sandbox) as labeller:
                yield LabelScorer(labeller, name="+".join(self.verifier))
        elif self.names:
            require_checkpoints(self.names)
            from surefoot.models.loading import load_prm

            yield load_prm(
                one_or_all(self.names),
                family=self.family,
                loading=loading,
                calibrated=self.calibrated,
                tokenizer=self.tokenizer,
            )
        else:
            yield None

    def files(self) -> dict[str, Path]:
        """Files that identify the reward model, for a run's manifest."""
        if not self.names:
            return {}
        require_checkpoints(self.names)
        from surefoot.models.loading import identifying_files

        return identifying_files(one_or_all(self.names))


@contextmanager
def open_verifiers(
    names: Sequence[str],
    opened_before: Mapping[str, StepVerifier] = MappingProxyType({}),
    *,
    sandbox: str = "bubblewrap",
) -> Iterator[labelling.VerifierLabeller]:
    """The verifiers of these names as one labeller; ``opened_before`` has those that need settings.

    Those that run programs do so in ``sandbox``.
    """
    with ExitStack() as stack:
        opened = [
            opened_before.get(name) or labelling.open_verifier(name, sandbox=sandbox)
            for name in dict.fromkeys(names)
        ]
        for verifier in opened:
            if isinstance(verifier, AbstractContextManager):
                stack.enter_context(verifier)
        yield labelling.VerifierLabeller(verifiers=tuple(opened))


def open_engine(name: str, workers: int, loading: Loading) -> work.Engine:
    """The engine that does the work."""
    if name == "ray":
        on_gpu = loading.device.startswith("cuda") or loading.device_map is not None
        return work.RayEngine(workers, gpus=float(on_gpu))
    return work.Processes(workers) if workers > 1 else work.Here()


def require_checkpoints(names: Sequence[str]) -> None:
    """Raise ``CheckpointError`` for a directory that does not exist, before torch is imported."""
    for name in names:
        # the shipped PRM, a URL, a training-free score of a model, a hub name
        is_named = name == "lab" or ":" in name or is_hub_name(name)
        if not is_named and not Path(name).is_dir():
            raise CheckpointError(f"{name} is not a surefoot checkpoint: surefoot.json is missing")


def one_or_all(names: Sequence[str]) -> str | Sequence[str]:
    """A single name itself; several names, an ensemble, as they are."""
    return names[0] if len(names) == 1 else names


def lab_policy(name: str) -> str | Path:
    """Directory of the lab's policy for the name ``lab``, else the name itself."""
    return POLICY if name == "lab" else name


VerifierFormatFile = Annotated[
    Path | None,
    Field(description="JSON file with a verifier's texts (the fields of `VerifierFormat`); else ThinkPRM's."),
    INPUT,
]


def verifier_format(path: Path | None) -> models.VerifierFormat:
    """The texts in the file of ``--format``, by default ThinkPRM's. Raises ``RunError``."""
    try:
        content = path.read_bytes() if path else b"{}"
        return models.VerifierFormat.model_validate_json(content)
    except ValidationError as error:
        raise RunError(f"--format {path}: {error_reason(error)}") from error
