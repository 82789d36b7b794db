"""Opening a reward model by its server's address: what is served, of which family, by which interface."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from surefoot.errors import CheckpointError, PolicyError, ScoreError
from surefoot.io.hub import checkpoint_directory
from surefoot.models.families.checkpoint import Checkpoint
from surefoot.models.families.published import PublishedModel
from surefoot.models.families.registry import FAMILIES, Family, family_named, find_family, quoted
from surefoot.models.families.thinkprm import ThinkPRM
from surefoot.models.kinds.generative import FAMILY as GENERATIVE
from surefoot.models.kinds.generative import GenerativeVerifier
from surefoot.models.kinds.verifier_format import VerifierFormat
from surefoot.models.kinds.yes_no import OpenAIYesNo
from surefoot.models.remote.scorer import RemoteScorer, self_test, server_root
from surefoot.models.remote.step_prompts import (
    GenerativeScoring,
    SglangReward,
    SglangScoring,
    VllmClassify,
    VllmScore,
)
from surefoot.models.remote.wire_formats import GatewayScore, VllmPooling, Wire
from surefoot.models.scorer import CheckpointScorer
from surefoot.policies.openai import OpenAIPolicy
from surefoot.policies.servers import ServedModel, checked_url, list_models

_CONTEXT = 2048
"""Tokens, where a server does not say how many its model reads."""


@dataclass(frozen=True, kw_only=True)
class ServerAddress:
    """``http://host:8000?model=NAME#FAMILY``: model and family are left out where there is one to find."""

    root: str
    """Without ``/v1``."""
    model: str | None
    family: str | None

    @classmethod
    def parse(cls, url: str) -> Self:
        """Raises ``CheckpointError`` for an address that no request can go to."""
        parts = urlsplit(url)
        plain = parts._replace(query="", fragment="").geturl()
        try:
            root = server_root(checked_url(plain))
        except PolicyError as error:
            raise CheckpointError(str(error)) from error
        names = parse_qs(parts.query).get("model", [None])
        return cls(root=root, model=names[0], family=parts.fragment or None)


def open_server(
    url: str, *, family: str | None = None, tokenizer: str | Path | None = None, chains: int = 1
) -> CheckpointScorer:
    """The reward model at ``url`` (:class:`ServerAddress`).

    A gateway of this package scores by itself. Of vLLM and SGLang the family decides which tokens are sent
    and how the answer is read. The family is the one given, else that of the served model's name or files;
    the tokens come from ``tokenizer``, else from where the server says that its model is. The interfaces that
    the family can be read through are tried in turn, and the first that passes :func:`self_test` is used.

    With the family ``generative`` (or ThinkPRM, whose format is the default) the model at an
    OpenAI-compatible server writes ``chains`` critiques per trace, and the odds of yes are read from its log
    probabilities.

    Raises ``CheckpointError``, in one sentence with the address: nobody answers, the key is refused, the
    model or its family is not known, or there is no interface with step scores.
    """
    address = ServerAddress.parse(url)
    family = family or address.family
    if family not in (None, GENERATIVE, *FAMILIES):
        known = quoted([GENERATIVE, *FAMILIES])
        raise CheckpointError(f"{url}: family={family!r} is not known; a server has one of {known}")
    served = _served(address)
    if family is None and served.owned_by == "surefoot":
        return _gateway(address)
    named = family or family_named(served.root or served.id) or family_named(served.id)
    if named in (GENERATIVE, ThinkPRM.CARD.family):
        return _generative(address, served, chains)
    words = Tokens.find(address.root, served, family=family, tokenizer=tokenizer)
    failures = []
    for name, wire in wires(words, served):
        try:
            scorer = RemoteScorer(
                wire, base_url=address.root, name=Path(served.id).name, card=words.family.CARD
            )
        except ScoreError as error:
            failures.append(f"{name}: {str(error).split(': ', 1)[-1]}")
            continue
        if not (problems := self_test(scorer)):
            return scorer
        failures.append(f"{name}: {problems[0]}")
    raise CheckpointError(
        f"{address.root} gives no step scores of family {words.family.CARD.family!r}: {'; '.join(failures)}; "
        f"'surefoot serve-config {served.root or served.id}' shows how to start it"
    )


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """A family, and the tokenizer of one of its models."""

    family: type[PublishedModel]
    tokenizer: PreTrainedTokenizerBase

    @classmethod
    def find(
        cls, where: str, served: ServedModel, *, family: str | None, tokenizer: str | Path | None
    ) -> Self:
        """What a served model is and reads. Raises ``CheckpointError``, which begins with ``where``."""
        source = str(tokenizer or served.root or served.id)
        name = family or family_named(served.root or served.id) or family_named(served.id)
        found: type[Any] = FAMILIES[name] if name else _by_files(where, served, source)
        if not issubclass(found, PublishedModel):
            raise CheckpointError(
                f"{where}: family {found.CARD.family!r} is not read from a server of this kind; serve it "
                f"with 'surefoot serve --prm {served.root or served.id}'"
            )
        try:
            loaded = AutoTokenizer.from_pretrained(checkpoint_directory(source))
        except (OSError, ValueError, ImportError, CheckpointError) as error:
            raise CheckpointError(
                f"{where} serves {served.id}, and its tokenizer is not here ({source}: "
                f"{str(error).splitlines()[0]}); name a directory or hub name with it: --prm-tokenizer"
            ) from error
        return cls(family=found, tokenizer=loaded)


