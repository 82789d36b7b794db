"""Measure the environment of `pip install surefoot` alone, and that it does what it should without extras.

    python tools/install_size.py                 # below 150 MB; fails if it is larger or a command fails
    python tools/install_size.py --pip '--extra-index-url URL'

The wheel is built and installed with the locked versions into a new environment without pip. All files count,
also the bytecode that pip compiles. Then the commands of :data:`COMMANDS` run there, without the network but
with a server on this machine in place of a model's; those of :data:`NEEDS` must name their extra in one
sentence. Last, the extra ``server`` is added, and a gateway in front of that server answers and shows a page.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import distributions
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LIMIT_MB = 150.0
"""Of the environment, in units of a million bytes."""
_SMALLEST_SHOWN_MB = 1.0
_RUN_S = 120

SERVER = "SERVER"
"""In a command: the address of the model's server."""

_TRACES = "--problems data/problems.jsonl --traces data/traces.jsonl"
_MODEL = "--policy stub --base-url SERVER"
COMMANDS = (
    "--help",
    "import rows.jsonl --out imported",
    "inspect data/problems.jsonl data/traces.jsonl data/labels.jsonl --out inspection.json",
    "segment data/traces.jsonl --segment sentence --out cut.jsonl",
    f"sample data/problems.jsonl --n 2 {_MODEL} --out sampled.jsonl",
    "label data/traces.jsonl verify:rules=equations --problems data/problems.jsonl --out rules.jsonl",
    f"label data/traces.jsonl judge --problems data/problems.jsonl {_MODEL} --allow-uninformative"
    " --out judged.jsonl",
    "select data/traces.jsonl --scores scores.jsonl",
    f"search data/problems.jsonl best-of-n:n=2 {_MODEL} --verifier equations --out search.jsonl",
    f"evaluate prm=scores.jsonl --as calibration {_TRACES} --labels data/labels.jsonl --out calibration",
    f"evaluate prm=scores.jsonl --as best-of-n {_TRACES} --out best-of-n",
    "evaluate rules=rules.jsonl --as labels --traces data/traces.jsonl --labels data/labels.jsonl"
    " --out labels",
    f"audit prm=scores.jsonl --test outcome {_TRACES} --labels data/labels.jsonl --out audit",
    "guard check policy.json --runs runs.jsonl --out guard.json",
    "guard fit runs.jsonl --problems tasks.jsonl --scores run-scores.jsonl --out threshold.json",
    "export data --to stepwise --neutral bad --out stepwise.jsonl",
    "card build calibration --name surefoot-core --out card",
    "card check card/card.json",
    "lineage stepwise.jsonl",
)
"""What the core does, in the order in which the files are made."""

NEEDS = {
    "score --prm lab --problem 1+1 --solution 2": "models",
    "sample data/problems.jsonl --policy lab --out lab.jsonl": "models",
    "train orm data/traces.jsonl --base lab --problems data/problems.jsonl --out orm": "models",
    "quickstart --out quickstart": "models",
    "guard check conditions.json --runs runs.jsonl": "guard",
    "segment data/traces.parquet --out unpacked.jsonl": "data",
    f"evaluate words=keyword:answer --as monitor {_TRACES} --out monitor": "evaluation",
}
"""Commands that need an extra, with its name."""

_OFFLINE = """\
import socket

HERE = {"127.0.0.1", "::1", "localhost", "", None}
connect, lookup = socket.socket.connect, socket.getaddrinfo

def connect_here(self, address):
    if self.family in (socket.AF_INET, socket.AF_INET6) and address[0] not in HERE:
        raise OSError(f"there is no network here: {address}")
    return connect(self, address)

def lookup_here(host, *arguments, **options):
    if host not in HERE:
        raise OSError(f"there is no network here: {host}")
    return lookup(host, *arguments, **options)

socket.socket.connect, socket.getaddrinfo = connect_here, lookup_here
"""
"""``sitecustomize`` of the commands."""


