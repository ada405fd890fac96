"""What a footer says of a file as a data file of a table: its columns, its one partition, its statistics.

The partition is proved by the footer: what the transform makes of the least and of the greatest value of the column
must be the same. All transforms but ``bucket`` keep the order of values, so that everything between is the same, too;
a bucket is proved by a column with one value only. A value that the caller vouches for stands in for statistics that a
file does not have; it never overrules those that it has.
"""

from typing import Any, Final
from urllib.parse import unquote

from icedb_log.errors import NotFound, PreconditionFailed
from icedb_log.jobs import InspectedFile, InspectJob, SourceFile
from icedb_log.parquet.file_reads import ParquetFooterReader
from icedb_log.parquet.footer import ENCRYPTED, ColumnBounds, Footer
from icedb_log.parquet.schema import DamagedFile
from icedb_log.store.object_store import ObjectInfo, ObjectStore
from icedb_log.table.partitions import decode_partition_value, encode_partition_value
from icedb_log.table.table_config import PartitionField
from icedb_log.table.time_columns import show_time
from icedb_log.table.transforms import find_type_problem, read_bound, transform_value

from icedb_engine.limits import MAX_PARTITION_VALUE_BYTES
from icedb_engine.reading.widening import find_inexact

_SHOWN_CHARS: Final = 80
_CODECS: Final = frozenset({0, 1, 2, 4, 6, 7})
"""What merges and common engines can decompress: none, Snappy, gzip, Brotli, zstd, LZ4."""
_REWRITE: Final = "send the file with `icedb ingest`, which rewrites it"


class FileRefused(Exception):
    """A file that cannot be imported; the message says why, in words for the caller."""


def inspect_file(store: ObjectStore, source: SourceFile, job: InspectJob) -> InspectedFile:
    """Inspect one file.

    Raises:
        FileRefused: It cannot be a data file of the table.
        Unavailable: The store did not answer.
    """
    footer = _read_footer(store, source)
    _check_origin(footer, source, job)
    if not footer.row_count:  # then it does not matter what the columns are: tools write untyped ones
        return InspectedFile(source, {}, "", 0, {}, is_sorted=True)
    _check_columns(footer)
    _check_times(footer, job)
    values = [_find_value(field, footer, source, job) for field in job.config.partition]
    columns = dict.fromkeys([*(field.column for field in job.config.partition), *job.config.sort])
    stats = {column: footer.bounds[column].to_stats() for column in columns if column in footer.bounds}
    return InspectedFile(
        source=source,
        columns=footer.columns,
        partition="/".join(
            f"{field.name}={_encode(field, value)}" for field, value in zip(job.config.partition, values, strict=True)
        ),
        row_count=footer.row_count,
        stats={column: each for column, each in stats.items() if each is not None},
        is_sorted=footer.sorted_by[: len(job.config.sort)] == job.config.sort,
        inexact=find_inexact(footer),
        has_field_ids=footer.has_field_ids,
    )


def _read_footer(store: ObjectStore, source: SourceFile) -> Footer:
    info = ObjectInfo(source.key, source.etag, source.size_bytes, source.modified_ms)
    try:
        return ParquetFooterReader(store).require_footer(info, bounds_of=None)
    except DamagedFile as error:
        raise FileRefused(f"{error}; narrow the pattern, or write the file again") from error
    except NotFound as error:
        raise FileRefused("it is gone since it was listed: run the import again") from error
    except PreconditionFailed as error:
        raise FileRefused("it changed since it was listed: run the import again when nobody writes it") from error


def _check_columns(footer: Footer) -> None:
    """Refuse columns that engines read as something else than the table has, or cannot read."""
    for name, words in footer.odd_columns.items():
        remedy = _REWRITE
        if words.endswith("UTC"):
            remedy = f"write timestamps as UTC without a time zone (isAdjustedToUTC false), or {_REWRITE}"
        elif "nanoseconds" in words or words == "INT96":
            remedy = f"write microseconds, or {_REWRITE}"
        raise FileRefused(f"column {name!r} is {words}, which no column of a table is without a conversion: {remedy}")
    if ENCRYPTED in footer.codecs:
        raise FileRefused("a column of it is encrypted: engines that read the table have no key for it")
    if not footer.codecs <= _CODECS:
        raise FileRefused("a column of it is compressed in a way that common engines do not know: use zstd")


def _check_origin(footer: Footer, source: SourceFile, job: InspectJob) -> None:
    """Refuse data files of IceDB tables of which nobody says that they are live."""
    table = footer.written_for
    if not table or (source.is_named and job.mode == "copy"):
        return
    raise FileRefused(
        f"IceDB wrote it for table {table}: it may be dead there, or of a run that never committed, and its rows be in "
        f"other files. Only the log tells; name the live files: `icedb snapshot {table} -o paths`"
    )


