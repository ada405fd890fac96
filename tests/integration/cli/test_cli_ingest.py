"""``icedb ingest`` and ``icedb quarantine``: every format, what is refused, and how one goes on after it."""

import gzip
import re
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from icedb_log.clock import new_batch_id
from icedb_log.errors import Unavailable
from icedb_log.ingest.pressure import HALTED, Pressure, publish_pressure, publish_trouble
from icedb_log.ingest.quarantine import quarantine_batch
from icedb_log.ingest.staging import list_staged, stage_batch
from icedb_log.jobs import RejectedBatch
from icedb_log.store.local_store import LocalObjectStore
from icedb_log.store.table_store import TableStore
from pyarrow import ipc


def test_every_format_is_ingested(icedb, parquet, tmp_path):
    parquet.create("events")
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.csv").write_text('n,t\n1,"x\ny"\n2,z\n')
    (folder / "b.csv.gz").write_bytes(gzip.compress(b"n,t\n3,x\n"))
    (folder / "c.json").write_text('[{"n": 4}, {"n": 5}]')
    (folder / "d.jsonl").write_text('{"n": 6}\n')
    pq.write_table(pa.table({"n": [7, 8]}), folder / "e.parquet")
    with ipc.new_file(folder / "f.arrow", pa.schema({"n": pa.int64()})) as writer:
        writer.write_table(pa.table({"n": [9]}))
    (folder / "notes.txt").write_text("not events")
    (folder / ".a.csv").write_text("n\n1\n")
    (folder / "lake" / "events" / "_data" / "d=1").mkdir(parents=True)
    pq.write_table(pa.table({"n": [7, 8]}), folder / "lake" / "events" / "_data" / "d=1" / "live.parquet")
    done = icedb("ingest", "events", str(folder), "-o", "json").json
    assert (done["rows"], done["batches"]) == (9, 6)
    store, paths = parquet.warehouse.store, parquet.warehouse.table("events").paths
    staged = list_staged(TableStore(store, paths)).batches
    assert Counter(batch.format for batch in staged) == {"csv": 2, "ndjson": 2, "parquet": 1, "arrow": 1}
    assert icedb("ingest", "events", "-", "-o", "json", stdin=(folder / "e.parquet").read_bytes()).json["rows"] == 2
    assert icedb("ingest", "events", "-", "--input-format", "csv", "-o", "json", stdin=b"n\n1\n2\n").json["rows"] == 2
    error = icedb("ingest", "events", "-", stdin=b"n\n1\n2\n", code=2).error
    assert "standard input: line 1 is not JSON" in error
    assert "--input-format" in error


def test_a_file_is_ingested_once(icedb, parquet, tmp_path):
    parquet.create("events")
    path = tmp_path / "a.ndjson"
    path.write_bytes(b'{"n":1}\n{"n":2}\n')
    assert icedb("ingest", "events", str(path), "--once", "--commit", "-o", "json").json["committed"] == 1
    again = icedb("ingest", "events", str(path), "--once", "--commit", "-o", "json").json
    assert (again["rows"], again["batches"], again["repeated"], again["waiting"]) == (0, 0, 1, [])
    assert "1 batch with the same bytes accepted before (--once)" in icedb("ingest", "events", str(path), "--once").err
    assert icedb("query", "select count(*)::int as n from events", "-o", "json").json["rows"] == [{"n": 2}]
    assert "--once is for" in icedb("ingest", "events", "-", "--once", stdin=b'{"n":1}\n', code=2).error
    assert "give the whole file" in icedb("ingest", "events", str(path), "--once", "--from-row", "2", code=2).error


def test_a_table_under_pressure_makes_ingest_wait_and_says_so(icedb, parquet):
    parquet.create("events")
    paths = parquet.warehouse.table("events").paths
    publish_pressure(
        TableStore(parquet.warehouse.store, paths), Pressure("stop", 60.0, "800 log files", 60), clock=parquet.clock
    )
    answer = icedb("ingest", "events", "-", "--retry", "200ms", stdin=b'{"n":1}\n', code=4)
    assert "800 log files" in answer.error
    assert answer.err.count("waiting 100 ms before the batch is sent again (--retry bounds this)") == 1
    assert icedb("status", "events", "-o", "json").json["tables"][0]["staged_batches"] == 0
    parquet.warehouse.store.delete([paths.pressure_key])
    assert icedb("ingest", "events", "-", "-o", "json", stdin=b'{"n":1}\n').json["rows"] == 1


