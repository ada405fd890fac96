"""What a reader can ask, as values; each names the type of its answer.

One request means the same whoever answers it: a snapshot service over gRPC (:mod:`icedb_client.grpc_plans`), or the
store itself (:mod:`icedb_client.store_reads`). The clients know nothing but :meth:`Answerer.ask`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from icedb_log.table.table_config import PartitionField

from icedb_client.file_list import FileList

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
