"""Results of tau-bench (arXiv 2406.12045) and tau2 (arXiv 2506.07982): an agent, a simulated user and tools.

A run's reward is its outcome; the task's gold actions are in ``meta["gold_actions"]`` as ``name`` and
``arguments``. The problem is what the agent sees of the task, the user's first message. The script of the
simulated user, which the agent never sees, is in the problem's ``meta["hidden"]``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from surefoot.errors import RecordError
from surefoot.formats.imports import ImportContext, ImportedTrace, reader_of_runs, row_note, run_on, task_of
from surefoot.formats.rows import Row, raw_rows
from surefoot.records import Message, Problem, content_id

_TAU: Final = "tau-bench"
_TAU2: Final = "tau2"
GOLD_KEY: Final = "gold_actions"
"""``Trace.meta`` entry with the calls that solve the task."""
HIDDEN_KEY: Final = "hidden"
"""``Problem.meta`` entry with what the agent does not see; it is not shown to judges and reward models."""

_INSTRUCTIONS = ("reason_for_call", "known_info", "unknown_info", "task_instructions")


def is_tau2(row: Mapping[str, Any]) -> bool:
    """Whether a row is tau2's results, or a single simulation."""
    simulation = {"task_id", "termination_reason", "messages"} <= row.keys()
    return isinstance(row.get("simulations"), list) or simulation


@reader_of_runs(_TAU)
def read_tau_bench(row: Any, note: dict[str, Any], context: ImportContext) -> ImportedTrace:
    """One trace per run, without tool schemas, which the files lack."""
    if not isinstance(row, Mapping) or not isinstance(row.get("traj"), list):
        raise RecordError("a run of tau-bench has its messages in 'traj'")
    task = (row.get("info") or {}).get("task") or {}
    messages = context.chat(row["traj"])
    problem = _problem(task.get("instruction"), messages, _TAU, context)
    gold = [
        {"name": action["name"], "arguments": action.get("kwargs") or {}}
        for action in task.get("actions") or ()
    ]
    return run_on(
        problem,
        messages,
        note,
        outcome=_outcome(row.get("reward")),
        sample=int(row.get("trial") or 0),
        meta={
            GOLD_KEY: gold,
            "tau_bench": {
                "task_id": row.get("task_id"),
                "reward": row.get("reward"),
                "user_id": task.get("user_id"),
                "outputs": task.get("outputs"),
            },
        },
    )


def read_tau2(path: Path | str, context: ImportContext) -> Iterator[ImportedTrace]:
    """One trace per simulation, with the agent's policy as its system message, and its tools.

    A single simulation in a file lacks policy, tools and gold actions. The user's own tool calls are user
    messages. Voice simulations, which lack messages, are rejected.
    """

    def simulations() -> Iterator[Row]:
        for number, row in raw_rows(path):
            if isinstance(row, ValueError):
                yield number, row
                continue
            note = row_note(_TAU2, number)
            several = row.get("simulations") if isinstance(row, Mapping) else None
            for index, simulation in enumerate(several if isinstance(several, list) else [row]):
                shared = {name: value for name, value in row.items() if name != "simulations" and not index}
                note = {**note, "simulation": index}
                yield number, (row, simulation, note, shared | {"simulations": simulation})

    return context.rows(simulations(), lambda _, parts: [_tau2_trace(context, *parts[:-1])])


def _tau2_trace(context: ImportContext, row: Any, simulation: Any, note: dict[str, Any]) -> ImportedTrace:
    if not isinstance(simulation, Mapping) or not simulation.get("messages"):
        raise RecordError("a simulation without 'messages'; voice simulations have only 'ticks'")
    info = row.get("info") or {}
    world = info.get("environment_info") or {}
    # a simulation's message can hold several results, each with the id of its call in ``id``
    rows = [part for row in simulation["messages"] for part in row.get("tool_messages", [row])]
    rows = [{**row, "tool_call_id": row.get("id")} if row.get("role") == "tool" else row for row in rows]
    policy = simulation.get("policy") or world.get("policy")
    if policy and rows[0].get("role") != "system":
        rows = [{"role": "system", "content": policy}, *rows]
    messages = context.chat(rows)
    task_id = simulation.get("task_id")
    task: Mapping[str, Any] = next((task for task in row.get("tasks") or () if task.get("id") == task_id), {})
    criteria = task.get("evaluation_criteria") or {}
    problem = _problem(_script(task), messages, _TAU2, context)
    return run_on(
        problem,
        messages,
        note,
        id=str(simulation.get("id") or ""),
        tools=[{"name": name, **tool} for name, tool in (world.get("tool_defs") or {}).items()],
        outcome=_outcome((simulation.get("reward_info") or {}).get("reward")),
        policy=(info.get("agent_info") or {}).get("llm"),
        seed=simulation.get("seed"),
        sample=int(simulation.get("trial") or 0),
        finish_reason=simulation.get("termination_reason"),
        # of the agent, without the user's
        usage=[row.get("usage") or {} for row in rows if row.get("role") == "assistant"],
        meta={
            GOLD_KEY: [
                {name: action.get(name) for name in ("name", "arguments", "requestor")}
                for action in criteria.get("actions") or ()
            ],
            "tau2": {
                "task_id": task_id,
                "domain": world.get("domain_name"),
                "reward_info": simulation.get("reward_info"),
            },
        },
    )


def _problem(script: object, messages: Sequence[Message], source: str, context: ImportContext) -> Problem:
    """The user's first message. Runs of one script share the problem; its text is from the first one read."""
    texts = (message.content for message in messages if message.role == "user" and message.content)
    text = next(texts, None) or task_of(messages)
    if not script:
        return Problem(text=text, source=source)
    name = content_id("problem", str(script), None)
    problem = Problem(id=name, text=text, source=source, meta={HIDDEN_KEY: {"user_script": str(script)}})
    return context.problems.setdefault(name, problem)


def _script(task: Mapping[str, Any]) -> object:
    """The script of tau2's simulated user."""
    script = (task.get("user_scenario") or {}).get("instructions")
    if isinstance(script, Mapping):
        script = "\n\n".join(str(script[name]) for name in _INSTRUCTIONS if script.get(name))
    return script or task.get("ticket")


def _outcome(reward: object) -> bool | None:
    """Only the full reward of 1 is a success."""
    return reward >= 1 if isinstance(reward, int | float) else None