def test_a_halted_table_is_said_to_be_halted_by_ingest_and_status(icedb, parquet):
    parquet.create("events")
    store, paths = parquet.warehouse.store, parquet.warehouse.table("events").paths
    reason = "column 'ts' is BIGINT in the log"
    icedb("ingest", "events", "-", stdin=b'{"n":1}\n')

    # Accepted before the worker halts: who waits hears why at once.
    put = store.put_if_absent

    def halt_after(key, body):
        found = put(key, body)
        publish_trouble(TableStore(store, paths), HALTED, reason, clock=parquet.clock)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalObjectStore, "put_if_absent", lambda _, key, body: halt_after(key, body))
        waited = icedb("ingest", "events", "-", "--wait", "--timeout", "60s", stdin=b'{"n":2}\n', code=5)
    assert "table events is halted" in waited.error
    assert reason in waited.error
    assert "1 of 1 batches wait: they stay accepted" in waited.error
    assert "no ingest worker" not in waited.error

    refused = icedb("ingest", "events", "-", "--wait", stdin=b'{"n":3}\n', code=5)
    assert reason in refused.error
    assert len(list_staged(TableStore(store, paths)).batches) == 2

    shown = icedb("status", "events", code=5)
    assert f"table events is halted: {reason}" in shown.error
    assert "halted" in icedb("status", code=5).out
    (state,) = icedb("status", "-o", "json", code=5).json["tables"]
    assert (state["halted"], state["error"]) == (True, {"kind": "TableHalted", "message": reason})
    assert state["staged_batches"] == 2
    store.delete([paths.pressure_key])
    assert icedb("status", "events", "-o", "json").json["tables"][0]["halted"] is False


def test_a_broken_line_is_sent_and_one_hears_how_to_learn_of_it(icedb, parquet, tmp_path):
    parquet.create("events")
    path = tmp_path / "bad.ndjson"
    path.write_bytes(b'{"n": 1}\n{"n": \n{"n": 2}\n')
    done = icedb("ingest", "events", str(path))
    assert "3 rows accepted" in done.out
    assert "`icedb quarantine list events`" in done.err
    store, paths = parquet.warehouse.store, parquet.warehouse.table("events").paths
    (staged,) = list_staged(TableStore(store, paths)).batches
    assert store.get(staged.key).body == b'{"n": 1}\n{"n":\n{"n": 2}\n'


def test_a_line_that_cannot_be_sent_names_the_file_and_how_to_go_on(icedb, parquet, tmp_path):
    parquet.create("events")
    lines = [b'{"n": %d}\n' % n for n in range(10)]
    lines[7] = b'{"n": "%s"}\n' % (b"7" * (8 << 20))
    path = tmp_path / "bad.ndjson"
    path.write_bytes(b"".join(lines))
    error = icedb("ingest", "events", str(path), "--batch-rows", "3", code=2).error
    assert "bad.ndjson: line 8 is longer than 8388608 bytes" in error
    assert "6 rows before it accepted in 2 batches" in error
    assert "--from-row 7" in error
    lines[7] = b'{"n": 7}\n'
    path.write_bytes(b"".join(lines))
    assert icedb("ingest", "events", str(path), "--from-row", "7", "-o", "json").json["rows"] == 4


def test_rows_of_a_folder_have_no_numbers_to_go_on_from(icedb, parquet, tmp_path):
    parquet.create("events")
    (tmp_path / "a.ndjson").write_bytes(b'{"n": 1}\n')
    (tmp_path / "b.ndjson").write_bytes(b'{"n": 2}\n{"n": "%s"}\n' % (b"7" * (8 << 20)))
    error = icedb("ingest", "events", str(tmp_path), code=2).error
    assert "accepted in 1 batch: do not ingest them again" in error
    assert "--from-row" not in error
    for option in (("--from-row", "2"), ("--batch-id", "018bcfe5-6800-7000-8000-000000000000")):
        assert "are for one file, but" in icedb("ingest", "events", str(tmp_path), *option, code=2).error


