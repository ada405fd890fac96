"""The staging gate: order of checks, ids and their age, keys; settings; wake-ups."""

import gzip
import threading

import orjson
import pytest
from backports import zstd
from icedb_ingest.frontend.async_gate import Waker
from icedb_ingest.frontend.errors import BatchTooLarge, KeyExpired, KeyReused
from icedb_ingest.frontend.settings import FrontendSettings
from icedb_ingest.frontend.staging_gate import (
    MISSING_AGE_MS,
    QUICK_BYTES,
    BatchBounds,
    BatchStatus,
    BatchStatuses,
    Offer,
)
from icedb_log.batch_ids import is_keyed, name_of
from icedb_log.changes.table_changes import alter_table_config
from icedb_log.clock import new_batch_id
from icedb_log.commit.table import Table
from icedb_log.content import hash_content
from icedb_log.errors import (
    CommitOutcomeUnknown,
    InvalidRequest,
    NotFound,
    Overloaded,
    TableNotFound,
    Unavailable,
)
from icedb_log.ingest.flush import flush_table
from icedb_log.ingest.idempotency import bind_key
from icedb_log.ingest.pressure import Pressure, PressureGate, publish_pressure
from icedb_log.ingest.quarantine import reason_key
from icedb_log.ingest.staging import list_staged, stage_batch
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import TableConfig
from icedb_log.trash.drop import drop_table, undrop_table
from icedb_log.units import MIB
from icedb_service.settings import load_settings
from icedb_sim.fakes.fake_clock import FakeClock
from icedb_sim.tables.row_files import RowFileWriter
from waiting import LIMIT_S


def test_a_batch_is_staged_and_then_woken(bench):
    accepted = bench.accept()
    assert bench.staged_ids() == [accepted.batch_id]
    assert bench.woken == ["events"]
    assert accepted.binding is None


def test_nothing_is_staged_for_a_table_that_is_not_there_or_takes_nothing(bench):
    with pytest.raises(NotFound):
        bench.accept(table="nope")
    bench.pressure.refusal = Overloaded("full", retry_after_ms=5)
    with pytest.raises(Overloaded):
        bench.accept()
    assert bench.staged_ids() == bench.woken == []


def test_nothing_is_staged_for_a_view(bench):
    view = TableConfig.create(name="hourly", view_of="events", view_query="SELECT * FROM _rows")
    create_table(TableStore(bench.store, bench.warehouse.table("hourly").paths), view)
    with pytest.raises(InvalidRequest, match="send them to 'events', whose commits feed it"):
        bench.accept(table="hourly")
    assert not list_staged(TableStore(bench.store, bench.warehouse.table("hourly").paths)).batches


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
    bench.gate.remember(first.binding)
    bench.store.delete([bench.paths.staging_key(batch_id=first.batch_id, staging_format="ndjson")])
    bench.clock.advance(20 * bench.config.log_grace_ms)
    assert bench.accept(key="order 7").batch_id == first.batch_id
    assert bench.staged_ids() == []
    with pytest.raises(KeyReused):
        bench.accept(b"{}", key="order 7")


def test_a_key_that_nobody_confirmed_expires_but_not_for_the_only_copy(bench):
    content = hash_content(bench.lines, "ndjson")
    bound = bind_key(bench, key="k", batch_id=new_batch_id(bench.clock), content_sha256=content)
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
    bench.gate.remember(accepted.binding)


def test_a_table_is_looked_for_rarely_and_a_missing_one_soon_again(bench):
    other = bench.warehouse.table("other").paths
    with pytest.raises(NotFound):
        bench.acceptance.config("other")
    create_table(TableStore(bench.store, other), TableConfig.create(name="other"))
    with pytest.raises(TableNotFound, match="'other' does not exist") as caught:  # remembered, and the same error still
        bench.acceptance.config("other")
    assert caught.value.table == "other"
    bench.clock.advance(MISSING_AGE_MS + 1)
    assert bench.acceptance.config("other").name == "other"
    bench.store.delete([other.config_key])
    assert bench.acceptance.config("other").name == "other"
    bench.clock.advance(30_001)
    with pytest.raises(NotFound):
        bench.acceptance.config("other")


