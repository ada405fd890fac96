"""Enqueue: durable when it returns, safe to repeat, and never for a table that is not there."""

import uuid

import pytest
from icedb_client.client import Client
from icedb_client.settings import load_client_settings
from icedb_log.clock import new_batch_id
from icedb_log.commit.table import Table
from icedb_log.errors import CommitOutcomeUnknown, InvalidRequest, NotFound, Unavailable
from icedb_log.ingest.flush import flush_table
from icedb_log.ingest.pressure import PressureGate, end_trouble, publish_trouble
from icedb_log.ingest.quarantine import payload_key, quarantine_batch, quarantine_rows
from icedb_log.ingest.staging import list_staged, stage_batch
from icedb_log.jobs import BadRows, RejectedBatch
from icedb_log.log.codec import encode_log_file
from icedb_log.model import LogFile
from icedb_sim.tables.row_files import RowFileWriter


def staged(warehouse, name="events"):
    return list_staged(warehouse.table(name)).batches


def test_one_put_and_one_wake_up(client, create, warehouse):
    create()
    batch = client.enqueue("events", [{"ts": "2026-01-02T00:00:00Z"}])
    (found,) = staged(warehouse)
    assert (found.batch_id, found.key) == (batch.batch_id, batch.key)
    assert uuid.UUID(batch.batch_id).version == 7
    assert (batch.row_count, batch.last_row) == (1, 1)
    assert client._sender.woken == [("icedb.ingest.flush", "events")]


def test_a_retry_with_the_same_id_is_one_batch(client, create, warehouse):
    create()
    first = client.enqueue("events", [{"a": 1}])
    again = client.enqueue("events", [{"a": 1}], batch_id=first.batch_id)
    assert again.key == first.key
    assert len(staged(warehouse)) == 1
    with pytest.raises(InvalidRequest, match="other content"):
        client.enqueue("events", [{"a": 2}], batch_id=first.batch_id)


def test_redis_down_does_not_refuse_a_batch(client, create, warehouse):
    create()
    client._sender.answers = False
    assert client.enqueue("events", [{"a": 1}]).is_woken is False
    assert len(staged(warehouse)) == 1


def test_who_sends_to_a_table_whose_flushes_fail_is_told_and_logs_it_once_for_each_table(
    client, create, warehouse, caplog
):
    for name in ("events", "clicks"):
        create(name)
        publish_trouble(warehouse.table(name), "failing", "nobody foresaw this", clock=client.gate.clock)
    told = [client.enqueue(name, [{"a": number}]).warning for number in range(3) for name in ("events", "clicks")]
    words = [
        f"table {name} takes batches, but its flushes fail, so that they wait: nobody foresaw this"
        for name in ("events", "clicks")
    ]
    assert told == words * 3
    assert [record.getMessage() for record in caplog.records if record.name == "icedb_client.transport"] == words
    with client.producer("events") as producer:
        producer.send({"a": 9})
    assert len([record for record in caplog.records if record.name == "icedb_client.transport"]) == 2
    end_trouble(warehouse.table("events"))
    client.gate.pressure = PressureGate(warehouse.store, clock=client.gate.clock)  # it asks once in a second
    assert client.enqueue("events", [{"a": 4}]).warning == ""
    publish_trouble(warehouse.table("events"), "failing", "again", clock=client.gate.clock)
    client.gate.pressure = PressureGate(warehouse.store, clock=client.gate.clock)
    assert "again" in client.enqueue("events", [{"a": 5}]).warning
    assert "again" in caplog.records[-1].getMessage()


@pytest.mark.parametrize(
    ("table", "rows", "batch_id", "error", "words"),
    [
        ("nope", [{}], None, NotFound, "icedb table create"),
        ("../x", [{}], None, InvalidRequest, "a-z"),
        ("x" * 10_000, [{}], None, InvalidRequest, "a-z"),
        ("events", "text", None, InvalidRequest, "iterable of objects"),
        ("events", {"a": 1}, None, InvalidRequest, "iterable of objects"),
        ("events", [{}], "1", InvalidRequest, "UUIDv7"),
        ("events", [{}], str(uuid.uuid4()), InvalidRequest, "UUIDv7"),
    ],
)
def test_bad_calls_accept_nothing(client, create, warehouse, table, rows, batch_id, error, words):
    create()
    with pytest.raises(error, match=words) as caught:
        client.enqueue(table, rows, batch_id=batch_id)
    assert len(str(caught.value)) < 500
    assert staged(warehouse) == ()
    assert client._sender.woken == []


