"""The values that the log is made of: frozen, without behaviour that reads or writes anything.

Wire names (one letter keys) live in :mod:`icedb_log.log.codec` only. All times are unix milliseconds.
A data file goes ``staged -> live -> tombstoned -> deleted``, or ``staged -> orphan -> deleted``: ingest and
merger make it live by a commit, only a merge, rewrite or partition removal tombstones it, and only the
janitor deletes it (J6).
"""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

FORMAT_VERSION: Final = 1
EMPTY: Final[Mapping[str, Any]] = MappingProxyType({})

ColumnStats = tuple[Any, Any, int]
"""Minimum, maximum (JSON scalars, both ``None`` when unknown or all null) and number of nulls."""


class Widening(NamedTuple):
    """What a column became wider to, and when (S2).

    Attributes:
        sql_type: The wider type.
        since_ms: Time of the commit that widened it first, or later: data files that were made before may be narrow.
    """

    sql_type: str
    since_ms: int


LogChange = Literal["append", "merge", "delete", "rewrite", "merge_query", "removal"]
"""What a commit does with rows (M3): ``append``: new ones come, or none; ``merge``: the same rows in other data files;
``delete``, ``rewrite``, ``merge_query``: as :data:`~icedb_log.jobs.ChangeKind`; ``removal``: partitions go, whole."""


@dataclass(frozen=True, slots=True)
class FileMarker:
    """One data file as one log file lists it.

    Attributes:
        path: Full key of the data file, ``<prefix>/_data/<partition>/<id>.parquet``.
        size_bytes: Size of the data file.
        created_ms: When the data file was made, by its committer's clock.
        tombstoned_ms: When it was tombstoned; ``None`` while this log file says that it is live.
        row_count: Rows in it; ``None`` when the writer did not say (log files of other v3 writers).
        stats: Per column (partition sources and sort columns) minimum, maximum, null count.
        landed_ms: Store time by which the tombstone is known to have landed: LastModified of an earlier log
            file that held it. Carried so that rule J1 does not start anew with each merge.
        extra: Fields that this version does not know, carried forward as they are.
        inexact: Columns of whose values what S2 wants to be proven is not so, by who wrote the file; ``None``: nobody
            said. Never on the wire: the log file that makes the file live says it for all of its files.
        promoted_count: How many of the table's promoted paths, from the first on, the file has the columns of (S4).
    """

    path: str
    size_bytes: int
    created_ms: int
    tombstoned_ms: int | None = None
    row_count: int | None = None
    stats: Mapping[str, ColumnStats] = field(default_factory=lambda: EMPTY)
    landed_ms: int | None = None
    extra: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    inexact: tuple[str, ...] | None = field(default=None, compare=False)
    promoted_count: int = 0

    @property
    def is_live(self) -> bool:
        """Whether this marker says that the file is live. The fold decides, not one marker (S1)."""
        return self.tombstoned_ms is None


@dataclass(frozen=True, slots=True)
class LogTombstone:
    """A log file that was merged into the one that holds this line.

    Attributes:
        path: Full key of the dead log file.
        tombstoned_ms: Time of the commit that merged it.
        landed_ms: As for :class:`FileMarker`.
        extra: Unknown fields, carried forward.
    """

    path: str
    tombstoned_ms: int
    landed_ms: int | None = None
    extra: Mapping[str, Any] = field(default_factory=lambda: EMPTY)


