"""``surefoot train``: reward models of every kind."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from surefoot.cli import options as o
from surefoot.cli.settings import Command, OptionGroup
from surefoot.cli.terminal import echo
from surefoot.labels import Neutral
from surefoot.policies.devices import FLOAT32
from surefoot.policies.prompts import PromptFormat
from surefoot.scores import Aggregator
from surefoot.training.config import (
    ImplicitConfig,
    OutcomeTargets,
    StepTargets,
    TrainingConfig,
    VerifierConfig,
)

if TYPE_CHECKING:
    from surefoot.io.joins import LabelledTraces
    from surefoot.models.card import CheckpointCard
    from surefoot.models.kinds.classifier import RewardModel
    from surefoot.protocols import LabelledTrace
    from surefoot.records import LabelKind, StepLabel
    from surefoot.training.config import TrainingLog
    from surefoot.training.critiques import TraceCritiques
    from surefoot.training.examples import ExampleSet

TRAINING = OptionGroup(
    title="Training",
    names={"lora.rank": "--lora", "lora.targets": "--lora-target"},
    common=("epochs", "batch_size", "learning_rate", "lora.rank"),
    transient=("microbatch_tokens", "gradient_checkpointing", "checkpoint_every"),  # beyond rounding
)

_EXAMPLES = "examples"
"""Folder of the run's encoded examples, until training is done."""

_HOLD_OUT_FROM = 200
"""Problems from which on a tenth is held out without being asked for: fewer than 20 would say little."""

Progress = Callable[[int, int, float], None]
"""Called with updates done, updates in all, and the loss."""


TrainingResult = tuple["TrainingLog", Mapping[str, int], Sequence[str]]
"""The log, the items left out by reason, and remarks for the report."""

_INPUTS = ("problems", "traces", "labels", "pairs", "critiques")


class TrainCommand(Command):
    """Settings of all kinds: data, directory of the checkpoint, model to start from."""

    problems: o.Problems
    out: o.OutDirectory = Field(description="Directory for the checkpoint.")
    base: str = Field(
        description="Model to start from: `lab` (the lab's trunk), a checkpoint directory or a hub "
        "name (`owner/name@revision`).",
    )
    loading: o.TrainedModels = FLOAT32

    def train(
        self,
        kind: str,
        work: Callable[[Progress], TrainingResult],
        items: str,
        held_out: LabelledTraces | None = None,
    ) -> None:
        """Run ``work`` in the run directory ``out``, unless it is finished, and report the result.

        ``items`` is the hash of the training data, which may have come through a pipe. With ``held_out`` the
        checkpoint says how far it can be trusted. Raises ``RunError`` if
        ``out`` holds a run with other settings or inputs.
        """
        from surefoot.cli.runs import file_inputs, one_writer
        from surefoot.work import progress_bars

        settings = {**self.resolved(), "items": items}
        files = file_inputs(**{name: getattr(self, name, None) for name in _INPUTS})
        with one_writer(self.out, f"train {kind}", settings, files) as run, progress_bars() as progress:
            if (self.out / "done" / "train.json").exists():
                echo(f"{self.out} is finished already", err=True)
                return
            log, dropped, remarks = work(lambda done, total, _loss: progress(f"train {kind}", done, total))
            if run is None:
                return
            remarks = [*remarks, *self.trust(held_out)]
            updates = len(log.losses)
            run.finish("train", {"updates": updates, "tokens": log.tokens, "dropped": dict(dropped)})
        tail = log.losses[-50:]
        mean = f"mean loss of the last {len(tail)}: {sum(tail) / len(tail):.4f}"
        echo(f"{self.out}: {', '.join([f'{updates} updates', mean, *remarks])}", err=True)

    def trust(self, held_out: LabelledTraces | None) -> list[str]:
        """Measure the saved checkpoint on held-out problems, store that with it, and say it."""
        from surefoot.models.card import read_card, write_card
        from surefoot.models.loading import load_prm
        from surefoot.search.trust import measure_trust

        if held_out is None:
            return []
        trust = measure_trust(load_prm(self.out, loading=self.loading), list(held_out))
        if trust is None:
            return ["how far it can be trusted is not known: the held-out steps are all good, or all bad"]
        write_card(self.out, read_card(self.out).model_copy(update={"trust": trust}))
        return [str(trust)]


