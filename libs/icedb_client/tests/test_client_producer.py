"""A producer loses nothing: lost answers, a store that is down, refusals, many threads, a full memory, errors."""

import gc
import logging
import os
import subprocess
import sys
import threading
from collections import Counter

import orjson
import pytest
from backports import zstd
from icedb_client import producer as producer_module
from icedb_client.delivery import Undelivered
from icedb_client.producer import BufferFull, ProducerOptions, RowBuffer, UnsentRows
from icedb_log.clock import parse_uuid7_ms
from icedb_log.errors import CommitOutcomeUnknown, InvalidRequest, NotFound, Overloaded, StoreRefused, Unavailable
from icedb_log.ingest.pressure import Pressure, publish_pressure
from icedb_log.ingest.staging import list_staged, read_staged
from waiting import LIMIT_S

SECOND_MS = 1000


class FaultyPuts:
    """Stands before a store's conditional PUT and does what the test says for each staged batch."""

    def __init__(self, store):
        self.put = store.put_if_absent
        self.script = []
        self.bodies = {}
        self.keys = []
        store.put_if_absent = self

    def __call__(self, key, body):
        if "/staging/" not in key:
            return self.put(key, body)
        self.keys.append(key)
        assert self.bodies.setdefault(key, body) == body, "one id, two contents"
        what = self.script.pop(0) if self.script else "ok"
        if what == "down":
            raise Unavailable("the store is down")
        if what == "full":
            raise StoreRefused("no space left on the disk")
        if what == "late":
            raise CommitOutcomeUnknown("lost, not written")
        etag = self.put(key, body)
        if what == "lost":
            raise CommitOutcomeUnknown("lost, written")
        return etag


@pytest.fixture
def puts(warehouse, create):
    create()
    return FaultyPuts(warehouse.store)


def staged_rows(warehouse, name="events"):
    """Return every staged row, with how often it is there."""
    rows = Counter()
    for batch in list_staged(warehouse.table(name)).batches:
        body = read_staged(warehouse.store, batch)  # alone, or in a group of several threads
        text = zstd.decompress(body) if batch.format.endswith(".zst") else body
        rows.update(orjson.loads(line)["n"] for line in text.splitlines())
    return rows


def test_rows_of_a_program_wait_for_whoever_frees_the_disk(client, warehouse, puts):
    puts.script = ["full", "full"]
    with client.producer("events") as producer:
        producer.send({"n": 1})
    assert staged_rows(warehouse) == Counter([1])


def test_rows_come_in_batches_of_the_bounds(client, warehouse, puts):
    accepted = []
    with client.producer("events", max_rows=4, on_accepted=accepted.append) as producer:
        for n in range(10):
            producer.send({"n": n})
    assert sorted(batch.row_count for batch in accepted) == [2, 4, 4]
    assert staged_rows(warehouse) == Counter(range(10))
    counters = producer.counters
    assert (counters.sent_rows, counters.accepted_rows, counters.accepted_batches) == (10, 10, 3)
    assert (counters.held_bytes, counters.unsent_rows, counters.retries) == (0, 0, 0)


def test_lost_answers_and_a_store_that_comes_back_make_each_row_come_once(client, warehouse, puts):
    # stage_batch itself tries three times; what is beyond it is the producer's.
    puts.script = ["lost", "ok", "late", "late", "late", "ok", "down", "down", "lost", "down", "late", "lost"]
    with client.producer("events", max_rows=5, senders=1) as producer:
        assert producer.send_rows({"n": n} for n in range(50)) == 50
    assert staged_rows(warehouse) == Counter(range(50))
    assert len(set(puts.keys)) == 10
    assert producer.counters.retries >= 3


def test_eight_threads_stage_each_row_once(client, warehouse, puts):
    puts.script = ["lost", "ok", "down", "late", "ok"] * 40
    held = []
    with client.producer("events", max_rows=97, max_bytes=2000, max_memory_bytes=6000, senders=4) as producer:

        def work(thread):
            for n in range(0, 1000, 10):
                first = thread * 1000 + n
                producer.send({"n": first})
                producer.send_rows({"n": first + more} for more in range(1, 10))
                held.append(producer.counters.held_bytes)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert staged_rows(warehouse) == Counter(range(8000))
    assert 0 < max(held) <= 6000


