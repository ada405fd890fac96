"""One unit of a merge: the data files of one group become sorted data files of the same partition.

Runs inside a task, or directly in a test: it needs a store, not Spark. Inputs are only read. Rows in and rows out
are counted independently (the inputs' footers, and what was written), so that the committer can compare them. So are
the values: by the footers of the inputs, as they came, and of what was written (M6).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from icedb_log.clock import Clock
from icedb_log.errors import Unavailable
from icedb_log.jobs import MergedGroup, MergeGroup
from icedb_log.keys import TablePaths
from icedb_log.merge.content_check import compare_contents
from icedb_log.model import FileMarker
from icedb_log.parquet.footer import Footer, parse_footer
from icedb_log.parquet.schema import DamagedFile
from icedb_log.store.object_store import ObjectInfo, ObjectStore
from icedb_log.table.table_config import TableConfig
from icedb_log.units import MIB

from icedb_engine.engine import open_engine, open_scratch
from icedb_engine.limits import EngineLimits
from icedb_engine.reading.data_files import (
    SMALL_FILE_BYTES,
    InputFile,
    OtherColumn,
    fetch_files,
    read_sorted,
    require_path_values,
    unite_columns,
)
from icedb_engine.writing.part_files import SPLIT_FACTOR, PartFileWriter, PartLayout, make_footer

FETCHED_SHARE: Final = 8
"""A group of small files of up to memory / this together is fetched into memory, every other one to disk."""

ENGINE_SHARE: Final = 0.5
SMALL_ENGINE_BYTES: Final = 256 * MIB
"""The native engine gets this share of a task's memory, or so much of it if that is more; row groups that are encoded
meanwhile and the interpreter take the rest."""


@dataclass(frozen=True, slots=True)
class MergeUnit:
    """One group of a merge job, for one task.

    Attributes:
        paths: Keys of the table.
        config: Its configuration.
        schema: Column to SQL type of the whole table.
        group: The inputs.
        commit_id: Goes into each file's footer.
        time_ms: ``created_ms`` of the markers.
        engine: Bounds of the task.
    """

    paths: TablePaths
    config: TableConfig
    schema: Mapping[str, str]
    group: MergeGroup
    commit_id: str
    time_ms: int
    engine: EngineLimits


def merge_unit(unit: MergeUnit, store: ObjectStore, *, clock: Clock) -> MergedGroup:
    """Merge a group's data files into sorted runs with those of the table's columns that one has, and upload them.

    Not idempotent: each call makes new files under fresh names. After an error uploaded files are orphans (J5).

    Args:
        unit: What to do.
        store: Where the inputs are and the outputs go.
        clock: Gives the ids of the files.

    Raises:
        NotFound: An input is gone.
        SchemaConflict: A column of an input has another type than in the table's schema, or is not in it and has
            other values than the path.
        CorruptLog: An input cannot be read as Parquet, though the log names it.
        Unavailable: The store did not answer, or memory and scratch did not suffice.
    """
    if unit.group.size_bytes > unit.engine.scratch_bytes:
        raise Unavailable(
            f"table {unit.paths.name}: merging {unit.group.partition or 'the table'} needs {unit.group.size_bytes} "
            f"bytes of scratch for its inputs; {unit.engine.scratch_bytes} are allowed: allow more, or lower "
            "max_files_per_group"
        )
    with open_scratch(unit.engine) as scratch:
        return _UnitRun(unit, store, clock, scratch).run()


class _UnitRun:
    """One call of :func:`merge_unit`."""

    def __init__(self, unit: MergeUnit, store: ObjectStore, clock: Clock, scratch: Path) -> None:
        self._unit = unit
        self._store = store
        self._clock = clock
        self._scratch = scratch
        self._folder = scratch / "in"
        self._folder.mkdir()
        memory_bytes = unit.engine.memory_bytes
        limits = replace(
            unit.engine, memory_bytes=max(int(memory_bytes * ENGINE_SHARE), min(memory_bytes, SMALL_ENGINE_BYTES))
        )
        self._open_engine = partial(open_engine, limits, scratch)

    def run(self) -> MergedGroup:
        unit = self._unit
        is_small = unit.group.size_bytes <= unit.engine.memory_bytes // FETCHED_SHARE
        is_small = is_small and all(marker.size_bytes <= SMALL_FILE_BYTES for marker in unit.group.inputs)
        inputs = fetch_files(
            unit.group.inputs,
            self._store,
            table=unit.paths.name,
            folder=None if is_small else self._folder,
            transfer_count=unit.engine.transfer_count,
        )
        columns, others = unite_columns(
            inputs,
            table=unit.paths.name,
            schema=unit.schema,
            open_engine=self._open_engine,
            folder=self._folder,
        )
        if others:
            self._check_others(others)
        return self._write(inputs, columns)

    def _check_others(self, others: Iterable[OtherColumn]) -> None:
        """See that nothing is lost with columns that are not written. Raises SchemaConflict."""
        paths = self._unit.paths
        with self._open_engine() as engine:
            for each, column, sql_type in others:
                file = each.make_file(self._folder)
                require_path_values(engine, file, column, sql_type, paths=paths, data_key=each.marker.path)

    def _write(self, inputs: list[InputFile], columns: Mapping[str, str]) -> MergedGroup:
        unit = self._unit
        layout = self._layout(columns)
        writer = PartFileWriter(
            self._store, layout, clock=self._clock, folder=self._scratch / "out", limits=unit.engine
        )
        rows = read_sorted(
            inputs,
            table=unit.paths.name,
            columns=columns,
            sort=layout.sort_columns,
            chunk_rows=unit.config.row_group_rows,
            open_engine=self._open_engine,
            folder=self._folder,
        )
        outputs = writer.write_partition(rows)
        before = [_read_contents(each.read_footer(), each.marker, unit.schema) for each in inputs]
        after = [_read_contents(writer.footers[each.path], each, unit.schema) for each in outputs]
        row_count = sum(each.row_count for each in inputs)
        contents = compare_contents(before, after, unit.schema)
        return MergedGroup(unit.group, outputs, row_count, contents=contents)

    def _layout(self, columns: Mapping[str, str]) -> PartLayout:
        unit = self._unit
        sort = [column for column in unit.config.sort if column in columns]
        sources = [field.column for field in unit.config.partition if field.column in columns]
        inputs = [marker.path for marker in unit.group.inputs]

        def footer(_ordinal: int) -> dict[str, str]:
            return make_footer(
                table=unit.paths.name,
                partition=unit.group.partition,
                commit_id=unit.commit_id,
                kind="merge",
                inputs=inputs,
            )

        return PartLayout(
            paths=unit.paths,
            partitions=(unit.group.partition,),
            footer=footer,
            sort_columns=sort,
            stats_columns=tuple(dict.fromkeys([*sources, *sort])),
            row_group_rows=unit.config.row_group_rows,
            split_bytes=SPLIT_FACTOR * unit.config.target_file_bytes,
            created_ms=unit.time_ms,
        )


def _read_contents(footer: bytes, marker: FileMarker, columns: Mapping[str, str]) -> Footer | None:
    """Return what a footer says of some columns; ``None`` if it cannot be told."""
    try:
        info = ObjectInfo(marker.path, "", marker.size_bytes, marker.created_ms)
        return parse_footer(footer, info, bounds_of=columns)
    except DamagedFile:
        return None
