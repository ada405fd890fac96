"""Whether a configuration fits the log that is there already: before a table of another writer gets its ``table.json``.

A configuration that does not fit makes a table that takes batches and commits none, or whose partitions say something
else than their rows. So columns, types, paths of live data files, and of a few of them what the rows have are compared.
Reads only.
"""

from collections.abc import Mapping
from typing import Final

from icedb_log.clock import Clock
from icedb_log.errors import InvalidRequest
from icedb_log.log.fold import fold
from icedb_log.log.reader import LogReader
from icedb_log.log.widening import fixed_columns, is_widening
from icedb_log.model import FileMarker
from icedb_log.parquet.footer import Footer, FooterReader
from icedb_log.repair.fsck_data import find_partition_problem
from icedb_log.store.object_store import ObjectInfo
from icedb_log.store.table_store import TableStore
from icedb_log.table.column_bounds import Scalar
from icedb_log.table.partitions import read_partition_values
from icedb_log.table.table_config import TIME_TRANSFORMS, PartitionField, TableConfig
from icedb_log.table.time_columns import TIME_UNITS, TimeUnit
from icedb_log.table.transforms import find_type_problem, transform_bound

MAX_FOOTERS: Final = 16
"""So many data files, spread over all partitions, are looked into."""


def require_fit(table: TableStore, config: TableConfig, *, clock: Clock, footers: FooterReader) -> None:
    """Compare a configuration with the log of a table that has none yet. Costs one listing where there is no log.

    Args:
        table: Its store and keys.
        config: What is to become its configuration.
        clock: This host's clock.
        footers: Reads footers of data files.

    Raises:
        InvalidRequest: They do not fit; the message names both, and what to give instead.
        HaltError: The log cannot be read.
        Unavailable: The store did not answer.
    """
    if not table.store.list_page(table.paths.log_prefix, limit=1).objects:
        return
    snapshot = fold(LogReader(table, clock=clock, max_refresh_ms=config.log_grace_ms // 2).read())
    _require_columns(config, snapshot.schema)
    taken = [column for column in config.promoted if column in snapshot.schema]
    if taken:
        raise InvalidRequest(
            f"table {config.name}: its log has column {taken[0]!r} already: give the promoted one another name, "
            "… as NAME"
        )
    laid_out = [column for column in config.promoted if column in fixed_columns(config)]
    if laid_out and snapshot.live:
        raise InvalidRequest(
            f"table {config.name}: its log has rows already, and their data files are not laid out by the promoted "
            f"column {laid_out[0]!r}: leave it out of partitions and sort order"
        )
    partitions: dict[str, FileMarker] = {}
    for marker in snapshot.live:
        partitions.setdefault(table.paths.partition_of(marker.path), marker)
    for partition, marker in sorted(partitions.items()):
        problem = find_partition_problem(partition, config.partition)
        if problem is not None:
            spec = "/".join(str(field) for field in config.partition) or "no partitions"
            raise InvalidRequest(
                f"table {config.name}: its log has data file {marker.path}, and this configuration has {spec}: "
                f"{problem}. Give --partition as the paths have it; a table whose paths no partition describes is "
                "copied into a new one: `icedb import`"
            )
    _require_values(config, list(partitions.items()), snapshot.schema, footers)


def _require_columns(config: TableConfig, schema: Mapping[str, str]) -> None:
    spelling = {column.lower(): column for column in schema}
    needed = [*config.declared, *config.sort, *(field.column for field in config.partition)]
    for column in dict.fromkeys(needed):
        logged = spelling.get(column.lower(), column)
        if logged != column:
            raise InvalidRequest(
                f"table {config.name}: its log has column {logged!r}, and this configuration {column!r}: write it as "
                "the log does"
            )
        found, declared = schema.get(column), config.declared.get(column)
        if found is not None and declared is not None and found != declared and not _may_be(column, config, found):
            use = next((f", for partition {field}" for field in config.partition if field.column == column), "")
            raise InvalidRequest(
                f"table {config.name}: its log has column {column!r} as {found}, and this configuration as {declared}"
                f"{use}: {_remedy(column, found, config)}"
            )
    for field in config.partition:
        found = schema.get(field.column)
        if schema and found is None:
            raise InvalidRequest(
                f"table {config.name}: its log has the columns {', '.join(sorted(schema))[:300]}, and partition "
                f"{field} of this configuration needs {field.column!r}: name one of them"
            )
        problem = find_type_problem(field, found) if found is not None else None
        if problem is not None:
            raise InvalidRequest(f"table {config.name}: its log has {field.column!r} as {found}: {problem}")


def _may_be(column: str, config: TableConfig, found: str) -> bool:
    """Whether a column that the log has as ``found`` may be declared so: wider, unless files are laid out by it."""
    return column not in fixed_columns(config) and is_widening(found, config.declared[column])


def _remedy(column: str, found: str, config: TableConfig) -> str:
    is_time = any(field.column == column and field.transform in TIME_TRANSFORMS for field in config.partition)
    if found == "BIGINT" and is_time:
        units = ", ".join(f"{column}:{unit}" for unit in TIME_UNITS)
        return f"numbers that are times are declared by what they count: --column with one of {units}"
    return f"declare it as it is: --column {column}:{found}"


def _require_values(
    config: TableConfig, partitions: list[tuple[str, FileMarker]], schema: Mapping[str, str], footers: FooterReader
) -> None:
    """See in a few files that what the transforms make of their rows is what their paths say."""
    step = -(-len(partitions) // MAX_FOOTERS) or 1
    chosen = partitions[::step]
    infos = [ObjectInfo(marker.path, "", marker.size_bytes, marker.created_ms) for _, marker in chosen]
    columns = [field.column for field in config.partition]
    if not columns:
        return
    for (partition, marker), footer in zip(chosen, footers.read_footers(infos, bounds_of=columns), strict=True):
        if not isinstance(footer, Footer):
            continue  # what is wrong with a file is the business of fsck
        values = read_partition_values(partition)
        for field in config.partition:
            bounds = footer.bounds.get(field.column)
            said = values.get(field.name)
            if bounds is None or said is None or field.transform == "bucket":
                continue
            for bound in (bounds.low, bounds.high) if bounds.is_exact else ():
                made = transform_bound(field, bound, schema.get(field.column, ""))
                if made is not None and made != said:
                    raise InvalidRequest(
                        f"table {config.name}: data file {marker.path} lies in {field.name}={said}, and {field} of its "
                        f"row with {field.column} = {bound} is {made}: {_explain(field, bound, said, schema)}"
                    )


def _explain(field: PartitionField, bound: Scalar, said: str, schema: Mapping[str, str]) -> str:
    units: tuple[TimeUnit, ...] = TIME_UNITS if field.unit is not None else ()
    for unit in units:
        other = field.model_copy(update={"unit": unit})
        if transform_bound(other, bound, schema.get(field.column, "")) == said:
            return f"it counts {unit}: declare it with --column {field.column}:{unit}"
    return "give --partition as the rows have it; a partition by local time, or by another rule, cannot be taken over"
