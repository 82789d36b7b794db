"""Records in files, and run directories that can be killed and resumed."""

from surefoot.store._atomic import write_json
from surefoot.store.files import ReadReport, read_records, write_records
from surefoot.store.runs import JSON, Run, Shards

__all__ = ["JSON", "ReadReport", "Run", "Shards", "read_records", "write_json", "write_records"]
