"""Services are stopped and started one after the other, under load: as they are, and by the next release.

Real processes of the local stack, over S3 and Redis. Whatever the order, no row is lost or doubled; restarts halt
nothing, and an upgrade halts only what needs a person, and says so. Releases before are built from their commit, and
have an environment of their own: the package index is asked for what they need. "Light" workers are those of chaos,
the services' own without Spark, whose JVMs take minutes to start on a busy machine; SQL of Spark's dialect needs it.
"""

import dataclasses
import importlib.util
import json
import os
import random
import subprocess
import sys
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest
from icedb_local.background import running_together
from icedb_local.chaos.aftermath import look_at_the_end
from icedb_local.chaos.batches import BatchLedger
from icedb_local.chaos.chaos_layout import SCRATCH_USERS, Pace
from icedb_local.chaos.chaos_producers import ChaosProducer, make_staging_door
from icedb_local.chaos.content_checker import ContentChecker
from icedb_local.chaos.load import Load
from icedb_local.containers.containers_run import JANITOR, SETTINGS, UPGRADE_ORDER, ContainersLayout
from icedb_local.lake import Lake
from icedb_local.stack import LocalStack
from icedb_local.stack_layout import LARGE, SERVERS, StackPorts
from icedb_local.supervisor_config import Program
from icedb_log.clock import SystemClock
from icedb_log.errors import TableHalted, Unavailable
from icedb_log.names import INGEST_FLUSH
from icedb_log.store.object_store import list_all
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import PartitionField, TableConfig
from processes import fetch
from waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(3600)]

ROOT = Path(__file__).parents[2]
CLOCK = SystemClock()
SEED = 20
PAUSE_S = 0.4
TABLES = ("events", "clicks")
SPOKEN = "spoken"
"""A table whose insert_query is of Spark's dialect: it takes a person after the upgrade."""
SOURCE = {"ts": "TIMESTAMP", "batch": "BIGINT", "row": "BIGINT", "value": "BIGINT", "note": "VARCHAR"}
IN_SPARK = "SELECT ts, batch, `row`, value, note FROM _rows"
IN_DUCKDB = 'SELECT ts, batch, "row", "value", note FROM _rows'
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
CREATE = """
import json, os, sys
from icedb_log.storage.stores import S3Options, StoreSettings
from icedb_log.tables.stored_config import create_table
from icedb_log.tables.table_config import PartitionField, TableConfig
s3 = S3Options(endpoint_url=os.environ["ICEDB_S3_ENDPOINT"], region=os.environ["ICEDB_S3_REGION"])
warehouse = StoreSettings(os.environ["ICEDB_STORE"], s3).open()
for fields in json.load(sys.stdin):
    fields["partition"] = tuple(map(PartitionField.parse, fields.get("partition", ())))
    fields["sort"] = tuple(fields["sort"])
    config = TableConfig.create(**fields)
    create_table(warehouse.store, warehouse.table(config.name), config)
"""
"""What a program of release 0.1.0 does."""


class EarlierPorts(StackPorts):
    """Ports of a stack whose gateway may be of a release that has no Iceberg catalog."""

    def of(self, program):
        return {name: port for name, port in StackPorts.of(self, program).items() if name != "gateway_iceberg"}


@dataclass(frozen=True, slots=True)
class RollingLayout(ContainersLayout):
    """Each service runs in the environment that a link of its name points to when it starts."""

    left_out: frozenset[str] = frozenset()
    engine: str = "spark"

    def programs(self) -> tuple[Program, ...]:
        programs = ContainersLayout.programs(self)
        return tuple(self._linked(each) for each in programs if each.name not in self.left_out)

    def release_of(self, name: str) -> Path:
        return self.run_dir / "releases" / name

    def _linked(self, program: Program) -> Program:
        program = dataclasses.replace(program, stop_wait_s=STOP_WAIT_S)
        if program.group == SERVERS:
            return program
        is_light = self.engine == "light" and program.name in SCRATCH_USERS
        command = ("-m", "icedb_local.chaos.light_worker", program.name) if is_light else program.command[1:]
        script = f'export PYSPARK_PYTHON="$(readlink {self.release_of(program.name)})/bin/python"; exec "$PYSPARK_PYTHON" "$@"'
        return dataclasses.replace(program, command=("/bin/sh", "-c", script, program.name, *command))