def test_refused_batches_wait_as_long_as_they_are_told(client, warehouse, puts, clock):
    pressure = Pressure("stop", 60.0, "800 log files", 7000)
    publish_pressure(warehouse.table("events"), pressure, clock=clock)
    with pytest.raises(Overloaded, match="800 log files") as caught:
        client.enqueue("events", [{"n": 0}])
    assert caught.value.retry_after_ms == 7000
    waits = []

    def recover():
        waits.append(clock.ms)
        if len(waits) == 3:
            publish_pressure(warehouse.table("events"), Pressure(), clock=clock)

    clock.on_sleep = recover
    began_ms = clock.ms
    with client.producer("events") as producer:
        producer.send({"n": 1})
    assert [ms - began_ms for ms in waits] == [7000, 14_000, 21_000]
    assert staged_rows(warehouse) == Counter([1])
    # Nothing was sent while it waited, so the id, and the retry window with it, begins afterwards (I3).
    (key,) = puts.keys
    assert parse_uuid7_ms(key.rpartition("/")[2].partition(".")[0]) == began_ms + 21_000


def test_a_table_that_has_no_room_in_time_was_sent_nothing(client, warehouse, puts, clock):
    publish_pressure(warehouse.table("events"), Pressure("stop", 60.0, "800 log files", 7000), clock=clock)
    began_ms = clock.ms
    with client.producer("events", retry_ms=10 * SECOND_MS) as producer:
        producer.send({"n": 1})
        with pytest.raises(UnsentRows):
            producer.flush()
        (batch,) = producer.take_unsent()
    assert type(batch.error) is Overloaded  # not Undelivered: that is of a batch which may be there
    assert (clock.ms - began_ms, puts.keys) == (10 * SECOND_MS, [])


def test_a_store_that_stays_down_leaves_the_rows_with_their_id(client, warehouse, puts, clock):
    puts.script = ["lost"] + ["down"] * 10_000
    failed = []
    began_ms = clock.ms
    producer = client.producer("events", retry_ms=60 * SECOND_MS, on_failed=failed.append)
    producer.send({"n": 1, "text": "é"})
    with pytest.raises(UnsentRows, match="1 rows in 1 batches were not accepted") as caught:
        producer.close()
    assert 60 * SECOND_MS <= clock.ms - began_ms < 70 * SECOND_MS
    (batch,) = caught.value.batches
    assert (batch,) == producer.unsent == tuple(failed)
    assert batch.rows == [{"n": 1, "text": "é"}]
    assert isinstance(batch.error, Unavailable)
    producer.close()  # a second one does nothing
    # It was staged, though its answer got lost: under its id, its body, or its rows, are the same batch.
    puts.script = []
    assert client.enqueue("events", batch.body, batch_id=batch.batch_id).batch_id == batch.batch_id
    assert client.enqueue("events", batch.rows, batch_id=batch.batch_id).batch_id == batch.batch_id
    assert staged_rows(warehouse) == Counter([1])


def test_a_file_goes_on_after_a_lost_answer_without_a_row_twice(client, warehouse, puts, tmp_path):
    path = tmp_path / "a.ndjson"
    path.write_bytes(b"".join(b'{"n":%d}\n' % n for n in range(10)))
    puts.script = ["ok", "lost"] + ["down"] * 10_000
    with pytest.raises(Undelivered, match="the store is down") as caught:
        list(client.enqueue_file("events", path, batch_rows=4))
    assert staged_rows(warehouse) == Counter(range(8))
    puts.script = []
    rest = client.enqueue_file("events", path, batch_rows=4, first_row=5, batch_id=caught.value.batch_id)
    assert [batch.row_count for batch in rest] == [4, 2]
    assert staged_rows(warehouse) == Counter(range(10))


def test_retries_end_with_the_retry_window(client, create, warehouse, clock):
    config = create("short", log_grace_ms=60 * SECOND_MS, data_grace_ms=60 * SECOND_MS)
    FaultyPuts(warehouse.store).script = ["down"] * 10_000
    began_ms = clock.ms
    producer = client.producer("short", retry_ms=3600 * SECOND_MS)
    producer.send({"n": 1})
    with pytest.raises(UnsentRows):
        producer.flush()
    assert clock.ms - began_ms < config.retry_window_ms
    producer.take_unsent()
    producer.close()


def test_what_is_refused_for_good_is_not_tried_again(client, warehouse, puts):
    producer = client.producer("events")
    warehouse.store.delete([warehouse.table("events").paths.config_key])
    client.gate._known.clear()
    producer.send({"n": 1})
    with pytest.raises(UnsentRows, match="does not exist"):
        producer.flush()
    (batch,) = producer.take_unsent()
    assert isinstance(batch.error, NotFound)
    assert producer.counters.retries == 0
    producer.close()
    with pytest.raises(NotFound):
        client.producer("nope")