def _read_bounds(footer: Footer, column: str) -> tuple[Any, Any] | None:
    """Return the least and the greatest value of a column; ``None``: the footer does not say."""
    known, sql_type = footer.bounds.get(column), footer.columns.get(column, "")
    found = (None, None) if known is None else (read_bound(known.low, sql_type), read_bound(known.high, sql_type))
    return None if None in found else found


def _check_times(footer: Footer, job: InspectJob) -> None:
    """Refuse a file with times that no calendar has, or that the table takes for a mistake."""
    for column, known in footer.bounds.items():
        if known.has_odd_time:
            raise FileRefused(
                f"column {column!r} has times outside the years 1 to 9999: correct them, or leave them out"
            )
    for column, time in job.config.times.items():
        for bound in _read_bounds(footer, column) or ():
            sql_type = footer.columns[column]
            if not time.is_good(bound, sql_type):
                table = job.config.name
                wrong = time.describe_bad(column, show_time(bound), sql_type=sql_type, table=table)
                raise FileRefused(f"{wrong} ({show_time(bound)})")


def _find_value(field: PartitionField, footer: Footer, source: SourceFile, job: InspectJob) -> str:
    """Return the one partition value of all rows, as text (N5)."""
    sql_type = footer.columns.get(field.column)
    if sql_type is None:
        raise FileRefused(
            f"it has no column {field.column!r}, which partition {field} needs (a value in the path only is not in the "
            "rows): write the column into the file"
        )
    problem = find_type_problem(field, sql_type)
    if problem is not None:
        raise FileRefused(problem)
    known, bounds = footer.bounds[field.column], _read_bounds(footer, field.column)
    if known.null_count:
        raise FileRefused(f"column {field.column!r} has {known.null_count} nulls, and partition {field} takes none")
    proved = None if bounds is None else _prove(field, *bounds)
    lack = _lack(field, known, bounds)
    value = _settle_value(field, known, proved, job.partition.get(field.name), lack=lack)
    if proved is None or field.transform == "identity":
        _compare_path(field, value, source)
    return value


def _settle_value(
    field: PartitionField, known: ColumnBounds, proved: str | None, vouched: str | None, *, lack: str
) -> str:
    """Return what is proved, if it is proved in full, else what the caller vouches for, if that does not contradict."""
    if proved is not None and vouched is not None and vouched not in (proved, _encode(field, proved)):
        raise FileRefused(
            f"partition {field}: its statistics say {proved[:_SHOWN_CHARS]!r}, --partition says {vouched!r}"
        )
    if proved is not None and (known.null_count is not None or vouched is not None):
        return proved
    if vouched is not None:
        return vouched
    raise FileRefused(
        f"its footer does not say which {field.column!r} its rows have ({lack}), so that partition "
        f"{field} cannot be told. Write it with statistics, send it with `icedb ingest`, or vouch for all files with "
        f"--partition {field.name}=VALUE"
    )


def _prove(field: PartitionField, low: Any, high: Any) -> str | None:
    if field.transform == "bucket" and low != high:
        return None
    first, last = transform_value(field, low), transform_value(field, high)
    if first != last:
        raise FileRefused(
            f"its rows lie in several partitions: {field} goes from {first[:_SHOWN_CHARS]!r} to "
            f"{last[:_SHOWN_CHARS]!r}. Write a file for each, or send it with `icedb ingest`"
        )
    return first


def _lack(field: PartitionField, known: ColumnBounds, bounds: tuple[Any, Any] | None) -> str:
    if bounds is None:
        return "no usable minimum and maximum"
    if known.null_count is None:
        return "no number of nulls"
    return f"a {field.transform} is known for one value only, and it has several"


def _compare_path(field: PartitionField, value: str, source: SourceFile) -> None:
    """Refuse a file whose Hive path says another value than its rows."""
    for component in source.key.split("/")[:-1]:
        name, separator, raw = component.partition("=")
        if separator and name == field.name and value not in (raw, unquote(raw), decode_partition_value(raw)):
            raise FileRefused(
                f"its path says {component[:_SHOWN_CHARS]!r}, but {field} of its rows is {value[:_SHOWN_CHARS]!r}: "
                "move it, or find out which of the two is wrong"
            )


def _encode(field: PartitionField, value: str) -> str:
    encoded = encode_partition_value(value)
    if len(encoded) > MAX_PARTITION_VALUE_BYTES:
        raise FileRefused(
            f"partition {field}: value {value[:_SHOWN_CHARS]!r} has {len(encoded)} bytes in a key; the limit is "
            f"{MAX_PARTITION_VALUE_BYTES}: use truncate[n] or bucket[n]"
        )
    return encoded
