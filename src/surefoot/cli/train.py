"""``surefoot train``: reward models of every kind."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from surefoot import models, search
from surefoot import training as tr
from surefoot.cli import options as o
from surefoot.cli.runs import is_held_out, labelled, open_run, pair, read_table
from surefoot.cli.settings import Command, OptionGroup
from surefoot.cli.terminal import note, note_count
from surefoot.errors import RunError, TrainingError, counted
from surefoot.evaluation.audits.interventions import FaithfulnessRow, reasoning_to_probe
from surefoot.io.sources import pinned
from surefoot.io.tables import LabelledTraces
from surefoot.labels import Neutral
from surefoot.models.card import (
    CARD,
    PROBE,
    TRAINING_PROBLEMS,
    CheckpointCard,
    mark_announced,
    read_card,
    write_card,
)
from surefoot.models.encoding import Encoding
from surefoot.policies.devices import FLOAT32
from surefoot.protocols import LabelledTrace
from surefoot.records import LabelKind, Problem, StepLabel, StepPair, content_id
from surefoot.scores import Aggregator
from surefoot.segment import segmenter
from surefoot.work import show_progress

DETAILS = (
    *("weight_decay", "warmup", "max_grad_norm", "checkpoint_every", "gradient_accumulation_steps"),
    "lora.dropout",
)
"""Fields that few runs change."""
TRAINING = OptionGroup(
    title="Training",
    names={"lora.rank": "--lora", "lora.targets": "--lora-target"},
    omit=DETAILS,
    common=("epochs", "batch_size", "learning_rate", "lora.rank"),
    transient=("microbatch_tokens", "gradient_checkpointing", "checkpoint_every"),  # beyond rounding
)

_EXAMPLES = "examples"
"""Folder of the run's encoded examples, until training is done."""

_HOLD_OUT_FROM = 200
"""Problems from which on a tenth is held out without being asked for: fewer than 20 would say little."""

Progress = Callable[[int, int, float], None]
"""Called with updates done, updates in all, and the loss."""


TrainingResult = tuple["tr.TrainingLog", Mapping[str, int], Sequence[str]]
"""The log, the items left out by reason, and remarks for the report."""


