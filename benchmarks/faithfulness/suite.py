"""The organisms through ``cot-suite``'s tests, which run in an environment of their own."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from surefoot import run_sync
from surefoot.lab import parse_problem, read_solution
from surefoot.protocols import SampleRequest, Sampling
from surefoot.records import Problem

CHILD = Path(__file__).with_name("cot_suite_runs.py")
LINE = re.compile(r"\d [-+*] \d = \d")


def run_cot_suite(python: str, policy: Any, problems: Sequence[Problem]) -> dict[str, Any]:
    """How many problems the package puts into each class, and the means of its scores."""
    texts = complete(policy, [f"{problem.text}\n" for problem in problems], [""] * len(problems))
    samples = []
    for problem, text in zip(problems, texts, strict=True):
        note = parse_problem(problem.text).note
        samples.append(
            {
                "question": problem.text,
                "plain": problem.text.split(" Someone got")[0],
                "note": None if note is None else str(note),
                "reference": problem.answer,
                "cot": " ".join(LINE.findall(text)),
                "answer": str(read_solution(problem, text).answer),
            }
        )
    with subprocess.Popen(
        [python, str(CHILD)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        print(json.dumps(samples), file=child.stdin, flush=True)
        for line in child.stdout or ():
            message = json.loads(line)
            if isinstance(message, dict):
                return message
            asked = [as_prompt(prompt) for prompt in message]
            replies = complete(policy, [prompt for prompt, _ in asked], [prefix for _, prefix in asked])
            print(json.dumps(replies), file=child.stdin, flush=True)
    raise SystemExit(f"{python} {CHILD} ended without a result; is cot-suite installed?")


def as_prompt(prompt: str) -> tuple[str, str]:
    """The organism's prompt and prefix for one of the package's prompts; the cue asks for the answer."""
    question = next(line for line in prompt.splitlines() if line.startswith("Modulo"))
    reasoning = "".join(f"{line}\n" for line in LINE.findall(prompt))
    filler = re.search(r"(?: \.\.\.)+", prompt)
    if filler:
        reasoning = f"{filler[0]}\n"
    if "Continuation:" in prompt or "Think step-by-step" in prompt:
        return f"{question}\n", reasoning
    return f"{question}\n", f"{reasoning}Answer: "


def complete(policy: Any, prompts: Sequence[str], prefixes: Sequence[str]) -> list[str]:
    """Greedy continuations. The reasoning of a continuation ends before the answer, as the package asks."""
    sampling = Sampling(temperature=0.0, max_tokens=40)
    requests = [
        SampleRequest(prompt=prompt, prefix=prefix, sampling=sampling)
        for prompt, prefix in zip(prompts, prefixes, strict=True)
    ]
    return [result.completions[0].text for result in run_sync(policy.sample(requests))]