def test_a_dropped_table_takes_no_batches_until_it_is_back(bench):
    kept = bench.accept().batch_id
    drop_table(bench, clock=bench.clock)
    bench.clock.advance(30_001)
    with pytest.raises(NotFound, match="`icedb table undrop events` brings it back"):
        bench.accept()
    undrop_table(bench, clock=bench.clock)
    bench.clock.advance(MISSING_AGE_MS + 1)
    assert bench.staged_ids() == [kept]
    again = bench.accept().batch_id
    assert bench.staged_ids() == [kept, again]


def put_reason(bench, batch_id, **fields):
    reason = {"batch_id": batch_id, "reason": "line 2: no", "payload": "x", "bytes": 1, "quarantined_ms": 1, **fields}
    bench.store.put(reason_key(bench.paths, batch_id), orjson.dumps(reason))


def test_status_follows_the_life_of_a_batch(bench):
    statuses = BatchStatuses(clock=bench.clock)
    batch_id = new_batch_id(bench.clock)
    with pytest.raises(NotFound, match="never accepted"):
        statuses.look_up(bench, batch_id)
    bench.accept(batch_id=batch_id)
    put_reason(bench, batch_id, kind="rows", rows=3)  # as a flush does before it commits
    assert statuses.look_up(bench, batch_id).state == "staged"
    bench.store.delete([bench.paths.staging_key(batch_id=batch_id, staging_format="ndjson")])
    found = statuses.look_up(bench, batch_id)
    assert (found.state, found.reason, found.quarantined_rows) == ("committed", "line 2: no", 3)
    put_reason(bench, batch_id, kind="batch", retry="other")
    found = statuses.look_up(bench, batch_id)
    assert (found.state, found.quarantined_rows, found.retried_as) == ("quarantined", None, "other")
    bench.store.put(reason_key(bench.paths, batch_id), b"not JSON")
    assert statuses.look_up(bench, batch_id).state == "quarantined"


def test_status_knows_what_the_log_says(bench):
    statuses = BatchStatuses(clock=bench.clock)
    good, bad = (bench.accept(body).batch_id for body in (bench.lines, b'{"a":}'))
    writer = RowFileWriter(bench.store, bench.clock)
    result = flush_table(Table.open(bench, clock=bench.clock, owner="test"), writer)
    assert (result.batch_count, len(result.rejected)) == (1, 1)
    assert statuses.look_up(bench, good) == BatchStatus("committed")
    assert statuses.look_up(bench, bad).state == "quarantined"
    bench.store.delete([reason_key(bench.paths, bad)])  # dropped
    found = statuses.look_up(bench, bad)
    assert (found.state, "dropped" in found.reason) == ("quarantined", True)


def test_a_wrong_setting_is_named_and_a_secret_is_not_shown(monkeypatch):
    monkeypatch.setenv("ICEDB_STORE", "file:///x")
    monkeypatch.setenv("ICEDB_FRONTEND_MEMORY_MB", "127")
    monkeypatch.setenv("ICEDB_FRONTEND_SEGMENT_SECRET", "top secret")
    with pytest.raises(
        InvalidRequest,
        match=r"2 \* ICEDB_FRONTEND_MAX_BATCH_MB <= ICEDB_FRONTEND_MEMORY_MB must hold \(a compressed body",
    ):
        load_settings(FrontendSettings)
    monkeypatch.setenv("ICEDB_FRONTEND_MEMORY_MB", "128")
    monkeypatch.setenv("ICEDB_FRONTEND_CORS_ORIGINS", "https://a.example, https://b.example")
    settings = load_settings(FrontendSettings)
    assert settings.frontend_cors_origins == ("https://a.example", "https://b.example")
    assert "top secret" not in repr(settings)


def test_the_waker_sends_what_is_asked_and_survives_a_dead_redis():
    woken, seen = [], threading.Event()

    def wake(table):
        woken.append(table)
        seen.set()
        raise Unavailable("no Redis")

    waker = Waker(wake)
    waker.start()
    waker.ask("a")
    assert seen.wait(LIMIT_S)
    waker.ask("b")
    waker.stop()  # does not wait out the pause; what was asked for is tried
    assert woken == ["a", "b"]


def test_i8_an_id_that_is_remembered_has_one_content_over_all_formats(bench):
    batch_id = new_batch_id(bench.clock)
    bench.accept(batch_id=batch_id)
    with pytest.raises(KeyReused, match="other content"):
        bench.accept(b'[{"a":3}]', format="json", batch_id=batch_id)
    packed = bench.accept(gzip.compress(bench.lines), format="ndjson.gz", batch_id=batch_id)
    assert packed.batch_id == batch_id
    writer = RowFileWriter(bench.store, bench.clock)
    flush_table(Table.open(bench, clock=bench.clock, owner="test"), writer)
    flush_table(Table.open(bench, clock=bench.clock, owner="test"), writer)
    with pytest.raises(KeyReused):
        bench.accept(b'{"a":4}\n', batch_id=batch_id)
    assert bench.staged_ids() == []


