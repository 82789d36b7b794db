"""Latency of an innocent client while another key floods what both share, as a ratio to running alone.

The server runs in a separate process with a tiny reward model in it and a guard. The innocent client asks for
one thing at a time; all attackers use one other key:

scores      ``/v1/score`` requests of 600,000 characters, four and twelve at once: one solution, or 200 short
            ones; the innocent client has a solution of two steps verified
guard       messages with 500 tool calls, eight at once; the innocent client's message has one call
programs    programs that never end, twelve at once, in one sandbox; the innocent program prints 1

``python -m benchmarks.fair_turns.run [--quick] [--only NAME ...] [--json FILE]``
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fair_turns.attacks import Attacker, Site, serving
from surefoot.policies import ScriptedPolicy
from surefoot.protocols import Completion, SampleResult
from surefoot.records import ToolCall, Usage
from surefoot.sandbox import Limits, Program, open_sandbox
from surefoot.server import Gateway, GatewaySettings, ServerSettings, create_app, make_server, open_database

QUICK_S, FULL_S = 5.0, 30.0
"""Seconds of each measurement."""
LONG = 600_000
"""Characters of a hostile request."""
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
Ask = Callable[[int], str]
"""Asks once, by number, and returns the status."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the innocent client saw, alone or next to an attack."""

    name: str
    times: list[float]
    """Seconds, ascending."""
    innocent: Counter[str]
    attackers: Counter[str]

    @property
    def p99(self) -> float:
        """Of the times."""
        return self.times[min(len(self.times) - 1, len(self.times) * 99 // 100)]


def measure(name: str, ask: Ask, attack: Ask | None, attackers: int, seconds: float) -> Outcome:
    """Ask again and again while ``attackers`` threads attack."""
    stop, tried = threading.Event(), Counter[str]()

    def work() -> None:
        number = 0
        while attack is not None and not stop.is_set():
            tried[attack(number)] += 1
            number += 1

    threads = [threading.Thread(target=work, daemon=True) for _ in range(attackers)]
    for thread in threads:
        thread.start()
    time.sleep(0.3 if attackers else 0.0)
    times, statuses, number = [], Counter[str](), 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        begin = time.monotonic()
        statuses[ask(number)] += 1
        times.append(time.monotonic() - begin)
        number += 1
        time.sleep(0.02)
    stop.set()
    for thread in threads:
        thread.join(60)
    return Outcome(name=name, times=sorted(times), innocent=statuses, attackers=tried)


def asking(site: Site, key: str, path: str, body: Callable[[int], dict[str, object]]) -> Ask:
    """A request with a key of the site."""

    def ask(number: int) -> str:
        client = Attacker(site, 0 if key == "hostile" else -1, threading.Event())
        client.post(path, body(number), key=site.keys[key])
        return next(iter(client.statuses))

    return ask


def verification(number: int) -> dict[str, object]:
    """A solution of two steps."""
    return {"problem": f"{number} + 1", "steps": ["We add.\n", f"It is {number + 1}."]}


def one_solution(number: int) -> dict[str, object]:
    """One long solution."""
    text = (f"We add {number}, and then we look again. " * LONG)[: LONG // 600]
    return {"items": [{"problem": "1 + 1", "steps": [text] * 600}]}


def many_solutions(number: int) -> dict[str, object]:
    """Solutions that a reward model reads."""
    step = f"We add {number}, and then we look again.\n"
    steps = [step] * (LONG // 200 // len(step))
    return {"items": [{"problem": f"{row} + 1", "steps": steps} for row in range(200)]}


def calls(text: str) -> Callable[[int], dict[str, object]]:
    """A request whose answer calls tools."""
    return lambda number: {
        "model": "scripted",
        "messages": [{"role": "user", "content": f"{text} {number}"}],
        "tools": [TOOL],
    }


class ToolPolicy(ScriptedPolicy):
    """Calls a tool once, or 500 times for a hostile question."""

    def with_extra_body(self, _: object) -> ToolPolicy:
        """The same policy."""
        return self

    async def sample(self, requests):  # noqa: ANN001, ANN201
        """One message for each request."""
        return [self._message("hostile" in str(request.prompt)) for request in requests]

    def _message(self, hostile: bool) -> SampleResult:
        made = tuple(
            ToolCall(id=str(number), name="look", arguments=json.dumps({"at": number}))
            for number in range(500 if hostile else 1)
        )
        completion = Completion(text="", finish_reason="tool_calls", tokens=9, tool_calls=made)
        return SampleResult(completions=(completion,), usage=Usage(calls=1))


def serve(folder: Path) -> None:
    """Serve on a free port, which is printed with the keys, until standard input ends."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    from surefoot.lab import POLICY, TRUNK
    from surefoot.labelling import ToolCallVerifier
    from surefoot.models import CheckpointCard, Encoding, RewardModel, Scorer

    torch.set_num_threads(1)
    card = CheckpointCard(kind="prm", encoding=Encoding(), label_source="none", base="lab")
    model = RewardModel(AutoModel.from_pretrained(TRUNK), AutoTokenizer.from_pretrained(POLICY), card)
    settings = ServerSettings(port=0, require_key=True)
    with open_database(folder / "fair.db") as db:
        keys = {name: db.keys.create(name, "client")[0] for name in ("innocent", "hostile")}
        options = GatewaySettings.model_validate(
            {"strategy": "plain", "chat": True, "guard": {"enabled": True}}
        )
        gateway = Gateway(
            ToolPolicy(lambda *_: ""),
            Scorer(model, name="tiny"),
            settings=options,
            log=db.gateway,
            verifiers=[ToolCallVerifier()],
        )
        server = make_server(create_app(settings, gateway=gateway, keys=db.keys), settings)

        def watch() -> None:
            while not server.started:
                time.sleep(0.01)
            port = server.servers[0].sockets[0].getsockname()[1]
            print(json.dumps({"port": port, "keys": keys, "traces": {}}), flush=True)
            sys.stdin.read()
            server.should_exit = True

        threading.Thread(target=watch, daemon=True).start()
        server.run()


def scenarios(only: list[str] | None, seconds: float) -> Iterator[tuple[Outcome, Outcome]]:
    """What the innocent client saw alone, and next to each attack."""
    if only is None or {"scores", "guard"} & set(only):
        with serving("benchmarks.fair_turns.run") as site:
            verify = asking(site, "innocent", "/v1/verify", verification)
            if only is None or "scores" in only:
                alone = measure("verification alone", verify, None, 0, seconds)
                for make in (one_solution, many_solutions):
                    attack = asking(site, "hostile", "/v1/score", make)
                    for attackers in (4, 12):
                        name = f"{attackers} score requests, {make.__name__.replace('_', ' ')}"
                        yield alone, measure(name, verify, attack, attackers, seconds)
            if only is None or "guard" in only:
                ask = asking(site, "innocent", "/v1/chat/completions", calls("innocent"))
                alone = measure("guarded message alone", ask, None, 0, seconds)
                attack = asking(site, "hostile", "/v1/chat/completions", calls("hostile"))
                yield alone, measure("8 guarded messages of 500 calls", ask, attack, 8, seconds)
    if only is None or "programs" in only:
        with open_sandbox() as sandbox:

            def running(key: str, text: bytes) -> Ask:
                program = Program(
                    argv=("python", "main.py"), files={"main.py": text}, limits=Limits(wall_s=5)
                )

                def run(_: int) -> str:
                    return str(sandbox.run([program], caller=key)[0].ending)

                return run

            ask, attack = running("innocent", b"print(1)"), running("hostile", b"while True: pass")
            alone = measure("program alone", ask, None, 0, seconds)
            yield alone, measure("12 programs that never end", ask, attack, 12, seconds)


def main(arguments: list[str] | None = None) -> list[dict[str, object]]:
    """Measure and print; the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="+", choices=["scores", "guard", "programs"])
    parser.add_argument("--seconds", type=float, help="of each measurement")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        serve(options.serve)
        return []
    seconds = options.seconds or (QUICK_S if options.quick else FULL_S)
    figures: list[dict[str, object]] = []
    print("| attack | p99 alone | p99 | ratio | innocent | attackers |\n|---|---|---|---|---|---|")
    for alone, attacked in scenarios(options.only, seconds):
        ratio = attacked.p99 / alone.p99
        cells = (attacked.name, f"{alone.p99:.3f} s", f"{attacked.p99:.3f} s", f"{ratio:.1f}")
        counts = (dict(attacked.innocent), dict(attacked.attackers))
        print(f"| {' | '.join(map(str, (*cells, *counts)))} |", flush=True)
        figures += [
            {"name": f"p99, {attacked.name}", "value": attacked.p99, "unit": "s"},
            {"name": f"innocent_p99_ratio, {attacked.name}", "value": ratio, "unit": ""},
        ]
    if options.json:
        options.json.write_text(json.dumps({"figures": figures, "setting": {"seconds": seconds}}, indent=1))
    return figures


if __name__ == "__main__":
    main()
