"""The command that starts a server for a reward model, and a check that the server does what was asked.

Only what the servers themselves can read is offered: vLLM reads a step at a tag (pooling type ``STEP``) or
gives a row for every token (``ALL``), of the head that a checkpoint has, or of two tokens of a language model
(``--convert classify``). SGLang gives next-token probabilities. This package's gateway serves every kind.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from surefoot.errors import CheckpointError
from surefoot.models.families.math_shepherd import MathShepherd
from surefoot.models.families.pure import Pure
from surefoot.models.families.qwen_prm import QwenPRM
from surefoot.models.families.rlhflow import RLHFlow
from surefoot.models.remote.opening import Tokens, open_server
from surefoot.models.remote.scorer import RemoteScorer, self_test
from surefoot.models.remote.wire_formats import VllmPooling
from surefoot.policies.servers import ServedModel
from surefoot.protocols import StepScorer

Engine = Literal["vllm", "sglang", "surefoot"]

VLLM_FAMILIES = (QwenPRM, Pure, MathShepherd, RLHFlow)
SGLANG_FAMILIES = (MathShepherd, RLHFlow)


def find_tokens(model: str, *, family: str | None = None, tokenizer: str | Path | None = None) -> Tokens:
    """Family and tokenizer of a published model, a directory or hub name. Raises ``CheckpointError``."""
    return Tokens.find(model, ServedModel(id=model), family=family, tokenizer=tokenizer)


def server_command(words: Tokens, model: str, *, engine: Engine = "vllm", port: int = 8000) -> list[str]:
    """The command, word by word. Raises ``CheckpointError`` if the engine cannot read the family's scores."""
    family = words.family
    if engine == "surefoot":
        return ["surefoot", "serve", "--port", str(port), "--prm", model]
    able = VLLM_FAMILIES if engine == "vllm" else SGLANG_FAMILIES
    if family not in able:
        names = ", ".join(one.CARD.family for one in able)
        raise CheckpointError(
            f"{engine} does not read step scores of family {family.CARD.family!r} (but of {names}); "
            f"'surefoot serve --prm {model}' does"
        )
    if engine == "sglang":
        command = ["python", "-m", "sglang.launch_server", "--model-path", model]
        return [*command, "--port", str(port)]
    options = ["--port", str(port), "--runner", "pooling"]
    if labels := family.answer_ids(words.tokenizer):
        good, bad = words.tokenizer.convert_ids_to_tokens(list(labels))
        # vLLM subtracts the first token's row of the head from the second's: a sigmoid is then the softmax
        overrides = {"classifier_from_token": [bad, good], "method": "from_2_way_softmax"}
        options += ["--convert", "classify", "--hf-overrides", json.dumps(overrides, ensure_ascii=False)]
    pooler: dict[str, object] = {"task": "token_classify", "tok_pooling_type": "ALL"}
    if (tag := family.step_tag_id(words.tokenizer)) is not None:
        pooler |= {"tok_pooling_type": "STEP", "step_tag_id": tag}
    return ["vllm", "serve", model, *options, "--pooler-config", json.dumps(pooler)]


def check_server(
    url: str, words: Tokens, *, tokenizer: str | Path | None = None, reference: StepScorer | None = None
) -> str:
    """The interface of a running server that passes :func:`surefoot.models.remote.scorer.self_test`.

    Raises ``CheckpointError`` if none does, if scores are not those of ``reference``, or if the server
    answers for every token where it should for each step's tag: what vLLM did before its fix of September
    2026 (pull request 55307), which ignored ``STEP`` with ``--convert classify`` without a word.
    """
    scorer = open_server(url, family=words.family.CARD.family, tokenizer=tokenizer)
    if not isinstance(scorer, RemoteScorer):
        raise CheckpointError(f"{url} gives no step scores of its own")
    if problems := self_test(scorer, reference=reference):
        raise CheckpointError(f"{url}: {problems[0]}")
    wire = scorer.wire
    tag = words.family.step_tag_id(words.tokenizer)
    if isinstance(wire, VllmPooling) and wire.rows == "tokens" and tag is not None:
        raise CheckpointError(
            f"{url} answers for every token, not for each step's tag {tag}: it was started without "
            "pooling type STEP, or is a vLLM that ignores it (before its fix of September 2026); "
            "scores read by this package are right all the same, those of other clients are not"
        )
    return wire.path
