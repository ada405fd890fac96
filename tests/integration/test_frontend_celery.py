"""The task icedb.ingest.enqueue: a real worker process, a real Redis, and an application that knows nothing of us."""

import base64
import gzip
import json
import signal
import urllib.request
from pathlib import Path

import pytest
from celery import Celery
from icedb_log.clock import SystemClock, make_uuid7_hex, new_batch_id
from icedb_log.ingest.pressure import Pressure, publish_pressure
from icedb_log.ingest.staging import list_all_staged, read_staged
from icedb_log.store.object_store import list_all
from icedb_log.store.table_store import TableStore
from icedb_log.store_settings import StoreSettings
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import TableConfig
from icedb_log.units import HOUR_MS
from icedb_service.redis_clients import open_redis
from kombu import Queue
from processes import free_port, running, service_env
from waiting import LIMIT_MS, LIMIT_S, wait_until

pytestmark = pytest.mark.redis

CLOCK = SystemClock()
TASK = "icedb.ingest.enqueue"
ROWS = [{"a": 1}, {"a": "zwei", "b": [1, {"c": None}]}]


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory):
    warehouse = StoreSettings(f"file://{tmp_path_factory.mktemp('celery')}").open()
    create_table(warehouse.table("events"), TableConfig.create(name="events"))
    return warehouse


@pytest.fixture(scope="module")
def metrics_port():
    return free_port()


@pytest.fixture(scope="module")
def env(redis, warehouse, metrics_port):
    return service_env(
        ICEDB_STORE=f"file://{warehouse.store.uri('x').rpartition('/')[0]}",
        ICEDB_REDIS_URL=redis.url,
        ICEDB_METRICS_PORT=metrics_port,
        ICEDB_ENQUEUE_THREADS=2,
    )


def running_worker(env, folder):
    return running(["-m", "icedb_ingest.frontend.celery_worker"], env, Path(folder), "worker.log")


@pytest.fixture(scope="module")
def foreign(redis):
    """What another team has: a broker's address, and the documentation."""
    app = Celery("shop", broker=redis.url, backend=redis.url, set_as_current=False)
    app.conf.task_queues = [Queue("enqueue")]
    yield app
    app.close()


@pytest.fixture
def staged(warehouse):
    """Return the staged batches, alone or in a group; none at the start of each test."""
    table = warehouse.table("events")

    def staged():
        found = list_all_staged(table).batches
        return {f"{batch.batch_id}.{batch.format}": read_staged(table.store, batch) for batch in found}

    table.store.delete([info.key for info in list_all(table.store, table.paths.staging_prefix).objects])
    return staged


@pytest.fixture(scope="module")
def worker(env, tmp_path_factory):
    with running_worker(env, tmp_path_factory.mktemp("worker")) as process:
        yield process


def send(foreign, **fields):
    return foreign.send_task(TASK, kwargs={"table": "events", **fields}, queue="enqueue")


def test_rows_text_and_bytes_are_staged_and_the_result_says_so(worker, foreign, staged, metrics_port, redis):
    ids = [new_batch_id(CLOCK) for _ in range(3)]
    packed = gzip.compress(b"a\n1\n", mtime=0)
    sent = [
        send(foreign, batch_id=ids[0], rows=ROWS),
        send(foreign, batch_id=ids[1], format="json", data='[{"a":1}]'),
        send(foreign, batch_id=ids[2], format="csv.gz", data_base64=base64.b64encode(packed).decode()),
    ]
    results = [each.get(timeout=LIMIT_S) for each in sent]
    assert [(result["outcome"], result["batch_id"], result["staged_as"]) for result in results] == [
        ("accepted", batch_id, batch_id) for batch_id in ids
    ]
    found = staged()
    assert found[f"{ids[1]}.json"] == b'[{"a":1}]'
    assert found[f"{ids[2]}.csv.gz"] == packed
    assert [json.loads(line) for line in found[f"{ids[0]}.ndjson"].splitlines()] == ROWS
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=LIMIT_S) as answer:
        assert 'icedb_frontend_batches_total{door="celery",outcome="accepted"} 3.0' in answer.read().decode()
    client = open_redis(redis.url, timeout_ms=LIMIT_MS)
    wait_until(lambda: client.llen("ingest") >= 1)  # the flush was woken
    client.close()


