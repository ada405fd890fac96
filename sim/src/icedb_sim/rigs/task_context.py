"""A worker's context without servers: the tasks of a service run on a store in memory."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from celery import Celery
from icedb_log.clock import new_batch_id
from icedb_log.errors import IceDBError
from icedb_log.ingest.flush import flush_table
from icedb_log.ingest.staging import stage_batch
from icedb_log.log.fold import Snapshot, fold
from icedb_log.log.reader import LogReader
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import TableConfig
from icedb_log.warehouse import Warehouse
from icedb_service.metrics import WorkerMetrics
from icedb_service.redis_clients import LockBusy
from icedb_service.settings import ServiceSettings
from icedb_service.worker import NoEngine, WorkerContext

from icedb_sim.fakes.manual_clock import ManualClock
from icedb_sim.fakes.memory_store import MemoryObjectStore
from icedb_sim.tables.row_feeds import RowFileFeeder
from icedb_sim.tables.row_files import Row, RowFileChanger, RowFileMerger, RowFileWriter, encode_rows, read_live_rows


class RecordedWakeups:
    """Takes wake-ups and sends none.

    Attributes:
        woken: Every (task, table), in order.
        released: Those that were taken in, in order.
        waiting: Those that collapse.
        failure: Raised by each wake-up, if set.
        served: Queues that a worker is said to serve.
        noted: What tasks said of their progress, in order.
        announced: The table of each commit, in order.
        turns: In how long the next commit of a table is due, as other workers say.
        is_silent: Whether progress cannot be noted.
    """

    def __init__(self) -> None:
        self.woken: list[tuple[str, str | None]] = []
        self.released: list[tuple[str, str | None]] = []
        self.waiting: set[tuple[str, str | None]] = set()
        self.failure: IceDBError | None = None
        self.served: set[str] = set()
        self.noted: list[tuple[str, str, int, int]] = []
        self.announced: list[str] = []
        self.turns: dict[str, int] = {}
        self.is_silent = False

    def find_tables(self, names: Iterable[str]) -> Iterable[str]:
        """Know nothing of others."""
        del names
        return ()

    def note_tables(self, names: Iterable[str], *, for_ms: int) -> None:
        """Tell nobody."""

    def forget_table(self, name: str) -> None:
        """Tell nobody."""

    def claim_look(self, what: str, pause_ms: int) -> bool:
        """Let every look through, as if nobody else looked."""
        del what, pause_ms
        return True

    def announce_commit(self, table: str) -> None:
        """Note a commit."""
        self.announced.append(table)

    def note_turn(self, table: str, *, next_in_ms: int) -> None:
        """Do nothing: a process knows its own."""

    def turn_in_ms(self, table: str) -> int:
        """Return what a test says."""
        return self.turns.get(table, 0)

    def note_progress(self, task_id: str, what: str, done: int, total: int) -> bool:
        """Note how far a task is."""
        self.noted.append((task_id, what, done, total))
        return not self.is_silent

    def is_served(self, queue: str, *, now_ms: int) -> bool:
        """Whether a test says so."""
        del now_ms
        return queue in self.served

    def wake(self, task: str, table: str | None = None) -> bool:
        """Note a wake-up; False if it waits already."""
        if self.failure is not None:
            raise self.failure
        if (task, table) in self.waiting:
            return False
        self.woken.append((task, table))
        return True

    def try_wake(self, task: str, table: str | None = None) -> bool:
        """Note a wake-up; False if it fails."""
        try:
            self.wake(task, table)
        except IceDBError:
            return False
        return True

    def release(self, task: str, table: str | None = None) -> None:
        """Let the wake-up through again."""
        self.released.append((task, table))
        self.waiting.discard((task, table))


@dataclass(slots=True)
class RowFileEngine:
    """An engine whose data files are lines of JSON.

    Attributes:
        writer: Runs flush jobs.
        merger: Runs merge jobs.
        changer: Runs merge jobs that change rows.
        feeder: Runs feed jobs.
        is_running: What :meth:`is_alive` says.
    """

    writer: Any
    merger: Any
    changer: Any
    feeder: Any
    is_running: bool = True

    def is_alive(self) -> bool:
        """Whether a test has not killed it."""
        return self.is_running

    def close(self) -> None:
        """End it."""
        self.is_running = False


@dataclass(slots=True)
class HeldLock:
    """A lock that is lost when a test says so."""

    failure: IceDBError | None = None

    def check_alive(self) -> None:
        """Raise what the test has set."""
        if self.failure is not None:
            raise self.failure


class MemoryContext(WorkerContext[Any]):
    """A worker's context whose warehouse, engine, locks and wake-ups are in memory.

    Args:
        metrics: Of the worker.
        beside: Another worker of the same warehouse, by the same clock.

    Attributes:
        wakeups: What was woken.
        busy: Tables whose lock another worker holds.
        locked: Every table that was locked, in order.
        held: The lock that each ``with`` block gets.
    """

    clock: ManualClock
    wakeups: RecordedWakeups  # type: ignore[assignment]  # of the real ones it has what tasks call

    def __init__(self, metrics: WorkerMetrics, *, beside: "MemoryContext | None" = None) -> None:
        clock = ManualClock() if beside is None else beside.clock
        store = MemoryObjectStore(clock.now_ms) if beside is None else beside.warehouse.store
        settings = ServiceSettings(store="memory://")
        app = Celery("memory", set_as_current=False)
        super().__init__(settings, app=app, metrics=metrics, open_engine=NoEngine, clock=clock)
        self.owner = "test"
        self.wakeups = RecordedWakeups()
        self.busy: set[str] = set()
        self.locked: list[str] = []
        self.held = HeldLock()
        self.warehouse = Warehouse(store, "root")
        self.engine = RowFileEngine(
            RowFileWriter(store, clock),
            RowFileMerger(store, clock),
            RowFileChanger(store, clock),
            RowFileFeeder(store, clock),
        )

    def create_table(self, name: str, **options: Any) -> None:
        """Create a table."""
        policies = {"evolution": "add_columns", "on_bad_rows": "quarantine_batch"}
        create_table(self.warehouse.table(name), TableConfig.create(name=name, **{**policies, **options}))

    def stage(self, rows: Iterable[Row] = (), *, table: str = "events", body: bytes | None = None) -> str:
        """Stage a batch of rows, or of a body; return its id."""
        batch_id = new_batch_id(self.clock)
        place = self.warehouse.table(table)
        body = encode_rows(rows) if body is None else body
        stage_batch(place, body=body, staging_format="ndjson", batch_id=batch_id)
        return batch_id

    def commit(self, rows: Iterable[Row], *, table: str = "events") -> None:
        """Stage rows and commit what is staged, in one log file; a millisecond passes."""
        self.stage(rows, table=table)
        flush_table(self.open(table), RowFileWriter(self.warehouse.store, self.clock))
        self.clock.advance(1)

    def snapshot(self, table: str = "events") -> Snapshot:
        """Return what is live."""
        return fold(LogReader(self.warehouse.table(table), clock=self.clock).read())

    def rows(self, table: str = "events") -> list[dict[str, Any]]:
        """Return the rows that are live."""
        return read_live_rows(self.warehouse.store, self.snapshot(table))

    @contextmanager
    def lock(self, table: str) -> Iterator[HeldLock]:  # type: ignore[override]  # as above
        """Hold the table's lock, unless another worker is said to."""
        if table in self.busy:
            raise LockBusy(f"lock {table} is held by another worker")
        self.locked.append(table)
        yield self.held

    def metric(self, name: str, **labels: str) -> float | None:
        """Return a metric's value."""
        return self.metrics.registry.get_sample_value(name, labels)