def test_whatever_goes_wrong_keeps_the_rows(client, warehouse, puts, monkeypatch, caplog):
    def fail(*_args, **_options):
        raise MemoryError("no room to compress")

    with monkeypatch.context() as patch:
        patch.setattr(producer_module, "compress_body", fail)
        producer = client.producer("events", max_rows=1, senders=1)
        producer.send_rows([{"n": 1}, {"n": 2}])
        with pytest.raises(UnsentRows, match=r"2 rows in 2 batches were not accepted \(no room to compress"):
            producer.flush()
    assert "a batch was not sent" in caplog.text
    for batch in producer.take_unsent():
        client.enqueue("events", batch.body, batch_id=batch.batch_id)
    producer.close()
    assert staged_rows(warehouse) == Counter([1, 2])


def test_an_error_in_the_block_sends_the_rows_and_stays_the_error(client, warehouse, puts, caplog):
    with pytest.raises(KeyboardInterrupt), client.producer("events") as producer:
        producer.send({"n": 1})
        raise KeyboardInterrupt
    assert staged_rows(warehouse) == Counter([1])
    puts.script = ["down"] * 10_000
    with pytest.raises(UnsentRows, match="1 rows in 1 batches"), client.producer("events", retry_ms=0) as producer:
        producer.send({"n": 2})
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(ZeroDivisionError) as caught,
        client.producer("events", retry_ms=0) as producer,
    ):
        producer.send({"n": 2})
        raise ZeroDivisionError
    assert "1 rows in 1 batches" in caught.value.__notes__[0]
    assert producer.unsent[0].rows == [{"n": 2}]
    assert "1 rows" in caplog.text


def test_a_full_memory_refuses_or_waits(client, warehouse, puts):
    started, may_go = threading.Event(), threading.Event()
    put = warehouse.store.put_if_absent

    def slow(key, body):
        started.set()
        assert may_go.wait(LIMIT_S)
        return put(key, body)

    warehouse.store.put_if_absent = slow
    row = {"n": 1, "text": "x" * 80}
    producer = client.producer("events", max_bytes=100, max_memory_bytes=200, senders=1)
    producer.send(row)
    producer.send(row)
    assert started.wait(LIMIT_S)
    with pytest.raises(BufferFull, match="fill max_memory_bytes 200; send again later") as caught:
        producer.send_rows([row, row], block=False)
    assert caught.value.taken_rows == 0
    waiting = threading.Thread(target=producer.send, args=(row,))
    waiting.start()
    may_go.set()
    waiting.join(LIMIT_S)
    assert not waiting.is_alive()
    producer.close()
    assert staged_rows(warehouse) == Counter({1: 3})


def test_unsent_rows_count_as_memory_until_they_are_taken_away(client, puts):
    puts.script = ["down"] * 10_000
    row = {"n": 1, "text": "x" * 80}
    producer = client.producer("events", max_bytes=100, max_memory_bytes=200, retry_ms=0)
    producer.send_rows([row, row])
    with pytest.raises(UnsentRows):
        producer.flush()
    with pytest.raises(BufferFull, match=r"unsent rows fill.*take_unsent") as caught:
        producer.send_rows([row] * 3)
    assert caught.value.taken_rows == 0
    assert len(producer.take_unsent()) == 2
    puts.script = []
    producer.send(row)
    producer.close()


def test_closing_gives_up_in_time(client, warehouse, puts, clock):
    puts.script = ["down"] * 10_000
    producer = client.producer("events", max_rows=1, senders=1, retry_ms=3600 * SECOND_MS)
    producer.send_rows({"n": n} for n in range(5))
    with pytest.raises(UnsentRows, match="5 rows in 5 batches"):
        producer.close(timeout_ms=0)
    assert sorted(batch.rows[0]["n"] for batch in producer.unsent) == list(range(5))
    assert not any(thread.is_alive() for thread in ended(producer))
    with pytest.raises(InvalidRequest, match="is closed"):
        producer.send({"n": 1})


def test_a_batch_on_its_way_is_not_tried_again_once_closing_gave_up(client, puts, clock):
    puts.script = ["down"] * 10_000
    producer = client.producer("events", senders=1, retry_ms=3600 * SECOND_MS)
    pauses, given_up, give_up = threading.Event(), threading.Event(), producer._give_up

    def pause():
        pauses.set()
        assert given_up.wait(LIMIT_S)

    def end():
        give_up()
        given_up.set()

    clock.on_sleep, producer._give_up = pause, end
    producer.send({"n": 1})
    with producer._lock:
        producer._buffer.seal()
        producer._work.notify_all()
    assert pauses.wait(LIMIT_S)
    with pytest.raises(UnsentRows):
        producer.close(timeout_ms=0)
    assert producer.counters.retries == 1


