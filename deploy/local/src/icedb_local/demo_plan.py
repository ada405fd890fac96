"""What the demo does: its tables, its numbers, where its events come from. Pure values and their checks."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from icedb_log.errors import InvalidRequest
from icedb_log.units import MIB

from icedb_local.event_files import EventFile
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
TARGET_FILE_BYTES: Final = 2 * MIB
"""Data files of this size are mature."""
GRACE_MS: Final = 12_000
"""Of log files and data files."""


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
class DemoPlan:
    """One run of the demo.

    Attributes:
        store: Kind of object store.
        tables: At least one; the first takes all batches.
        row_count: Events of the source.
        batch_count: Batches of the first table.
        batches: Every batch of the source, once.
        numbers_batches: Whether each row names its batch in a column ``upload``.
    """

    store: StoreKind
    tables: tuple[DemoTable, ...]
    row_count: int
    batch_count: int
    batches: Iterator[EventBatch]
    numbers_batches: bool

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
        tables=_make_tables("ts", ("ts", SORT_COLUMN, USER_COLUMN)),
        row_count=event_count,
        batch_count=batch_count,
        batches=EventGenerator(event_count, batch_count, seed=seed).batches(),
        numbers_batches=True,
    )


def plan_file(store: StoreKind, source: EventFile) -> DemoPlan:
    """Plan a run on a user's file; reads it once. Raises what :meth:`EventFile.read_facts` does."""
    facts = source.read_facts()
    rows_per_batch = max(1, min(ROWS_PER_BATCH, facts.row_count // MIN_BATCHES))
    return DemoPlan(
        store=store,
        tables=_make_tables(source.ts_column, facts.columns),
        row_count=facts.row_count,
        batch_count=-(-facts.row_count // rows_per_batch),
        batches=source.batches(rows_per_batch=rows_per_batch),
        numbers_batches=False,
    )


def _make_tables(ts_column: str, columns: tuple[str, ...]) -> tuple[DemoTable, ...]:
    sort = (SORT_COLUMN, ts_column) if SORT_COLUMN in columns else (ts_column,)
    by_day = f"d=day({ts_column})"
    tables = [DemoTable("events", (by_day,), sort)]
    if USER_COLUMN in columns:
        by_user = f"u=bucket[4]({USER_COLUMN})"
        tables.append(DemoTable("events_by_user", (by_day, by_user), sort, takes_every=SECOND_TABLE_EVERY))
    return tuple(tables)
