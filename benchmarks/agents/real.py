"""Agents: the first wrong step of a run by judges, rules and baselines; predictors of failed runs."""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from benchmarks.common.figures import Figures, figure
from benchmarks.readers.agent_judgements import read_agent_judgements
from surefoot import run_sync
from surefoot.evaluation import Finding, Measured, half_of, inspect_traces, labelled_system
from surefoot.evaluation.benchmarks import AgentRun, agent_runs, evaluate_agent_steps
from surefoot.failures import result_failed
from surefoot.formats import (
    ImportContext,
    ImportedTrace,
    ImportSettings,
    import_traces,
    read_agent_processbench,
)
from surefoot.io import ReadReport
from surefoot.labelling import GoldCallVerifier, ToolCallVerifier, ToolPolicy, VerifierLabeller
from surefoot.protocols import ProblemTrace
from surefoot.records import StepLabel, Tool, Trace
from surefoot.segment import cut_trace
from surefoot.stats import Bootstrap, Interval

SOURCE, RULES = "judge", "rules"
JUDGED = ("gaia_dev", "bfcl_multi_turn_base")
HOTPOTQA = "searchR1_hotpotqa"

KNOWN: Mapping[tuple[str, str], tuple[float, float]] = MappingProxyType(
    {
        (HOTPOTQA, "all good"): (67.1, 56.7),
        (HOTPOTQA, "last step wrong iff the run failed"): (79.8, 83.3),
        ("bfcl_multi_turn_base", "all good"): (74.0, 26.4),
        ("bfcl_multi_turn_base", "last step wrong iff the run failed"): (74.9, 31.6),
        ("gaia_dev", "all good"): (37.6, 26.8),
        ("gaia_dev", "last step wrong iff the run failed"): (47.6, 58.8),
    }
)
"""Accuracy of steps and of first errors, percent."""

AIRLINE = ToolPolicy.model_validate(
    {
        "rules": [
            {
                "tools": [
                    "cancel_reservation",
                    "update_reservation_baggages",
                    "update_reservation_flights",
                    "update_reservation_passengers",
                ],
                "require": "latest('get_reservation_details', {'reservation_id': args.reservation_id})"
                " != null",
            },
            {
                "tools": ["book_reservation", "send_certificate"],
                "require": "latest('get_user_details', {'user_id': args.user_id}) != null",
            },
            {
                "tools": ["transfer_to_human_agents"],
                "require": "size(attempts('transfer_to_human_agents')) == 0",
            },
        ],
        "read_only": [
            *("get_user_details", "get_reservation_details", "search_direct_flight", "search_onestop_flight"),
            *("list_all_airports", "calculate", "think"),
        ],
    }
)
"""What of the airline's policy can be read off the calls: first look details up, then change something."""


def evaluate(data: Path, *, draws: int) -> tuple[Measured, Measured]:
    """Floors and rules on HotpotQA; floors and judges on GAIA and BFCL."""
    judged = list(read_agent_judgements(data / "apb_human_vs_judges.jsonl.gz"))
    labels_of: dict[str, list[StepLabel]] = {}
    for run in judged:
        for name, of_run in run.judges.items():
            labels_of.setdefault(name, []).extend(of_run)
    traces = [run.item.trace for run in judged]
    systems = [labelled_system(f"{SOURCE}/{name}", of, traces) for name, of in labels_of.items()]
    items = list(read_agent_processbench(data / "agentprocessbench_hotpotqa.jsonl.gz"))
    labeller = VerifierLabeller(verifiers=(ToolCallVerifier(),))
    asked = [ProblemTrace(problem=item.problem, trace=item.trace) for item in items]
    labels = [label for row in run_sync(labeller.label(asked)) for label in row]
    rules = labelled_system(RULES, labels, [item.trace for item in items])
    return (
        evaluate_agent_steps(agent_runs(items), [rules], unknown="good", draws=draws),
        evaluate_agent_steps(agent_runs(run.item for run in judged), systems, draws=draws),
    )


def accuracies(found: Measured) -> Figures:
    """Both accuracies of each source on each subset."""
    return [
        figure(f"{metric}_{subset}_{score.system.removeprefix(f'{SOURCE}/')}", 100 * value, "%")
        for score in found.scores
        for subset, accuracy in score.subsets.items()
        for metric, value in (("step", accuracy.step), ("first_error", accuracy.first_error))
    ]