def write_inputs(folder: Path) -> None:
    """Problems, traces and agent runs with labels and scores, and two tool policies."""
    (folder / "data").mkdir()
    (folder / "data" / "traces.parquet").write_bytes(b"PAR1")

    def write(name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")

    problems, traces, labels, scores, rows = [], [], [], [], []
    for n in range(12):
        problems.append({"id": f"p{n}", "text": f"What is {n} + 3?", "answer": str(n + 3)})
        for wrong in (0, 1):
            lines = [f"{n} + 3 = {n + 3 + wrong}\n", f"The answer is {n + 3 + wrong}."]
            spans = [{"start": 0, "end": len(lines[0])}, {"start": len(lines[0]), "end": len("".join(lines))}]
            name, text = f"t{n}-{wrong}", "".join(lines)
            about = {"id": name, "problem_id": f"p{n}", "answer": str(n + 3 + wrong), "outcome": not wrong}
            traces.append({**about, "text": text, "steps": spans})
            label = {"trace_id": name, "kind": "correctness", "value": float(not wrong), "source": "human"}
            labels += [{**label, "step": step} for step in (0, 1)]
            score = 0.9 - 0.5 * wrong - 0.01 * n
            scores.append({"trace_id": name, "scorer": "stub", "scores": [score, score]})
            rows.append(
                {"question": problems[-1]["text"], "response": text, "answer": problems[-1]["answer"]}
            )
    call = {"id": "c1", "name": "look_up", "arguments": '{"city": "Ghent"}'}
    messages = [
        {"role": "user", "content": "How warm is it in Ghent?"},
        {"role": "assistant", "content": "I look it up.", "tool_calls": [call]},
        {"role": "tool", "content": "9 degrees", "tool_call_id": "c1"},
        {"role": "assistant", "content": "9 degrees."},
    ]
    parts: list[tuple[int, str, dict[str, Any]]] = [
        (1, messages[1]["content"], {"part": "content"}),
        (1, call["arguments"], {"part": "tool_call", "call": 0}),
        (3, messages[3]["content"], {"part": "content"}),
    ]
    steps = [{"message": at, "start": 0, "end": len(text), **part} for at, text, part in parts]
    tasks = [{"id": f"w{n}", "text": f"Task {n}"} for n in range(30)]
    runs = [
        {"id": f"r{n}", "problem_id": f"w{n}", "messages": messages, "steps": steps, "outcome": True}
        for n in range(30)
    ]
    write("data/problems.jsonl", problems)
    write("data/traces.jsonl", traces)
    write("data/labels.jsonl", labels)
    write("scores.jsonl", scores)
    write("rows.jsonl", rows)
    write("tasks.jsonl", tasks)
    write("runs.jsonl", runs)
    write(
        "run-scores.jsonl",
        [
            {"trace_id": run["id"], "scorer": "stub", "scores": [0.9, 0.9 - 0.01 * n, 0.9]}
            for n, run in enumerate(runs)
        ],
    )
    write("policy.json", [{"forbidden": ["delete"]}])
    write("conditions.json", [{"rules": [{"tools": ["look_up"], "require": "args.city != ''"}]}])


class _Model(BaseHTTPRequestHandler):
    """An OpenAI-compatible server of a model that always answers 5, and as a judge finds no fault."""

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        self._send({"object": "list", "data": [{"id": "stub", "object": "model", "owned_by": "test"}]})

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text, prompt = "2 + 3 = 5\nThe answer is 5.", json.dumps(request.get("messages", ""))
        if asked := re.search(r"The (\d+) steps are numbered", prompt):
            verdict = {"critique": "checked", "verdict": "correct"}
            text = json.dumps({"verdicts": [{"step": n, **verdict} for n in range(int(asked[1]))]})
        chat = self.path.endswith("/chat/completions")
        said: dict[str, Any] = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        choices = [{"index": n, "finish_reason": "stop", **said} for n in range(request.get("n") or 1)]
        self._send({"choices": choices, "usage": {"prompt_tokens": 5, "completion_tokens": 9}})

    def _send(self, body: Mapping[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def model_server() -> Iterator[str]:
    """The address of a server in place of a model's."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Model) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()


def install(folder: Path, options: Sequence[str], extra: str = "") -> Path:
    """Install the wheel into ``folder/env``, with the locked versions; returns its interpreter."""
    python = folder / "env" / "bin" / "python"
    if not python.exists():
        _run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], cwd=ROOT)
        _run([sys.executable, "-m", "venv", "--without-pip", str(folder / "env")])
        # without the hashes, which pip would demand of the wheel, too
        pins = re.findall(
            r"^[\w.-]+==[^\s\\]+", (ROOT / "requirements.lock").read_text("utf-8"), re.MULTILINE
        )
        (folder / "versions.txt").write_text("\n".join(pins), "utf-8")
    (wheel,) = folder.glob("surefoot-*.whl")
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", *options]
    _run([*command, "-c", str(folder / "versions.txt"), f"{wheel}{extra}"])
    return python


def sizes(environment: Path) -> dict[str, float]:
    """Millions of bytes of the files of each package that is installed there."""
    (site,) = environment.glob("lib/python*/site-packages")
    return {
        f"{package.metadata['Name']} {package.version}": sum(
            path.stat().st_size
            for file in package.files or ()
            if (path := Path(str(file.locate()))).is_file()
        )
        / 1e6
        for package in distributions(path=[str(site)])
    }


def in_order(commands: Sequence[str], server: str) -> list[list[str]]:
    """The words of each command."""
    return [shlex.split(command.replace(SERVER, server)) for command in commands]


def fault_of(status: int, errors: str, extra: str | None) -> str | None:
    """Why a command that needs ``extra`` (or none) ended wrongly; ``None`` if it ended as it should."""
    lines = errors.strip().splitlines()
    if extra is None:
        return None if status == 0 else f"ended with status {status}: {lines[-1] if lines else ''}"
    if status != 0 and len(lines) == 1 and f"pip install '.[{extra}]'" in lines[0]:
        return None
    return f"does not say in one sentence that it needs {extra}: {errors.strip()[-500:]} (status {status})"


def check_commands(python: Path, folder: Path, server: str) -> list[str]:
    """Run all commands in ``folder``; returns the faults."""
    faults = []
    for command, extra in [*((command, None) for command in COMMANDS), *NEEDS.items()]:
        (words,) = in_order([command], server)
        ended = subprocess.run(  # noqa: S603
            [str(python), "-m", "surefoot", *words],
            cwd=folder,
            env=_offline(folder),
            capture_output=True,
            text=True,
            timeout=_RUN_S,
            check=False,
        )
        fault = fault_of(ended.returncode, ended.stderr, extra)
        print(f"{'ok  ' if fault is None else 'FAIL'} surefoot {command}")
        faults += [f"surefoot {command} {fault}"] if fault else []
    return faults


def check_gateway(python: Path, folder: Path, server: str) -> list[str]:
    """Serve the model's server with pages; returns the faults."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = f"serve --policy stub --base-url {server} --port {port} --database pages.db"
    with (folder / "serve.log").open("w") as log:
        gateway = subprocess.Popen(  # noqa: S603
            [str(python), "-m", "surefoot", *shlex.split(command)],
            cwd=folder,
            env=_offline(folder),
            stdout=log,
            stderr=log,
        )
        try:
            address = f"http://127.0.0.1:{port}"
            deadline = time.monotonic() + _RUN_S
            while gateway.poll() is None and time.monotonic() < deadline:
                try:
                    asked = {"model": "stub", "messages": [{"role": "user", "content": "What is 2 + 3?"}]}
                    answer = _get(f"{address}/v1/chat/completions", asked)
                    page = _get(address)
                except OSError:
                    time.sleep(0.2)
                    continue
                good = "The answer is 5." in answer and "<html" in page
                print(f"{'ok  ' if good else 'FAIL'} surefoot {command}")
                return [] if good else [f"surefoot {command}: {answer[:200]} {page[:200]}"]
        finally:
            gateway.terminate()
            gateway.wait()
    return [f"surefoot {command} ended or did not answer: {(folder / 'serve.log').read_text()[-500:]}"]


def _get(url: str, body: Mapping[str, Any] | None = None) -> str:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})  # noqa: S310
    with urllib.request.urlopen(request, timeout=_RUN_S) as reply:  # noqa: S310
        return str(reply.read().decode())


def _offline(folder: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": str(folder / "offline")}


def _run(command: Sequence[str], **options: Any) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, **options)  # noqa: S603


def main() -> None:
    """Install, measure, and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pip", default="", help="options for pip")
    options = shlex.split(parser.parse_args().pip)
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "offline").mkdir()
        (folder / "offline" / "sitecustomize.py").write_text(_OFFLINE, "utf-8")
        write_inputs(folder)
        python = install(folder, options)
        core = sizes(folder / "env")
        for package, size in sorted(core.items(), key=lambda row: -row[1]):
            if size >= _SMALLEST_SHOWN_MB:
                print(f"{size:7.1f} MB  {package}")
        total = sum(core.values())
        print(f"{total:7.1f} MB  in all, of {LIMIT_MB:.0f} MB")
        faults = [f"the core has {total:.1f} MB"] if total > LIMIT_MB else []
        with model_server() as server:
            faults += check_commands(python, folder, server)
            install(folder, options, "[server]")
            print(f"{sum(sizes(folder / 'env').values()):7.1f} MB  with the extra server")
            faults += check_gateway(python, folder, server)
    for fault in faults:
        print(fault, file=sys.stderr)
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
