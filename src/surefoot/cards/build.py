"""Build a card from runs: claims, roles, missing tests and failures are all computed."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from surefoot.cards.figures import FIGURES, Figure, rows_of
from surefoot.cards.record import (
    ROLES,
    TESTS,
    About,
    CardClaim,
    CardModel,
    CardRun,
    CardSource,
    EvidenceFile,
    ReleaseCard,
    Role,
    Verdict,
)
from surefoot.errors import CheckpointError, RunError, counted
from surefoot.io.lineage import (
    MANIFEST,
    CommandRecord,
    LineageNode,
    lineage,
    model_hashes,
    portable,
    record_of,
    shown_path,
)
from surefoot.io.runs import digest_of, load_object
from surefoot.io.sources import ENDINGS
from surefoot.lab.checkpoints import POLICY
from surefoot.models.card import CARD, CheckpointCard, read_card
from surefoot.stats.intervals import Interval, decide

_SMALLEST: Final = 0.05
_WEIGHTS: Final = ("surefoot.json", "head.safetensors", "model.safetensors", "adapter_model.safetensors")
"""Files whose hash belongs to one model alone; architectures share their ``config.json``."""


@dataclass(frozen=True, kw_only=True)
class ClaimPlan:
    """A claim before its figure is computed; ``text`` takes ``{}``, ``{units}`` and ``{verdict}``."""

    name: str
    figure: str
    files: Sequence[str]
    """Paths relative to the run's folder."""
    text: str
    tests: tuple[str, ...] = ()
    arguments: Mapping[str, str] = field(default_factory=dict)
    null: float | str | None = None
    harm: bool = False
    spec: str = ".3f"
    verdict: Verdict = "measured"
    """The result's, where there is no ``null``."""


def build_card(runs: Sequence[Path], about: About, scope: Path) -> ReleaseCard:
    """The card of ``runs``: run directories, folders of reports, or files that a command wrote.

    ``scope`` is the folder whose evaluations and audits of the same models must be on the card.

    Raises ``RunError`` for a run without a record or without a claim, for a file that was edited by hand, and
    for an evaluation or audit in ``scope`` that is missing here.
    """
    records = [record for run in runs for record in records_of(run)]
    nodes, chain = _chain(records)
    models = _models(records)
    hashes = _require_all(records, models, scope)
    trainings = [record for record in records if record.manifest["command"].startswith("train ")]
    hashes |= {digest_of(path.name, path) for record in trainings for path in _inputs(record, "labels")}
    claims = [claim for record in records for claim in _claims(record, hashes)]
    tested = {test for claim in claims for test in claim.tests}
    not_tested = tuple(test for test in TESTS if test not in tested)
    roles = _roles(chain, models)
    failures = [claim.text for claim in claims if claim.verdict in ("no", "not decided")]
    failures += [text for record in records for text in _limits(record)]
    failures += [f"Source not present here: {node.name}" for node in nodes if "missing" in node.faults]
    return ReleaseCard(
        about=about,
        summary=_summary(claims, models, not_tested),
        process=tuple(text for record in records for text in _process(record, roles)),
        labels=tuple(dict.fromkeys(_label_sentences(claims, records, models))),
        tested=tuple(claim.text for claim in claims),
        not_tested=not_tested,
        failures=tuple(dict.fromkeys(failures)),
        roles=roles,
        models=models,
        claims=tuple(claims),
        runs=tuple(
            CardRun(
                path=shown_path(record.path),
                command=record.manifest["command"],
                version=record.manifest["surefoot"],
                sha256=digest_of(record.path.name, record.path),
            )
            for record in records
        ),
        scope=shown_path(scope),
        sources=tuple(
            CardSource(name=node.name, licence=node.licence or "not stated")
            for node in sorted(nodes, key=lambda node: node.name)
            if not node.command
        ),
        versions={"surefoot": version("surefoot")},
    )


