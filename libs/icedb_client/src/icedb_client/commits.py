"""What became of accepted batches: committed, in quarantine, or still staged."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from icedb_log.clock import Clock
from icedb_log.ingest.pressure import read_pressure
from icedb_log.ingest.quarantine import (
    QuarantinedBatch,
    batch_id_of_object,
    entry_of_object,
    find_reason,
    is_reason,
)
from icedb_log.keys import TablePaths
from icedb_log.log.reader import LogReader
from icedb_log.store.object_store import ObjectStore, list_all

FIRST_POLL_MS: Final = 50
LONGEST_POLL_MS: Final = 1000


@dataclass(frozen=True, slots=True)
class CommitReport:
    """What became of batches.

    Attributes:
        committed: Ids of batches whose rows every new snapshot has.
        quarantined: Batches that cannot be committed, with the reason.
        bad_rows: Of committed batches: the rows that could not be, with the reason.
        waiting: Ids of batches that are still staged.
        conflicts: Other contents that were accepted under ids of these batches: in quarantine, not in the table.
        halted: Why the table commits nothing, as its ingest worker said; then nobody waited any longer. Else empty.
        unknown: Ids of which neither staging, the log nor quarantine knows: never accepted, or decided longer ago than
            log files are kept.
    """

    committed: tuple[str, ...]
    quarantined: tuple[QuarantinedBatch, ...]
    waiting: tuple[str, ...]
    bad_rows: tuple[QuarantinedBatch, ...] = ()
    unknown: tuple[str, ...] = ()
    conflicts: tuple[QuarantinedBatch, ...] = ()
    halted: str = ""


def wait_committed(
    store: ObjectStore, paths: TablePaths, batch_ids: Iterable[str], *, clock: Clock, timeout_ms: int
) -> CommitReport:
    """Wait until no batch is staged any more, at most ``timeout_ms``; see :meth:`Client.wait_committed`."""
    asked = tuple(dict.fromkeys(batch_ids))
    deadline_ms = clock.monotonic_ms() + timeout_ms
    pause_ms = FIRST_POLL_MS
    seen: set[str] = set()
    halted = ""
    while True:
        listing = list_all(store, paths.staging_prefix)
        names = (info.key.rpartition("/")[2] for info in listing.objects)
        staged = {name.partition(".")[0] for name in names}
        waiting = tuple(batch_id for batch_id in asked if batch_id in staged)
        seen.update(waiting)
        left_ms = deadline_ms - clock.monotonic_ms()
        said = read_pressure(store, paths) if waiting else None
        halted = "" if said is None else said.find_halt(store_now_ms=listing.store_now_ms)
        if not waiting or left_ms <= 0 or halted:
            break
        clock.sleep_ms(min(pause_ms, left_ms))
        pause_ms = min(LONGEST_POLL_MS, pause_ms * 2)
    gone = set(asked) - set(waiting)
    if not gone:
        return CommitReport((), (), waiting, halted=halted)
    # A batch leaves staging after the log names it (I2, I5), so a log read later does, while that log file stays.
    logs = [file.log for file in LogReader(store, paths, clock=clock).heads.read().files]
    found = tuple(_find_reasons(store, paths, gone))
    entries = {entry.batch_id: entry for entry in found if entry.kind != "conflict"}
    committed = gone.intersection(batch_id for log in logs for batch_id in log.batch_ids)
    refused = {batch_id for batch_id, entry in entries.items() if entry.kind == "batch"} - committed
    refused |= gone.intersection(batch_id for log in logs for batch_id in log.refused_ids)
    # Staged a moment ago and not refused: committed, though the log has forgotten it (a short log grace period).
    committed |= (gone & seen) - refused
    return CommitReport(
        committed=tuple(batch_id for batch_id in asked if batch_id in committed),
        quarantined=tuple(entries[batch_id] for batch_id in asked if batch_id in refused and batch_id in entries),
        waiting=waiting,
        bad_rows=tuple(entry for entry in entries.values() if entry.kind == "rows" and entry.batch_id in committed),
        unknown=tuple(batch_id for batch_id in asked if batch_id in gone - committed - entries.keys()),
        conflicts=tuple(entry for entry in found if entry.kind == "conflict"),
        halted=halted,
    )


def _find_reasons(store: ObjectStore, paths: TablePaths, batch_ids: set[str]) -> Iterator[QuarantinedBatch]:
    """Read the reasons of these batches: one listing, and one GET for each entry of them."""
    for info in list_all(store, paths.quarantine_prefix).objects:
        if is_reason(info.key) and batch_id_of_object(info.key) in batch_ids:
            found = find_reason(store, paths, entry_of_object(info.key))
            if found is not None:
                yield found.entry
