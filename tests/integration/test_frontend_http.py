"""The HTTP door on loopback: every format, every refusal, keys, clients that leave or dawdle, back-pressure."""

import contextlib
import gzip
import hashlib
import io
import json
import socket
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from backports import zstd
from frontend_fixtures import emptied, shared_frontend
from icedb_engine.local_engine import LocalEngine
from icedb_log.clock import make_uuid7_hex, new_batch_id
from icedb_log.commit.table import Table
from icedb_log.errors import Unavailable
from icedb_log.ingest.flush import flush_table
from icedb_log.ingest.pressure import FAILING, HALTED, Pressure, publish_pressure, publish_trouble
from icedb_log.ingest.quarantine import list_quarantined
from icedb_log.ingest.staging import stage_batch
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import TableConfig
from icedb_log.units import MINUTE_MS
from icedb_sim.rigs.frontend_rig import CLOCK, LIMIT_S, NDJSON, start_rig
from icedb_sim.tables.row_files import RowFileWriter
from waiting import wait_until

LINES = b'{"a":1}\n{"a":2}\n'
TABLE = pa.table({"a": [1, 2]})


def parquet():
    out = io.BytesIO()
    pq.write_table(TABLE, out)
    return out.getvalue()


def arrow_stream():
    out = io.BytesIO()
    with pa.ipc.new_stream(out, TABLE.schema) as writer:
        writer.write_table(TABLE)
    return out.getvalue()


def arrow_file():
    out = io.BytesIO()
    with pa.ipc.new_file(out, TABLE.schema) as writer:
        writer.write_table(TABLE)
    return out.getvalue()


def late_id(age_ms):
    hexed = make_uuid7_hex(CLOCK.now_ms() - age_ms, 5)
    return "-".join((hexed[:8], hexed[8:12], hexed[12:16], hexed[16:20], hexed[20:]))


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    with shared_frontend(tmp_path_factory.mktemp("http")) as rig:
        yield rig


@pytest.fixture
def impatient(tmp_path):
    """Starts a front end of which one time limit passes within the test, and no other does on a busy machine."""
    started = []

    def impatient(limit):
        started.append(start_rig(tmp_path / "store", **{limit: 300}))
        return started[-1]

    yield impatient
    for rig in started:
        rig.store.gate.set()
        rig.frontend.stop()


@pytest.fixture
def rig(shared):
    with emptied(shared) as rig:
        yield rig


@pytest.mark.parametrize(
    ("content_type", "encoding", "body", "suffix", "staged"),
    [
        (NDJSON, None, LINES, "ndjson", None),
        ("application/x-ndjson; charset=utf-8", "gzip", gzip.compress(LINES), "ndjson.gz", None),
        (NDJSON, "zstd", zstd.compress(LINES), "ndjson.zst", None),
        ("application/json", None, b'\xef\xbb\xbf [{"a":1}]', "json", None),
        ("application/json", "gzip", gzip.compress(b'{"a":1}'), "json.gz", None),
        ("text/csv", "identity", b"a\n1\n", "csv", None),
        ("text/csv", "zstd", zstd.compress(b"a\n1\n"), "csv.zst", None),
        ("application/vnd.apache.parquet", None, parquet(), "parquet", None),
        ("application/vnd.apache.parquet", "gzip", gzip.compress(parquet()), "parquet", parquet()),
        ("application/vnd.apache.arrow.stream", None, arrow_stream(), "arrow", None),
        ("application/vnd.apache.arrow.stream", "zstd", zstd.compress(arrow_stream()), "arrow", arrow_stream()),
        ("application/vnd.apache.arrow.file", None, arrow_file(), "arrow", None),
    ],
)
def test_every_format_is_staged_as_it_came(rig, content_type, encoding, body, suffix, staged):
    headers = {"Content_Encoding": encoding} if encoding else {}
    answer = rig.post(body, content_type=content_type, **headers)
    assert answer.status == 202, answer.body
    batch_id = answer.json["batch_id"]
    assert rig.staged() == {f"{batch_id}.{suffix}": staged or body}
    assert answer.json == {
        "batch_id": batch_id,
        "table": "events",
        "status": "staged",
        "status_url": f"/v1/tables/events/batches/{batch_id}",
    }
    assert answer.headers["Location"] == answer.json["status_url"]


