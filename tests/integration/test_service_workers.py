"""The three Celery workers and beat as processes, on a real Redis and a directory store, with Spark.

Starting a worker with Spark takes seconds, so that one stack serves all tests, each with tables of its own. Tests
that kill a worker start it again before they end.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import duckdb
import orjson
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from icedb_log.clock import SystemClock, new_batch_id
from icedb_log.ingest.staging import list_staged, stage_batch
from icedb_log.log.fold import fold
from icedb_log.log.reader import LogReader
from icedb_log.names import INGEST_FLUSH, INGEST_IMPORT, JANITOR_VACUUM, MERGE_MERGE
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
from waiting import wait_until

# Cold Spark on a machine that other tests use, too, takes its time: the bound is against a hang only.
# The end-to-end tests send rows through the same workers, and kill them.
pytestmark = [pytest.mark.soak, pytest.mark.redis, pytest.mark.spark]

CLOCK = SystemClock()
LIMIT_MS = 240_000
STOP_LIMIT_S = 120
GRACE_MS = 4000
ICEDB = (sys.executable, "-c", "from icedb.cli.app import main; main()")


class Process:
    """One service in a session of its own, as a supervisor starts it."""

    def __init__(self, module, env, folder):
        self.module = module
        self.env = env
        self.log = folder / f"{module}.log"
        self.folder = folder
        self.popen = None

    def start(self):
        with self.log.open("ab") as log:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", self.module],
                env=self.env,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
            )

    def family(self):
        """The parent, the pool's child, the JVM, and Spark's Python workers."""
        with contextlib.suppress(psutil.NoSuchProcess):
            parent = psutil.Process(self.popen.pid)
            return [parent, *parent.children(recursive=True)]
        return []

    def kill(self):
        family = self.family()
        self.popen.kill()
        self.popen.wait(STOP_LIMIT_S)
        wait_until(lambda: not any(is_running(each) for each in family), f"all of {self.module} is gone")

    def stop(self):
        """SIGTERM to the whole group, as Ctrl-C or a supervisor may send it."""
        family = self.family()
        if self.popen.poll() is None:
            os.killpg(self.popen.pid, signal.SIGTERM)
        code = self.popen.wait(STOP_LIMIT_S)
        wait_until(lambda: not any(is_running(each) for each in family), f"all of {self.module} is gone")
        return code

    def events(self):
        found = []
        for line in self.log.read_text().splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                found.append(json.loads(line))
        return found


def is_running(process):
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Stack:
    def __init__(self, folder, redis_server):
        redis_url = redis_server.url
        self.folder = folder
        self.redis_server = redis_server
        self.store = StoreSettings(f"file://{folder / 'warehouse'}")
        self.settings = ServiceSettings(store=self.store.url, redis_url=redis_url)
        self.warehouse = self.store.open()
        self.app = make_app(self.settings)
        self.redis = open_redis(redis_url, timeout_ms=1000)
        self.wakeups = Wakeups(self.app, self.redis, settings=self.settings)
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("ICEDB_")}
        env = inherited | {
            "ICEDB_STORE": self.store.url,
            "ICEDB_REDIS_URL": redis_url,
            "ICEDB_SPARK_MASTER": "local[2]",
            "ICEDB_SPARK_MEMORY_MB": "512",
            "ICEDB_FLUSH_INTERVAL_MS": "500",
            "ICEDB_MERGE_WAKE_COMMITS": "2",
            "ICEDB_INGEST_SWEEP_INTERVAL_MS": "1000",
            "ICEDB_MERGE_SWEEP_INTERVAL_MS": "2000",
            "ICEDB_JANITOR_SWEEP_INTERVAL_MS": "1000",
            "ICEDB_LOCK_TTL_MS": "3000",
            "TMPDIR": str(folder / "tmp"),
        }
        (folder / "tmp").mkdir()
        modules = ("icedb_ingest", "icedb_merger", "icedb_janitor", "icedb_service.beat")
        self.processes = {module: Process(module, env, folder) for module in modules}

    @property
    def ingest(self):
        return self.processes["icedb_ingest"]

    @property
    def merger(self):
        return self.processes["icedb_merger"]

    def close(self):
        for process in self.processes.values():
            if process.popen is not None and process.popen.poll() is None:
                process.kill()
        self.app.close()
        self.redis.close()


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    with RedisServer() as redis:
        stack = Stack(tmp_path_factory.mktemp("stack"), redis)
        try:
            for process in stack.processes.values():
                process.start()
            yield stack
        finally:
            stack.close()


class Table(TableStore):
    """A table, what was acknowledged for it, and what is in it."""

    def __init__(self, stack, name, **options):
        self.stack = stack
        self.store = stack.warehouse.store
        self.paths = stack.warehouse.table(name).paths
        self.reader = LogReader(TableStore(self.store, self.paths), clock=CLOCK)
        self.acknowledged = set()
        self.batch_ids = []
        options = {"partition": (PartitionField.parse("kind"),), "sort": ("n",), "merge_fan_in": 3} | options
        create_table(TableStore(self.store, self.paths), TableConfig.create(name=name, **options))

    def stage(self, batch_count, rows_per_batch=10, wake=True):
        for _ in range(batch_count):
            first = len(self.acknowledged)
            numbers = range(first, first + rows_per_batch)
            body = b"\n".join(orjson.dumps({"n": n, "kind": f"k{n % 2}", "text": "x" * (n % 50)}) for n in numbers)
            self.batch_ids.append(new_batch_id(CLOCK))
            stage_batch(
                TableStore(self.store, self.paths), body=body, staging_format="ndjson", batch_id=self.batch_ids[-1]
            )
            self.acknowledged.update(numbers)
            if wake:
                self.stack.wakeups.try_wake(INGEST_FLUSH, self.paths.name)

    def snapshot(self):
        return fold(self.reader.read())

    def numbers(self):
        """Every value of ``n`` in the live files, as an engine reads them; a list, so that doubles show."""
        files = [self.store.uri(marker.path) for marker in self.snapshot().live]
        if not files:
            return []
        rows = duckdb.sql(f"SELECT n FROM read_parquet({files!r}, union_by_name=true)").fetchall()
        return sorted(row[0] for row in rows)

    def data_keys(self):
        return {info.key for info in list_all(self.store, self.paths.data_prefix).objects}

    def unnamed_data(self):
        """Data files that no log file names: of a flush or merge that has not committed, or of one that was killed."""
        view = self.reader.read()
        return self.data_keys() - {marker.path for file in view.files for marker in file.log.markers}

    def wait_until_written(self, besides=frozenset()):
        """Wait for the moment between the first data file of a run and its commit; many partitions make it long."""
        wait_until(lambda: self.unnamed_data() - besides, f"a run on {self.paths.name} writes")

    def wait_until_committed(self):
        wait_until(
            lambda: not list_staged(TableStore(self.store, self.paths)).batches, f"{self.paths.name} is committed"
        )
        assert self.numbers() == sorted(self.acknowledged)


def run(stack, task, *args, **kwargs):
    """What the CLI does: send a task and wait for its result."""
    return stack.app.send_task(task, args=list(args), kwargs=kwargs, expires=LIMIT_MS / 1000).get(
        timeout=LIMIT_MS / 1000
    )


def test_staged_batches_are_committed_merged_and_cleaned_without_losing_a_row(stack):
    table = Table(stack, "flow", data_grace_ms=GRACE_MS, log_grace_ms=GRACE_MS)
    for _ in range(6):
        table.stage(4)
        wait_until(lambda: not list_staged(table).batches, "a flush")
    table.wait_until_committed()
    commits = [e for e in stack.ingest.events() if e.get("table") == "flow" and e.get("event") == "task_ended"]
    assert 0 < sum(e["commits"] for e in commits) < 24, "24 batches, each with a wake-up: many share a commit"
    wait_until(lambda: len(table.snapshot().live) <= 4, "merges bring the files of two partitions below the fan-in")
    assert table.numbers() == sorted(table.acknowledged)
    wait_until(
        lambda: table.data_keys() == {m.path for m in table.snapshot().live} and not table.snapshot().tombstoned_ms,
        "no dead object is left",
    )
    assert table.numbers() == sorted(table.acknowledged)


def test_batches_that_nobody_woke_the_worker_for_are_found_by_the_sweep(stack):
    table = Table(stack, "silent")
    table.stage(3, wake=False)
    table.wait_until_committed()


def test_redis_emptied_and_restarted_in_the_middle_loses_and_doubles_nothing(stack):
    table = Table(stack, "redis_lost", merge_fan_in=1000)
    table.stage(4)
    stack.redis.flushall()
    table.stage(4)
    wait_until(lambda: table.snapshot().live, "a commit")
    table.stage(4)
    stack.redis_server.stop()
    table.stage(4)  # acknowledged all the same; nobody is woken
    stack.redis_server.start()
    table.stage(4, wake=False)
    table.wait_until_committed()
    committed = [batch_id for file in table.reader.read().files for batch_id in file.log.batch_ids]
    assert sorted(committed) == sorted(table.batch_ids)


def test_a_caller_gets_the_result_of_a_task(stack):
    table = Table(stack, "asked", merge_fan_in=100)
    table.stage(1)
    table.wait_until_committed()
    table.stage(1)
    table.wait_until_committed()
    result = run(stack, MERGE_MERGE, "asked", full=True)
    assert (result["outcome"], result["files_in"], result["files_out"], result["rows"]) == ("done", 4, 2, 20)
    assert run(stack, MERGE_MERGE, "asked")["outcome"] == "idle"
    assert run(stack, JANITOR_VACUUM, "asked")["waiting"] > 0
    refused = run(stack, MERGE_MERGE, "../etc")
    assert (refused["outcome"], refused["error"]["kind"]) == ("refused", "InvalidRequest")
    assert run(stack, INGEST_FLUSH, "nowhere")["outcome"] in {"idle", "not_found"}


def test_a_bad_batch_is_quarantined_and_the_others_are_committed(stack):
    table = Table(stack, "mixed")
    bad = new_batch_id(CLOCK)
    stage_batch(table, body=b'{"n": 1, "ki', staging_format="ndjson", batch_id=bad)
    table.stage(2)
    table.wait_until_committed()
    quarantined = wait_until(lambda: list_all(table.store, table.paths.quarantine_prefix).objects, "quarantine")
    assert any(bad in info.key for info in quarantined)


def test_files_are_imported_by_the_worker_once_and_merge_with_the_others(stack):
    """Many small files, so that Spark tasks read their footers; the command is the one that people use."""
    table = Table(stack, "imports", merge_fan_in=100)
    table.stage(1)
    table.wait_until_committed()
    folder = stack.folder / "warehouse" / "incoming"
    (folder / "deep").mkdir(parents=True)
    for number in range(100):
        n = 1000 + number
        rows = pa.table({"n": pa.array([n], pa.int32()), "kind": [f"k{n % 2}"], "text": ["imported"]})
        pq.write_table(rows, folder / "deep" / f"{number}.parquet")
        table.acknowledged.add(n)
    (folder / "bad.parquet").write_bytes(b"this is no parquet file")
    result = run_cli(stack, "import", "imports", f"{folder}/**/*.parquet", code=1)
    assert {name: result[name] for name in ("files", "rows", "commits", "refused", "imported_before")} == {
        "files": 100, "rows": 100, "commits": 1, "refused": 1, "imported_before": 0,
    }  # fmt: skip
    assert table.numbers() == sorted(table.acknowledged)
    again = run(stack, INGEST_IMPORT, "imports", [f"file://{folder}/deep/"])
    assert (again["outcome"], again["imported_before"]) == ("idle", 100)
    assert run(stack, MERGE_MERGE, "imports", full=True)["rows"] == len(table.acknowledged)
    assert len(table.snapshot().live) == 2
    assert table.numbers() == sorted(table.acknowledged)
    secret = run(stack, INGEST_IMPORT, "imports", ["file:///etc/*.parquet"])
    assert (secret["outcome"], "ICEDB_IMPORT_SOURCES" in secret["error"]["message"]) == ("refused", True)


def run_cli(stack, *arguments, code):
    """What a person types; the answer as -o json gives it."""
    env = {**os.environ, "ICEDB_STORE": stack.store.url, "ICEDB_REDIS_URL": stack.settings.redis_url}
    done = subprocess.run([*ICEDB, *arguments, "-o", "json"], env=env, capture_output=True, timeout=LIMIT_MS / 1000)
    assert (done.returncode, bool(done.stdout)) == (code, True), done.stderr
    return json.loads(done.stdout)


MANY_PARTITIONS = (PartitionField.parse("b=bucket[24](n)"),)


def test_an_ingest_worker_killed_in_the_middle_of_a_flush_loses_and_doubles_nothing(stack):
    table = Table(stack, "ingest_killed", partition=MANY_PARTITIONS)
    table.stage(30, rows_per_batch=200)
    table.wait_until_written()
    stack.ingest.kill()
    assert list_staged(table).batches, "killed before the batches left staging"
    stack.ingest.start()
    table.stage(5)
    table.wait_until_committed()


def test_a_merger_killed_in_the_middle_of_a_merge_loses_and_doubles_nothing(stack):
    table = Table(stack, "merge_killed", partition=MANY_PARTITIONS, merge_fan_in=1000)
    for _ in range(2):
        table.stage(3, rows_per_batch=200)
        table.wait_until_committed()
    before = table.snapshot().snapshot_id
    stack.app.send_task(MERGE_MERGE, args=["merge_killed"], kwargs={"full": True}, ignore_result=True)
    table.wait_until_written()
    stack.merger.kill()
    assert table.snapshot().snapshot_id == before, "killed before its commit"
    stack.merger.start()
    table.stage(3)
    table.wait_until_committed()
    assert run(stack, MERGE_MERGE, "merge_killed", full=True)["outcome"] == "done"
    assert len(table.snapshot().live) == 24
    assert table.numbers() == sorted(table.acknowledged)


def test_a_terminated_worker_finishes_its_task_and_leaves_no_process(stack):
    table = Table(stack, "terminated", partition=MANY_PARTITIONS)
    table.stage(30, rows_per_batch=200)
    table.wait_until_written()
    before = len(stack.ingest.events())
    assert stack.ingest.stop() == 0
    ended = [e for e in stack.ingest.events()[before:] if e.get("table") == "terminated"]
    assert [e["outcome"] for e in ended if e["event"] == "task_ended"] == ["done"]
    waiting = len(list_staged(table).batches)
    numbers = table.numbers()
    assert len(numbers) == len(set(numbers)) == len(table.acknowledged) - 200 * waiting
    assert waiting < 30


def test_a_terminated_merger_finishes_its_merge_and_leaves_no_process(stack):
    table = Table(stack, "merger_terminated", partition=MANY_PARTITIONS, merge_fan_in=1000)
    fill(stack, table)
    stack.app.send_task(MERGE_MERGE, args=["merger_terminated"], kwargs={"full": True}, ignore_result=True)
    table.wait_until_written()
    before = len(stack.merger.events())
    assert stack.merger.stop() == 0
    ended = [e for e in stack.merger.events()[before:] if e.get("table") == "merger_terminated"]
    assert [e["outcome"] for e in ended if e["event"] == "task_ended"] == ["done"]
    assert len(table.snapshot().live) == 24
    assert table.numbers() == sorted(table.acknowledged)
    stack.merger.start()


def fill(stack, table):
    """Make data files that a merge can take, in many partitions; ingest may have been stopped by an earlier test."""
    if stack.ingest.popen.poll() is not None:
        stack.ingest.start()
    for _ in range(2):
        table.stage(3, rows_per_batch=200)
        table.wait_until_committed()


@pytest.mark.parametrize("name", ["icedb_ingest", "icedb_merger"])
def test_a_job_that_does_not_end_within_the_grace_period_is_given_up(stack, name):
    """Its JVM stands still, so that it cannot end; a supervisor's SIGKILL would come later than the worker's own end."""
    process = stack.processes[name]
    if process.popen.poll() is None:
        process.kill()
    usual, process.env = process.env, process.env | {"ICEDB_SHUTDOWN_GRACE_MS": "1000"}
    table = Table(stack, f"given_up_{name}", partition=MANY_PARTITIONS, merge_fan_in=1000)
    if process is stack.merger:
        fill(stack, table)
    known = table.data_keys()
    process.start()
    if process is stack.merger:
        stack.app.send_task(MERGE_MERGE, args=[table.paths.name], kwargs={"full": True}, ignore_result=True)
    else:
        table.stage(30, rows_per_batch=200)
    before = table.snapshot().snapshot_id
    table.wait_until_written(besides=known)
    family = process.family()
    (jvm,) = [each for each in family if each.name() == "java"]
    jvm.suspend()
    assert process.stop() == 1
    assert any(each.get("event") == "shutdown_forced" for each in process.events())
    assert table.snapshot().snapshot_id == before, "nothing of it is committed"
    process.env = usual
    process.start()
    table.wait_until_committed()
    if process is stack.merger:
        assert run(stack, MERGE_MERGE, table.paths.name, full=True)["outcome"] == "done"
        assert len(table.snapshot().live) == 24
    assert table.numbers() == sorted(table.acknowledged)


def test_no_service_wrote_a_traceback_or_left_a_file_behind(stack):
    for process in stack.processes.values():
        assert process is stack.ingest or process.stop() == 0, process.module
        # PySpark's own thread prints one when its JVM is killed, as the tests above do to ingest's.
        assert "Traceback" not in process.log.read_text() or process is stack.ingest, process.module
    assert {path.name for path in stack.folder.iterdir()} == {
        "warehouse", "tmp", *(process.log.name for process in stack.processes.values()),
    }  # fmt: skip
    assert isinstance(stack.folder, Path)
