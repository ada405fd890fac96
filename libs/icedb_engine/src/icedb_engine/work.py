"""Units of work: what tasks are told, what they answer, how jobs are cut into them, and how they travel as text.

The wire is JSON of our own frozen dataclasses, validated on both sides, so that a task and a driver of different
releases disagree loudly. Pure; light enough for tasks that do little.
"""

import functools
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, Self, TypeVar

import orjson
from icedb_log.formats import FORMATS
from icedb_log.jobs import (
    BadRows,
    CopyOutput,
    InspectedFile,
    InspectJob,
    InspectOutput,
    MergedGroup,
    MergeGroup,
    RowChange,
    SizeClass,
    SourceCommit,
    StagedBatch,
    Target,
)
from icedb_log.keys import TablePaths
from icedb_log.model import FileMarker
from icedb_log.phases import Phase
from pydantic import BaseModel, TypeAdapter

from icedb_engine.limits import EngineLimits, FlushUnitLimits, JobLimits

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit(Target):
    """A part of a job, for one task.

    Attributes:
        engine: Bounds of the task.
    """

    engine: EngineLimits

    @classmethod
    def of(cls, job: Target, engine: EngineLimits, **more: Any) -> Self:
        """Return a unit of a job, or one for the same table as another unit."""
        told = {each.name: getattr(job, each.name) for each in fields(Target)}
        return cls(**{**told, "engine": engine, **more})


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushUnit(Unit):
    """Some batches of a flush; the schema has what other units found of new columns, too.

    Attributes:
        batches: Oldest first.
        limits: Bounds of a batch.
        refused_widenings: Columns that cannot become wider, with the reason.
        sizes: Which of the batches are taken; ``None``: all.
    """

    batches: tuple[StagedBatch, ...]
    limits: FlushUnitLimits
    refused_widenings: Mapping[str, str] = field(default_factory=dict)
    sizes: SizeClass | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteUnit(Unit):
    """Rows that become data files: of a flush, read by other units, or the task's own. The schema is that of the files.

    Attributes:
        partitions: Encoded paths; of a task's own rows they are found out there.
        blobs: What the rows are in, ascending by partition; none if they are the task's own.
    """

    partitions: tuple[str, ...] = ()
    blobs: tuple["PlannedBlob", ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRange:
    """A part of a group: its rows from a place in the sort order on, and below another one.

    Attributes:
        by: Sort columns that some input of the group has.
        low: Where it begins, as text (:mod:`icedb_engine.writing.key_ranges`); ``None``: with the first row.
        high: Where the next one begins; ``None``: it ends with the last row.
        places: Inputs that may have such rows, by their places in the group.
        columns: Columns that some input of the group has: the outputs of all ranges have these.
    """

    by: tuple[str, ...]
    low: str | None
    high: str | None
    places: tuple[int, ...]
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeUnit(Unit):
    """One group of a merge job, or a range of one.

    Attributes:
        group: The inputs.
        change: What else becomes of the rows; ``None``: nothing.
        range: Which of the rows; ``None``: all. Not with a change.
    """

    group: MergeGroup
    change: RowChange | None = None
    range: MergeRange | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedUnit(Unit):
    """Some commits of the source of a view, which is the table.

    Attributes:
        source: Keys of the source.
        source_schema: Columns of its rows, with types.
        commits: Oldest first.
        max_columns: Most columns that the view may have.
    """

    source: TablePaths
    source_schema: Mapping[str, str]
    commits: tuple[SourceCommit, ...]
    max_columns: int


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file to be read.

    Attributes:
        path: Key.
        size_bytes: Its size.
        row_count: Rows in it by the log; ``None`` if the log does not say.
    """

    path: str
    size_bytes: int
    row_count: int | None

    @classmethod
    def of(cls, marker: FileMarker) -> Self:
        """Return what a reader needs of what the log says."""
        return cls(marker.path, marker.size_bytes, marker.row_count)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadUnit:
    """Some data files whose rows are read, or counted.

    Attributes:
        paths: Keys of the table.
        columns: Columns to be read, with the table's types.
        files: The data files.
        engine: Bounds of the task.
        is_whole: Whether these are all columns of the table, so that a file with others would lose them.
        where: A condition over the columns, DuckDB's SQL, checked (:mod:`icedb_engine.sql.checks`): only rows
            for which it is true come out. ``None``: all rows.
        wanted: Which of the columns come out, in their order; ``None``: all.
    """

    paths: TablePaths
    columns: Mapping[str, str]
    files: tuple[DataFile, ...]
    engine: EngineLimits
    is_whole: bool = False
    where: str | None = None
    wanted: tuple[str, ...] | None = None

    @property
    def outputs(self) -> Mapping[str, str]:
        """The columns that come out, with their types."""
        return self.columns if self.wanted is None else {name: self.columns[name] for name in self.wanted}


@dataclass(frozen=True, slots=True)
class CopyUnit:
    """Some files of an import that become data files.

    Attributes:
        paths: Keys of the table.
        files: The files, as they were inspected.
        engine: Bounds of the task.
    """

    paths: TablePaths
    files: tuple[InspectedFile, ...]
    engine: EngineLimits


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


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitResult:
    """What a unit made of batches, or of commits of a source, each named by its id.

    Each is in exactly one of accepted, rejected, missing, deferred, left and left_out.

    Attributes:
        columns: Columns of the rows, with types.
        new_kinds: Columns that are not in the unit's schema, with the kinds of values in accepted batches.
        accepted: Those whose rows are all in ``files`` or ``blobs``, or have all reached the query that made them.
        rejected: Those of which nothing is in them, with the reason.
        refused: Which of the rejected ones a query refused.
        missing: Batches whose staged object is gone.
        deferred: Those that must wait for another commit: this one has enough partitions, or a query enough tries.
        left: Batches that were not looked at, because the unit had enough to read.
        left_out: Batches that are not of the unit's size class.
        row_count: Rows in ``files`` or ``blobs``.
        misfit_count: Values of these rows that do not fit a promoted column, and are NULL there.
        partitions: Encoded paths of their partitions.
        files: Markers of the new data files, if the unit wrote them.
        blobs: The rows, if the unit handed them on.
        batch_partitions: If it did: places in ``partitions`` of each accepted batch with rows.
        bad_rows: Rows of accepted batches that are in none of them; uploaded.
        widening_requests: Columns that have to become wider, with the wider type; then the unit did nothing, and
            all batches are left.
        long_columns: Known columns of which an accepted batch has integers beyond 2^53.
        contents: SHA-256 of the decoded body of each accepted batch (I8).
        phases: What it did when, for traces.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    new_kinds: Mapping[str, int] = field(default_factory=dict)
    accepted: tuple[str, ...] = ()
    rejected: Mapping[str, str] = field(default_factory=dict)
    refused: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    deferred: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    row_count: int = 0
    misfit_count: int = 0
    partitions: tuple[str, ...] = ()
    files: tuple[FileMarker, ...] = ()
    blobs: tuple[Blob, ...] = ()
    batch_partitions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    bad_rows: tuple[BadRows, ...] = ()
    widening_requests: Mapping[str, str] = field(default_factory=dict)
    long_columns: tuple[str, ...] = ()
    contents: Mapping[str, str] = field(default_factory=dict)
    phases: tuple[Phase, ...] = ()


UnitKind = Literal["flush", "insert", "write", "feed", "merge", "change", "count", "inspect", "copy"]
_WIRE: Final[Mapping[UnitKind, tuple[Any, Any]]] = {
    "flush": (FlushUnit, UnitResult),
    "insert": (FlushUnit, UnitResult),
    "write": (WriteUnit, tuple[FileMarker, ...]),
    "feed": (FeedUnit, UnitResult),
    "merge": (MergeUnit, MergedGroup),
    "change": (MergeUnit, MergedGroup),
    "count": (ReadUnit, tuple[int, ...]),
    "inspect": (InspectJob, InspectOutput),
    "copy": (CopyUnit, CopyOutput),
}
"""Unit and result of each kind."""
DOING: Final[Mapping[UnitKind, str]] = {
    "flush": "reading batches",
    "insert": "running the insert_query",
    "write": "writing files",
    "feed": "feeding",
    "merge": "merging groups",
    "change": "changing groups",
    "count": "counting rows",
    "inspect": "reading footers",
    "copy": "copying files",
}
"""What a person reads of each kind, beside how many units are done."""


@functools.cache
def _adapter(of: Any) -> TypeAdapter[Any]:
    return TypeAdapter(of)


def decode_unit(kind: UnitKind, body: str) -> Any:
    """Read a unit back. Raises ValueError."""
    return _adapter(_WIRE[kind][0]).validate_json(body)


def decode_result(kind: UnitKind, body: str) -> Any:
    """Read the result of a unit back. Raises ValueError."""
    return _adapter(_WIRE[kind][1]).validate_json(body)


def encode(value: Any) -> str:
    """Return a unit or a result as text."""
    return orjson.dumps(value, default=_plain, option=orjson.OPT_NON_STR_KEYS).decode()


def _plain(value: object) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} does not travel between driver and task")