@pytest.mark.parametrize(
    ("status", "code", "body", "fields"),
    [
        (400, "invalid-request", b"", {}),
        (400, "invalid-request", b" \n\n", {}),
        (400, "invalid-request", b"[1]", {}),
        (400, "invalid-request", b'"text"', {"content_type": "application/json"}),
        (400, "invalid-request", b"PAR1 no", {"content_type": "application/vnd.apache.parquet"}),
        (400, "invalid-request", b"no arrow", {"content_type": "application/vnd.apache.arrow.stream"}),
        (400, "invalid-request", arrow_file()[:-3], {"content_type": "application/vnd.apache.arrow.file"}),
        (400, "invalid-request", LINES, {"Content_Encoding": "gzip"}),
        (400, "invalid-request", LINES, {"Content_Encoding": "zstd"}),
        (400, "invalid-request", gzip.compress(b"[1]"), {"Content_Encoding": "gzip"}),
        (400, "invalid-request", b"\x1f\x8b broken", {"Content_Encoding": "gzip"}),
        (400, "invalid-request", gzip.compress(parquet())[:-9],
         {"content_type": "application/vnd.apache.parquet", "Content_Encoding": "gzip"}),
        (400, "invalid-request", LINES, {"table": "No-Table"}),
        (400, "invalid-request", LINES, {"Idempotency_Key": "x" * 256}),
        (400, "invalid-request", LINES, {"Idempotency_Key": ""}),
        (404, "not-found", LINES, {"table": "nope"}),
        (409, "key-expired", LINES, {"Idempotency_Key": late_id(11 * MINUTE_MS)}),
        (400, "invalid-request", LINES, {"Idempotency_Key": late_id(-24 * 60 * MINUTE_MS)}),
        (413, "batch-too-large", b"{" * (2**20 + 1), {}),
        (413, "batch-too-large", gzip.compress(b"PAR1" * 2**20 + b"PAR1"),
         {"content_type": "application/vnd.apache.parquet", "Content_Encoding": "gzip"}),
        (415, "unsupported-media", LINES, {"content_type": "application/x-www-form-urlencoded"}),
        (415, "unsupported-media", LINES, {"content_type": ""}),
        (415, "unsupported-media", LINES, {"Content_Encoding": "br"}),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_with_a_problem_and_stages_nothing(rig, status, code, body, fields):
    answer = rig.post(body, **fields)
    assert (answer.status, answer.headers["content-type"]) == (status, "application/problem+json"), answer.body
    problem = answer.json
    assert (problem["type"], problem["status"]) == (f"urn:icedb:problem:{code}", status)
    assert problem["title"]
    assert problem["detail"]
    assert rig.staged() == {}


def test_paths_and_methods_that_are_not_there_are_problems_too(rig):
    missing = rig.call("GET", "/v1/nothing")
    assert (missing.status, missing.json["type"]) == (404, "urn:icedb:problem:not-found")
    assert "POST to /v1/tables/{table}/batches" in missing.json["detail"]
    wrong = rig.call("DELETE", "/v1/tables/events/batches")
    assert (wrong.status, set(wrong.headers["allow"].split(", "))) == (405, {"GET", "HEAD", "POST"})
    assert rig.segment({}, "/v1/charge").status == 404


def test_a_uuid7_key_is_the_batch_id_and_a_retry_is_the_same_batch(rig):
    batch_id = new_batch_id(CLOCK)
    for _ in range(2):
        answer = rig.post(LINES, Idempotency_Key=f'"{batch_id}"')
        assert (answer.status, answer.json["batch_id"]) == (202, batch_id)
    assert list(rig.staged()) == [f"{batch_id}.ndjson"]
    other = rig.post(b'{"a":3}', Idempotency_Key=batch_id)
    assert (other.status, other.json["type"]) == (422, "urn:icedb:problem:key-reused")
    assert other.json["batch_id"] == batch_id


@pytest.mark.parametrize("key", ["order 7 of shop #3", "uuid7"])
def test_one_key_from_twenty_threads_is_one_batch(rig, key):
    key = new_batch_id(CLOCK) if key == "uuid7" else f"{key} {CLOCK.new_id()}"
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: rig.post(LINES, Idempotency_Key=key), range(20)))
    assert {answer.status for answer in answers} == {202}
    (batch_id,) = {answer.json["batch_id"] for answer in answers}
    assert list(rig.staged()) == [f"{batch_id}.ndjson"]
    assert rig.post(b'{"a":3}', Idempotency_Key=key).status == 422