def records_of(run: Path) -> list[CommandRecord]:
    """The records of a run directory, a folder of reports, an output or a record. Raises ``RunError``."""
    if run.is_file() and not run.name.endswith(MANIFEST):
        entry = record_of(run)
        if entry is None:
            raise RunError(f"{run}: no command has recorded that it wrote it; name a run or an output")
        return [entry[0]]
    of_run = run / MANIFEST
    paths = [run] if run.is_file() else [of_run] if of_run.is_file() else sorted(run.glob(f"*.{MANIFEST}"))
    if not paths:
        raise RunError(f"{run} is without the record of a run; name a run directory or a folder of reports")
    return [CommandRecord(path=path, manifest=load_object(path)) for path in paths]


def _chain(records: Sequence[CommandRecord]) -> tuple[list[LineageNode], list[CommandRecord]]:
    """Every node behind the outputs, and the records of their commands. Raises ``RunError`` for an edit."""
    nodes: dict[str, LineageNode] = {}
    for record in records:
        of_run = record.path.name == MANIFEST
        for path in [record.folder] if of_run else [record.folder / name for name in record.outputs]:
            nodes |= {node.name: node for node in lineage(path).walk()}
    pairs = ((node.name, fault) for node in nodes.values() for fault in node.faults if fault != "missing")
    faults = [f"{name}: {fault}" for name, fault in pairs]
    if faults:
        raise RunError(f"the runs do not describe these files: {'; '.join(faults)}")
    entries = (record_of(Path(node.name)) for node in nodes.values() if node.command)
    chain = {entry[0].path: entry[0] for entry in entries if entry}
    return list(nodes.values()), list(
        ({record.path.resolve(): record for record in records} | chain).values()
    )


def _models(records: Sequence[CommandRecord]) -> tuple[CardModel, ...]:
    """Checkpoints among the outputs of the runs."""
    folders: dict[Path, None] = {}
    for record in records:
        for name in record.outputs:
            if Path(name).name in ("surefoot.json", "config.json"):
                folders.setdefault((record.folder / name).parent)
    return tuple(_model(folder) for folder in folders)


def _model(folder: Path) -> CardModel:
    facts: dict[str, Any] = {}
    if (folder / CARD).is_file():
        facts = read_card(folder).model_dump(mode="json", exclude={"tested": {"words"}})
    weights = {p.name: digest_of(p.name, p) for p in sorted(folder.glob("*.safetensors"))}
    return CardModel(path=shown_path(folder), sha256={**model_hashes(folder), **weights}, facts=facts)


def _require_all(records: Sequence[CommandRecord], models: Sequence[CardModel], scope: Path) -> set[str]:
    """Hashes of the models and their scores. Raises ``RunError`` for a test of them that is left out."""
    hashes = {sha for model in models for name, sha in model.sha256.items() if name in _WEIGHTS}
    paths = [*scope.rglob(MANIFEST), *scope.rglob(f"*.{MANIFEST}")]
    nearby = [CommandRecord(path=path, manifest=load_object(path)) for path in sorted(set(paths))]
    on_card = {record.path.resolve() for record in records}

    def used(record: CommandRecord) -> set[str]:
        return {entry["sha256"] for entry in record.manifest["inputs"].values()} | {
            sha for files in _models_used(record).values() for sha in files.values()
        }

    for _ in nearby:  # scores of scores end after as many rounds as there are records
        scored = (r for r in nearby if r.manifest.get("command") == "score" and used(r) & hashes)
        more = {sha for record in scored for sha in record.outputs.values()}
        if more <= hashes:
            break
        hashes |= more
    for record in nearby:
        command = str(record.manifest.get("command"))
        is_test = command.split(" ")[0] in ("evaluate", "audit")
        if is_test and record.path.resolve() not in on_card and used(record) & hashes:
            raise RunError(
                f"{shown_path(record.path)} ({command}) is about a model of this card and not on it; add the "
                "run: results cannot be left out, whichever way they went"
            )
    return hashes


