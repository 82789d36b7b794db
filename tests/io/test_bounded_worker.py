"""The bounded process with tasks of other modules: answers, failures and limits."""

from __future__ import annotations

import os

import pytest

from surefoot.errors import LabelError
from surefoot.io.bounded_worker import BoundedWorker
from surefoot.labelling.verifiers.expressions import load_algebra


def load_echo():
    def answer(question):
        if question == "environment":
            return sorted(os.environ)
        if question == "fail":
            raise ValueError(question)
        if question == "deep":
            return answer(question)
        if question == "forever":
            while True:
                pass
        if question == "large":
            return len(bytearray(10**10))
        return question

    return answer


def load_nothing():
    raise ImportError("no such library")


@pytest.fixture
def worker():
    worker = BoundedWorker(load_echo, timeout_s=2, memory_mb=512, error=LabelError)
    yield worker
    worker.close()


def test_a_task_of_another_module_answers_json(worker):
    for question in (None, 5, "text", {"a": [1, 2.5, None]}):
        assert worker.ask(question).answer == question
        assert worker.ask(question).failure is None


def test_failures_are_named_and_the_next_question_is_answered(worker):
    for question, failure in (("fail", "error"), ("deep", "too_deep"), ("forever", "timeout")):
        assert worker.ask(question).failure == failure
        assert worker.ask("after").answer == "after"


def test_memory_is_limited(worker):
    assert worker.ask("large").failure in ("memory", "crash")
    assert worker.ask("after").answer == "after"


def test_a_task_that_cannot_load_is_an_error_of_the_given_class():
    worker = BoundedWorker(load_nothing, timeout_s=2, memory_mb=512, error=LabelError)
    with pytest.raises(LabelError, match="no such library"):
        worker.ask(1)


@pytest.mark.parametrize(
    ("left", "right", "relation"),
    [
        (
            ["^", ["+", ["s", "x"], ["n", "1"]], ["n", "2"]],
            ["+", ["*", ["s", "x"], ["+", ["s", "x"], ["n", "2"]]], ["n", "1"]],
            "identity",
        ),
        (["s", "x"], ["+", ["s", "x"], ["n", "1"]], "never"),
        (["s", "x"], ["n", "1/2"], "open"),
        (["sqrt", ["n", "8"], ["n", "2"]], ["*", ["n", "2"], ["sqrt", ["n", "2"], ["n", "2"]]], "identity"),
        (["s", "pi"], ["n", "22/7"], "never"),
        (["/", ["n", "1"], ["-", ["s", "x"], ["s", "x"]]], ["s", "x"], "open"),
    ],
)
def test_algebra(left, right, relation):
    assert load_algebra()({"left": left, "right": right})["relation"] == relation


def test_the_process_gets_no_secrets_of_the_environment(monkeypatch):
    for name in ("OPENAI_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "DATABASE_URL"):
        monkeypatch.setenv(name, "secret")
    worker = BoundedWorker(load_echo, timeout_s=2, memory_mb=512, error=LabelError)
    try:
        names = worker.ask("environment").answer
    finally:
        worker.close()
    assert "PYTHONPATH" in names
    assert not any("KEY" in name or "TOKEN" in name or "URL" in name for name in names)
