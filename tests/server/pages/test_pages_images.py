"""Images of runs: kept if they are one bounded still image, and shown to the people of their project."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from annotation_site import Browser
from dialect_clients import dialects
from inspection_site import Inspection, open_inspection
from openai_server import chat as answer
from pictures import animated, huge, picture

from surefoot.records import Attachment, Message, Problem, Trace
from surefoot.segment import segment_trace

SVG = b"<svg xmlns='http://www.w3.org/2000/svg'><script>document.title='owned'</script></svg>"


@pytest.fixture
def found(tmp_path: Path) -> Any:
    made = open_inspection(tmp_path)
    yield made
    made.db.close()


@pytest.fixture
def admin(found: Inspection) -> Browser:
    return found.room.browser("admin")


def send(browser: Browser, base: str, name: str, content: bytes, make: str = "nothing") -> Any:
    fields = {**browser.fields(f"{base}/files"), "make": make}
    return browser.client.post(f"{base}/files", data=fields, files={"file": (name, content)})


def chat(*urls: str) -> bytes:
    """A conversation whose question has images between its words."""
    parts: list[dict[str, Any]] = [{"type": "text", "text": "Before."}]
    for url in urls:
        parts += [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "After."}]
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": "It is teal."}]
    return json.dumps({"messages": messages}).encode()


def data_url(content: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


def the_run(found: Inspection) -> tuple[str, Trace]:
    """Address and trace of the one conversation about a colour."""
    traces = found.db.export.records(found.room.project, "traces")
    trace = next(one for one in traces if one.messages and one.messages[-1].content == "It is teal.")
    return f"{found.base}/run?id={trace.id}", trace


def test_an_image_of_a_conversation_is_shown_between_its_words(found: Inspection, admin: Browser) -> None:
    content = picture()
    digest = hashlib.sha256(content).hexdigest()
    assert send(admin, found.base, "x.json", chat(data_url(content))).status_code == 200
    address, trace = the_run(found)
    assert trace.messages[0].attachments[0].sha256 == digest
    page = found.viewer.get(address).text
    source = f"{found.base}/images/{digest}"
    (tag,) = re.findall(rf'<img[^>]*src="{source}"[^>]*>', page)
    assert 'alt="image: image/png"' in tag
    before, after = (page.index(f">{word}") for word in ("<p>Before.", "<p>After."))
    assert before < page.index(tag) < after
    answer = found.viewer.get(source)
    assert (answer.status_code, answer.content) == (200, content)
    assert answer.headers["content-type"] == "image/png"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-security-policy"] == "default-src 'none'; sandbox"


def test_an_image_inside_of_a_trace_record_is_kept_and_shown(found: Inspection, admin: Browser) -> None:
    content = picture(color="olive")
    digest = hashlib.sha256(content).hexdigest()
    problem = Problem(text="Which colour?")
    row = {"problem_id": problem.id, **json.loads(chat(data_url(content)))}
    assert send(admin, found.base, "p.jsonl", problem.model_dump_json().encode()).status_code == 200
    assert send(admin, found.base, "t.jsonl", json.dumps(row).encode()).status_code == 200
    address, trace = the_run(found)
    assert (trace.messages[0].attachments[0].sha256, trace.messages[0].attachments[0].uri) == (digest, None)
    assert f'src="{found.base}/images/{digest}"' in found.viewer.get(address).text


def test_an_uploaded_image_is_shown_by_the_run_that_holds_its_hash(found: Inspection, admin: Browser) -> None:
    content = picture("JPEG")
    digest = hashlib.sha256(content).hexdigest()
    held = Attachment(kind="image", uri="attachments/x.jpg", sha256=digest, name='a "sign" <b>')
    problem = Problem(text="Which colour?")
    trace = segment_trace(
        Trace(
            problem_id=problem.id,
            messages=(
                Message(role="user", content="Look.", attachments=(held,)),
                Message(role="assistant", content="It is teal."),
            ),
        )
    )
    found.db.traces.add_problems(found.room.project, [problem])
    found.db.traces.add_traces(found.room.project, [trace])
    address = f"{found.base}/run?id={trace.id}"
    assert "<img" not in admin.get(address).text
    text = send(admin, found.base, "x.png", content).text  # the type is that of the bytes
    assert "1 image, 1 new" in text
    assert 'alt="image: a &#34;sign&#34; &lt;b&gt;"' in admin.get(address).text
    assert admin.get(f"{found.base}/images/{digest}").headers["content-type"] == "image/jpeg"
    assert "1 image, 0 new" in send(admin, found.base, "again.jpg", content).text


def test_annotators_see_the_images_of_their_item(found: Inspection, admin: Browser) -> None:
    content = picture()
    send(admin, found.base, "x.json", chat(data_url(content)), make="solutions")
    annotator, source = (
        found.room.browser("ann"),
        f"{found.base}/images/{hashlib.sha256(content).hexdigest()}",
    )
    pages = [annotator.follow(f"{found.base}/annotate").text]
    for _ in range(8):
        if source in pages[-1]:
            break
        action = re.search(r'action="([^"]*/skip)"', pages[-1])
        assert action is not None
        annotator.send(action[1], page=f"{found.base}/annotate", reason="other", words="x")
        pages.append(annotator.follow(f"{found.base}/annotate").text)
    assert f'src="{source}"' in pages[-1]
    assert annotator.get(source).content == content


def test_an_image_is_for_the_people_of_its_project(found: Inspection, admin: Browser) -> None:
    content = picture()
    send(admin, found.base, "x.png", content)
    digest = hashlib.sha256(content).hexdigest()
    assert found.room.browser().get(f"{found.base}/images/{digest}").status_code == 303
    assert found.viewer.get(f"{found.base}/images/{digest}").status_code == 200
    assert found.viewer.get(f"/projects/{found.other}/images/{digest}").status_code in (403, 404)
    assert admin.get(f"/projects/{found.other}/images/{digest}").status_code == 404


@pytest.mark.parametrize("digest", ["0" * 64, "..%2f..%2fetc%2fpasswd", "%00", "a%27%20or%201=1"])
def test_an_unknown_image_is_not_found(found: Inspection, admin: Browser, digest: str) -> None:
    assert admin.get(f"{found.base}/images/{digest}").status_code == 404


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (SVG, "not a PNG"),
        (picture()[:-30], "damaged"),
        (animated(), "animated"),
        (huge(), "pixels are too many"),
        (b"", "not a PNG"),
    ],
    ids=["svg", "cut", "animated", "huge", "empty"],
)
def test_what_is_not_one_bounded_still_image_is_not_kept(
    found: Inspection, admin: Browser, content: bytes, reason: str
) -> None:
    answer = send(admin, found.base, "bad.png", content)
    assert answer.status_code == 400
    assert reason in answer.text
    answer = send(admin, found.base, "x.json", chat(data_url(content), data_url(content)))
    assert answer.status_code == 200
    assert re.search(rf"Left out: 2 × image of a run: [^<]*{reason}", answer.text)
    address, trace = the_run(found)
    assert trace.messages[0].attachments
    page = admin.get(address).text
    assert "<img" not in page
    assert "image: image/png" in page  # it is named
    digest = hashlib.sha256(content).hexdigest()
    assert admin.get(f"{found.base}/images/{digest}").status_code == 404


def test_beside_a_bad_image_nothing_is_kept(found: Inspection, admin: Browser) -> None:
    problem = Problem(text="beside")
    files = [("file", ("p.jsonl", problem.model_dump_json())), ("file", ("bad.png", SVG))]
    data = {**admin.fields(f"{found.base}/files"), "make": "nothing"}
    assert admin.client.post(f"{found.base}/files", data=data, files=files).status_code == 400
    assert problem not in list(found.db.export.records(found.room.project, "problems"))


@pytest.mark.parametrize(
    "url",
    ["https://example.org/cat.png", "http://169.254.169.254/x.png", "/etc/hostname", "../secret.png"],
)
def test_an_address_is_named_and_never_loaded(found: Inspection, admin: Browser, url: str) -> None:
    assert send(admin, found.base, "x.json", chat(url)).status_code == 200
    page = admin.get(the_run(found)[0]).text
    assert "<img" not in page
    assert not re.search(rf'(src|href)="{re.escape(url)}"', page)


def ask_about(found: Inspection, content: bytes, model: str = "tiny", **options: Any) -> str:
    """Id of a request to the gateway with an image between its words."""
    [row, _] = json.loads(chat(data_url(content)))["messages"]
    with dialects(answer(["It is teal."]), db=found.db, **options) as (_, client, _other, _upstream):
        asked = client.chat.completions.create(
            model=model, messages=[row], extra_headers={"X-Session-Id": "s"}
        )
    return str(asked.id)


@pytest.mark.parametrize("model", ["tiny", "majority:n=2"])
def test_the_page_of_a_request_shows_its_images_in_their_place(
    found: Inspection, admin: Browser, model: str
) -> None:
    content = picture()
    digest = hashlib.sha256(content).hexdigest()
    request = ask_about(found, content, model)
    page = admin.get(f"/request?id={request}").text
    source = f"/requests/images/{digest}"
    (tag,) = re.findall(rf'<img[^>]*src="{source}"[^>]*>', page)
    before, after = (page.index(f">{word}") for word in ("<p>Before.", "<p>After."))
    assert before < page.index(tag) < after
    got = admin.get(source)
    assert (got.status_code, got.content, got.headers["content-type"]) == (200, content, "image/png")
    assert got.headers["content-security-policy"] == "default-src 'none'; sandbox"
    assert found.room.browser("tom").get(source).content == content
    # whoever may not read requests gets none of their images
    assert found.room.browser().get(source).status_code == 303
    assert {found.room.browser("ann").get(source).status_code, found.viewer.get(source).status_code} == {403}
    assert admin.get(f"/requests/images/{'0' * 64}").status_code == 404
    assert "base64" not in found.db.gateway.get(request).model_dump_json()


def test_an_import_of_images_without_pillow_says_what_to_install(
    found: Inspection, admin: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    answer = send(admin, found.base, "x.json", chat(data_url(b"x")))
    assert (answer.status_code, "reading images needs" in answer.text) == (400, True)


def test_an_imported_answer_brings_its_images_to_the_project(found: Inspection, admin: Browser) -> None:
    content = picture(color="navy")
    digest = hashlib.sha256(content).hexdigest()
    ask_about(found, content)
    assert admin.get(f"{found.base}/images/{digest}").status_code == 404
    sent = admin.send("/requests/import", page="/requests", which="chosen", into=str(found.room.project))
    assert sent.status_code == 200
    address, trace = the_run(found)
    assert trace.steps
    assert f'src="{found.base}/images/{digest}"' in found.viewer.get(address).text
    assert found.viewer.get(f"{found.base}/images/{digest}").content == content


def test_the_images_of_deleted_requests_are_deleted(found: Inspection, admin: Browser) -> None:
    old, both = picture(color="red"), picture(color="blue")
    ask_about(found, old)
    ask_about(found, both)
    between = datetime.now(UTC)
    ask_about(found, both)
    assert found.db.gateway.prune(between, project_id=found.room.project) == 0
    assert admin.get(f"/requests/images/{hashlib.sha256(old).hexdigest()}").status_code == 200
    assert found.db.gateway.prune(between) == 2
    assert admin.get(f"/requests/images/{hashlib.sha256(old).hexdigest()}").status_code == 404
    assert admin.get(f"/requests/images/{hashlib.sha256(both).hexdigest()}").content == both