class ClassifierCommand(TrainCommand):
    """A trunk with a head that is read at the steps: PRMs and ORMs."""

    prompt: PromptFormat = PromptFormat()
    max_length: int = Field(
        default=2048, ge=8, description="Tokens of a trace; later steps are left out and counted."
    )
    windows: bool = Field(
        default=False,
        description="Read a longer trace in windows, each with the task and the latest steps, in training "
        "and whenever the model scores.",
    )
    marker: str | None = Field(
        default=None,
        min_length=1,
        description="Text inserted after each step, at which its score is read, e.g. `<extra_0>`.",
    )
    validation: float | None = Field(
        default=None,
        ge=0,
        le=0.9,
        description="Share of the problems to hold out; the weights that do best on them are saved. If not "
        "given, a tenth of 200 problems or more is held out only to say how far the model can be trusted.",
    )

    def card(self, training: TrainingConfig, **facts: Any) -> CheckpointCard:
        """The card of the checkpoint to train."""
        from surefoot.models.card import CheckpointCard
        from surefoot.models.encoding import Encoding

        encoding = Encoding(
            **vars(self.prompt), max_length=self.max_length, windows=self.windows, marker=self.marker
        )
        return CheckpointCard(encoding=encoding, base=self.base, frozen_trunk=training.freeze_trunk, **facts)

    def split(self, items: LabelledTraces) -> tuple[LabelledTraces, LabelledTraces | None]:
        """Split the items into training and held-out problems, by the problems' ids.

        Raises ``RunError`` if problems are to be held out and none, or every one, is.
        """
        from surefoot.cli.runs import is_held_out
        from surefoot.errors import RunError

        problems = len(set(items.problem_ids()))
        share = (0.1 if problems >= _HOLD_OUT_FROM else 0.0) if self.validation is None else self.validation
        if not share:
            return items, None
        held_out = items.of_problems(lambda problem: is_held_out(problem, share))
        training = items.of_problems(lambda problem: not is_held_out(problem, share))
        if not (training and held_out):
            raise RunError(f"--validation {share:g} of {problems} problems leaves nothing on one side")
        return training, held_out

    def examples(
        self, model: RewardModel, items: LabelledTraces, targets: StepTargets | OutcomeTargets
    ) -> ExampleSet:
        """The items as token ids, encoded once and reused when a run resumes."""
        from surefoot.training.examples import stored_examples

        return stored_examples(self.out / _EXAMPLES, model.tokenizer, model.card.encoding, items, targets)

    def fit(
        self,
        card: CheckpointCard,
        training: TrainingConfig,
        data: Callable[[RewardModel], ExampleSet],
        held_out: LabelledTraces | None,
        targets: StepTargets | OutcomeTargets,
    ) -> Callable[[Progress], TrainingResult]:
        """A function that trains the model of ``card``."""

        def work(progress: Progress) -> TrainingResult:
            from surefoot.models.kinds.classifier import RewardModel
            from surefoot.training.classifier import train

            model = RewardModel.initialise(o.lab_trunk(self.base), card, loading=self.loading)
            examples = data(model)
            selects = held_out if self.validation else None
            validation = self.examples(model, selects, targets).examples if selects else ()
            report_dropped(examples.dropped, examples.first)
            log = train(
                model, examples.examples, training, self.out, validation=validation, progress=progress
            )
            shutil.rmtree(self.out / _EXAMPLES, ignore_errors=True)
            remarks = []
            if log.best:
                remarks.append(f"held-out step AUC {log.best.auc:.4f} after update {log.best.update}")
            if log.stopped:
                remarks.append(log.stopped)
            return log, examples.dropped, remarks

        return work