class Rolling:
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

    def use(self, name, environment):
        """Have a service start in another environment from now on."""
        link = self.layout.release_of(name)
        link.unlink(missing_ok=True)
        link.symlink_to(environment)

    def stop(self, name):
        self.exit_codes.append((name, self.stack.stop_program(name)))

    def restart(self, name, environment=None):
        self.stop(name)
        if environment is not None:
            self.use(name, environment)
        self.stack.start_program(name)

    def load(self, tables):
        return Load(self.layout, tables, self.ledger, self.checker, seed=SEED, pause_s=PAUSE_S, clock=CLOCK)

    @contextmanager
    def under_load(self, *, slow_table=None):
        """Send to all tables, and read them; wait until all is done and judge every row, when the block has ended."""
        everything = (*TABLES, slow_table) if slow_table else TABLES
        reading, sending = self.load(everything), self.load(TABLES)
        with Lake(self.layout, clock=CLOCK) as lake, reading.reading(), ExitStack() as exits:
            exits.enter_context(sending.sending())
            if slow_table:  # a producer of its own: whoever waits for this table keeps no other from being sent to
                exits.enter_context(running_together([self.producer(lake.client, slow_table)]))
            sending.wait_for_progress(what="to begin")
            yield sending
            sending.wait_for_progress(what="at the end")
            exits.close()
            reading.wait_for_quiet(lake.warehouse, waits_for_orphans=False, say=lambda _: None)
            look_at_the_end(lake.warehouse, everything, self.layout.door_settings, self.checker, clock=CLOCK)
        assert self.checker.violations == ()
        states = [entry.state for entry in self.ledger.entries().values()]
        assert states.count("acknowledged") > 100
        assert self.checker.checked_rows > 1000
        log = (self.layout.run_dir / "logs" / "supervisord.log").read_text()
        assert "not expected" not in log, "a service ended by itself"

    def producer(self, client, table):
        return ChaosProducer(
            "slow",
            make_patient_door(client),
            ledger=self.ledger,
            checker=self.checker,
            tables=(table,),
            retry_ms=PACE.log_grace_ms // 4,
            pause_s=PAUSE_S,
            seed=SEED,
            clock=CLOCK,
        )

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

    def alter(self):
        """Do what a person does whose query is of Spark's dialect."""
        icedb = Path(sys.executable).with_name("icedb")
        command = [icedb, "table", "alter", SPOKEN, "--insert-query", IN_DUCKDB, "--check-timeout", "10m"]
        env = {**os.environ, **self.layout.client_env(), "ICEDB_MESSAGE_EXPIRY_MS": "600000"}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def make_patient_door(client):
    """The client's own door, of a producer that tries again while a table is halted."""
    send = make_staging_door(client)

    def send_once(entry, body):
        try:
            send(entry, body)
        except TableHalted as error:
            raise Unavailable(str(error)) from error

    return send_once


@contextmanager
def running(folder, environment, *, engine, ports=StackPorts, has_console=False):
    """Run a stack whose services are those of an environment; there is no light worker of large batches."""
    folder.mkdir(parents=True, exist_ok=True)
    left_out = frozenset((LARGE,)) if engine == "light" or ports is EarlierPorts else frozenset()
    layout = RollingLayout(
        folder, "s3", ports(), {**SETTINGS, **PACE.env, **WORKERS_TIME}, has_frontend=True, has_console=has_console,
        pace=PACE, left_out=left_out, engine=engine,
    )  # fmt: skip
    (folder / "releases").mkdir()
    for program in layout.programs():
        layout.release_of(program.name).symlink_to(environment)
    choose = {"choose_ports": lambda _: ports.find_free(), "start_deadline_ms": START_DEADLINE_MS}
    with LocalStack(layout, **choose) as stack:
        yield Rolling(stack, folder)


@pytest.fixture(scope="session")
def released(tmp_path_factory):
    """An environment with the last release, built from its commit."""
    spec = importlib.util.spec_from_file_location("build_release", ROOT / "deploy" / "build_release.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    folder, uv = tmp_path_factory.mktemp("released"), Path(sys.executable).with_name("uv")
    release = list(module.read_releases().values())[-1]
    wheels = module.build_release(release, folder / "dist")
    module.extract_commit(release.commit, folder / "sources")
    del sys.modules[spec.name]
    python = folder / "env" / "bin" / "python"
    constraints = folder / "dist" / "constraints.txt"
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, folder / "env"], check=True)
    subprocess.run(
        [uv, "pip", "install", "--quiet", "--python", python, "--constraints", constraints, *wheels], check=True
    )
    (site,) = (folder / "env").glob("lib/python*/site-packages")
    (site / "light_workers.pth").write_text(f"{folder / 'sources' / 'deploy' / 'local' / 'src'}\n")
    return folder / "env"


def shuffled(names, seed):
    names = sorted(names)
    random.Random(seed).shuffle(names)
    return names


