"""Services are stopped and started one after the other, and what they need goes away, under load.

Real processes of the local stack, over S3 and Redis. Whatever the order, no row is lost or doubled, and nothing halts.
"Light" workers are those of chaos, the services' own without Spark, whose JVMs take minutes to start on a busy machine.
"""

import dataclasses
import json
import random
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime

import pytest
from icedb_local.chaos.aftermath import look_at_the_end
from icedb_local.chaos.batches import BatchLedger
from icedb_local.chaos.chaos_layout import SCRATCH_USERS, Pace
from icedb_local.chaos.content_checker import ContentChecker
from icedb_local.chaos.load import Load
from icedb_local.containers.containers_run import SETTINGS, ContainersLayout
from icedb_local.lake import Lake
from icedb_local.stack import LocalStack
from icedb_local.stack_layout import LARGE, SERVERS, StackPorts
from icedb_local.supervisor_config import Program
from icedb_log.clock import SystemClock
from icedb_log.names import INGEST_FLUSH
from icedb_log.store.object_store import list_all
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import PartitionField, TableConfig
from processes import fetch
from waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(3600)]

CLOCK = SystemClock()
SEED = 20
PAUSE_S = 0.4
TABLES = ("events", "clicks")
IN_MEMORY = "s3"
"""The development server keeps objects in memory: it alone is not restarted."""
PACE = Pace(log_grace_ms=60_000, data_grace_ms=60_000, orphan_age_ms=3_600_000, read_timeout_ms=20_000)
POLICIES = {
    "sort": ("batch",),
    "merge_fan_in": 4,
    "target_file_bytes": 1024 * 1024,
    "log_grace_ms": PACE.log_grace_ms,
    "data_grace_ms": PACE.data_grace_ms,
    "orphan_age_ms": PACE.orphan_age_ms,
}
STOP_WAIT_S = 90
START_DEADLINE_MS = 900_000
"""A machine that does much else takes minutes to start several JVMs."""
WORKERS_TIME = {
    "ICEDB_SHUTDOWN_GRACE_MS": "60000",
    "ICEDB_SPARK_MASTER": "local[1]",
    "ICEDB_SPARK_MEMORY_MB": "512",
    "ICEDB_TASK_MEMORY_MB": "256",
    "ICEDB_BATCH_MAX_DECODED_MB": "64",
    # On a machine that does much else wake-ups that expire sooner pile up before whoever asks and waits.
    "ICEDB_MESSAGE_EXPIRY_MS": "60000",
}


@dataclass(frozen=True, slots=True)
class RestartLayout(ContainersLayout):
    """Some programs are left out, and workers may be light ones."""

    left_out: frozenset[str] = frozenset()
    engine: str = "spark"

    def programs(self) -> tuple[Program, ...]:
        programs = ContainersLayout.programs(self)
        return tuple(self._changed(each) for each in programs if each.name not in self.left_out)

    def _changed(self, program: Program) -> Program:
        program = dataclasses.replace(program, stop_wait_s=STOP_WAIT_S)
        if program.group == SERVERS or self.engine != "light" or program.name not in SCRATCH_USERS:
            return program
        command = (sys.executable, "-m", "icedb_local.chaos.light_worker", program.name)
        return dataclasses.replace(program, command=command)


class Restarts:
    """A running stack under load, and what became of it."""

    def __init__(self, stack, folder):
        self.stack = stack
        self.folder = folder
        self.layout = stack.layout
        self.ledger = BatchLedger()
        self.checker = ContentChecker(self.ledger, seed=SEED)
        self.exit_codes = []

    @property
    def services(self):
        return [name for name in self.stack.program_names if name != IN_MEMORY]

    def restart(self, name):
        self.exit_codes.append((name, self.stack.stop_program(name)))
        self.stack.start_program(name)

    @contextmanager
    def under_load(self):
        """Send to all tables, and read them; wait until all is done and judge every row, when the block has ended."""
        load = Load(self.layout, TABLES, self.ledger, self.checker, seed=SEED, pause_s=PAUSE_S, clock=CLOCK)
        with Lake(self.layout, clock=CLOCK) as lake, load.reading():
            with load.sending():
                load.wait_for_progress(what="to begin")
                yield
                load.wait_for_progress(what="at the end")
            load.wait_for_quiet(lake.warehouse, waits_for_orphans=False, say=lambda _: None)
            look_at_the_end(lake.warehouse, TABLES, self.layout.door_settings, self.checker, clock=CLOCK)
        assert self.checker.violations == ()
        states = [entry.state for entry in self.ledger.entries().values()]
        assert states.count("acknowledged") > 100
        assert self.checker.checked_rows > 1000
        log = (self.layout.run_dir / "logs" / "supervisord.log").read_text()
        assert "not expected" not in log, "a service ended by itself"

    def said(self, event, *, program="*"):
        """Yield what programs said in their logs of an event, and which program."""
        for path in self.layout.run_dir.glob(f"logs/{program}.log*"):
            for line in path.read_text(errors="replace").splitlines():
                if f'"{event}"' in line:
                    yield path.name.partition(".")[0], json.loads(line)

    def halts(self):
        """What services said of tables that halt: program, table, kind of error, words."""
        found = set()
        for program, said in self.said("table_halted"):
            error = said["error"]
            if isinstance(error, str):  # of the snapshot service
                error = {"kind": error, "message": said["reason"]}
            found.add((program, said["table"], error["kind"], error["message"]))
        return found

    def flushes_ms(self):
        """When flushes began that have ended, unix ms."""
        for _, said in self.said("task_ended", program="ingest"):
            if said["task"] == INGEST_FLUSH:
                ended = datetime.fromisoformat(said["timestamp"])
                yield round(ended.timestamp() * 1000) - said["duration_ms"]