def test_i8_the_doors_share_what_an_id_stands_for(bench):
    batch_id = new_batch_id(bench.clock)
    bench.accept(batch_id=batch_id)
    with pytest.raises(KeyReused):
        bench.accept(b'{"a":2}\n', batch_id=batch_id, key=f"celery:{batch_id}", is_only_copy=True)


def test_i1_what_is_not_confirmed_is_not_accepted(bench, monkeypatch):
    def fail(key, body):
        raise CommitOutcomeUnknown("lost")

    monkeypatch.setattr(bench.store, "put_if_absent", fail)
    with pytest.raises(Unavailable):
        bench.accept(batch_id=new_batch_id(bench.clock))
    assert bench.staged_ids() == bench.woken == []


def test_i8_the_status_of_an_id_says_how_many_other_contents_wait(bench):
    statuses = BatchStatuses(clock=bench.clock)
    batch_id = bench.accept().batch_id
    writer = RowFileWriter(bench.store, bench.clock)
    flush_table(Table.open(bench, clock=bench.clock, owner="test"), writer)
    assert statuses.look_up(bench, batch_id) == BatchStatus("committed")
    for number in (2, 3):
        body = b'{"a":%d}\n' % number
        stage_batch(bench, body=body, staging_format="ndjson", batch_id=batch_id)
        flush_table(Table.open(bench, clock=bench.clock, owner="test"), writer)
    assert statuses.look_up(bench, batch_id) == BatchStatus("committed", conflicts=2)


BOUNDS = BatchBounds(decoded_bytes=10_000, row_count=500)
PACK = {"": bytes, "gz": gzip.compress, "zst": zstd.compress}


@pytest.mark.parametrize("compression", PACK)
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"a":"' + b"x" * 10_000 + b'"}\n', "more than 10000 bytes after decompression"),
        (b'{"a":1}\n' * 501, "more than 500 rows"),
    ],
    ids=["bytes", "rows"],
)
def test_a_batch_that_is_too_large_when_it_is_decoded_is_refused_before_it_is_bound_or_staged(
    bench, compression, body, reason
):
    bench.bound(BOUNDS)
    staging_format = f"ndjson.{compression}" if compression else "ndjson"
    for more in ({}, {"key": "k"}, {"batch_id": new_batch_id(bench.clock)}):
        with pytest.raises(BatchTooLarge, match=f"{reason}: cut it into several batches"):
            bench.accept(PACK[compression](body), format=staging_format, **more)
    assert bench.staged_ids() == bench.woken == []
    assert not bench.store.list_page(bench.paths.idempotency_prefix).objects
    assert bench.accept(
        PACK[compression](body[:9] + b'"}\n' if "bytes" in reason else body[:4000]), format=staging_format
    )


def test_a_bomb_is_not_decoded_beyond_the_bound(bench, monkeypatch):
    bench.bound(BatchBounds(decoded_bytes=3 * MIB))
    bomb = gzip.compress(b'{"a":1}\n' * (8 * MIB))
    seen = []
    counter = BatchBounds.counter

    def counting(bounds, staging_format):
        count = counter(bounds, staging_format)
        return lambda piece: (seen.append(len(piece)), count(piece))

    monkeypatch.setattr(BatchBounds, "counter", counting)
    with pytest.raises(BatchTooLarge):
        bench.accept(bomb, format="ndjson.gz")
    assert sum(seen) <= 5 * MIB


def test_an_id_costs_no_request_of_its_own(bench):
    for _ in range(3):
        bench.clock.advance(1)
        bench.accept(batch_id=new_batch_id(bench.clock))
    assert not bench.store.list_page(bench.paths.idempotency_prefix).objects
    assert len(bench.staged_ids()) == 3


def test_i8_what_another_front_end_has_taken_is_compared_by_the_flush(bench):
    batch_id = bench.accept(batch_id=new_batch_id(bench.clock)).batch_id
    bench.bound(BatchBounds())  # a front end that has just begun remembers nothing
    bench.clock.advance(1)
    bench.accept(b'[{"a":7}]', format="json", batch_id=batch_id)
    for _ in range(2):
        flush_table(Table.open(bench, clock=bench.clock, owner="test"), RowFileWriter(bench.store, bench.clock))
    assert BatchStatuses(clock=bench.clock).look_up(bench, batch_id) == BatchStatus("committed", conflicts=1)
    assert bench.staged_ids() == []


