"""``surefoot serve`` as a process: it answers, and a signal ends it in order."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from command_line import refused
from gateway_server import ask

from benchmarks.worlds.digits import POLICY
from benchmarks.worlds.digits.world import generate_problems
from surefoot.cli.parser import build
from surefoot.cli.serve import Serve
from surefoot.server import open_database

QUESTION = {
    "messages": [{"role": "user", "content": generate_problems(1, seed=1)[0].text}],
    "max_tokens": 96,
}


@contextmanager
def serving(*words, policy=("--policy", str(POLICY))):
    """A server process and its address; killed at the end of the block, if it still runs."""
    command = [sys.executable, "-m", "surefoot", "serve", "--port", "0", *policy, *map(str, words)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            said = []
            for line in process.stderr:
                said.append(line)
                if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                    break
            else:
                pytest.fail(f"the server did not start: {''.join(said)}")
            process.said = "".join(said)
            yield process, found[0]
        finally:
            process.kill()
            process.stderr.read()


def test_settings_that_make_no_sense_are_refused_by_name(tmp_path):
    path = tmp_path / "serve.toml"
    path.write_text("[monitor]\nreference = 1\n")
    here = ("serve", "--port", 0, "--policy", "lab", "--database", tmp_path / "store.db")
    assert "monitor.reference" in refused(*here, "--config", path)
    assert "give --policy, or --pages" in refused("serve", "--database", tmp_path / "store.db")
    assert "need a gateway" in refused("serve", "--pages", "--guard", "--database", tmp_path / "store.db")
    assert "gateway.extract" in refused(*here, "--set", 'extract=["foo"]')
    assert "--candidates" in refused(*here, "--candidates", "some")
    assert "needs a reward model" in refused(*here, "--strategy", "best-of-n:n=4")
    unknown = "unknown strategy 'beem'; did you mean 'beam'?"
    assert unknown in refused(*here, "--set", "gateway.strategies.quick=beem")
    path.write_text('[gateway.strategies]\nquick = "beem:width=2"\n')
    assert "unknown strategy 'beem:width=2'; choose from quick, plain" in refused(*here, "--config", path)
    assert "abstain" in refused(*here, "--abstain-below", 0.5)
    assert "give --guard" in refused(*here, "--guard-threshold", 0.5)
    assert "lacks a reward model" in refused(*here, "--guard", "--guard-threshold", 0.5)
    assert "--guard-rule tool-calls" in refused(*here, "--guard", "--guard-policy", path)
    assert "not a valid tool policy" in refused(
        *here, "--guard", "--guard-rule", "tool-calls", "--guard-policy", path
    )


@pytest.mark.parametrize("page", ["serve.md", "annotate.md"])
def test_the_files_of_settings_that_pages_show_are_read(tmp_path, page):
    text = (Path(__file__).parents[3] / "docs" / "how-to" / page).read_text("utf-8")
    tables = re.findall(r"```toml\n(.*?)```", text, re.S)
    assert tables
    for table in tables:
        (tmp_path / "serve.toml").write_text(table)
        build(Serve, {("policy", "name"): "lab"}, file=tmp_path / "serve.toml")


@pytest.mark.slow
def test_pages_alone_need_no_policy_and_no_torch(tmp_path):
    store = tmp_path / "store.db"
    with serving("--pages", "--database", store, policy=()) as (process, url):
        assert "surefoot serve users add NAME --role admin" in process.said
        assert "Your personal link" in httpx.get(f"{url}/sign-in").text
        assert ask(f"{url}/v1/models")[0] == 404
        assert "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text()


@pytest.mark.slow
def test_serve_answers_and_ends_at_a_signal(tmp_path):
    store = tmp_path / "store.db"
    with serving("--strategy", "majority:n=3", "--database", store, "--no-pages") as (process, url):
        body = json.dumps({"model": "surefoot", "seed": 1, **QUESTION}).encode()
        status, answer = ask(f"{url}/v1/chat/completions", body)
        assert status == 200
        assert "=" in answer["choices"][0]["message"]["content"]
        assert ask(f"{url}/v1/chat/completions", body)[1]["choices"] == answer["choices"]
        assert ask(f"{url}/sign-in")[0] == 404
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
        process.wait(30)
    with open_database(store) as db:
        assert [row.strategy for row in db.gateway.find()] == ["majority:n=3"] * 2
