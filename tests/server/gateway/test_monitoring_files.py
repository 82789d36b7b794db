"""The ready-made dashboard and alert rules use metrics that the gateway has, in the form that is read."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from gateway_server import LineScorer, ask, lines, served
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.worlds.scripted import ScriptedPolicy
from surefoot.server import ChangeChart, MonitorSettings

FOLDER = Path(__file__).parents[3] / "examples" / "monitoring"
RULES = yaml.safe_load((FOLDER / "alerts.yml").read_text())
DASHBOARD = json.loads((FOLDER / "grafana.json").read_text())
_LATER = {"surefoot_gold_age_seconds"}
"""Metrics that exist once people have labelled something."""


class NoPeople:
    def add(self, project_id, record, chance):
        return False

    def results(self, project_id):
        return []


@pytest.fixture(scope="module")
def names():
    monitor = ChangeChart(MonitorSettings(gold_share=1, gold_project=1))
    with served(ScriptedPolicy(lines), LineScorer(), monitor=monitor, gold=NoPeople()) as found:
        text = ask(f"{found.root}/metrics")[1]
    families = list(text_string_to_metric_families(text))
    found = {family.name + ("_total" if family.type == "counter" else "") for family in families}
    return found | {f"{family.name}_bucket" for family in families if family.type == "histogram"}


def rules():
    return [rule for group in RULES["groups"] for rule in group["rules"]]


def used(expression):
    return set(re.findall(r"surefoot_\w+", expression))


def test_rules_use_metrics_that_exist(names):
    assert len(rules()) >= 6
    for rule in rules():
        assert {"alert", "expr", "labels", "annotations"} <= set(rule)
        assert used(rule["expr"])
        assert used(rule["expr"]) - _LATER <= names, rule["alert"]
        assert rule["annotations"]["summary"].endswith(".")


def test_the_dashboard_uses_metrics_that_exist_and_has_the_fields_that_grafana_needs(names):
    assert {"title", "uid", "schemaVersion", "panels", "templating", "time"} <= set(DASHBOARD)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in DASHBOARD["panels"]]
    assert len(set(places)) == len(places)
    assert sorted(panel["id"] for panel in DASHBOARD["panels"]) == list(range(1, len(places) + 1))
    for panel in DASHBOARD["panels"]:
        assert panel["type"] in {"timeseries", "stat"}
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        for target in panel["targets"]:
            assert target["refId"]
            assert used(target["expr"])
            assert used(target["expr"]) - _LATER <= names, panel["title"]


def test_promtool_accepts_the_rules():
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: apt-get install prometheus)")
    done = subprocess.run(
        [promtool, "check", "rules", FOLDER / "alerts.yml"], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
