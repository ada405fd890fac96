"""What a footer says of a file as a data file of a table: its columns, its one partition, its statistics.

The partition is proved by the footer: what the transform makes of the least and of the greatest value of the column
must be the same. All transforms but ``bucket`` keep the order of values, so that everything between is the same, too;
a bucket is proved by a column with one value only. A value that the caller vouches for stands in for statistics that a
file does not have; it never overrules those that it has.
"""

from typing import Final
from urllib.parse import unquote

from icedb_log.ingest.import_sources import SourceFile
from icedb_log.jobs import InspectedFile, InspectJob
from icedb_log.model import ColumnStats
from icedb_log.store.object_store import ObjectStore
from icedb_log.table.column_bounds import encode_bounds
from icedb_log.table.partitions import decode_partition_value, encode_partition_value
from icedb_log.table.table_config import PartitionField
from icedb_log.table.time_columns import show_time
from icedb_log.table.transforms import find_type_problem, transform_value

from icedb_engine.imports.import_footers import ColumnBounds, FileRefused, Footer, read_footer
from icedb_engine.limits import MAX_PARTITION_VALUE_BYTES
from icedb_engine.reading.widening import find_inexact

_OWN_KEY: Final = b"icedb.format"
_SHOWN_CHARS: Final = 80


def inspect_file(store: ObjectStore, source: SourceFile, job: InspectJob) -> InspectedFile:
    """Inspect one file.

    Args:
        store: Where it is.
        source: The file.
        job: The table.

    Raises:
        FileRefused: It cannot be a data file of the table.
        Unavailable: The store did not answer.
    """
    footer = read_footer(store, source)
    _check_origin(footer, source, job)
    if not footer.row_count:
        return InspectedFile(source, footer.columns, "", 0, {}, is_sorted=True)
    bounds = {
        column: footer.bounds_of(column)
        for column in dict.fromkeys([*(field.column for field in job.config.partition), *job.config.sort])
        if column in footer.columns
    }
    _check_times(bounds, footer, job)
    values = [_find_value(field, footer, bounds, source, job) for field in job.config.partition]
    return InspectedFile(
        source=source,
        columns=footer.columns,
        partition="/".join(
            f"{field.name}={_encode(field, value)}" for field, value in zip(job.config.partition, values, strict=True)
        ),
        row_count=footer.row_count,
        stats={column: stats for column, each in bounds.items() if (stats := _to_stats(each)) is not None},
        is_sorted=footer.is_sorted_by(job.config.sort),
        inexact=find_inexact(footer),
        has_field_ids=footer.has_field_ids,
    )


def _check_origin(footer: Footer, source: SourceFile, job: InspectJob) -> None:
    """Refuse data files of IceDB tables of which nobody says that they are live."""
    if _OWN_KEY not in footer.texts or (source.is_named and job.mode == "copy"):
        return
    table = footer.texts.get(b"icedb.table", b"?").decode(errors="replace")
    raise FileRefused(
        f"IceDB wrote it for table {table}: it may be dead there, or of a run that never committed, and its rows be in "
        f"other files. Only the log tells; name the live files: `icedb snapshot {table} --format paths`"
    )


def _check_times(bounds: dict[str, ColumnBounds], footer: Footer, job: InspectJob) -> None:
    """Refuse a file with times that the table takes for a mistake."""
    for column, time in job.config.times.items():
        known = bounds[column] if column in bounds else footer.bounds_of(column) if column in footer.columns else None
        for bound in () if known is None or known.low is None else (known.low, known.high):
            sql_type = footer.columns[column]
            if not time.is_good(bound, sql_type):
                table = job.config.name
                wrong = time.describe_bad(column, show_time(bound), sql_type=sql_type, table=table)
                raise FileRefused(f"{wrong} ({show_time(bound)})")


def _find_value(
    field: PartitionField, footer: Footer, bounds: dict[str, ColumnBounds], source: SourceFile, job: InspectJob
) -> str:
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
    known = bounds[field.column]
    if known.null_count:
        raise FileRefused(f"column {field.column!r} has {known.null_count} nulls, and partition {field} takes none")
    proved = _prove(field, known)
    value = _settle_value(field, known, proved, job.partition.get(field.name))
    if proved is None or field.transform == "identity":
        _compare_path(field, value, source)
    return value


def _settle_value(field: PartitionField, known: ColumnBounds, proved: str | None, vouched: str | None) -> str:
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
        f"its footer does not say which {field.column!r} its rows have ({_lack(field, known)}), so that partition "
        f"{field} cannot be told. Write it with statistics, send it with `icedb ingest`, or vouch for all files with "
        f"--partition {field.name}=VALUE"
    )


def _prove(field: PartitionField, known: ColumnBounds) -> str | None:
    if known.low is None or (field.transform == "bucket" and known.low != known.high):
        return None
    first, last = transform_value(field, known.low), transform_value(field, known.high)
    if first != last:
        raise FileRefused(
            f"its rows lie in several partitions: {field} goes from {first[:_SHOWN_CHARS]!r} to "
            f"{last[:_SHOWN_CHARS]!r}. Write a file for each, or send it with `icedb ingest`"
        )
    return first


def _lack(field: PartitionField, known: ColumnBounds) -> str:
    if known.low is None:
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


def _to_stats(known: ColumnBounds) -> ColumnStats | None:
    if known.null_count is None:
        return None
    if known.low is None:
        return (None, None, known.null_count)
    return (*encode_bounds(known.low, known.high), known.null_count)