def test_age_seals_a_batch(client, warehouse, puts, clock):
    producer = client.producer("events", max_age_ms=500, senders=2)
    producer.send({"n": 1})
    for step_ms in (499, 1):
        assert staged_rows(warehouse) == Counter()
        clock.ms += step_ms
        with producer._lock:
            producer._work.notify_all()  # as the real clock's time-out does
    with producer._lock:
        assert producer._room.wait_for(lambda: producer._counts["accepted_rows"], LIMIT_S)
    assert staged_rows(warehouse) == Counter([1])
    producer.close()


def test_a_buffer_is_sealed_by_count_size_and_age():
    buffer = RowBuffer(ProducerOptions(max_rows=3, max_bytes=10, max_memory_bytes=20, max_age_ms=50))
    assert buffer.add(b"12345\n", now_ms=7)
    assert (buffer.due_ms, buffer.has_sealed, buffer.first_number) == (57, False, 1)
    assert not buffer.add(b"1\n", now_ms=20)
    assert buffer.due_ms == 57
    assert buffer.add(b"1234\n", now_ms=30)  # would be larger than max_bytes: the others go
    assert buffer.take().body == b"12345\n1\n"
    assert buffer.due_ms == 80
    buffer.seal_due(79)
    assert not buffer.has_sealed
    buffer.seal_due(80)
    assert (buffer.take().row_count, buffer.due_ms, buffer.take()) == (1, None, None)
    for _ in range(3):
        buffer.add(b"1\n", now_ms=0)
    assert (buffer.take().row_count, buffer.seal()) == (3, False)


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ({"max_row": 1}, "'max_row' is no bound; there are max_rows"),
        ({"max_rows": 0}, "max_rows must be at least 1"),
        ({"senders": 33}, "at most 32"),
        ({"max_bytes": 1 << 40}, "max_bytes must be at least 1 and at most"),
        ({"max_bytes": 100, "max_memory_bytes": 199}, "199 < 200"),
    ],
)
def test_bounds_are_checked(client, create, bounds, words):
    create()
    with pytest.raises(InvalidRequest, match=words):
        client.producer("events", **bounds)


def test_bad_rows_are_named_and_the_others_kept(client, warehouse, puts):
    with client.producer("events", max_bytes=100, max_memory_bytes=200) as producer:
        with pytest.raises(InvalidRequest, match="row 3 is a list"):
            producer.send_rows([{"n": 1}, {"n": 2}, [], {"n": 4}])
        with pytest.raises(InvalidRequest, match="more than max_bytes 100"):
            producer.send({"n": "x" * 100})
        with pytest.raises(InvalidRequest, match="cannot be written as JSON"):
            producer.send({"n": object()})
    assert staged_rows(warehouse) == Counter([1, 2])


def test_a_callback_that_fails_does_not_end_the_producer(client, warehouse, puts, caplog):
    def fail(_batch):
        raise ZeroDivisionError

    with client.producer("events", max_rows=1, senders=1, on_accepted=fail) as producer:
        producer.send_rows([{"n": 1}, {"n": 2}])
    assert staged_rows(warehouse) == Counter([1, 2])
    assert "callback" in caplog.text


def test_a_copy_by_fork_sends_nothing(client, warehouse, puts, monkeypatch):
    producer = client.producer("events", max_age_ms=3600 * SECOND_MS)
    producer.send({"n": 1})
    with monkeypatch.context() as patch:
        patch.setattr(producer_module.os, "getpid", lambda: -1)
        producer.close()
        for call in (producer.flush, lambda: producer.send({"n": 2})):
            with pytest.raises(InvalidRequest, match="after a fork each process makes its own"):
                call()
    assert staged_rows(warehouse) == Counter()
    producer.close()
    assert staged_rows(warehouse) == Counter([1])


def test_a_producer_that_is_never_closed_is_told_at_exit(tmp_path):
    program = """
import sys
from icedb_client import Client
from icedb_log.table.table_config import TableConfig
from icedb_log.table.stored_config import create_table
client = Client(store=sys.argv[1])
create_table(client.warehouse.table("events"), TableConfig.create(name="events"))
producer = client.producer("events", max_age_ms=3_600_000)
producer.send({"n": 1})
closed = client.producer("events")
"""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ICEDB_")}
    done = subprocess.run(
        [sys.executable, "-c", program, f"file://{tmp_path}/wh"],
        env=inherited,
        capture_output=True,
        check=True,
        timeout=LIMIT_S,
    )
    lines = done.stderr.decode().splitlines()
    assert len(lines) == 1
    assert "the producer for table events was never closed: 8 bytes of rows may be lost" in lines[0]
    gc.collect()


def ended(producer):
    for thread in producer._threads:
        thread.join(LIMIT_S)
    return producer._threads
