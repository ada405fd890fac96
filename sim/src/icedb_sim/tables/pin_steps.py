"""Steps of tests about pins, on a :class:`~icedb_sim.tables.small_table.SmallTable`."""

from typing import Any, Final

from icedb_log.clean.pin_creation import create_pin
from icedb_log.clean.pin_object import Pin, PinStatus
from icedb_log.clean.pins import find_pin, read_pinned
from icedb_log.clean.vacuum import VacuumResult
from icedb_log.table.table import Table

from icedb_sim.tables.row_files import read_live_rows
from icedb_sim.tables.small_table import SmallTable

DAY_MS: Final = 24 * 60 * 60 * 1000
NAME: Final = "q3"


def make_table() -> SmallTable:
    """Return a table with the rows 1 and 2, in a data file each."""
    table = SmallTable()
    table.append(1)
    table.append(2)
    return table


def pin(table: SmallTable, name: str = NAME, **options: Any) -> Pin:
    """Pin a table; options as of :func:`~icedb_log.clean.pin_creation.create_pin`."""
    return create_pin(Table.open(table.store, table.paths, clock=table.clock, reader=table.reader()), name, **options)


def pinned_ids(table: SmallTable, name: str = NAME) -> list[int]:
    """Return the ids of the rows that a pin shows."""
    _, snapshot = read_pinned(table.store, table.paths, name)
    return sorted(row["id"] for row in read_live_rows(table.store, snapshot))


def status(table: SmallTable, name: str = NAME) -> PinStatus:
    """Return what is known of a pin."""
    return find_pin(table.store, table.paths, name)[1]


def age(table: SmallTable, by_ms: int = DAY_MS) -> VacuumResult:
    """Let everything that nothing holds be deleted."""
    table.clock.advance(by_ms)
    table.vacuum()
    table.clock.advance(table.config.log_grace_ms)
    return table.vacuum()


def data_count(table: SmallTable) -> int:
    """Return how many data objects there are."""
    return len(table.keys(table.paths.data_prefix))
