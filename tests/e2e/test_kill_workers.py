"""Workers die in the middle of their work, by ``kill -9``; supervision restarts them; every row is there once.

With Spark, and therefore a soak; ``make test`` kills workers without it, and much else, in ``test_chaos.py``.
"""

import psutil
import pytest
from icedb_local.demo_plan import DemoTable
from icedb_local.generator import EventGenerator, add_counts
from icedb_local.lake import Lake
from icedb_local.ports import answers_ok
from icedb_local.stack import LocalStack
from icedb_local.stack_layout import StackLayout, StackPorts
from icedb_local.table_health import find_leftovers
from icedb_log.clock import SystemClock
from icedb_log.errors import InvalidRequest, Unavailable
from icedb_log.ingest.quarantine import list_quarantined

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.soak]

TABLE = DemoTable("events", ("d=day(ts)",), ("event", "ts"))
PACE = {
    "ICEDB_FLUSH_INTERVAL_MS": "200",
    "ICEDB_FLUSH_MAX_BATCHES": "3",
    "ICEDB_MERGE_WAKE_COMMITS": "2",
    "ICEDB_MERGE_SWEEP_INTERVAL_MS": "1000",
    "ICEDB_LOCK_TTL_MS": "3000",
}


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("stack")
    layout = StackLayout(run_dir, "local", StackPorts(), PACE)
    with LocalStack(layout, choose_ports=lambda _: StackPorts.find_free()) as running:
        yield running


def task_child(stack, name):
    """The process that runs a worker's tasks: the child of its main process, not a helper of the JVM."""
    return next(
        child
        for child in stack.find_process(name).children()
        if "java" not in child.name() and f"icedb_{name}" in " ".join(child.cmdline())
    )


def find_java(stack, name):
    return next(child for child in stack.find_process(name).children(recursive=True) if "java" in child.name())


def test_every_row_once_whoever_is_killed(stack, wait_until):
    generator = EventGenerator(24_000, 48)
    per_day = {}
    with Lake(stack.layout, clock=SystemClock()) as lake:
        lake.create_table(TABLE, grace_ms=60_000, merge_fan_in=3)
        paths = lake.warehouse.table(TABLE.name).paths

        def commits():
            """Those that can be seen: what is merged goes after a minute, so that they become fewer."""
            return {info.key for info in lake.list_objects(paths.log_prefix)} - merges()

        def merges():
            return {info.key for info in lake.list_objects(paths.log_prefix) if "_m_" in info.key}

        def send(numbers):
            nonlocal per_day
            for number in numbers:
                batch = generator.make_batch(number)
                lake.client.enqueue(TABLE.name, batch.body)
                per_day = add_counts(per_day, batch.rows_per_day)

        send(range(12))
        wait_until(commits, what="a first commit")
        task_child(stack, "ingest").kill()  # the process in the middle of its flush
        send(range(12, 24))
        wait_until(merges, what="a first merge")
        merger = stack.find_process("merger")
        merger.kill()  # the whole worker; its child must not go on for ever, nor its JVM
        before = commits()
        send(range(24, 36))
        wait_until(lambda: commits() - before, what="a commit by the new ingest process")
        ingest = stack.find_process("ingest")
        ingest.kill()
        send(range(36, 48))
        wait_until(lambda: not lake.list_objects(paths.staging_prefix), what="all batches to be committed")
        wait_until(lambda: is_replaced(stack, "merger", merger), what="a new merger")
        wait_until(lambda: is_replaced(stack, "ingest", ingest), what="a new ingest worker")
        counted = count_days(lake)
        assert not list_quarantined(lake.warehouse.table(TABLE.name))
        assert counted == per_day
        assert sum(counted.values()) == 24_000
        lake.merge_fully(TABLE.name)
        assert count_days(lake) == per_day
        batches = lake.count_rows(lake.read_snapshot(TABLE.name), by=("upload",))
        assert batches == {(number,): 500 for number in range(48)}
        assert find_leftovers(lake.warehouse, TABLE.name, clock=SystemClock()).missing_data_files == 0


def is_replaced(stack, name, old):
    try:
        new = stack.find_process(name)
    except Unavailable:
        return False
    return new.pid != old.pid and new.is_running()


def count_days(lake):
    counts = lake.count_rows(lake.read_snapshot(TABLE.name), by=("d",))
    return {key[0]: count for key, count in counts.items()}


def test_a_worker_whose_jvm_died_is_replaced(stack, wait_until):
    ports = stack.layout.ports
    batch = EventGenerator(24_000, 48, seed=2).make_batch(0)
    with Lake(stack.layout, clock=SystemClock()) as lake:
        before = count_days(lake)
        wait_until(lambda: answers_ok(ports.ingest_metrics, "/readyz"), what="ingest's engine")
        find_java(stack, "ingest").kill()
        lake.client.enqueue(TABLE.name, batch.body)
        prefix = lake.warehouse.table(TABLE.name).paths.staging_prefix
        wait_until(lambda: not lake.list_objects(prefix), what="the batch to be committed")
        assert count_days(lake) == add_counts(before, batch.rows_per_day)
    wait_until(lambda: answers_ok(ports.merger_metrics, "/readyz"), what="merger's engine")
    # No JVM of a killed worker lives on: each worker has exactly one.
    jvms = [process for process in psutil.process_iter() if is_jvm_of(process, str(stack.layout.run_dir))]
    assert len(jvms) == 2


def is_jvm_of(process, run_dir):
    try:
        return "java" in process.name() and process.environ().get("ICEDB_RUN_DIR") == run_dir
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def test_a_second_stack_in_the_same_folder_is_refused(stack):
    other = StackLayout(stack.layout.run_dir, "local", StackPorts())
    with pytest.raises(InvalidRequest, match=r"a stack lives in .*source .*/env.*DATA="):
        LocalStack(other).start()


def test_a_service_that_cannot_start_is_named_with_its_last_words(tmp_path, find_processes):
    layout = StackLayout(tmp_path, "local", StackPorts(), {"ICEDB_FLUSH_LARGE_MB": "none"})
    stack = LocalStack(layout, choose_ports=lambda _: StackPorts.find_free())
    with pytest.raises(Unavailable, match=r"^ingest does not start.*ICEDB_FLUSH_LARGE_MB.*ingest\.log$"), stack:
        pass
    assert find_processes(tmp_path) == {}