# Keys that are part of ids.


@pytest.fixture
def keyed(bench):
    alter_table_config(bench, {"key_memory": "retry"}, clock=bench.clock)
    return bench


def flush(bench):
    flush_table(Table.open(bench, clock=bench.clock, owner="test"), RowFileWriter(bench.store, bench.clock))


def test_i7_a_key_for_retries_costs_no_request_of_its_own(keyed):
    accepted = keyed.accept(key="order 7")
    assert accepted.binding is None
    assert keyed.staged_ids() == [accepted.batch_id]
    assert not keyed.store.list_page(keyed.paths.idempotency_prefix).objects


def test_i7_a_retry_through_another_front_end_is_the_same_batch(keyed):
    first = keyed.accept(key="order 7").batch_id
    flush(keyed)
    keyed.bound(BatchBounds())  # a front end that has just begun remembers nothing
    keyed.clock.advance(60_000)
    second = keyed.accept(key="order 7").batch_id
    assert first != second
    assert name_of(first) == name_of(second)
    statuses = BatchStatuses(clock=keyed.clock)
    assert [statuses.look_up(keyed, each).state for each in (first, second)] == ["staged", "staged"]
    flush(keyed)
    assert [statuses.look_up(keyed, each).state for each in (first, second)] == ["committed", "committed"]
    assert keyed.staged_ids() == []


def test_i8_a_key_for_retries_has_one_content_where_it_is_remembered(keyed):
    keyed.accept(key="order 7")
    keyed.clock.advance(1)
    with pytest.raises(KeyReused):
        keyed.accept(b'{"a":2}\n', key="order 7")
    assert keyed.accept(b'{"a":2}\n', key="order 8")


def test_i7_what_nobody_could_send_again_is_bound_all_the_same(keyed):
    accepted = keyed.accept(key="celery:1", batch_id=new_batch_id(keyed.clock), is_only_copy=True)
    assert accepted.binding is not None


class Quick:
    """Offers batches that are to be taken without a thread."""

    def __init__(self, bench):
        self.bench = bench
        bench.acceptance.pressure = PressureGate(bench.store, clock=bench.clock)
        self.threads, self.put = [], bench.store.put_if_absent
        bench.store.put_if_absent = self.put_noting

    def put_noting(self, *call):
        self.threads.append(threading.current_thread().name)
        return self.put(*call)

    def begin(self, table="events", **fields):
        return self.bench.gate.begin_quickly(Offer(table, **{"body": self.bench.lines, "format": "ndjson", **fields}))


def test_what_neither_waits_nor_takes_long_needs_no_thread_and_leaves_the_put_to_another_one(bench):
    quick = Quick(bench)
    assert quick.begin() is None, "nobody has looked at the table"
    bench.accept()
    assert quick.begin(key="mine") is None, "it is bound first"
    assert quick.begin(format="ndjson.gz") is None, "it is decoded"
    assert quick.begin(body=b"x" * (QUICK_BYTES + 1)) is None
    assert quick.begin("other") is None
    bench.clock.advance(1000)
    assert quick.begin() is None, "whether it takes batches is asked once a second"
    bench.accept()
    quick.threads.clear()
    bench.store.get = None  # nothing is asked
    assert quick.begin().result().table == "events"
    assert [name.partition("_")[0] for name in quick.threads] == ["icedb-groups"]
    with pytest.raises(InvalidRequest, match="empty"):
        quick.begin(body=b"")


def test_a_table_that_refuses_batches_refuses_them_without_a_thread_too(bench):
    quick = Quick(bench)
    publish_pressure(bench, Pressure("stop", 60.0, "too many log files", 10_000), clock=bench.clock)
    with pytest.raises(Overloaded):
        bench.accept()
    with pytest.raises(Overloaded, match="too many log files"):
        quick.begin()


def test_a_keyed_batch_needs_no_thread_where_its_key_becomes_part_of_its_id(bench):
    alter_table_config(bench, {"key_memory": "retry"}, clock=bench.clock)
    quick = Quick(bench)
    bench.accept()
    assert quick.begin(key="mine", is_only_copy=True) is None
    assert is_keyed(quick.begin(key="mine").result().batch_id)
