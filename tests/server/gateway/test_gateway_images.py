"""Images of requests, in three APIs over a socket: their bytes reach the policy, an address nobody."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import struct
import textwrap
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from command_line import good
from dialect_clients import dialects
from gateway_server import ask, echo, served
from openai_server import chat
from pictures import animated, huge, picture
from PIL import Image

from benchmarks.worlds.scripted import ScriptedPolicy
from surefoot import images
from surefoot.concurrency import FairQueue
from surefoot.errors import ScoreError
from surefoot.io import read_records
from surefoot.records import Problem, StepScores, Trace
from surefoot.rl.engines import RecordedTurn, verl_rows
from surefoot.server import (
    Database,
    GatewaySettings,
    ServerLimits,
    ToolGuard,
    open_database,
    session_conversations,
)

SEEN = chat(["It is teal."])


def url(content: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def part(dialect: str, content: bytes | str, kind: str = "image/png") -> dict[str, Any]:
    """A part with an image, or with the address of one."""
    address = content if isinstance(content, str) else url(content, kind)
    if dialect == "chat":
        return {"type": "image_url", "image_url": {"url": address}}
    if dialect == "responses":
        return {"type": "input_image", "image_url": address, "detail": "auto"}
    if isinstance(content, str):
        return {"type": "image", "source": {"type": "url", "url": content}}
    data = base64.b64encode(content).decode()
    return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}}


TEXTS = {"chat": "text", "responses": "input_text", "messages": "text"}
PATHS = {"chat": "/chat/completions", "responses": "/responses", "messages": "/messages"}
DIALECTS = tuple(PATHS)


def asked(dialect: str, *contents: bytes | str, **fields: Any) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [{"type": TEXTS[dialect], "text": "Which colour?"}]
    parts += [part(dialect, content) for content in contents]
    field = "input" if dialect == "responses" else "messages"
    most = {"max_tokens": 50} if dialect == "messages" else {}
    return {"model": "tiny", field: [{"role": "user", "content": parts}], **most, **fields}


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with open_database(tmp_path / "g.db") as opened:
        yield opened


def sent_images(body: dict[str, Any]) -> list[tuple[str, bytes]]:
    """Role and bytes of each image that the policy's server got."""
    found = []
    for message in body["messages"]:
        for one in message["content"] if isinstance(message["content"], list) else ():
            if one["type"] == "image_url":
                head, _, data = one["image_url"]["url"].partition(",")
                assert head.startswith("data:image/")
                found.append((message["role"], base64.b64decode(data)))
    return found


def test_the_makers_clients_send_images_that_reach_the_policy_unchanged(db: Database) -> None:
    content = picture("JPEG")
    with dialects(SEEN, db=db) as (_, one, other, upstream):
        asking = asked("chat", content)
        asking["messages"][0]["content"][1]["image_url"]["detail"] = "low"
        assert one.chat.completions.create(**asking).choices[0].message.content == "It is teal."
        assert one.responses.create(**asked("responses", content)).output_text == "It is teal."
        assert other.messages.create(**asked("messages", content)).content[0].text == "It is teal."
        with other.messages.stream(**asked("messages", content)) as stream:
            assert stream.get_final_text() == "It is teal."
    assert [sent_images(body) for body in upstream.bodies] == [[("user", content)]] * 4
    first = upstream.bodies[0]["messages"][0]["content"]
    assert first[0] == {"type": "text", "text": "Which colour?"}
    # by its bytes: Anthropic's servers refuse an image of another type than it says
    assert first[1]["image_url"] == {"url": url(content, "image/jpeg"), "detail": "low"}
    assert upstream.bodies[1]["messages"][0]["content"][1]["image_url"]["detail"] == "auto"