def _models_used(record: CommandRecord) -> dict[str, dict[str, str]]:
    """SHA-256 of the files of each local model; of one on the hub only the commit is recorded."""
    return {k: v for k, v in (record.manifest.get("models") or {}).items() if isinstance(v, dict)}


def _claims(record: CommandRecord, own: Set[str]) -> list[CardClaim]:
    """The claims of a run. Raises ``RunError`` if there are none."""
    claims = []
    for plan in _plans(record, own):
        paths = [record.folder / name for name in plan.files]
        figure = FIGURES[plan.figure](paths, **plan.arguments)
        if figure.value is not None or plan.figure == "reported":
            claims.append(_claim(record, plan, paths, figure))
    if not claims:
        raise RunError(
            f"{shown_path(record.path)} ({record.manifest['command']}) lacks any figure; leave the run out, "
            "or run a command whose results are figures"
        )
    return claims


def _claim(record: CommandRecord, plan: ClaimPlan, paths: Sequence[Path], figure: Figure) -> CardClaim:
    verdict, number = plan.verdict, "not measured"
    if figure.value is not None:
        number = format(figure.value, plan.spec)
        low, high = (figure.value if end is None else end for end in (figure.low, figure.high))
        estimate = Interval(value=figure.value, low=low, high=high)
        if low < high:
            number = format(estimate, plan.spec)
        if plan.null is not None:
            of = plan.null if isinstance(plan.null, str) else ""
            null = FIGURES[plan.figure](paths, of=of).value if of else float(plan.null)
            verdict = decide(estimate, figure.units, smallest=_SMALLEST, null=null or 0.0)
            if plan.harm and verdict != "not decided":
                verdict = "no" if verdict == "yes" else "yes"
    words = {"yes": "shown", "no": "excluded", "not decided": "not decided", "measured": "measured"}
    return CardClaim(
        id=f"{shown_path(record.path)}#{plan.name}",
        run=shown_path(record.path),
        tests=plan.tests,
        figure=plan.figure,
        arguments=dict(plan.arguments),
        evidence=tuple(EvidenceFile(path=shown_path(p), sha256=digest_of(p.name, p)) for p in paths),
        verdict=verdict,
        text=plan.text.format(number, units=figure.units, verdict=words[verdict]),
        **figure.rounded(),
    )


def _plans(record: CommandRecord, own: Set[str]) -> Iterator[ClaimPlan]:
    command = str(record.manifest["command"])
    group = command.split(" ")[0]
    if group in ("evaluate", "audit"):
        yield from _plans_of_report(record, own)
        return
    table = tomllib.loads(files("surefoot.cards").joinpath("plans.toml").read_text("utf-8")).get(group, ())
    for plan in (ClaimPlan(**entry) for entry in table):
        if all((record.folder / name).is_file() for name in plan.files):
            yield plan
    for labels in _inputs(record, "labels"):
        path, name = str(labels.resolve()), labels.name.translate(_NO_BRACES)
        yield _counted(f"labels-{name}", "records", path, f"{{}} step labels in {name}.")
        yield _counted(f"cost-{name}", "tokens", path, f"{{}} tokens were spent on the labels in {name}.")
        text = "Krippendorff's alpha of the raters on {units} steps is {}."
        yield ClaimPlan(name=f"agreement-{name}", figure="rater_agreement", files=[path], text=text)
        yield from _plans_of_calibration(labels)
    for name in () if table else (name for name in record.outputs if name.endswith(ENDINGS)):
        text = f"{name.translate(_NO_BRACES)}, by {command}."
        yield _counted(f"records-{name}", "records", name, f"{{}} records in {text}")
        yield _counted(f"tokens-{name}", "tokens", name, f"{{}} tokens were spent on {text}")


