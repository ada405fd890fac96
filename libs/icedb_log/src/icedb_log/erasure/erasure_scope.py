"""What an erasure has to wait for, and what it does not cover (E2, E4, E5).

Reads only, and decides nothing. No data file is opened: whether an object has to go follows from a listing and the log.
"""

from dataclasses import dataclass
from typing import Final

from icedb_log.commit.table import Table
from icedb_log.errors import CorruptLog
from icedb_log.feed.views import list_view_names
from icedb_log.holds.erasures import NamedObjects, NotCovered, find_quarantined
from icedb_log.imports.import_records import read_records
from icedb_log.ingest.staging import list_all_staged
from icedb_log.log.fold import fold, named_paths
from icedb_log.model import LogView
from icedb_log.store.object_store import Listing, list_all
from icedb_log.store.table_store import TableStore

DATA_SUFFIX: Final = ".parquet"


@dataclass(frozen=True, slots=True)
class DataObjects:
    """The data objects of a table and what the log says of them: listing first, log second.

    A file that is committed in between is live, then, and not taken for one that nobody names.

    Attributes:
        listing: Every object below ``_data``.
        view: The log.
    """

    listing: Listing
    view: LogView

    @property
    def present(self) -> frozenset[str]:
        """Keys of the objects that are there."""
        return frozenset(info.key for info in self.listing.objects)

    def dead(self) -> tuple[str, ...]:
        """Return the data files that the log names as dead, whether or not they are there, ascending."""
        return tuple(sorted(fold(self.view).tombstoned_ms))

    def unnamed(self) -> tuple[str, ...]:
        """Return the data files that no log file names, ascending: orphans, and what is about to be committed."""
        return tuple(sorted(key for key in self.present - named_paths(self.view.files) if key.endswith(DATA_SUFFIX)))


def read_objects(table: Table) -> DataObjects:
    """List a table's data objects, then read its log."""
    listing = list_all(table.store, table.paths.data_prefix)
    return DataObjects(listing, table.read_log())


def find_not_covered(table: Table, listing: Listing) -> NotCovered:
    """Return what may hold such rows and is none of the erasure's business: a person has to look at it.

    ``listing`` has every object below ``_data``.
    """
    return NotCovered(
        quarantine=find_quarantined(table),
        unknown_staged=NamedObjects.of([info.key for info in list_all_staged(table).unknown]),
        unknown_data=NamedObjects.of([info.key for info in listing.objects if not info.key.endswith(DATA_SUFFIX)]),
        import_sources=NamedObjects.of(_import_sources(table)),
        views=NamedObjects.of(list_view_names(table)),
        view_of=table.config.view_of,
    )


def count_staged_until(table: TableStore, until_ms: int) -> int:
    """Count the batches in staging that were accepted by a time of the store's clock."""
    return sum(batch.staged_ms <= until_ms for batch in list_all_staged(table).batches)


def _import_sources(table: TableStore) -> set[str]:
    """Where the imports that landed, or may have, copied from. A file that was imported in place has no record."""
    try:
        records = read_records(table)
    except CorruptLog:  # one cannot be read: a person has to look into all of them
        return {info.key for info in list_all(table.store, table.paths.imports_prefix).objects}
    return {source.url for each in records if each.state != "lost" for source in each.sources}
