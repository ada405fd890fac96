"""What an erasure has to look at besides live data files: dead ones, unnamed ones, and what it does not cover (E4).

Reads only, and decides nothing. An object that cannot be read is taken for one that holds such rows: it has to go, too.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from icedb_log.clean.guards import Hold
from icedb_log.clean.pins import PinReader
from icedb_log.clean.vacuum_plan import plan_vacuum
from icedb_log.erasure.erasures import NamedObjects, NotCovered, find_quarantined
from icedb_log.errors import CorruptLog, HaltError, InvalidRequest, NotFound
from icedb_log.feed.views import list_view_names
from icedb_log.ingest.import_records import read_records
from icedb_log.jobs import CountJob, RowChange, RowChanger
from icedb_log.keys import parse_staged_key
from icedb_log.log.fold import fold, named_paths
from icedb_log.model import FileMarker, LogView, Snapshot
from icedb_log.store.object_store import Listing, list_all
from icedb_log.store.table_store import TableStore
from icedb_log.table.row_changes import MAX_FILES_PER_COUNT
from icedb_log.table.table import Table
from icedb_log.table.table_config import TableConfig

DATA_SUFFIX: Final = ".parquet"

_UNREADABLE: Final = (NotFound, InvalidRequest, HaltError)


@dataclass(frozen=True, slots=True)
class DataObjects:
    """The data objects of a table and what the log says of them: listing first, log second (J5).

    Attributes:
        listing: Every object below ``_data``.
        snapshot: Its fold.
    """

    listing: Listing
    view: LogView
    snapshot: Snapshot

    def sizes(self) -> dict[str, int]:
        """Return the size of each object by key."""
        return {info.key: info.size_bytes for info in self.listing.objects}

    def named(self) -> set[str]:
        """Return the data files that the log names, live or dead."""
        return named_paths(self.view.files)

    def unnamed(self) -> tuple[FileMarker, ...]:
        """Return the data files that no log file names: orphans, and what is about to be committed."""
        named = self.named()
        return tuple(
            FileMarker(info.key, info.size_bytes, info.modified_ms)
            for info in self.listing.objects
            if info.key not in named and info.key.endswith(DATA_SUFFIX)
        )

    def dead(self) -> tuple[FileMarker, ...]:
        """Return the markers of the data files that are dead and still named, whether or not they are there."""
        dead = self.snapshot.tombstoned_ms
        found = {m.path: m for file in self.view.files for m in file.log.markers if m.path in dead}
        return tuple(found[path] for path in sorted(found))

    def due_ms(self, config: TableConfig) -> dict[str, int]:
        """Return when the janitor may delete what is dead or unnamed, by the store's clock; leases may hold it."""
        plan = plan_vacuum(self.view, config=config)
        due = dict.fromkeys(plan.data_paths, self.view.store_now_ms)
        due |= {waiting.path: waiting.until_ms for waiting in plan.waiting if waiting.until_ms is not None}
        wait_ms = config.orphan_age_ms + config.data_grace_ms  # J5: old enough, and seen a grace period before
        return due | {marker.path: marker.created_ms + wait_ms for marker in self.unnamed()}


def read_objects(table: Table) -> DataObjects:
    """List a table's data objects, then read its log."""
    listing = list_all(table.store, table.paths.data_prefix)
    view = table.read_log()
    return DataObjects(listing, view, fold(view))


def count_covered(
    table: Table, changer: RowChanger, condition: str, markers: Sequence[FileMarker], objects: DataObjects
) -> dict[str, int | None]:
    """Return the data files that hold rows which a condition covers, with their number.

    ``None`` instead of a number: the file is gone, or cannot be read. A file is only left out if its partition, its
    statistics or its rows prove that it holds no such row.

    Files that were not there when somebody looked (``objects``) are not opened. The table's ``check_alive`` is asked
    between jobs.

    Raises:
        Unavailable: The store or the engine did not answer.
    """
    change = RowChange("delete", condition)
    present = objects.sizes()

    def select(files: Sequence[FileMarker]) -> dict[str, int | None]:
        return {marker.path: None for marker in changer.select_files(table.paths, table.config, change, files)}

    def count(files: Sequence[FileMarker]) -> dict[str, int | None]:
        schema = objects.snapshot.schema
        counts = changer.count_rows(
            CountJob(table.paths, table.config, schema, change, tuple(files), table.check_alive)
        )
        return {marker.path: found for marker, found in zip(files, counts, strict=True) if found}

    selected = _on_halves(select, markers)
    candidates = [marker for marker in markers if marker.path in selected and marker.path in present]
    found: dict[str, int | None] = {path: None for path in selected if path not in present}
    for start in range(0, len(candidates), MAX_FILES_PER_COUNT):
        table.check_alive()
        found |= _on_halves(count, candidates[start : start + MAX_FILES_PER_COUNT])
    return found


def _on_halves(
    work: Callable[[Sequence[FileMarker]], dict[str, int | None]], files: Sequence[FileMarker]
) -> dict[str, int | None]:
    """Do work on files; where it fails, on halves of them, so that one bad file does not hide the others."""
    if not files:
        return {}
    try:
        return work(files)
    except _UNREADABLE:
        if len(files) == 1:
            return {files[0].path: None}
    half = len(files) // 2
    return _on_halves(work, files[:half]) | _on_halves(work, files[half:])


def find_not_covered(table: Table, listing: Listing) -> NotCovered:
    """Return what may hold such rows and is none of the erasure's business: a person has to look at it.

    ``listing`` has every object below ``_data``.
    """
    staged = [info.key for info in list_all(table.store, table.paths.staging_prefix).objects]
    return NotCovered(
        quarantine=find_quarantined(table),
        unknown_staged=NamedObjects.of([key for key in staged if not _is_batch(key)]),
        unknown_data=NamedObjects.of([info.key for info in listing.objects if not info.key.endswith(DATA_SUFFIX)]),
        import_sources=NamedObjects.of(_import_sources(table)),
        views=NamedObjects.of(list_view_names(table)),
        view_of=table.config.view_of,
    )


def count_staged_until(table: TableStore, until_ms: int) -> int:
    """Count the batches in staging that were accepted by a time of the store's clock."""
    staged = list_all(table.store, table.paths.staging_prefix).objects
    return sum(1 for info in staged if info.modified_ms <= until_ms and _is_batch(info.key))


def find_pin_holds(table: TableStore, keys: Collection[str], *, config: TableConfig) -> list[tuple[Hold, int]]:
    """Return the pins that keep objects of an erasure (J7), and how many; those that keep most of them first.

    For people who wait: an erasure is complete when its objects are gone (E5).

    Raises:
        Unavailable: The store did not answer.
    """
    pins = PinReader().read(table, data_grace_ms=config.data_grace_ms)
    found = [(pin, sum(pin.names(key) for key in keys)) for pin in pins]
    return sorted((each for each in found if each[1]), key=lambda each: -each[1])


def _is_batch(key: str) -> bool:
    try:
        parse_staged_key(key)
    except InvalidRequest:
        return False
    return True


def _import_sources(table: TableStore) -> set[str]:
    """Where the imports that landed, or may have, copied from. A file that was imported in place has no record."""
    try:
        records = read_records(table)
    except CorruptLog:  # one cannot be read: a person has to look into all of them
        return {info.key for info in list_all(table.store, table.paths.imports_prefix).objects}
    return {source.url for each in records if each.record.state != "lost" for source in each.record.sources}