@dataclass(frozen=True, slots=True)
class FeedState:
    """Which commits of its source a view has taken, whole as of one of its own commits (V1).

    Attributes:
        sequence: Number of the feed; the state with the highest one in a log counts, whatever the others say.
        names: Names of the source's log files that were taken or refused and were still there (:func:`log_name`).
        refused: What the last feed refused, with the reason: some of these, and data files of the backfill.
        backfilled: Which data files of the backfill were taken or refused, by their places: all before the first
            number, and those at the others. Empty: none.
    """

    sequence: int
    names: tuple[str, ...]
    refused: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    backfilled: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LogHead:
    """The first two lines of a log file: what a flush needs of it.

    Attributes:
        time_ms: Commit time; equals the time in its name. Never changed by a strip (J3).
        schema: Column name to SQL type, the union of all that was known at the commit.
        commit_id: Unique id of the commit (W2); ``None`` in log files of other writers.
        batch_ids: Batches whose rows this commit made live (I2).
        is_seal: An empty log file that keeps another commit from landing at this key (F1, F4).
        widened: Columns of ``schema`` that became wider (S2).
        refused_ids: Batches that this commit refused: they are in quarantine, or on their way (I5).
        feed: What a view has taken of its source, as of the commit that said it (V1); ``None``: nothing said here.
        contents: For each of ``batch_ids`` whose content this commit knows: what tells it from another one (I8).
        inexact: Columns of ``schema`` of whose values in this log file's live data files it is not proven that none
            would change if the column became wider, and of a DOUBLE, that no footer misleads (S2): true where it is
            known not to be so. Of every other one it is proven; ``None``: of none.
        change: What this commit does with rows, see :data:`LogChange` (M3); ``None``: it does not say, as seals,
            rebuilds and log files of other writers. Later releases may say something else: whoever
            asks takes what he does not know for a change of rows. Who says it writes no field ids (N6).
        rebuilt: Which rebuild, or which backup, made this log anew, by the id of its commit (B3); ``None``: none did.
        promoted_count: How many promoted paths its writer knew, or a log file that it carries: who knows fewer commits
            nothing (S4).
        requests: Changes that this commit, or one that it carries, has made, by the ids of their requests, and what
            came of them (M7, :mod:`icedb_log.log.requests`).
    """

    time_ms: int
    schema: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    _: KW_ONLY
    commit_id: str | None = None
    batch_ids: tuple[str, ...] = ()
    is_seal: bool = False
    widened: Mapping[str, Widening] = field(default_factory=lambda: EMPTY)
    refused_ids: tuple[str, ...] = ()
    feed: FeedState | None = None
    contents: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    inexact: Mapping[str, bool] | None = None
    change: str | None = None
    rebuilt: str | None = None
    promoted_count: int = 0
    requests: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: EMPTY)


@dataclass(frozen=True, slots=True)
class LogFile(LogHead):
    """The content of one log file.

    Attributes:
        markers: Data files, live and tombstoned.
        log_tombstones: Log files that this one replaces.
        horizon_ms: Newest tombstone time of any log file that was deleted (R3), if recorded here.
        extra: Unknown metadata fields, carried forward.
    """

    markers: Sequence[FileMarker] = ()
    log_tombstones: tuple[LogTombstone, ...] = ()
    _: KW_ONLY
    horizon_ms: int | None = None
    extra: Mapping[str, Any] = field(default_factory=lambda: EMPTY)


@dataclass(frozen=True, slots=True)
class ListedLogHead:
    """The head of a log file together with where the log file stands in the store.

    Attributes:
        key: Full key.
        etag: ETag of the content that was parsed.
        modified_ms: LastModified, by the store's clock.
        size_bytes: Size of the object.
        log: The parsed content.
    """

    key: str
    etag: str
    modified_ms: int
    size_bytes: int
    log: LogHead


@dataclass(frozen=True, slots=True)
class ListedLogFile(ListedLogHead):
    """A whole log file together with where it stands."""

    log: LogFile


@dataclass(frozen=True, slots=True)
class LogHeads:
    """The heads of all log files of a table, read consistently (R1). They say nothing about data files.

    Attributes:
        table: Name of the table.
        files: Ascending by key.
        store_now_ms: The store's clock before the first log file was listed.
    """

    table: str
    files: tuple[ListedLogHead, ...]
    store_now_ms: int


@dataclass(frozen=True, slots=True)
class LogView(LogHeads):
    """All log files of a table, read consistently (R1)."""

    files: tuple[ListedLogFile, ...]
