"""search-and-learn's beam search, in an interpreter that has vllm."""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import vllm
from safetensors.torch import load_file
from sal.config import Config
from sal.models.reward_models import PRM
from transformers import AutoModel, AutoTokenizer
from vllm import LLM, SamplingParams

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
SEARCH = importlib.import_module("sal.search.beam_search")

TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'user' %}{{ message['content'] + '\\n' }}"
    "{% elif message['role'] == 'assistant' %}{{ message['content'] }}{% endif %}{% endfor %}"
)
"""The problem, a line break, and the solution so far: the lab's policy has no chat format.

It goes into a copy of the tokenizer: the one of vLLM 0.32 heeds no ``Config.custom_chat_template``.
"""


def lab_steps(**settings: Any) -> SamplingParams:
    """Sampling parameters whose steps end as those of the lab."""
    if settings.get("stop"):
        settings["stop"] = ["\n"]
    return SamplingParams(**settings)


class CountingLLM(LLM):
    """Counts the tokens that are written, and those of prompts that are read."""

    written = read = 0

    def generate(self, *given: Any, **settings: Any) -> Any:
        """As vLLM's."""
        outputs = super().generate(*given, **settings)
        for output in outputs:
            self.written += sum(len(one.token_ids) for one in output.outputs)
            self.read += len(output.prompt_token_ids) - (output.num_cached_tokens or 0)
        return outputs


class LabPRM(PRM):
    """A reward model of the lab behind search-and-learn's interface."""

    read = 0

    def load_model_and_tokenizer(self) -> tuple[Any, Any]:
        """The trunk; the head lies in a file of its own."""
        directory = Path(self.search_config.prm_path)
        head = load_file(directory / "head.safetensors")
        self.head = torch.nn.Linear(head["weight"].shape[1], 1)
        self.head.load_state_dict(head)
        tokenizer = AutoTokenizer.from_pretrained(directory)
        tokenizer.padding_side = "right"
        breaks = ["\n" in tokenizer.decode([token]) for token in range(len(tokenizer))]
        self.breaks = {token for token, has in enumerate(breaks) if has}
        return AutoModel.from_pretrained(directory, dtype=torch.float32).eval(), tokenizer

    def score(self, questions: list[str], outputs: list[list[str]]) -> list[list[list[float]]]:
        """Score of each step of each output."""
        texts = [
            (f"{question}\n", answer)
            for question, answers in zip(questions, outputs, strict=True)
            for answer in answers
        ]
        flat = iter(self.batches(texts))
        return [[next(flat) for _ in answers] for answers in outputs]

    def batches(self, texts: list[tuple[str, str]]) -> list[list[float]]:
        """Scores of all texts, in their order."""
        size = self.search_config.prm_batch_size
        return [one for at in range(0, len(texts), size) for one in self.batch(texts[at : at + size])]

    @torch.no_grad()
    def batch(self, texts: list[tuple[str, str]]) -> list[list[float]]:
        """Scores of one padded batch."""
        inputs = self.tokenizer(
            [prompt + answer for prompt, answer in texts], padding=True, return_tensors="pt"
        )
        lengths = inputs.attention_mask.sum(1).tolist()
        self.read += sum(lengths)
        starts = [len(ids) for ids in self.tokenizer([prompt for prompt, _ in texts]).input_ids]
        hidden = self.model(
            input_ids=inputs.input_ids, attention_mask=inputs.attention_mask, use_cache=False
        ).last_hidden_state
        values = torch.sigmoid(self.head(hidden)[..., 0]).tolist()
        return [
            [row[place] for place in self.places(ids[:length], start)] or [0.0]
            for row, ids, length, start in zip(
                values, inputs.input_ids.tolist(), lengths, starts, strict=True
            )
        ]

    def places(self, ids: list[int], start: int) -> list[int]:
        """Where steps are read: at the last token before a line break, or of all."""
        followed = pairwise([*ids, next(iter(self.breaks))])
        return [
            place
            for place, (token, after) in enumerate(followed)
            if place >= start and after in self.breaks and token not in self.breaks
        ]


class SortedPRM(LabPRM):
    """Reads each text once, neighbours in length together."""

    def batches(self, texts: list[tuple[str, str]]) -> list[list[float]]:
        """Scores of all texts, in batches of ``BATCH``."""
        distinct = sorted(set(texts), key=lambda pair: len(pair[0]) + len(pair[1]))
        scores = {}
        for at in range(0, len(distinct), BATCH):
            part = distinct[at : at + BATCH]
            scores.update(zip(part, self.batch(part), strict=True))
        return [scores[text] for text in texts]


BATCH = 64
"""Texts in a batch of :class:`SortedPRM`."""


