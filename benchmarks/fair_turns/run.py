"""Latency of an innocent client while another key floods what both share, as a ratio to running alone."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.common.figures import Figures, arguments, figure, write
from benchmarks.common.processes import serve
from benchmarks.fair_turns.attacks import Attacker, Outcome, Site, Work, measure, serving
from benchmarks.worlds.scripted import ScriptedPolicy
from surefoot.protocols import Completion, SampleResult
from surefoot.records import ToolCall, Usage
from surefoot.server import Gateway, GatewaySettings, ServerSettings, create_app, make_server, open_database

MODULE = "benchmarks.fair_turns.run"
QUICK_S, FULL_S = 5.0, 30.0
"""Seconds of each measurement."""
LONG = 600_000
"""Characters of a hostile request."""
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
PAUSE_S = 0.02
PARTS = ("scores", "guard")


def asking(site: Site, key: str, path: str, body: Callable[[int], dict[str, object]]) -> Work:
    """A request with a key of the site."""

    def ask(number: int) -> Counter[str]:
        client = Attacker(site, 0 if key == "hostile" else -1)
        client.post(path, body(number), key=site.keys[key])
        return client.statuses

    return ask


def small_solution(number: int) -> dict[str, object]:
    """A solution of two steps."""
    return {"items": [{"problem": f"{number} + 1", "steps": ["We add.\n", f"It is {number + 1}."]}]}


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


def run_server(folder: Path) -> None:
    """Serve on a free port, which is printed with the keys, until standard input ends."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    from benchmarks.worlds.digits import POLICY, TRUNK
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

        serve(server, lambda port: json.dumps({"port": port, "keys": keys, "traces": {}}))


def scenarios(only: Sequence[str], seconds: float) -> Iterator[tuple[Outcome, Outcome]]:
    """What the innocent client saw alone, and next to each attack."""

    def seen(name: str, ask: Work, attack: Work | None = None, attackers: int = 0) -> Outcome:
        return measure(name, ask, [attack] * attackers if attack else [], seconds, PAUSE_S)

    with serving(MODULE) as site:
        if "scores" in only:
            small = asking(site, "innocent", "/v1/score", small_solution)
            alone = seen("a small solution alone", small)
            for make in (one_solution, many_solutions):
                attack = asking(site, "hostile", "/v1/score", make)
                for attackers in (4, 12):
                    name = f"{attackers} score requests, {make.__name__.replace('_', ' ')}"
                    yield alone, seen(name, small, attack, attackers)
        if "guard" in only:
            ask = asking(site, "innocent", "/v1/chat/completions", calls("innocent"))
            attack = asking(site, "hostile", "/v1/chat/completions", calls("hostile"))
            alone = seen("guarded message alone", ask)
            yield alone, seen("8 guarded messages of 500 calls", ask, attack, 8)


def main(given: list[str] | None = None) -> Figures:
    """Measure and print; the figures."""
    parser = arguments(__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--seconds", type=float, help="of each measurement")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(given)
    if options.serve:
        run_server(options.serve)
        return []
    seconds = options.seconds or (QUICK_S if options.quick else FULL_S)
    figures: Figures = []
    print("| attack | p99 alone | p99 | ratio | innocent | attackers |\n|---|---|---|---|---|---|")
    for alone, attacked in scenarios(options.only, seconds):
        slow, usual = attacked.percentile(99), alone.percentile(99)
        cells = (attacked.name, f"{usual:.3f} s", f"{slow:.3f} s", f"{slow / usual:.1f}")
        counts = (dict(attacked.innocent), dict(attacked.attackers))
        print(f"| {' | '.join(map(str, (*cells, *counts)))} |", flush=True)
        figures.append(figure("innocent_p99", slow, "s", note=attacked.name))
        figures.append(figure("innocent_p99_ratio", slow / usual, "of p99 alone", note=attacked.name))
    write(options, figures, seconds=seconds)
    return figures


if __name__ == "__main__":
    main()
