"""What travels between the driver and the tasks of a flush: units of work and their results.

Frozen data only; :mod:`icedb_engine.units.work_units` turns it into text and back. A unit reads some staged batches and
either writes files at once (:mod:`icedb_engine.units.flush_unit`) or hands sorted blobs on
(:mod:`icedb_engine.units.parse_unit`), which other tasks make files of (:mod:`icedb_engine.units.write_unit`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from icedb_log.jobs import RowFault, SizeClass, StagedBatch
from icedb_log.keys import TablePaths
from icedb_log.model import FileMarker
from icedb_log.table.table_config import TableConfig

from icedb_engine.limits import EngineLimits, FlushUnitLimits


@dataclass(frozen=True, slots=True)
class FlushUnit:
    """Some batches of a flush job, for one task.

    Attributes:
        paths: Keys of the table.
        config: Its configuration.
        schema: Columns whose type is fixed: the log's schema, declared columns, and what other units found.
        batches: Oldest first.
        commit_id: Goes into each file's footer.
        time_ms: ``created_ms`` of the markers.
        limits: Bounds of a batch.
        engine: Bounds of the task.
        refused_widenings: Columns that cannot become wider, with the reason.
        sizes: Which of the batches are taken; ``None``: all.
    """

    paths: TablePaths
    config: TableConfig
    schema: Mapping[str, str]
    batches: tuple[StagedBatch, ...]
    commit_id: str
    time_ms: int
    limits: FlushUnitLimits
    engine: EngineLimits
    refused_widenings: Mapping[str, str] = field(default_factory=dict)
    sizes: SizeClass | None = None


@dataclass(frozen=True, slots=True)
class BatchRejection:
    """A batch of a unit that cannot be taken, by id, and why."""

    batch_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class UnitBadRows:
    """Rows of a batch that were left out and uploaded to the table's quarantine: see BadRows of the jobs."""

    batch_id: str
    payload_key: str
    row_count: int
    reason: str
    faults: tuple[RowFault, ...] = ()


@dataclass(frozen=True, slots=True)
class Blob:
    """Some rows of one partition, sorted, as an Arrow IPC stream that a unit handed on.

    Attributes:
        number: Ascending within the unit.
        partition: Place of the partition in the unit's ``partitions``.
        row_count: Rows in it; at least one.
        size_bytes: Size as it travels (compressed).
        checksum: CRC-32: a unit that Spark ran again may have cut its blobs in other places.
    """

    number: int
    partition: int
    row_count: int
    size_bytes: int
    checksum: int


@dataclass(frozen=True, slots=True)
class FlushUnitResult:
    """What a unit made. Every batch is in exactly one of accepted, rejected, missing, deferred, left and left_out.

    Attributes:
        columns: Columns of the rows.
        new_kinds: Columns that are not in the unit's schema, with the kinds of values in accepted batches.
        accepted: Ids of batches whose rows are all in ``files`` or ``blobs``.
        rejected: Batches of which nothing is in them.
        missing: Ids of batches whose staged object is gone.
        deferred: Ids of batches that must wait for another commit: this one has enough partitions.
        left: Ids of batches that were not looked at, because the unit had enough to read.
        row_count: Rows of accepted batches.
        partitions: Encoded paths of the partitions of accepted batches.
        files: Markers of the new data files, if the unit wrote them.
        blobs: The rows, if the unit handed them on.
        bad_rows: Rows of accepted batches that are in none of them; uploaded.
        wishes: Columns that would have to be wider, with the wider type; then the unit did nothing, and all batches
            are left.
        long_columns: Known columns of which an accepted batch has integers beyond 2^53.
        left_out: Ids of batches that are not of the unit's size class.
        contents: SHA-256 of the decoded body of each accepted batch, by its id (I8).
        batch_partitions: If it did: places in ``partitions`` of each accepted batch with rows, by batch id.
    """

    columns: tuple[str, ...]
    new_kinds: Mapping[str, int]
    accepted: tuple[str, ...]
    rejected: tuple[BatchRejection, ...]
    missing: tuple[str, ...]
    deferred: tuple[str, ...]
    left: tuple[str, ...]
    row_count: int
    partitions: tuple[str, ...] = ()
    files: tuple[FileMarker, ...] = ()
    blobs: tuple[Blob, ...] = ()
    batch_partitions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    bad_rows: tuple[UnitBadRows, ...] = ()
    wishes: Mapping[str, str] = field(default_factory=dict)
    long_columns: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    contents: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlannedBlob:
    """A blob that a write task must find among its rows.

    Attributes:
        unit: Number of the unit that made it, within the flush.
        number: Its number within the unit.
        partition: Place of the partition in the write unit's ``partitions``.
        row_count: Rows in it.
        checksum: CRC-32 of it.
    """

    unit: int
    number: int
    partition: int
    row_count: int
    checksum: int


@dataclass(frozen=True, slots=True)
class WriteUnit:
    """Some partitions of a flush, whose rows other units have read, for one task.

    Attributes:
        paths: Keys of the table.
        config: Its configuration.
        columns: Columns that the data files get, with types.
        partitions: Encoded paths.
        blobs: What the rows are in, ascending by partition.
        commit_id: Goes into each file's footer.
        time_ms: ``created_ms`` of the markers.
        engine: Bounds of the task.
    """

    paths: TablePaths
    config: TableConfig
    columns: Mapping[str, str]
    partitions: tuple[str, ...]
    blobs: tuple[PlannedBlob, ...]
    commit_id: str
    time_ms: int
    engine: EngineLimits


@dataclass(frozen=True, slots=True)
class WriteUnitResult:
    """What a write unit made.

    Attributes:
        files: Markers of the new data files.
        row_count: Rows in them.
    """

    files: tuple[FileMarker, ...]
    row_count: int