@contextmanager
def running(folder, *, engine, has_console=False):
    """Run a stack; there is no light worker of large batches."""
    layout = RestartLayout(
        folder, "s3", StackPorts(), {**SETTINGS, **PACE.env, **WORKERS_TIME}, has_frontend=True,
        has_console=has_console, pace=PACE, left_out=frozenset((LARGE,) if engine == "light" else ()), engine=engine,
    )  # fmt: skip
    choose = {"choose_ports": lambda _: StackPorts.find_free(), "start_deadline_ms": START_DEADLINE_MS}
    with LocalStack(layout, **choose) as stack:
        yield Restarts(stack, folder)


def shuffled(names, seed):
    names = sorted(names)
    random.Random(seed).shuffle(names)
    return names


ENGINES = pytest.mark.parametrize(("engine", "seed"), [("light", 1), ("spark", 2)])


@ENGINES
def test_restarts_in_any_order_lose_nothing_and_halt_nothing(tmp_path, engine, seed):
    with running(tmp_path, engine=engine, has_console=True) as stack_run:
        warehouse = stack_run.layout.store_settings.open()
        for table in TABLES:
            partition = (PartitionField.parse("d=day(ts)"),) if table == "events" else ()
            create_table(warehouse.table(table), TableConfig.create(name=table, partition=partition, **POLICIES))
        with stack_run.under_load():
            for name in shuffled(stack_run.services, seed):
                stack_run.restart(name)
        assert {name for name, _ in stack_run.exit_codes} == {*stack_run.services}
        assert [each for each in stack_run.exit_codes if each[1] != 0] == []
        assert stack_run.halts() == set()


AWAY_MS = 60_000
BACK_WITHIN_MS = 10_000
NEED = {
    "redis": ("ingest", "merger", "janitor"),
    "s3": ("ingest", "merger", "janitor", "snapshot", "frontend", "gateway"),
}
"""Who is not ready while it is away."""


@pytest.mark.parametrize("engine", ["light", "spark"])
def test_a_minute_without_redis_or_the_store_costs_no_restart_and_ten_seconds(tmp_path, engine):
    """The whole stack; tests/integration/test_service_outages.py looks at single processes."""
    with running(tmp_path, engine=engine) as stack_run:
        stack, ports = stack_run.stack, stack_run.layout.ports
        warehouse = stack_run.layout.store_settings.open()
        for table in TABLES:
            create_table(warehouse.table(table), TableConfig.create(name=table, **POLICIES))

        def commits():
            logs = (warehouse.table(table).paths.log_prefix for table in TABLES)
            return {info.key for prefix in logs for info in list_all(warehouse.store, prefix).objects}

        processes = {name: stack.find_process(name) for name in stack_run.services if name != "redis"}
        with stack_run.under_load():
            for what, who in NEED.items():
                with away(stack, what):
                    ends_ms, unready = CLOCK.monotonic_ms() + AWAY_MS, set()
                    while CLOCK.monotonic_ms() < ends_ms or unready < {*who}:
                        assert CLOCK.monotonic_ms() < ends_ms + AWAY_MS, {*who} - unready
                        for name in who:
                            assert answers(ports.metrics_of(name), "/healthz"), f"{name} is alive without {what}"
                            unready |= set() if answers(ports.metrics_of(name), "/readyz") else {name}
                back_ms = CLOCK.now_ms()
                before = commits()
                wait_until(lambda before=before: commits() - before, f"a commit after {what} was away")
                wait_until(lambda back_ms=back_ms: any(each > back_ms for each in stack_run.flushes_ms()), "it ended")
                # How long a run takes says how busy the machine is.
                assert min(each for each in stack_run.flushes_ms() if each > back_ms) - back_ms < BACK_WITHIN_MS
                for name in who:
                    wait_until(lambda name=name: answers(ports.metrics_of(name), "/readyz"), f"{name} is ready again")
        assert {name: stack.find_process(name) for name in processes} == processes
        assert stack_run.halts() == set()


@contextmanager
def away(stack, what):
    """Take a server away in a block: Redis is ended and comes back empty; the store stands still."""
    if what == "redis":
        stack.kill_and_hold_down(what)
        try:
            yield
        finally:
            stack.start_program(what)
        return
    process = stack.find_process(what)
    process.suspend()
    try:
        yield
    finally:
        process.resume()


def answers(port, path):
    with suppress(OSError):  # it takes longer to say no than fetch waits
        return fetch(port, path)[0] == 200
    return False
