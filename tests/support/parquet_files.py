"""Records in Parquet, as other programs write them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from surefoot.io import write_records
from surefoot.records import Record


def write_parquet(path: Path, records: Iterable[Record]) -> None:
    """The rows of the records, a column for each field, of the types that pyarrow finds."""
    rows = [dict.fromkeys(type(row).model_fields) | row.model_dump(mode="json") for row in records]
    pq.write_table(pa.Table.from_pylist(rows), path)


def write_as(path: Path, records: Iterable[Record]) -> None:
    """The records in the format that the file's ending names."""
    (write_parquet if path.suffix == ".parquet" else write_records)(path, records)
