"""The desk: order of checks, ids and their age, keys; messages of the enqueue task; wake-ups; what errors become."""

import json
import threading

import orjson
import pytest
from celery.exceptions import Reject, Retry
from icedb_ingest.frontend import errors
from icedb_ingest.frontend.batch_status import BatchStatus, BatchStatuses
from icedb_ingest.frontend.desk import Desk, Offer
from icedb_ingest.frontend.enqueue_message import message_schema, read_message
from icedb_ingest.frontend.enqueue_task import PATIENCE_MS, EnqueueWork, _put_off
from icedb_ingest.frontend.errors import KeyExpired, KeyReused, NotAuthorized
from icedb_ingest.frontend.metrics import DOORS, OUTCOMES, FrontendMetrics, outcome_of
from icedb_ingest.frontend.problems import problem_response
from icedb_ingest.frontend.settings import FrontendSettings
from icedb_ingest.frontend.tables import MISSING_AGE_MS, TableDirectory
from icedb_ingest.frontend.waker import Waker
from icedb_log.clock import new_batch_id
from icedb_log.errors import (
    CommitOutcomeUnknown,
    IceDBError,
    InvalidRequest,
    NotFound,
    Overloaded,
    SchemaConflict,
    Unavailable,
)
from icedb_log.ingest.flush import flush_table
from icedb_log.ingest.idempotency import bind_key, hash_content
from icedb_log.ingest.quarantine import reason_key
from icedb_log.ingest.staging import list_staged
from icedb_log.tables.stored_config import create_table
from icedb_log.tables.table_config import TableConfig
from icedb_log.testing.fake_clock import FakeClock
from icedb_log.testing.memory_store import MemoryObjectStore
from icedb_log.testing.row_files import RowFileWriter
from icedb_log.trash.drop import drop_table, undrop_table
from icedb_log.warehouse import Warehouse
from icedb_service.access.guard import AccessGuard
from icedb_service.access.task_access import TaskAccess
from icedb_service.settings import load_settings

LINES = b'{"a":1}\n'


class Gate:
    """Says what the test says."""

    refusal = None

    def check(self, paths):
        if self.refusal is not None:
            raise self.refusal


class Bench:
    """A desk over a store in memory."""

    def __init__(self):
        self.clock = FakeClock()
        self.store = MemoryObjectStore(self.clock.now_ms)
        self.warehouse = Warehouse(self.store)
        self.paths = self.warehouse.table("events")
        self.config = TableConfig.create(name="events")
        create_table(self.store, self.paths, self.config)
        self.gate = Gate()
        self.woken = []
        self.tables = TableDirectory(self.store, clock=self.clock, max_age_ms=30_000)
        self.desk = Desk(
            self.warehouse, clock=self.clock, gate=self.gate, tables=self.tables, on_staged=self.woken.append
        )

    def accept(self, body=LINES, *, table="events", **fields):
        return self.desk.accept(Offer(table, body, fields.pop("format", "ndjson"), **fields))

    def staged_ids(self):
        return [batch.batch_id for batch in list_staged(self.store, self.paths).batches]


@pytest.fixture
def bench():
    return Bench()


def test_a_batch_is_staged_and_then_woken(bench):
    accepted = bench.accept()
    assert bench.staged_ids() == [accepted.batch_id]
    assert bench.woken == ["events"]
    assert accepted.binding is None


def test_nothing_is_staged_for_a_table_that_is_not_there_or_takes_nothing(bench):
    with pytest.raises(NotFound):
        bench.accept(table="nope")
    bench.gate.refusal = Overloaded("full", retry_after_ms=5)
    with pytest.raises(Overloaded):
        bench.accept()
    assert bench.staged_ids() == bench.woken == []


def test_nothing_is_staged_for_a_view(bench):
    view = TableConfig.create(name="hourly", view_of="events", view_query="SELECT * FROM _rows")
    create_table(bench.store, bench.warehouse.table("hourly"), view)
    with pytest.raises(InvalidRequest, match="send them to 'events', whose commits feed it"):
        bench.accept(table="hourly")
    assert not list_staged(bench.store, bench.warehouse.table("hourly")).batches


def test_an_id_is_refused_only_when_the_flush_would_refuse_it_for_certain(bench):
    batch_id = new_batch_id(bench.clock)
    bench.clock.advance(bench.config.log_grace_ms - 1)
    assert bench.accept(batch_id=batch_id).batch_id == batch_id
    bench.clock.advance(1)
    with pytest.raises(KeyExpired, match="fresh id"):
        bench.accept(batch_id=batch_id)
    ahead = FakeClock(bench.clock.now_ms() + 2 * bench.config.id_skew_ms + 1000)
    with pytest.raises(InvalidRequest, match="in the future"):
        bench.accept(batch_id=new_batch_id(ahead))


