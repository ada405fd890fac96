"""One unit of a merge: the data files of one group become sorted data files of the same partition.

Runs inside a task, or directly in a test: it needs a store, not Spark. Inputs are only read. Rows in and rows out
are counted independently (the inputs' footers, and what was written), so that the committer can compare them.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

from icedb_log.clock import Clock
from icedb_log.errors import CorruptLog, NotFound, SchemaConflict, Unavailable
from icedb_log.jobs import MergeGroup
from icedb_log.keys import TablePaths
from icedb_log.model import FileMarker
from icedb_log.object_store import ObjectStore
from icedb_log.table_config import TableConfig
from icedb_parts.engine import open_engine, open_scratch
from icedb_parts.footer import make_footer
from icedb_parts.limits import EngineLimits
from icedb_parts.part_files import ORDINAL, PartFileWriter, PartLayout
from icedb_parts.sql import quote_name, quote_text

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
        CorruptLog: An input is no Parquet file, though the log names it.
        Unavailable: The store did not answer, or memory and scratch did not suffice.
    """
    if unit.group.size_bytes > unit.engine.scratch_bytes:
        raise Unavailable(
            f"table {unit.paths.name}: merging {unit.group.partition or 'the table'} needs {unit.group.size_bytes} bytes of "
            f"scratch for its inputs; {unit.engine.scratch_bytes} are allowed: allow more, or lower max_files_per_group"
        )
    with open_scratch(unit.engine) as scratch, open_engine(unit.engine, scratch) as engine:
        files = _download(unit, store, scratch / "in")
        rows_read = sum(_count_rows(marker, file) for marker, file in zip(unit.group.inputs, files, strict=True))
        columns = _unite_columns(unit, engine, files)
        sort = [column for column in unit.config.sort if column in columns]
        outputs = _write(unit, store, clock, scratch, _stream_sorted(engine, files, columns, sort), columns, sort)
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
    """Return the union of the inputs' columns with their types: the schema's order, then the others'.

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
            if known_name != name or known_type != sql_type:
                raise SchemaConflict(
                    f"table {unit.paths.name}: column {name!r} is {sql_type} in data file {marker.path}, "
                    f"but the table has {known_name!r} as {unit.schema.get(known_name) or known_type}: "
                    "rewrite that file with the table's type"
                )
            found[name] = sql_type
    ordered = [name for name in unit.schema if name in found]
    return {name: found[name] for name in dict.fromkeys([*ordered, *found])}


def _stream_sorted(engine: Any, files: Sequence[Path], columns: Mapping[str, str], sort: Sequence[str]) -> Any:
    outputs = "".join(f", {quote_name(name)}" for name in columns)
    order = ", ".join(f"{quote_name(name)} NULLS LAST" for name in sort)
    engine.execute(
        f"SELECT CAST(0 AS INTEGER) AS {ORDINAL}{outputs} FROM {_scan(files)}"  # noqa: S608 - names are quoted
        + (f" ORDER BY {order}" if order else "")
    )
    return engine.to_arrow_reader(ROWS_PER_CHUNK)


def _scan(files: Sequence[Path]) -> str:
    names = ", ".join(quote_text(str(file)) for file in files)
    return f"read_parquet([{names}], union_by_name = true, hive_partitioning = false)"


def _write(  # noqa: PLR0913 - one place, called once
    unit: MergeUnit,
    store: ObjectStore,
    clock: Clock,
    scratch: Path,
    stream: Any,
    columns: Mapping[str, str],
    sort: Sequence[str],
) -> tuple[FileMarker, ...]:
    inputs = [marker.path for marker in unit.group.inputs]

    def footer(partition: str) -> dict[str, str]:
        return make_footer(
            table=unit.paths.name, partition=partition, commit_id=unit.commit_id, kind="merge", inputs=inputs
        )

    sources = [field.column for field in unit.config.partition if field.column in columns]
    layout = PartLayout(
        paths=unit.paths,
        partitions=(unit.group.partition,),
        footer=footer,
        sort_columns=sort,
        stats_columns=tuple(dict.fromkeys([*sources, *sort])),
        row_group_rows=unit.config.row_group_rows,
        split_bytes=SPLIT_FACTOR * unit.config.target_file_bytes,
        created_ms=unit.time_ms,
    )
    writer = PartFileWriter(
        store, layout, clock=clock, folder=scratch / "out", transfer_count=unit.engine.transfer_count
    )
    return writer.write_all(stream)