def test_a_tools_images_stand_in_a_users_message_behind_all_results(db: Database) -> None:
    shot, chart = picture(color="red"), picture("WEBP")
    result = {"type": "tool_result", "tool_use_id": "c1"}
    shown = [{"type": "text", "text": "Done."}, part("messages", shot)]
    history = [
        {"role": "user", "content": "Look twice."},
        {
            "role": "assistant",
            "content": [
                {"type": "tool_use", "id": f"c{number}", "name": "look", "input": {}} for number in (1, 2)
            ],
        },
        {
            "role": "user",
            "content": [
                {**result, "content": shown},
                {**result, "tool_use_id": "c2", "content": "nothing"},
                {"type": "text", "text": "And this?"},
                part("messages", chart),
            ],
        },
    ]
    call = {"type": "function_call", "name": "look", "arguments": "{}"}
    output = [{"type": "input_text", "text": "Done."}, part("responses", shot)]
    items = [
        {"role": "user", "content": "Look twice."},
        {**call, "call_id": "c1"},
        {**call, "call_id": "c2"},
        {"type": "function_call_output", "call_id": "c1", "output": output},
        {"type": "function_call_output", "call_id": "c2", "output": "nothing"},
        {"role": "user", "content": [{"type": "input_text", "text": "And this?"}, part("responses", chart)]},
    ]
    with dialects(SEEN, db=db) as (_, one, other, upstream):
        other.messages.create(model="tiny", max_tokens=9, messages=history)
        one.responses.create(model="tiny", input=items)
    for body in upstream.bodies:
        rows = body["messages"]
        assert [row["role"] for row in rows] == ["user", "assistant", "tool", "tool", "user", "user"]
        assert rows[2]["content"] == "Done.[image: in the next user message]"
        assert rows[4]["content"][0] == {"type": "text", "text": "Images of the result c1:"}
        assert sent_images(body) == [("user", shot), ("user", chart)]


