"""What a table is at one time: its columns and its live data files, as users see them.

Owns the values and the two ways to get them: from a snapshot service over gRPC, or straight from the store with
the same reader, fold and filters that the service uses.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from icedb_log.cleaning.pins import read_pinned
from icedb_log.clock import Clock
from icedb_log.errors import InvalidRequest
from icedb_log.keys import TablePaths
from icedb_log.log.fold import fold
from icedb_log.log.reader import LogReader
from icedb_log.model import Snapshot as LogSnapshot
from icedb_log.tables.partition_filter import PartitionFilter, PartitionMatcher, read_partition_values
from icedb_log.tables.table_config import read_table_config
from icedb_log.warehouse import Warehouse

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection
    from icedb_log.storage.stores import S3Options

Partitions = Mapping[str, object] | Sequence[PartitionFilter] | None
"""Which partitions: ``{"d": "2026-01-31"}``, ``{"d": ["2026-01-30", "2026-01-31"], "country": None}``, or filters."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """One live data file.

    Attributes:
        path: Full key in the object store.
        uri: Where an engine opens it: ``s3://bucket/key`` or an absolute file path.
        size_bytes: Its size.
        row_count: Its rows; ``None`` when its writer did not say.
        partition: Partition values by field name, ``None`` for null.
        created_ms: When it was made, unix ms.
    """

    path: str
    uri: str
    size_bytes: int
    row_count: int | None
    partition: Mapping[str, str | None]
    created_ms: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The live data files of a table at one time. They stay readable for the table's data grace period.

    Attributes:
        table: Name of the table.
        snapshot_id: Equal for equal live files and schema of the whole table, whatever the filters.
        schema: Column to SQL type (DuckDB's spelling), in a stable order. Files may lack columns: null there.
        files: Live data files that the filters left, ascending by path.
        total_file_count: Live data files before the filters.
        as_of_ms: The time asked for; ``None`` for the newest state.
        is_stable: Whether the same ``as_of_ms`` must give the same files later.
        last_commit_ms: Time of the newest commit; ``None`` before the first one.
        horizon_ms: Time travel below this time is refused; ``None`` while the whole history is there.
        s3: How an engine reaches the files; ``None`` for files of this machine.
    """

    table: str
    snapshot_id: str
    schema: Mapping[str, str]
    files: tuple[DataFile, ...]
    total_file_count: int
    as_of_ms: int | None
    is_stable: bool
    last_commit_ms: int | None
    horizon_ms: int | None
    s3: "S3Options | None" = field(default=None, repr=False, compare=False)

    @property
    def row_count(self) -> int | None:
        """Rows of all files; ``None`` when some file does not say."""
        counts = [file.row_count for file in self.files]
        return None if None in counts else sum(count for count in counts if count is not None)

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size_bytes for file in self.files)

    def to_duckdb(self, con: "DuckDBPyConnection", *, view: str | None = None) -> str:
        """Make the snapshot a view of a DuckDB connection and return the view's name.

        Files are opened lazily, when the view is queried. Every column of the table is there with its type, also
        those that no file has. Replaces a view of the same name. On S3 the connection gets a secret for the bucket.

        Args:
            con: An open connection.
            view: Name of the view; the table's name by default.

        Raises:
            Unavailable: DuckDB's httpfs extension cannot be loaded (S3 only).
        """
        from icedb_client.duck import create_view  # noqa: PLC0415 - DuckDB is loaded by those who query

        return create_view(con, self, view=view or self.table)


class SnapshotSource(Protocol):
    """Answers which files are live."""

    def get(
        self,
        table: str,
        *,
        as_of_ms: int | None,
        filters: Sequence[PartitionFilter],
        max_staleness_ms: int | None,
    ) -> Snapshot:
        """Return a snapshot. Raises InvalidRequest, NotFound, Unavailable, HaltError."""
        ...


LOG_GRACE_PARTS_PER_REFRESH: Final = 2
"""R2: a read may take at most this fraction of the log files' grace period."""