def test_a_key_that_is_known_to_be_staged_is_not_staged_again(rig):
    first = rig.post(LINES, Idempotency_Key="paid 12")
    record = rig.warehouse.table("events").paths.idempotency_key(hashlib.sha256(b"paid 12").hexdigest())
    wait_until(lambda: json.loads(rig.store.get(record).body)["staged"])
    (name,) = rig.staged()
    rig.store.delete([f"events/_icedb/staging/{name}"])  # a flush took it
    again = rig.post(LINES, Idempotency_Key="paid 12")
    assert (again.status, again.json["batch_id"]) == (202, first.json["batch_id"])
    assert rig.staged() == {}


def test_a_key_that_nobody_confirmed_is_too_old_after_the_window(rig):
    record = rig.warehouse.table("events").paths.idempotency_key(hashlib.sha256(b"lost").hexdigest())
    content = hashlib.sha256(LINES).hexdigest()
    old = late_id(8 * MINUTE_MS)
    rig.store.put(record, json.dumps({"batch_id": old, "content_sha256": content, "staged": False}).encode())
    answer = rig.post(LINES, Idempotency_Key="lost")
    assert (answer.status, answer.json["type"]) == (409, "urn:icedb:problem:key-expired")
    assert old in answer.json["detail"]
    assert rig.staged() == {}


def test_status_follows_a_batch(rig):
    good, bad = rig.post(LINES).json, rig.post(b'{"a":}\n').json
    assert rig.call("GET", good["status_url"]).json["status"] == "staged"
    paths = rig.warehouse.table("events").paths
    result = flush_table(
        Table.open(TableStore(rig.store, paths), clock=CLOCK, owner="test"), RowFileWriter(rig.store, CLOCK)
    )
    assert result.batch_count == 1
    assert rig.call("GET", good["status_url"]).json == {
        "batch_id": good["batch_id"],
        "table": "events",
        "status": "committed",
    }
    quarantined = rig.call("GET", bad["status_url"]).json
    assert (quarantined["status"], bool(quarantined["reason"])) == ("quarantined", True)
    unknown = rig.call("GET", f"/v1/tables/events/batches/{new_batch_id(CLOCK)}")
    assert (unknown.status, unknown.json["type"]) == (404, "urn:icedb:problem:not-found")
    assert rig.call("GET", "/v1/tables/events/batches/seven").status == 400
    assert rig.call("GET", f"/v1/tables/nope/batches/{new_batch_id(CLOCK)}").status == 404


def test_a_client_that_leaves_in_the_middle_of_a_body_stages_nothing(rig):
    before = rig.metric("icedb_frontend_batches_total", door="http", outcome="abandoned")
    with socket.create_connection(("127.0.0.1", rig.frontend.port)) as client:
        client.sendall(
            b"POST /v1/tables/events/batches HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-ndjson\r\n"
            b'Content-Length: 100\r\n\r\n{"a":1}\n'
        )
    wait_until(lambda: rig.metric("icedb_frontend_batches_total", door="http", outcome="abandoned") == before + 1)
    assert (rig.staged(), rig.store.put_count) == ({}, 0)
    wait_until(lambda: rig.metric("icedb_frontend_held_bytes") == 0)


@pytest.mark.parametrize("sent", [b"", b"POST /v1/tables/events/batches HT"])
def test_headers_that_do_not_come_close_the_connection(impatient, sent):
    rig = impatient("http_header_timeout_ms")
    with socket.create_connection(("127.0.0.1", rig.frontend.port)) as client:
        client.settimeout(LIMIT_S)
        with contextlib.suppress(ConnectionError):  # of a machine so busy that it was closed before
            client.sendall(sent)
        assert client.recv(100) == b""