_CALIBRATED: Final = {
    "rates|0|corrected": "Share of wrong steps by the labels in {name}, corrected by gold labels: {{}}.",
    "quality|0|kappa": "Cohen's kappa of {name} with gold labels, {rate:.0%} of the steps wrong: {{}}.",
    "quality|0|sensitivity": "Wrong steps that {name} calls wrong: {{}}.",
    "quality|0|specificity": "Good steps that {name} calls good: {{}}.",
}
"""Paths in what `evaluate --as judge` stores next to a file of labels, and how they read."""


def _plans_of_calibration(labels: Path) -> Iterator[ClaimPlan]:
    """What gold labels say of a judge's labels. Raises ``RunError`` if they were changed since."""
    stored = labels.with_name(f"{labels.name}.calibration.json")
    if not stored.is_file():
        return
    data = load_object(stored)
    if (data.get("sha256") or {}).get("labels") != digest_of(labels.name, labels):
        raise RunError(
            f"{shown_path(stored)} is about other labels; run `surefoot evaluate --as judge` again"
        )
    rate = float(data["quality"][0]["base_rate"])
    for path, text in _CALIBRATED.items():
        yield ClaimPlan(
            name=f"label-judge-{labels.name.translate(_NO_BRACES)}/{path}",
            figure="reported",
            files=[str(stored.resolve())],
            arguments={"at": path},
            tests=("label noise",),
            text=text.format(name=labels.name.translate(_NO_BRACES), rate=rate),
        )


def _counted(name: str, figure: str, path: str, text: str) -> ClaimPlan:
    return ClaimPlan(name=name, figure=figure, files=[path], text=text, spec=",.0f")


def _plans_of_report(record: CommandRecord, own: Set[str]) -> Iterator[ClaimPlan]:
    """The sentence of a report and its verdicts."""
    command = str(record.manifest["command"])
    for name in (name for name in record.outputs if name.endswith(".json")):
        data = load_object(record.folder / name)
        domains = ("other domains",) if len(data["inputs"].get("data") or ()) > 1 else ()
        mine = tuple(_own_sources(record, data["inputs"], own))
        for path, text, verdict, tested in _said(data.get("first_screen") or {}, mine):
            yield ClaimPlan(
                name=f"{name}/first_screen|{path}",
                figure="reported",
                files=[name],
                arguments={"at": f"first_screen|{path}"},
                tests=(*filter(None, [tested]), *domains) if verdict != "measured" else (),
                verdict=verdict,
                text=f"{command}: {text}",
            )


def _said(screen: Mapping[str, Any], mine: tuple[str, ...]) -> Iterator[tuple[str, str, Verdict, str]]:
    """Path, text, verdict and test of each sentence on ``mine`` among several scorers, or on the first."""
    parts = {"verdicts": (screen.get("sentence"), screen.get("verdicts") or ())}
    if len(claims := screen.get("claims") or ()) > 1:
        each = enumerate(zip(screen["scorers"], screen["ranking"].values(), claims, strict=True))
        ours = {f"claims|{at}": (text, of) for at, (name, text, of) in each if f"{name}/".startswith(mine)}
        parts = ours or parts
    for path, (sentence, verdicts) in parts.items():
        if sentence:
            yield path, sentence.translate(_NO_BRACES), "measured", ""
        for number, entry in enumerate(verdicts):
            if (entry.get("estimate") or {}).get("value") is not None:
                text = f"{entry['detail']} {entry['sentence']}".translate(_NO_BRACES)
                verdict = _DECIDED.get(entry["tone"], "not decided")
                yield f"{path}|{number}|estimate", f"{{}} {text}", verdict, entry.get("tested", "")


def _own_sources(record: CommandRecord, inputs: Mapping[str, Any], own: Set[str]) -> Iterator[str]:
    """Beginnings of the names of scorers whose model or file is ``own``."""
    files = {key.partition("/")[2]: entry["sha256"] for key, entry in record.manifest["inputs"].items()}
    for source in [*inputs.get("sources", ()), *inputs.get("scorers", ())]:
        name, _, path = source.partition("=")
        used = {sha for key, sha in files.items() if f"{key}/".startswith(f"{name}/")}
        used |= set(_models_used(record).get(str(Path(path)), {}).values())
        if used & own:
            yield f"{name}/"