def test_a_message_that_is_sent_again_counts_once_also_when_it_waited_for_hours(worker, foreign, staged):
    hexed = make_uuid7_hex(CLOCK.now_ms() - 3 * HOUR_MS, 7)
    old = "-".join((hexed[:8], hexed[8:12], hexed[12:16], hexed[16:20], hexed[20:]))
    results = [send(foreign, batch_id=old, rows=ROWS).get(timeout=LIMIT_S) for _ in range(3)]
    (staged_as,) = {result["staged_as"] for result in results}
    # An id of three hours ago could no longer be told from a duplicate (I3): the batch got a fresh one, once.
    assert staged_as != old
    assert list(staged()) == [f"{staged_as}.ndjson"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "batch_id: Field required"),
        ({"batch_id": "seven", "rows": ROWS}, "batch_id"),
        ({"batch_id": None, "rows": ROWS}, "batch_id"),
        ({"table": "nope", "batch_id": "fresh", "rows": ROWS}, "does not exist"),
        ({"batch_id": "fresh"}, "exactly one of rows, data and data_base64"),
        ({"batch_id": "fresh", "rows": ROWS, "data": "{}"}, "exactly one of"),
        ({"batch_id": "fresh", "rows": [1]}, "rows.0"),
        ({"batch_id": "fresh", "rows": []}, "rows"),
        ({"batch_id": "fresh", "data": "[1]"}, "begins with '{'"),
        ({"batch_id": "fresh", "format": "parquet", "data": "x"}, "send it in data_base64"),
        ({"batch_id": "fresh", "format": "parquet", "data_base64": "?"}, "not Base64"),
        ({"batch_id": "fresh", "rows": ROWS, "tabel": "x"}, "tabel"),
    ],
)
def test_a_wrong_message_fails_with_a_clear_result(worker, foreign, staged, fields, words):
    fields = {key: new_batch_id(CLOCK) if value == "fresh" else value for key, value in fields.items()}
    sent = send(foreign, **fields)
    with pytest.raises(Exception, match=words.replace("{", r"\{")):
        sent.get(timeout=LIMIT_S)
    assert sent.state == "FAILURE"
    assert staged() == {}


def test_an_id_with_other_content_fails(worker, foreign, staged):
    batch_id = new_batch_id(CLOCK)
    send(foreign, batch_id=batch_id, rows=ROWS).get(timeout=LIMIT_S)
    with pytest.raises(Exception, match="other content"):
        send(foreign, batch_id=batch_id, rows=[{"a": 3}]).get(timeout=LIMIT_S)
    assert len(staged()) == 1


def test_positional_arguments_other_than_one_object_fail(worker, foreign, staged):
    message = {"table": "events", "batch_id": new_batch_id(CLOCK), "rows": ROWS}
    assert foreign.send_task(TASK, args=[message], queue="enqueue").get(timeout=LIMIT_S)["outcome"] == "accepted"
    with pytest.raises(Exception, match="takes keyword arguments"):
        foreign.send_task(TASK, args=["events", ROWS], queue="enqueue").get(timeout=LIMIT_S)


def test_no_message_is_lost_when_its_worker_stops_or_dies(env, foreign, warehouse, redis, staged, worker, tmp_path):
    """The message is the only copy: it waits out back-pressure, goes back at SIGTERM, and stays booked at SIGKILL."""
    wait_until(send(foreign).ready, "it answers, and so hears signals")
    worker.terminate()
    assert worker.wait(LIMIT_S) == 0
    client = open_redis(redis.url, timeout_ms=LIMIT_MS)
    paths = warehouse.table("events").paths
    env = env | {"ICEDB_METRICS_PORT": "0"}
    publish_pressure(TableStore(warehouse.store, paths), Pressure("stop", 60.0, "full", 1_000), clock=CLOCK)
    batch_id = new_batch_id(CLOCK)
    with running_worker(env, tmp_path) as process:
        sent = send(foreign, batch_id=batch_id, rows=ROWS)
        wait_until(lambda: client.hlen("icedb:enqueue:unacked") == 1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0
    assert (client.llen("enqueue"), client.hlen("icedb:enqueue:unacked")) == (1, 0)
    with running_worker(env, tmp_path) as process:
        wait_until(lambda: client.hlen("icedb:enqueue:unacked") == 1)
        process.kill()
        process.wait(LIMIT_S)
    # Still booked: kombu gives it to another worker after two minutes.
    assert client.hlen("icedb:enqueue:unacked") == 1
    assert sent.state not in ("SUCCESS", "FAILURE")
    assert client.hlen("unacked") == 0
    assert staged() == {}
    client.close()
