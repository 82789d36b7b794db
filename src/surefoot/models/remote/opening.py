"""Open a reward model by its server's address; print the command that starts such a server, and check it.

vLLM reads a step at a tag (pooling type ``STEP``) or returns a row for every token (``ALL``), from a
checkpoint's head or from two tokens of a language model (``--convert classify``). This package's gateway
serves every kind.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import parse_qs, urlsplit

from surefoot.errors import CheckpointError, LabelError, PolicyError, ScoreError
from surefoot.io.sources import checkpoint_directory, reading_checkpoint
from surefoot.labelling.judge_scores import Rubric, RunJudge
from surefoot.models.card import GENERATIVE
from surefoot.models.families.registry import FAMILIES, family_named, find_family, quoted
from surefoot.models.kinds.derived import JudgedStates
from surefoot.models.kinds.verifier_format import VerifierFormat
from surefoot.models.remote.scorer import RemoteScorer, server_root
from surefoot.models.remote.wires import GatewayScore, VllmPooling, Wire
from surefoot.models.scorer import CheckpointScorer
from surefoot.policies.openai import OpenAIPolicy
from surefoot.policies.probe import ServedModel, checked_url, list_models
from surefoot.protocols import Sampling, StepScorer

if TYPE_CHECKING:  # a gateway's scores need none of them
    from transformers import PreTrainedTokenizerBase

    from surefoot.models.families.published import PublishedModel
    from surefoot.models.kinds.generative import GenerativeVerifier

_CONTEXT = 2048
"""Tokens, if a server does not state its model's context."""


@dataclass(frozen=True, kw_only=True)
class ServerAddress:
    """``http://host:8000?model=NAME#FAMILY``; model and family are optional if the server implies them.

    ``http://host:8000?model=NAME&rubric=RUBRIC`` is a language model as a judge of states.
    """

    root: str
    """Without ``/v1``."""
    model: str | None
    family: str | None
    rubric: str | None = None

    @classmethod
    def parse(cls, url: str) -> Self:
        """Raises ``CheckpointError`` unless it is an HTTP address."""
        parts = urlsplit(url)
        plain = parts._replace(query="", fragment="").geturl()
        try:
            root = server_root(checked_url(plain))
        except PolicyError as error:
            raise CheckpointError(str(error)) from error
        fields = {name: values[0] for name, values in parse_qs(parts.query).items()}
        family, rubric = parts.fragment or None, fields.get("rubric")
        return cls(root=root, model=fields.get("model"), family=family, rubric=rubric)


def open_server(
    url: str, *, family: str | None = None, tokenizer: str | Path | None = None, chains: int = 1
) -> CheckpointScorer:
    """Open the reward model at ``url`` (:class:`ServerAddress`).

    A gateway of this package scores without further help. For vLLM the family decides which tokens are
    sent and how the response is read. The family is the argument, or follows from the served model's name
    or files. The tokenizer is the argument, or the one at the path that the server reports for its model. The
    family's interfaces are tried in turn; the first whose scores pass :meth:`RemoteScorer.check` is used.

    With the family ``generative`` (or ThinkPRM, whose format is the default) the model behind an
    OpenAI-compatible server writes ``chains`` critiques per trace, and the odds of yes come from its log
    probabilities. With ``rubric=`` in the address (a packaged one or a file, as for
    :class:`surefoot.labelling.Rubric`) the model judges the state after each step, ``chains`` times
    (:class:`surefoot.models.JudgedStates`).

    Raises ``CheckpointError``, one sentence with the address: no server answers, the key is refused, the
    model or its family is unknown, or no interface gives step scores.
    """
    address = ServerAddress.parse(url)
    family = family or address.family
    if family not in (None, GENERATIVE, *FAMILIES):
        names = quoted([GENERATIVE, *FAMILIES])
        raise CheckpointError(f"{url}: family={family!r} is not known; a server has one of {names}")
    served = _served(address)
    if address.rubric is not None:
        return _judge(address, served, chains)
    if family is None and served.owned_by == "surefoot":
        return _gateway(address)
    named = family or family_named(served.root or served.id) or family_named(served.id)
    if named in (GENERATIVE, "thinkprm"):
        return _generative(address, served, chains)
    model = FamilyTokenizer.find(address.root, served, family=family, tokenizer=tokenizer)
    failures = []
    for name, wire in wires(model, served):
        try:
            return RemoteScorer(
                wire, base_url=address.root, name=Path(served.id).name, card=model.family.CARD
            )
        except ScoreError as error:
            failures.append(f"{name}: {str(error).split(': ', 1)[-1]}")
    raise CheckpointError(
        f"{address.root} does not give step scores of family {model.family.CARD.family!r}: "
        f"{'; '.join(failures)}; "
        "docs/how-to/other-reward-models.md shows how to start it"
    )