def headlines(hotpotqa: Measured, judged: Measured) -> Figures:
    """The best judge and the rules against the best floor without the outcome; how many judges beat it."""
    (rules,) = [score for score in hotpotqa.scores if score.system == RULES]
    judges = [score for score in judged.scores if score.kind == "labels"]
    best = max(judges, key=lambda one: one.subsets["all"].first_error.value).subsets["all"]
    floor = best.first_error.value - best.first_error_less_floor.value
    above = {
        "first_error": [
            [judge.subsets[name].first_error_less_floor.low for name in JUDGED] for judge in judges
        ],
        "step": [[judge.subsets[name].step_less_floor.low for name in JUDGED] for judge in judges],
    }
    return [
        figure(
            "first_error_vs_floor_agentprocessbench",
            100 * best.first_error,
            "%",
            ratio=best.first_error.value / floor,
        ),
        figure(
            "first_error_rules_less_floor",
            100 * rules.subsets[HOTPOTQA].first_error_less_floor,
            "points",
        ),
        *(
            figure(
                f"judges_above_floor_{metric}", sum(min(low) > 0 for low in lows), f"of {len(judges)} judges"
            )
            for metric, lows in above.items()
        ),
    ]


def inspected(data: Path, *, draws: int) -> Figures:
    """How often the first suspicious step is the first labelled error."""
    items = list(read_agent_processbench(data / "agentprocessbench_hotpotqa.jsonl.gz"))
    traces = [ImportedTrace(problem=item.problem, trace=item.trace) for item in items]
    found = {finding.trace_id: finding for finding in inspect_traces(traces).first_suspicious}
    blind = {name: finding for name, finding in found.items() if finding.check != "wrong-answer"}
    runs = agent_runs(items)
    judged = agent_runs(run.item for run in read_agent_judgements(data / "apb_human_vs_judges.jsonl.gz"))
    figures = []
    for half, name in enumerate(("tuning", "confirming")):
        here = [run for run in runs if half_of(run.problem_id) == half]
        others = [run for run in judged if half_of(run.problem_id) == half]
        sources: dict[str, list[tuple[AgentRun, int | None]]] = {
            f"inspect_precision_{name}": [(run, _step(found.get(run.trace_id))) for run in here],
            f"inspect_precision_{name}_without_the_outcome": [
                (run, _step(blind.get(run.trace_id))) for run in here
            ],
            f"inspect_precision_{name}_last_step_iff_failed": [(run, _last_if_failed(run)) for run in here],
        }
        for subset in JUDGED:
            sources[f"inspect_precision_short_{name}_{subset}"] = [
                (run, _last_if_failed(run)) for run in others if run.subset == subset and len(run.signs) <= 4
            ]
        for source, pairs in sources.items():
            rows = [step == _first_error(run) for run, step in pairs if step is not None]
            problems = [run.problem_id for run, step in pairs if step is not None]
            figures.append(figure(source, 100 * share(rows, problems, draws), f"% of {len(rows)} steps"))
        wrong = [run for run in here if _first_error(run) is not None]
        rows = [run.trace_id in found for run in wrong]
        named = share(rows, [run.problem_id for run in wrong], draws)
        figures.append(figure(f"inspect_named_{name}", 100 * named, f"% of {len(wrong)} runs with an error"))
    return figures


def share(hits: Sequence[bool], problems: Sequence[str], draws: int) -> Interval:
    """The share of hits, with an interval over problems."""
    sums: dict[str, list[int]] = {}
    for hit, problem in zip(hits, problems, strict=True):
        totals = sums.setdefault(problem, [0, 0])
        totals[0] += hit
        totals[1] += 1
    [share] = Bootstrap(draws=draws).totals(
        [list(sums.values())], lambda totals: totals[:, 0, :1] / totals[:, 0, 1:]
    )
    return share


def _step(finding: Finding | None) -> int | None:
    return None if finding is None else finding.step - 1


def _last_if_failed(run: AgentRun) -> int | None:
    return len(run.signs) - 1 if run.outcome is False else None


def _first_error(run: AgentRun) -> int | None:
    return next((step for step, sign in enumerate(run.signs) if sign == -1), None)


def differing(*found: Measured) -> list[str]:
    """Known accuracies that were not counted again."""
    wrong = []
    for evaluation in found:
        for score in evaluation.scores:
            for subset, accuracy in score.subsets.items():
                counted = tuple(round(100 * x.value, 1) for x in (accuracy.step, accuracy.first_error))
                if counted != KNOWN.get((subset, score.system), counted):
                    wrong.append(f"{score.system} on {subset}: {counted}")
    return wrong