BAD = {
    "svg": (b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>", "not a PNG"),
    "empty": (b"", "not a PNG"),
    "cut": (picture()[:-30], "damaged"),
    "animated": (animated(), "animated"),
    "huge": (huge(), "10000 × 6000 pixels are too many"),
}
ADDRESSES = (
    "http://169.254.169.254/latest/meta-data",
    "https://example.org/cat.png",
    "file:///etc/passwd",
    "/etc/passwd",
    "attachments/x.png",
    "//localhost/x",
    "s3://bucket/key",
)
PLACE = {"chat": "messages.0.content.1", "responses": "input.0.content.1", "messages": "messages.0.content.1"}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_is_no_bounded_still_image_is_refused_by_its_place(dialect: str, db: Database) -> None:
    with dialects(SEEN, db=db) as (gateway, _one, _other, upstream):
        for stream in (False, True):
            for content, reason in BAD.values():
                body = json.dumps(asked(dialect, content, stream=stream))
                status, answer = ask(gateway.url + PATHS[dialect], body)
                assert status == 400, answer
                assert answer["error"]["message"].startswith(f"{PLACE[dialect]}: "), answer
                assert reason in answer["error"]["message"]
        assert upstream.bodies == []
    rows = db.gateway.find()
    assert len(rows) == 2 * len(BAD)
    for row in rows:  # no image of theirs is kept
        record = db.gateway.get(row.request_id)
        assert (record.status, record.candidates) == (400, ())
        assert str(record.error).startswith(f"{PLACE[dialect]}: ")


@pytest.mark.parametrize("stream", [False, True])
def test_work_on_images_ends_with_the_time_of_a_request_and_is_recorded(
    stream: bool, db: Database, monkeypatch: Any
) -> None:
    release = threading.Event()
    monkeypatch.setattr("surefoot.server.gateway.images._known", OrderedDict())
    monkeypatch.setattr("surefoot.server.gateway.images.checked", lambda *_: release.wait(5) and "image/png")
    with dialects(SEEN, db=db, limits=ServerLimits(timeout_s=0.3)) as (gateway, _one, _other, upstream):
        body = json.dumps(asked("chat", picture(), stream=stream))
        status, answer = ask(f"{gateway.url}/chat/completions", body)
        release.set()
        assert (status, answer["error"]["code"], upstream.bodies) == (504, "timeout", [])
    assert [row.status for row in db.gateway.find()] == [504]


@pytest.mark.parametrize(
    "wrap", [lambda text: "\n".join(textwrap.wrap(text, 76)), lambda text: f" {text}\r\n"]
)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_base64_may_have_line_breaks(dialect: str, wrap: Any) -> None:
    content = picture(color="#102030", size=(200, 100))
    body = asked(dialect, content)
    held = body["input" if dialect == "responses" else "messages"][0]["content"][1]
    text = base64.b64encode(content).decode()
    if dialect == "messages":
        held["source"]["data"] = wrap(text)
    elif dialect == "chat":
        held["image_url"]["url"] = f"data:image/png;base64,{wrap(text)}"
    else:
        held["image_url"] = f"data:image/png;base64,{wrap(text)}"
    with dialects(SEEN) as (gateway, _one, _other, upstream):
        status, answer = ask(gateway.url + PATHS[dialect], json.dumps(body))
        assert status == 200, answer
    assert sent_images(upstream.bodies[0]) == [("user", content)]


NOT_AN_IMAGE = "image in the request: not a PNG, JPEG, WEBP, GIF file, or invalid base64"


@pytest.mark.parametrize("text", ["_-_-", "QUJD-_==", "iVBORw0KGgo", "iVBORw0KGgo=="])
def test_text_that_is_not_base64_is_named_so(text: str) -> None:
    body = asked("chat", f"data:image/png;base64,{text}")
    with dialects(SEEN) as (gateway, _one, _other, _upstream):
        status, answer = ask(f"{gateway.url}/chat/completions", json.dumps(body))
    assert (status, answer["error"]["message"]) == (400, f"messages.0.content.1: {NOT_AN_IMAGE}")


def test_an_image_in_the_records_shape_needs_no_hash() -> None:
    content = picture()
    message = {"role": "user", "content": "x", "attachments": [{"kind": "image", "uri": url(content)}]}
    with dialects(SEEN) as (gateway, _one, _other, upstream):
        body = json.dumps({"model": "tiny", "messages": [message]})
        status, answer = ask(f"{gateway.url}/chat/completions", body)
        assert status == 200, answer
    assert sent_images(upstream.bodies[0]) == [("user", content)]


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_address_is_refused_and_never_passed_on(dialect: str, address: str, db: Database) -> None:
    with dialects(SEEN, db=db) as (gateway, _one, _other, upstream):
        status, answer = ask(gateway.url + PATHS[dialect], json.dumps(asked(dialect, picture(), address)))
        assert (status, upstream.bodies) == (400, [])
        place = PLACE[dialect].replace("content.1", "content.2")
        assert answer["error"]["message"] == (
            f"{place}: an address is not opened; send the image itself, in base64"
        )


@pytest.mark.parametrize(
    ("held", "reason"),
    [
        ({"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}}, "kind audio"),
        ({"type": "file", "file": {"file_data": "data:application/pdf;base64,aGk="}}, "kind file"),
        ({"type": "input_image", "file_id": "file-1"}, "an address is not opened"),
        ({"type": "image_url"}, "an address is not opened"),
    ],
)
def test_other_parts_are_refused_by_their_kind(held: dict[str, Any], reason: str) -> None:
    body = asked("chat")
    body["messages"][0]["content"].append(held)
    with dialects(SEEN) as (gateway, _one, _other, upstream):
        status, answer = ask(f"{gateway.url}/chat/completions", json.dumps(body))
        assert (status, upstream.bodies) == (400, [])
        assert answer["error"]["param"] == "messages.0.content.1"
        assert reason in answer["error"]["message"]


def test_an_image_cannot_take_the_hash_of_another(db: Database) -> None:
    """A message in the shape of the records may name any hash; others would be shown this image."""
    other = hashlib.sha256(picture(color="red")).hexdigest()
    held = {"kind": "image", "uri": url(picture()), "sha256": other}
    with dialects(SEEN, db=db) as (gateway, _one, _other, upstream):
        for attachment in (held, {"kind": "image", "sha256": other}):
            message = {"role": "user", "content": "x", "attachments": [attachment]}
            status, answer = ask(
                f"{gateway.url}/chat/completions", json.dumps({"model": "tiny", "messages": [message]})
            )
            assert (status, upstream.bodies) == (400, []), answer


def test_the_number_of_images_is_bounded_and_the_same_image_counts_once(monkeypatch: Any) -> None:
    monkeypatch.setattr("surefoot.server.gateway.images.MOST_IMAGES", 2)
    colors = [picture(color=color) for color in ("red", "blue", "green")]
    with dialects(SEEN) as (gateway, one, _other, upstream):
        one.chat.completions.create(**asked("chat", *colors[:2], colors[0]))
        assert len(sent_images(upstream.bodies[0])) == 3
        status, answer = ask(f"{gateway.url}/chat/completions", json.dumps(asked("chat", *colors)))
        assert (status, answer["error"]["message"]) == (400, "messages: 3 images; the limit is 2")


def declared(number: int, width: int = 16_383, height: int = 3_050) -> bytes:
    """A WebP of a few bytes, different by number, whose header declares very many pixels."""
    stream = io.BytesIO()
    Image.new("RGB", (9, 9), (number, 0, 0)).save(stream, "WEBP", lossless=True)
    content = stream.getvalue()
    at = content.index(b"VP8L") + 9
    return content[:at] + struct.pack("<I", width - 1 | height - 1 << 14) + content[at + 4 :]


@pytest.mark.parametrize("dialect", [*DIALECTS, "score", "items"])
def test_pixels_of_a_request_are_bounded_before_any_is_decoded(dialect: str, monkeypatch: Any) -> None:
    decoded: list[bytes] = []
    monkeypatch.setattr(
        "surefoot.server.gateway.images.checked", lambda content, _: decoded.append(content) or "image/webp"
    )
    monkeypatch.setattr("surefoot.server.gateway.images._known", OrderedDict())
    contents = [declared(number) for number in range(3)]
    assert sum(map(len, contents)) < 200
    field, path = PLACE.get(dialect, "trace").partition(".")[0], PATHS.get(dialect, "/score")
    with dialects(SEEN, scorer=Looker()) as (gateway, _one, _other, upstream):
        for sent, status in ((contents, 400), (contents[:2], 200), (contents, 200)):
            body = asked(dialect, *sent) if dialect in DIALECTS else scored(sent, apart=dialect == "items")
            found, answer = ask(gateway.url + path, json.dumps(body))
            assert found == status, answer
            if status == 400:
                said = f"{field}: 149,904,450 pixels in new images; the limit is 100,000,000"
                assert answer["error"]["message"].startswith(said)
                assert (decoded, upstream.bodies) == ([], [])
    # those that were decoded before do not count again
    assert sorted(decoded) == sorted(contents)


def test_images_of_few_bytes_take_no_turn_of_quick_work(monkeypatch: Any) -> None:
    turns: list[bool] = []
    run = FairQueue.run

    async def noted(self: FairQueue, threads: Any, work: Any, key: Any = None, *, quick: bool = True) -> Any:
        turns.append(quick)
        return await run(self, threads, work, key, quick=quick)

    monkeypatch.setattr(FairQueue, "run", noted)
    with dialects(SEEN, scorer=Looker()) as (gateway, one, _other, _upstream):
        one.chat.completions.create(**asked("chat", picture()))
        assert False in turns
        turns.clear()
        status, answer = ask(f"{gateway.url}/score", json.dumps(scored([picture()])))
        assert (status, turns[0]) == (200, False), answer


def scored(contents: Sequence[bytes], *, apart: bool = False) -> dict[str, Any]:
    """A body of ``/v1/score`` with these images, in one trace or apart in several."""
    items = []
    for held in [[content] for content in contents] if apart else [contents]:
        asking = {"role": "user", "content": [part("chat", content) for content in held]}
        trace = {"problem_id": "p", "messages": [asking, {"role": "assistant", "content": "It is teal."}]}
        items.append({"problem": "Which colour?", "trace": trace})
    return {"items": items}


def test_the_number_of_images_of_scored_traces_is_bounded(monkeypatch: Any) -> None:
    monkeypatch.setattr("surefoot.server.gateway.images.MOST_IMAGES", 2)
    colors = [picture(color=color) for color in ("red", "blue", "green")]
    with dialects(SEEN, scorer=Looker()) as (gateway, _one, _other, _upstream):
        for apart in (False, True):
            status, answer = ask(f"{gateway.url}/score", json.dumps(scored(colors, apart=apart)))
            assert (status, answer["error"]["message"]) == (400, "trace: 3 images; the limit is 2")


def test_an_image_is_decoded_once_for_all_turns_and_outside_of_the_event_loop(monkeypatch: Any) -> None:
    decoded: list[str] = []
    checked = images.checked

    def counted(content: bytes, name: str) -> str:
        decoded.append(threading.current_thread().name)
        return checked(content, name)

    monkeypatch.setattr("surefoot.server.gateway.images.checked", counted)
    monkeypatch.setattr("surefoot.server.gateway.images._known", OrderedDict())
    content = picture(color="#123456")
    with dialects(SEEN) as (_, one, _other, upstream):
        for _turn in range(3):
            one.chat.completions.create(**asked("chat", content))
    assert [name.partition("_")[0] for name in decoded] == ["surefoot-compute"]
    assert len(upstream.bodies) == 3


class Looker:
    """Scores each step by whether the images are there, and keeps what it was given."""

    name = "looker"

    def __init__(self) -> None:
        self.addresses: list[list[str | None]] = []

    def score_traces(self, items: Any) -> list[StepScores]:
        records = []
        for item in items:
            held = [each.uri for message in item.trace.messages for each in message.attachments]
            self.addresses.append(held)
            score = 0.9 if held and all((uri or "").startswith("data:") for uri in held) else 0.1
            scores = (score,) * len(item.trace.steps)
            records.append(StepScores(trace_id=item.trace.id, scorer=self.name, scores=scores))
        return records


@pytest.mark.parametrize("strategy", ["best-of-n:n=2", "resample:n=1,threshold=0.5"])
def test_a_reward_model_sees_the_images_with_each_candidate(strategy: str, db: Database) -> None:
    looker, content = Looker(), picture()
    with dialects(SEEN, db=db, scorer=looker) as (_, one, _other, _upstream):
        answer = one.chat.completions.create(**asked("chat", content) | {"model": strategy})
    assert answer.surefoot["searches"][0]["candidates"][0]["value"] == 0.9
    assert all(held == [url(content)] for held in looker.addresses)
    record = db.gateway.get(answer.id)
    # records hold the hash alone
    assert "base64" not in record.model_dump_json()
    [held] = record.candidates[0].trace.messages[0].attachments
    assert (held.sha256, held.uri) == (hashlib.sha256(content).hexdigest(), None)


def test_a_strategy_that_scores_texts_alone_refuses_images_by_name() -> None:
    with dialects(SEEN, scorer=Looker()) as (gateway, _one, _other, upstream):
        body = json.dumps(asked("chat", picture()) | {"model": "beam:width=2,expand=2"})
        status, answer = ask(f"{gateway.url}/chat/completions", body)
    assert (status, upstream.bodies) == (400, [])
    assert (
        "images: 'beam:width=2,expand=2' continues texts step by step, without images"
        in answer["error"]["message"]
    )


def test_images_are_counted_by_the_policys_server() -> None:
    with dialects(chat(["x"], prompt_tokens=321)) as (_, _one, other, upstream):
        asking = asked("messages", picture())
        del asking["max_tokens"]
        assert other.messages.count_tokens(**asking).input_tokens == 321
    assert len(sent_images(upstream.bodies[0])) == 1


def test_the_traces_and_episodes_of_sessions_come_with_their_images(db: Database, tmp_path: Path) -> None:
    content, later = picture(), picture(color="red")
    with dialects(SEEN, db=db) as (_, one, _other, _upstream):
        asking = asked("chat", content)
        one.chat.completions.create(**asking, extra_headers={"X-Session-Id": "s"})
        asking["messages"] += [{"role": "assistant", "content": "It is teal."}]
        asking["messages"] += asked("chat", later)["messages"]
        one.chat.completions.create(**asking, extra_headers={"X-Session-Id": "s"})
    written = good("serve", "sessions", "--database", tmp_path / "g.db", "--out", tmp_path / "out")
    assert "not shown" not in written.err
    [trace] = read_records(tmp_path / "out/traces.jsonl", Trace)
    [held] = trace.messages[0].attachments
    assert (tmp_path / "out" / str(held.uri)).read_bytes() == content
    assert images.embedded(held, tmp_path / "out").uri == url(content)
    turns = json.loads((tmp_path / "out/episodes.jsonl").read_text())["turns"]
    shown = [
        [
            (tmp_path / "out" / one["image_url"]["url"]).read_bytes()
            for message in turn["prompt"]
            for one in (message["content"] if isinstance(message["content"], list) else ())
            if one["type"] == "image_url"
        ]
        for turn in turns
    ]
    assert shown == [[content], [content, later]]
    assert turns[1]["completion"] == {"role": "assistant", "content": "It is teal."}
    with pytest.raises(ScoreError, match="shows an image"):  # its tokens stand for pixels that are not there
        verl_rows([RecordedTurn(**{**turns[0], "prompt_ids": [1], "completion_ids": [2], "reward": 1.0})])

    records = db.gateway.session("s", key_id=None)
    while db.gateway.prune(datetime.now(UTC)):
        pass
    db.gateway.write_all(records)
    written = good("serve", "sessions", "--database", tmp_path / "g.db", "--out", tmp_path / "none")
    assert "2 images named, not shown: deleted with older requests" in written.err


def test_answers_that_read_alike_about_other_images_are_other_traces(db: Database) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    other = {**call, "function": {"name": "look", "arguments": '{"again": 1}'}}
    calling = [chat([None], finish="tool_calls", tool_calls=[each]) for each in (call, other)]
    red, blue = picture(color="red"), picture(color="blue")
    with dialects(*calling, SEEN, db=db) as (_, one, _other, _upstream):
        ids = [
            one.chat.completions.create(**asked("chat", *shown), seed=1, **more).id
            for shown, more in [
                ((), {"tools": [tool]}),
                ((), {"tools": [tool]}),
                ((red,), {}),
                ((blue,), {}),
                ((blue, red), {}),
            ]
        ]
    records = [db.gateway.get(name) for name in ids]
    traces = [record.candidates[0].trace for record in records]
    problems = [record.problem for record in records if record.problem]
    assert len({trace.id for trace in traces}) == len(traces)
    assert len({problem.id for problem in problems}) == 4, "those without an image ask the same"
    assert problems[0] == Problem(text="Which colour?")
    project = db.projects.create("lab").id
    assert db.traces.add_problems(project, problems).refused == 0
    assert db.traces.add_traces(project, traces).new == len(traces)


def test_questions_about_other_images_are_branches_of_a_session(db: Database) -> None:
    """A client that shows another image asks something else, however alike the texts."""
    red, blue = picture(color="red"), picture(color="blue")
    with dialects(SEEN, db=db) as (_, one, _other, _upstream):
        for shown in (red, blue):
            asking = asked("chat", shown)
            one.chat.completions.create(**asking, extra_headers={"X-Session-Id": "s"})
            more = [
                *asking["messages"],
                {"role": "assistant", "content": "It is teal."},
                {"role": "user", "content": "Are you sure?"},
            ]
            one.chat.completions.create(model="tiny", messages=more, extra_headers={"X-Session-Id": "s"})
    lines = session_conversations(db.gateway.session("s", key_id=None))
    assert [len(line.turns) for line in lines] == [2, 2]
    assert [
        {held.sha256 for message in line.trace.messages for held in message.attachments} for line in lines
    ] == [{hashlib.sha256(shown).hexdigest()} for shown in (red, blue)]


def test_a_question_that_is_an_image_alone_is_answered(db: Database) -> None:
    asking = asked("chat", picture())
    del asking["messages"][0]["content"][0]
    with dialects(SEEN, db=db) as (_, one, _other, upstream):
        answer = one.chat.completions.create(**asking)
    assert len(sent_images(upstream.bodies[0])) == 1
    problem = db.gateway.get(answer.id).problem
    assert problem is not None
    assert problem.text == "(no text: see the images)"


def test_a_policy_in_this_process_refuses_images_by_name() -> None:
    with served(ScriptedPolicy(echo)) as found:
        body = json.dumps(asked("chat", picture()) | {"model": "surefoot"})
        status, answer = ask(f"{found.url}/chat/completions", body)
    assert status == 400
    assert "start the server with --chat" in answer["error"]["message"]


def test_a_model_in_this_process_that_reads_text_alone_refuses_by_name(gpt2_base: Path) -> None:
    from surefoot.policies.transformers import TransformersPolicy

    policy = TransformersPolicy.from_pretrained(gpt2_base)
    policy.tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    with served(policy, settings=GatewaySettings(chat=True)) as found:
        body = json.dumps(asked("chat", picture()) | {"model": "surefoot"})
        status, answer = ask(f"{found.url}/chat/completions", body)
    assert (status, answer["error"]["code"]) == (400, "policy_refused"), answer
    assert (
        "a message holds an attachment (image), and this model reads text only" in answer["error"]["message"]
    )


def test_images_of_scored_traces_are_checked() -> None:
    with dialects(SEEN, scorer=Looker()) as (gateway, _one, _other, _upstream):
        status, answer = ask(f"{gateway.url}/score", json.dumps(scored([BAD["animated"][0]])))
        assert (status, "animated" in answer["error"]["message"]) == (400, True), answer
        status, answer = ask(f"{gateway.url}/score", json.dumps(scored([picture()])))
    assert (status, answer["results"][0]["scores"]) == (200, [0.9]), answer


def test_the_guards_reward_model_sees_the_images_and_held_runs_hold_their_hashes(db: Database) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    looker, content = Looker(), picture()
    for threshold, held in ((0.5, 0), (0.95, 1)):
        guard = ToolGuard(enabled=True, threshold=threshold, hold_s=0, protocol="hold")
        options = {"scorer": looker, "more": {"guard": guard}, "holds": db.held_calls, "db": db}
        said = chat([None], finish="tool_calls", tool_calls=[call])
        with dialects(said, **options) as (_, one, _other, _upstream):
            answer = one.chat.completions.create(**asked("chat", content), tools=[tool])
        assert bool(answer.choices[0].message.tool_calls) == (not held)
        assert db.held_calls.count()["waiting"] == held
    assert all(addresses == [url(content)] for addresses in looker.addresses)
    [row] = db.held_calls.find(state="waiting")
    [attachment] = db.held_calls.get(row.id)[0].run[0].attachments
    assert (attachment.sha256, attachment.uri) == (hashlib.sha256(content).hexdigest(), None)


def test_visualprm_scores_candidates_with_their_images(tmp_path: Path, db: Database) -> None:
    from visual_checkpoints import save

    from surefoot import load_prm

    save(tmp_path / "visual")
    scorer = load_prm(tmp_path / "visual", family="visualprm")
    with dialects(chat(["One.\n\nIt is teal."]), db=db, scorer=scorer) as (_, one, _other, _upstream):
        values = []
        for content in (picture(color="teal"), picture(color="red")):
            answer = one.chat.completions.create(**asked("chat", content) | {"model": "best-of-n:n=2"})
            [search] = answer.surefoot["searches"]
            values.append(search["candidates"][0]["value"])
            assert 0 < values[-1] < 1
            assert search["finish"] != "unscored"
    assert values[0] != values[1], "another image, another score"
