"""benchmarks/fair_turns/attacks.py: a small run of some classes of attack."""

import json
import sys

import pytest

from benchmarks.fair_turns import attacks


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="attackers have addresses that only Linux's loopback has")
def test_an_innocent_client_is_served_during_attacks(tmp_path, capsys):
    names = ["none", "gzip bombs", "deep JSON"]
    file = tmp_path / "figures.json"
    small = ["--seconds", "0.5", "--attackers", "2"]
    outcomes = attacks.main([*small, "--only", *names, "--json", str(file)])
    assert [one.name for one in outcomes] == names
    for one in outcomes:
        assert set(one.innocent) == {"200"}
        assert one.failures == 0
        assert one.percentile(50) < 5
    quiet, *attacked = outcomes
    assert not quiet.attackers
    for one in attacked:
        assert set(one.attackers) == {"400"}
    assert len(json.loads(file.read_text())["figures"]) == 2 * len(names)
    assert capsys.readouterr().out.count("\n") == 2 + len(names)
