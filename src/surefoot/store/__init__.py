"""Records in files, and run directories that can be killed and resumed."""

from surefoot.store._atomic import atomic_file, write_json
from surefoot.store.files import ReadReport, read_records, write_records
from surefoot.store.runs import JSON, Run, Shards

__all__ = [
    "JSON",
    "ReadReport",
    "Run",
    "Shards",
    "atomic_file",
    "read_records",
    "write_json",
    "write_records",
]
