"""What a reader asks and is answered: times, partitions, the values of the answers, and who answers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from functools import cached_property
from typing import Any, Final, Protocol

from icedb_log.errors import InvalidRequest
from icedb_log.keys import MAX_MS
from icedb_log.store.s3_options import S3Options
from icedb_log.table.partitions import PartitionFilter
from icedb_log.table.table_config import PartitionField

from icedb_client.file_list import FileList

Time = datetime | date | str | int
"""A datetime, a date (its first moment), ISO 8601 text, or unix milliseconds. What names no zone is UTC."""
Parameters = Sequence[Any] | Mapping[str, Any]
"""Values of a statement: in order, of each ``?`` or ``$1``; or by name, of each ``$name``."""

_SHOWN: Final = 80


def to_ms(value: Time, *, what: str) -> int:
    """Return unix milliseconds.

    Args:
        value: A time as callers write it. Text of digits is unix milliseconds, too.
        what: Name of the argument, for the message.

    Raises:
        InvalidRequest: Not a time, or one before 1970 or after what the log can tell.
    """
    text = value.strip() if isinstance(value, str) else ""
    if text.isdecimal() and text.isascii():
        value = int(text[: len(str(MAX_MS)) + 1])
    time_ms = _read_text(text) if isinstance(value, str) else _read_value(value)
    if time_ms is None or time_ms < 0:
        raise InvalidRequest(
            f"{what} {str(value)[:_SHOWN]!r} is not a time: write e.g. 2026-01-02T03:04:05Z, 2026-01-02, a datetime, "
            f"or unix milliseconds, 0 to {MAX_MS}"
        )
    return time_ms


def _read_value(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if value <= MAX_MS else None
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time(), UTC)
    if not isinstance(value, datetime):
        return None
    try:
        return int((value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp() * 1000)
    except OverflowError:
        return None


def _read_text(text: str) -> int | None:
    try:
        return _read_value(datetime.fromisoformat(text))
    except ValueError:
        return None


Partitions = Mapping[str, object] | Sequence[PartitionFilter] | None
"""Which partitions: ``{"d": "2026-01-31"}``, ``{"d": ["2026-01-30", "2026-01-31"], "country": None}``, or filters."""


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


@dataclass(frozen=True, slots=True)
class TableInfo:
    """What a table is.

    Attributes:
        name: Its name.
        schema: Column to SQL type, as its log has them now.
        partition_fields: How its partitions come from its columns.
        sort_columns: What the rows of each file are sorted by.
        data_grace_ms: How long a file that was merged away stays readable.
        log_grace_ms: The same of log files: how far back time travel goes at least.
        retention_ms: How old rows get before they are removed; ``None``: they stay.
        retention_field: Which partition field tells their age.
        horizon_ms: Time travel below this time is refused; ``None`` while the whole history is there.
        promoted: Columns whose values are taken out of JSON text, each with the column that has it and the keys.
    """

    name: str
    schema: Mapping[str, str]
    partition_fields: tuple[PartitionField, ...]
    sort_columns: tuple[str, ...]
    data_grace_ms: int
    log_grace_ms: int
    retention_ms: int | None = None
    retention_field: str | None = None
    horizon_ms: int | None = None
    promoted: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Changes:
    """Which data files came and went between two times. A merge adds one file, removes several, changes no row.

    Attributes:
        table: Name of the table.
        from_snapshot_id: What the table was at the earlier time.
        to_snapshot_id: What it was at the later time.
        added: Live at the later time and not at the earlier one.
        removed: Live at the earlier time and not at the later one; readable for the data grace period.
        changed_columns: Columns that are new at the later time, or have another type, with that type.
        is_stable: Whether the same times must give the same files later.
    """

    table: str
    from_snapshot_id: str
    to_snapshot_id: str
    added: FileList
    removed: FileList
    changed_columns: Mapping[str, str]
    is_stable: bool


@dataclass(frozen=True, slots=True)
class SnapshotEvent:
    """A table is in another state than in the last event about it.

    Attributes:
        table: Name of the table.
        snapshot_id: As of a snapshot; ``None``: the table is gone, or cannot be read.
        file_count: Live data files.
        size_bytes: Their bytes.
        row_count: Their rows; ``None`` when some file does not say.
        last_commit_ms: Time of the newest commit; ``None`` before the first one.
        problem: Why the table cannot be read now; ``None``: it can.
    """

    table: str
    snapshot_id: str | None
    file_count: int = 0
    size_bytes: int = 0
    row_count: int | None = None
    last_commit_ms: int | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class LeaseInfo:
    """A hold on a table: what was live at ``at_ms``, or at any time since, stays until ``expires_ms``.

    Attributes:
        table: Name of the table.
        lease_id: Its id.
        at_ms: The oldest time that is held, unix ms.
        expires_ms: When it ends unless it is renewed, by the store's clock.
    """

    table: str
    lease_id: str
    at_ms: int
    expires_ms: int


class Hold(Protocol):
    """Keeps the files of a snapshot; see :class:`icedb_client.read_leases.ReadLease`."""

    info: LeaseInfo

    def check(self) -> None:
        """Raise Unavailable if it is lost: files of the snapshot may be gone."""
        ...

    def close(self) -> None:
        """End it."""
        ...


@dataclass(frozen=True)
class SnapshotFiles:
    """What an answer says of a table at one time; :class:`icedb_client.snapshots.Snapshot` reads its rows.

    Attributes:
        table: Name of the table.
        snapshot_id: Equal for equal live files and schema of the whole table, whatever the filters.
        schema: Column to SQL type (DuckDB's spelling), in a stable order. Files may lack columns: null there.
        files: Live data files that the filters left, ascending by path. They may hold rows that ``where`` excludes.
        total_file_count: Live data files before the filters.
        as_of_ms: The time asked for; ``None`` for the newest state.
        is_stable: Whether the same time must give the same files later.
        last_commit_ms: Time of the newest commit; ``None`` before the first one.
        horizon_ms: Time travel below this time is refused; ``None`` while the whole history is there.
        narrow_types: Columns of which some files may have a narrower type, with that type: widened ones, and each
            DOUBLE that an imported file may have as FLOAT, or with bounds in its footer that leave out NaN.
        staleness_ms: How old the knowledge behind it was when it was answered.
        where: Condition that each row meets; ``None``: all rows.
        s3: How an engine reaches the files; ``None`` for files of this machine.
        hold: The lease that keeps its files, where one was taken.
        answerer: Who answered; asked again for leases.
        changes: What came and went since the snapshot that was given; ``None``: nobody knows, or none was given.
    """

    table: str
    snapshot_id: str
    schema: Mapping[str, str]
    files: FileList
    total_file_count: int
    as_of_ms: int | None
    is_stable: bool
    last_commit_ms: int | None
    horizon_ms: int | None
    narrow_types: Mapping[str, str] = field(default_factory=dict)
    staleness_ms: int = field(default=0, compare=False)
    where: str | None = None
    s3: S3Options | None = field(default=None, repr=False, compare=False)
    hold: "Hold | None" = field(default=None, repr=False, compare=False)
    answerer: "Answerer | None" = field(default=None, repr=False, compare=False)
    changes: Changes | None = field(default=None, repr=False, compare=False)

    @property
    def row_count(self) -> int | None:
        """Rows of all files, before ``where``; ``None`` when some file does not say."""
        return self.files.row_count

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return self.files.size_bytes

    @property
    def lease(self) -> LeaseInfo | None:
        """The lease that keeps the files, where one was taken."""
        return self.hold.info if self.hold is not None else None

    @cached_property
    def partition_names(self) -> tuple[str, ...]:
        """Names of the table's partition fields."""
        if len(self.files) or self.answerer is None:
            return self.files.partition_names
        return tuple(field.name for field in self.answerer.table(self.table).partition_fields)


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """Which files are live. Fields as of :meth:`icedb_client.Client.snapshot`."""

    table: str
    as_of_ms: int | None = None
    tag: str | None = None
    filters: Sequence[PartitionFilter] = ()
    where: str | None = None
    max_staleness_ms: int | None = None
    min_commit: str | None = None
    presign_ms: int | None = None
    columnar: bool = False
    bounds: bool = False
    since: SnapshotFiles | None = None

    @property
    def is_of_whole_table(self) -> bool:
        """Whether all files are asked for, as they are now."""
        narrowed = (self.as_of_ms, self.tag, self.where, self.presign_ms)
        return not self.filters and narrowed == (None, None, None, None)


def make_request(
    table: str,
    *,
    partitions: Partitions = None,
    as_of: Time | None = None,
    where: str | None = None,
    tag: str | None = None,
    min_commit: str | None = None,
    max_staleness_ms: int | None = None,
    presign_ms: int | None = None,
    columnar: bool = False,
    bounds: bool = False,
    since: SnapshotFiles | None = None,
) -> SnapshotRequest:
    """Check what a caller wrote, as far as no table has to be known for it. Raises InvalidRequest."""
    if tag is not None and as_of is not None:
        raise InvalidRequest("a tag has its own time: give either a tag or a time")
    if min_commit is not None and tag is not None:
        raise InvalidRequest("a tag never changes: give either a tag or min_commit")
    columnar = columnar or bounds or since is not None
    if columnar and presign_ms is not None:
        raise InvalidRequest("record batches have no URLs: give presign_ms without columnar, bounds and since")
    if where is not None:
        from icedb_client.conditions import check_condition  # noqa: PLC0415 - DuckDB is loaded by those who need it

        check_condition(where)
    return SnapshotRequest(
        table,
        as_of_ms=None if as_of is None else to_ms(as_of, what="as_of"),
        tag=tag,
        filters=to_filters(partitions),
        where=where,
        max_staleness_ms=max_staleness_ms,
        min_commit=min_commit,
        presign_ms=presign_ms,
        columnar=columnar,
        bounds=bounds,
        since=since,
    )


class Answerer(Protocol):
    """Answers readers: the store (:mod:`icedb_client.store_reads`) or a service (:mod:`icedb_client.grpc_reads`).

    Every method raises InvalidRequest (the call is wrong), NotFound (no such table, tag or lease), Unauthenticated,
    PermissionDenied, HaltError (the table's log is damaged) and Unavailable (no answer in time). Times are unix ms.
    """

    def snapshot(self, request: SnapshotRequest) -> SnapshotFiles:
        """Return which files are live."""
        ...

    def tables(self, glob: str | None) -> tuple[str, ...]:
        """Return which tables there are, ascending."""
        ...

    def table(self, table: str, max_staleness_ms: int | None = None) -> TableInfo:
        """Return what a table is."""
        ...

    def changes(self, table: str, *, from_ms: int, to_ms: int | None, max_staleness_ms: int | None) -> Changes:
        """Return which files came and went between two times."""
        ...

    def acquire_lease(self, table: str, *, ttl_ms: int, at_ms: int | None) -> LeaseInfo:
        """Hold a table as it was at a time, and at any time since; ``None``: from now on."""
        ...

    def renew_lease(self, table: str, lease_id: str, *, ttl_ms: int) -> LeaseInfo:
        """Let a lease last for ``ttl_ms`` from now on, and never shorter than before."""
        ...

    def release_lease(self, table: str, lease_id: str) -> None:
        """End a lease."""
        ...

    def watch(self, tables: Sequence[str]) -> Iterator[SnapshotEvent]:
        """Yield an event for each table at once, then one after each change; never ends by itself."""
        ...