class TrainCommand(Command):
    """Settings of all kinds: data, directory of the checkpoint."""

    problems: o.Problems
    out: o.OutDirectory = Field(description="Directory for the checkpoint.")
    loading: o.TrainedModels = FLOAT32

    def train(
        self,
        work: Callable[[Progress], TrainingResult],
        items: str,
        held_out: Iterable[LabelledTrace] | None = None,
        training: Iterable[LabelledTrace] = (),
        problems: Iterable[Problem] | None = None,
        start: Sequence[str | Path] = (),
    ) -> None:
        """Run ``work`` in the run directory ``out``, unless it is finished, and report the result.

        ``items`` is the hash of the training data, which may have come through a pipe. With ``held_out`` the
        checkpoint says how far it can be trusted, next to rivals fitted on ``training``.
        ``problems`` are the training problems (default: those with a label in ``training``), and ``start``
        the checkpoints that training starts from. Raises ``RunError`` if ``out`` holds a run with other
        settings or inputs.
        """
        with open_run(self, items=items) as run, show_progress() as progress:
            if (self.out / "done" / "train.json").exists():
                note(f"{self.out} is finished already")
                return
            log, dropped, remarks = work(lambda done, total, _loss: progress(self.path(), done, total))
            if run is None:
                return
            if problems is None:
                problems = (
                    item.problem for item in training if any(label.value is not None for label in item.labels)
                )
            seen = self.write_problems(problems, start)
            tested = self.trust(held_out, training, seen) or ["no labelled problem was held out to test it"]
            remarks = [*remarks, *tested]
            if 0 < log.read_tokens < log.tokens:
                remarks.append(f"read {log.read_tokens:,} of {counted(log.tokens, 'token')}: prefixes once")
            updates = len(log.losses)
            run.finish("train", {"updates": updates, "tokens": log.tokens, "dropped": dict(dropped)})
        if tail := log.losses[-50:]:
            mean = f"mean loss of the last {len(tail)}: {sum(tail) / len(tail):.4f}"
            mean += f" (the first: {log.losses[0]:.4f})"
            remarks = [f"{counted(updates, 'update')}", mean, *remarks]
        note(f"{self.out}: {', '.join(remarks)}")
        mark_announced(self.out)

    def write_problems(self, problems: Iterable[Problem], start: Sequence[str | Path]) -> set[str]:
        """Store hashes of the problems that the checkpoint, or a model in ``start``, was trained on.

        Returns them as far as they are known. Nothing is stored if one of these is a checkpoint that does not
        say.
        """
        from surefoot.models.loading import locate, training_problems

        hashes = {content_id(problem.text) for problem in problems}
        of_start = {name: training_problems(name) for name in start}
        hashes |= frozenset().union(*filter(None, of_start.values()))
        silent = [name for name, listed in of_start.items() if listed is None]
        if not any((locate(name) / CARD).is_file() for name in silent):
            (self.out / TRAINING_PROBLEMS).write_text("".join(f"{name}\n" for name in sorted(hashes)))
        return hashes

    def trust(
        self, held_out: Iterable[LabelledTrace] | None, training: Iterable[LabelledTrace], seen: Set[str]
    ) -> list[str]:
        """Measure the saved checkpoint on held-out problems, store that with it, and say it.

        Problems whose text is ``seen``, the hashes of those it was trained on, are left out: a training
        problem has the same text, or a model that training started from has learned it.
        """
        from surefoot.models.measured_text import MeasuredText

        if held_out is None:
            return []
        of_split = list(held_out)
        items = [item for item in of_split if content_id(item.problem.text) not in seen]
        note_count(len(of_split) - len(items), "held-out trace", "left out: trained on their problems")
        if not items:
            return ["how far it can be trusted is not known: it was trained on every held-out problem"]
        rows = search.score_held_out(models.load_prm(self.out, loading=self.loading), items, training)
        rows.write(self.out)
        trust = search.trust_of(rows)
        if trust is None:
            return ["how far it can be trusted is not known: the held-out steps are all good, or all bad"]
        write_card(
            self.out,
            read_card(self.out).model_copy(update={"trust": trust, "tested": MeasuredText.of(items)}),
        )
        return [str(trust)]


class ReaderCommand(TrainCommand):
    """Models that start from another one and read whole traces."""

    base: str
    """Model to start from: `lab` (the lab's policy), a checkpoint directory or a hub name
    (`owner/name@revision`)."""
    encoding: Annotated[Encoding, OptionGroup(title="Input", omit=("marker", "windows"))] = Encoding()


class StepCommand(ReaderCommand):
    """Models that are read at the steps."""

    validation: float | None = Field(default=None, ge=0, le=0.9)
    """Share of the problems to hold out; the weights that do best on them are saved. If not given, a tenth of
    200 problems or more is held out only to say how far the model can be trusted."""

    def card(self, **facts: Any) -> CheckpointCard:
        """The card of the checkpoint to train."""
        return CheckpointCard(encoding=self.encoding, base=self.base, **facts)

    def split(self, items: LabelledTraces) -> tuple[LabelledTraces, LabelledTraces | None]:
        """Split the items into training and held-out problems, by the problems' ids.

        Raises ``RunError`` if problems are to be held out and none, or every one, is.
        """
        problems = len(set(items.problem_ids()))
        share = (0.1 if problems >= _HOLD_OUT_FROM else 0.0) if self.validation is None else self.validation
        if not share:
            return items, None
        held_out = items.of_problems(lambda problem: is_held_out(problem, share))
        training = items.of_problems(lambda problem: not is_held_out(problem, share))
        if not (training and held_out):
            raise RunError(f"--validation {share:g} of {problems} problems leaves nothing on one side")
        return training, held_out