class StoreSnapshots:
    """Reads snapshots straight from the store, each time anew.

    Log files are kept in memory between calls, so that a repeated call costs a listing and what is new.

    Args:
        warehouse: Where the tables lie.
        clock: For times.
        s3: Passed on in each snapshot.
    """

    def __init__(self, warehouse: Warehouse, *, clock: Clock, s3: "S3Options | None" = None) -> None:
        self._warehouse = warehouse
        self._clock = clock
        self._s3 = s3
        self._readers: dict[tuple[str, int], LogReader] = {}

    def get(
        self,
        table: str,
        *,
        as_of_ms: int | None,
        filters: Sequence[PartitionFilter],
        max_staleness_ms: int | None,
    ) -> Snapshot:
        """Return a snapshot; the log is read now, whatever ``max_staleness_ms`` allows."""
        del max_staleness_ms
        store, paths = self._warehouse.store, self._warehouse.table(table)
        config = read_table_config(store, paths)
        matcher = PartitionMatcher(filters, config)
        max_refresh_ms = config.log_grace_ms // LOG_GRACE_PARTS_PER_REFRESH
        reader = self._readers.setdefault(
            (table, max_refresh_ms), LogReader(store, paths, clock=self._clock, max_refresh_ms=max_refresh_ms)
        )
        return self._describe(paths, fold(reader.read(), as_of_ms=as_of_ms), matcher)

    def get_pinned(self, table: str, pin: str, *, filters: Sequence[PartitionFilter]) -> Snapshot:
        """Return what a pin has pinned.

        Raises:
            InvalidRequest: The pin cannot be read: it has ended, or was not proven to hold.
            NotFound: No such table, or no such pin.
            HaltError: The pin is damaged.
            Unavailable: The store did not answer.
        """
        store, paths = self._warehouse.store, self._warehouse.table(table)
        matcher = PartitionMatcher(filters, read_table_config(store, paths))
        _, state = read_pinned(store, paths, pin)
        return self._describe(paths, state, matcher)

    def _describe(self, paths: TablePaths, state: LogSnapshot, matcher: PartitionMatcher) -> Snapshot:
        store = self._warehouse.store
        files: list[DataFile] = []
        known: dict[str, tuple[dict[str, str | None], bool]] = {}
        for marker in state.live:
            partition = paths.partition_of(marker.path)
            if partition not in known:
                values = read_partition_values(partition)
                known[partition] = (values, matcher.matches(values))
            values, is_wanted = known[partition]
            if is_wanted:
                files.append(
                    DataFile(
                        marker.path,
                        store.uri(marker.path),
                        marker.size_bytes,
                        marker.row_count,
                        values,
                        marker.created_ms,
                    )
                )
        return Snapshot(
            table=paths.name,
            snapshot_id=state.snapshot_id,
            schema=state.schema,
            files=tuple(files),
            total_file_count=len(state.live),
            as_of_ms=state.as_of_ms,
            is_stable=state.is_stable,
            last_commit_ms=state.last_commit_ms or None,
            horizon_ms=state.horizon_ms or None,
            s3=self._s3,
        )


def to_filters(partitions: Partitions) -> tuple[PartitionFilter, ...]:
    """Turn what users write into filters.

    Args:
        partitions: A mapping of field to value, to several values, or to ``None`` (null); or filters.

    Raises:
        InvalidRequest: Another kind of value.
    """
    if partitions is None:
        return ()
    if not isinstance(partitions, Mapping):
        return tuple(partitions)
    filters: list[PartitionFilter] = []
    for name, wanted in partitions.items():
        if wanted is None:
            filters.append(PartitionFilter(name, is_null=True))
        elif isinstance(wanted, list | tuple | set | frozenset):
            filters.append(PartitionFilter.equals(name, *(_as_text(name, value) for value in wanted)))
        else:
            filters.append(PartitionFilter.equals(name, _as_text(name, wanted)))
    return tuple(filters)


def _as_text(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int) or hasattr(value, "isoformat"):
        return value.isoformat() if hasattr(value, "isoformat") else str(value)
    raise InvalidRequest(
        f"partition {name}: {value!r} is a {type(value).__name__}; give text, a number, a date, a list of them or None"
    )