ENGINES = pytest.mark.parametrize(("engine", "seed"), [("light", 1), ("spark", 2)])


@ENGINES
def test_restarts_in_any_order_lose_nothing_and_halt_nothing(tmp_path, engine, seed):
    with running(tmp_path, sys.prefix, engine=engine, has_console=True) as rolling:
        warehouse = rolling.layout.store_settings.open()
        for table in TABLES:
            partition = (PartitionField.parse("d=day(ts)"),) if table == "events" else ()
            create_table(warehouse.table(table), TableConfig.create(name=table, partition=partition, **POLICIES))
        with rolling.under_load():
            for name in shuffled(rolling.services, seed):
                rolling.restart(name)
        assert {name for name, _ in rolling.exit_codes} == {*rolling.services}
        assert [each for each in rolling.exit_codes if each[1] != 0] == []
        assert rolling.halts() == set()


@contextmanager
def released_stack(folder, released, *, engine):
    """A stack of the last release, with tables that it has made; what it does not have is left out."""
    with running(folder, released, engine=engine, ports=EarlierPorts) as rolling:
        tables = [{"name": "events", "partition": ["d=day(ts)"], **POLICIES}, {"name": "clicks", **POLICIES}]
        if engine == "spark":
            tables.append({"name": SPOKEN, "source": SOURCE, "insert_query": IN_SPARK, **POLICIES})
        env = {**os.environ, **rolling.layout.client_env()}
        subprocess.run(
            [released / "bin" / "python", "-c", CREATE], input=json.dumps(tables), env=env, text=True, check=True
        )
        yield rolling


def test_an_upgrade_in_the_documented_order_halts_only_what_takes_a_person(tmp_path, released):
    with released_stack(tmp_path, released, engine="spark") as rolling:
        with rolling.under_load(slow_table=SPOKEN) as load:
            load.wait_for_progress(what="before the upgrade")
            rolling.stop(JANITOR)
            for name in (name for wave in UPGRADE_ORDER for name in wave if name in rolling.services):
                rolling.restart(name, sys.prefix)
            rolling.use(JANITOR, sys.prefix)
            rolling.stack.start_program(JANITOR)
            load.wait_for_progress(what="after the upgrade")
            halts = rolling.halts()
            rolling.alter()
        assert {table for _, table, _, _ in halts} == {SPOKEN}
        assert all("written for Spark's SQL" in words and "icedb table alter spoken" in words for *_, words in halts)
        assert {table for _, table, _, _ in rolling.halts()} == {SPOKEN}


@ENGINES
def test_an_upgrade_in_any_other_order_loses_nothing_and_says_why_it_halts(tmp_path, released, engine, seed):
    """The person does not wait either: the query is given anew as soon as there is a worker that can try it."""
    slow_table = SPOKEN if engine == "spark" else None
    with released_stack(tmp_path, released, engine=engine) as rolling:
        with rolling.under_load(slow_table=slow_table) as load:
            load.wait_for_progress(what="before the upgrade")
            for name in shuffled(set(rolling.services) - {"redis"}, seed):
                rolling.restart(name, sys.prefix)
                if name == "ingest" and slow_table:
                    rolling.alter()
                load.wait_for_progress(what=f"after {name}")
        assert {table for _, table, _, _ in rolling.halts()} <= {slow_table}
        for _, _, kind, words in rolling.halts():
            assert "written for Spark's SQL" in words or (kind == "UnsupportedFormat" and "upgrade" in words), words


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
    with running(tmp_path, sys.prefix, engine=engine) as rolling:
        stack, ports = rolling.stack, rolling.layout.ports
        warehouse = rolling.layout.store_settings.open()
        for table in TABLES:
            create_table(warehouse.table(table), TableConfig.create(name=table, **POLICIES))

        def commits():
            logs = (warehouse.table(table).paths.log_prefix for table in TABLES)
            return {info.key for prefix in logs for info in list_all(warehouse.store, prefix).objects}

        processes = {name: stack.find_process(name) for name in rolling.services if name != "redis"}
        with rolling.under_load():
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
                wait_until(lambda back_ms=back_ms: any(each > back_ms for each in rolling.flushes_ms()), "it ended")
                # How long a run takes says how busy the machine is.
                assert min(each for each in rolling.flushes_ms() if each > back_ms) - back_ms < BACK_WITHIN_MS
                for name in who:
                    wait_until(lambda name=name: answers(ports.metrics_of(name), "/readyz"), f"{name} is ready again")
        assert {name: stack.find_process(name) for name in processes} == processes
        assert rolling.halts() == set()


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
