"""Small tables for tests of ``icedb fsck``, and the ways to damage their logs."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from icedb_log.keys import TablePaths
from icedb_log.log.codec import decode_log_file, encode_log_file
from icedb_log.model import LogFile
from icedb_log.repair.fsck import FsckOptions, fsck_table
from icedb_log.repair.fsck_findings import FsckReport
from icedb_log.store.table_store import TableStore

from icedb_sim.tables.row_footers import RowFooterReader
from icedb_sim.tables.small_table import SmallTable


def check(table: SmallTable, paths: TablePaths | None = None, *, deep: bool = True, **options: Any) -> FsckReport:
    """Check a table without threads, so that calls come in one order."""
    footers = RowFooterReader(table.store) if deep else None
    return fsck_table(
        TableStore(table.store, paths or table.paths),
        clock=table.clock,
        options=FsckOptions(footers=footers, fetch_threads=1, **options),
    )


def codes(report: FsckReport, *severities: str) -> set[str]:
    """Return the codes found; by default without notes."""
    return {each.code for each in report.counts if each.severity in (severities or ("error", "warning"))}


def small(**config: Any) -> SmallTable:
    """A table with two appends and a merge of three others; the inputs of the merge are dead."""
    table = SmallTable(has_footers=True, merge_fan_in=3, **config)
    for number in (1, 2, 3):
        table.append(number)
    assert table.merge().committed_key
    table.append(4, 5)
    table.append(6, p="b")
    return table


def codes_after(damage: Callable[[SmallTable], object]) -> set[str]:
    """Return the codes found in a small table after it was damaged; before, there are none."""
    table = small()
    assert codes(check(table)) == set()
    damage(table)
    return codes(check(table))


def logs(table: SmallTable, *, merged: bool = False) -> list[str]:
    """Return the keys of the log files of appends, or of merges."""
    return [key for key in table.keys(table.paths.log_prefix) if ("_m_" in key) == merged]


def last_append(table: SmallTable) -> str:
    """Return the log file of the last append: nothing in it is dead."""
    return logs(table)[-1]


def edit(table: SmallTable, key: str, change: Callable[[LogFile], LogFile]) -> None:
    """Rewrite a log file."""
    log = change(decode_log_file(key, table.store.get(key).body))
    table.store.put(key, encode_log_file(log))


def edit_marker(table: SmallTable, key: str, **fields: Any) -> None:
    """Change the first marker of a log file."""
    edit(table, key, lambda log: replace(log, markers=(replace(log.markers[0], **fields), *log.markers[1:])))


def edit_bytes(table: SmallTable, key: str, old: bytes, new: bytes) -> None:
    """Replace bytes of an object."""
    body = table.store.get(key).body
    assert old in body
    table.store.put(key, body.replace(old, new, 1))


def append_log(table: SmallTable, log: LogFile, *, merged: bool = False) -> str:
    """Put one more log file there."""
    key = table.paths.log_key(time_ms=log.time_ms, commit_id=log.commit_id or "0f", is_merged=merged)
    table.store.put(key, encode_log_file(log))
    return key


def data_file(table: SmallTable, key: str) -> str:
    """Return the first data file that a log file lists."""
    return decode_log_file(key, table.store.get(key).body).markers[0].path


def rewrite_data(table: SmallTable, path: str, change: Callable[[bytes], bytes]) -> None:
    """Write other bytes of the same length over a data file."""
    body = table.store.get(path).body
    changed = change(body)
    assert len(changed) == len(body)
    table.store.put(path, changed)
