"""What is in the trash: since when, until when, who needs it, and how far its purge is."""

from dataclasses import dataclass
from typing import Final

from icedb_log.clean.guards import Hold
from icedb_log.clean.holds import find_claims, find_claims_on_data
from icedb_log.clean.purge import PurgeProgress, read_progress
from icedb_log.errors import HaltError
from icedb_log.units import DAY_MS
from icedb_log.warehouse import DroppedTable, Warehouse

AUDIT_LOOK_MS: Final = DAY_MS
"""How often a table that is purged is looked at for audit whose retention is over."""


@dataclass(frozen=True, slots=True)
class TrashEntry:
    """A dropped table, and how it stands.

    Attributes:
        table: What its mark says.
        is_due: Whether the time has come from which on it is purged.
        waits_for: Who needs it; asked only in the trash.
        progress: How far its purge is; ``None`` before it begins.
        problem: Why it cannot be told who needs it; empty: it can.
    """

    table: DroppedTable
    is_due: bool
    waits_for: tuple[Hold, ...] = ()
    progress: PurgeProgress | None = None
    problem: str = ""


def read_trash(warehouse: Warehouse) -> tuple[TrashEntry, ...]:
    """Read everything about the tables that are dropped, ascending by name.

    Costs what :meth:`~icedb_log.warehouse.Warehouse.list_dropped` costs, and a few requests for each table found.

    Raises:
        Unavailable: The store did not answer.
    """
    now_ms = read_now_ms(warehouse)
    return tuple(_read_entry(warehouse, table, now_ms=now_ms) for table in warehouse.list_dropped())


def read_now_ms(warehouse: Warehouse) -> int:
    """Return the store's clock, unix ms. Costs one LIST of one key. Raises Unavailable."""
    return warehouse.store.list_page(warehouse.root, limit=1).store_now_ms


def has_work(table: DroppedTable, *, now_ms: int) -> bool:
    """Whether a purge has something to do for a dropped table, as far as its mark tells. Pure."""
    if table.mark.state == "purging":
        return True
    if table.mark.state == "trash":
        return table.due_ms <= now_ms
    return not table.mark.is_final and table.modified_ms + table.config.seal_age_ms <= now_ms


def _read_entry(warehouse: Warehouse, table: DroppedTable, *, now_ms: int) -> TrashEntry:
    place, mark = warehouse.table(table.name), table.mark
    waits_for: tuple[Hold, ...] = ()
    problem = ""
    if mark.state == "trash":
        try:
            waits_for = (*find_claims(place), *find_claims_on_data(place, table.config))
        except HaltError as error:
            problem = str(error)
    progress = None if mark.state == "trash" else read_progress(place, drop_id=mark.drop_id)
    return TrashEntry(table, table.due_ms <= now_ms, waits_for, progress, problem)