def test_a_batch_without_an_answer_can_be_sent_again_under_its_id(icedb, parquet, tmp_path, monkeypatch):
    parquet.create("events")
    path = tmp_path / "a.ndjson"
    path.write_bytes(b"".join(b'{"n": %d}\n' % n for n in range(5)))
    put = LocalObjectStore.put_if_absent
    calls = []

    def lose_the_second(store, key, body):
        calls.append(key)
        if len(calls) == 1:
            return put(store, key, body)
        if len(calls) == 2:
            put(store, key, body)
        raise Unavailable("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(LocalObjectStore, "put_if_absent", lose_the_second)
        answer = icedb("ingest", "events", str(path), "--batch-rows", "2", "--retry", "150ms", code=4)
        again = icedb("ingest", "events", str(path), "--from-row", "4", "--retry", "0s", code=4)
        assert "go on with --from-row 4 --batch-id" in again.error
    assert "2 rows before it accepted in 1 batch; this one may be accepted, too" in answer.error
    options = re.search(r"--from-row 3 --batch-id [0-9a-f-]{36}", answer.error)[0].split()
    done = icedb("ingest", "events", str(path), "--batch-rows", "2", *options, "-o", "json").json
    assert (done["rows"], done["batches"]) == (3, 2)
    assert icedb("status", "events", "-o", "json").json["tables"][0]["staged_batches"] == 3


def test_i8_other_content_under_the_id_of_a_batch_fails_although_nothing_is_refused(icedb, parquet, tmp_path):
    parquet.create("events")
    path = tmp_path / "a.ndjson"
    path.write_bytes(b'{"n": 1}\n')
    (batch_id,) = icedb("ingest", "events", str(path), "--commit", "-o", "json").json["batch_ids"]
    path.write_bytes(b'{"n": 2}\n')
    done = icedb("ingest", "events", str(path), "--batch-id", batch_id, "--commit", code=1)
    assert f"other content under the id of a batch: {batch_id}" in done.error


def test_an_interrupt_says_what_is_accepted(icedb, parquet, tmp_path, monkeypatch):
    parquet.create("events")
    path = tmp_path / "a.ndjson"
    path.write_bytes(b'{"n": 1}\n' * 5)
    put = LocalObjectStore.put_if_absent
    calls = []

    def interrupt_the_second(store, key, body):
        calls.append(key)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return put(store, key, body)

    monkeypatch.setattr(LocalObjectStore, "put_if_absent", interrupt_the_second)
    answer = icedb("ingest", "events", str(path), "--batch-rows", "2", code=130)
    assert "2 rows accepted in 1 batch, up to row 2 of the last file" in " ".join(answer.err.split())


def quarantine(parquet, name="events"):
    """Move what is staged to quarantine, as a flush does that cannot commit it."""
    store, paths = parquet.warehouse.store, parquet.warehouse.table(name).paths
    staged = list_staged(TableStore(store, paths)).batches
    for batch in staged:
        quarantine_batch(
            TableStore(store, paths), rejected=RejectedBatch(batch, "line 1: no [ts]"), clock=parquet.clock
        )
    return [batch.batch_id for batch in staged]


def test_quarantine_is_listed_and_shown(icedb, parquet):
    parquet.create("events")
    assert "nothing is in quarantine" in icedb("quarantine", "list", "events").err
    for body in (b'{"a":"[red]"}\n{"a":2}\n', b'{"b":1}\n'):
        icedb("ingest", "events", "-", stdin=body)
    ids = quarantine(parquet)
    assert icedb("status", "events", "-o", "json").json["tables"][0]["quarantined_batches"] == 2
    listed = icedb("quarantine", "list", "events", "-o", "json").json["batches"]
    assert [(entry["batch_id"], entry["kind"], entry["reason"]) for entry in listed] == [
        (batch_id, "batch", "line 1: no [ts]") for batch_id in ids
    ]
    assert ids[0] in icedb("quarantine", "list", "events").out
    shown = icedb("quarantine", "list", "events", ids[0], "--limit", "1").out
    assert "line 1: no [ts]" in shown
    assert shown.endswith('\n{"a":"[red]"}\n')
    assert icedb("quarantine", "list", "events", ids[0], "-o", "json").json["lines"] == ['{"a":"[red]"}', '{"a":2}']
    assert "batch 'nope' is not in quarantine" in icedb("quarantine", "list", "events", "nope", code=3).error
    assert "did you mean events?" in icedb("quarantine", "list", "evnts", "nope", code=3).error


def test_quarantine_is_retried_or_dropped(icedb, parquet):
    parquet.create("events")
    for n in range(4):
        icedb("ingest", "events", "-", stdin=b'{"n":%d}\n' % n)
    ids = quarantine(parquet)
    done = icedb("quarantine", "retry", "events", ids[0], "-o", "json").json
    (retried,) = done["retried"]
    assert (retried["batch_id"], done["failed"], done["woken"]) == (ids[0], [], False)
    store, paths = parquet.warehouse.store, parquet.warehouse.table("events").paths
    (staged,) = list_staged(TableStore(store, paths)).batches
    assert (staged.batch_id, store.get(staged.key).body) == (retried["retry_id"], b'{"n":0}\n')
    mixed = icedb("quarantine", "retry", "events", "nope", ids[1], "-o", "json", code=3)
    assert [entry["batch_id"] for entry in mixed.json["retried"]] == [ids[1]]
    assert [entry["batch_id"] for entry in mixed.json["failed"]] == ["nope"]
    assert "batch nope is not in quarantine" in mixed.error
    assert "give --yes" in icedb("quarantine", "drop", "events", ids[2], code=2, stdin=b"y\n").error
    assert f"dropped {ids[2]}" in icedb("quarantine", "drop", "events", ids[2], "--yes").out
    assert len(icedb("quarantine", "list", "events", "-o", "json").json["batches"]) == 1
    dropped = icedb("quarantine", "drop", "events", "--all", "--yes", "-o", "json").json
    assert dropped == {"table": "events", "dropped": [{"batch_id": ids[3]}], "failed": []}
    assert "nothing is in quarantine" in icedb("quarantine", "retry", "events", "--all").err
    for wrong in ((), (ids[0], "--all")):
        assert "give ids of batches, or --all" in icedb("quarantine", "drop", "events", *wrong, code=2).error


def test_i8_other_content_under_a_used_id_is_listed_shown_retried_and_dropped(icedb, parquet):
    parquet.create("events")
    store, paths = parquet.warehouse.store, parquet.warehouse.table("events").paths
    batch_id = new_batch_id(parquet.clock)
    for staging_format in ("ndjson", "json", "csv"):
        body = b'{"n": "%s"}' % staging_format.encode()
        stage_batch(TableStore(store, paths), body=body, staging_format=staging_format, batch_id=batch_id)
    quarantine(parquet)
    listed = icedb("quarantine", "list", "events", "-o", "json").json["batches"]
    names = [entry["batch_id"] for entry in listed if entry["kind"] == "conflict"]
    assert [name.partition(".conflict-")[0] for name in names] == [batch_id] * 2
    assert "other content under the id of a batch" in icedb("quarantine", "list", "events").out
    assert "an id has one" in icedb("quarantine", "list", "events", names[0]).out
    assert "--force" in icedb("quarantine", "retry", "--help").out
    assert "by force" in icedb("quarantine", "retry", "events", names[0], code=2).error
    (retried,) = icedb("quarantine", "retry", "events", names[0], "--force", "-o", "json").json["retried"]
    (staged,) = list_staged(TableStore(store, paths)).batches
    assert staged.batch_id == retried["retry_id"]
    icedb("quarantine", "drop", "events", names[1], "--yes")
    left = icedb("quarantine", "list", "events", "-o", "json").json["batches"]
    assert [(entry["batch_id"], entry["kind"]) for entry in left] == [(batch_id, "batch")]