def test_an_unanswered_put_says_how_to_go_on(client, create, warehouse):
    create()

    def no_answer(_key, _body):
        raise CommitOutcomeUnknown("lost")

    warehouse.store.put_if_absent = no_answer
    with pytest.raises(Unavailable, match="same id"):
        client.enqueue("events", [{}])


def test_a_path_is_one_batch_or_refused(client, create, tmp_path):
    create()
    path = tmp_path / "a.ndjson"
    path.write_bytes(b'{"a":1}\n{"a":2}\n')
    assert client.enqueue("events", path).row_count == 2
    path.write_bytes(b"")
    with pytest.raises(InvalidRequest, match="is empty"):
        client.enqueue("events", path)


def test_a_file_becomes_many_batches(client, create, tmp_path, warehouse):
    create()
    path = tmp_path / "a.ndjson"
    path.write_bytes(b'{"a":1}\n' * 10)
    batches = list(client.enqueue_file("events", path, batch_rows=4))
    assert [batch.last_row for batch in batches] == [4, 8, 10]
    assert {batch.batch_id for batch in batches} == {batch.batch_id for batch in staged(warehouse)}


def test_waiting_tells_committed_quarantined_and_waiting_apart(client, create, warehouse, clock):
    create()
    place = warehouse.table("events")
    batches = [client.enqueue("events", [{"n": n}]) for n in range(3)]
    ids = [batch.batch_id for batch in batches]
    assert client.wait_committed("events", ids, timeout_ms=0).waiting == tuple(ids)
    listed = {batch.batch_id: batch for batch in staged(warehouse)}

    def work():
        place.store.delete([batches[0].key])
        quarantine_batch(place, rejected=RejectedBatch(listed[ids[1]], "no ts"), clock=clock)

    clock.on_sleep = work
    report = client.wait_committed("events", ids, timeout_ms=5000)
    assert report.committed == (ids[0],)
    assert [(batch.batch_id, batch.reason) for batch in report.quarantined] == [(ids[1], "no ts")]
    assert report.waiting == (ids[2],)
    assert clock.ms >= 1_767_312_000_000 + 5000


def test_a_committed_batch_may_have_bad_rows(client, create, warehouse, clock):
    create()
    place = warehouse.table("events")
    batches = [client.enqueue("events", [{"n": n}]) for n in range(2)]
    listed = {batch.batch_id: batch for batch in staged(warehouse)}
    bad_id = batches[0].batch_id
    key = payload_key(place.paths, bad_id, b"x", "ndjson.zst", what="rows")
    place.store.put(key, b"x")
    bad = BadRows(listed[bad_id], key, 3, "line 7: no ts")
    quarantine_rows(place, bad=bad, replaces=None, commit_id="ab", clock=clock)
    ids = [batch.batch_id for batch in batches]
    # The reason is there before the commit: until the staged object goes, the batch waits.
    assert client.wait_committed("events", ids, timeout_ms=0).bad_rows == ()
    log = LogFile(time_ms=clock.now_ms(), commit_id="ab", batch_ids=tuple(ids))
    place.store.put(place.paths.log_key(time_ms=log.time_ms, commit_id="ab", is_merged=False), encode_log_file(log))
    place.store.delete([batch.key for batch in batches])
    report = client.wait_committed("events", ids, timeout_ms=0)
    assert (report.committed, report.quarantined, report.waiting, report.unknown) == (tuple(ids), (), (), ())
    assert [(entry.batch_id, entry.row_count, entry.reason) for entry in report.bad_rows] == [
        (bad_id, 3, "line 7: no ts")
    ]