def test_a_key_stages_once_for_ever_and_belongs_to_one_content(bench):
    first = bench.accept(key="order 7")
    bench.desk.remember(first.binding)
    bench.store.delete([bench.paths.staging_key(batch_id=first.batch_id, staging_format="ndjson")])
    bench.clock.advance(20 * bench.config.log_grace_ms)
    assert bench.accept(key="order 7").batch_id == first.batch_id
    assert bench.staged_ids() == []
    with pytest.raises(KeyReused):
        bench.accept(b"{}", key="order 7")


def test_a_key_that_nobody_confirmed_expires_but_not_for_the_only_copy(bench):
    content = hash_content(LINES, "ndjson")
    bound = bind_key(bench.store, bench.paths, key="k", content_sha256=content, clock=bench.clock)
    bench.clock.advance(bench.config.retry_window_ms)
    with pytest.raises(KeyExpired, match=bound.batch_id):
        bench.accept(key="k")
    assert bench.accept(key="k", is_only_copy=True).batch_id == bound.batch_id  # the flush quarantines it


@pytest.mark.parametrize(("age_ms", "is_kept"), [(0, True), (60_000, True), (240_000, False), (3_600_000, False)])
def test_a_producers_id_with_a_key_is_the_batchs_id_while_it_is_young(bench, age_ms, is_kept):
    batch_id = new_batch_id(bench.clock)
    bench.clock.advance(age_ms)
    accepted = bench.accept(batch_id=batch_id, key="k", is_only_copy=True)
    assert (accepted.batch_id == batch_id) == is_kept


def test_a_mark_that_fails_is_no_failure(bench, monkeypatch):
    accepted = bench.accept(key="k")

    def fail(key, body):
        raise CommitOutcomeUnknown("lost")

    monkeypatch.setattr(bench.store, "put", fail)
    bench.desk.remember(accepted.binding)


def test_a_table_is_looked_for_rarely_and_a_missing_one_soon_again(bench):
    other = bench.warehouse.table("other")
    with pytest.raises(NotFound):
        bench.tables.config(other)
    create_table(bench.store, other, TableConfig.create(name="other"))
    with pytest.raises(NotFound):
        bench.tables.config(other)
    bench.clock.advance(MISSING_AGE_MS + 1)
    assert bench.tables.config(other).name == "other"
    bench.store.delete([other.config_key])
    assert bench.tables.config(other).name == "other"
    bench.clock.advance(30_001)
    with pytest.raises(NotFound):
        bench.tables.config(other)


def test_a_dropped_table_takes_no_batches_until_it_is_back(bench):
    kept = bench.accept().batch_id
    drop_table(bench.store, bench.paths, clock=bench.clock)
    bench.clock.advance(30_001)
    with pytest.raises(NotFound, match="`icedb table undrop events` brings it back"):
        bench.accept()
    undrop_table(bench.store, bench.paths, clock=bench.clock)
    bench.clock.advance(MISSING_AGE_MS + 1)
    assert bench.staged_ids() == [kept]
    again = bench.accept().batch_id
    assert bench.staged_ids() == [kept, again]


def put_reason(bench, batch_id, **fields):
    reason = {"batch_id": batch_id, "reason": "line 2: no", "payload": "x", "bytes": 1, "quarantined_ms": 1, **fields}
    bench.store.put(reason_key(bench.paths, batch_id), orjson.dumps(reason))


def test_status_follows_the_life_of_a_batch(bench):
    statuses = BatchStatuses(bench.store, clock=bench.clock)
    batch_id = new_batch_id(bench.clock)
    with pytest.raises(NotFound, match="never accepted"):
        statuses.look_up(bench.paths, batch_id)
    bench.accept(batch_id=batch_id)
    put_reason(bench, batch_id, kind="rows", rows=3)  # as a flush does before it commits
    assert statuses.look_up(bench.paths, batch_id).state == "staged"
    bench.store.delete([bench.paths.staging_key(batch_id=batch_id, staging_format="ndjson")])
    found = statuses.look_up(bench.paths, batch_id)
    assert (found.state, found.reason, found.quarantined_rows) == ("committed", "line 2: no", 3)
    put_reason(bench, batch_id, kind="batch", retry="other")
    found = statuses.look_up(bench.paths, batch_id)
    assert (found.state, found.quarantined_rows, found.retried_as) == ("quarantined", None, "other")
    bench.store.put(reason_key(bench.paths, batch_id), b"not JSON")
    assert statuses.look_up(bench.paths, batch_id).state == "quarantined"


def test_status_knows_what_the_log_says(bench):
    statuses = BatchStatuses(bench.store, clock=bench.clock)
    good, bad = (bench.accept(body).batch_id for body in (LINES, b'{"a":}'))
    writer = RowFileWriter(bench.store, bench.clock)
    result = flush_table(bench.store, bench.paths, clock=bench.clock, writer=writer, owner="test")
    assert (result.batch_count, len(result.rejected)) == (1, 1)
    assert statuses.look_up(bench.paths, good) == BatchStatus("committed")
    assert statuses.look_up(bench.paths, bad).state == "quarantined"
    bench.store.delete([reason_key(bench.paths, bad)])  # dropped
    found = statuses.look_up(bench.paths, bad)
    assert (found.state, "dropped" in found.reason) == ("quarantined", True)


