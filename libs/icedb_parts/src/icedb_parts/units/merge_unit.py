"""One unit of a merge: the data files of one group become sorted data files of the same partition.

Runs inside a task, or directly in a test: it needs a store, not Spark. Inputs are only read. Rows in and rows out
are counted independently (the inputs' footers, and what was written), so that the committer can compare them.
"""

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from icedb_log.clock import Clock
from icedb_log.errors import CorruptLog, NotFound, SchemaConflict, Unavailable
from icedb_log.jobs import MergeGroup
from icedb_log.keys import TablePaths
from icedb_log.model import FileMarker
from icedb_log.object_store import ObjectStore
from icedb_log.table_config import TableConfig
from icedb_log.widening import is_widening

from icedb_parts.engine import open_engine, open_scratch
from icedb_parts.imports.import_types import NARROW_TYPES
from icedb_parts.limits import EngineLimits
from icedb_parts.sql import quote_name, quote_text
from icedb_parts.writing.column_stats import StatsCollector
from icedb_parts.writing.footer import make_footer

SPLIT_FACTOR: Final = 2
"""An output ends when it has this many times the target size, and the next sorted run begins."""

ROWS_PER_CHUNK: Final = 65_536


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


@dataclass(frozen=True, slots=True)
class MergeUnitResult:
    """What a unit made.

    Attributes:
        outputs: Markers of the new data files.
        rows_read: Rows of the inputs, by their footers.
    """

    outputs: tuple[FileMarker, ...]
    rows_read: int


def merge_unit(unit: MergeUnit, store: ObjectStore, *, clock: Clock) -> MergeUnitResult:
    """Merge a group's data files into sorted runs with the union of their columns, and upload them.

    Not idempotent: each call makes new files under fresh names. After an error uploaded files are orphans (J5).

    Args:
        unit: What to do.
        store: Where the inputs are and the outputs go.
        clock: Gives the ids of the files.

    Raises:
        NotFound: An input is gone.
        SchemaConflict: A column of an input has another type than in the table's schema.
        CorruptLog: An input cannot be read as Parquet, though the log names it.
        Unavailable: The store did not answer, or memory and scratch did not suffice.
    """
    if unit.group.size_bytes > unit.engine.scratch_bytes:
        raise Unavailable(
            f"table {unit.paths.name}: merging {unit.group.partition or 'the table'} needs {unit.group.size_bytes} "
            f"bytes of scratch for its inputs; {unit.engine.scratch_bytes} are allowed: allow more, or lower "
            "max_files_per_group"
        )
    limits = replace(unit.engine, thread_count=1) if _is_split(unit) else unit.engine
    with open_scratch(limits) as scratch, open_engine(limits, scratch) as engine:
        inputs = _download(unit, store, scratch / "in")
        rows_read = sum(_count_rows(marker, file) for marker, file in zip(unit.group.inputs, inputs, strict=True))
        columns = _unite_columns(unit, engine, inputs)
        files = _write_sorted(unit, engine, inputs, columns, scratch / "out")
        keys = [unit.paths.data_key(partition=unit.group.partition, file_id=clock.new_id()) for _ in files]
        outputs = _upload(unit, store, files, keys, columns)
    return MergeUnitResult(outputs, rows_read)


def _download(unit: MergeUnit, store: ObjectStore, folder: Path) -> list[Path]:
    folder.mkdir(parents=True)

    def fetch(numbered: tuple[int, FileMarker]) -> Path:
        number, marker = numbered
        file = folder / f"{number:06d}.parquet"
        try:
            store.download(marker.path, file)
        except NotFound as error:
            raise NotFound(
                f"table {unit.paths.name}: data file {marker.path} is live but gone from the store: "
                "read the log again; if it is still named there, restore the object"
            ) from error
        return file

    with ThreadPoolExecutor(unit.engine.transfer_count, thread_name_prefix="icedb-download") as pool:
        return list(pool.map(fetch, enumerate(unit.group.inputs)))


def _count_rows(marker: FileMarker, file: Path) -> int:
    try:
        return int(pq.read_metadata(file).num_rows)
    except (OSError, ValueError) as error:
        raise CorruptLog(
            f"data file {marker.path} is not readable as Parquet ({str(error)[:200]}): restore the object"
        ) from error