@dataclass(frozen=True, kw_only=True)
class FamilyTokenizer:
    """A family, and the tokenizer of one of its models."""

    family: type[PublishedModel]
    tokenizer: PreTrainedTokenizerBase

    @classmethod
    def find(
        cls, where: str, served: ServedModel, *, family: str | None, tokenizer: str | Path | None
    ) -> Self:
        """Family and tokenizer of a served model. Raises ``CheckpointError``, which begins with ``where``."""
        from transformers import AutoTokenizer

        from surefoot.models.families.published import PublishedModel

        source = str(tokenizer or served.root or served.id)
        name = family or family_named(served.root or served.id) or family_named(served.id)
        kind = FAMILIES[name or _family_of_files(where, served, source)].load()
        if not issubclass(kind, PublishedModel):
            raise CheckpointError(
                f"{where}: family {kind.CARD.family!r} is not read from a server of this kind; serve it "
                f"with 'surefoot serve --prm {served.root or served.id}'"
            )
        try:
            with reading_checkpoint("the tokenizer cannot be read"):
                loaded = AutoTokenizer.from_pretrained(checkpoint_directory(source), trust_remote_code=False)
        except CheckpointError as error:
            raise CheckpointError(
                f"{where} serves {served.id}, and its tokenizer is not here ({source}: "
                f"{str(error).splitlines()[0]}); name a directory or hub name with it: --prm-tokenizer"
            ) from error
        return cls(family=kind, tokenizer=loaded)


def find_tokenizer(
    model: str, *, family: str | None = None, tokenizer: str | Path | None = None
) -> FamilyTokenizer:
    """Family and tokenizer of a published model, a directory or hub name. Raises ``CheckpointError``."""
    return FamilyTokenizer.find(model, ServedModel(id=model), family=family, tokenizer=tokenizer)


def wires(model: FamilyTokenizer, served: ServedModel) -> Iterator[tuple[str, Wire]]:
    """The interfaces that may give the family's scores, cheapest first, with their names."""
    context = served.max_model_len or _CONTEXT
    encoder = model.family.encoder(model.tokenizer, max_length=context)
    shared: dict[str, Any] = {"encoder": encoder, "model": served.id, "rule": encoder.score_of}
    tag = model.family.step_tag_id(model.tokenizer)
    if tag is not None:
        yield "/pooling (STEP)", VllmPooling(**shared, step_tag_id=tag)
    yield "/pooling", VllmPooling(**shared)


def server_command(model: FamilyTokenizer, name: str, *, port: int = 8000) -> list[str]:
    """vLLM's command, as arguments. Raises ``CheckpointError`` if it cannot read the family's scores."""
    family = model.family
    able = [other for other, row in FAMILIES.items() if row.vllm]
    if family.CARD.family not in able:
        raise CheckpointError(
            f"vllm does not read step scores of family {family.CARD.family!r} (only of "
            f"{', '.join(able)}); 'surefoot serve --prm {name}' does"
        )
    options = ["--port", str(port), "--runner", "pooling"]
    if labels := family.answer_ids(model.tokenizer):
        good, bad = model.tokenizer.convert_ids_to_tokens(list(labels))
        # vLLM subtracts the first token's row of the head from the second's: a sigmoid is then the softmax
        overrides = {"classifier_from_token": [bad, good], "method": "from_2_way_softmax"}
        options += ["--convert", "classify", "--hf-overrides", json.dumps(overrides, ensure_ascii=False)]
    pooler: dict[str, object] = {"task": "token_classify", "tok_pooling_type": "ALL"}
    if (tag := family.step_tag_id(model.tokenizer)) is not None:
        pooler |= {"tok_pooling_type": "STEP", "step_tag_id": tag}
    return ["vllm", "serve", name, *options, "--pooler-config", json.dumps(pooler)]


