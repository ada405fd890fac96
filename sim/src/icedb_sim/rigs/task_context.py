"""A worker's context without servers: the tasks of a service run on a store in memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from icedb_log.errors import IceDBError
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import TableConfig
from icedb_log.warehouse import Warehouse
from icedb_service.access.credentials import TaskAccess
from icedb_service.access.guard import AccessGuard
from icedb_service.metrics import WorkerMetrics
from icedb_service.redis_clients import LockBusy
from icedb_service.runs import TaskRunner

from icedb_sim.fakes.manual_clock import ManualClock
from icedb_sim.fakes.memory_store import MemoryObjectStore
from icedb_sim.tables.row_feeds import RowFileFeeder
from icedb_sim.tables.row_files import RowFileChanger, RowFileMerger, RowFileWriter


class RecordedWakeups:
    """Takes wake-ups and sends none.

    Attributes:
        woken: Every (task, table), in order.
        waiting: Those that collapse.
        failure: Raised by each wake-up, if set.
        served: Queues that a worker is said to serve.
    """

    def __init__(self) -> None:
        self.woken: list[tuple[str, str | None]] = []
        self.waiting: set[tuple[str, str | None]] = set()
        self.failure: IceDBError | None = None
        self.served: set[str] = set()

    def is_served(self, queue: str) -> bool:
        """Whether a test says so."""
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


@dataclass(slots=True)
class MemoryContext:
    """Stands in for :class:`icedb_service.worker.WorkerContext`.

    Attributes:
        metrics: Of the service under test.
        clock: Of everything in it.
        wakeups: What was woken.
        busy: Tables whose lock another worker holds.
        locked: Every table that was locked, in order.
        held: The lock that each ``with`` block gets.
        access: Lets every sender in.
    """

    metrics: WorkerMetrics
    clock: ManualClock = field(default_factory=ManualClock)
    wakeups: RecordedWakeups = field(default_factory=RecordedWakeups)
    busy: set[str] = field(default_factory=set)
    locked: list[str] = field(default_factory=list)
    held: HeldLock = field(default_factory=HeldLock)
    access: TaskAccess = field(default_factory=lambda: TaskAccess(AccessGuard()))
    owner: str = "test"
    warehouse: Warehouse = field(init=False)
    engine: RowFileEngine = field(init=False)
    runner: TaskRunner = field(init=False)

    def __post_init__(self) -> None:
        store = MemoryObjectStore(self.clock.now_ms)
        self.warehouse = Warehouse(store, "root")
        self.engine = RowFileEngine(
            RowFileWriter(store, self.clock),
            RowFileMerger(store, self.clock),
            RowFileChanger(store, self.clock),
            RowFileFeeder(store, self.clock),
        )
        self.runner = TaskRunner(metrics=self.metrics, clock=self.clock)

    def create_table(self, name: str, **options: Any) -> None:
        """Create a table."""
        create_table(self.warehouse.table(name), TableConfig.create(name=name, **options))

    def is_engine_alive(self) -> bool:
        """Whether the engine lives."""
        return self.engine.is_alive()

    @contextmanager
    def lock(self, table: str) -> Iterator[HeldLock]:
        """Hold the table's lock, unless another worker is said to."""
        if table in self.busy:
            raise LockBusy(f"lock {table} is held by another worker")
        self.locked.append(table)
        yield self.held

    def metric(self, name: str, **labels: str) -> float | None:
        """Return a metric's value."""
        return self.metrics.registry.get_sample_value(name, labels)
