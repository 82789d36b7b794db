"""Monte Carlo labels beside the exact value of every prefix and the exact verdict on every step.

The solver's error rate is known, so the chance of the right answer from any prefix is known, too: what the
labels estimate can be seen, and also that it is not whether a step is right.
"""

from __future__ import annotations

import asyncio

from surefoot.answers import AnswerChecker, Grader
from surefoot.lab import NoisySolver, check_steps, generate_problems
from surefoot.labelling import MonteCarloLabeller, MonteCarloSettings
from surefoot.policies import sample_traces
from surefoot.protocols import ProblemTrace
from surefoot.records import Usage
from surefoot.segment import Line

ROLLOUTS = 64

solver = NoisySolver(error_rate=0.15)
problems = generate_problems(3, seed=0)

with AnswerChecker("exact") as checker:
    grader = Grader(checker=checker, styles=("phrase",))
    sampled = asyncio.run(sample_traces(solver, problems, n=1, seed=0, segmenter=Line(), grader=grader))
    items = [ProblemTrace(problem=p, trace=traces[0]) for p, traces in zip(problems, sampled, strict=True)]
    settings = MonteCarloSettings(rollouts=ROLLOUTS)
    labeller = MonteCarloLabeller(policy=solver, grader=grader, settings=settings)
    labels = asyncio.run(labeller.label(items))

for item, of_trace in zip(items, labels, strict=True):
    print(f"{item.problem.text}  (answer {item.problem.answer})")
    print("  estimate  exact value  verdict  step")
    verdicts = check_steps(item.problem, item.trace)
    for label, verdict in zip(of_trace, verdicts, strict=True):
        exact = solver.value(item.problem, item.trace.prefix(label.step + 1))
        line = item.trace.step_text(label.step).strip()
        estimate = f"{label.value:8.3f}" if label.value is not None else f"{'none':>8}"
        print(f"  {estimate}  {exact:11.3f}  {verdict.value:+7}  {line}")

cost = sum((label.evidence.usage for of_trace in labels for label in of_trace), Usage())
print(f"{ROLLOUTS} rollouts a prefix: {cost.completion_tokens} tokens written, {cost.prompt_tokens} read")
