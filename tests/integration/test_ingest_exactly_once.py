"""Every batch once (rules I1 to I5), with real processes that die at every step or know nothing of each other.

No Spark here: it would show nothing more and cost minutes. The worker with Spark dies in ``test_service_workers.py`` and in
``tests/e2e/test_kill_workers.py``. Rows and batch ids are compared exactly, in the data files and in the log.
"""

import gzip
import importlib.util
import os
import subprocess
import sys
import threading
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from icedb_client import Client
from icedb_engine.local_engine import LocalEngine
from icedb_log.clock import SystemClock, new_batch_id
from icedb_log.commit.table import Table
from icedb_log.errors import CommitConflict, Fenced, Unavailable
from icedb_log.ingest.flush import flush_table
from icedb_log.ingest.staging import list_staged, stage_batch
from icedb_log.log.fold import fold
from icedb_log.log.reader import LogReader
from icedb_log.names import INGEST_FLUSH
from icedb_log.store.object_store import list_all
from icedb_log.store.table_store import TableStore
from icedb_log.store_settings import StoreSettings
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import PartitionField, TableConfig
from icedb_service.celery_app import make_app
from icedb_service.redis_clients import open_redis
from icedb_service.settings import ServiceSettings
from icedb_service.wakeup import Wakeups
from icedb_sim.rigs.redis_server import RedisServer
from processes import service_env
from waiting import LIMIT_MS, LIMIT_S, wait_until

SCRIPT = Path(__file__).with_name("flush_process.py")
WORKER = Path(__file__).with_name("ingest_worker_process.py")
CLOCK = SystemClock()
THREADS = 20


