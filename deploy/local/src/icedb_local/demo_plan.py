"""What the demo does: its tables, its numbers, where its events come from. Pure values and their checks."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from icedb_log.errors import InvalidRequest
from icedb_log.units import MIB

from icedb_local.event_files import EventFile, FileFacts
from icedb_local.generator import EventBatch, EventGenerator
from icedb_local.stack_layout import StoreKind

MIN_BATCHES: Final = 8
MAX_EVENTS: Final = 100_000_000
ROWS_PER_BATCH: Final = 5_000
SORT_COLUMN: Final = "event"
USER_COLUMN: Final = "user_id"
SECOND_TABLE_EVERY: Final = 4
FLUSH_COUNT: Final = 14
"""Into about how many commits the batches should go."""


@dataclass(frozen=True, slots=True)
class DemoTable:
    """One table of the demo.

    Attributes:
        name: Its name.
        partition: Partition spec in the CLI's text form.
        sort: Sort order.
        takes_every: Every n-th batch goes into it.
    """

    name: str
    partition: tuple[str, ...]
    sort: tuple[str, ...]
    takes_every: int = 1

    def takes(self, batch_number: int) -> bool:
        """Whether a batch goes into this table."""
        return batch_number % self.takes_every == 0


@dataclass(frozen=True, slots=True)
class DemoPolicies:
    """The policies of the demo's tables: small and short, so that everything happens while one looks on.

    Attributes:
        target_file_bytes: Data files of this size are mature.
        merge_fan_in: Files of one size tier that are merged at once.
        grace_ms: Grace period of log files and data files.
    """

    target_file_bytes: int = 2 * MIB
    merge_fan_in: int = 4
    grace_ms: int = 12_000


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """One run of the demo.

    Attributes:
        store: Kind of object store.
        source: Where events come from.
        tables: At least one; the first takes all batches.
        batch_count: Batches of the first table.
        rows_per_batch: Of a file's events.
        file_facts: What the file holds; None for generated events.
        policies: Of all tables.
    """

    store: StoreKind
    source: EventGenerator | EventFile
    tables: tuple[DemoTable, ...]
    batch_count: int
    rows_per_batch: int = ROWS_PER_BATCH
    file_facts: FileFacts | None = None
    policies: DemoPolicies = field(default_factory=DemoPolicies)

    @property
    def row_count(self) -> int:
        """Events of the source."""
        if self.file_facts is not None:
            return self.file_facts.row_count
        assert isinstance(self.source, EventGenerator)
        return self.source.event_count

    @property
    def service_env(self) -> dict[str, str]:
        """The pace of the services: what a production table does in minutes happens in seconds."""
        return {
            "ICEDB_FLUSH_INTERVAL_MS": "500",
            "ICEDB_FLUSH_MAX_BATCHES": str(max(1, self.batch_count // FLUSH_COUNT)),
            "ICEDB_MERGE_WAKE_COMMITS": "4",
            "ICEDB_MERGE_SWEEP_INTERVAL_MS": "3000",
            "ICEDB_JANITOR_SWEEP_INTERVAL_MS": "2000",
        }

    @property
    def numbers_batches(self) -> bool:
        """Whether each row names its batch in a column ``upload``."""
        return isinstance(self.source, EventGenerator)

    def batches(self) -> Iterator[EventBatch]:
        """Yield every batch of the source."""
        if isinstance(self.source, EventFile):
            return self.source.batches(rows_per_batch=self.rows_per_batch)
        return self.source.batches()


def plan_generated(store: StoreKind, *, event_count: int, batch_count: int, seed: int) -> DemoPlan:
    """Plan a run on generated events.

    Raises:
        InvalidRequest: The numbers do not fit together.
    """
    if batch_count < MIN_BATCHES:
        raise InvalidRequest(f"{batch_count} batches are too few to show anything: use at least {MIN_BATCHES}")
    if event_count > MAX_EVENTS:
        raise InvalidRequest(f"{event_count} events are more than this demo is for ({MAX_EVENTS})")
    return DemoPlan(
        store=store,
        source=EventGenerator(event_count, batch_count, seed=seed),
        tables=_make_tables("ts", ("ts", SORT_COLUMN, USER_COLUMN)),
        batch_count=batch_count,
    )


def plan_file(store: StoreKind, source: EventFile) -> DemoPlan:
    """Plan a run on a user's file; reads it once. Raises what :meth:`EventFile.read_facts` does."""
    facts = source.read_facts()
    rows_per_batch = max(1, min(ROWS_PER_BATCH, facts.row_count // MIN_BATCHES))
    return DemoPlan(
        store=store,
        source=source,
        tables=_make_tables(source.ts_column, facts.columns),
        batch_count=-(-facts.row_count // rows_per_batch),
        rows_per_batch=rows_per_batch,
        file_facts=facts,
    )


def _make_tables(ts_column: str, columns: tuple[str, ...]) -> tuple[DemoTable, ...]:
    sort = (SORT_COLUMN, ts_column) if SORT_COLUMN in columns else (ts_column,)
    by_day = f"d=day({ts_column})"
    tables = [DemoTable("events", (by_day,), sort)]
    if USER_COLUMN in columns:
        by_user = f"u=bucket[4]({USER_COLUMN})"
        tables.append(DemoTable("events_by_user", (by_day, by_user), sort, takes_every=SECOND_TABLE_EVERY))
    return tuple(tables)