def test_a_body_that_does_not_come_is_refused_in_time(impatient):
    rig = impatient("frontend_body_timeout_ms")
    with socket.create_connection(("127.0.0.1", rig.frontend.port)) as client:
        client.settimeout(LIMIT_S)
        client.sendall(
            b"POST /v1/tables/events/batches HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-ndjson\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n3\r\n{}\n\r\n"
        )
        received = b""
        while b"urn:icedb:problem:body-timeout" not in received:
            chunk = client.recv(65536)
            assert chunk, received
            received += chunk
    assert received.startswith(b"HTTP/1.1 408 ")
    assert rig.staged() == {}


def test_a_chunked_body_is_bounded_as_it_comes(rig):
    pieces = (b"{" * 65536 for _ in range(17))
    answer = rig.call("POST", "/v1/tables/events/batches", pieces, Content_Type=NDJSON)
    assert answer.status == 413
    small = rig.call("POST", "/v1/tables/events/batches", iter([b'{"a"', b":1}"]), Content_Type=NDJSON)
    assert small.status == 202
    assert list(rig.staged().values()) == [b'{"a":1}']


def test_a_store_that_is_slow_is_a_503_and_the_batch_may_be_sent_again(impatient):
    rig = impatient("frontend_ack_timeout_ms")
    rig.store.gate.clear()
    batch_id = new_batch_id(CLOCK)
    slow = rig.post(LINES, Idempotency_Key=batch_id)
    assert (slow.status, slow.headers["retry-after"], slow.json["batch_id"]) == (503, "1", batch_id)
    assert slow.json["type"] == "urn:icedb:problem:unavailable"
    rig.store.gate.set()
    wait_until(lambda: rig.post(LINES, Idempotency_Key=batch_id).status == 202)
    assert list(rig.staged()) == [f"{batch_id}.ndjson"]


def test_a_store_that_is_down_is_a_503(rig, monkeypatch):
    def fail(key, body):
        raise Unavailable("bucket b at http://10.0.0.7: cannot connect")

    monkeypatch.setattr(rig.store, "put_if_absent", fail)
    answer = rig.post(LINES)
    assert (answer.status, answer.json["type"]) == (503, "urn:icedb:problem:unavailable")
    assert b"10.0.0.7" not in answer.body  # senders may be anybody; the log has it
    assert "retry-after" in answer.headers
    wait_until(lambda: rig.metric("icedb_frontend_batches_total", door="http", outcome="unavailable") >= 1)


def test_a_bug_is_a_500_without_its_text(rig, monkeypatch):
    def fail(key, body):
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(rig.store, "put_if_absent", fail)
    answer = rig.post(LINES)
    assert (answer.status, answer.json["type"]) == (500, "urn:icedb:problem:failed")
    assert b"secret detail" not in answer.body


def test_pressure_there_and_back(rig):
    paths = rig.warehouse.table("events").paths
    assert rig.post(LINES).status == 202
    stop = Pressure("stop", 60.0, "801 log files: batches are refused from 800 on", 12_000)
    publish_pressure(TableStore(rig.store, paths), stop, clock=CLOCK)
    wait_until(lambda: rig.post(LINES).status == 429)
    before = len(rig.staged())
    refused = rig.post(LINES)
    assert (refused.headers["retry-after"], refused.json["retry_after_ms"]) == ("12", 12_000)
    assert "801 log files" in refused.json["detail"]
    assert rig.segment({"type": "track", "userId": "7"}).status == 429
    assert len(rig.staged()) == before
    # A large body is refused before it is read.
    with socket.create_connection(("127.0.0.1", rig.frontend.port)) as client:
        client.settimeout(LIMIT_S)
        client.sendall(
            b"POST /v1/tables/events/batches HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-ndjson\r\n"
            b"Content-Length: 1000000\r\nExpect: 100-continue\r\n\r\n"
        )
        assert client.recv(100).startswith(b"HTTP/1.1 429 ")
    publish_pressure(TableStore(rig.store, paths), Pressure(), clock=CLOCK)
    wait_until(lambda: rig.post(LINES).status == 202)
    wait_until(lambda: rig.metric("icedb_frontend_batches_total", door="http", outcome="overloaded") >= 2)


