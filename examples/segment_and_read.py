"""Cut text into steps, make steps from a list, and read a public record."""

from __future__ import annotations

import json
from pathlib import Path

from surefoot.formats import joined_trace, read_math_shepherd
from surefoot.io import ReadReport
from surefoot.records import Problem, Trace
from surefoot.segment import segment_trace, segmenter

SOLUTION = "Step 1: 7 + 3 ends in 0.\nThat is easy.\nStep 2: 0 * 4 is 0.\n\nThe answer is 0.\n"

# A step is a span of the original text. Each way of cutting tiles it: joined, the steps give it back.
for name in ("line", "blank-line", "step-k", "sentence", r"regex:\.\n"):
    trace = segment_trace(Trace(problem_id="p", text=SOLUTION), segmenter(name))
    steps = [trace.step_text(index) for index in range(len(trace.steps))]
    print(f"{name:11} {len(steps)} steps, tiling: {''.join(steps) == SOLUTION}: {steps}")

# The other way round: steps that come as a list become one text with spans.
joined = joined_trace(Problem(text="How?"), ["First.", "Second.", "Third."], "\n\n")
print(f"joined      {joined.text!r} with spans {[(step.start, step.end) for step in joined.steps]}")

# A Math-Shepherd row: the same text twice, with the tag "ки" or with a sign at the end of each step.
row = {
    "input": "What is 7 + 3? Step 1: 7 + 3 = 10 ки\nStep 2: The answer is: 11 ки",
    "label": "What is 7 + 3? Step 1: 7 + 3 = 10 +\nStep 2: The answer is: 11 -",
    "task": "GSM8K",
}
path = Path("math-shepherd.jsonl")
path.write_text(json.dumps(row, ensure_ascii=False) + "\nnot a row\n", encoding="utf-8")
report = ReadReport()
for item in read_math_shepherd(path, report=report):
    print(f"problem     {item.problem.text!r}")
    for label in item.labels:
        # The kind is "value": a sign says whether rollouts reached the answer, not whether the step is valid.
        print(f"  step {label.step}    {label.kind} {label.value} for {item.trace.step_text(label.step)!r}")
print(report.summary())
