"""BFCL as an environment: on a package of the same shape with one small back end, and on the real one."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks.worlds.bfcl import BFCL, CATEGORIES, read_bfcl
from surefoot.errors import MissingExtraError, RecordError
from surefoot.labelling import StateReplayVerifier
from surefoot.policies.loading import load_environment
from surefoot.protocols import ProblemTrace, RestorableEnvironment
from surefoot.records import Message, Problem, ToolCall, Trace
from surefoot.segment import cut_trace

BACK_END = """
class Ticket:
    def __init__(self, title):
        self.title, self.open = title, True

class TicketAPI:
    def __init__(self):
        self.tickets, self.owner, self._secret = {}, None, object()
    def _load_scenario(self, scenario, long_context=False):
        self.owner = scenario["owner"]
        self.tickets = {0: Ticket("much more data")} if long_context else {}
    def create_ticket(self, title, priority=1):
        self.tickets[len(self.tickets)] = Ticket(title)
        return {"id": len(self.tickets) - 1, "priority": priority}
    def close_ticket(self, ticket_id):
        if ticket_id not in self.tickets:
            return {"error": "no such ticket"}
        self.tickets[ticket_id].open = False
        return {"status": "closed"}
    def break_down(self):
        raise KeyError("down")
    def hidden(self):
        return "hidden"