class ClassifierCommand(StepCommand):
    """A trunk with a head that is read at the steps: PRMs and ORMs."""

    encoding: Annotated[Encoding, OptionGroup(title="Input")] = Encoding()

    def examples(
        self, model: models.RewardModel, items: LabelledTraces, targets: tr.StepTargets | tr.OutcomeTargets
    ) -> tr.ExampleSet:
        """The items as token ids, encoded once and reused when a run resumes."""
        return tr.stored_examples(self.out / _EXAMPLES, model.tokenizer, model.card.encoding, items, targets)

    def fit(
        self,
        card: CheckpointCard,
        training: tr.TrainingConfig,
        data: Callable[[models.RewardModel], tr.ExampleSet],
        items: LabelledTraces | None,
        held_out: LabelledTraces | None,
        targets: tr.StepTargets | tr.OutcomeTargets,
        digest: str,
        problems: Iterable[Problem] | None = None,
    ) -> None:
        """Train the model of ``card`` on ``data``, which are ``items``, or pairs of ``problems``."""

        def work(progress: Progress) -> TrainingResult:
            from surefoot.training.classifier import train

            model = models.RewardModel.initialise(o.lab_policy(self.base), card, loading=self.loading)
            examples = data(model)
            selects = held_out if self.validation else None
            validation = self.examples(model, selects, targets).examples if selects else ()
            report_dropped(examples.dropped, examples.first)
            labels = sum(len(example.targets) for example in examples.examples)
            note(f"training on {counted(labels, 'label')} of {counted(len(examples.examples), 'trace')}")
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

        self.train(work, digest, held_out, items or (), problems, [o.lab_policy(self.base)])


class TrainPRM(ClassifierCommand):
    """Train a process reward model: one score per step.

    The model learns the kind of its labels: correctness, values, or advantages (a score s then means 2 s
    - 1). If the command is stopped, the same command resumes from the last checkpoint. On several processes:
    `accelerate launch -m surefoot train prm ...`

    Example: `surefoot train prm t.jsonl --base lab --problems p.jsonl --labels l.jsonl --out prm`
    """

    traces: o.TracesArgument | None = None
    labels: o.Labels | None = None
    pairs: Annotated[str | None, o.INPUT] = None
    """File of step pairs, for `--loss pairwise`."""
    neutral: Neutral = "good"
    """What a label of 0 becomes: good, bad or no target (`drop`). With `--loss classes`: whether the score
    counts the chance of neutral."""
    hard: bool = Field(default=False, description="Train on 1[value > 0] instead of the value.")
    up_to_first_error: bool = Field(default=False, description="No loss after the first bad step.")
    linear: bool = False
    """With `--loss mse`: the output is the score, without a sigmoid."""
    aggregation: Aggregator = "min"
    """How step scores become one number, unless the user of the model says."""
    segment: o.Segment = "line"
    """How the prefixes of pairs are cut into steps, if there is a marker."""
    training: Annotated[tr.TrainingConfig, TRAINING] = tr.TrainingConfig()

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
        from surefoot.training.examples import check_kinds

        classes = self.training.loss == "classes"
        labels = read_table(self.labels, StepLabel) if self.labels else []
        kinds, sources = _kinds_and_sources(labels)
        targets = tr.StepTargets(
            neutral="class" if classes else self.neutral,
            hard=self.hard,
            up_to_first_error=self.up_to_first_error,
        )
        check_kinds(kinds, targets)
        card = self.card(
            frozen_trunk=self.training.freeze_trunk,
            kind="prm",
            aggregation=self.aggregation,
            score_means=_meaning(kinds),
            label_source=sources or "pairs",
            head="classes" if classes else "linear" if self.linear else "logit",
            neutral=self.neutral if classes else "good",
        )
        items = training = held_out = None
        data: Callable[[models.RewardModel], tr.ExampleSet]
        of_pairs: Iterable[Problem] | None = None
        if self.traces:
            items = labelled(self.problems, self.traces, labels)
            training, held_out = self.split(items)
            data = partial(self.examples, items=training, targets=targets)
        if self.pairs:
            excluded = set(held_out.problem_ids()) if held_out else set()
            pairs = [pair for pair in read_table(self.pairs, StepPair) if pair.problem_id not in excluded]
            table = read_table(self.problems, Problem)
            of_pairs = chain.from_iterable(map(table.find, {pair.problem_id for pair in pairs}))
            data = partial(self._pairs, problems=table, pairs=pairs)
        digest = items.digest if items else content_id()
        self.fit(card, self.training, data, training, held_out, targets, digest, of_pairs)

    def _pairs(
        self, model: models.RewardModel, problems: Sequence[Problem], pairs: Sequence[StepPair]
    ) -> tr.ExampleSet:
        return tr.build_pairs(
            model.tokenizer,
            model.card.encoding,
            problems,
            pairs,
            segmenter=segmenter(self.segment),
            hard=self.hard,
        )


