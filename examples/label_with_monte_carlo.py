"""Monte Carlo labels beside the exact verdict on every step, and what kind of error it is.

Rollouts estimate how often the policy gets the answer from a step: where its habit is a mistake, that chance
is low before the first wrong step, and it says little about whether a step is right.
"""

from __future__ import annotations

import asyncio

from surefoot.answers import AnswerChecker, Grader
from surefoot.lab import POLICY, check_steps, generate_problems
from surefoot.labelling import MonteCarloLabeller, MonteCarloSettings
from surefoot.policies import load_policy, sample_traces
from surefoot.protocols import ProblemTrace
from surefoot.records import Usage
from surefoot.segment import Line

ROLLOUTS = 16

policy = load_policy(POLICY)
problems = generate_problems(3, seed=0)

with AnswerChecker("exact") as checker:
    grader = Grader(checker=checker, styles=("phrase",))
    sampled = asyncio.run(sample_traces(policy, problems, n=1, seed=0, segmenter=Line(), grader=grader))
    items = [ProblemTrace(problem=p, trace=traces[0]) for p, traces in zip(problems, sampled, strict=True)]
    settings = MonteCarloSettings(rollouts=ROLLOUTS)
    labeller = MonteCarloLabeller(policy=policy, grader=grader, settings=settings)
    labels = asyncio.run(labeller.label(items))

for item, of_trace in zip(items, labels, strict=True):
    print(f"{item.problem.text}  (answer {item.problem.answer})")
    print("  estimate  verdict  kind of error  step")
    for label, verdict in zip(of_trace, check_steps(item.problem, item.trace), strict=True):
        line = item.trace.step_text(label.step).strip()
        estimate = f"{label.value:8.3f}" if label.value is not None else f"{'none':>8}"
        print(f"  {estimate}  {verdict.value:+7}  {verdict.kind or '':13}  {line}")

cost = sum((label.evidence.usage for of_trace in labels for label in of_trace), Usage())
print(f"{ROLLOUTS} rollouts a prefix: {cost.completion_tokens} tokens written, {cost.prompt_tokens} read")