class Merged:
    """Calls of several threads with a list each, made as one call when all threads wait in theirs."""

    def __init__(self, call: Callable[[list[Any]], Sequence[Any]], threads: int) -> None:
        self.call, self.threads = call, threads
        self.lock = threading.Lock()
        self.waiting: list[tuple[list[Any], Future[list[Any]]]] = []

    def __call__(self, items: list[Any]) -> list[Any]:
        """The results of ``items``, in order."""
        results: Future[list[Any]] = Future()
        with self.lock:
            self.waiting.append((items, results))
            self._run_when_full()
        return results.result()

    def leave(self) -> None:
        """This thread calls no more."""
        with self.lock:
            self.threads -= 1
            self._run_when_full()

    def _run_when_full(self) -> None:
        if not self.waiting or len(self.waiting) < self.threads:
            return
        waiting, self.waiting = self.waiting, []
        try:
            results = iter(self.call([item for items, _ in waiting for item in items]))
        except BaseException as error:
            for _, future in waiting:
                future.set_exception(error)
            raise
        for items, future in waiting:
            future.set_result(list(islice(results, len(items))))


def beam_search_batched(
    problems: list[str], config: Config, llm: CountingLLM, prm: LabPRM
) -> list[dict[str, Any]]:
    """What ``beam_search`` gives for each of ``problems``, with one call of policy and PRM a round."""

    def generate(requests: list[tuple[str, SamplingParams]]) -> Sequence[Any]:
        prompts, params = zip(*requests, strict=True)
        outputs: Sequence[Any] = llm.generate(list(prompts), list(params), use_tqdm=False)
        return outputs

    def score(requests: list[tuple[str, list[str]]]) -> Sequence[Any]:
        questions, outputs = zip(*requests, strict=True)
        return prm.score(list(questions), list(outputs))

    generated, scored = Merged(generate, len(problems)), Merged(score, len(problems))
    policy = SimpleNamespace(
        get_tokenizer=llm.get_tokenizer,
        generate=lambda prompts, params, **_: generated([(prompt, params) for prompt in prompts]),
    )
    verifier = SimpleNamespace(
        score=lambda questions, outputs: scored(list(zip(questions, outputs, strict=True)))
    )

    def search_one(text: str) -> dict[str, Any]:
        try:
            found: dict[str, Any] = SEARCH.beam_search({"problem": [text]}, config, policy, verifier)
            return found
        finally:
            generated.leave()
            scored.leave()

    with ThreadPoolExecutor(len(problems)) as pool:
        return list(pool.map(search_one, problems))


def main() -> None:
    """Load, then answer until the input ends."""
    given = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(given["threads"])
    config = Config(approach="beam_search", search_batch_size=1, custom_chat_template=None, **given["config"])
    llm = load(config, given["vllm"])
    prms = {False: LabPRM(config), True: SortedPRM(config)}
    setattr(SEARCH, "SamplingParams", lab_steps)  # noqa: B010  its module, not ours
    with open(given["answers"], "w", buffering=1) as answers:  # noqa: PTH123  a number, not a path
        about = {"vllm": vllm.__version__, "torch": torch.__version__, "threads": torch.get_num_threads()}
        answers.write(json.dumps(about) + "\n")
        for line in sys.stdin:
            asked = json.loads(line)
            batched = asked["batched"]
            found = search(
                asked["problems"], config, llm, prms[batched], CLOCKS[given["clock"]], batched=batched
            )
            answers.write(json.dumps(found) + "\n")


def search(
    problems: list[str],
    config: Config,
    llm: CountingLLM,
    prm: LabPRM,
    clock: Callable[[], float],
    *,
    batched: bool,
) -> dict[str, Any]:
    """All problems from the start, one after the other or ``batched``."""
    if not llm.reset_prefix_cache():  # nothing of an earlier repetition may help
        raise SystemExit("vLLM would not forget its prefixes")
    llm.written = llm.read = prm.read = 0
    start = clock()
    if batched:
        found = beam_search_batched(problems, config, llm, prm)
    else:
        found = [SEARCH.beam_search({"problem": [text]}, config, llm, prm) for text in problems]
    seconds = clock() - start
    spent = {"seconds": seconds, "read": llm.read, "written": llm.written, "scored": prm.read}
    return spent | chosen(found)


def load(config: Config, settings: dict[str, Any]) -> CountingLLM:
    """The policy as their script loads it, with a chat template."""
    tokenizer = AutoTokenizer.from_pretrained(config.model_path)
    tokenizer.chat_template = TEMPLATE
    with tempfile.TemporaryDirectory() as directory:
        tokenizer.save_pretrained(directory)
        return CountingLLM(
            model=config.model_path,
            tokenizer=directory,
            dtype="float32",
            seed=config.seed,
            enable_prefix_caching=True,
            **settings,
        )


def chosen(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The solution it hands out for each problem, and that solution's step scores."""
    predictions = [one["pred"][0] for one in found]
    places = [one["completions"][0].index(text) for one, text in zip(found, predictions, strict=True)]
    scores = [one["scores"][0][place] for one, place in zip(found, places, strict=True)]
    return {"predictions": predictions, "scores": scores}


if __name__ == "__main__":
    main()
