"""A large batch holds up nobody else: a real Redis, and a worker process for each of the two queues."""

import contextlib
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from icedb_client.wakeups import look_at_redis
from icedb_log.clock import SystemClock, new_batch_id
from icedb_log.ingest.staging import list_staged, stage_batch
from icedb_log.log.reader import LogReader
from icedb_log.names import INGEST_FLUSH, INGEST_LARGE_FLUSH, INGEST_SWEEP, WORKERS_KEY
from icedb_log.store.table_store import TableStore
from icedb_log.store_settings import StoreSettings
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import TableConfig
from icedb_log.units import MIB
from icedb_service.celery_app import make_app
from icedb_service.redis_clients import open_redis
from icedb_service.settings import ServiceSettings
from icedb_service.wakeup import Wakeups
from icedb_sim.rigs.redis_server import RedisServer
from icedb_sim.tables.row_files import encode_rows
from processes import service_env
from waiting import LIMIT_MS, LIMIT_S, wait_until

pytestmark = pytest.mark.redis

CLOCK = SystemClock()
PROGRAM = Path(__file__).parent / "sized_worker_process.py"
LARGE_MB = 1
PAD = "x" * LARGE_MB * MIB


class Warehouse:
    """Two tables, workers, and what they committed."""

    def __init__(self, folder, redis_url, stack):
        self.folder, self.url, self.stack = folder, redis_url, stack
        self.store = StoreSettings(f"file://{folder / 'warehouse'}")
        self.warehouse = self.store.open()
        settings = ServiceSettings(store=self.store.url, redis_url=redis_url)
        self.app = stack.enter_context(contextlib.closing(make_app(settings)))
        self.redis = stack.enter_context(contextlib.closing(open_redis(redis_url, timeout_ms=LIMIT_MS)))
        self.wakeups = Wakeups(self.app, self.redis, settings=settings)
        self.env = service_env(
            ICEDB_STORE=self.store.url,
            ICEDB_REDIS_URL=redis_url,
            ICEDB_FLUSH_INTERVAL_MS=0,
            ICEDB_LOCK_TTL_MS=LIMIT_MS,
            ICEDB_FLUSH_LARGE_MB=LARGE_MB,
        )
        for name in ("hit", "quiet"):
            create_table(self.warehouse.table(name), TableConfig.create(name=name))

    def start(self, queue):
        with (self.folder / f"{queue}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, str(PROGRAM), queue, str(self.folder / queue)],
                env=self.env, cwd=self.folder, stdout=log, stderr=log,
            )  # fmt: skip
        self.stack.callback(stop, process)
        return process

    def stage(self, table, rows, first=0):
        return self.stage_rows(table, [{"n": n} for n in range(first, first + rows)])

    def stage_large(self, table):
        return self.stage_rows(table, [{"n": 0, "text": PAD}])

    def stage_rows(self, table, rows):
        batch_id = new_batch_id(CLOCK)
        body = encode_rows(rows)
        paths = self.warehouse.table(table).paths
        stage_batch(TableStore(self.warehouse.store, paths), body=body, staging_format="ndjson", batch_id=batch_id)
        return batch_id

    def commits(self, table):
        """Return the batch ids of each commit of a table, in order."""
        reader = LogReader(self.warehouse.table(table), clock=CLOCK)
        return [file.log.batch_ids for file in reader.read().files]

    def staged(self, table):
        return [batch.batch_id for batch in list_staged(self.warehouse.table(table)).batches]

    def doing(self):
        return {each.queue: each.doing for each in look_at_redis(self.url, timeout_ms=LIMIT_MS).workers}

    def is_large_served(self):
        return "ingest-large" in self.doing()


def stop(process):
    process.terminate()
    try:
        process.wait(LIMIT_S)
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def lake(tmp_path):
    with RedisServer() as redis, contextlib.ExitStack() as stack:
        yield Warehouse(tmp_path, redis.url, stack)


def test_while_a_large_batch_of_a_table_is_written_batches_of_others_are_committed(lake):
    lake.start("ingest")
    lake.start("ingest-large")
    wait_until(lake.is_large_served, "the worker of large batches says that it is here")
    small = lake.stage("hit", 3)
    large = lake.stage_large("hit")
    lake.wakeups.wake(INGEST_FLUSH, "hit")
    wait_until((lake.folder / "ingest-large.begun").exists, "the large batch is being written")
    assert lake.commits("hit") == [(small,)], "it left the others of its table behind"
    wait_until(lambda: lake.doing() == {"ingest": (), "ingest-large": ((INGEST_LARGE_FLUSH, "hit"),)}, "workers say so")

    # Its worker holds the table now, and will until there is a file "go".
    for number in range(3):
        quiet = lake.stage("quiet", 5, first=5 * number)
        lake.wakeups.wake(INGEST_FLUSH, "quiet")
        wait_until(lambda quiet=quiet: (quiet,) in lake.commits("quiet"), "another table's batch is committed")
    waiting = lake.stage("hit", 2, first=200)
    lake.wakeups.wake(INGEST_FLUSH, "hit")
    assert lake.staged("hit") == [large, waiting]
    assert lake.commits("hit") == [(small,)]

    (lake.folder / "ingest-large.go").touch()
    wait_until(lambda: not lake.staged("hit"), "the rest of the table is committed")
    assert lake.commits("hit") == [(small,), (large,), (waiting,)], "the large one alone, and then what waited for it"


def test_without_a_worker_for_large_batches_they_are_committed_all_the_same_after_the_others(lake):
    lake.start("ingest")
    (lake.folder / "ingest.go").touch()
    large = sorted(lake.stage_large("hit") for _ in range(2))
    small = lake.stage("hit", 1)
    lake.wakeups.wake(INGEST_SWEEP)
    wait_until(lambda: not lake.staged("hit"), "everything is committed")
    assert lake.commits("hit") == [(small,), (large[0],), (large[1],)]
    assert lake.redis.llen("ingest-large") == 0, "nothing waits in a queue that nobody serves"


def test_a_worker_for_large_batches_that_ends_strands_none(lake):
    lake.env |= {"ICEDB_LOCK_TTL_MS": "3000", "ICEDB_REDIS_TIMEOUT_MS": "750"}
    lake.start("ingest")
    (lake.folder / "ingest.go").touch()
    helper = lake.start("ingest-large")
    wait_until(lake.is_large_served, "the worker of large batches says that it is here")
    large = lake.stage_large("hit")
    lake.wakeups.wake(INGEST_FLUSH, "hit")
    wait_until((lake.folder / "ingest-large.begun").exists, "the large batch is being written")
    family = [*psutil.Process(helper.pid).children(recursive=True), psutil.Process(helper.pid)]
    for process in family:
        process.kill()
    helper.wait()
    # A minute passes, in which it does not say so again.
    lake.redis.delete(WORKERS_KEY)

    def ask():
        lake.wakeups.try_wake(INGEST_SWEEP)
        return lake.commits("hit") == [(large,)]

    wait_until(ask, "the other worker takes it, when the lock of the dead one has run out")
