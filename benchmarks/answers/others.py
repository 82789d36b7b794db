"""Verdicts of math-verify and of lm-evaluation-harness's `hendrycks_math`, in a Python that has them.

Pairs of answer and reference as JSON from standard input; the verdicts and seconds of each grader to standard
output. Needs nothing of this package.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any


def main() -> None:
    """Grade all pairs by each grader that is installed."""
    tasks = json.load(sys.stdin)
    graders: dict[str, Any] = {}
    if find_spec("math_verify"):
        from math_verify import parse, verify

        def grade(answer: str, reference: str) -> bool | None:
            gold, target = (parse(_delimited(text)) for text in (reference, answer))
            return bool(verify(gold, target)) if gold and target else None

        graders["math-verify"] = grade
    if package := find_spec("lm_eval"):
        datasets: Any = ModuleType("datasets")  # which the file imports and the function does not need
        datasets.Dataset = object
        sys.modules.setdefault("datasets", datasets)
        file = Path(str(package.origin)).parent / "tasks/hendrycks_math/utils.py"
        spec = spec_from_file_location("hendrycks_math", file)
        module: Any = module_from_spec(spec) if spec else None
        if spec and spec.loader:
            spec.loader.exec_module(module)
            graders["lm-eval"] = module.is_equiv
    found = {}
    for name, grader in graders.items():
        begin = time.perf_counter()
        verdicts = [grader(*task) for task in tasks]
        found[name] = (verdicts, time.perf_counter() - begin)
    json.dump(found, sys.stdout)


def _delimited(text: str) -> str:
    """As math-verify wants it: LaTeX between dollars."""
    bare = text.rstrip(".")
    return text if "$" in text.replace("\\$", "") or "\\(" in text else f"${bare}${text[len(bare) :]}"


if __name__ == "__main__":
    main()