def check_server(
    url: str,
    model: FamilyTokenizer,
    *,
    tokenizer: str | Path | None = None,
    reference: StepScorer | None = None,
) -> str:
    """The interface of a running server that passes :meth:`RemoteScorer.check`.

    Raises ``CheckpointError`` if none does, if scores differ from the scores of ``reference``, or if the
    server returns a row for every token instead of each step's tag. vLLM did that before its fix of September
    2026 (pull request 55307): it silently ignored ``STEP`` with ``--convert classify``.
    """
    scorer = open_server(url, family=model.family.CARD.family, tokenizer=tokenizer)
    if not isinstance(scorer, RemoteScorer):
        raise CheckpointError(f"{url} does not give step scores itself")
    try:
        scorer.check(reference)
    except ScoreError as error:
        raise CheckpointError(str(error)) from error
    wire, tag = scorer.wire, model.family.step_tag_id(model.tokenizer)
    if isinstance(wire, VllmPooling) and wire.step_tag_id is None and tag is not None:
        raise CheckpointError(
            f"{url} answers for every token, not for each step's tag {tag}: it was started without "
            "pooling type STEP, or is a vLLM that ignores it (before its fix of September 2026); "
            "this package still reads the right scores, but other clients do not"
        )
    return wire.path


def _served(address: ServerAddress) -> ServedModel:
    """The requested model, or the only one. Raises ``CheckpointError``."""
    try:
        models = list_models(f"{address.root}/v1")
    except PolicyError as error:
        raise CheckpointError(str(error)) from error
    if models and all(model.owned_by == "surefoot" for model in models) and address.model is None:
        return models[0]
    matches = [model for model in models if address.model in (None, model.id)]
    if len(matches) == 1:
        return matches[0]
    listed = ", ".join(model.id for model in models[:10]) or "no model"
    if address.model is not None:
        raise CheckpointError(f"{address.root} serves {listed} and not the model {address.model!r}")
    raise CheckpointError(f"{address.root} serves {listed}; name one: {address.root}?model=NAME")


def _family_of_files(where: str, served: ServedModel, source: str) -> str:
    """The family that a directory on this machine shows. Raises ``CheckpointError``."""
    if Path(source).is_dir():
        from surefoot.models.families.checkpoint import Checkpoint

        return find_family(Checkpoint(Path(source)), name=source)
    raise CheckpointError(
        f"{where} serves {served.id}, whose name does not show its family; name it with family= (--family) "
        f"or as {where}#FAMILY: {quoted([GENERATIVE, *FAMILIES])}"
    )


def _gateway(address: ServerAddress) -> RemoteScorer:
    wire = GatewayScore(model=address.model)
    try:
        return RemoteScorer(wire, base_url=address.root, name=urlsplit(address.root).netloc)
    except ScoreError as error:
        raise CheckpointError(str(error)) from error


def _judge(address: ServerAddress, served: ServedModel, repeats: int) -> JudgedStates:
    dialect: Any = "vllm" if served.owned_by == "vllm" else "openai"
    policy = OpenAIPolicy(model=served.id, base_url=f"{address.root}/v1", dialect=dialect)
    sampling = Sampling(temperature=float(repeats > 1), max_tokens=4096)
    try:
        rubric = Rubric.named(str(address.rubric))
    except LabelError as error:
        raise CheckpointError(f"{address.root}: {error}") from error
    return JudgedStates(RunJudge(policy=policy, rubric=rubric, repeats=repeats, sampling=sampling))


def _generative(address: ServerAddress, served: ServedModel, chains: int) -> GenerativeVerifier:
    from surefoot.models.kinds.generative import GenerativeVerifier
    from surefoot.models.kinds.yes_no import OpenAIYesNo

    form = VerifierFormat()
    dialect: Any = "vllm" if served.owned_by == "vllm" else "openai"
    policy = OpenAIPolicy(model=served.id, base_url=f"{address.root}/v1", dialect=dialect)
    reader = OpenAIYesNo(policy, yes=form.yes, no=form.no)
    return GenerativeVerifier(policy, reader, form=form, chains=chains)