@pytest.fixture(scope="module")
def flushes():
    """The module that the processes run, for flushes in this one."""
    spec = importlib.util.spec_from_file_location("flush_process", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TableUnderTest:
    """A table, and what was acknowledged for it: rows by batch id."""

    def __init__(self, warehouse, name="events"):
        self.warehouse = warehouse
        self.store = warehouse.store
        self.paths = warehouse.table(name).paths
        self.acknowledged = {}
        self.next_number = 0
        config = TableConfig.create(
            name=name, partition=(PartitionField.parse("kind"),), sort=("n",), on_bad_rows="quarantine_batch"
        )
        create_table(TableStore(self.store, self.paths), config)

    def make_rows(self, count=3):
        first, self.next_number = self.next_number, self.next_number + count
        return [{"n": n, "kind": f"k{n % 2}"} for n in range(first, first + count)]

    def stage(self, rows=None, *, batch_id=None, staging_format="ndjson"):
        rows = rows or self.make_rows()
        batch_id = batch_id or new_batch_id(CLOCK)
        body = b"\n".join(orjson.dumps(row) for row in rows)
        if staging_format == "ndjson.gz":
            body = gzip.compress(body, mtime=0)
        stage_batch(TableStore(self.store, self.paths), body=body, staging_format=staging_format, batch_id=batch_id)
        self.acknowledged[batch_id] = rows
        return batch_id

    def stage_bad(self):
        """Stage a batch that nobody can commit."""
        batch_id = new_batch_id(CLOCK)
        stage_batch(
            TableStore(self.store, self.paths), body=b'{"n": 1, "ki', staging_format="ndjson", batch_id=batch_id
        )
        return batch_id


def read_view(warehouse):
    return LogReader(warehouse.table("events"), clock=CLOCK).read()


def count_staged(warehouse):
    return len(list_staged(warehouse.table("events")).batches)


def require_exactly_once(warehouse, acknowledged):
    """Every acknowledged batch is committed once: its id in one log file, its rows in the live files, nothing else."""
    assert count_staged(warehouse) == 0
    view = read_view(warehouse)
    assert Counter(each for file in view.files for each in file.log.batch_ids) == Counter(acknowledged.keys())
    rows = Counter()
    for marker in fold(view).live:
        rows.update(read_rows(warehouse.store.get(marker.path).body))
    assert rows == Counter((row["n"], row["kind"]) for batch in acknowledged.values() for row in batch)


def read_rows(body):
    """The rows of a data file, of Parquet or of the lines that the data path without Spark writes."""
    if body.startswith(b"PAR1"):
        rows = pq.ParquetFile(pa.BufferReader(body)).read(["n", "kind"]).to_pylist()
    else:
        rows = [orjson.loads(line) for line in body.splitlines()]
    return [(row["n"], row["kind"]) for row in rows]


@pytest.fixture(scope="module")
def template(tmp_path_factory, flushes):
    """A table with batches that are committed, waiting, bad, and staged again after their commit."""
    folder = tmp_path_factory.mktemp("killed") / "template"
    table = TableUnderTest(StoreSettings(f"file://{folder}").open())
    committed = table.stage()
    flushes.flush_once(table.warehouse)
    table.stage()
    table.stage(table.acknowledged[committed], batch_id=committed)
    twice = table.stage(table.make_rows(1), staging_format="json")  # one object is a line, too
    table.stage(table.acknowledged[twice], batch_id=twice)
    bad = table.stage_bad()
    for _ in range(2):
        table.stage()
    return folder, table.acknowledged, bad


@pytest.mark.parametrize("how", ["steps", "moments"])
def test_a_killed_flush_loses_and_doubles_nothing(template, tmp_path, flushes, how):
    folder, acknowledged, bad = template
    (tmp_path / "template").symlink_to(folder)
    command = [sys.executable, str(SCRIPT), "kill", str(tmp_path), how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    kill_count = int(done.stdout)
    assert kill_count >= 30, "two commits make more calls than that"
    died_at = Counter()
    for number in range(1, kill_count + 1):
        warehouse = StoreSettings(f"file://{tmp_path / str(number)}").open()
        committed = {each for file in read_view(warehouse).files for each in file.log.batch_ids}
        died_at[len(committed), count_staged(warehouse)] += 1
        flushes.flush_to_the_end(warehouse)
        require_exactly_once(warehouse, acknowledged)
        names = [
            info.key for info in list_all(warehouse.store, warehouse.table("events").paths.quarantine_prefix).objects
        ]
        assert {bad in name for name in names} == {True}
        assert flushes.flush_once(warehouse).committed_key is None
    if how == "steps":
        assert died_at[1, 7] > 5, "before anything"
        assert len({committed for committed, _ in died_at}) >= 3, "between commits"
        assert len(died_at) >= 7, "between the commit and the cleaning, and in the middle of it"


@pytest.mark.s3
def test_flush_workers_without_a_lock_on_s3(s3_server, tmp_path):
    settings = StoreSettings(f"s3://{s3_server.bucket}/unlocked", s3_server.options)
    run_without_lock(settings, 2, tmp_path, batch_count=16)


def test_flush_workers_without_a_lock_on_a_directory(tmp_path):
    run_without_lock(StoreSettings(f"file://{tmp_path}/store"), 3, tmp_path, batch_count=90)


def run_without_lock(settings, worker_count, folder, *, batch_count):
    """Flush by so many processes until two of them have met."""
    met = folder / "met"
    met.mkdir()
    table = TableUnderTest(settings.open())
    env = os.environ | ({"ICEDB_S3_ENDPOINT": settings.s3.endpoint_url} if settings.s3 else {})
    command = [sys.executable, str(SCRIPT), "loop", settings.url, "events", str(met)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    workers = [subprocess.Popen(command, env=env, **pipes) for _ in range(worker_count)]

    def commit_some():
        for _ in range(batch_count):
            table.stage()
        wait_until(lambda: count_staged(table.warehouse) == 0)
        return any(met.iterdir())

    try:
        assert [worker.stdout.readline() for worker in workers] == ["ready\n"] * worker_count
        wait_until(commit_some, "they meet")
        for worker in workers:
            worker.communicate("stop\n", timeout=LIMIT_S)
        assert [worker.returncode for worker in workers] == [0] * worker_count
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    require_exactly_once(table.warehouse, table.acknowledged)


def flush_without_spark(settings):
    warehouse = settings.open()
    writer = LocalEngine(warehouse.store).writer
    paths = warehouse.table("events").paths
    return flush_table(Table.open(TableStore(warehouse.store, paths), clock=CLOCK, owner="test"), writer)


def test_a_batch_sent_twenty_times_at_once_is_committed_once(tmp_path):
    settings = StoreSettings(f"file://{tmp_path}")
    table = TableUnderTest(settings.open())
    batches = {new_batch_id(CLOCK): table.make_rows() for _ in range(6)}
    errors = []
    is_over = threading.Event()
    barrier = threading.Barrier(THREADS)

    def send(number, client):
        for place, (batch_id, rows) in enumerate(batches.items()):
            barrier.wait(LIMIT_S)
            if place % 2 == 0 or number % 2 == 0:
                client.enqueue("events", rows, batch_id=batch_id)
            else:  # the same batch by another door, in another format
                table.stage(rows, batch_id=batch_id, staging_format="ndjson.gz")

    def flush():
        while not is_over.wait(0.001):
            try:
                flush_without_spark(settings)
            except (Fenced, CommitConflict, Unavailable):
                continue

    def guarded(function, *args):
        try:
            function(*args)
        except BaseException as error:
            barrier.abort()
            errors.append(error)

    with Client(store=settings.url) as client:
        senders = [threading.Thread(target=guarded, args=(send, number, client)) for number in range(THREADS)]
        flushers = [threading.Thread(target=guarded, args=(flush,)) for _ in range(2)]
        for thread in (*flushers, *senders):
            thread.start()
        for thread in senders:
            thread.join(LIMIT_S)
        is_over.set()
        for thread in flushers:
            thread.join(LIMIT_S)
    assert errors == []
    while flush_without_spark(settings).has_more:
        pass
    require_exactly_once(table.warehouse, batches)


@contextmanager
def running_workers(folder, settings, how):
    """Two ingest workers without Spark on one table; yield the file in which they say what they do."""
    marks = folder / "marks"
    marks.touch()
    command = [sys.executable, str(WORKER), str(marks), how]
    env = service_env(ICEDB_STORE=settings.store, ICEDB_REDIS_URL=settings.redis_url)
    with (folder / "log").open("wb") as log:
        workers = [subprocess.Popen(command, env=env, stdout=log, stderr=log) for _ in range(2)]
    try:
        wait_until(lambda: (folder / "log").read_text().count('"engine_opened"') == 2, f"see {folder / 'log'}")
        yield marks
        for worker in workers:
            worker.terminate()
        assert [worker.wait(LIMIT_S) for worker in workers] == [0, 0], (folder / "log").read_text()
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


@pytest.mark.redis
@pytest.mark.parametrize("how", ["early", "late"])
def test_a_broker_that_redelivers_while_the_flush_runs_is_harmless(tmp_path, how):
    with RedisServer() as redis:
        settings = ServiceSettings(store=f"file://{tmp_path / 'store'}", redis_url=redis.url)
        table = TableUnderTest(settings.store_settings.open())
        app, client = make_app(settings), open_redis(redis.url, timeout_ms=LIMIT_MS)
        wakeups = Wakeups(app, client, settings=settings)
        with running_workers(tmp_path, settings, how) as marks:
            for _ in range(5):
                table.stage()
            wakeups.wake(INGEST_FLUSH, "events")
            wait_until(lambda: count_staged(table.warehouse) == 0, f"see {tmp_path / 'log'}")
        app.close()
        client.close()
    happened = [line.split()[0] for line in marks.read_text().splitlines()]
    if how == "early":
        assert happened == ["begin", "end"], "acknowledged before it runs: nothing is left to be delivered again"
    else:
        assert happened[:2] == ["begin", "begin"], "one message, two runs at once"
    require_exactly_once(table.warehouse, table.acknowledged)
