"""Which results of tools say that the call failed."""

import json

import pytest

from surefoot import Message
from surefoot.failures import fields_failed, result_failed, text_failed

FAILED = [
    "Error: no such order",
    "ValueError: no such account",
    "Failed: daily limit reached",
    "Traceback (most recent call last):\n  File \"a.py\", line 1\nKeyError: 'x'",
    "started\nTraceback (most recent call last):\n  File \"a.py\", line 1\nKeyError: 'x'",
    "404 Not Found",
    "Exit code 1\nno such account",
    "no such account\n[Command finished with exit code 1]",
    "Process exited with code 2",
    "<returncode>1</returncode>\n<output></output>",
    "<tool_use_error>File does not exist.</tool_use_error>",
    "/bin/bash: line 1: git: command not found",
    "EISDIR: illegal operation on a directory, read '/app'",
    "DNS resolution error",
    "{'error': 'no such user'}",
]
SUCCEEDED = ["Exit code 0\nfine", "<returncode>0</returncode>", "ls\n[exit code: 0]"]
SILENT = [
    "Error log: empty. Transfer done",
    "Errors: 0",
    "Error: none",
    "Error handling is described in chapter 5",
    "Failed tests: 0",
    "The word error in a text",
    "entries: 23",
    "4 results",
    "{'error': None, 'found': 3}",
    "",
]
FIELDS = [
    ({"is_error": True}, True),
    ({"isError": "true"}, True),
    ({"tool_result_is_error": False, "content": "Error"}, False),
    ({"error": "X"}, True),
    ({"error": {"code": 4}}, True),
    ({"error": None}, None),
    ({"error": ""}, None),
    ({"error": 0.01}, None),
    ({"errors": []}, None),
    ({"errors": [], "status": "done"}, False),
    ({"errors": [{"message": "X"}], "data": None}, True),
    ({"ok": False}, True),
    ({"ok": True}, False),
    ({"success": False, "error": None}, True),
    ({"returncode": -1, "output": ""}, True),
    ({"exit_code": 0, "error": "a warning"}, False),
    ({"output": "", "metadata": {"exit_code": 1}}, True),
    ({"statusCode": 404}, True),
    ({"status": 204}, False),
    ({"status": "error", "detail": "not found"}, True),
    ({"status": "failed", "reason": "limit"}, True),
    ({"type": "error-text", "value": "X"}, True),
    ({"note": "an error"}, None),
]


@pytest.mark.parametrize("text", FAILED)
def test_texts_of_failed_calls(text):
    assert text_failed(text) is True


@pytest.mark.parametrize("text", SUCCEEDED)
def test_texts_of_successful_calls(text):
    assert text_failed(text) is False


@pytest.mark.parametrize("text", SILENT)
def test_texts_that_do_not_say(text):
    assert text_failed(text) is None


@pytest.mark.parametrize(("fields", "failed"), FIELDS)
def test_fields_say_the_same_around_a_result_and_in_it(fields, failed):
    assert fields_failed(fields) is failed
    assert text_failed(json.dumps(fields)) is failed
    assert text_failed(json.dumps([{"type": "text", "text": json.dumps(fields)}])) is failed


def test_the_status_of_what_was_looked_up_is_not_the_status_of_the_call():
    assert text_failed('{"payment_id": 5, "amount": 3, "status": "failed"}') is None


def test_a_flag_of_the_message_comes_first():
    def message(flag):
        return Message(role="tool", content="Error in the page's title", error=flag)

    assert [result_failed(message(flag)) for flag in (True, False, None)] == [True, False, True]
    assert result_failed(Message(role="user", content="Error: x")) is None


@pytest.mark.parametrize("text", ['{"error": ' * 5_000, "[" * 100_000, "Error " * 200_000, "a: " * 100_000])
def test_hostile_texts_are_read_in_bounded_time(text):
    assert text_failed(text) in (None, True)