_DECIDED: Final[Mapping[str, Verdict]] = {"good": "yes", "wrong": "no"}
_NO_BRACES: Final = str.maketrans("{}", "()")


def _inputs(record: CommandRecord, option: str) -> list[Path]:
    """Existing input files of an option."""
    entries = record.manifest["inputs"]
    paths = [Path(entry["path"]) for name, entry in entries.items() if name.split("/")[0] == option]
    return [path for path in paths if path.is_file()]


def _limits(record: CommandRecord) -> list[str]:
    """Limits that a result states."""
    names = [name for name in record.outputs if name.endswith(".json") and "/" not in name]
    screens = (load_object(record.folder / name).get("first_screen") or {} for name in names)
    texts = [text for screen in screens for text in screen.get("limits") or ()]
    return [f"Limit of {record.manifest['command']}: {text}" for text in texts]


def _process(record: CommandRecord, roles: Sequence[Role]) -> Iterator[str]:
    """What process was supervised by a training run."""
    command, config = str(record.manifest["command"]), record.manifest["config"]
    traces, labels = _inputs(record, "traces"), _inputs(record, "labels")
    if command == "rl":
        credit = (config.get("rl") or {}).get("credit") or {}
        rule = credit.get("rule") or credit.get("name") or "unknown"
        judge = config.get("judge") or {}
        judges = ", ".join([*(judge.get("names") or ()), *(judge.get("verifier") or ())]) or "outcomes alone"
        name = config.get("policy")
        problems = ", ".join(path.name for path in _inputs(record, "problems")) or "the lab"
        yield (
            f"The policy {name} was trained on problems of {problems}; "
            f"each step of its solutions was rewarded by the credit rule '{rule}' from {judges}."
        )
    elif traces and command.startswith("train"):
        cut: Counter[str] = Counter()
        steps = count = 0
        for row in (row for path in traces for row in rows_of(path)):
            cut[str(row.get("granularity") or "the data set")] += 1
            steps, count = steps + len(row.get("steps") or ()), count + 1
        rows = (row for path in labels for row in rows_of(path))
        kinds = Counter(f"{row['kind']} labels from {row['source']}" for row in rows)
        policy = next(role for role in roles if role.name == "policy")
        writer = ", ".join(policy.filled_by)
        labelled = ", ".join(kinds) or "outcomes of the final answers"
        yield (
            f"The reasoning steps of {counted(count, 'solution')} ({counted(steps, 'step')}, cut by "
            f"{' and '.join(cut)}), written by a policy ({writer}), were supervised with {labelled}."
        )


def _label_sentences(
    claims: Sequence[CardClaim], records: Sequence[CommandRecord], models: Sequence[CardModel]
) -> Iterator[str]:
    """How the labels were produced: sources, numbers, cost, noise, agreement."""
    for model in models:
        if model.facts:
            yield f"{model.path} learned from labels of the source '{model.facts['label_source']}'."
    for record in records:
        for judge in _judges(record):
            if facts := _facts(Path(judge)):
                yield f"The reward model {judge} learned from labels of the source '{facts.label_source}'."
    for claim in claims:
        name = claim.id.rpartition("#")[2]
        if name.startswith(("label", "cost-", "agreement-")):
            yield claim.text
    for record in records:
        labels = _inputs(record, "labels")
        raters = {(row.get("evidence") or {}).get("rater") for path in labels for row in rows_of(path)}
        if labels and len(raters - {None}) < 2:
            yield f"The labels name {counted(len(raters - {None}), 'rater')}, so no agreement is known."
    if not any("cost" in claim.id for claim in claims):
        yield "The cost of the labels is not recorded."
    if not any("label noise" in claim.tests for claim in claims):
        yield "The noise of the labels was not measured against a better source."


