"""Messages of the enqueue task: what is read, waited out, put off and refused."""

import json
import threading

import pytest
from celery.exceptions import Reject, Retry
from icedb_ingest.frontend.enqueue_task import PATIENCE_MS, EnqueueWork, _put_off, message_schema, read_message
from icedb_ingest.frontend.metrics import FrontendMetrics
from icedb_log.clock import new_batch_id
from icedb_log.errors import (
    CommitOutcomeUnknown,
    InvalidRequest,
    Overloaded,
    TableHalted,
    Unavailable,
)
from icedb_log.ingest.staging import list_staged
from icedb_service.access.credentials import TaskAccess
from icedb_service.access.guard import AccessGuard


class Patience(threading.Event):
    """Passes time instead of waiting."""

    def __init__(self, clock):
        super().__init__()
        self.clock = clock
        self.waited_ms = []

    def wait(self, timeout=None):
        self.waited_ms.append(int(timeout * 1000))
        self.clock.advance(self.waited_ms[-1])
        return self.is_set()


@pytest.fixture
def patience(bench):
    return Patience(bench.clock)


@pytest.fixture
def work(bench, patience):
    return EnqueueWork(
        bench.gate,
        metrics=FrontendMetrics(),
        clock=bench.clock,
        max_batch_bytes=100,
        is_stopping=patience,
        access=TaskAccess(AccessGuard()),
    )


def message(bench, **fields):
    return {"table": "events", "batch_id": new_batch_id(bench.clock), "rows": [{"a": 1}], **fields}


def test_a_message_is_taken_once(bench, work):
    kwargs = message(bench)
    results = [work.run((), kwargs), work.run((kwargs,), {})]
    assert results[0] == results[1]
    assert bench.staged_ids() == [kwargs["batch_id"]] == [results[0]["staged_as"]]


@pytest.mark.parametrize(
    ("value", "reason"),
    [(float("nan"), "JSON compliant"), ([float("inf")], "JSON compliant"), ("\ud800", "surrogates")],
)
def test_a_row_that_is_no_json_is_refused_and_not_changed(bench, work, value, reason):
    with pytest.raises(InvalidRequest, match=reason):
        work.run((), message(bench, rows=[{"a": None}, {"a": value}]))
    assert bench.staged_ids() == []


@pytest.mark.parametrize("text", ["=", "é", "eyJ"])
def test_what_is_no_base64_is_refused(bench, work, text):
    kwargs = {**message(bench), "data_base64": text}
    del kwargs["rows"]
    with pytest.raises(InvalidRequest, match="not Base64"):
        work.run((), kwargs)


def test_an_integer_of_any_size_is_staged_as_it_is(bench, work):
    work.run((), message(bench, rows=[{"a": 10**30, "b": None}]))
    (batch,) = list_staged(bench).batches
    assert json.loads(bench.store.get(batch.key).body) == {"a": 10**30, "b": None}


def test_the_result_says_that_flushes_of_the_table_fail(bench, work):
    assert "warning" not in work.run((), message(bench))
    bench.pressure.failure = "table events takes batches, but its flushes fail"
    assert work.run((), message(bench))["warning"] == bench.pressure.failure


def test_back_pressure_is_waited_out(bench, work, patience):
    bench.pressure.refusal = Overloaded("full", retry_after_ms=3_000)
    patience.wait = lambda timeout: setattr(bench.pressure, "refusal", None) or bench.clock.advance(int(timeout * 1000))
    assert work.run((), message(bench))["outcome"] == "accepted"


@pytest.mark.parametrize(
    "refusal", [Unavailable("down"), CommitOutcomeUnknown("lost"), Overloaded("full"), TableHalted("two types")]
)
def test_a_message_holds_its_thread_for_a_bounded_time(bench, work, patience, refusal):
    bench.pressure.refusal = refusal
    with pytest.raises(type(refusal)):
        work.run((), message(bench))
    assert 0 < sum(patience.waited_ms) <= PATIENCE_MS
    assert patience.waited_ms == sorted(patience.waited_ms)


def test_a_worker_that_stops_does_not_wait(bench, work, patience):
    bench.pressure.refusal = Unavailable("down")
    patience.set()
    with pytest.raises(Unavailable):
        work.run((), message(bench))
    assert len(patience.waited_ms) == 1


def test_a_message_that_is_too_large_is_wrong(bench, work):
    with pytest.raises(InvalidRequest, match="at most 100"):
        work.run((), message(bench, rows=[{"a": "x" * 100}]))


def test_the_schema_says_what_is_read(bench):
    schema = message_schema()
    assert set(schema["properties"]) == {"table", "batch_id", "format", "rows", "data", "data_base64"}
    assert schema["required"] == ["table", "batch_id"]
    assert all(field["description"] for field in schema["properties"].values())
    kwargs = message(bench)
    assert read_message((), kwargs).rows == kwargs["rows"]
    with pytest.raises(InvalidRequest, match="keyword arguments"):
        read_message((kwargs,), kwargs)


class Message:
    """What Celery's task is to the code that puts a message off."""

    def __init__(self, outcome):
        self.outcome = outcome
        self.sent = []

    def retry(self, **options):
        self.sent.append(options)
        if isinstance(self.outcome, Reject):
            raise self.outcome
        return self.outcome


def test_a_message_that_is_put_off_is_sent_again_or_given_back():
    sent = Message(Retry())
    with pytest.raises(Retry):
        _put_off(sent, Unavailable("down"))
    assert sent.sent[0]["countdown"] == 0
    with pytest.raises(Reject) as caught:
        _put_off(Message(Reject("no broker", requeue=False)), Unavailable("down"))
    assert caught.value.requeue  # Celery would have dropped the only copy
