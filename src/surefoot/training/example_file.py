"""Examples on disk: encoded once, then read as they are needed, by every process that trains on them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from surefoot.io.atomic import atomic_path
from surefoot.io.joins import LabelledTraces
from surefoot.io.tables import OnDisk
from surefoot.models.encoding import Encoding
from surefoot.models.engine.tensor_shards import content_key
from surefoot.training.config import OutcomeTargets, StepTargets
from surefoot.training.examples import DropCounter, Example, ExampleSet, encode_examples

_SCHEMA = pa.schema(
    [
        ("trace_id", pa.string()),
        ("ids", pa.list_(pa.int32())),
        ("positions", pa.list_(pa.int32())),
        ("targets", pa.list_(pa.float64())),
    ]
)
_ROWS = 1024
"""Examples of one batch of the file."""
_LEFT_OUT = b"left_out"


class ExampleFile(OnDisk[Example]):
    """Examples of an Arrow file that is mapped into memory; made by :func:`write_examples`.

    What is held of an example is its length and its lowest target, twelve bytes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reader = pa.ipc.open_file(pa.memory_map(str(path)))
        batches = [self._reader.get_batch(number) for number in range(self._reader.num_record_batches - 1)]
        none: list[NDArray[Any]] = [np.zeros(0)]
        self.lengths: NDArray[np.int32] = np.concatenate(
            [np.diff(_offsets(batch["ids"])).astype(np.int32) for batch in batches] or none
        )
        """Tokens of each."""
        self.lowest: NDArray[np.float64] = np.concatenate(
            [
                np.minimum.reduceat(batch["targets"].values.to_numpy(), _offsets(batch["targets"])[:-1])
                for batch in batches
            ]
            or none
        )
        """Lowest target of each."""
        last = self._reader.get_batch_with_custom_metadata(len(batches))
        self.left_out = DropCounter.from_json(json.loads(last.custom_metadata[_LEFT_OUT]))
        """What is not among the examples, by reason."""

    @property
    def digest(self) -> str:
        """The name of the file, which identifies its inputs."""
        return self.path.stem

    def __len__(self) -> int:
        return len(self.lengths)

    def between(self, start: int, stop: int) -> Iterator[Example]:
        """Examples ``start … stop - 1``, read as they are asked for."""
        while start < stop:
            number, row = divmod(start, _ROWS)
            batch = self._reader.get_batch(number)
            end = min(_ROWS, row + stop - start)
            names = batch["trace_id"].slice(row, end - row).to_pylist()
            columns = [_rows(batch[name], row, end) for name in ("ids", "positions", "targets")]
            for name, ids, positions, targets in zip(names, *columns, strict=True):
                yield Example(trace_id=name, ids=ids, positions=positions, targets=targets)
            start += end - row


def write_examples(path: Path, examples: Iterable[Example], left_out: DropCounter) -> None:
    """Write ``examples`` as they come, then what ``left_out`` has counted. The file is whole or absent."""
    with (
        atomic_path(path) as temporary,
        pa.OSFile(str(temporary), "wb") as sink,
        pa.ipc.new_file(sink, _SCHEMA) as writer,
    ):
        waiting = iter(examples)
        while chunk := list(islice(waiting, _ROWS)):
            columns = [[getattr(item, name) for item in chunk] for name in _SCHEMA.names]
            writer.write_batch(
                pa.record_batch(
                    [pa.array(c, t) for c, t in zip(columns, _SCHEMA.types, strict=True)], schema=_SCHEMA
                )
            )
        nothing = pa.record_batch([pa.array([], kind) for kind in _SCHEMA.types], schema=_SCHEMA)
        writer.write_batch(nothing, custom_metadata={_LEFT_OUT: json.dumps(left_out.to_json()).encode()})


def stored_examples(
    directory: Path,
    tokenizer: PreTrainedTokenizerBase,
    encoding: Encoding,
    items: LabelledTraces,
    targets: StepTargets | OutcomeTargets,
) -> ExampleSet[Example]:
    """:func:`surefoot.training.examples.build_examples`, into a file of ``directory`` that is made once.

    The file's name is a hash of the data's files, tokenizer, encoding and targets. Of several processes the
    first of each machine writes it, and the others wait.
    """
    name = content_key(
        items.digest, tokenizer.backend_tokenizer.to_str(), tokenizer.chat_template, encoding, targets
    )
    path = directory / f"{name}.arrow"
    if not path.exists():
        if int(os.environ.get("LOCAL_RANK", "0")):
            _wait_for(path)
        else:
            directory.mkdir(parents=True, exist_ok=True)
            left_out = DropCounter()
            write_examples(path, encode_examples(tokenizer, encoding, items, targets, left_out), left_out)
    examples = ExampleFile(path)
    return examples.left_out.example_set(examples)


def _wait_for(path: Path) -> None:
    """If the process that writes fails, the launcher ends this one too."""
    while not path.exists():
        time.sleep(0.2)


def _offsets(column: Any) -> NDArray[np.int32]:
    return np.asarray(column.offsets.to_numpy())


def _rows(column: Any, start: int, stop: int) -> list[tuple[Any, ...]]:
    offsets, values = _offsets(column), column.values.to_numpy()
    return [tuple(values[offsets[row] : offsets[row + 1]].tolist()) for row in range(start, stop)]