class TrainPRM(ClassifierCommand):
    """Train a process reward model: one score per step.

    The model learns the kind of its labels: correctness, values, or advantages (a score s then means 2 s
    - 1). If the command is stopped, the same command resumes from the last checkpoint. On several processes:
    `accelerate launch -m surefoot train prm ...`

    Example: `surefoot train prm t.jsonl --base lab --problems p.jsonl --labels l.jsonl --out prm`
    """

    traces: o.TracesArgument | None = None
    labels: o.Labels | None = None
    pairs: Annotated[str | None, o.INPUT] = Field(
        default=None, description="File of step pairs, for `--loss pairwise`."
    )
    neutral: Neutral = Field(
        default="good",
        description="What a label of 0 becomes: good, bad or no target (`drop`). With `--loss classes`: "
        "whether the score counts the chance of neutral.",
    )
    hard: bool = Field(default=False, description="Train on 1[value > 0] instead of the value.")
    up_to_first_error: bool = Field(default=False, description="No loss after the first bad step.")
    linear: bool = Field(
        default=False, description="With `--loss mse`: the output is the score, without a sigmoid."
    )
    aggregation: Aggregator = Field(
        default="min", description="How step scores become one number, unless the user of the model says."
    )
    segment: o.Segment = Field(
        default="line", description="How the prefixes of pairs are cut into steps, if there is a marker."
    )
    training: Annotated[TrainingConfig, TRAINING] = TrainingConfig()

    @model_validator(mode="after")
    def _check(self) -> Self:
        loss = self.training.loss
        if self.linear and loss == "classes":
            raise ValueError("'linear' is a head with one output; 'loss' classes has three")
        if loss == "classes" and self.neutral == "drop":
            raise ValueError("'neutral' is 'drop'; with 'loss' classes choose good or bad")
        if (loss == "pairwise") != (self.pairs is not None):
            raise ValueError("'loss' pairwise and 'pairs' go together: one needs the other")
        if (self.traces is None) != (self.labels is None) or (self.pairs is None and self.traces is None):
            raise ValueError("give 'traces' and 'labels' (or 'pairs', with those two for 'validation' alone)")
        return self

    def run(self) -> None:
        """Train on labels or pairs."""
        from surefoot.cli.runs import checked_options, labelled, read_table
        from surefoot.records import Problem, StepLabel, Trace, content_id
        from surefoot.training.examples import check_kinds

        classes = self.training.loss == "classes"
        labels = read_table(self.labels, StepLabel) if self.labels else []
        kinds, sources = _kinds_and_sources(labels)
        targets = StepTargets(
            neutral="class" if classes else self.neutral,
            hard=self.hard,
            up_to_first_error=self.up_to_first_error,
        )
        with checked_options():
            check_kinds(kinds, targets)
        card = self.card(
            self.training,
            kind="prm",
            aggregation=self.aggregation,
            score_means=_meaning(kinds),
            label_source=sources or "pairs",
            head="classes" if classes else "linear" if self.linear else "logit",
            neutral=self.neutral if classes else "good",
        )
        items = held_out = None
        data: Callable[[RewardModel], ExampleSet]
        if self.traces:
            items = labelled(read_table(self.problems, Problem), read_table(self.traces, Trace), labels)
            training, held_out = self.split(items)
            data = partial(self.examples, items=training, targets=targets)
        if self.pairs:
            data = partial(self._pairs, path=self.pairs, held_out=held_out)
        work = self.fit(card, self.training, data, held_out, targets)
        self.train("prm", work, items.digest if items else content_id(), held_out)

    def _pairs(self, model: RewardModel, path: str, held_out: LabelledTraces | None) -> ExampleSet:
        """The pairs of a file, without held-out problems."""
        from surefoot.cli.runs import read_table
        from surefoot.records import Problem, StepPair
        from surefoot.segment import segmenter
        from surefoot.training.examples import build_pairs

        excluded = set(held_out.problem_ids()) if held_out else set()
        return build_pairs(
            model.tokenizer,
            model.card.encoding,
            read_table(self.problems, Problem),
            [pair for pair in read_table(path, StepPair) if pair.problem_id not in excluded],
            segmenter=segmenter(self.segment),
            hard=self.hard,
        )