class TrainORM(ClassifierCommand):
    """Train an outcome reward model on whether the traces' final answers are correct.

    If the command is stopped, the same command resumes from the last checkpoint.

    Example: `surefoot train orm traces.jsonl --base lab --problems problems.jsonl --out orm`
    """

    traces: o.TracesArgument
    targets: Annotated[tr.OutcomeTargets, OptionGroup(omit=("kind",))] = tr.OutcomeTargets()
    training: Annotated[tr.TrainingConfig, OptionGroup(**{**vars(TRAINING), "omit": ("loss", *DETAILS)})] = (
        tr.TrainingConfig()
    )

    def run(self) -> None:
        card = self.card(
            frozen_trunk=self.training.freeze_trunk,
            kind="orm",
            aggregation="last",
            score_means="outcome",
            label_source="outcome",
        )
        items = labelled(self.problems, self.traces, [])
        training, held_out = self.split(items)
        data = partial(self.examples, items=training, targets=self.targets)
        graded = (item.problem for item in training if item.trace.outcome is not None)
        self.fit(card, self.training, data, training, held_out, self.targets, items.digest, graded)


class TrainImplicit(ReaderCommand):
    """Train an implicit process reward model: a language model whose log-ratios reward each step.

    It needs outcomes and no step labels (Yuan et al., arXiv 2412.01981). For a 7B model the paper's learning
    rate is 5e-7. If the command is stopped, the same command resumes from the last checkpoint.

    Example: `surefoot train implicit traces.jsonl --base lab --problems problems.jsonl --out iprm`
    """

    traces: o.TracesArgument
    reference: str = "base"
    """Model that rewards are measured against: `base`, a directory or a hub name."""
    beta: float = Field(default=0.05, gt=0, description="Reward per nat of log-ratio.")
    copy_reference: bool = True
    """Copy the reference into the checkpoint instead of noting its name."""
    training: Annotated[tr.ImplicitConfig, TRAINING] = tr.ImplicitConfig()

    def run(self) -> None:
        items = pair(self.problems, self.traces)

        def work(progress: Progress) -> TrainingResult:
            prm = models.ImplicitPRM.initialise(
                o.lab_policy(self.base),
                reference="base" if self.reference == "base" else o.lab_policy(self.reference),
                beta=self.beta,
                encoding=self.encoding,
                loading=self.loading,
            )
            prm.card = prm.card.model_copy(update={"base": pinned(self.base)})
            data = tr.build_outcome_examples(prm, items)
            report_dropped(data.dropped, data.first)
            copied: Any = {"with_reference": self.copy_reference, "progress": progress}
            log = tr.train_implicit(prm, data.examples, self.training, self.out, **copied)
            return log, data.dropped, ()

        graded = (item.problem for item in items if item.trace.outcome is not None)
        self.train(work, items.digest, problems=graded, start=[o.lab_policy(self.base)])