def _unite_columns(unit: MergeUnit, engine: Any, files: Sequence[Path]) -> dict[str, str]:
    """Return the union of the inputs' columns with the types to be written: the schema's order, then the others'.

    A narrower type of an input becomes the table's: of an imported file, or from before the column became wider (S2).

    Raises:
        SchemaConflict: One column has two types or two spellings; names the file.
    """
    found: dict[str, str] = {}
    spelling = {name.lower(): name for name in unit.schema}
    for marker, file in zip(unit.group.inputs, files, strict=True):
        described = engine.execute(f"DESCRIBE SELECT * FROM {_scan([file])}").fetchall()  # noqa: S608
        for name, sql_type, *_ in described:
            known_name = spelling.setdefault(name.lower(), name)
            known_type = unit.schema.get(name) or found.get(name) or sql_type
            if known_name != name or not _is_read_as(sql_type, known_type):
                raise SchemaConflict(
                    f"table {unit.paths.name}: column {name!r} is {sql_type} in data file {marker.path}, "
                    f"but the table has {known_name!r} as {unit.schema.get(known_name) or known_type}: "
                    "rewrite that file with the table's type"
                )
            found[name] = known_type
    ordered = [name for name in unit.schema if name in found]
    return {name: found[name] for name in dict.fromkeys([*ordered, *found])}


def _is_read_as(found_type: str, table_type: str) -> bool:
    read_type = NARROW_TYPES.get(found_type, found_type)
    return table_type in (found_type, read_type) or is_widening(read_type, table_type)


def _write_sorted(
    unit: MergeUnit, engine: Any, files: Sequence[Path], columns: Mapping[str, str], folder: Path
) -> list[Path]:
    """Write the rows of the inputs as one sorted file, or as several that follow each other; return them in order.

    WARN: with more than one thread the engine breaks the order at the seams of a split output: the caller opens it
    with one thread then.
    """
    folder.mkdir()
    footer = make_footer(
        table=unit.paths.name,
        partition=unit.group.partition,
        commit_id=unit.commit_id,
        kind="merge",
        inputs=[marker.path for marker in unit.group.inputs],
    )
    pairs = ", ".join(f"{quote_text(name)}: {quote_text(value)}" for name, value in footer.items())
    options = f"FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {unit.config.row_group_rows}, KV_METADATA {{{pairs}}}"
    target = folder / "merged.parquet"
    if _is_split(unit):
        target = folder
        options += f", FILE_SIZE_BYTES {SPLIT_FACTOR * unit.config.target_file_bytes}"
    outputs = ", ".join(f"CAST({quote_name(name)} AS {kind}) AS {quote_name(name)}" for name, kind in columns.items())
    sort = ", ".join(f"{quote_name(name)} NULLS LAST" for name in unit.config.sort if name in columns)
    order = f" ORDER BY {sort}" if sort else ""
    try:
        engine.execute(
            f"COPY (SELECT {outputs} FROM {_scan(files)}{order}) "  # noqa: S608 - names and texts are quoted
            f"TO {quote_text(str(target))} ({options})"
        )
    except (duckdb.OutOfMemoryException, duckdb.IOException):
        raise
    except duckdb.Error as error:
        message = str(error).partition("\n")[0]
        for marker, file in zip(unit.group.inputs, files, strict=True):
            message = message.replace(str(file), marker.path)
        raise CorruptLog(
            f"table {unit.paths.name}: a data file of partition {unit.group.partition!r}, one of {len(files)} from "
            f"{unit.group.inputs[0].path} on, cannot be merged ({message[:300]}): find it and restore the object"
        ) from error
    return sorted(folder.iterdir(), key=lambda file: (len(file.name), file.name))


def _scan(files: Sequence[Path]) -> str:
    names = ", ".join(quote_text(str(file)) for file in files)
    return f"read_parquet([{names}], union_by_name = true, hive_partitioning = false)"


def _is_split(unit: MergeUnit) -> bool:
    return unit.group.size_bytes > SPLIT_FACTOR * unit.config.target_file_bytes


def _upload(
    unit: MergeUnit, store: ObjectStore, files: Sequence[Path], keys: Sequence[str], columns: Collection[str]
) -> tuple[FileMarker, ...]:
    """Upload the outputs and describe them by what they hold, not by what was meant to be in them (W1)."""
    sources = (field.column for field in unit.config.partition)
    stats_columns = [column for column in dict.fromkeys([*sources, *unit.config.sort]) if column in columns]

    def upload(pair: tuple[Path, str]) -> FileMarker:
        file, key = pair
        stats = StatsCollector(stats_columns)
        with pq.ParquetFile(file) as parquet:
            row_count = int(parquet.metadata.num_rows)
            if stats_columns:
                for chunk in parquet.iter_batches(ROWS_PER_CHUNK, columns=stats_columns):
                    stats.add(pa.Table.from_batches([chunk]))
        size_bytes = file.stat().st_size
        store.upload(key, file)
        return FileMarker(
            path=key,
            size_bytes=size_bytes,
            created_ms=unit.time_ms,
            row_count=row_count,
            stats=stats.finish(),
        )

    with ThreadPoolExecutor(unit.engine.transfer_count, thread_name_prefix="icedb-upload") as pool:
        return tuple(pool.map(upload, zip(files, keys, strict=True)))