"""


def declared(name, **types):
    parameters = {
        "type": "dict",
        "properties": {key: {"type": kind} for key, kind in types.items()},
        "required": [key for key in types if key != "priority"],
    }
    return {"name": name, "description": name, "parameters": parameters}


TOOLS = [
    declared("create_ticket", title="string", priority="integer"),
    declared("close_ticket", ticket_id="integer"),
    declared("break_down"),
    declared("hidden"),
]
TASK = {
    "id": "multi_turn_base_0",
    "question": [[{"role": "user", "content": "Open one."}], [{"role": "user", "content": "Close it."}]],
    "initial_config": {"TicketAPI": {"owner": "Ada"}},
    "involved_classes": ["TicketAPI"],
    "excluded_function": ["hidden"],
}
GOLD = {
    "id": TASK["id"],
    "ground_truth": [["create_ticket('leak', priority=2)"], ["close_ticket(ticket_id=0)"]],
}

OTHER = TASK | {"id": "multi_turn_base_1", "question": [[{"role": "user", "content": "Open two."}]]}
OTHER_GOLD = {
    "id": OTHER["id"],
    "ground_truth": [["create_ticket('smoke', priority=4217)", "create_ticket('fire')"]],
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of the real one's shape."""
    root = tmp_path / "bfcl_eval"
    code = root / "eval_checker" / "multi_turn_eval" / "func_source_code"
    for folder in (code, root / "data" / "multi_turn_func_doc", root / "data" / "possible_answer"):
        folder.mkdir(parents=True)
    for folder in (root, root / "eval_checker", root / "eval_checker" / "multi_turn_eval", code):
        (folder / "__init__.py").touch()
    (code / "ticket_api.py").write_text(BACK_END)
    data = root / "data"
    (data / "multi_turn_func_doc" / "ticket_api.json").write_text("\n".join(map(json.dumps, TOOLS)))
    for category in CATEGORIES:
        for folder, rows in ((data, (TASK, OTHER)), (data / "possible_answer", (GOLD, OTHER_GOLD))):
            (folder / f"BFCL_v4_{category}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.split(".")[0] == "bfcl_eval"]:
        monkeypatch.delitem(sys.modules, name)
    yield data
    for name in [name for name in sys.modules if name.split(".")[0] == "bfcl_eval"]:
        del sys.modules[name]


def call(name, /, **arguments):
    return ToolCall(name=name, arguments=json.dumps(arguments))


def test_a_task_is_played_to_its_end(package):
    task, _ = read_bfcl()
    assert task.meta["gold_turns"] == [1, 1]
    assert task.meta["gold_actions"][0] == {
        "name": "create_ticket",
        "arguments": {"title": "leak", "priority": 2},
    }
    world = load_environment("benchmarks.worlds.bfcl:BFCL")()
    assert isinstance(world, RestorableEnvironment)
    assert [one.content for one in world.reset(task)] == ["Open one."]
    assert [tool.name for tool in world.tools] == ["create_ticket", "close_ticket", "break_down"]
    begin = world.snapshot()
    assert world.step(call("create_ticket", title="leak", priority=2)).text == '{"id":0,"priority":2}'
    assert world.step("Opened.").text == "Close it."
    assert world.outcome() is False
    assert not world.step(call("close_ticket", ticket_id=0)).error
    assert world.state() == {
        "TicketAPI": {"tickets": {"0": {"title": "leak", "open": False}}, "owner": "Ada"}
    }
    assert world.outcome() is True
    assert world.step("Closed.").done
    assert world.step(call("close_ticket", ticket_id=0)).error  # it is over
    world.restore(begin)
    assert (world.state()["TicketAPI"]["tickets"], world.outcome()) == ({}, False)


def test_what_an_agent_gets_wrong_is_an_observation(package):
    task, _ = read_bfcl()
    world = BFCL()
    world.reset(task)
    for wrong in (
        call("nothing"),
        call("hidden"),
        call("_load_scenario", scenario={}),
        call("__init__"),
        call("create_ticket"),
        call("create_ticket", title=3),
        call("create_ticket", title="a", colour="red"),
        call("close_ticket", ticket_id=7),
        call("break_down"),
        ToolCall(name="create_ticket", arguments="{"),
    ):
        observation = world.step(wrong)
        assert observation.error, wrong
        assert not observation.done
    assert world.state()["TicketAPI"]["tickets"] == {}


def test_replay_compares_turn_by_turn(package):
    task, _ = read_bfcl()

    def verdicts(*actions, order="any"):
        world, messages = BFCL(), []
        messages += world.reset(task)
        for action in actions:
            answer = world.step(action)
            if isinstance(action, str):
                messages.append(Message(role="assistant", content=action))
                messages += [Message(role="user", content=answer.text)] * (not answer.done)
            else:
                messages.append(Message(role="assistant", tool_calls=(action,)))
                messages.append(Message(role="tool", content=answer.text))
        trace = cut_trace(Trace(problem_id=task.id, messages=tuple(messages)))
        verifier = StateReplayVerifier(environment=BFCL, order=order)
        (row,) = verifier.verify([ProblemTrace(problem=task, trace=trace)])
        return [(one.value, one.reason.split(":")[0]) for one in row]

    create, close = call("create_ticket", title="leak", priority=2), call("close_ticket", ticket_id=0)
    assert [value for value, _ in verdicts(create, "Opened.", close, "Closed.")] == [1, 1, 1, 1]
    late = verdicts("Opened.", create, close, "Closed.")
    assert late[0] == (-1, "ends too early")
    assert [value for value, _ in late[1:]] == [1, 1, 1]
    assert [value for value, _ in verdicts(close, create, close, order="gold")] == [0, 1, 1]
    assert verdicts(close, create, order="gold")[0] == (-1, "wrong order")
    other = verdicts(call("create_ticket", title="lake"), "Opened.")
    assert other == [(-1, "wrong argument"), (-1, "ends too early")]


def test_a_long_context_begins_with_more(package):
    task, _ = read_bfcl("multi_turn_long_context")
    world = BFCL()
    world.reset(task)
    assert list(world.state()["TicketAPI"]["tickets"]) == ["0"]


def test_the_benchmark_makes_its_faults_and_finds_them(package):
    from benchmarks.agents import faults as bench

    tasks = list(read_bfcl())
    golds, faulty, broken = bench.make_runs(BFCL, tasks, seed=0)
    assert (len(golds), broken) == (2, 0)
    assert {kind: len(runs) for kind, runs in faulty.items()} == {
        "wrong-argument": 2,
        "wrong-order": 1,
        "missing-call": 2,
        "repeated-call": 2,
        "wrong-tool": 1,
        "hallucinated-observation": 2,
        "early-stop": 2,
        "damaging-call": 1,
        "swapped-calls": 0,
        "moved-call": 0,
        "read-again": 0,
        "default-argument": 0,
    }
    figures = {one["name"]: one for one in bench.measure("bfcl", BFCL, tasks, seed=0, draws=20)}
    found = {kind: figures[f"detected_{kind}_replay_in_order_rules"]["value"] for kind in bench.KINDS}
    assert [found[kind] for kind in ("wrong-argument", "missing-call", "early-stop")] == [100, 100, 100]
    assert figures["gold_alarms_replay_in_order_rules"]["value"] == 0
    assert figures["changes_end_hallucinated-observation"]["value"] == 0
    assert figures["detected_last_wrong"]["value"] == figures["gold_alarms_last_wrong"]["value"] == 100
    (swapped,) = faulty["wrong-order"]
    assert swapped.fault == 0
    said = [one.content for one in swapped.item.trace.messages if one.role == "tool"]
    assert said == ['{"id":0,"priority":1}', '{"id":1,"priority":4217}']


def test_files_and_problems_that_are_none_of_its(package, tmp_path):
    with pytest.raises(
        RecordError, match="'multi_turn_miss_func' cannot be played; choose from multi_turn_base"
    ):
        list(read_bfcl("multi_turn_miss_func"))
    with pytest.raises(RecordError, match="no files of BFCL's category"):
        list(read_bfcl(folder=tmp_path / "nowhere"))
    answers = package / "possible_answer" / "BFCL_v4_multi_turn_base.json"
    for text in ("__import__('os').system('true')", "open('x')", "create_ticket(f())", "create_ticket('a"):
        answers.write_text(json.dumps({"id": TASK["id"], "ground_truth": [[text], []]}))
        with pytest.raises(RecordError, match="cannot be read"):
            list(read_bfcl())
    with pytest.raises(RecordError, match="is not a BFCL task"):
        BFCL().reset(Problem(id="p", text="p"))
    strange = {"bfcl": {"turns": [["Hi"]], "classes": ["os"], "config": {}}}
    with pytest.raises(RecordError, match="unknown BFCL back end 'os'"):
        BFCL().reset(Problem(id="p", text="p", meta=strange))
    with pytest.raises(RecordError, match="call reset first"):
        BFCL().state()


def test_without_the_package(monkeypatch):
    monkeypatch.setattr("benchmarks.worlds.bfcl.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="pip install --no-deps bfcl-eval"):
        BFCL()


def test_the_gold_calls_of_the_real_package_reach_their_end():
    pytest.importorskip("bfcl_eval")
    tasks = list(read_bfcl())[:20]
    for task in tasks:
        world = BFCL()
        world.reset(task)
        assert not any(
            world.step(call(one["name"], **one["arguments"])).error for one in task.meta["gold_actions"]
        )
        assert world.outcome()