def wires(words: Tokens, served: ServedModel) -> Iterator[tuple[str, Wire]]:
    """The interfaces that could give the family's scores, cheapest first, with their names."""
    context = served.max_model_len or _CONTEXT
    encoder = words.family.encoder(words.tokenizer, max_length=context)
    shared: dict[str, Any] = {"encoder": encoder, "model": served.id, "rule": encoder.score_of}
    labels = words.family.answer_ids(words.tokenizer)
    # one token of the context is for the answer that the server draws and throws away
    shorter = shared | {"encoder": words.family.encoder(words.tokenizer, max_length=context - 1)}
    if served.owned_by != "sglang":
        tag = words.family.step_tag_id(words.tokenizer)
        if tag is not None:
            yield "/pooling (STEP)", VllmPooling(**shared, rows="steps", step_tag_id=tag)
        yield "/pooling", VllmPooling(**shared)
        yield "/classify", VllmClassify(**shared)
        if labels:
            yield "/generative_scoring", GenerativeScoring(**shorter, labels=labels)
            yield "/score", VllmScore(**shared, tokenizer=words.tokenizer)
    if served.owned_by != "vllm":
        if labels:
            yield "/v1/score", SglangScoring(**shorter, labels=labels)
        yield "/classify (SGLang)", SglangReward(**shared)


def _served(address: ServerAddress) -> ServedModel:
    """The model asked for, or the only one. Raises ``CheckpointError``."""
    try:
        models = list_models(f"{address.root}/v1")
    except PolicyError as error:
        raise CheckpointError(str(error)) from error
    names = [model.id for model in models]
    if models and all(model.owned_by == "surefoot" for model in models) and address.model is None:
        return models[0]
    chosen = [model for model in models if address.model in (None, model.id)]
    if len(chosen) == 1:
        return chosen[0]
    listed = ", ".join(names[:10]) or "no model"
    if address.model is not None:
        raise CheckpointError(f"{address.root} serves {listed} and not the model {address.model!r}")
    raise CheckpointError(f"{address.root} serves {listed}; name one: {address.root}?model=NAME")


def _by_files(where: str, served: ServedModel, source: str) -> Family:
    """The family that a directory on this machine shows. Raises ``CheckpointError``."""
    if Path(source).is_dir():
        return find_family(Checkpoint(Path(source)), name=source)
    raise CheckpointError(
        f"{where} serves {served.id}, whose name is of no known family; say which with family= (--family) or "
        f"as {where}#FAMILY: {quoted([GENERATIVE, *FAMILIES])}"
    )


def _gateway(address: ServerAddress) -> RemoteScorer:
    wire = GatewayScore(model=address.model)
    try:
        return RemoteScorer(wire, base_url=address.root, name=urlsplit(address.root).netloc)
    except ScoreError as error:
        raise CheckpointError(str(error)) from error


def _generative(address: ServerAddress, served: ServedModel, chains: int) -> GenerativeVerifier:
    form, base_url = VerifierFormat(), f"{address.root}/v1"
    dialect: Any = "vllm" if served.owned_by == "vllm" else "openai"
    policy = OpenAIPolicy(model=served.id, base_url=base_url, dialect=dialect)
    reader = OpenAIYesNo(model=served.id, base_url=base_url, yes=form.yes, no=form.no)
    return GenerativeVerifier(policy, reader, form=form, chains=chains)
