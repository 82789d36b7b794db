"""Answers as vLLM gives them (shapes recorded from vLLM 0.32), computed from a tiny checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from openai_server import Body, OpenAIServer, Reply, serve

from surefoot import load_prm


class ScoringEngine:
    """The interfaces in ``offered``, by path; ``tag`` makes ``/pooling`` a STEP pooler.

    ``single`` folds the two classes into one sigmoid, as ``--convert classify`` with ``from_2_way_softmax``
    does. ``blur`` mixes all tokens into every row, as a server would that does not read causally.
    """

    def __init__(
        self,
        checkpoint: Path,
        *offered: str,
        tag: int | None = None,
        single: bool = False,
        blur: float = 0.0,
        family: str | None = None,
    ) -> None:
        self.model: Any = load_prm(checkpoint, family=family).model
        self.offered, self.tag, self.single, self.blur = offered, tag, single, blur

    def logits(self, ids: Sequence[int]) -> torch.Tensor:
        """The head's logits at each token, ``[T, C]``."""
        with torch.no_grad():
            states = self.model.trunk(input_ids=torch.tensor([list(ids)])).last_hidden_state[0]
            logits = self.model.head(states.float())
        return logits + self.blur * logits.mean(dim=0)

    def rows(self, ids: Sequence[int]) -> torch.Tensor:
        """Probabilities at each token."""
        rows = self.logits(ids).softmax(dim=-1)
        return rows[:, :1] if self.single else rows

    def __call__(self, body: Body) -> Reply:
        if "/pooling" not in self.offered:
            return Reply(status=404, payload={"detail": "Not Found"})
        return Reply(payload=self._pooling(body))

    def _pooling(self, body: Body) -> Body:
        data = []
        for index, ids in enumerate(body["input"]):
            rows = self.rows(ids)
            if self.tag is not None:
                rows = rows[torch.tensor(ids) == self.tag]
            data.append({"index": index, "object": "pooling", "data": rows.tolist()})
        return {"id": "pooling-1", "object": "list", "model": body["model"], "data": data, "usage": {}}


@contextmanager
def served(
    engine: Callable[[Body], Reply], root: Path | str, *, owner: str = "vllm"
) -> Iterator[OpenAIServer]:
    """The engine on a socket; ``root`` is where it says that its model is."""
    with serve(engine) as server:
        server.models = [
            {"id": str(root), "object": "model", "owned_by": owner, "root": str(root), "max_model_len": 512}
        ]
        yield server


def address(server: OpenAIServer) -> str:
    """Its address without ``/v1``."""
    return server.url.removesuffix("/v1")