class TrainORM(ClassifierCommand):
    """Train an outcome reward model on whether the traces' final answers are correct.

    If the command is stopped, the same command resumes from the last checkpoint.

    Example: `surefoot train orm traces.jsonl --base lab --problems problems.jsonl --out orm`
    """

    traces: o.TracesArgument
    targets: Annotated[OutcomeTargets, OptionGroup(omit=("kind",))] = OutcomeTargets()
    training: Annotated[
        TrainingConfig, OptionGroup(**{**vars(TRAINING), "omit": ("loss", "zeta", "balance")})
    ] = TrainingConfig()

    def run(self) -> None:
        """Train on outcomes."""
        from surefoot.cli.runs import labelled, read_table
        from surefoot.records import Problem, Trace

        card = self.card(
            self.training, kind="orm", aggregation="last", score_means="outcome", label_source="outcome"
        )
        items = labelled(read_table(self.problems, Problem), read_table(self.traces, Trace), [])
        training, held_out = self.split(items)

        data = partial(self.examples, items=training, targets=self.targets)
        work = self.fit(card, self.training, data, held_out, self.targets)
        self.train("orm", work, items.digest, held_out)


class TrainImplicit(TrainCommand):
    """Train an implicit process reward model: a language model whose log-ratios reward each step.

    It needs outcomes and no step labels (Yuan et al., arXiv 2412.01981). For a 7B model the paper's learning
    rate is 5e-7. If the command is stopped, the same command resumes from the last checkpoint; the
    reference's log-probabilities are cached until training is done.

    Example: `surefoot train implicit traces.jsonl --base lab --problems problems.jsonl --out iprm`
    """

    traces: o.TracesArgument
    prompt: PromptFormat = PromptFormat()
    max_length: int = Field(
        default=2048, ge=8, description="Tokens of a trace; later steps are left out and counted."
    )
    reference: str = Field(
        default="base",
        description="Model that rewards are measured against: `base`, `none` (uniform), a directory or a hub "
        "name.",
    )
    beta: float = Field(default=0.05, gt=0, description="Reward per nat of log-ratio.")
    read: Literal["step", "prefix"] = Field(
        default="step", description="Score a step by its own reward, or by the reward of the whole prefix."
    )
    copy_reference: bool = Field(
        default=True, description="Copy the reference into the checkpoint instead of noting its name."
    )
    training: Annotated[ImplicitConfig, TRAINING] = ImplicitConfig()

    def run(self) -> None:
        """Train on outcomes."""
        from surefoot.cli.runs import pair, read_table
        from surefoot.models.encoding import Encoding
        from surefoot.records import Problem, Trace

        encoding = Encoding(**vars(self.prompt), max_length=self.max_length)
        items = pair(read_table(self.problems, Problem), read_table(self.traces, Trace))

        def work(progress: Progress) -> TrainingResult:
            from surefoot.io.hub import pinned
            from surefoot.models.engine.causal import CACHE
            from surefoot.models.kinds.implicit import ImplicitPRM
            from surefoot.training.implicit import build_outcome_examples, train_implicit

            prm = ImplicitPRM.initialise(
                o.lab_trunk(self.base),
                reference={"none": None, "base": "base"}.get(self.reference, o.lab_trunk(self.reference)),
                beta=self.beta,
                read=self.read,
                encoding=encoding,
                cache=self.out,
                loading=self.loading,
            )
            prm.card = prm.card.model_copy(update={"base": pinned(self.base)})
            data = build_outcome_examples(prm, items)
            report_dropped(data.dropped, data.first)
            log = train_implicit(
                prm,
                data.examples,
                self.training,
                self.out,
                with_reference=self.copy_reference,
                progress=progress,
            )
            shutil.rmtree(self.out / CACHE, ignore_errors=True)
            return log, data.dropped, ()

        self.train("implicit", work, items.digest)