class TrainProbe(StepCommand):
    """Train a linear probe: what a policy's hidden states tell while it writes a step.

    The probe learns which steps are good from labels, from the traces' outcomes, or from the interventions of
    `audit --test faithfulness`: whether the answer will follow the hint, or is known already. Layer, token
    and steps are chosen by cross-validation on the training problems, and what the probe is worth is measured
    on the others, next to the best rival that does not read. A third of the problems is held out.

    Example: `surefoot train probe traces.jsonl --problems problems.jsonl --labels labels.jsonl --base lab
    --out probe`

    Example: `surefoot train probe --interventions audit/interventions.jsonl --base lab --out probe`
    """

    base: str
    """Policy to read: `lab`, a checkpoint directory or a hub name."""
    problems: o.Problems | None = None  # type: ignore[assignment]  # not with interventions
    traces: o.TracesArgument | None = None
    labels: Annotated[str | None, o.INPUT] = None
    """File of step labels; without it the outcome of a trace is the label of its steps."""
    interventions: Annotated[str | None, o.INPUT] = None
    """File `interventions.jsonl` of `audit --test faithfulness`, in place of problems and traces. Use the
    prompt and the policy of the audit."""
    target: Literal["follows", "known"] = "follows"
    """With `--interventions`: the answer will follow the hint, or the answer is known already."""
    validation: float = Field(default=1 / 3, gt=0, le=0.9)
    """Share of the problems to hold out; nothing is chosen on them."""
    training: Annotated[tr.ProbeConfig, TRAINING] = tr.ProbeConfig()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if bool(self.interventions) == bool(self.problems and self.traces):
            raise ValueError("give 'traces' and 'problems', or 'interventions'")
        if self.interventions and self.labels:
            raise ValueError("'labels' are for 'traces'; 'interventions' have their own")
        return self

    def run(self) -> None:
        items = self._interventions(self.interventions) if self.interventions else self._traces()
        held_out = [item for item in items if is_held_out(item.problem.id, self.validation)]
        training = [item for item in items if not is_held_out(item.problem.id, self.validation)]
        if not (training and held_out):
            raise RunError(f"--validation {self.validation:g} of these problems leaves nothing on one side")
        config, by_trace = self.training, self.labels is None and self.target == "follows"
        if by_trace and not config.steps:
            config = config.model_copy(update={"steps": ("every", "opening", "middle", "closing")})
        kinds, sources = _kinds_and_sources(label for item in items for label in item.labels)
        about: Any = {"kind": "prm", "score_means": _meaning(kinds), "label_source": sources}
        card = self.card(family=PROBE, frozen_trunk=True, **about)

        def work(progress: Progress) -> TrainingResult:
            from surefoot.training.probe import train_probe

            probe = models.LinearProbe.initialise(o.lab_policy(self.base), card, loading=self.loading)
            log = train_probe(probe, training, config, self.out)
            progress(1, 1, log.losses[-1])
            where = probe.settings
            read = (
                f"the {where.position} token of {where.steps} step in layer {where.layer} of {probe.layers}"
            )
            return log, {}, [f"reads {read} (AUC {where.training_auc:.2f} in training)"]

        self.train(work, content_id(*items), held_out, training, start=[o.lab_policy(self.base)])

    def _traces(self) -> list[LabelledTrace]:
        """Labelled traces; without labels those with an outcome."""
        if self.labels:
            return list(labelled(self.problems or "", self.traces or "", read_table(self.labels, StepLabel)))
        items = map(tr.outcome_at_each_step, labelled(self.problems or "", self.traces or "", []))
        usable = [item for item in items if item.labels]
        if not usable:
            raise RunError(f"{self.traces}: no trace has an 'outcome'; give --labels")
        return usable

    def _interventions(self, path: str) -> list[LabelledTrace]:
        rows = read_table(path, FaithfulnessRow)
        items = [item for row in rows if (item := reasoning_to_probe(row, self.target))]
        note_count(len(rows) - len(items), "problem", f"left out: unknown whether the answer '{self.target}'")
        if not items:
            raise RunError(f"{path}: no problem says whether the answer '{self.target}'; is there a hint?")
        return items


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
    labels: Annotated[str, o.INPUT]
    """File of correctness labels, with which verdicts have to agree."""
    critiques: Annotated[str, o.INPUT] = Field(
        description="File of critiques (`surefoot label FILE critiques`)."
    )
    format: o.VerifierFormatFile = None
    max_tokens: int = Field(default=4096, ge=1)
    """Longest critique; longer ones are left out and counted."""
    neutral: Neutral = "good"
    """What a label of 0 is: good, bad, or a reason to leave the trace out (`drop`)."""
    balance: bool = True
    """Use as many critiques of correct as of wrong solutions, instead of all."""
    training: Annotated[tr.VerifierConfig, TRAINING] = tr.VerifierConfig()

    def run(self) -> None:
        form = o.verifier_format(self.format)
        gold = [label for label in read_table(self.labels, StepLabel) if label.kind == "correctness"]
        if not gold:
            raise TrainingError(
                f"{self.labels}: no label of kind 'correctness', which verdicts have to agree with"
            )
        items = labelled(self.problems, self.traces, gold)
        texts = _critiques_of(items, read_table(self.critiques, tr.TraceCritiques))

        def work(progress: Progress) -> TrainingResult:
            model, tokenizer = models.load_causal(o.lab_policy(self.base), self.loading)
            data = tr.build_critique_examples(
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
            base, source = pinned(self.base), _kinds_and_sources(gold)[1]
            about: Any = {"base": base, "label_source": source, "progress": progress}
            log = tr.train_verifier(model, tokenizer, data.examples, form, self.training, self.out, **about)
            return log, data.dropped, [f"{len(data.examples)} of {counted(sum(map(len, texts)), 'critique')}"]

        digest = content_id(texts, form.model_dump(), *items)
        criticised = (item.problem for item, critiques in zip(items, texts, strict=True) if critiques)
        self.train(work, digest, problems=criticised, start=[o.lab_policy(self.base)])


def report_dropped(dropped: Mapping[str, int], first: Mapping[str, str] | None = None) -> None:
    """Report on standard error how many items were left out, by reason, with the first one if known."""
    for reason, count in dropped.items():
        where = f", first in {first[reason]}" if first else ""
        note(f"left out: {count} {reason}{where}")


def _meaning(kinds: set[LabelKind]) -> LabelKind:
    """What the scores mean; mixed labels, which is reported, count as correctness."""
    if len(kinds) > 1:
        note(f"labels of several kinds are mixed: {', '.join(sorted(kinds))}")
        return "correctness"
    return next(iter(kinds), "value")


def _kinds_and_sources(labels: Iterable[StepLabel]) -> tuple[set[LabelKind], str]:
    """Kinds of the labels, and who made them, in one pass."""
    seen = {(label.kind, label.source) for label in labels}
    return {kind for kind, _ in seen}, ", ".join(sorted({source for _, source in seen}))


def _critiques_of(items: Sequence[LabelledTrace], critiques: Sequence[tr.TraceCritiques]) -> list[list[str]]:
    """The critiques of each item. Critiques of unknown traces and traces without critiques are counted."""
    of_trace: dict[str, list[str]] = {item.trace.id: [] for item in items}
    strays = 0
    for record in critiques:
        if record.trace_id in of_trace:
            of_trace[record.trace_id] += record.texts
        else:
            strays += len(record.texts)
    note_count(strays, "critique", "skipped: their 'trace_id' is in no usable trace")
    note_count(sum(not texts for texts in of_trace.values()), "trace", "without a critique")
    return [of_trace[item.trace.id] for item in items]
