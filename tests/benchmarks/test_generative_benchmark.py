"""The benchmark of generative verifiers runs, at a size at which nothing is learned."""

from __future__ import annotations

import json

import pytest

from benchmarks.verifiers import generative


@pytest.mark.slow
def test_it_trains_and_evaluates(tmp_path, monkeypatch, capsys):
    sizes = ["--traces", "12", "--epochs", "1", "--test", "2", "--out", str(tmp_path / "verifier")]
    monkeypatch.setattr("sys.argv", ["generative.py", *sizes])
    generative.main()
    trained, tested = (
        json.loads(text) for text in capsys.readouterr().out.replace("}\n{", "}\0{").split("\0")
    )
    assert trained["critiques"] == 24
    assert 0 < trained["kept"] <= 24
    assert tested["traces"] == 2
