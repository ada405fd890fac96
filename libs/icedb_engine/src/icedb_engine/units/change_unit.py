"""One task that writes changed rows: what a deletion leaves, or what a query gives, becomes sorted data files.

Runs inside a task, or directly in a test. Rows come as Spark has them, in any order, each with the ordinal of its
group, and marked if it is removed. Rows that came, rows removed and rows written are counted apart from each other.
A row of a query that belongs into another partition than its group ends the task: nothing is committed then.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from icedb_log import errors
from icedb_log.clock import Clock
from icedb_log.errors import IceDBError, InvalidRequest, InvariantViolated, Unavailable
from icedb_log.keys import TablePaths
from icedb_log.model import FileMarker
from icedb_log.store.object_store import ObjectStore
from icedb_log.table.partition_filter import read_partition_values
from icedb_log.table.table_config import TableConfig
from icedb_log.table.transforms import transform_sql

from icedb_engine.arrow_types import ARROW_TYPES
from icedb_engine.engine import open_engine, open_scratch
from icedb_engine.limits import EngineLimits
from icedb_engine.sql import quote_name
from icedb_engine.writing.part_files import ORDINAL, SPLIT_FACTOR, FileKind, PartFileWriter, PartLayout, make_footer

ROWS_PER_CHUNK: Final = 8192
"""Sorted rows come in chunks of so many: rows may be wide."""
_SHOWN_CHARS: Final = 80


@dataclass(frozen=True, slots=True)
class ChangedGroup:
    """A group whose rows a task writes; its ordinal is its place.

    Attributes:
        partition: Encoded partition path.
        inputs: Keys of the data files that it replaces.
    """

    partition: str
    inputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ChangeUnit:
    """What write tasks of a change are told.

    Attributes:
        paths: Keys of the table.
        config: Its configuration.
        columns: Columns of the rows, with the table's types.
        groups: All groups of the job.
        kind: Goes into each file's footer.
        checks_partition: Whether a row may have come to belong elsewhere.
        commit_id: Goes into each file's footer.
        time_ms: ``created_ms`` of the markers.
        engine: Bounds of a task.
    """

    paths: TablePaths
    config: TableConfig
    columns: Mapping[str, str]
    groups: tuple[ChangedGroup, ...]
    kind: FileKind
    checks_partition: bool
    commit_id: str
    time_ms: int
    engine: EngineLimits


@dataclass(frozen=True, slots=True)
class GroupOutput:
    """What one task made of one group.

    Attributes:
        ordinal: The group.
        rows_read: Rows that came.
        rows_removed: Those of them that were marked as removed.
        files: New data files.
    """

    ordinal: int
    rows_read: int
    rows_removed: int
    files: tuple[FileMarker, ...]


def make_error_text(error: IceDBError) -> str:
    """Return an error as it travels beside rows; :func:`read_error_text` makes it an error again."""
    return f"{type(error).__name__}:{error}"


def read_error_text(text: str) -> IceDBError:
    """Return the error that a task sent beside rows."""
    name, _, message = text.partition(":")
    kind = getattr(errors, name, None)
    return kind(message) if isinstance(kind, type) and issubclass(kind, IceDBError) else Unavailable(message)


@dataclass(slots=True)
class _Counts:
    """Rows of each group, as they came."""

    read: Any
    removed: Any
    failure: IceDBError | None = field(default=None)


def write_change(
    unit: ChangeUnit, chunks: Iterable[pa.RecordBatch], store: ObjectStore, *, clock: Clock
) -> tuple[GroupOutput, ...]:
    """Sort and upload rows; return what came of each group that had any.

    Not idempotent: each call makes new files under fresh names. After an error uploaded files are orphans (J5).

    Args:
        unit: What to do.
        chunks: Rows: ordinal, error, whether removed, then the unit's columns in their order.
        store: Where the files go.
        clock: Gives the ids of the files.

    Raises:
        InvalidRequest: A row belongs into another partition.
        Unavailable: The store did not answer, or memory and scratch did not suffice.
        InvariantViolated: Not as many rows were written as should have been.
        IceDBError: What a task before this one sent beside its rows.
    """
    counts = _Counts(np.zeros(len(unit.groups), np.int64), np.zeros(len(unit.groups), np.int64))
    schema = pa.schema([(ORDINAL, pa.int32()), *_place_columns(unit)])
    with open_scratch(unit.engine) as scratch, open_engine(unit.engine, scratch) as engine:
        writer = PartFileWriter(store, _make_layout(unit), clock=clock, folder=scratch / "out", limits=unit.engine)
        rows = pa.RecordBatchReader.from_batches(schema, _take(chunks, schema, counts))
        engine.register("rows", rows)
        try:
            engine.execute(_make_sql(unit))
            markers = writer.write_all(_check_places(unit, engine.to_arrow_reader(ROWS_PER_CHUNK)))
        except Exception:
            if counts.failure is not None:  # the engine has put it into words of its own
                raise counts.failure from None
            raise
    return _collect(unit, counts, markers, writer.ordinals)


def _place_columns(unit: ChangeUnit) -> list[tuple[str, Any]]:
    return [(f"c{place}", ARROW_TYPES[kind]) for place, kind in enumerate(unit.columns.values())]


def _take(chunks: Iterable[pa.RecordBatch], schema: pa.Schema, counts: _Counts) -> Iterator[pa.RecordBatch]:
    """Count rows, leave out the removed ones, and yield the others with the types that data files have."""
    group_count = len(counts.read)
    for chunk in chunks:
        ordinals, problems, gone, *values = chunk.columns
        if problems.null_count != chunk.num_rows:
            counts.failure = read_error_text(str(problems.drop_null()[0]))
            raise counts.failure
        places, removed = ordinals.to_numpy(), gone.to_numpy(zero_copy_only=False)
        counts.read += np.bincount(places, minlength=group_count)
        counts.removed += np.bincount(places[removed], minlength=group_count)
        arrays = [ordinals, *(_plain(array, kind.type) for array, kind in zip(values, list(schema)[1:], strict=True))]
        rows = pa.RecordBatch.from_arrays(arrays, schema=schema)
        yield rows.filter(pc.invert(gone)) if removed.any() else rows


def _plain(array: Any, arrow_type: Any) -> Any:
    return array if array.type == arrow_type else array.cast(arrow_type)


def _make_sql(unit: ChangeUnit) -> str:
    names = {name: f"c{place}" for place, name in enumerate(unit.columns)}
    outputs = "".join(f", {column} AS {quote_name(name)}" for name, column in names.items())
    for place, spec in enumerate(_checked_fields(unit)):
        outputs += f", {transform_sql(spec, names[spec.column], unit.columns[spec.column])} AS {_place_name(place)}"
    order = "".join(f", {names[name]} NULLS LAST" for name in unit.config.sort if name in names)
    return f"SELECT {ORDINAL}{outputs} FROM rows ORDER BY {ORDINAL}{order}"  # noqa: S608 - names are quoted


def _checked_fields(unit: ChangeUnit) -> list[Any]:
    fields = unit.config.partition if unit.checks_partition else ()
    return [spec for spec in fields if spec.column in unit.columns]


def _place_name(place: int) -> str:
    return f'"{ORDINAL}{place}"'


def _check_places(unit: ChangeUnit, chunks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """See that every row of the sorted stream lies in its group's partition, and pass it on."""
    fields = _checked_fields(unit)
    values = [read_partition_values(group.partition) for group in unit.groups]
    width = 1 + len(unit.columns)
    for chunk in chunks:
        for place, spec in enumerate(fields):
            wanted = pa.array([known.get(spec.name) for known in values], pa.string()).take(chunk.column(0))
            found = chunk.column(width + place)
            same = pc.fill_null(pc.equal(found, wanted), fill_value=False)
            # A path that names no value of the field (of other writers) is no promise that a row could break.
            fits = pc.or_(same, pc.is_null(wanted))
            if not pc.all(fits, min_count=0).as_py():
                _refuse_row(unit, spec, chunk, row=pc.index(fits, value=False).as_py(), found=found)
        yield chunk.select(range(width)) if fields else chunk


