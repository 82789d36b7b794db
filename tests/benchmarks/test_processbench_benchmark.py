"""The known F1 of published verifiers, recomputed by the benchmark from their real scores."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DATA = ROOT / "../shared/data"


@pytest.fixture(scope="module")
def benchmark():
    if not (DATA / "calib/fover_processbench_scores.jsonl.gz").exists():
        pytest.skip(f"published scores not found under {DATA}")
    from benchmarks.verifiers import run

    return run


def test_known_figures_to_one_decimal(benchmark, capsys):
    found = benchmark.evaluate(DATA, draws=10, rules=(0.5,))
    figures = {figure["name"]: figure for figure in benchmark.figures(found)}
    assert len(figures) == 42
    for (verifier, subset), known in benchmark.KNOWN.items():
        assert round(figures[f"f1_{subset}_{verifier}"]["value"], 1) == known
    assert (found.traces, found.left_out) == (500, 900)
    assert benchmark.disagreeing(found) == []
    # steps after the first error are unscored, so every erroneous trace but those that end there is partial
    assert {score.partial for score in found.scores} == {found.scores[0].partial}