_SHIPPED: Final[Mapping[Any, str]] = {"lab": portable(POLICY)}
"""Names of models that mean one of the package."""
_SAMPLES: Final = ("sample", "rl", "imitate")
"""Commands that sample from a policy."""


def _roles(chain: Sequence[CommandRecord], models: Sequence[CardModel]) -> tuple[Role, ...]:
    """The eight roles from the commands of the chain and the checkpoints."""
    filled: dict[str, dict[str, set[str]]] = {role: {} for role in ROLES}

    def add(role: str, name: object, *bases: object) -> None:
        if name:
            filled[role].setdefault(str(name), set()).update(str(base) for base in bases if base)

    for model in models:
        if model.facts:
            base = _SHIPPED.get(model.facts["base"], model.facts["base"])
            kind = "outcome reward model" if model.facts["kind"] == "orm" else "process reward model"
            add(kind, model.path, base)
            add("base model", base, base)
    for record in chain:
        command, config = str(record.manifest["command"]), record.manifest["config"]
        policy = config.get("policy")
        name = policy.get("name") if isinstance(policy, dict) else policy
        name = _SHIPPED.get(name, name)
        group = command.split(" ")[0]
        if command == "label" and config["role"]:
            add(config["role"], name, name)
        elif command in _SAMPLES or group == "search":
            add("policy", name, name)
        if command == "rl":
            add("base model", name, name)
            for judge in _judges(record):
                facts = _facts(Path(judge))
                role = "outcome reward model" if facts and facts.kind == "orm" else "process reward model"
                add(role, judge, facts and _SHIPPED.get(facts.base, facts.base))
        if config.get("environment"):
            add("tool scaffold", config["environment"])
        if command == "guard fit":
            add("deployment monitor", shown_path(record.path))
        for path in _inputs(record, "labels"):
            for source in {str(row.get("source")) for row in rows_of(path)}:
                if source.startswith("human") or source in ("expert", "prm800k"):
                    add("human label source", source)
    if not filled["policy"] and any(_inputs(record, "traces") for record in chain):
        add("policy", "not recorded in the data")
    bases = {role: {base for names in entries.values() for base in names} for role, entries in filled.items()}
    return tuple(
        Role(
            name=role,
            filled_by=tuple(sorted(entries)) or ("not used",),
            base=tuple(sorted(bases[role])),
            shares_base_with=tuple(other for other in ROLES if other != role and bases[other] & bases[role]),
        )
        for role, entries in filled.items()
    )


def _judges(record: CommandRecord) -> tuple[str, ...]:
    """Reward models that an RL run learned from."""
    return tuple((record.manifest["config"].get("judge") or {}).get("names") or ())


def _facts(folder: Path) -> CheckpointCard | None:
    try:
        return read_card(folder)
    except CheckpointError:
        return None


def _summary(claims: Sequence[CardClaim], models: Sequence[CardModel], not_tested: Sequence[str]) -> str:
    """One line: the main result, missing tests, source of the threshold."""
    names = ("prm-lead", "step-auc", "gain", "orm-lead")
    held_out = [c for name in names for c in claims if c.id.endswith(f"#{name}")]
    held_out += [c for c in claims if "wrong steps on held-out problems" in c.tests]
    main = [*held_out, *claims][0]
    subject = "improves held-out accuracy" if main.id.endswith("#gain") else "detects wrong steps"
    result = subject if main.verdict == "yes" else f"is not shown to be a model that {subject}"
    trust = next((m.facts["trust"] for m in models if m.facts.get("trust")), None)
    data = next(
        (m.facts["tested"]["data"] for m in models if m.facts.get("tested")), "the problems of its run"
    )
    limit = f"{trust['threshold']:.3g}, held-out problems: {trust['problems']}" if trust else "none fitted"
    figure, missing = main.text.rstrip("."), ", ".join(not_tested)
    return f"{result} on {data} ({figure}); not tested: {missing}; threshold: {limit}"
