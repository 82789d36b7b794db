"""Records in files, and run directories that can be killed and resumed."""

from surefoot.io._atomic import atomic_file, write_json
from surefoot.io.files import ReadReport, read_records, write_records
from surefoot.io.runs import JSON, Run, Shards

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
