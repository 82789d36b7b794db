"""The recorder: batches, what cannot be kept, a store that is gone, and what waits at the end."""

from __future__ import annotations

import asyncio
import json
import threading
from datetime import UTC, datetime

import httpx2
import pytest
from gateway_server import LineScorer, ask, lines, served, wait_until

from benchmarks.worlds.scripted import ScriptedPolicy
from surefoot.errors import StoreError, UnavailableError
from surefoot.server import GatewayRecord, open_database
from surefoot.server.gateway.errors import ApiError
from surefoot.server.gateway.request_log import Recorder
from surefoot.server.gateway.settings import ServerLimits

MESSAGES = [{"role": "user", "content": "hello"}]


def record(name):
    return GatewayRecord(
        request_id=name,
        created=datetime(2031, 5, 4, tzinfo=UTC),
        endpoint="e",
        model="m",
        strategy="s",
        status=200,
        latency_ms=1,
    )


class Log:
    """Keeps batches of names; ``bad`` ones cannot be kept, ``gone`` = nothing can, ``gate`` holds it."""

    def __init__(self):
        self.batches, self.bad, self.gone = [], set(), False
        self.gate = threading.Event()
        self.gate.set()

    def write_all(self, records):
        assert self.gate.wait(20)
        names = [one.request_id for one in records]
        if self.gone:
            raise UnavailableError("no database")
        if self.bad & set(names):
            raise StoreError("cannot be kept")
        self.batches.append(names)

    @property
    def kept(self):
        return [name for batch in self.batches for name in batch]


def test_what_comes_while_one_is_written_goes_together():
    log = Log()

    async def main():
        recorder = Recorder(log)
        log.gate.clear()
        work = [asyncio.create_task(recorder.write(record("0")))]
        await asyncio.sleep(0.05)
        work += [asyncio.create_task(recorder.write(record(str(number)))) for number in range(1, 9)]
        await asyncio.sleep(0.05)
        assert not any(one.done() for one in work)
        log.gate.set()
        await asyncio.gather(*work)
        await recorder.close()

    asyncio.run(main())
    assert log.kept == [str(number) for number in range(9)]
    assert len(log.batches) == 2


def test_one_that_cannot_be_kept_fails_alone():
    log = Log()
    log.bad = {"2"}

    async def main():
        recorder = Recorder(log)
        work = [recorder.write(record(str(number))) for number in range(5)]
        found = await asyncio.gather(*work, return_exceptions=True)
        await recorder.close()
        return found

    found = asyncio.run(main())
    assert [isinstance(one, StoreError) for one in found] == [False, False, True, False, False]
    assert sorted(log.kept) == ["0", "1", "3", "4"]


def test_images_that_cannot_be_stored_are_seen_by_readiness_as_records_are():
    log = Log()

    def keep_images(_project_id, images):
        assert log.gate.wait(20)
        if images:
            raise UnavailableError("no database")

    log.keep_images = keep_images

    async def refused(recorder):
        while True:
            await asyncio.sleep(0.05)
            try:
                recorder.check()
            except ApiError as error:
                return error.status

    async def main():
        recorder = Recorder(log)
        with pytest.raises(UnavailableError):
            await recorder.keep(None, {"a": ("image/png", b"x")})
        found = [await refused(recorder)]
        await recorder.keep(None, {})
        recorder.check()
        log.gate.clear()
        write = asyncio.create_task(recorder.keep(None, {}))
        found.append(await refused(recorder))
        log.gate.set()
        await write
        recorder.check()
        await recorder.close()
        return found

    assert asyncio.run(asyncio.wait_for(main(), 20)) == [503, 503]


def test_a_refused_record_is_set_aside_and_counted_and_the_last_write_decides_about_readiness():
    log, lost = Log(), []
    log.bad = {"2", "3"}

    async def main():
        recorder = Recorder(log, on_loss=lambda: lost.append(1))
        recorder.note(record("2"))
        with pytest.raises(StoreError):
            await recorder.write(record("3"))
        with pytest.raises(ApiError) as refusal:
            recorder.check()
        await recorder.write(record("4"))
        recorder.check()
        await recorder.close()
        return refusal.value.status

    assert asyncio.run(main()) == 503
    assert (log.kept, lost) == (["4"], [1])


def test_a_store_that_hangs_is_not_ready_until_it_goes_on():
    log = Log()

    async def main():
        recorder = Recorder(log)
        log.gate.clear()
        write = asyncio.create_task(recorder.write(record("0")))
        refused = None
        while refused is None:
            await asyncio.sleep(0.05)
            try:
                recorder.check()
            except ApiError as error:
                refused = error.status
        log.gate.set()
        await write
        recorder.check()
        await recorder.close()
        return refused

    assert asyncio.run(main()) == 503


