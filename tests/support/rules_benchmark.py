"""``benchmarks/_rules_models.py``: the tiny policies and the split of the rule world."""

import sys
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
try:
    models = import_module("_rules_models")
    benchmark = import_module("rules")
finally:
    sys.path.pop(0)