def estimate_bytes(batch: StagedBatch, limits: FlushUnitLimits) -> int:
    """Return about how large a batch is once it is decoded; at least one byte."""
    is_packed = batch.format not in FORMATS or FORMATS[batch.format].is_packed  # compressed as a whole, or inside
    return batch.size_bytes * (limits.compression_ratio if is_packed else 1) + 1


def split_batches(batches: Sequence[StagedBatch], limits: JobLimits) -> tuple[tuple[StagedBatch, ...], ...]:
    """Cut batches into units of about equal estimated size; the order is kept, within and between units."""
    sizes = [estimate_bytes(batch, limits.batch) for batch in batches]
    total = sum(sizes)
    unit_count = 1 if total <= limits.direct_bytes else max(2, -(-total // limits.batch.unit_target_bytes))
    units: list[list[StagedBatch]] = [[] for _ in range(unit_count)]
    before = 0
    for batch, size in zip(batches, sizes, strict=True):
        units[(before + size // 2) * unit_count // total].append(batch)
        before += size
    return tuple(tuple(unit) for unit in units if unit)


def pack(
    items: Sequence[_Item], size_of: Callable[[_Item], int], *, max_bytes: int, max_count: int | None = None
) -> list[tuple[_Item, ...]]:
    """Cut items into parts of at most so many bytes and items, in their order; a part has at least one."""
    parts: list[list[_Item]] = []
    part_bytes = 0
    for item in items:
        size_bytes = size_of(item)
        if not parts or part_bytes + size_bytes > max_bytes or len(parts[-1]) == max_count:
            parts.append([])
            part_bytes = 0
        parts[-1].append(item)
        part_bytes += size_bytes
    return [tuple(part) for part in parts]


def count_prefix(touched: Sequence[Collection[Hashable]], max_partitions: int) -> int:
    """Return how many of the first batches lie in at most ``max_partitions`` together; at least one.

    Args:
        touched: Partitions of each batch, in the order in which they were staged.
        max_partitions: Bound of one commit.
    """
    union: set[Hashable] = set()
    for count, partitions in enumerate(touched):
        union.update(partitions)
        if len(union) > max_partitions and count:
            return count
    return len(touched)
