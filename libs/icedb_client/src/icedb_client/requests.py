"""What a reader asks and is answered: requests, times, partitions, and the values of the answers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from typing import Final, Generic, Protocol, TypeVar

from icedb_log.errors import InvalidRequest
from icedb_log.keys import MAX_MS
from icedb_log.table.partitions import PartitionFilter
from icedb_log.table.table_config import PartitionField

from icedb_client.file_list import FileList

Time = datetime | date | str | int
"""A datetime, a date (its first moment), ISO 8601 text, or unix milliseconds. What names no zone is UTC."""

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


AnswerT = TypeVar("AnswerT")
AnswerT_co = TypeVar("AnswerT_co", covariant=True)


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


class Request(Generic[AnswerT_co]):
    """Something that can be asked; the parameter is the type of the answer."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class TablesRequest(Request[tuple[str, ...]]):
    """Which tables there are."""

    glob: str | None = None


@dataclass(frozen=True, slots=True)
class TableRequest(Request[TableInfo]):
    """What a table is."""

    table: str
    max_staleness_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ChangesRequest(Request[Changes]):
    """Which files came and went between two times."""

    table: str
    from_ms: int
    to_ms: int | None = None
    max_staleness_ms: int | None = None


@dataclass(frozen=True, slots=True)
class AcquireLease(Request[LeaseInfo]):
    """Hold a table as it was at a time, and at any time since."""

    table: str
    ttl_ms: int
    at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class RenewLease(Request[LeaseInfo]):
    """Let a lease last for ``ttl_ms`` from now on."""

    table: str
    lease_id: str
    ttl_ms: int


@dataclass(frozen=True, slots=True)
class ReleaseLease(Request[None]):
    """End a lease."""

    table: str
    lease_id: str


class Answerer(Protocol):
    """Answers requests; both ways in are one."""

    def ask(self, request: Request[AnswerT]) -> AnswerT:
        """Return the answer.

        Raises:
            InvalidRequest: The request is wrong.
            NotFound: No such table, pin or lease.
            Unauthenticated: No credentials, or wrong ones.
            PermissionDenied: These credentials do not allow this.
            HaltError: The table's log is damaged.
            Unavailable: No answer in time.
        """
        ...

    def watch(self, tables: Sequence[str]) -> Iterator[SnapshotEvent]:
        """Yield an event for each table at once, then one after each change; never ends by itself."""
        ...