def test_a_halted_table_is_said_to_be_halted_before_anything_is_accepted(rig):
    paths = rig.warehouse.table("events").paths
    publish_trouble(TableStore(rig.store, paths), HALTED, "column 'ts' is BIGINT in the log", clock=CLOCK)
    wait_until(lambda: rig.post(LINES).status == 409)
    before = len(rig.staged())
    refused = rig.post(LINES)
    assert (refused.status, refused.json["type"]) == (409, "urn:icedb:problem:table-halted")
    assert "table events is halted" in refused.json["detail"]
    assert "column 'ts' is BIGINT in the log" in refused.json["detail"]
    assert "retry-after" not in refused.headers
    # Webhooks keep nothing after a 409: they are asked to come again, and told the same.
    event = rig.segment({"type": "track", "userId": "7"})
    assert (event.status, event.headers["retry-after"]) == (429, "60")
    assert "column 'ts' is BIGINT in the log" in event.json["detail"]
    assert len(rig.staged()) == before
    wait_until(lambda: rig.metric("icedb_frontend_batches_total", door="http", outcome="halted") >= 2)
    publish_pressure(TableStore(rig.store, paths), Pressure(), clock=CLOCK, ends_trouble=True)
    wait_until(lambda: rig.post(LINES).status == 202)


def test_a_sender_is_told_that_flushes_fail_and_its_batch_is_accepted(rig):
    paths = rig.warehouse.table("events").paths
    assert "warning" not in rig.post(LINES).json
    publish_trouble(TableStore(rig.store, paths), FAILING, "the engine is broken", clock=CLOCK)
    wait_until(lambda: "warning" in rig.post(LINES).json)
    accepted = rig.post(LINES)
    assert (accepted.status, accepted.json["status"]) == (202, "staged")
    assert accepted.json["warning"].startswith("table events takes batches, but its flushes fail, so that they wait: ")
    publish_pressure(TableStore(rig.store, paths), Pressure(), clock=CLOCK, ends_trouble=True)
    wait_until(lambda: "warning" not in rig.post(LINES).json)


def test_the_flush_is_woken_after_the_batch(rig):
    name = "woken"  # a table of its own: that of the other tests may still be woken for their last batch
    create_table(rig.warehouse.table(name), TableConfig.create(name=name))
    assert rig.post(LINES, table=name).status == 202
    wait_until(lambda: name in rig.woken)


def test_health_is_answered_on_this_port_too(rig):
    wait_until(lambda: rig.call("GET", "/readyz").status == 200)
    assert rig.call("GET", "/healthz").json == {"status": "ok", "checks": {"loop": "ok"}}


def test_i8_an_id_used_again_for_other_content_is_refused_in_whatever_format(rig):
    """Through the door, a flush of real Parquet files, and the door again: what was accepted is in the table."""
    paths = rig.warehouse.table("events").paths
    batch_id = new_batch_id(CLOCK)
    assert rig.post(b'{"a":1}\n', Idempotency_Key=batch_id).status == 202
    again = rig.post(b'[{"a":3}]', content_type="application/json", Idempotency_Key=batch_id)
    assert (again.status, again.json["type"]) == (422, "urn:icedb:problem:key-reused")
    assert rig.post(gzip.compress(b'{"a":1}\n'), Idempotency_Key=batch_id, Content_Encoding="gzip").status == 202
    writer = LocalEngine(rig.store, clock=CLOCK).writer
    for _ in range(2):
        flush_table(Table.open(TableStore(rig.store, paths), clock=CLOCK, owner="test"), writer)
    assert rig.post(b'{"a":4}\n', Idempotency_Key=batch_id).status == 422
    assert rig.staged() == {}
    # The client's own staging passes no door.
    stage_batch(TableStore(rig.store, paths), body=b'{"a":4}\n', staging_format="ndjson", batch_id=batch_id)
    result = flush_table(Table.open(TableStore(rig.store, paths), clock=CLOCK, owner="test"), writer)
    assert result.conflict_count == 1
    status = rig.call("GET", f"/v1/tables/events/batches/{batch_id}").json
    assert (status["status"], status["conflicts"]) == ("committed", 1)
    (entry,) = [entry for entry in list_quarantined(TableStore(rig.store, paths)) if entry.kind == "conflict"]
    assert rig.store.get(entry.payload_key).body == b'{"a":4}\n'