class TrainVerifier(TrainCommand):
    """Train a generative verifier: a language model that criticises each step, then says yes or no.

    It learns from the critiques whose verdicts can be read and all agree with the labels (ThinkPRM, arXiv
    2504.16828); the others are counted by reason. If the command is stopped, the same command resumes from
    the last checkpoint.

    Example: `surefoot train verifier t.jsonl --problems p.jsonl --labels l.jsonl
    --critiques c.jsonl --base Qwen/Qwen2.5-1.5B-Instruct --out verifier`
    """

    base: str = Field(description="Language model to start from: a checkpoint directory or a hub name.")
    traces: o.TracesArgument
    labels: Annotated[str, o.INPUT] = Field(
        description="File of correctness labels, with which verdicts have to agree."
    )
    critiques: Annotated[str, o.INPUT] = Field(description="File of critiques (`surefoot label critiques`).")
    format: o.VerifierFormatFile = None
    max_tokens: int = Field(
        default=4096, ge=1, description="Longest critique; longer ones are left out and counted."
    )
    neutral: Neutral = Field(
        default="good",
        description="What a label of 0 is: good, bad, or a reason to leave the trace out (`drop`).",
    )
    balance: bool = Field(
        default=True, description="Use as many critiques of correct as of wrong solutions, instead of all."
    )
    training: Annotated[VerifierConfig, TRAINING] = VerifierConfig()

    def run(self) -> None:
        """Train on the critiques that agree with the labels."""
        from surefoot.cli.runs import labelled, read_table
        from surefoot.errors import TrainingError
        from surefoot.records import Problem, StepLabel, Trace, content_id
        from surefoot.training.critiques import TraceCritiques

        form = o.verifier_format(self.format)
        gold = [label for label in read_table(self.labels, StepLabel) if label.kind == "correctness"]
        if not gold:
            raise TrainingError(
                f"{self.labels}: no label of kind 'correctness', which verdicts have to agree with"
            )
        items = labelled(read_table(self.problems, Problem), read_table(self.traces, Trace), gold)
        texts = _critiques_of(items, read_table(self.critiques, TraceCritiques))

        def work(progress: Progress) -> TrainingResult:
            from surefoot.io.hub import pinned
            from surefoot.models.engine.causal import load_causal
            from surefoot.training.critiques import build_critique_examples
            from surefoot.training.sft import train_verifier

            model, tokenizer = load_causal(o.lab_trunk(self.base), self.loading)
            data = build_critique_examples(
                tokenizer,
                items,
                texts,
                form,
                max_tokens=self.max_tokens,
                neutral=self.neutral,
                balance=self.balance,
                seed=self.training.seed,
            )
            report_dropped(data.dropped)
            log = train_verifier(
                model,
                tokenizer,
                data.examples,
                form,
                self.training,
                self.out,
                base=pinned(self.base),
                label_source=_kinds_and_sources(gold)[1],
                progress=progress,
            )
            return log, data.dropped, [f"{len(data.examples)} of {data.critiques} critiques"]

        self.train("verifier", work, content_id(texts, form.model_dump(), *items))


def report_dropped(dropped: Mapping[str, int], first: Mapping[str, str] | None = None) -> None:
    """Report on standard error how many items were left out, by reason, with the first one if known."""
    for reason, count in dropped.items():
        where = f", first in {first[reason]}" if first else ""
        echo(f"left out: {count} {reason}{where}", err=True)


def _meaning(kinds: set[LabelKind]) -> LabelKind:
    """What the scores mean; mixed labels, which is reported, count as correctness."""
    if len(kinds) > 1:
        echo(f"labels of several kinds are mixed: {', '.join(sorted(kinds))}", err=True)
        return "correctness"
    return next(iter(kinds), "value")


def _kinds_and_sources(labels: Iterable[StepLabel]) -> tuple[set[LabelKind], str]:
    """Kinds of the labels, and who made them, in one pass."""
    seen = {(label.kind, label.source) for label in labels}
    return {kind for kind, _ in seen}, ", ".join(sorted({source for _, source in seen}))


def _critiques_of(items: Sequence[LabelledTrace], critiques: Sequence[TraceCritiques]) -> list[list[str]]:
    """The critiques of each item. Critiques of unknown traces and traces without critiques are counted."""
    of_trace: dict[str, list[str]] = {item.trace.id: [] for item in items}
    strays = 0
    for record in critiques:
        if record.trace_id in of_trace:
            of_trace[record.trace_id] += record.texts
        else:
            strays += len(record.texts)
    if strays:
        echo(f"{strays} critiques skipped: their 'trace_id' is in no usable trace", err=True)
    if bare := sum(not texts for texts in of_trace.values()):
        echo(f"{bare} traces without a critique", err=True)
    return [of_trace[item.trace.id] for item in items]