def airline_tools(clone: Path) -> tuple[Tool, ...]:
    """The schemas that tau-bench gives its agent: literals in the source of its tools, which is not run."""
    found = []
    for file in sorted((clone / "tau_bench" / "envs" / "airline" / "tools").glob("[a-z]*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name == "get_info":
                (given,) = [item.value for item in node.body if isinstance(item, ast.Return) and item.value]
                found.append(ast.literal_eval(given)["function"])
    return tuple(Tool(name=item["name"], parameters=json.dumps(item["parameters"])) for item in found)


def rewards(data: Path, *, draws: int, tools: tuple[Tool, ...] = ()) -> Figures:
    """What tells successful runs of tau-bench from others."""
    context = ImportContext(settings=ImportSettings(), report=ReadReport())
    found = import_traces(data / "tau_bench_gpt4o_airline.json.gz", "tau-bench", context)
    items = [
        ProblemTrace(problem=item.problem, trace=cut_trace(item.trace.model_copy(update={"tools": tools})))
        for item in found
        if item.problem is not None and item.trace is not None
    ]
    traces = [item.trace for item in items]
    verdicts = ToolCallVerifier(policy=AIRLINE).verify(items)
    broken = [sum(verdict.value == -1 for verdict in row) for row in verdicts]
    signals = {
        "short": [_shortness(trace) for trace in traces],
        "no_tool_errors": [_errors(trace) for trace in traces],
        "rules": [-float(count) for count in broken],
        "gold_actions": [_goldshare(trace) for trace in traces],
    }
    failed = [trace.outcome is False for trace, count in zip(traces, broken, strict=True) if count]
    by_gold = GoldCallVerifier().verify(items)
    wrong = [
        trace.outcome is False
        for trace, row in zip(traces, by_gold, strict=True)
        if any(verdict.value == -1 for verdict in row)
    ]
    labels = sum(verdict.value is not None for row in by_gold for verdict in row)
    return [
        figure("tau_gold_call_runs", len(wrong), f"of {len(traces)} runs"),
        figure("tau_gold_call_failed", sum(wrong), f"of {len(wrong)} such runs"),
        figure("tau_gold_call_labels", labels, f"of {sum(map(len, by_gold))} steps"),
        figure("tau_flagged_runs", len(failed), f"of {len(traces)} runs"),
        figure("tau_flagged_failed", sum(failed), f"of {len(failed)} flagged runs"),
        *_areas(signals, traces, draws),
    ]


def _areas(signals: Mapping[str, Sequence[float]], traces: Sequence[Trace], draws: int) -> Figures:
    return [
        figure(
            f"tau_auc_{name}",
            Bootstrap(draws=draws).auc(
                signal,
                [float(trace.outcome is True) for trace in traces],
                [trace.problem_id for trace in traces],
            ),
            "of pairs",
        )
        for name, signal in signals.items()
    ]


def _shortness(trace: Trace) -> float:
    return -sum(message.role == "assistant" for message in trace.messages)


def _errors(trace: Trace) -> float:
    return -sum(result_failed(message) is True for message in trace.messages)


def _goldshare(trace: Trace) -> float:
    """1 for a task without any gold action."""
    made = [
        (call.name, json.loads(call.arguments)) for message in trace.messages for call in message.tool_calls
    ]
    gold = trace.meta["gold_actions"]
    return sum((item["name"], item["arguments"]) in made for item in gold) / len(gold) if gold else 1.0


def real_figures(quick: bool, data: Path, tau_bench: Path | None) -> Figures:
    """All of the above."""
    draws = 100 if quick else 1000
    tools = airline_tools(tau_bench) if tau_bench else ()
    hotpotqa, judged = evaluate(data, draws=draws)
    wrong = differing(hotpotqa, judged)
    for item in wrong:
        print(f"not as known: {item}", file=sys.stderr)
    return [
        *headlines(hotpotqa, judged),
        *inspected(data, draws=draws),
        *rewards(data, draws=draws, tools=tools),
        *accuracies(hotpotqa),
        *accuracies(judged),
        figure("known_accuracies", len(KNOWN) - len(wrong), f"of {len(KNOWN)} agree"),
    ]
