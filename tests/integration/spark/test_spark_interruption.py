"""Spark jobs that never end: interrupted by the time limit and by a lost lock, and the session is as good as before."""

import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from icedb_engine.jobs.flush_driver import FlushDriver
from icedb_engine.spark.spark_runner import SparkRunner
from icedb_engine.spark.spark_watch import WatchRules, count_tasks
from icedb_log.clock import SystemClock, new_batch_id
from icedb_log.errors import InvalidRequest, Unavailable
from icedb_log.jobs import FlushJob, StagedBatch
from icedb_log.phases import following
from icedb_log.store_settings import StoreSettings
from icedb_log.table.table_config import TableConfig
from icedb_service.redis_clients import LockLost
from waiting import wait_until

pytestmark = pytest.mark.spark

CLOCK = SystemClock()
WAIT_MS = 240_000
SLOTS = 2
ENDLESS = "select count(*) from range(0, 1000000000000, 1, 2) a cross join range(1000) b where a.id + b.id < 0"


def make_runner(spark, *, limit_ms=10**9, told=None, check_alive=None):
    rules = WatchRules(limit_ms, 0.02, ([] if told is None else told).append)
    return SparkRunner(spark, StoreSettings("file:///nowhere"), rules=rules, check_alive=check_alive)


def lose_when(condition):
    """Return the check of a run that loses its lock as soon as something is so."""

    def check_alive():
        if condition():
            raise LockLost("lock merge:events ran out")

    return check_alive


def require_free(spark):
    """All slots take a task at the same time, so none is held by what was interrupted; no job is left."""

    def echo(chunks):
        yield from chunks

    rows = spark.range(0, SLOTS, 1, SLOTS).mapInArrow(echo, schema="id BIGINT", barrier=True).collect()
    assert len(rows) == SLOTS
    tracker = spark.sparkContext.statusTracker()
    wait_until(lambda: list(tracker.getActiveJobsIds()) == [], "no job is left")


def is_computing(spark, task_count=SLOTS):
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    return any(stage and stage.numActiveTasks >= task_count for stage in stages)


@pytest.mark.parametrize(("is_users", "kind"), [(False, Unavailable), (True, InvalidRequest)])
def test_the_time_limit_ends_a_query_that_never_ends(spark, is_users, kind):
    told = []
    runner = make_runner(spark, limit_ms=500, told=told)
    expected = r"a query was stopped after 500 ms \(ICEDB_SPARK_JOB_LIMIT_MS\)"
    with pytest.raises(kind, match=expected), runner.watch("a query", is_users=is_users):
        spark.sql(ENDLESS).collect()
    assert told == ["time_limit"]
    require_free(spark)


def test_a_lost_lock_ends_a_query_that_never_ends(spark):
    told = []
    runner = make_runner(spark, told=told, check_alive=lose_when(lambda: is_computing(spark)))
    with pytest.raises(LockLost, match="ran out"), runner.job("a query"):
        spark.sql(ENDLESS).collect()
    assert told == ["stopped"]
    require_free(spark)


def test_a_python_task_that_never_ends_loses_its_process(spark, tmp_path):
    folder = str(tmp_path)

    def spin(chunks):
        import os  # noqa: PLC0415
        from pathlib import Path  # noqa: PLC0415

        for chunk in chunks:
            (Path(folder) / str(os.getpid())).touch()
            while True:
                pass
            yield chunk

    runner = make_runner(spark, check_alive=lose_when(lambda: len(list(tmp_path.iterdir())) == SLOTS))
    with pytest.raises(LockLost), runner.job("tasks in Python"):
        spark.range(0, SLOTS, 1, SLOTS).mapInArrow(spin, schema="id BIGINT").collect()
    deadline_ms = CLOCK.monotonic_ms() + WAIT_MS
    while any(Path("/proc", pid.name).exists() for pid in tmp_path.iterdir()):
        assert CLOCK.monotonic_ms() < deadline_ms, "a task is running that was interrupted"
        CLOCK.sleep_ms(20)
    require_free(spark)


def find_sql_processes():
    """Return the processes that run SQL of users now; a worker keeps one that has nothing to do."""
    found = {}
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if "icedb_engine.sql.child" in " ".join(child.cmdline()):
                found[child] = child.cpu_times().user
    CLOCK.sleep_ms(100)
    busy = []
    for child, before_s in found.items():
        with suppress(psutil.Error):
            busy += [child] if child.cpu_times().user > before_s else []
    return busy