def test_a_batch_with_bad_rows_was_committed_though_the_log_has_forgotten_it(client, create, warehouse, clock):
    """The reason is there before the commit, and the staged object until after it: as the front end says, too."""
    create()
    place = warehouse.table("events")
    batch = client.enqueue("events", [{"n": 1}])
    (listed,) = staged(warehouse)
    key = payload_key(place.paths, batch.batch_id, b"x", "ndjson.zst", what="rows")
    place.store.put(key, b"x")
    bad = BadRows(listed, key, 1, "line 7: no ts")
    quarantine_rows(place, bad=bad, replaces=None, commit_id="ab", clock=clock)
    place.store.delete([batch.key])
    report = client.wait_committed("events", [batch.batch_id], timeout_ms=0)
    assert (report.committed, report.quarantined, report.unknown) == ((batch.batch_id,), (), ())
    assert [entry.batch_id for entry in report.bad_rows] == [batch.batch_id]


def test_a_batch_that_nobody_knows_is_not_called_committed(client, create, clock):
    create()
    never_sent = new_batch_id(clock)
    report = client.wait_committed("events", [never_sent], timeout_ms=0)
    assert (report.committed, report.unknown) == ((), (never_sent,))


def test_settings_name_what_is_wrong(monkeypatch):
    monkeypatch.delenv("ICEDB_STORE", raising=False)
    with pytest.raises(InvalidRequest, match="ICEDB_STORE"):
        Client().table_config("events")
    with pytest.raises(InvalidRequest, match=r"snapshot_address \(--snapshot-address\).*host:port"):
        load_client_settings(snapshot_address="localhost")
    with pytest.raises(InvalidRequest, match=r"redis_url \(--redis-url\).*redis://"):
        load_client_settings(redis_url="http://x")
    monkeypatch.setenv("ICEDB_STORE", "file:///from-env")
    assert load_client_settings().store == "file:///from-env"
    assert load_client_settings(store="file:///given").store == "file:///given"
    monkeypatch.setenv("ICEDB_ADDRESS", "https://events.example.com/icedb/")
    assert load_client_settings().address == "https://events.example.com/icedb"
    assert load_client_settings(store="file:///given").address is None  # a store that is named is meant
    assert Client("http://127.0.0.1:8088", store="file:///given").settings.address == "http://127.0.0.1:8088"


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1:8088", "s3://bucket", "https://", "https://h:0", "https://h:x", "https://h?a=1", "https://u:secret@h"],
)
def test_an_address_is_the_url_of_a_front_end(address):
    with pytest.raises(InvalidRequest, match=r"^settings: address \(--address\): .*write https://host:port") as caught:
        Client(address)
    assert "secret" not in str(caught.value)


def test_i7_a_batch_has_an_id_or_a_key(client, create):
    create()
    rows = [{"ts": "2026-01-01"}]
    first = client.enqueue("events", rows, key="order 7")
    again = client.enqueue("events", rows, key="order 7")
    assert (again.batch_id, first.is_repeated, again.is_repeated) == (first.batch_id, False, True)
    with pytest.raises(InvalidRequest, match="an id or a key"):
        client.enqueue("events", rows, key="order 7", batch_id=first.batch_id)


def test_a_wrong_address_of_the_environment_is_named_by_its_variable(monkeypatch):
    monkeypatch.setenv("ICEDB_ADDRESS", "127.0.0.1:8088")
    with pytest.raises(InvalidRequest, match=r"^settings: ICEDB_ADDRESS: .*write https://host:port"):
        Client()


def test_i8_waiting_tells_of_other_content_under_the_id_of_a_batch(client, create, warehouse, clock):
    create()
    place = warehouse.table("events")
    batch_id = new_batch_id(clock)
    stage_batch(place, body=b'{"ts":"2026-01-01"}', staging_format="ndjson", batch_id=batch_id)
    writer = RowFileWriter(place.store, clock)
    flush_table(Table.open(place, clock=clock, owner="test"), writer)
    stage_batch(place, body=b'{"ts":"2026-01-02"}', staging_format="json", batch_id=batch_id)
    flush_table(Table.open(place, clock=clock, owner="test"), writer)
    report = client.wait_committed("events", [batch_id], timeout_ms=0)
    assert (report.committed, report.quarantined, report.bad_rows) == ((batch_id,), (), ())
    (entry,) = report.conflicts
    assert (entry.kind, entry.batch_id.partition(".")[0]) == ("conflict", batch_id)


def test_a_table_that_was_just_created_is_there_at_once(client, create):
    with pytest.raises(NotFound):
        client.enqueue("later", [{"n": 1}])
    create("later", partition=())
    assert client.enqueue("later", [{"n": 1}]).row_count == 1