# ---- the enqueue task -------------------------------------------------------------------------------------------


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
        bench.desk,
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
    (batch,) = list_staged(bench.store, bench.paths).batches
    assert json.loads(bench.store.get(batch.key).body) == {"a": 10**30, "b": None}


def test_back_pressure_is_waited_out(bench, work, patience):
    bench.gate.refusal = Overloaded("full", retry_after_ms=3_000)
    patience.wait = lambda timeout: setattr(bench.gate, "refusal", None) or bench.clock.advance(int(timeout * 1000))
    assert work.run((), message(bench))["outcome"] == "accepted"


@pytest.mark.parametrize("refusal", [Unavailable("down"), CommitOutcomeUnknown("lost"), Overloaded("full")])
def test_a_message_holds_its_thread_for_a_bounded_time(bench, work, patience, refusal):
    bench.gate.refusal = refusal
    with pytest.raises(type(refusal)):
        work.run((), message(bench))
    assert 0 < sum(patience.waited_ms) <= PATIENCE_MS
    assert patience.waited_ms == sorted(patience.waited_ms)


def test_a_worker_that_stops_does_not_wait(bench, work, patience):
    bench.gate.refusal = Unavailable("down")
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


def test_a_wrong_setting_is_named_and_a_secret_is_not_shown(monkeypatch):
    monkeypatch.setenv("ICEDB_STORE", "file:///x")
    monkeypatch.setenv("ICEDB_FRONTEND_MEMORY_MB", "1")
    monkeypatch.setenv("ICEDB_FRONTEND_SEGMENT_SECRET", "top secret")
    with pytest.raises(InvalidRequest, match="ICEDB_FRONTEND_MEMORY_MB >= ICEDB_FRONTEND_MAX_BATCH_MB"):
        load_settings(FrontendSettings)
    monkeypatch.setenv("ICEDB_FRONTEND_MEMORY_MB", "64")
    monkeypatch.setenv("ICEDB_FRONTEND_CORS_ORIGINS", "https://a.example, https://b.example")
    settings = load_settings(FrontendSettings)
    assert settings.frontend_cors_origins == ("https://a.example", "https://b.example")
    assert "top secret" not in repr(settings)


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


# ---- wake-ups ---------------------------------------------------------------------------------------------------


def test_the_waker_sends_what_is_asked_and_survives_a_dead_redis():
    woken, seen = [], threading.Event()

    def wake(table):
        woken.append(table)
        seen.set()
        raise Unavailable("no Redis")

    waker = Waker(wake)
    waker.start()
    waker.ask("a")
    assert seen.wait(30)
    waker.ask("b")
    waker.stop()  # does not wait out the pause; what was asked for is tried
    assert woken == ["a", "b"]


# ---- errors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status", "outcome"),
    [
        (errors.BatchTooLarge("x"), 413, "too_large"),
        (errors.UnsupportedMedia("x"), 415, "unsupported"),
        (KeyReused("x"), 422, "conflict"),
        (KeyExpired("x"), 409, "conflict"),
        (errors.BodyTimeout("x"), 408, "timeout"),
        (NotAuthorized("x"), 401, "unauthorized"),
        (errors.ProducerLeft("x"), 499, "abandoned"),
        (InvalidRequest("x"), 400, "invalid"),
        (NotFound("x"), 404, "not_found"),
        (errors.Busy("x", retry_after_ms=1001), 503, "busy"),
        (Overloaded("x"), 429, "overloaded"),
        (Unavailable("x"), 503, "unavailable"),
        (CommitOutcomeUnknown("x"), 503, "unavailable"),
        (SchemaConflict("x"), 500, "failed"),
        (ZeroDivisionError("x"), 500, "failed"),
    ],
)
def test_what_errors_become(error, status, outcome):
    answer = problem_response(error, members={"batch_id": "b"})
    problem = json.loads(answer.body)
    assert (answer.status_code, problem["status"], problem["batch_id"]) == (status, status, "b")
    assert outcome_of(error) == outcome
    assert outcome in OUTCOMES
    assert ("retry-after" in answer.headers) == isinstance(error, Unavailable | CommitOutcomeUnknown)
    assert isinstance(error, IceDBError) or "x" not in problem["detail"]


def test_a_retry_time_is_rounded_up():
    assert problem_response(errors.Busy("x", retry_after_ms=1001)).headers["retry-after"] == "2"
    assert problem_response(Overloaded("x", retry_after_ms=0)).headers["retry-after"] == "1"


def test_every_label_is_there_from_the_start():
    registry = FrontendMetrics().registry
    for door in DOORS:
        for outcome in OUTCOMES:
            labels = {"door": door, "outcome": outcome}
            assert registry.get_sample_value("icedb_frontend_batches_total", labels) == 0
