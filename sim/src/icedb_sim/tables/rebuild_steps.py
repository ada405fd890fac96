"""Steps of tests about rebuilds, on a :class:`~icedb_sim.tables.small_table.SmallTable` with footers."""

from typing import Any, TypeVar

from icedb_log.repair.rebuild import RebuildResult
from icedb_log.repair.rebuild_record import LeftOut

from icedb_sim.tables.small_table import SmallTable

Table = TypeVar("Table", bound=SmallTable)


def make_merged_table(kind: type[Table], **config: Any) -> Table:
    """Return a table with two partitions, merged, and one more flush: rows 1 to 7."""
    table = kind(has_footers=True, **config)
    table.append(1, 2, p="a")
    table.append(3, 4, p="a")
    table.append(5, 6, p="b")
    table.merge(full=True)
    table.append(7, p="a")
    return table


def lose_log(table: SmallTable) -> None:
    """Delete every log file."""
    table.store.delete(table.keys(table.paths.log_prefix))


def damage(table: SmallTable, number: int, body: bytes = b"{") -> str:
    """Write something else over a log file, and return its key."""
    key = table.keys(table.paths.log_prefix)[number]
    table.store.put(key, body)
    return key


def noted(result: RebuildResult, kind: str) -> list[str]:
    """Return the files that the notes of a kind name."""
    return [name for note in result.report.notes if note.kind == kind for name in note.files]


def left_out(result: RebuildResult) -> dict[str, LeftOut]:
    """Return what was left out, by key."""
    return {entry.key: entry for entry in result.report.left_out}