def test_a_store_that_is_gone_fails_all_that_wait_at_once():
    log, calls = Log(), []
    write = log.write_all
    log.write_all = lambda records: (calls.append(len(records)), write(records))
    log.gone = True

    async def main():
        recorder = Recorder(log)
        log.gate.clear()
        first = asyncio.create_task(recorder.write(record("0")))
        await asyncio.sleep(0.05)
        rest = [asyncio.create_task(recorder.write(record(str(number)))) for number in range(1, 50)]
        await asyncio.sleep(0.05)
        log.gate.set()
        found = await asyncio.gather(first, *rest, return_exceptions=True)
        await recorder.close()
        return found

    assert all(isinstance(one, UnavailableError) for one in asyncio.run(main()))
    assert calls == [1, 49]


def test_a_record_is_withdrawn_with_its_caller_unless_it_is_being_written():
    log = Log()

    async def main():
        recorder = Recorder(log)
        log.gate.clear()
        begun = asyncio.create_task(recorder.write(record("begun")))
        await asyncio.sleep(0.05)
        waits = asyncio.create_task(recorder.write(record("waits")))
        await asyncio.sleep(0)
        for one in (begun, waits):
            one.cancel()
        await asyncio.gather(begun, waits, return_exceptions=True)
        log.gate.set()
        await recorder.close()

    asyncio.run(main())
    assert log.batches == [["begun"]]


def test_notes_are_bounded_and_what_is_lost_is_counted(caplog):
    log, lost = Log(), []

    async def main():
        recorder = Recorder(log, on_loss=lambda: lost.append(1))
        log.gate.clear()
        for number in range(1100):
            recorder.note(record(str(number)))
        log.gate.set()
        await recorder.close()

    asyncio.run(main())
    assert len(log.kept) == 1024
    assert len(lost) == 76


def test_closing_does_not_wait_for_ever(caplog):
    log = Log()

    async def main():
        recorder = Recorder(log)
        log.gate.clear()
        recorder.note(record("a"))
        await asyncio.sleep(0.05)
        recorder.note(record("b"))
        await recorder.close(timeout_s=0.1)
        log.gate.set()

    asyncio.run(main())
    assert "not recorded in time" in caplog.text


class Everything:
    """Every name."""

    def __and__(self, names):
        return names


class Store:
    """What ``served`` asks of a database."""

    def __init__(self):
        self.gateway, self.keys = Log(), None


def chat(url, **more):
    body = {"model": "scripted", "messages": MESSAGES, **more}
    return ask(f"{url}/chat/completions", json.dumps(body).encode())


def test_who_waits_for_the_record_keeps_the_place_and_the_clock_runs():
    store = Store()
    limits = ServerLimits(running=1, waiting=1, timeout_s=1.5)
    with served(ScriptedPolicy(lines), LineScorer(), db=store, limits=limits) as found:
        store.gateway.gate.clear()
        answers = []
        work = [threading.Thread(target=lambda: answers.append(chat(found.url)[0])) for _ in range(3)]
        for one in work:
            one.start()
        for one in work:
            one.join(20)
        store.gateway.gate.set()
        assert sorted(answers) == [429, 504, 504]
        wait_until(lambda: found.gateway.admission.running == 0)
        assert chat(found.url)[0] == 200


def test_a_server_that_cannot_write_is_not_ready():
    store = Store()
    store.gateway.gone = True
    with served(ScriptedPolicy(lines), LineScorer(), db=store) as found:
        status, answer = chat(found.url)
        assert (status, answer["error"]["code"]) == (503, "log_failed")
        assert "no database" not in answer["error"]["message"]
        status, answer = ask(f"{found.root}/ready")
        assert (status, answer["error"]["code"]) == (503, "log_failed")
        assert ask(f"{found.root}/health")[0] == 200
        store.gateway.gone = False
        assert chat(found.url)[0] == 200
        assert ask(f"{found.root}/ready")[0] == 200


def test_an_answer_that_cannot_be_kept_says_when_to_try_again():
    store = Store()
    with served(ScriptedPolicy(lines), LineScorer(), db=store) as found:
        store.gateway.gone = True
        answer = httpx2.post(
            f"{found.url}/chat/completions", json={"model": "scripted", "messages": MESSAGES}
        )
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        store.gateway.gone, store.gateway.bad = False, Everything()
        assert chat(found.url)[0] == 500  # the fault of the record, not of the store


def test_what_a_stream_had_shown_is_in_the_record_of_its_failure(tmp_path):
    policy, limits = ScriptedPolicy(lines, latency_s=0.4), ServerLimits(timeout_s=1.1)
    with open_database(tmp_path / "store.db") as db:
        with served(policy, LineScorer(), db=db, limits=limits) as found:
            status, text = chat(found.url, model="accept-reject", stream=True)
            assert status == 200
            assert "line 0 good" in text
            assert "[DONE]" not in text
        [row] = db.gateway.find()
        kept = db.gateway.get(row.request_id)
    assert (kept.status, kept.policy, kept.scorer) == (504, "scripted", "lines")
    [shown] = kept.candidates
    assert (shown.trace.text, shown.chosen) == ("line 0 good\n", False)
    assert kept.usage.completion_tokens > 0