@pytest.mark.soak  # what a flush does when it is stopped anywhere is tested without Spark
def test_an_insert_query_that_is_interrupted_leaves_its_batch_staged(spark, tmp_path):
    settings = StoreSettings(f"file://{tmp_path}/store")
    warehouse = settings.open()
    store, paths = warehouse.store, warehouse.table("events").paths
    query = "select sum(a.n + b.n) as n from _rows a, _rows b, _rows c, _rows d"
    config = TableConfig.create(name="events", source={"n": "BIGINT"}, declared={"n": "BIGINT"}, insert_query=query)
    batch_id = new_batch_id(CLOCK)
    key = paths.staging_key(batch_id=batch_id, staging_format="ndjson")
    store.put(key, b"".join(b'{"n": %d}\n' % number for number in range(12_000)))
    batch = StagedBatch(key, batch_id, "ndjson", store.head(key).size_bytes, 0)
    rules = WatchRules(interval_s=0.02, stuck_wait_ms=10**6)
    writer = FlushDriver(SparkRunner(spark, settings, rules=rules), clock=CLOCK)
    check = lose_when(lambda: len(find_sql_processes()) == 1)
    with pytest.raises(LockLost):
        writer.write_batches(
            FlushJob(
                paths=paths,
                config=config,
                schema={"n": "BIGINT"},
                batches=(batch,),
                commit_id="c0ffee",
                time_ms=1,
                check_alive=check,
            )
        )
    assert store.head(key).size_bytes == batch.size_bytes
    deadline_ms = CLOCK.monotonic_ms() + WAIT_MS
    while find_sql_processes():
        assert CLOCK.monotonic_ms() < deadline_ms, "a query is running whose task was interrupted"
        CLOCK.sleep_ms(20)
    require_free(spark)


STUCK = """
from icedb_log.errors import Fenced
from icedb_engine.spark.spark_session import SparkSettings, close_spark, is_session_alive, open_spark
from icedb_engine.spark.spark_watch import JobWatch, WatchRules

# What Spark tells people about its tasks is written so rarely that it says nothing of this one.
spark = open_spark(SparkSettings(master="local[1]"))
system = spark.sparkContext._jvm.java.lang.System

def check_alive():
    if system.getProperty("begun"):
        raise Fenced("another worker took over")

begin = "if(java_method('java.lang.System', 'setProperty', 'begun', string(id)) is null, id, id)"
inner = "aggregate(sequence(0, 100000), 0L, (a, y) -> a + y % 2)"
loop = f"select aggregate(sequence(0, 100000), {begin}, (a, x) -> a + {inner}) from range(1, 2)"
try:
    with JobWatch(spark, "a loop", rules=WatchRules(10**9, 0.02, stuck_wait_ms=500), check_alive=check_alive):
        spark.sql(loop).collect()
except Fenced as error:
    print(error)
print("alive" if is_session_alive(spark) else "dead")
close_spark(spark)
"""


@pytest.mark.soak
def test_a_task_that_heeds_no_interrupt_ends_with_its_jvm():
    done = subprocess.run([sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=WAIT_MS / 1000)
    assert done.stdout.splitlines()[-2:] == ["another worker took over", "dead"], done.stderr
    assert "spark tasks stuck" in done.stdout + done.stderr


def test_tasks_of_a_job_group_are_counted_and_gone_when_they_were_cancelled(spark):
    counts, group = [], None

    def count_and_stop():
        found = None if group is None else count_tasks(spark.sparkContext, group)
        if found is not None and found.running == SLOTS:
            counts.append(found)
            raise LockLost("lock merge:events ran out")

    with pytest.raises(LockLost), make_runner(spark, check_alive=count_and_stop).job("a query"):
        group = spark.sparkContext.getLocalProperty("spark.jobGroup.id")
        spark.sql(ENDLESS).collect()
    assert [found.running for found in counts] == [SLOTS]
    assert spark.sparkContext.getLocalProperty("spark.jobGroup.id") is None
    wait_until(lambda: count_tasks(spark.sparkContext, group).running == 0, "no task of it runs")
    require_free(spark)


def test_who_follows_a_job_is_told_how_many_of_its_tasks_have_ended(spark):
    told = []

    def one_ends_at_once(chunks):
        for chunk in chunks:
            while chunk.column(0)[0].as_py():
                time.sleep(0.01)
            yield chunk

    runner = make_runner(spark, check_alive=lose_when(lambda: ("merging groups", 1, 2) in told))
    with (
        following(lambda *how_far: told.append(how_far)),
        pytest.raises(LockLost),
        runner.watch("a merge", doing="merging groups"),
    ):
        spark.range(0, 2, 1, 2).mapInArrow(one_ends_at_once, schema="id BIGINT").collect()
    require_free(spark)


DYING = """
from types import SimpleNamespace
from icedb_log.errors import Unavailable
from icedb_log.store_settings import StoreSettings
from icedb_engine.spark import spark_engine
from pyspark import SparkContext

whole = spark_engine.warm_up

def kill_and_warm_up(spark):
    SparkContext._gateway.proc.kill()
    SparkContext._gateway.proc.wait()
    spark_engine.warm_up = whole
    whole(spark)

spark_engine.warm_up = kill_and_warm_up
settings = SimpleNamespace(
    spark_master="local[1]", spark_memory_mb=512, spark_options={}, spark_ui_port=0, task_memory_mb=64, job_limit_ms=10**9,
    store_settings=StoreSettings("file:///nowhere"),
)
try:
    spark_engine.open_spark_engine(settings, app_name="t")
except Unavailable:
    engine = spark_engine.open_spark_engine(settings, app_name="t")
    print(engine.spark.range(3).count())
    engine.close()
"""


@pytest.mark.soak
def test_a_jvm_that_dies_while_it_starts_is_replaced():
    done = subprocess.run([sys.executable, "-c", DYING], capture_output=True, text=True, timeout=WAIT_MS / 1000)
    assert done.stdout.splitlines()[-1:] == ["3"], done.stderr