def _refuse_row(unit: ChangeUnit, spec: Any, chunk: pa.RecordBatch, *, row: int, found: Any) -> None:
    group = unit.groups[chunk.column(0)[row].as_py()]
    value = chunk.column(1 + list(unit.columns).index(spec.column))[row].as_py()
    goes = (
        "NULL has no partition"
        if value is None
        else f"it belongs into {spec.name}={found[row].as_py()!s:.{_SHOWN_CHARS}}"
    )
    raise InvalidRequest(
        f"table {unit.paths.name}: a row of partition {group.partition} would have {spec.column} = "
        f"{str(value)[:_SHOWN_CHARS]!r}, and {goes} (partition {spec}): a query must leave each row in its partition; "
        f"keep {spec.column!r} as it is, or leave such rows out. Nothing was changed"
    )


def _make_layout(unit: ChangeUnit) -> PartLayout:
    sort = [column for column in unit.config.sort if column in unit.columns]
    sources = [spec.column for spec in unit.config.partition if spec.column in unit.columns]

    def footer(ordinal: int) -> dict[str, str]:
        group = unit.groups[ordinal]
        return make_footer(
            table=unit.paths.name,
            partition=group.partition,
            commit_id=unit.commit_id,
            kind=unit.kind,
            inputs=group.inputs,
        )

    return PartLayout(
        paths=unit.paths,
        partitions=[group.partition for group in unit.groups],
        footer=footer,
        sort_columns=sort,
        stats_columns=tuple(dict.fromkeys([*sources, *sort])),
        row_group_rows=unit.config.row_group_rows,
        split_bytes=SPLIT_FACTOR * unit.config.target_file_bytes,
        created_ms=unit.time_ms,
    )


def _collect(
    unit: ChangeUnit, counts: _Counts, markers: tuple[FileMarker, ...], ordinals: list[int]
) -> tuple[GroupOutput, ...]:
    outputs = []
    for ordinal in np.flatnonzero(counts.read).tolist():
        files = tuple(marker for marker, place in zip(markers, ordinals, strict=True) if place == ordinal)
        written = sum(marker.row_count or 0 for marker in files)
        read, removed = int(counts.read[ordinal]), int(counts.removed[ordinal])
        if written + removed != read:
            raise InvariantViolated(
                f"table {unit.paths.name}: partition {unit.groups[ordinal].partition or '(none)'}: {read} rows came, "
                f"{removed} were removed and {written} written; nothing was committed"
            )
        outputs.append(GroupOutput(ordinal, read, removed, files))
    return tuple(outputs)
